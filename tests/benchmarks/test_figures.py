"""The benchmarks' own arithmetic: a wrong figure is worse than none."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.http_rate import read_wrk
from benchmarks.payload import payload_text
from benchmarks.sample import BARE_LUA, OURS, Sample, median_of, quantile
from benchmarks.summary import summary
from benchmarks.tally import WORKER_VARIABLE, Reading, Tally

OTHER_PROCESS = "from another process"
WRK = """Running 5s test @ http://127.0.0.1:1/api/queue/enqueue
  Latency Distribution
     50%  850.00us
     75%    2.35ms
     99%    1.20s
  15000 requests in 5.00s, 2.00MB read
Requests/sec:   3000.50
"""


def samples(contender: str, *rates: float) -> list[Sample]:
    return [Sample("drain", "100", contender, {"rate": rate}, number) for number, rate in enumerate(rates)]


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([3.0, 1.0], 1.0)) == (51.0, 100.0, 3.0)


def test_a_ratio_is_taken_over_the_fastest_of_the_others() -> None:
    taken = samples(OURS, 50, 100, 900) + samples("saq", 10, 10) + samples("huey", 25, 20, 1)
    assert "| drain, 100 slots, over the fastest of saq, huey, arq | ≥ 5 | 5.00 | yes |" in summary(taken)


def test_an_aim_that_was_missed_is_marked() -> None:
    assert "| 4.00 | **no** |" in summary(samples(OURS, 40) + samples("arq", 10))


def test_an_aim_that_was_not_measured_is_left_out() -> None:
    assert "over pgqueuer" not in summary(samples(OURS, 40))
    assert median_of(samples(OURS, 40), "drain", "10", OURS, "rate") is None


def test_a_share_that_is_no_promise_is_stated() -> None:
    rates = {OURS: 20.0, BARE_LUA: 50.0}
    taken = [Sample("drain", "100", name, {"rate": rate}, store="redis") for name, rate in rates.items()]
    assert "| drain, 100 slots, share of a bare pipelined Lua loop | stated | 0.40 | - |" in summary(taken)


def test_each_driver_of_ours_is_held_to_the_aims() -> None:
    rates = {OURS: 80.0, f"{OURS}, asyncmy": 160.0, "row by row, 1 connection": 15.0}
    taken = [Sample("drain", "100", name, {"rate": rate}, store="mysql") for name, rate in rates.items()]
    report = summary(taken)
    assert "| drain, 100 slots, over row by row, 1 connection | ≥ 8 | 5.33 | **no** |" in report
    assert "| drain, 100 slots, over row by row, 1 connection, asyncmy | ≥ 8 | 10.67 | yes |" in report


def test_where_less_is_better_the_best_of_the_others_is_the_lowest() -> None:
    times = {OURS: 3.0, "saq": 2.0, "taskiq-stream": 4.0}
    taken = [
        Sample("pickup", OTHER_PROCESS if name == OURS else "", name, {"p50_ms": time}, store="redis")
        for name, time in times.items()
    ]
    assert "p50, over the better of saq and taskiq-stream | ≤ 1 | 1.50 | **no** |" in summary(taken)


def test_stores_are_reported_one_by_one_and_old_samples_are_of_sqlite() -> None:
    old = msgspec.json.decode(b'{"work":"idle","variant":"","contender":"queue-runtime","values":{}}', type=Sample)
    report = summary([old, Sample("idle", "", OURS, {"rss_mib": 50.0}, store="redis")])
    assert [line for line in report.splitlines() if line.startswith("# ")] == ["# sqlite", "# redis"]


def test_wrk_is_read_in_milliseconds() -> None:
    assert read_wrk(WRK) == {"rate": 3000.5, "requests": 15000, "p50_ms": 0.85, "p99_ms": 1200}


@pytest.mark.parametrize(
    "line", ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"]
)
def test_a_request_that_failed_spoils_the_figure(line: str) -> None:
    with pytest.raises(RuntimeError, match=line.strip()):
        read_wrk(WRK + line)


@pytest.mark.parametrize("number", [0, 7, 12345, 499_999])
def test_every_payload_has_a_hundred_bytes(number: int) -> None:
    assert len(payload_text(number)) == 100


def test_what_a_script_counted_is_read_too() -> None:
    assert read_wrk(f"{WRK}Tasks done: 123\n")["done"] == 123


def test_workers_count_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(tmp_path)
    for worker, hits in ((0, 2), (3, 5)):
        monkeypatch.setenv(WORKER_VARIABLE, str(worker))
        tally = Tally(tmp_path)
        for _ in range(hits):
            tally.hit()
        tally.close()
    assert (reading.counts()[:4], reading.count()) == ([2, 0, 0, 5], 7)


def test_the_driver_reads_what_the_handlers_left(tmp_path: Path) -> None:
    reading = Reading(tmp_path)
    tally = Tally(tmp_path)
    for number in (3, 4, 3):
        tally.hit()
        tally.stamp(number)
    first = reading.stamps()
    tally.close()
    assert reading.count() == 3
    assert list(first) == [3, 4]
    assert first[3] <= first[4]
