"""The tests of the streams see every fault that is planted in the dispatch: some in CI, all in the long run."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.mutants.run import MUTANTS, NO_FAULT, ROOT
from tests.mutants.streams_faults import QUICK, STREAMS_FAULTS

FAILED = 1
"""pytest's exit code when a test failed, and nothing else went wrong."""

NAMES = [mutant.name for mutant in STREAMS_FAULTS]


def unseen(names: Iterable[str]) -> dict[str, str]:
    """Those that their tests did not see, and the end of what pytest wrote."""
    command = [sys.executable, "-m", "tests.mutants.run", *names]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["name"] for one in found) == sorted(names)
    return {one["name"]: one["tail"] for one in found if one["code"] != FAILED}


@pytest.mark.timeout(300)
def test_a_fault_in_each_part_is_seen() -> None:
    assert unseen(QUICK) == {}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_other_fault_is_seen() -> None:
    assert unseen([name for name in NAMES if name not in QUICK]) == {}


def test_every_fault_has_a_name_of_its_own() -> None:
    names = Counter([*NAMES, *(mutant.name for mutant in (*NO_FAULT, *MUTANTS))])
    assert [name for name, number in names.items() if number > 1] == []
    assert set(NAMES) >= QUICK
