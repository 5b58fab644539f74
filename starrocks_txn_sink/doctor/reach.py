"""Names and ports: can this process resolve a host and open a connection to it? The same code runs on executors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from starrocks_txn_sink.doctor.finding import Finding, failure, good

DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Door:
    """Something that must be reachable; `role` says what it is, as in `frontend of load_url`."""

    role: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Knock:
    """What came of it: the addresses that the name resolves to, and the error of connecting, empty when it opened."""

    door: Door
    addresses: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0


def knock(door: Door, timeout: float) -> Knock:
    """Resolve and connect, within about `timeout` seconds; nothing is sent."""
    begun = time.monotonic()
    try:
        found = socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Knock(door, (), _kind(error), time.monotonic() - begun)
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    try:
        socket.create_connection((door.host, door.port), timeout).close()
    except OSError as error:
        return Knock(door, addresses, _kind(error), time.monotonic() - begun)
    return Knock(door, addresses, "", time.monotonic() - begun)


def judge_knock(seen: Knock, place: str = DRIVER) -> Iterator[Finding]:
    """One finding for the name, and, if that resolves, one for the port."""
    door = seen.door
    if not seen.addresses:
        yield failure(
            "name.resolution",
            f"{door.host} ({door.role}) does not resolve: {seen.error}.",
            "Driver and every executor talk to StarRocks directly.",
            f"Make the name known there (DNS, /etc/hosts), or write an address in its place; {_rewrite(door)}",
            place,
        )
        return
    if seen.error:
        yield failure(
            "port",
            f"{door} ({door.role}) cannot be connected to: {seen.error}.",
            "Driver and every executor talk to StarRocks directly: frontends, their query port, and every backend.",
            f"Check that the process runs and that no firewall is between; {_rewrite(door)}",
            place,
        )
        return
    shown = "" if door.host in seen.addresses else f" ({', '.join(seen.addresses[:4])})"
    yield good("port", f"{door}{shown} is open, {door.role}, {1000 * seen.seconds:.0f} ms", place)


def _rewrite(door: Door) -> str:
    return f"behind a proxy or NAT, rewrite it: redirect_map={{'{door}': 'host:port'}}."


def _kind(error: OSError) -> str:
    return error.strerror or type(error).__name__
