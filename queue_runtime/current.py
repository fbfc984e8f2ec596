"""The configuration in force, for parts that ask for a setting each time they need it."""

from queue_runtime.config import Config


class Current:
    """Holds one configuration; a reload puts another in its place."""

    def __init__(self, config: Config) -> None:
        self.config = config
