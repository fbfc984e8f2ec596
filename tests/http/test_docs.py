"""docs/protocol.md names what the app answers, and nothing else."""

import re
from pathlib import Path

import pytest

from queue_runtime.api.edge import Edge
from tests.backends import Opened
from tests.http.house import FakeWorker, open_house

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)


async def test_every_route_is_documented_and_every_documented_route_exists(opened: Opened) -> None:
    documented = set(re.findall(r"(GET|POST) (/[\w/{}-]*)", PROTOCOL.read_text("utf-8")))
    async with open_house(opened.store, worker=FakeWorker()) as house:
        assert isinstance(house.app, Edge)
        answered = {(route.method, route.path) for route in house.app.routes.all}
    assert answered == documented


async def test_every_example_is_json_that_the_service_takes_or_refuses_for_its_state_alone(opened: Opened) -> None:
    text = PROTOCOL.read_text("utf-8").replace("\\\n", " ")
    examples = re.findall(r"curl -sS \$Q(\S+) [^']*'Content-Type: application/json'[^$]*?-d '([^']*)'", text)
    assert len(examples) >= 8
    async with open_house(opened.store) as house:
        for path, body in examples:
            answer = await house.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
            assert answer.status in (200, 409), (path, answer)
