"""The benchmarks' own arithmetic: a wrong figure is worse than none."""

from pathlib import Path

import pytest

from benchmarks.http_rate import read_wrk
from benchmarks.payload import payload_text
from benchmarks.sample import OURS, Sample, median_of, quantile
from benchmarks.summary import summary
from benchmarks.tally import Reading, Tally

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
