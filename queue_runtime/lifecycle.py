"""Where the process is in its life, and why it is not ready."""

import anyio


class Lifecycle:
    """Shared by the supervisor, which moves it on, and the faces, which obey it.

    `stopping` is set at the first signal: readiness goes red, nothing new is leased, long polls end.
    `closing` is set when the last outcome is written: the HTTP server may close its listener.
    """

    def __init__(self) -> None:
        self.stopping = anyio.Event()
        self.closing = anyio.Event()
        self._faults: dict[str, str] = {}

    def fault(self, source: str, reason: str | None) -> None:
        """Say why `source` is not well, or None when it is well again."""
        if reason is None:
            self._faults.pop(source, None)
        else:
            self._faults[source] = reason

    @property
    def faults(self) -> dict[str, str]:
        """What is not well now: source to reason."""
        return dict(self._faults)
