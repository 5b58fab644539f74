"""Host names and ports: name resolution and TCP connections from this process. The same code runs on executors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from starrocks_txn_sink.doctor.finding import Finding, failure, good

DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that must be reachable; `role` describes it, as in `frontend of load_url`."""

    role: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Outcome of a probe: resolved IP addresses (() if none) and the error, '' if the port is open."""

    endpoint: Endpoint
    addresses: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0


def probe(endpoint: Endpoint, timeout: float) -> ProbeResult:
    """Resolve the name and connect, within about `timeout` seconds; send nothing."""
    begun = time.monotonic()
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return ProbeResult(endpoint, (), _error_text(error), time.monotonic() - begun)
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout).close()
    except OSError as error:
        return ProbeResult(endpoint, addresses, _error_text(error), time.monotonic() - begun)
    return ProbeResult(endpoint, addresses, "", time.monotonic() - begun)


def judge_probe(seen: ProbeResult, place: str = DRIVER) -> Iterator[Finding]:
    """One finding: for the name if it does not resolve, else for the port."""
    endpoint = seen.endpoint
    if not seen.addresses:
        yield failure(
            "name.resolution",
            f"{endpoint.host} ({endpoint.role}) does not resolve: {seen.error}.",
            "Driver and every executor talk to StarRocks directly.",
            f"Add the name to DNS or /etc/hosts, or use an IP address; {_rewrite(endpoint)}",
            place,
        )
        return
    if seen.error:
        yield failure(
            "port",
            f"No connection to {endpoint} ({endpoint.role}): {seen.error}.",
            "Driver and every executor talk to StarRocks directly: frontends, their query port, and every backend.",
            f"Check that the server runs and that no firewall blocks the port; {_rewrite(endpoint)}",
            place,
        )
        return
    shown = "" if endpoint.host in seen.addresses else f" ({', '.join(seen.addresses[:4])})"
    yield good("port", f"{endpoint}{shown} is open, {endpoint.role}, {1000 * seen.seconds:.0f} ms", place)


def _rewrite(endpoint: Endpoint) -> str:
    return f"behind a proxy or NAT, rewrite it: redirect_map={{'{endpoint}': 'host:port'}}."


def _error_text(error: OSError) -> str:
    return error.strerror or type(error).__name__
