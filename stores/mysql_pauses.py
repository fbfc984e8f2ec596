"""The pauses of the companion database, as anybody may have written them."""

from collections.abc import Sequence
from functools import cache

import structlog

from queue_runtime.errors import InvalidRequest
from queue_runtime.task import Pause, PauseKind
from stores.mysql_driver import Row
from stores.mysql_session import Session

_log = structlog.get_logger()


async def read_pauses(session: Session) -> list[Pause]:
    """The pauses in force, sorted by kind and name."""
    return pauses_of(await session.rows("pauses")) if session.server.companion else []


def pauses_of(rows: Sequence[Row]) -> list[Pause]:
    """The rows as pauses. One that no pause can be, which a hand has written, stops nobody and is told once."""
    pauses = []
    for kind, name in rows:
        try:
            pauses.append(Pause(PauseKind(kind), name.decode()))
        except (ValueError, InvalidRequest) as error:  # a name that is not UTF-8 is a ValueError
            _tell(str(kind), bytes(name), str(error))
    return pauses


@cache
def _tell(kind: str, name: bytes, reason: str) -> None:
    _log.warning("a row of the table `pause` is no pause and is passed over", kind=kind, name=repr(name), reason=reason)
