"""Reads files that settings name, and no others: who reads a pipe waits for somebody who writes to it."""

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def read_plain(path: Path) -> bytes:
    """What a regular file, or one that a link leads to, holds. Raises OSError, with the reason in `strerror`."""
    # a pipe without a writer, or a device, would be waited for when it is opened
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(number).st_mode
        if S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with os.fdopen(number, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(number)
