"""`POST reload`, and what the faces do with settings that change while they serve."""

import pytest
from msgspec.structs import replace

from queue_runtime.reload import Reloaded
from tests.backends import Opened
from tests.http.house import House, open_house

pytestmark = pytest.mark.parametrize("opened", ["reference"], indirect=True)


def change(house: House, **settings: object) -> None:
    house.current.config = replace(house.current.config, **settings)


async def test_it_says_what_changed_and_what_needs_a_restart(opened: Opened) -> None:
    async with open_house(opened.store) as house:
        house.reloaded = Reloaded(changed=("QUEUE_RUNTIME_SLOTS",), needs_restart=("QUEUE_RUNTIME_LISTEN",))
        answer = await house.post("reload")
        assert answer.data == {"changed": ["QUEUE_RUNTIME_SLOTS"], "needsRestart": ["QUEUE_RUNTIME_LISTEN"]}


async def test_faults_are_422_with_one_a_line(opened: Opened) -> None:
    async with open_house(opened.store) as house:
        house.reloaded = Reloaded(problems=("SLOTS must be 1", "cron.toml: task 1: cron: bad hour"))
        answer = await house.post("reload", {})
        assert answer.error == (422, "ERR_CONFIG")
        assert answer.message == "SLOTS must be 1\ncron.toml: task 1: cron: bad hour"


async def test_it_is_there_without_the_role_api_and_needs_the_token(opened: Opened) -> None:
    async with open_house(opened.store, roles=frozenset({"worker"}), token="s3cret") as house:
        assert (await house.post("reload")).error == (401, "ERR_UNAUTHORIZED")
        assert (await house.post("reload", headers={"X-Service-Token": "s3cret"})).status == 200
        assert (await house.get("reload", headers={"X-Service-Token": "s3cret"})).status == 405


async def test_a_changed_token_is_asked_for_from_the_next_request_on(opened: Opened) -> None:
    async with open_house(opened.store, token="old") as house:
        house.guard.change("new")
        assert (await house.get("stats", headers={"X-Service-Token": "old"})).status == 401
        assert (await house.get("stats", headers={"X-Service-Token": "new"})).status == 200


async def test_leases_and_retries_go_by_the_settings_in_force(opened: Opened) -> None:
    async with open_house(opened.store, http_lease_seconds=100, retry_seconds=100) as house:
        change(house, http_lease_seconds=5000, retry_seconds=7000)
        task = await house.leased()
        now = task["leaseExpires"] - 5000
        assert abs(now - task["dateCreated"]) <= 5
        await house.post("fail", {"taskID": task["id"], "permanent": False})
        row = (await house.get(f"tasks/{task['id']}")).data
        assert abs(row["leaseExpires"] - 7000 - now) <= 5
