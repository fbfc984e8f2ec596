"""Has the PHP of this machine look at a file before Phorge includes it: its syntax, and what it declares."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from conduit.phorge.errors import RefusedError

SECONDS = 60.0

NOT_CHECKED = "not checked by PHP, which is not installed on this machine"

_TRIAL = """
error_reporting(-1);
abstract class PhabricatorWorker {
  public function __construct($data) {}
  abstract protected function doWork();
}
final class PhabricatorWorkerYieldException extends Exception {}
list($path, $names) = json_decode(stream_get_contents(STDIN), true);
$taken = array();
foreach ($names as $name) {
  // a class_exists() covers enums
  if (class_exists($name, false) || interface_exists($name, false) || trait_exists($name, false)) {
    $taken[] = $name;
  }
}
$fault = null;
if (!$taken) {
  error_clear_last();
  ob_start();
  include $path;
  $said = ob_get_clean().json_encode(error_get_last());
  $missing = array_filter($names, function ($name) { return !is_subclass_of($name, 'PhabricatorWorker'); });
  if ($said !== 'null' || $missing) {
    $fault = $said.' '.implode(' ', $missing);
  }
}
echo "\\n".json_encode(array($taken, $fault));
"""
"""Includes a file of stubs as Phorge would, beside nothing but what PHP has by itself."""


def lint(path: Path) -> str:
    """Have PHP check the syntax. Raises RefusedError with its own words where it finds fault."""
    php = shutil.which("php")
    if php is None:
        return NOT_CHECKED
    done = _run([php, "-n", "-l", str(path)])
    if done.returncode:
        raise RefusedError(f"PHP does not accept the file, nothing was changed: {_words(done)}")
    return "its syntax was checked by PHP"


def try_stubs(path: Path, names: Sequence[str]) -> str:
    """Have PHP include a file of stubs in a process of its own, with its extensions as php.ini has them.

    Raises RefusedError where it has a class, an interface, a trait or an enum of one of the names, or finds fault.
    """
    lint(path)
    php = shutil.which("php")
    if php is None:
        return NOT_CHECKED
    done = _run([php, "-d", "display_errors=stderr", "-r", _TRIAL], [str(path), list(names)])
    try:
        # what php.ini has to complain of comes before
        taken, fault = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        raise RefusedError(f"PHP does not accept the file, nothing was changed: {_words(done)}") from None
    if taken:
        raise RefusedError(f"PHP has {', '.join(taken)} by itself. Nothing was changed")
    if fault is not None or done.returncode:
        raise RefusedError(f"PHP does not accept the file, nothing was changed: {fault or _words(done)}")
    return "it was checked and included by PHP"


def _run(command: Sequence[str], order: object = None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            input=json.dumps(order),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(f"{command[0]} did not run: {error}") from error


def _words(done: "subprocess.CompletedProcess[str]") -> str:
    return " ".join((done.stdout + done.stderr).split())
