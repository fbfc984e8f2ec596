"""`POST reload`: reads the settings again, as SIGHUP does, and says what came of it."""

from collections.abc import Awaitable, Callable

from queue_runtime.api.errors import ApiError
from queue_runtime.api.reply import Reply, data
from queue_runtime.api.request import Request
from queue_runtime.api.routing import Route
from queue_runtime.reload import Reloaded


class ReloadFace:
    """One route of every process, whatever its roles: it is about the process and not about the queue."""

    def __init__(self, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        self._reload = reload

    def routes(self) -> list[Route]:
        return [Route("POST", "/api/queue/reload", self.reload)]

    async def reload(self, request: Request) -> Reply:
        done = await self._reload()
        if done.problems:
            raise ApiError(422, "ERR_CONFIG", "\n".join(done.problems))
        return data({"changed": done.changed, "needsRestart": done.needs_restart})
