"""Files of the repository that no other test reads: the constraints, the Makefile's help, the image's recipe."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("constraints.txt", "constraints-dev.txt")


def pinned(name: str) -> dict[str, list[str]]:
    """Each requirement of a constraints file with its hashes."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if line.startswith("    --hash=sha256:"):
            found[list(found)[-1]].append(line)
        elif line and not line.startswith("#"):
            found[line.partition("==")[0]] = []
    return found


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_requirement_is_pinned_by_hash_and_no_registry_is_named(name: str) -> None:
    text = (ROOT / name).read_text()
    assert all(hashes for hashes in pinned(name).values())
    assert "://" not in text
    assert "index" not in "\n".join(line for line in text.splitlines() if "--no-emit-index-url" not in line)


def test_the_constraints_have_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=\[ ;]", one)[0].lower() for one in requirements}

    runtime = pinned("constraints.txt").keys()
    assert names([*project["dependencies"], *extras["fast"]]) <= runtime
    assert names(extras["dev"]) <= pinned("constraints-dev.txt").keys()
    assert not runtime & pinned("constraints-dev.txt").keys()


def test_make_help_has_a_sentence_for_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    for target in phony[1].split():
        assert re.search(rf"^make {target} +\w", shown, re.MULTILINE), target


def test_the_image_runs_as_nobody_in_particular_and_gets_signals_itself() -> None:
    recipe = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER \d+:\d+$", recipe, re.MULTILINE)
    assert 'ENTRYPOINT ["queue-runtime"]' in recipe
    assert "PYTHONSAFEPATH=1" in recipe
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", recipe, re.MULTILINE):
        assert all(name == "." or f"!{name}" in ignored for name in source.split())
