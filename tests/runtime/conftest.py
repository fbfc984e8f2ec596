"""Fixtures of the tests of the loops."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

Log = MutableMapping[str, Any]


@pytest.fixture
def logs() -> Iterator[list[Log]]:
    """The log lines of this test, whatever another test has configured."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as lines:
        yield lines
    structlog.configure(**before)
