"""A planted fault: one rule broken by a change of text, and the contract files that must see it.

A fault whose text is no longer there fails its test: write it anew for the new text, or a rule is left unguarded.
"""

from msgspec import Struct


class Mutant(Struct, frozen=True):
    """One fault. `backend` is the store whose tests are run with it: the contract's, on the streams their own."""

    name: str
    backend: str
    path: str
    changes: tuple[tuple[str, str], ...]
    caught_by: tuple[str, ...]
