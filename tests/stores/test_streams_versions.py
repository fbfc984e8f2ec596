"""The dispatch on the oldest Redis it supports and on a current Valkey: its own tests, the contract, and histories."""

import os
import subprocess
import sys

import pytest

from tests.servers import OTHER_REDIS
from tests.stores.test_redis_versions import PROGRAMS, ROOT, program_of

PARTS = {
    "the streams' own tests": [
        "tests/stores/test_streams_delivery.py",
        "tests/stores/test_streams_order.py",
        "tests/stores/test_streams_consumers.py",
        "tests/stores/test_streams_disorder.py",
        "tests/stores/test_streams_records.py",
        "tests/stores/test_streams_attack_refusals.py",
        "tests/stores/test_streams_worker.py",
    ],
    "the contract": ["tests/contract", "-k", "streams-sqlite and not redis"],
    "histories": ["tests/property", "tests/stores/test_streams_histories.py", "-k", "streams-sqlite and not without"],
}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_dispatch_works_on_this_server(name: str, part: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not long", *PARTS[part]]
    environment = os.environ | {OTHER_REDIS: str(program_of(name))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
