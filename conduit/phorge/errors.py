"""Why nothing was changed in a Phorge."""


class RefusedError(Exception):
    """Nothing was changed, for this reason."""
