"""A connection that is accepted at the moment of the close is ended with the others: none outlives its server."""

import asyncio
import socket
from contextlib import closing

import pytest

from queue_runtime.server import Kind
from tests.http.house import House, serve

TURNS = range(8)
"""Of the event loop between the order to close and the connection: the listener goes within them."""


@pytest.mark.parametrize("opened", ["reference"], indirect=True)
@pytest.mark.parametrize("turns", TURNS)
async def test_when_a_server_has_closed_no_connection_is_left(house: House, kind: Kind, turns: int) -> None:
    async with serve(house, kind) as running:
        running.house.lifecycle.closing.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        with closing(socket.socket()) as client:
            if client.connect_ex((running.host, running.port)):
                return  # it listens no more
            await running.close()
            client.setblocking(False)  # without a turn of the loop: what is open now would stay so
            try:
                left = client.recv(1)
            except ConnectionResetError:  # it was never accepted
                left = b""
            assert left == b""
