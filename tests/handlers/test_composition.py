"""The registry of a whole process: native handlers and those of the deployment find each other."""

import json
from pathlib import Path

import pytest

from handlers.feed_publisher import TASK_CLASS
from queue_runtime.compose import load_handlers
from queue_runtime.config import load_config
from queue_runtime.errors import ConfigError
from queue_runtime.registry import Registry
from tests.handlers.fakes import context_for

HANDLERS = """
from pathlib import Path

from queue_runtime.registry import Registry

registry = Registry()

@registry.task("MineWorker")
async def mine(context, data):
    pass
"""

FALLBACK = """
@registry.fallback
async def phorge(context, data):
    Path(__file__ + ".seen").write_text(data)
"""


def load(folder: Path, code: str, **variables: str) -> Registry:
    """The registry of a process with these handlers."""
    file = folder / "tasks.py"
    file.write_text(code)
    settings = {"HANDLERS": f"{file}:registry"} | variables
    return load_handlers(load_config({f"QUEUE_RUNTIME_{name}": text for name, text in settings.items()}))


async def test_forms_of_the_feed_class_that_need_phorge_reach_the_fallback_of_the_deployment(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"silent": true, "uris": []}')
    registry = load(tmp_path, HANDLERS + FALLBACK, FEED_POLICY_FILE=str(policy))
    spec = registry.find(TASK_CLASS)
    assert spec is not None
    assert spec is not registry.fallback_spec
    data = json.dumps({"key": "12", "uri": "https://example.test/feed"})
    assert await spec.function(context_for(TASK_CLASS), data) is None  # type: ignore[misc]  # it is a coroutine function
    assert (tmp_path / "tasks.py.seen").read_text() == data


def test_classes_that_nobody_here_runs_stop_the_start_and_the_known_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, HANDLERS, TASK_CLASSES="MineWroker,OtherWorker")
    (problem,) = refusal.value.problems
    assert problem.startswith("QUEUE_RUNTIME_TASK_CLASSES names no class that has a handler here")
    assert problem.endswith("MineWorker, PhabricatorTestWorker")


def test_one_class_that_runs_here_is_enough(tmp_path: Path) -> None:
    load(tmp_path, HANDLERS, TASK_CLASSES="MineWorker,OtherWorker")


def test_with_a_fallback_every_class_runs_here(tmp_path: Path) -> None:
    load(tmp_path, HANDLERS + FALLBACK, TASK_CLASSES="OtherWorker")
