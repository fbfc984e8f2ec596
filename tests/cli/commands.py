"""How these tests run the commands: in this process where that harms nobody, else in one of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from queue_runtime.cli.app import cli
from queue_runtime.settings import PREFIX

SCRIPT = Path(sys.executable).with_name("queue-runtime")


def invoke(*arguments: str, stdin: str = "", **variables: str) -> Result:
    """Run a command in an environment without settings but these."""
    environ: dict[str, str | None] = {name: None for name in os.environ if name.startswith(PREFIX)}
    return CliRunner().invoke(cli, arguments, input=stdin, env=environ | variables)


def run(
    *arguments: str, folder: Path, variables: Mapping[str, str] = {}, python: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command (or, with `python`, Python) in a process of its own, which may set up logging.

    Names of variables are given without the prefix.
    """
    environ = {"PATH": os.environ["PATH"]} | {PREFIX + name: text for name, text in variables.items()}
    command = [sys.executable if python else SCRIPT, *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)
