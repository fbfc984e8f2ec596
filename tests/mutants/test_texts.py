"""The places of the planted faults, which move with the code: that one is gone shall not wait for a long run."""

import pytest

from tests.mutants.handing_faults import HANDING_FAULTS
from tests.mutants.mutant import Mutant
from tests.mutants.run import MUTANTS, ROOT
from tests.mutants.streams_faults import STREAMS_FAULTS


@pytest.mark.parametrize(
    "mutant", [*MUTANTS, *STREAMS_FAULTS, *HANDING_FAULTS], ids=lambda mutant: f"{mutant.backend}: {mutant.name}"
)
def test_the_place_of_a_planted_fault_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    assert [old for old, _ in mutant.changes if text.count(old) != 1] == []
