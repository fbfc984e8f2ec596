"""File descriptors: as many as the system allows, and not the last of them for connections."""

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

log = structlog.get_logger()

RESERVE = 64
"""So many are kept for files and for connections to the store (an eighth, where there are few)."""

FOLD_SECONDS = 60.0
"""That they are used up is logged this often."""

_BODY = b'{"error":{"code":"ERR_INTERNAL","message":"internal server error"}}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"retry-after: 1\r\nconnection: close\r\n\r\n%s"
) % (len(_BODY), _BODY)

_NO_MORE = "socket.accept() out of system resource"


class Descriptors(logging.Filter):
    """Refuses the connections that would use up what is kept, and folds what there is to say.

    As a filter it folds what asyncio says when none is left at all, which it does many times a second.
    """

    def __init__(self) -> None:
        super().__init__()
        limit = _raised_limit()
        self._limit = limit
        self._last = limit - min(RESERVE, limit // 8)
        self._told_at = -FOLD_SECONDS
        self._untold = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts asyncio's words are folded."""
        logger = logging.getLogger("asyncio")
        logger.addFilter(self)
        try:
            yield
        finally:
            logger.removeFilter(self)

    def refuses(self, transport: asyncio.BaseTransport) -> bool:
        """Whether a new connection is one too many, because of its number: the system gives the lowest that is free.

        It is answered by REFUSAL and closed then.
        """
        if self._limit < 0 or transport.get_extra_info("socket").fileno() < self._last:  # below 0: there is no limit
            return False
        self._tell()
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(REFUSAL)
        transport.close()
        return True

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(_NO_MORE):
            return True
        self._tell()
        return False

    def _tell(self) -> None:
        self._untold += 1
        if (now := time.monotonic()) - self._told_at >= FOLD_SECONDS:
            log.error(
                "new connections are refused: the process has too many files open (raise LimitNOFILE or ulimit -n)",
                limit=self._limit,
                times=self._untold,
            )
            self._told_at, self._untold = now, 0


def _raised_limit() -> int:
    """How many files the process may open, once its soft limit is the hard one; -1: there is no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems name a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
