"""FeedPublisherHTTPWorker: posts the snapshot of a feed story to a hook that the policy file allows."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx2
import msgspec
import structlog
from msgspec import Struct

from handlers.feed_policy import FeedPolicy, PolicyUnusable, read_policy
from queue_runtime.registry import Context, HandlerSpec, PermanentFailure, Retry, Yield
from queue_runtime.threads import call_in_thread

TASK_CLASS = "FeedPublisherHTTPWorker"
DELIVERY_VERSION = 1
DELIVERY_SECONDS = 30
"""Phorge's own bound for one delivery, connecting included."""

FALLBACK_WAIT = 300
FALLBACK_THREADS = 32
"""More than runs of this class at once; a fallback that is no coroutine function gets one of them."""

Fallback = Callable[[], HandlerSpec | None]
"""Looks up the handler that the deployment has for all classes without one; None: it has none."""


class _Form(Struct, frozen=True, rename="camel"):
    delivery_version: object = None


class Snapshot(Struct, frozen=True):
    """The versioned form: where to post, and the form-encoded text that Phorge rendered when the story was new."""

    uri: str
    body: str


class FeedPublisher:
    """Handler of FeedPublisherHTTPWorker.

    Only data with `"deliveryVersion": 1` is run here. Everything else (Phorge's own `{key, uri}`, later
    versions) needs PHP and goes to the fallback, under the settings of this class; without one it is put off,
    not failed, because nothing ran and another process may have a fallback. The endings are Phorge's: silent
    mode succeeds without a request, an address that is no longer allowed is a permanent failure, and whatever
    can get better is tried again.
    """

    def __init__(self, policy_file: Path, *, fallback: Fallback = lambda: None) -> None:
        self._policy_file = policy_file
        self._fallback = fallback
        self._threads = anyio.CapacityLimiter(FALLBACK_THREADS)
        self._http: httpx2.AsyncClient | None = None
        self._log = structlog.get_logger()

    async def __call__(self, context: Context, data: str) -> object:
        """Deliver one story. What a fallback returns is passed on."""
        if not is_snapshot(data):
            return await self._pass_on(context, data)
        policy = await self._policy()
        if policy.silent:
            return None
        try:
            snapshot = msgspec.json.decode(data, type=Snapshot)
        except msgspec.DecodeError as error:
            raise PermanentFailure(f"the feed snapshot is malformed: {error}") from error
        target = policy.allowed(snapshot.uri)
        if target is None:
            raise PermanentFailure(f"the hook is not in the feed policy {self._policy_file}")
        await self._post(target, snapshot.body)
        return None

    async def _pass_on(self, context: Context, data: str) -> object:
        fallback = self._fallback()
        if fallback is not None:
            return await self._call(fallback, context, fallback.read(data))
        self._log.warning(
            "feed task needs Phorge and no fallback is configured; put off",
            task_id=context.task.id,
            task_class=context.task.task_class,
            wait=FALLBACK_WAIT,
        )
        raise Yield(FALLBACK_WAIT)

    async def _call(self, fallback: HandlerSpec, context: Context, data: object) -> object:
        if fallback.is_async:
            return await fallback.function(context, data)  # type: ignore[misc]  # is_async says it is awaitable
        result, error = await call_in_thread(fallback.function, context, data, limiter=self._threads)
        if error is not None:
            raise error
        return result

    async def _policy(self) -> FeedPolicy:
        """The policy as it is now: read for each delivery, so that a revoked hook is off at once."""
        try:
            return await anyio.to_thread.run_sync(read_policy, self._policy_file)
        except PolicyUnusable as error:
            raise Retry(reason=str(error)) from error

    async def _post(self, target: httpx2.URL, body: str) -> None:
        # reasons and logs name the origin alone: user, path and query of a hook often hold its secret
        origin = f"{target.scheme}://{target.netloc.decode()}"
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            with anyio.fail_after(DELIVERY_SECONDS):
                # streamed, so that the size of a reply nobody reads does not matter
                async with self._client().stream("POST", target, content=body.encode(), headers=headers) as reply:
                    status = reply.status_code
        except (httpx2.HTTPError, TimeoutError) as error:
            raise Retry(reason=f"{origin} was not reached: {type(error).__name__}") from error
        if not 200 <= status < 300:
            raise Retry(reason=f"{origin} answered {status}")

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            # httpx2 logs the whole address of every request at INFO
            logging.getLogger("httpx2").setLevel(logging.WARNING)
            self._http = httpx2.AsyncClient(
                follow_redirects=False,
                timeout=DELIVERY_SECONDS,
                # no idle sockets: none to close when the process stops, none that died unnoticed
                limits=httpx2.Limits(max_keepalive_connections=0),
                headers={"User-Agent": "queue-runtime"},
            )
        return self._http


def is_snapshot(data: str) -> bool:
    """Whether the data is of the versioned form that runs without PHP."""
    try:
        version = msgspec.json.decode(data, type=_Form).delivery_version
    except msgspec.DecodeError:
        return False
    return type(version) is int and version == DELIVERY_VERSION


def wait_before_retry(failures: int) -> int:
    """Phorge's wait after this many failures, the latest included."""
    return 60 * max(failures, 1)
