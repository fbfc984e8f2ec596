"""`queue-runtime phorge`: what it puts into a Phorge, what it refuses, and that a file appears whole or not at all."""

from pathlib import Path

import pytest

from conduit.phorge.checkout import Checkout, RefusedError, shipped
from conduit.phorge.stubs import stub_file
from tests.cli.commands import invoke
from tests.servers import find_program

FORK = """<?php
final class ForkExecuteConduitAPIMethod extends ConduitAPIMethod {
  public function getAPIMethodName() {
    return 'worker.execute';
  }
}
"""


@pytest.fixture
def phorge(tmp_path: Path) -> Path:
    """A folder with what makes a Phorge recognisable."""
    root = tmp_path / "phorge"
    for name in ("src/__phutil_library_map__.php", "src/extensions/README", "bin/config", "src/worker/MailWorker.php"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("<?php\n")
    (root / "src/worker/MailWorker.php").write_text("<?php\nfinal class MailWorker extends PhabricatorWorker {}\n")
    return root


@pytest.fixture(autouse=True)
def _php() -> None:
    """The file is checked by real PHP: a machine without it fails, and says what to install."""
    find_program("php", "php-cli")


def extension(phorge: Path) -> Path:
    return phorge / "src" / "extensions" / "queue-runtime.php"


def files(phorge: Path) -> set[str]:
    return {path.name for path in extension(phorge).parent.iterdir()} - {"README"}


def test_it_is_installed_after_php_has_checked_it(phorge: Path) -> None:
    done = invoke("phorge", "install", str(phorge))
    assert done.exit_code == 0
    assert "its syntax was checked by PHP" in done.output
    assert extension(phorge).read_bytes() == shipped()
    assert extension(phorge).stat().st_mode & 0o777 == 0o644  # the web server's account reads it
    assert files(phorge) == {"queue-runtime.php"}


def test_the_commands_that_remain_are_printed(phorge: Path) -> None:
    done = invoke("phorge", "install", str(phorge))
    assert f"{phorge}/bin/config set queue-runtime.token" in done.output
    assert "fpm" in done.output
    local = phorge / "conf" / "local" / "local.json"
    local.parent.mkdir(parents=True)
    local.write_text('{"queue-runtime.token": "a-secret-that-is-set"}')
    again = invoke("phorge", "install", str(phorge))
    assert "config set" not in again.output
    assert "a-secret-that-is-set" not in again.output


def test_installing_twice_changes_nothing(phorge: Path) -> None:
    invoke("phorge", "install", str(phorge))
    before = extension(phorge).stat()
    done = invoke("phorge", "install", str(phorge))
    assert (done.exit_code, extension(phorge).stat()) == (0, before)
    assert "already" in done.output


def test_an_older_one_is_replaced(phorge: Path) -> None:
    extension(phorge).write_bytes(shipped() + b"\n// older\n")
    assert "not the one of this version" in invoke("phorge", "check", str(phorge)).output
    assert invoke("phorge", "install", str(phorge)).exit_code == 0
    assert extension(phorge).read_bytes() == shipped()


def test_a_folder_that_is_no_phorge_is_refused(tmp_path: Path) -> None:
    for command in (["install"], ["check"], ["remove"]):
        done = invoke("phorge", *command, str(tmp_path))
        assert done.exit_code == 1
        assert "is not a Phorge" in done.output


@pytest.mark.parametrize("place", ["src/applications/worker/Fork.php", "src/extensions/deep/other.php"])
def test_beside_another_file_that_answers_the_method_it_is_not_installed(phorge: Path, place: str) -> None:
    rival = phorge / place
    rival.parent.mkdir(parents=True, exist_ok=True)
    rival.write_text(FORK)
    done = invoke("phorge", "install", str(phorge))
    assert done.exit_code == 1
    assert str(rival) in done.output
    assert not extension(phorge).exists()
    checked = invoke("phorge", "check", str(phorge))
    assert (checked.exit_code, "must not be installed" in checked.output) == (0, True)


def test_check_finds_two_files_that_answer_the_method(phorge: Path) -> None:
    invoke("phorge", "install", str(phorge))
    (phorge / "src" / "extensions" / "copy.php").write_bytes(shipped())
    done = invoke("phorge", "check", str(phorge))
    assert done.exit_code == 1
    assert "remove one of the two" in done.output


def test_a_file_that_calls_the_method_is_no_rival(phorge: Path) -> None:
    (phorge / "src" / "Caller.php").write_text("<?php\nfinal class Caller { const METHOD = 'worker.execute'; }\n")
    assert invoke("phorge", "install", str(phorge)).exit_code == 0


def test_somebody_elses_file_of_that_name_stays(phorge: Path) -> None:
    extension(phorge).write_text("<?php // mine\n")
    for command in ("install", "remove"):
        assert invoke("phorge", command, str(phorge)).exit_code == 1
    assert extension(phorge).read_text() == "<?php // mine\n"


def test_a_file_that_php_does_not_accept_does_not_appear(phorge: Path) -> None:
    checkout = Checkout(phorge)
    with pytest.raises(RefusedError, match="PHP does not accept"):
        checkout.write("queue-runtime.php", shipped() + b"}")
    assert not files(phorge)


def test_without_php_on_this_machine_it_is_installed_and_says_so(phorge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = invoke("phorge", "install", str(phorge))
    assert (done.exit_code, "not checked by PHP" in done.output) == (0, True)


def test_a_folder_that_may_not_be_written_is_named(phorge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, text: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    done = invoke("phorge", "install", str(phorge))
    assert (done.exit_code, "Permission denied" in done.output) == (1, True)


def test_check_says_what_is_there(phorge: Path) -> None:
    assert "not installed" in invoke("phorge", "check", str(phorge)).output
    invoke("phorge", "install", str(phorge))
    done = invoke("phorge", "check", str(phorge))
    assert done.exit_code == 0
    assert "is the one of this version" in done.output
    assert "token" in done.output


def test_check_finds_a_syntax_error(phorge: Path) -> None:
    extension(phorge).write_bytes(shipped()[:-200])
    done = invoke("phorge", "check", str(phorge))
    assert (done.exit_code, "fault" in done.output) == (1, True)


def test_everything_is_removed_again(phorge: Path) -> None:
    invoke("phorge", "install", str(phorge))
    invoke("phorge", "stubs", str(phorge), "OnlyInPython")
    done = invoke("phorge", "remove", str(phorge))
    assert (done.exit_code, files(phorge)) == (0, set())
    again = invoke("phorge", "remove", str(phorge))
    assert (again.exit_code, "nothing" in again.output) == (0, True)


def test_stubs_are_written_for_classes_that_php_does_not_have(phorge: Path) -> None:
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython", "AlsoInPython")
    assert (done.exit_code, "checked by PHP" in done.output) == (0, True)
    stubs = (phorge / "src" / "extensions" / "queue-runtime-stubs.php").read_bytes()
    assert stubs == stub_file(["AlsoInPython", "OnlyInPython"])
    assert stubs.count(b"extends PhabricatorWorker") == 2
    assert "already" in invoke("phorge", "stubs", str(phorge), "AlsoInPython", "OnlyInPython").output


@pytest.mark.parametrize("name", ["MailWorker", "MAILWORKER"])
def test_a_class_that_phorge_has_gets_no_stub(phorge: Path, name: str) -> None:
    """A second class of one name would be a fatal error. PHP does not look at upper and lower case."""
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython", name)
    assert (done.exit_code, name in done.output) == (1, True)
    assert not files(phorge)


@pytest.mark.parametrize("name", ["a b", "1st", "A'", "A;B", "Ä", "a" * 65])
def test_a_stub_has_a_name_that_php_takes(phorge: Path, name: str) -> None:
    assert invoke("phorge", "stubs", str(phorge), name).exit_code == 2


def test_a_reserved_word_is_no_name_either(phorge: Path) -> None:
    done = invoke("phorge", "stubs", str(phorge), "class")
    assert (done.exit_code, "PHP does not accept" in done.output) == (1, True)
    assert not files(phorge)
