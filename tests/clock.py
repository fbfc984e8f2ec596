"""A clock that moves only when a test says so."""

START = 1_700_000_000


class Clock:
    """Whole Unix seconds, for the `now` of StoreOptions."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: int) -> None:
        """Let this many seconds pass (negative: the clock was set back)."""
        self.now += seconds
