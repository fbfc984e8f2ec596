"""Folders that are gone when the test process is gone, however it ended; in memory where there is room."""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

ROOM = 2**30
"""Bytes that must be free in memory: containers often come with 64 MB of it, which servers would soon fill."""

_numbers = count(1)


def _in_memory() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free >= ROOM else None


IN_MEMORY = _in_memory()
"""Where files cost no disk; None: nowhere. A crash of the machine is no part of these tests."""

# Reads until our end of the pipe is closed, which the kernel does even for a process that was killed. Servers of that
# process die at the same moment and may still write: hence more than one try.
KEEPER = 'cat; for try in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" 2>/dev/null && break; sleep 0.2; done'


@cache
def _root() -> Path:
    """The folder of this process, with a keeper that outlives it and removes it."""
    root = Path(tempfile.mkdtemp(prefix="queue-runtime-", dir=IN_MEMORY))
    root.chmod(0o755)  # servers run under an account of their own
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", KEEPER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )
    atexit.register(keeper.communicate)
    return root


def new_folder(name: str) -> Path:
    """A new empty folder that nothing else uses."""
    folder = _root() / f"{name}-{next(_numbers)}"
    folder.mkdir()
    return folder
