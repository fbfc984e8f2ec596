"""User modules are loaded beside everything else and hide nothing; a broken one is named with its line."""

import sys
from pathlib import Path

import pytest

from queue_runtime.errors import ConfigError
from queue_runtime.handler_modules import load_registries

GOOD = """
from queue_runtime.registry import Registry
registry = Registry()

@registry.task("{name}")
async def run(context, data):
    pass
"""


def test_a_file_called_handlers_hides_no_package_of_ours(tmp_path: Path) -> None:
    ours = sys.modules.get("handlers")
    (tmp_path / "handlers.py").write_text(GOOD.format(name="MineWorker"))
    (registry,) = load_registries([f"{tmp_path}/handlers.py:registry"])
    assert registry.classes == {"MineWorker"}
    assert sys.modules.get("handlers") is ours
    import handlers.catalog  # noqa: PLC0415 - the point of the test

    assert "MineWorker" not in handlers.catalog.native().classes


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tasks.py").write_text(GOOD.format(name=f"Worker{folder}"))
    found = load_registries([f"{tmp_path}/a/tasks.py:registry", f"{tmp_path}/b/tasks.py:registry"])
    assert [registry.classes for registry in found] == [{"Workera"}, {"Workerb"}]


def test_a_file_can_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "queue_runtime_test_sibling.py").write_text("NAME = 'SiblingWorker'\n")
    (tmp_path / "tasks.py").write_text(
        GOOD.format(name="X").replace('"X"', "NAME").replace("\n", "\nfrom queue_runtime_test_sibling import NAME\n", 1)
    )
    (registry,) = load_registries([f"{tmp_path}/tasks.py:registry"])
    assert registry.classes == {"SiblingWorker"}


def test_an_import_that_raises_names_the_file_and_the_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\n\nprint(undefined_name)\n")
    with pytest.raises(ConfigError) as caught:
        load_registries([f"{broken}:registry"])
    assert f"{broken}, line 3: NameError: name 'undefined_name' is not defined" in str(caught.value)


def test_a_syntax_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConfigError) as caught:
        load_registries([f"{broken}:registry"])
    assert f"{broken}, line 2: SyntaxError" in str(caught.value)


def test_no_message_shows_the_name_that_a_file_is_loaded_under(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys\nsys.modules[__name__].nothing\n")
    with pytest.raises(ConfigError, match="module 'broken' has no attribute 'nothing'"):
        load_registries([f"{broken}:registry"])
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(GOOD.format(name="MineWorker"))
    one, two = load_registries([f"{tmp_path}/one.py:registry", f"{tmp_path}/two.py:registry"])
    with pytest.raises(ConfigError) as caught:
        one.merge(two)
    assert str(caught.value) == (
        f"task class MineWorker has two handlers: {tmp_path}/one.py: run, line 5 and {tmp_path}/two.py: run, line 5"
    )


def test_every_faulty_name_is_reported_together(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("registry = 7\n")
    with pytest.raises(ConfigError) as caught:
        load_registries(
            [f"{tmp_path}/missing.py:registry", "no.such.module:registry", f"{tmp_path}/empty.py:registry", "json:nope"]
        )
    text = caught.value.problems
    assert [problem.partition(": ")[0] for problem in text] == ["QUEUE_RUNTIME_HANDLERS"] * 4
    assert "there is no file" in text[0]
    assert "there is no module no" in text[1]
    assert "registry is of type int, not a Registry" in text[2]
    assert "json has no nope" in text[3]


def test_a_file_named_like_a_module_gets_the_hint_to_name_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_unlikely_tasks.py").write_text("")
    with pytest.raises(ConfigError, match=r"named by its path, \./my_unlikely_tasks\.py"):
        load_registries(["my_unlikely_tasks:registry"])


def test_a_module_that_cannot_import_another_names_its_own_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("\nimport no_such_module_at_all\n")
    with pytest.raises(ConfigError, match=r"broken\.py, line 2: ModuleNotFoundError"):
        load_registries([f"{broken}:registry"])


def test_a_handler_with_a_bad_setting_is_named_with_its_own_place_and_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    path.write_text(GOOD.format(name="A").replace('task("A")', 'task("A", max_attempts=2.5, concurrency=0)'))
    with pytest.raises(ConfigError) as caught:
        load_registries([f"{path}:registry"])
    place = f"QUEUE_RUNTIME_HANDLERS: {path}:registry: A ({path}: run, line 5)"
    assert caught.value.problems == [
        f"{place}: max_attempts must be a whole number from 1 to 2147483647, not 2.5",
        f"{place}: concurrency must be a whole number from 1 to 2147483647, not 0",
    ]
