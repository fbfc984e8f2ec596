"""Loads the registries that a deployment names, and says where it is when one cannot be loaded."""

import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from queue_runtime.errors import ConfigError
from queue_runtime.neighbours import NEIGHBOURS
from queue_runtime.registry import Registry

ENTRY_POINTS = "queue_runtime.handlers"


def load_registries(names: Iterable[str]) -> list[Registry]:
    """The registries of QUEUE_RUNTIME_HANDLERS and of installed packages. Raises ConfigError with every fault."""
    found: list[Registry] = []
    problems: list[str] = []
    sources = [(f"QUEUE_RUNTIME_HANDLERS: {name}", name) for name in names]
    sources += [
        (f"entry point {one.name} of {one.dist.name if one.dist else 'a package'}: {one.value}", one.value)
        for one in entry_points(group=ENTRY_POINTS)
    ]
    for source, name in sources:
        try:
            found.append(_load(name))
        except ConfigError as error:
            problems += [f"{source}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return found


def _load(name: str) -> Registry:
    place, _, attribute = name.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    try:
        registry = getattr(module, attribute)
    except AttributeError:
        raise ConfigError([f"{place} has no {attribute}"]) from None
    if not isinstance(registry, Registry):
        raise ConfigError([f"{attribute} is of type {type(registry).__name__}, not a Registry"])
    return registry


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError([_reason(error) + _neighbour_hint(error.name)]) from error
        hint = ""
        if Path(f"{name.replace('.', '/')}.py").is_file():
            hint = f": a file is named by its path, ./{name.replace('.', '/')}.py"
        raise ConfigError([f"there is no module {error.name}{hint or _neighbour_hint(error.name)}"]) from None
    except ConfigError:  # of a registration, which says its place itself
        raise
    except Exception as error:  # a handler module may raise anything while it is imported
        raise ConfigError([_reason(error)]) from error


def _load_file(path: Path) -> ModuleType:
    # Under a private name, so that a file called handlers.py, json.py or anything else hides no other module.
    # Its folder goes to the END of the path for the same reason: the file can import what lies beside it.
    path = path.resolve()
    name = f"_queue_runtime_user_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError([f"there is no file {path}"])
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a handler module may raise anything while it is imported
        del sys.modules[name]
        if isinstance(error, ConfigError):  # of a registration, which says its place itself
            raise
        hint = _neighbour_hint(error.name) if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError([_reason(error).replace(name, path.stem) + hint]) from error
    return module


def _neighbour_hint(missing: str | None) -> str:
    """Why a package of the deployer's own is not found, where its name is taken."""
    package = (missing or "").partition(".")[0]
    return (
        f": {package} is a package of queue-runtime itself, so yours needs another name"
        if package in NEIGHBOURS
        else ""
    )


def _reason(error: BaseException) -> str:
    """The error and the line of the deployer's own file that raised it, without the import machinery around it."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    text = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename not in (__file__, importlib.__file__)
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {text}" if frames else text
