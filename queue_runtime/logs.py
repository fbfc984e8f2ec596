"""Log set-up: one line an event on stderr, for people or as JSON; what must stay secret is cut out of every line."""

import logging
import sys
from collections.abc import Collection
from urllib.parse import unquote

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from queue_runtime.plain_text import words_of
from queue_runtime.quiet_file import QuietFile

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class HideSecrets:
    """The last net under the rule that nobody logs a secret: whatever got into a line is replaced."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = tuple(secrets)

    def add(self, secrets: Collection[str]) -> None:
        """Hide these too. Those of before stay hidden: they may be quoted by somebody who still has them."""
        self._secrets = tuple({*self._secrets, *secrets})

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if not self._secrets:
            return event
        for key, value in event.items():
            if not isinstance(value, bool | int | float | None):
                text = words_of(value)
                for secret in self._secrets:
                    if secret in text:
                        text = event[key] = text.replace(secret, "****")
                    elif "%" in text and secret in unquote(text):
                        text = event[key] = "****"
        return event


def configure(form: str, level: str, secrets: Collection[str] = ()) -> None:
    """Send every log line of the process, those of the libraries too, through one chain to stderr."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        HideSecrets(secrets),
    ]
    renderer = _renderer(form)
    stream = QuietFile(lambda lines: _lost(renderer, lines))
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=_logger_at(level),
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type]  # it asks for no more
        cache_logger_on_first_use=True,
    )
    handler = _Handler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=_foreign(level), force=True)


class _Handler(logging.StreamHandler[QuietFile]):
    def close(self) -> None:
        """Called at the end of the process, whichever way it takes."""
        super().close()
        self.stream.finish()


def adjust(level: str, secrets: Collection[str]) -> None:
    """Log from this level on, and hide these secrets too, after `configure` and while everything runs."""
    configured = structlog.get_config()
    for processor in configured["processors"]:
        if isinstance(processor, HideSecrets):
            processor.add(secrets)
            # Loggers are bound once and for all, so the class that they are of is what changes.
            _take_methods(configured["wrapper_class"], level)
            logging.getLogger().setLevel(_foreign(level))


def _logger_at(level: str) -> type[FilteringBoundLogger]:
    """A class of loggers of our own, which may change: structlog's are shared, one for each level."""
    made: type[FilteringBoundLogger] = type("Logger", (structlog.make_filtering_bound_logger(LEVELS[level]),), {})
    return made


def _take_methods(logger_class: type[FilteringBoundLogger], level: str) -> None:
    for name, method in vars(structlog.make_filtering_bound_logger(LEVELS[level])).items():
        if callable(method):
            setattr(logger_class, name, method)


def _foreign(level: str) -> int:
    """The level of the libraries: they tell what they do at INFO, and our own lines say it already."""
    return LEVELS[level] if level == "debug" else max(LEVELS[level], logging.WARNING)


def _renderer(form: str) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer(serializer=_to_json)
    if sys.stderr.isatty():
        return _surely(structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback))
    return plain


def _lost(renderer: Processor, lines: int) -> str:
    words = "log lines were lost: nobody took them from stderr in time"
    event: EventDict = {"level": "warning", "event": words, "lines": lines}
    return str(renderer(None, "warning", structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "", event)))


def _surely(renderer: Processor) -> Processor:
    """The same, for values too that it cannot render: a log line never raises."""

    def render(logger: WrappedLogger, method: str, event: EventDict) -> str:
        try:
            return str(renderer(logger, method, dict(event)))
        except Exception:  # noqa: BLE001  whatever it is
            return plain(logger, method, event)

    return render


def plain(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One line of words and key=value, for a console that is no terminal.

    Written out because each request logs a line: structlog's own renderers take three to five times as long.
    """
    head = f"{event.pop('timestamp')} [{event.pop('level')}] {event.pop('event')}"
    return head + "".join([f" {key}={_quoted(value)}" for key, value in event.items()])


def _quoted(value: object) -> str:
    text = words_of(value)
    return text if text.isascii() and text.isprintable() and " " not in text else repr(text)


def _to_json(event: EventDict, **_: object) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except Exception:  # noqa: BLE001  a number of many digits, half a surrogate, a class that cannot tell what it is
        return orjson.dumps({words_of(key): words_of(value) for key, value in event.items()}).decode()
