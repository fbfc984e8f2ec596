"""The tests of the handing over see every fault that is planted in it."""

import json
import subprocess
import sys

import pytest

from tests.mutants.handing_faults import HANDING_FAULTS
from tests.mutants.run import ROOT

FAILED = 1
"""pytest's exit code when a test failed, and nothing else went wrong."""


@pytest.mark.timeout(300)
def test_every_fault_is_seen() -> None:
    names = [mutant.name for mutant in HANDING_FAULTS]
    command = [sys.executable, "-m", "tests.mutants.run", *names]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["name"] for one in found) == sorted(names)
    assert {one["name"]: one["tail"] for one in found if one["code"] != FAILED} == {}
