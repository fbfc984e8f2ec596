"""Answers that are kept, for repeats of the same request."""

import msgspec

from queue_runtime.task import Task


def answer_text(task: Task) -> str:
    """An answer as it is kept."""
    return msgspec.json.encode(task).decode()


def answered_task(text: str) -> Task:
    """The answer that was kept."""
    return msgspec.json.decode(text, type=Task)
