"""Calls methods of Phorge's Conduit over HTTP."""

import asyncio
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import anyio
import httpcore2
from msgspec import Raw

from conduit.errors import CallFailed, ConduitError, Misconfigured, NotReached, OutcomeUnknown, ReplyTooLarge
from conduit.exchange import LOST, NOT_BEGUN, Phone
from conduit.params import CONTENT_TYPE, form, is_large
from conduit.replies import read_reply

MAX_REPLY = 64 * 2**20
MAX_PAGE = 64 * 2**10
"""So much is read of a reply that is no answer anyway."""

GZIP = 31
"""What zlib calls it."""


class ConduitClient:
    """One Phorge. `slot` bounds how many calls the owner of the client has under way at once.

    `token_now` is asked at each call, where the token may change in the life of the client.

    No cookie is kept: Phorge sends one with each anonymous reply, and they would break later calls.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        token_now: Callable[[], str] | None = None,
        host: str = "",
        concurrency: int = 4,
        tls_ca: Path | None = None,
    ) -> None:
        self._phone = Phone(url, tls_ca)
        self._token_now = token_now or (lambda: token)
        self._headers = [
            (b"Host", host.encode("ascii") or self._phone.host),
            (b"Accept", b"application/json"),
            (b"Accept-Encoding", b"identity"),
            (b"Content-Type", CONTENT_TYPE),
            (b"User-Agent", b"queue-runtime"),
        ]
        self.slot = anyio.CapacityLimiter(concurrency)
        self.calls: Counter[str] = Counter()
        """calls by how they ended"""
        self.seconds = 0.0

    async def call(self, method: str, params: Mapping[str, object], *, seconds: float) -> Raw:
        """The result of the method as JSON text. Raises one of the errors of `errors.py`.

        `seconds` bounds the whole call. A caller that is cancelled knows nothing of the work either: PHP goes on.
        """
        began = time.monotonic()
        ending = "cancelled"
        try:
            result = await self._exchange(method, params, seconds)
            ending = "answered"
        except ConduitError as error:
            ending = _NAMES[next(kind for kind in _NAMES if isinstance(error, kind))]
            raise
        finally:
            self.calls[ending] += 1
            self.seconds += time.monotonic() - began
        return result

    @property
    def running(self) -> int:
        """Slots that are taken now."""
        return self.slot.borrowed_tokens

    async def _exchange(self, method: str, params: Mapping[str, object], seconds: float) -> Raw:
        token = self._token_now()
        # encoding 60 MiB takes seconds, in which the loop has leases to renew
        body = await asyncio.to_thread(form, params, token=token) if is_large(params) else form(params, token=token)
        credentials = [(b"X-Service-Token", token.encode("ascii"))] if token else []
        headers = [*self._headers, *credentials, (b"Content-Length", b"%d" % len(body))]
        target = b"%s/api/%s" % (self._phone.base, method.encode("ascii"))
        try:
            async with asyncio.timeout(seconds), self._phone.exchange(b"POST", target, headers, body) as reply:
                found = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
                text = await _read(reply, found.get("content-encoding", ""))
        except NOT_BEGUN as error:
            raise _not_reached(error) from error
        except TimeoutError as error:
            raise OutcomeUnknown(f"no answer within {seconds:.0f} s") from error
        except LOST as error:
            raise OutcomeUnknown(f"the connection was lost: {_words(error)}") from error
        return read_reply(reply.status, found, text)


_NAMES: Mapping[type[ConduitError], str] = {
    NotReached: "not_reached",
    Misconfigured: "misconfigured",
    OutcomeUnknown: "unknown",
    CallFailed: "failed",
}


async def _read(reply: httpcore2.Response, encoding: str) -> bytes:
    """The body. Nobody asked for a compressed one, so it is only read as far as some proxy may insist on it."""
    limit = MAX_REPLY if reply.status == 200 else MAX_PAGE
    inflate = zlib.decompressobj(GZIP) if encoding.lower() in {"gzip", "x-gzip"} else None
    chunks: list[bytes] = []
    size = 0
    async with aclosing(reply.aiter_stream()) as arriving:
        async for piece in arriving:
            try:
                # never more at once than the limit, whatever it would grow to
                chunk = piece if inflate is None else inflate.decompress(piece, limit + 1)
            except zlib.error as error:
                raise CallFailed(f"the reply is compressed, and cannot be read: {error}") from None
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                break
    if size > limit == MAX_REPLY:
        raise ReplyTooLarge(f"the reply has more than {MAX_REPLY} bytes")
    return b"".join(chunks)


def _not_reached(error: Exception) -> ConduitError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            fix = "name the authority that signed it by QUEUE_RUNTIME_CONDUIT_TLS_CA"
            return Misconfigured(f"the certificate is not trusted ({cause.verify_message})", fix)
        cause = cause.__cause__ or cause.__context__
    return NotReached(f"Phorge was not reached: {_words(error)}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
