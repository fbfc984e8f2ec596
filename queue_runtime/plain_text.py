"""Text that every encoder takes. Names of files and words of libraries may hold what UTF-8 has no bytes for."""


def fit(text: str) -> str:
    r"""The same text, with what cannot be encoded (half of a surrogate pair) written as \udcff."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def words_of(value: object) -> str:
    """What `str` says, whatever the value is: one that cannot tell is named by its type."""
    try:
        return fit(str(value))
    except Exception:  # noqa: BLE001  a value of somebody else's class may raise anything
        return f"<{type(value).__name__}>"
