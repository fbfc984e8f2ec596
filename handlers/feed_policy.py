"""The feed policy file: which addresses may be told about stories, and whether anybody is told at all."""

from pathlib import Path

import httpx2
import msgspec
from msgspec import Struct

MAX_POLICY_BYTES = 2**20


class PolicyUnusable(Exception):
    """The policy file cannot be read or understood. The message names the file."""


class FeedPolicy(Struct, frozen=True):
    """What the file says: `{"silent": false, "uris": ["https://example.test/feed"]}`; both keys are required.

    `silent` is Phorge's `phabricator.silent`, `uris` its `feed.http-hooks`.
    """

    silent: bool
    uris: tuple[str, ...]

    def allowed(self, uri: str) -> httpx2.URL | None:
        """The policy's own form of this address, or None when it is not in the list.

        Compared are scheme, credentials, host, port, path and query in their normal forms, never a prefix.
        """
        try:
            asked = parse_uri(uri)
        except ValueError:
            return None
        return next((entry for entry in map(parse_uri, self.uris) if entry == asked), None)


def read_policy(path: Path) -> FeedPolicy:
    """Read the file, which an operator may replace at any time. Raises PolicyUnusable."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        raise PolicyUnusable(f"feed policy {path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_POLICY_BYTES:
        raise PolicyUnusable(f"feed policy {path} is larger than {MAX_POLICY_BYTES} bytes")
    try:
        policy = msgspec.json.decode(text, type=FeedPolicy)
    except msgspec.DecodeError as error:
        raise PolicyUnusable(f"feed policy {path} is malformed: {error}") from error
    for number, uri in enumerate(policy.uris):
        try:
            parse_uri(uri)
        except ValueError as error:
            # the position, not the text: an address may hold a secret
            raise PolicyUnusable(f"feed policy {path} is malformed: uris[{number}] {error}") from error
    return policy


def parse_uri(uri: str) -> httpx2.URL:
    """An http or https address with a host; ValueError otherwise, without the address in its message."""
    try:
        url = httpx2.URL(uri)
    except httpx2.InvalidURL:
        raise ValueError("is not an address") from None
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65535:
        raise ValueError("must begin with http:// or https:// and name a host and no port above 65535")
    return url
