"""`queue-runtime phorge`: what it puts into a Phorge, what it refuses, and that a file appears whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conduit.phorge.checkout import Checkout, shipped
from conduit.phorge.errors import RefusedError
from conduit.phorge.php_names import BUILT_IN
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
    library(tmp_path / "arcanist" / "src")
    return root


def library(folder: Path) -> Path:
    """A library as Phorge loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__phutil_library_init__.php").write_text("<?php\n")
    return folder


def configure(phorge: Path, **options: object) -> None:
    local = phorge / "conf" / "local" / "local.json"
    local.parent.mkdir(parents=True, exist_ok=True)
    local.write_text(json.dumps({name.replace("_", "-"): value for name, value in options.items()}))


def without_php(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


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
    assert f"printf %s TOKEN | {phorge}/bin/config set --stdin queue-runtime.token" in done.output
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
    assert (done.exit_code, "included by PHP" in done.output) == (0, True)
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


# ---- names that would take the site down


@pytest.mark.parametrize("has_php", [True, False], ids=["with PHP", "without PHP"])
@pytest.mark.parametrize(
    "name", ["class", "List", "SELF", "int", "Mixed", "match", "readonly", "enum", "_", "Resource"]
)
def test_a_reserved_word_is_no_name_either(
    phorge: Path, name: str, has_php: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_php:
        without_php(monkeypatch)
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython", name)
    assert (done.exit_code, name in done.output) == (2, True)
    assert not files(phorge)


@pytest.mark.parametrize("has_php", [True, False], ids=["with PHP", "without PHP"])
@pytest.mark.parametrize(
    "name",
    ["Countable", "exception", "ArrayAccess", "UnitEnum", "PDO", "mysqli", "GearmanWorker", "Override", "RoundingMode"],
)
def test_what_php_has_by_itself_gets_no_stub(
    phorge: Path, name: str, has_php: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interface is no class to class_exists(), and the second one a fatal error on every page."""
    if not has_php:
        without_php(monkeypatch)
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython", name)
    assert (done.exit_code, name in done.output) == (1, True)
    assert not files(phorge)


def test_the_lists_of_names_have_all_that_this_php_has() -> None:
    """The lists are for machines without PHP, so they must be no shorter than what PHP says."""
    script = "echo json_encode(array_merge(get_declared_classes(), get_declared_interfaces(), get_declared_traits()));"
    done = subprocess.run([find_program("php", "php-cli"), "-r", script], capture_output=True, check=True)
    names = {name.lower() for name in json.loads(done.stdout) if "\\" not in name}
    assert len(names) > 150
    assert names <= BUILT_IN


class Place:
    """Where a Phorge may get a class from, besides its own src."""

    def __init__(self, path: str, **options: object) -> None:
        self.path = path
        self.options = options


PLACES = {
    "its externals": Place("phorge/externals/mailer/mailer.php"),
    "its scripts": Place("phorge/scripts/daemon/run.php"),
    "another extension": Place("phorge/src/extensions/deep/mine.php"),
    "Arcanist": Place("arcanist/src/a/b.php"),
    "Arcanist's externals": Place("arcanist/externals/lint/lint.php"),
    "Arcanist's extensions": Place("arcanist/src/extensions/mine.php"),
    "a library beside it": Place("ours/src/a.php", load_libraries=["ours/src"]),
    "a library elsewhere": Place("far/away/lib/a.php", load_libraries=["{root}/far/away/lib"]),
    "a library in it": Place("phorge/lib/src/a.php", load_libraries=["lib/src"]),
    "a library among several": Place("two/src/a.php", load_libraries={"1": "one/src", "2": "two/src/"}),
    "what a library brings along": Place("ours/externals/x/x.inc", load_libraries=["ours/src"]),
}


@pytest.mark.parametrize("has_php", [True, False], ids=["with PHP", "without PHP"])
@pytest.mark.parametrize("place", PLACES)
def test_a_class_that_phorge_gets_from_elsewhere_gets_no_stub(
    phorge: Path, tmp_path: Path, place: str, has_php: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one/src", "two/src", "ours/src", "far/away/lib", "phorge/lib/src"):
        library(tmp_path / name)
    where = PLACES[place]
    if where.options:
        configure(phorge, **json.loads(json.dumps(where.options).replace("{root}", str(tmp_path))))
    file = tmp_path / where.path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("<?php\nabstract class\n  LibraryWorker extends PhabricatorWorker {}\n")
    if not has_php:
        without_php(monkeypatch)
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython", "libraryworker")
    assert (done.exit_code, "Phorge has libraryworker already" in done.output) == (1, True)
    assert not files(phorge) & {"queue-runtime-stubs.php"}
    assert invoke("phorge", "stubs", str(phorge), "OnlyInPython").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "interface Known {}",
        "trait Known {}",
        "enum Known: string {}",
        "final  class known {}",
        "class_alias('Other', 'Known');",
        'class_alias(Other::class, "\\\\KNOWN");',
        "namespace { class Known {} }",
    ],
)
def test_every_kind_of_class_is_found(phorge: Path, text: str) -> None:
    (phorge / "src" / "a.php").write_text(f"<?php\n{text}\n")
    assert invoke("phorge", "stubs", str(phorge), "Known").exit_code == 1


@pytest.mark.parametrize("text", ["namespace Their\\Own;\nclass Known {}", "class KnownWorker {}", "$class = 'Known';"])
def test_what_only_looks_like_the_class_is_none(phorge: Path, text: str) -> None:
    (phorge / "src" / "a.php").write_text(f"<?php\n{text}\n")
    assert invoke("phorge", "stubs", str(phorge), "Known").exit_code == 0


def test_code_behind_a_link_is_found(phorge: Path, tmp_path: Path) -> None:
    """Phorge follows links, and ends with one that leads to itself as we do."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.php").write_text("<?php\nclass Known {}\n")
    (phorge / "src" / "extensions" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "again").symlink_to(phorge / "src")
    assert invoke("phorge", "stubs", str(phorge), "Known").exit_code == 1


@pytest.mark.parametrize("case", ["no Arcanist", "no library", "no configuration", "a configuration in PHP"])
def test_while_nobody_knows_what_phorge_loads_there_are_no_stubs(phorge: Path, tmp_path: Path, case: str) -> None:
    configure(phorge)
    match case:
        case "no Arcanist":
            shutil.rmtree(tmp_path / "arcanist")
            named = str(tmp_path / "arcanist")
        case "no library":
            configure(phorge, load_libraries=["gone/src"])
            named = "gone/src"
        case "no configuration":
            (phorge / "conf" / "local" / "local.json").write_text("{")
            named = "local.json"
        case _:
            (phorge / "conf" / "custom").mkdir()
            (phorge / "conf" / "custom" / "my.conf.php").write_text("<?php\nreturn array('load-libraries' => x());\n")
            named = "my.conf.php"
    done = invoke("phorge", "stubs", str(phorge), "OnlyInPython")
    assert (done.exit_code, named in done.output) == (1, True)
    assert not files(phorge)
    assert invoke("phorge", "install", str(phorge)).exit_code == 0  # it looks by itself, at each request


def test_code_that_cannot_be_read_is_named(phorge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = phorge / "src" / "worker" / "MailWorker.php"
    whole = Path.read_bytes

    def refuse(one: Path) -> bytes:
        if one == path:
            raise PermissionError(13, "Permission denied", str(one))
        return whole(one)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for command in (["install"], ["check"], ["stubs"]):
        done = invoke("phorge", *command, str(phorge), *(["OnlyInPython"] if command == ["stubs"] else []))
        assert (done.exit_code, f"{path} cannot be read: Permission denied" in done.output) == (1, True)


@pytest.mark.parametrize("name", ["QueueRuntimeCanaryWorker", "queueruntimeconfigoptions"])
def test_a_class_of_the_extension_gets_no_stub_before_it_is_installed_either(phorge: Path, name: str) -> None:
    assert invoke("phorge", "stubs", str(phorge), name).exit_code == 1
    stubs = phorge / "src" / "extensions" / "queue-runtime-stubs.php"
    stubs.write_bytes(stub_file([name]))  # by an earlier version
    done = invoke("phorge", "install", str(phorge))
    assert (done.exit_code, "a stub perhaps" in done.output) == (1, True)
    assert files(phorge) == {stubs.name}


def test_check_finds_a_stub_whose_class_phorge_has_by_now(phorge: Path) -> None:
    """After an upgrade of Phorge."""
    invoke("phorge", "stubs", str(phorge), "OnlyInPython", "NewWorker")
    assert invoke("phorge", "check", str(phorge)).exit_code == 0
    (phorge / "src" / "worker" / "NewWorker.php").write_text("<?php\nfinal class NewWorker {}\n")
    done = invoke("phorge", "check", str(phorge))
    assert (done.exit_code, "Phorge has NewWorker by now" in done.output) == (1, True)


def test_a_class_that_only_this_machines_php_has_gets_no_stub(phorge: Path, tmp_path: Path) -> None:
    """Which extensions it has is for php.ini to say. Here a few words before each script stand for one."""
    php = tmp_path / "bin" / "php"
    php.parent.mkdir()
    real = find_program("php", "php-cli")
    odd = "interface OddInterface {} trait OddTrait {} final class OddClass {}"
    php.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\n"
        f"if '-r' in words:\n    words[-1] = {odd!r} + words[-1]\nos.execv({str(real)!r}, ['php', *words])\n"
    )
    php.chmod(0o755)
    for name in ("OddInterface", "OddTrait", "oddclass"):
        done = invoke("phorge", "stubs", str(phorge), name, PATH=f"{php.parent}:{os.environ['PATH']}")
        assert (done.exit_code, f"PHP has {name} by itself" in done.output) == (1, True)
    assert not files(phorge)


def test_stubs_that_php_finds_fault_with_do_not_appear(phorge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (
        b"<?php echo 1;",
        b"<?php $a[0];",
        b"no PHP",
        b"<?php if (0) { class OnlyInPython {} }",
        b"<?php exit;",
    ):
        monkeypatch.setattr("conduit.phorge.stubs.stub_file", lambda names, text=broken: text)
        done = invoke("phorge", "stubs", str(phorge), "OnlyInPython")
        assert (done.exit_code, "PHP does not accept" in done.output) == (1, True)
    assert not files(phorge)
