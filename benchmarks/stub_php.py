"""A Phorge that runs every task in no time: `python -m benchmarks.stub_php PORT LOCKS`.

It answers `worker.execute` as the extension does (LOCKS 1) or as the fork's own method (LOCKS 0), as cheaply as may be:
the figure is about whoever calls. `GET /counts` tells how many calls there were, by phase.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import ClassVar

PHASES = ("capabilities", "prepare", "execute")
_ANSWERS: dict[str, dict[str, object]] = {
    "capabilities": {"result": "capabilities"},
    "prepare": {"result": "prepared", "leaseDuration": None},
    "execute": {"result": "success", "duration": 100, "followups": []},
}


class Php(asyncio.Protocol):
    """One connection, which is closed after its reply as the web server is asked to do."""

    counts: ClassVar[Counter[str]] = Counter()
    answers: ClassVar[dict[str, bytes]]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._text = b""
        self.counts["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self._text += data
        head, end, body = self._text.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET "):
            self._reply(json.dumps(self.counts).encode())
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        phase = next(phase for phase in PHASES if phase.encode() in body)
        self.counts[phase] += 1
        self._reply(self.answers[phase])

    def _reply(self, body: bytes) -> None:
        self._text = b""
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def main(port: int, locks: bool) -> None:
    """Serve until killed."""
    extra: dict[str, object] = {"executionVersion": 1, **({"taskLock": True} if locks else {})}
    Php.answers = {
        phase: json.dumps({"result": extra | answer, "error_code": None, "error_info": None}).encode()
        for phase, answer in _ANSWERS.items()
    }
    server = await asyncio.get_running_loop().create_server(Php, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "1"))
