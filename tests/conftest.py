"""Fixtures that all parts of the test tree share."""

import pytest

from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    """The time of this test."""
    return Clock()
