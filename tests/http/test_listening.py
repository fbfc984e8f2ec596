"""What a process leaves to others: the file of a socket, and a log that can be read."""

import logging
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_runtime.descriptors import Descriptors
from queue_runtime.listen import files_of, open_all, remove_files


def test_what_asyncio_says_when_none_is_left_is_folded(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("asyncio")
    with capture_logs() as lines, Descriptors().watched():
        for _ in range(100):
            logger.error("socket.accept() out of system resource\nsocket: <...>")
        logger.error("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"]
    assert [line["event"].partition(":")[0] for line in lines] == ["new connections are refused"]


def test_a_unix_socket_of_a_successor_stays(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    address = f"unix:{path}"
    (old,) = open_all([address])
    old_files = files_of([old])
    old.close()
    (new,) = open_all([address])
    new_files = files_of([new])
    remove_files(old_files)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    new.close()
    path.chmod(0o666)  # what an administrator does does not make it another file
    remove_files(new_files)
    assert not path.exists()
    remove_files(new_files)
