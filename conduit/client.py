"""Calls methods of Phorge's Conduit over HTTP."""

import asyncio
import html
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Raw

from conduit.errors import (
    HIDDEN,
    CallFailed,
    ConduitError,
    Misconfigured,
    NotReached,
    OutcomeUnknown,
    ReplyTooLarge,
    TimedOut,
)
from conduit.exchange import Phone, Reply
from conduit.params import CONTENT_TYPE, escaped, form, is_large
from conduit.replies import read_reply
from conduit.tcp import ConnectError, Lost

MAX_REPLY = 64 * 2**20
"""So much is read of an answer, unless somebody wants it otherwise."""

MAX_PAGE = 64 * 2**10
"""So much is read of a reply that is no answer anyway."""

MIN_HIDDEN = 8
"""A token of fewer characters is no secret, and may be a part of any word."""

GZIP = 31
"""What zlib calls it."""


class Slots:
    """So many can be taken at once; whoever comes later waits. A free one costs no turn of the event loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        self.taken = 0

    async def __aenter__(self) -> None:
        await self._free.acquire()
        self.taken += 1

    async def __aexit__(self, *_: object) -> None:
        self.taken -= 1
        self._free.release()


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
        max_reply: int = MAX_REPLY,
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
        self._max_reply = max_reply
        self.slot = Slots(concurrency)
        self.calls: Counter[str] = Counter()
        """calls by how they ended"""
        self.seconds = 0.0

    async def call(self, method: str, params: Mapping[str, object], *, seconds: float) -> Raw:
        """The result of the method as JSON text. Raises one of the errors of `errors.py`.

        `seconds` bounds the whole call. A caller that is cancelled knows nothing of the work either: PHP goes on.
        """
        began = time.monotonic()
        ending = "cancelled"
        token = self._token_now()
        try:
            result = await self._exchange(method, params, seconds, token)
            ending = "answered"
        except ConduitError as error:
            if len(token) >= MIN_HIDDEN:
                error.hide(token)
            ending = _NAMES[next(kind for kind in _NAMES if isinstance(error, kind))]
            raise
        finally:
            self.calls[ending] += 1
            self.seconds += time.monotonic() - began
        return result

    @property
    def running(self) -> int:
        """Slots that are taken now."""
        return self.slot.taken

    async def _exchange(self, method: str, params: Mapping[str, object], seconds: float, token: str) -> Raw:
        # encoding 60 MiB takes seconds, in which the loop has leases to renew
        body = await asyncio.to_thread(form, params, token=token) if is_large(params) else form(params, token=token)
        credentials = [(b"X-Service-Token", token.encode("ascii"))] if token else []
        headers = [*self._headers, *credentials, (b"Content-Length", b"%d" % len(body))]
        target = b"%s/api/%s" % (self._phone.base, method.encode("ascii"))
        try:
            async with asyncio.timeout(seconds), self._phone.exchange(b"POST", target, headers, body) as reply:
                found = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
                text = await self._read(reply, found.get("content-encoding", ""))
        except ConnectError as error:
            raise _not_reached(error) from error
        except TimeoutError as error:
            raise TimedOut(f"no answer within {seconds:.0f} s") from error
        except Lost as error:
            raise OutcomeUnknown(f"the connection was lost: {error}") from error
        try:
            return read_reply(reply.status, found, text)
        except ConduitError:
            # some pages show the request; in an excerpt a token may be cut in two, so it is taken out before
            if len(token) >= MIN_HIDDEN and (clean := _without(token, text)) != text:
                read_reply(reply.status, found, clean)
            raise

    async def _read(self, reply: Reply, encoding: str) -> bytes:
        """The body. Nobody asked for a compressed one, so it is only read as far as some proxy may insist on it."""
        limit = self._max_reply if reply.status == 200 else MAX_PAGE
        inflate = zlib.decompressobj(GZIP) if encoding.lower() in {"gzip", "x-gzip"} else None
        chunks: list[bytes] = []
        size = 0
        async for piece in reply:
            try:
                # never more at once than the limit, whatever it would grow to
                chunk = piece if inflate is None else inflate.decompress(piece, limit + 1)
            except zlib.error as error:
                raise CallFailed(f"the reply is compressed, and cannot be read: {error}") from None
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                break
        if size > limit and reply.status == 200:
            raise ReplyTooLarge(f"the reply has more than {limit} bytes (QUEUE_RUNTIME_CONDUIT_MAX_REPLY)")
        return b"".join(chunks)


_NAMES: Mapping[type[ConduitError], str] = {
    NotReached: "not_reached",
    Misconfigured: "misconfigured",
    OutcomeUnknown: "unknown",
    CallFailed: "failed",
}


def _without(token: str, text: bytes) -> bytes:
    """The text of a reply, which may quote the request, its headers or the form in it."""
    plain = token.encode("ascii")
    for shown in {plain, escaped(plain), html.escape(token).encode()}:
        text = text.replace(shown, HIDDEN.encode())
    return text


def _not_reached(error: ConnectError) -> ConduitError:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        fix = "name the authority that signed it by QUEUE_RUNTIME_CONDUIT_TLS_CA"
        return Misconfigured(f"the certificate is not trusted ({cause.verify_message})", fix)
    return NotReached(f"Phorge was not reached: {error}")
