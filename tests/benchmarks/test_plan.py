"""What makes up a run: nothing that the report or the peers' drivers do not know."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.aims import AIMS
from benchmarks.peers import BESIDE, REQUIREMENTS, Peers, setting
from benchmarks.plan import WORKLOADS, Measurement, Options, Plan, subjects
from benchmarks.sample import BARE_LUA, BARE_SQL, MYSQL_ALONE, OURS

STORES = tuple(BESIDE)


class NamedBackend:
    """A store that is only planned with."""

    def __init__(self, name: str) -> None:
        self.name = name

    def fresh(self, folder: Path) -> Mapping[str, str]:
        raise AssertionError("nothing is measured here")

    def cpu_seconds(self) -> float | None:
        return None


def planned(store: str, *, peers: bool = True) -> list[Measurement]:
    servers = Peers(Path(), Path(), 0, 0) if peers else None
    plan = Plan(subjects(NamedBackend(store), "asyncio"), Options(), BESIDE[store], servers)
    return [measurement for work in WORKLOADS for measurement in plan.measurements(work)]


@pytest.mark.parametrize("store", STORES)
def test_every_aim_is_about_something_that_is_measured(store: str) -> None:
    measured = {(one.work, one.variant, one.contender) for one in planned(store)}
    works = {(work, contender) for work, _, contender in measured}
    for aim in AIMS[store]:
        assert (aim.work, aim.variant, OURS) in measured, aim.sentence
        # a peer's latency stands beside one of our variants only
        assert all((aim.work, other) in works for other in aim.over), aim.sentence


@pytest.mark.parametrize("store", STORES)
def test_without_drivers_no_peer_is_measured(store: str) -> None:
    assert not {one.contender for one in planned(store, peers=False)} & REQUIREMENTS.keys()


def test_mysql_is_measured_with_both_drivers_and_beside_single_rows() -> None:
    drains = [one.contender for one in planned("mysql") if (one.work, one.variant) == ("drain", "100")]
    single = ["row by row, 1 connection", "row by row, 10 connections"]
    assert drains == [OURS, f"{OURS}, asyncmy", *single, BARE_SQL, "pgqueuer", "procrastinate", "huey"]


@pytest.mark.parametrize(("store", "loop"), [("mysql", BARE_SQL), ("redis", BARE_LUA)])
def test_a_bare_loop_stands_beside_the_drain_where_slots_are_its_batch(store: str, loop: str) -> None:
    beside = [(one.work, one.variant) for one in planned(store, peers=False) if one.contender == loop]
    assert beside == [("drain", "100")]
    assert loop not in {one.contender for other in STORES if other != store for one in planned(other)}


def test_the_streams_are_measured_beside_their_record_alone() -> None:
    taken = planned("streams")
    for work, variant in (("drain", "100"), ("pickup", "from PHP"), ("pickup", "API of another process"), ("idle", "")):
        assert [one.contender for one in taken if (one.work, one.variant) == (work, variant)] == [OURS, MYSQL_ALONE]


def test_a_peer_without_concurrent_callers_is_not_asked_for_them() -> None:
    asked = {one.contender for one in planned("redis") if (one.work, one.variant) == ("enqueue", "conc")}
    assert asked == {OURS, "saq", "arq", "taskiq-list", "taskiq-stream", "streaq"}


@pytest.mark.parametrize(
    ("peer", "spelt"), [("saq", "100"), ("arq", "100tuned"), ("celery", "threads100"), ("rq", "simple")]
)
def test_concurrency_is_spelt_as_the_drivers_do(peer: str, spelt: str) -> None:
    assert setting(peer, 100) == spelt
