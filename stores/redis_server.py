"""What a server says of itself, and whether a queue can live on it."""

import re
from collections.abc import Mapping

from msgspec import Struct

OLDEST = (6, 2)
"""ZMSCORE and scripts that replicate by effect are from there."""

SAFE_POLICY = "noeviction"


class ServerFacts(Struct, frozen=True, kw_only=True):
    """The parts of INFO that matter here. What the server does not tell is empty or None."""

    version: str = ""
    product: str = "Redis"
    role: str = ""
    policy: str = ""
    max_memory: int | None = None
    used_memory: int | None = None
    append_only: bool | None = None
    append_failed: bool = False
    save_failed: bool = False
    unsaved_changes: int | None = None


def read_info(info: bytes) -> ServerFacts:
    """The facts in the reply to INFO."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    found = {name: value for name, colon, value in lines if colon}
    return ServerFacts(
        version=found.get("valkey_version") or found.get("redis_version", ""),
        product="Valkey" if "valkey_version" in found else "Redis",
        role=found.get("role", ""),
        policy=found.get("maxmemory_policy", ""),
        max_memory=_number(found, "maxmemory"),
        used_memory=_number(found, "used_memory"),
        append_only=found["aof_enabled"] == "1" if "aof_enabled" in found else None,
        append_failed=found.get("aof_last_write_status") == "err",
        save_failed=found.get("rdb_last_bgsave_status") == "err",
        unsaved_changes=_number(found, "rdb_changes_since_last_save"),
    )


def _number(found: Mapping[str, str], name: str) -> int | None:
    value = found.get(name, "")
    return int(value) if value.isdigit() else None


def is_old(facts: ServerFacts) -> bool:
    """Whether the server lacks commands that the scripts need. Valkey has them all."""
    return bool(facts.version) and facts.product == "Redis" and _numbers(facts.version) < OLDEST


def objection(facts: ServerFacts, *, allow_eviction: bool) -> str | None:
    """Why a queue cannot live there; None: it can, as far as the server tells."""
    if is_old(facts):
        return f"the server is Redis {facts.version}; {OLDEST[0]}.{OLDEST[1]} or newer is needed"
    if not allow_eviction and facts.policy not in ("", SAFE_POLICY):
        return (
            f"maxmemory-policy is {facts.policy}, which deletes tasks when memory runs out; "
            f"set it to {SAFE_POLICY}, or allow eviction and accept the loss"
        )
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
