"""What `queue-runtime doctor` finds: a level, what was looked at, and a sentence."""

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How bad it is. Only a fault makes the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


class Finding(Struct, frozen=True):
    """One line of the doctor's report."""

    level: Level
    subject: str
    """what was looked at, in a word or two"""

    sentence: str


def ok(subject: str, sentence: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, subject, sentence)


def note(subject: str, sentence: str) -> Finding:
    """Nothing wrong, but good to know."""
    return Finding(Level.NOTE, subject, sentence)


def warning(subject: str, sentence: str) -> Finding:
    """It runs, and something will go wrong sooner or later."""
    return Finding(Level.WARNING, subject, sentence)


def fault(subject: str, sentence: str) -> Finding:
    """It does not run, or not as promised."""
    return Finding(Level.FAULT, subject, sentence)
