"""Runs the contract suite against planted faults: `python -m tests.mutants.run [name …]`, one line of JSON for each.

Every fault lives in a process of its own, forked from this one, which has loaded pytest, all libraries, and nothing of
the project.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.handing_faults import HANDING_FAULTS
from tests.mutants.mutant import Mutant
from tests.mutants.mysql_faults import MYSQL_FAULTS
from tests.mutants.redis_faults import REDIS_FAULTS
from tests.mutants.reference_faults import REFERENCE_FAULTS
from tests.mutants.sqlite_faults import SQLITE_FAULTS
from tests.mutants.streams_faults import STREAMS_FAULTS

ROOT = Path(__file__).parents[2]

MUTANTS = REFERENCE_FAULTS + SQLITE_FAULTS + MYSQL_FAULTS + REDIS_FAULTS

NO_FAULT = (
    Mutant("no fault in the reference store", "reference", "", (), ("*",)),
    Mutant("no fault in the SQLite store", "sqlite", "", (), ("settle_rounds", "retention")),
    Mutant("no fault in the MySQL store", "mysql", "", (), ("settle_rounds", "retention")),
    Mutant("no fault in the Redis store", "redis", "", (), ("settle_rounds", "retention")),
)
"""The same run without a fault, which must pass: what is caught is caught for its fault."""


OURS = {"conduit", "handlers", "queue_runtime", "stores", "tests", "__main__"}


def load_libraries() -> None:
    """Import what the tests of stores import from elsewhere: two hundred processes need not each do it."""
    command = [sys.executable, "-c", "import sys; from tests import backends; print(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for name in done.stdout.split():
        if name.partition(".")[0] not in OURS:
            with suppress(ImportError):  # a part of a module that is none itself
                import_module(name)


def plant(mutant: Mutant) -> None:
    """Put the changed text in the place of the file, in this process."""
    if not mutant.path:
        return
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    for old, new in mutant.changes:
        if text.count(old) != 1:
            raise LookupError(f"{mutant.path} has this {text.count(old)} times: {old}")
        text = text.replace(old, new)
    if mutant.path.endswith(".sql"):
        sqltext = import_module("stores.sqltext")
        whole, planted = sqltext.read_file, Path(mutant.path).stem
        sqltext.read_file = lambda name: text if name == planted else whole(name)  # type: ignore[attr-defined]
    elif mutant.path.endswith(".lua"):
        luatext = import_module("stores.luatext")
        whole, planted = luatext.read_lua, mutant.path.removeprefix("stores/lua/")
        luatext.read_lua = lambda path: text if path == planted else whole(path)  # type: ignore[attr-defined]
    else:
        load(mutant.path, text)


def load(path: str, text: str) -> None:
    """Import the text as the module of that file."""
    name = path.removesuffix(".py").replace("/", ".")
    parent, _, leaf = name.rpartition(".")
    module = ModuleType(name)
    module.__file__ = str(ROOT / path)
    module.__package__ = parent
    sys.modules[name] = module
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    setattr(import_module(parent), leaf, module)


def run_suite(mutant: Mutant, folder: str) -> int:
    """The exit code of pytest with the fault planted, in this folder: 1 when a test failed."""
    plant(mutant)
    chosen = [
        "-x",
        "-m",
        "not long",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "--no-header",
        "--tb=line",
        "--assert=plain",
        f"--basetemp={folder}/tests",
    ]
    if mutant.backend == "handing":
        return int(pytest.main([*chosen, *(f"{ROOT}/tests/{name}" for name in mutant.caught_by)]))
    if mutant.backend == "streams":
        return int(pytest.main([*chosen, *map(_test_of_the_streams, mutant.caught_by)]))
    contract = ROOT / "tests" / "contract"
    files = sorted(str(file) for topic in mutant.caught_by for file in contract.glob(f"test_{topic}.py"))
    return int(pytest.main([*chosen, "-k", f"{mutant.backend} and not streams and not remote", *files]))


def _test_of_the_streams(name: str) -> str:
    file, _, test = name.partition("::")
    return f"{ROOT}/tests/stores/test_streams_{file}.py::test_{test}"


def run_apart(mutant: Mutant) -> tuple[int, str]:
    """The same in a process of its own; the exit code, and the last lines that pytest wrote."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                code = run_suite(mutant, folder)
            except Exception:  # noqa: BLE001  whatever it is, the parent shows it
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    return os.waitstatus_to_exitcode(status), "\n".join(lines[-8:])


def main(names: Iterable[str]) -> None:
    """Run the faults of these names, or all of them."""
    wanted = set(names)
    load_libraries()
    for mutant in (*NO_FAULT, *MUTANTS, *STREAMS_FAULTS, *HANDING_FAULTS):
        if not wanted or mutant.name in wanted:
            code, tail = run_apart(mutant)
            print(json.dumps({"name": mutant.name, "code": code, "tail": tail}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
