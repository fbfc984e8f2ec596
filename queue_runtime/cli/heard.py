"""Keeps what the parts of a command log, so that its findings can say it."""

import logging

import structlog
from structlog.typing import EventDict, WrappedLogger

from queue_runtime import logs
from queue_runtime.config import Config


class Heard:
    """Lines from warnings on, without the secrets. Those below errors are kept and not printed."""

    def __init__(self, config: Config) -> None:
        self._lines: list[str] = []
        logs.configure(config.log_format, "warning", config.secrets)
        logging.getLogger().setLevel(logging.ERROR)
        *before, renderer = structlog.get_config()["processors"]
        structlog.configure(processors=[*before, self._keep, renderer])

    def lines(self) -> list[str]:
        """What was said since the last time."""
        lines, self._lines = self._lines, []
        return lines

    def _keep(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        parts = [event.get(name) for name in ("event", "reason", "fix")]
        self._lines.append(": ".join(str(part) for part in parts if part))
        if event["level"] == "warning":
            raise structlog.DropEvent
        return event
