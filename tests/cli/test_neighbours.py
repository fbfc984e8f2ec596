"""A file of the user that is called like one of our packages is noticed before anything of it runs."""

import os
import subprocess
import sys
from pathlib import Path

from queue_runtime.neighbours import hidden_neighbours


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=30, check=False)


def test_an_undisturbed_installation_has_its_neighbours() -> None:
    assert hidden_neighbours() == []


def test_python_dash_m_beside_a_users_handlers_py_says_what_hides_what(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("print('this must not run')\n")
    ended = run(tmp_path, sys.executable, "-m", "queue_runtime", "serve")
    assert ended.returncode == 2
    assert f"the package 'handlers' of queue-runtime is hidden by {tmp_path}/handlers.py" in ended.stderr
    assert "PYTHONSAFEPATH=1" in ended.stderr
    assert "must not run" not in ended.stdout
    assert "Traceback" not in ended.stderr


def test_the_console_script_and_the_safe_path_are_not_disturbed_by_it(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("print('this must not run')\n")
    # a broken setting ends both right after the neighbours would have been refused
    handlers = {"QUEUE_RUNTIME_HANDLERS": "./missing.py:registry"}
    script = Path(sys.executable).with_name("queue-runtime")
    for ended in (
        run(tmp_path, str(script), "serve", **handlers),
        run(tmp_path, sys.executable, "-m", "queue_runtime", "serve", PYTHONSAFEPATH="1", **handlers),
    ):
        assert ended.returncode == 2
        assert "hidden" not in ended.stderr
        assert "there is no file" in ended.stderr
