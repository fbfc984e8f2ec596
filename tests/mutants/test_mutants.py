"""The contract suite sees every planted fault, and nothing where no fault is."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants.run import MUTANTS, NO_FAULT, ROOT

# One process of pytest-xdist takes all of them, because all of them share one run.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("mutants")]

PASSED, FAILED = 0, 1  # pytest's exit codes

Outcomes = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """The exit code of the suite for each fault that was chosen, and the end of what pytest wrote.

    Two processes share the work.
    """
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    names = [mutant.name for mutant in (*NO_FAULT, *MUTANTS) if mutant.name in chosen]
    command = [sys.executable, "-m", "tests.mutants.run"]
    runs = [
        subprocess.Popen([*command, *half], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for half in (names[::2], names[1::2])
        if half
    ]
    found: Outcomes = {}
    for run in runs:
        output, _ = run.communicate()
        assert run.returncode == 0
        found |= {one["name"]: (one["code"], one["tail"]) for one in map(json.loads, output.splitlines())}
    return found


@pytest.mark.parametrize("name", [mutant.name for mutant in NO_FAULT])
def test_without_a_fault_the_suite_passes(outcomes: Outcomes, name: str) -> None:
    code, tail = outcomes[name]
    assert code == PASSED, tail


@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS])
def test_the_suite_catches(outcomes: Outcomes, name: str) -> None:
    code, tail = outcomes[name]
    assert code == FAILED, tail


def test_every_fault_has_a_name_of_its_own() -> None:
    names = Counter(mutant.name for mutant in (*NO_FAULT, *MUTANTS))
    assert [name for name, number in names.items() if number > 1] == []
