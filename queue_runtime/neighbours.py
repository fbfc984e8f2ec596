"""Finds out whether another module hides one of the packages that lie beside this one."""

from importlib.util import find_spec
from pathlib import Path

NEIGHBOURS = ("stores", "handlers", "conduit")


def hidden_neighbours(home: Path | None = None) -> list[str]:
    """A line for each neighbour that Python would take from elsewhere. Looks for them without running them.

    Their names are common: a `handlers.py` in the folder from which somebody says `python -m queue_runtime`
    comes first on sys.path, and its contents would be run in place of ours.
    """
    home = home or Path(__file__).resolve().parent.parent
    problems = []
    for name in NEIGHBOURS:
        spec = find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin != home / name / "__init__.py":
            problems.append(
                f"the package {name!r} of queue-runtime is hidden by {origin or 'nothing: it is not installed'}: start "
                "by the command `queue-runtime`, or set PYTHONSAFEPATH=1, or take that folder off PYTHONPATH"
            )
    return problems
