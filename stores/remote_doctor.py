"""Looks at the server of a remote store, for `queue-runtime doctor --store`. Changes nothing."""

from collections.abc import AsyncIterator

from queue_runtime import store_wire as wire
from queue_runtime.errors import StoreUnavailable
from queue_runtime.findings import Finding, fault, ok, warning
from queue_runtime.store import StoreOptions
from stores.remote_address import Address, read_address
from stores.remote_line import Line, ServerFault, open_line

SECONDS = 10.0


async def examine(url: str, token: str, options: StoreOptions) -> list[Finding]:
    """Everything that can be said of the server; ends early where it does not answer."""
    address = read_address(url)
    found = [_way(address)]
    async with open_line(lambda: (url, token), seconds=SECONDS) as line:
        try:
            found += [finding async for finding in _server(line, address, options)]
        except StoreUnavailable as error:
            found.append(fault("server", error.reason))
        except ServerFault as error:
            found.append(fault("server", str(error)))
    return found


def _way(address: Address) -> Finding:
    if address.is_encrypted:
        return ok("way", f"{address.name} is reached encrypted")
    if address.stays_on_this_machine:
        return ok("way", f"{address.name} is on this machine")
    return warning(
        "way", f"the token and all tasks travel unencrypted to {address.name}: fine in a network of your own"
    )


async def _server(line: Line, address: Address, options: StoreOptions) -> AsyncIterator[Finding]:
    heard = await line.call(wire.CHANGED, wire.ChangedCall(0.0, None))
    yield ok("server", f"{address.name} speaks version {wire.VERSION} of the store protocol, as this process does")
    if heard.patience < options.patience:
        yield warning(
            "leases",
            f"the server waits {heard.patience} s for a worker that is cut off, and this one goes on for "
            f"{options.patience} s: set LEASE_SECONDS alike on both",
        )
    else:
        yield ok("leases", "no run here goes on for longer than the server waits for it")
    if reason := await line.readiness():
        yield fault("readiness", f"the server is not ready: {reason}")
        return
    facts = await line.call(wire.OPERATIONS, wire.NoArguments())
    yield ok("readiness", f"the server is ready; its store is {facts.get('backend')}")
