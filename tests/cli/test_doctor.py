"""The doctor looks at what a start needs, one finding a line, and its exit code tells whether there is a fault."""

import socket
from pathlib import Path

from tests.cli.commands import invoke, run
from tests.cli.conftest import Answers, address_of

TOKEN = "a token that nobody guesses"


def test_a_machine_in_order_has_no_fault(tmp_path: Path) -> None:
    result = invoke("doctor", QUEUE_RUNTIME_LISTEN=f"unix:{tmp_path}/q.sock", QUEUE_RUNTIME_TOKEN=TOKEN)
    assert result.exit_code == 0
    assert [line.split(":")[0].split() for line in result.stdout.splitlines()] == [
        ["ok", "settings"], ["ok", "token"], ["ok", "listen"], ["ok", "handlers"],
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_every_fault_of_the_settings_is_a_line_of_its_own() -> None:
    result = invoke(
        "doctor", QUEUE_RUNTIME_SLOTS="0", QUEUE_RUNTIME_FOO="1", GORGE_WORKER_LEASE_LIMIT="4", GORGE_LISTEN_ADDR="x:1"
    )
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "fault    settings: QUEUE_RUNTIME_FOO is not a setting of queue-runtime" in lines
    assert "fault    settings: QUEUE_RUNTIME_SLOTS must be a whole number from 1 to 10000 (it is '0')" in lines
    assert any(line.startswith("note     settings: GORGE_WORKER_LEASE_LIMIT is ignored") for line in lines)


def test_settings_without_effect_are_warnings() -> None:
    result = invoke("doctor", QUEUE_RUNTIME_LISTEN="127.0.0.1:0", QUEUE_RUNTIME_ROLES="api", QUEUE_RUNTIME_SLOTS="4")
    assert result.exit_code == 0
    assert "warning  settings: without effect, because QUEUE_RUNTIME_ROLES has no worker" in result.stdout
    assert "note     handlers: none are loaded" in result.stdout


def test_a_running_queue_at_the_address_is_no_fault_and_another_program_is(queue: type[Answers]) -> None:
    address = address_of(queue)
    result = invoke("doctor", QUEUE_RUNTIME_LISTEN=address)
    assert (result.exit_code, f"note     listen: a queue answers at {address} already" in result.stdout) == (0, True)
    queue.body = b"<html>"
    result = invoke("doctor", QUEUE_RUNTIME_LISTEN=address)
    assert result.exit_code == 1
    assert f"fault    listen: cannot listen on {address}: Address already in use" in result.stdout


def test_each_address_is_tried_and_left_free(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = f"127.0.0.1:{port}, unix:{tmp_path}/q.sock, unix:/no/such/folder/q.sock"
    result = invoke("doctor", QUEUE_RUNTIME_LISTEN=listen)
    assert f"ok       listen: 127.0.0.1:{port} is free" in result.stdout
    assert f"ok       listen: unix:{tmp_path}/q.sock is free" in result.stdout
    assert "fault    listen: cannot listen on unix:/no/such/folder/q.sock" in result.stdout
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_who_may_use_the_queue_is_told() -> None:
    def token_line(**variables: str) -> str:
        lines = invoke("doctor", QUEUE_RUNTIME_ROLES="api", **variables).stdout.splitlines()
        return next(line for line in lines if " token: " in line)

    local = "127.0.0.1:0"
    assert token_line(QUEUE_RUNTIME_LISTEN=local).startswith("note     token: everybody on this machine")
    assert token_line(QUEUE_RUNTIME_LISTEN=local, QUEUE_RUNTIME_TOKEN=TOKEN).startswith("ok ")
    short = token_line(QUEUE_RUNTIME_LISTEN=local, QUEUE_RUNTIME_TOKEN="hunter2")
    assert short == "warning  token: QUEUE_RUNTIME_TOKEN has 7 characters, which can be guessed"
    everybody = token_line(QUEUE_RUNTIME_LISTEN=":0", QUEUE_RUNTIME_ALLOW_ANONYMOUS="1")
    assert everybody == "warning  token: everybody who can reach :0 may use the queue"


def test_handlers_that_cannot_be_loaded_are_faults(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nprint(nobody)\n")
    result = invoke(
        "doctor", QUEUE_RUNTIME_LISTEN="127.0.0.1:0", QUEUE_RUNTIME_HANDLERS=f"{tmp_path}/broken.py:registry"
    )
    assert result.exit_code == 1
    assert "broken.py, line 2: NameError: name 'nobody' is not defined" in result.stdout


def test_an_extra_that_is_not_installed_is_a_fault_and_the_store_is_not_asked(tmp_path: Path) -> None:
    program = "\n".join(
        [
            "from queue_runtime import compose",
            "compose.find_spec = lambda name: None",
            "from queue_runtime.cli.app import cli",
            "cli(['doctor', '--store'])",
        ]
    )
    chosen = {"STORE": "mysql", "MYSQL_DRIVER": "asyncmy", "LISTEN": "127.0.0.1:0"}
    ended = run("-c", program, folder=tmp_path, python=True, variables=chosen)
    assert ended.returncode == 1
    assert "fault    extras: QUEUE_RUNTIME_MYSQL_DRIVER=asyncmy needs the extra" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("ok       handlers: ")


def test_repair_without_the_store_is_refused() -> None:
    result = invoke("doctor", "--repair")
    assert result.exit_code == 2
    assert "--repair needs --store" in result.stderr


def test_a_hidden_package_is_the_last_thing_that_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("print('this must not run')\n")
    ended = run("-m", "queue_runtime", "doctor", "--store", folder=tmp_path, python=True)
    assert ended.returncode == 1
    assert "fault    packages: the package 'handlers' of queue-runtime is hidden by" in ended.stdout
    assert "must not run" not in ended.stdout


def test_the_store_is_asked_after_everything_else(tmp_path: Path) -> None:
    ended = run("doctor", "--store", "--repair", folder=tmp_path, variables={"LISTEN": "127.0.0.1:0"})
    assert ended.returncode == 0
    assert "note     file: " in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("note     repair: ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "queue-runtime.sqlite").write_text("no database " * 1000)
    ended = run("doctor", "--store", folder=tmp_path, variables={"LISTEN": "127.0.0.1:0"})
    assert ended.returncode == 1
    assert f"fault    file: {tmp_path}/queue-runtime.sqlite is not an SQLite database" in ended.stdout
    assert ended.stderr == ""


# ---- Phorge


NO_METHOD = b'{"result":null,"error_code":"ERR-CONDUIT-CALL","error_info":"Conduit API method \\"x\\" does not exist."}'


def doctor(folder: Path, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Exit code, and the lines that are neither about settings nor about this process."""
    ended = run("doctor", *arguments, folder=folder, variables={"LISTEN": "127.0.0.1:0"} | variables)
    assert ended.stderr == ""
    own = {"settings", "token", "listen", "handlers"}
    return ended.returncode, [line for line in ended.stdout.splitlines() if line.split(":")[0].split()[1] not in own]


def test_phorge_is_asked_only_when_that_is_wanted(queue: type[Answers], tmp_path: Path) -> None:
    queue.body = NO_METHOD
    url = f"http://{address_of(queue)}"
    assert doctor(tmp_path, CONDUIT_URL=url) == (0, [])
    assert queue.seen == []
    code, lines = doctor(tmp_path, "--conduit", CONDUIT_URL=url, CONDUIT_TOKEN="secret-of-both")
    assert code == 1
    (line,) = lines
    assert line.startswith("fault    conduit: Phorge does not have the method")
    assert "queue-runtime phorge install DIR" in line
    assert "secret-of-both" not in line
    (_, token, _), *_ = queue.seen
    assert token == "secret-of-both"


def test_without_a_phorge_there_is_none_to_ask(tmp_path: Path) -> None:
    code, lines = doctor(tmp_path, "--conduit")
    assert (code, [line.split(":")[0] for line in lines]) == (0, ["note     conduit"])


def test_the_phorge_of_the_gateway_is_asked_too(queue: type[Answers], tmp_path: Path) -> None:
    queue.body = b'{"result":"host","error_code":null,"error_info":null}'
    url = f"http://{address_of(queue)}"
    code, lines = doctor(tmp_path, "--conduit", GATEWAY="1", GATEWAY_URL=url)
    assert (code, lines) == (0, [f"ok       gateway: Phorge at {url} answers"])


def test_files_of_phorge_and_php_fpm_are_looked_into(tmp_path: Path) -> None:
    for name in ("src/__phutil_library_map__.php", "src/extensions/README", "bin/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "conf" / "local").mkdir(parents=True)
    (tmp_path / "conf" / "local" / "local.json").write_text('{"phabricator.base-uri": "https://phorge.example/"}')
    pool = tmp_path / "www.conf"
    pool.write_text("[www]\npm.max_children = 5\n")
    code, lines = doctor(tmp_path, "--phorge", str(tmp_path), "--php-fpm", str(pool), CONDUIT_URL="http://10.0.0.9")
    assert code == 1
    assert any(line.startswith("note     extension: not installed") for line in lines)
    assert any(line.startswith("fault    host: ") and "CONDUIT_HOST to phorge.example" in line for line in lines)
    assert any(line.startswith("warning  pool www: pm.max_children is 5") for line in lines)
    code, lines = doctor(tmp_path, "--php-fpm", str(pool))
    assert (code, [line.split(":")[0] for line in lines]) == (0, ["note     conduit"])


def test_a_folder_that_is_no_phorge_is_a_fault(tmp_path: Path) -> None:
    code, (line,) = doctor(tmp_path, "--phorge", str(tmp_path), CONDUIT_URL="http://10.0.0.9")
    assert code == 1
    assert line.startswith("fault    phorge: ")
