"""The configuration in force, for parts that ask for a setting each time they need it."""

from queue_runtime.config import Config


class Current:
    """Holds one configuration; a reload puts another in its place.

    A store or a client is given a function that looks here for what may change in its life: the secret of its next
    connection, the length of its next wait.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
