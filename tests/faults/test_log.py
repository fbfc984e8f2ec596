"""A log that cannot be written any more stops nothing."""

import signal
from pathlib import Path

from tests.faults.process import Served, archived, enqueue, wait_for


def test_a_log_whose_reader_is_gone_changes_nothing(tmp_path: Path) -> None:
    with Served(tmp_path, RETRY_SECONDS=1) as served, served.client() as client:
        served.stop_reading()
        (flaky,) = enqueue(client, "FlakyWorker")  # its first run fails, which is a line
        (good,) = enqueue(client, "SleepWorker")
        wait_for("both are archived", lambda: archived(client, flaky) and archived(client, good), 15)
        assert client.get("/readyz").status_code == 200
        served.tell(signal.SIGTERM)
        assert served.wait(15) == 0
