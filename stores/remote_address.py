"""Where the server of a remote store is: a URL, or the path of a Unix socket."""

from urllib.parse import urlsplit

from msgspec import Struct

from queue_runtime.errors import StoreUnusable

UNIX = "unix:"


class Address(Struct, frozen=True):
    """How to reach the server. `name` is for people."""

    name: str
    base: str
    """what paths are appended to"""

    socket: str | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody on the way can read along."""
        return self.base.startswith("https:")

    @property
    def stays_on_this_machine(self) -> bool:
        """Whether there is no way to read along on."""
        return self.socket is not None or urlsplit(self.base).hostname in {"localhost", "127.0.0.1", "::1"}


def read_address(url: str) -> Address:
    """The address that `http://host:port[/prefix]`, `https://…` or `unix:/path` names. Raises StoreUnusable."""
    if url.startswith(UNIX):
        path = url.removeprefix(UNIX)
        return Address(url, "http://localhost", f"/{path.lstrip('/')}")
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise StoreUnusable("the URL of a remote store must be http://host:port, https://host, or unix:/path")
    # without the user and password that a proxy in front of the server may ask for
    return Address(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", url.rstrip("/"))
