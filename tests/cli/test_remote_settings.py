"""The settings of a worker whose store is another queue-runtime, and what its doctor says."""

from pathlib import Path

import pytest

from queue_runtime.config import load_config, read_environment
from queue_runtime.settings import PREFIX
from queue_runtime.store_wire import VERSION
from tests.cli.commands import run
from tests.faults.process import Served

URL = "http://queue:8090"


def environment(**variables: str) -> dict[str, str]:
    """An environment whose store is remote; names are given without the prefix."""
    return {PREFIX + name: text for name, text in ({"STORE": "remote", "REMOTE_URL": URL} | variables).items()}


def test_a_remote_store_makes_the_process_a_worker_and_nothing_else() -> None:
    config = load_config(environment(REMOTE_TOKEN="t"))
    assert (config.store, config.remote_url, config.remote_token) == ("remote", URL, "t")
    assert config.roles == {"worker"}
    assert load_config({}).roles == {"api", "worker", "sweep"}


@pytest.mark.parametrize(
    ("roles", "named"), [("api", "api"), ("worker,sweep", "sweep"), ("api,worker,sweep", "api, sweep")]
)
def test_other_roles_are_a_fault_that_names_the_variables(roles: str, named: str) -> None:
    (problem,) = read_environment(environment(ROLES=roles)).problems
    assert problem.startswith(f"QUEUE_RUNTIME_ROLES has {named}, but with QUEUE_RUNTIME_STORE=remote ")
    assert "QUEUE_RUNTIME_REMOTE_URL" in problem


def test_the_address_is_required() -> None:
    (problem,) = read_environment(environment(REMOTE_URL="")).problems
    assert problem == "QUEUE_RUNTIME_STORE=remote needs QUEUE_RUNTIME_REMOTE_URL: where the queue is"


@pytest.mark.parametrize(
    "url", [URL, "http://10.0.0.7:8090/", "https://u:p%40w@q.example/queue", "http://[::1]:8090", "unix:/run/q.sock"]
)
def test_an_address_is_taken_as_it_is(url: str) -> None:
    assert load_config(environment(REMOTE_URL=url)).remote_url == url


@pytest.mark.parametrize(
    "url",
    ["queue:8090", "ftp://s3cret@queue", "http://", "http://s3cret@:80", "http://queue:0", "http://queue:s3cret",
     "http://queue/?s3cret=1", "http://que ue", "unix:relative", "unix:/", "unix:/" + "x" * 107],
)  # fmt: skip
def test_a_bad_address_is_one_fault_that_does_not_show_it(url: str) -> None:
    (problem,) = read_environment(environment(REMOTE_URL=url)).problems
    assert problem.startswith("QUEUE_RUNTIME_REMOTE_URL must be http://host:port, ")
    assert "s3cret" not in problem


def test_token_and_password_are_secrets_that_files_may_hold(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    config = load_config(environment(REMOTE_URL="https://u:p%40ssword@q", REMOTE_TOKEN_FILE=str(file)))
    assert config.secrets == ("p%40ssword", "p@ssword", "from a file")


def test_settings_that_the_server_decides_get_a_warning() -> None:
    (warning,) = read_environment(environment(ROUTES="A=high", RETENTION_DAYS="3")).warnings
    assert warning == (
        "without effect, because the server's settings decide: QUEUE_RUNTIME_ROUTES, QUEUE_RUNTIME_RETENTION_DAYS"
    )


def doctor(folder: Path, **variables: str) -> tuple[int, list[str]]:
    """Exit code and findings about the store of `queue-runtime doctor --store`."""
    settings = {"STORE": "remote", "LISTEN": "127.0.0.1:0"} | variables
    ended = run("doctor", "--store", folder=folder, variables=settings)
    about = ("way:", "server:", "leases:", "readiness:", "repair:", "store:")
    return ended.returncode, [line for line in ended.stdout.splitlines() if any(word in line for word in about)]


def test_the_doctor_asks_the_server(tmp_path: Path) -> None:
    with Served(tmp_path, ROLES="api,sweep", TOKEN="a token of the server", LEASE_SECONDS=6) as served:
        url = str(served.client().base_url)
        token = "a token of the server"
        code, lines = doctor(tmp_path, REMOTE_URL=url, REMOTE_TOKEN=token, LEASE_SECONDS="6")
        assert (code, [line.split()[:2] for line in lines]) == (
            0,
            [["ok", "way:"], ["ok", "server:"], ["ok", "leases:"], ["ok", "readiness:"]],
        )
        assert f"speaks version {VERSION} of the store protocol" in lines[1]
        assert lines[3].endswith("its store is sqlite")

        code, lines = doctor(tmp_path, REMOTE_URL=url, REMOTE_TOKEN=token, LEASE_SECONDS="60")
        assert (code, lines[2].split()[0]) == (0, "warning")
        assert "3 s" in lines[2]
        assert "30 s" in lines[2]

        code, lines = doctor(tmp_path, REMOTE_URL=url, REMOTE_TOKEN="another token")
        assert (code, lines[-1].split()[0]) == (1, "fault")
        assert "401: the token is missing or wrong" in lines[-1]
        served.tell_and_wait()
    code, lines = doctor(tmp_path, REMOTE_URL=url, REMOTE_TOKEN=token)
    assert (code, lines[-1].split()[:2]) == (1, ["fault", "server:"])
