"""Every error raised on purpose, named for what the caller can do about it."""


class QueueRuntimeError(Exception):
    """The root of all errors raised on purpose."""


class StoreUnavailable(QueueRuntimeError):
    """The store did not answer, or its answer was lost: nobody knows whether the round happened. Try again.

    `operation` is the protocol method that was under way. `nothing_happened`: the store does know, the round was not
    even begun.
    """

    nothing_happened = False

    def __init__(self, operation: str, reason: str = "", *, nothing_happened: bool = False) -> None:
        super().__init__(f"{operation}: {reason}" if reason else operation)
        self.operation = operation
        self.reason = reason
        self.nothing_happened = nothing_happened or type(self).nothing_happened


class StoreFull(StoreUnavailable):
    """The store has no room (disk full, quota, memory limit). Nothing happened; room must be made first."""

    nothing_happened = True


class StoreUnusable(QueueRuntimeError):
    """The store cannot be used as configured (newer schema, read-only folder, missing rights).

    Waiting does not help: it ends the start with this message.
    """


class WritesRefused(QueueRuntimeError):
    """This process is a shadow (QUEUE_RUNTIME_SHADOW): it reads the queue and writes nothing. Nothing was changed.

    `operation` is the protocol method that was asked for.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation}: this process only reads the queue (QUEUE_RUNTIME_SHADOW=1)")
        self.operation = operation


class InvalidRequest(QueueRuntimeError):
    """A value breaks a rule and nothing was changed. `field` is the Python name of the value."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class EventConflict(QueueRuntimeError):
    """This event id is known with another task. Nothing was changed."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"event {event_id!r} was delivered before with another task")
        self.event_id = event_id


class ConfigError(QueueRuntimeError):
    """The environment has faults; `problems` lists all of them, each with its variable's name."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
