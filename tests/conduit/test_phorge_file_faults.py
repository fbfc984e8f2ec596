"""Planted faults in the extension: the stand-ins for Phorge are as strict as Phorge, and no rule goes unwatched."""

from pathlib import Path

import pytest

from conduit.phorge.php import lint
from tests.conduit.extension_faults import FAULTS, Fault
from tests.conduit.php import EXTENSION, Php


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_planted_fault_is_seen(tmp_path: Path, fault: Fault) -> None:
    text = EXTENSION.read_text()
    assert text.count(fault.old) == 1, "write this fault anew: its text is not there once"
    planted = tmp_path / "planted.php"
    planted.write_text(text.replace(fault.old, fault.new))
    lint(planted)  # else any test would see it
    locks = tmp_path / "locks"
    locks.mkdir()
    php = Php(locks)
    php.load = [planted, *php.load[1:]]
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        fault.caught_by(php)
