"""The target of the doctor, and its findings: one for each check, passed or not."""

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from enum import Enum

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.protocol.wire import Request
from starrocks_txn_sink.sql.connection import SqlConnection


class Severity(str, Enum):
    """Severity of a finding; the value is shown in the text and in the JSON."""

    GOOD = "good"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: `check` is a stable name (`section.thing`), `place` a host or table. No secrets, no rows.

    `why` and `advice` are empty unless the check warned or failed.
    """

    check: str
    severity: Severity
    what: str
    why: str = ""
    advice: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """The name and the place of a check; the methods make findings of it."""

    name: str
    place: str = ""

    def good(self, what: str) -> Finding:
        """The check has passed."""
        return Finding(self.name, Severity.GOOD, what, place=self.place)

    def skip(self, what: str) -> Finding:
        """The check was left out; `what` says why."""
        return Finding(self.name, Severity.SKIPPED, what, place=self.place)

    def warning(self, what: str, why: str, advice: str) -> Finding:
        """A job runs, but not as well as it could."""
        return Finding(self.name, Severity.WARNING, what, why, advice, self.place)

    def failure(self, what: str, why: str, advice: str) -> Finding:
        """A job would fail."""
        return Finding(self.name, Severity.FAILURE, what, why, advice, self.place)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 without problems, 1 with warnings only, 3 with a failure; 2 is wrong usage."""
    severities = {finding.severity for finding in findings}
    if Severity.FAILURE in severities:
        return 3
    return 1 if Severity.WARNING in severities else 0


DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class ServerPort:
    """An address that must be reachable; `role` describes it, as in `frontend of load_url`."""

    role: str
    host: str
    port: int

    def __str__(self) -> str:
        return Address("", self.host, self.port).netloc

    def probe(self, timeout: float, place: str = DRIVER) -> Finding:
        """Resolve the name and connect, within about `timeout` seconds; send nothing."""
        start, failed = time.monotonic(), ""
        addresses: tuple[str, ...] = ()
        try:
            entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
            socket.create_connection((self.host, self.port), timeout).close()
        except OSError as error:
            failed = error.strerror or type(error).__name__
        return self.judge(addresses, failed, time.monotonic() - start, place)

    def judge(self, addresses: Sequence[str], error: str, seconds: float, place: str) -> Finding:
        """One finding: for the name if it does not resolve (no `addresses`), else for the port; pure."""
        rewrite = f"behind a proxy or NAT, rewrite it: redirect_map={{'{self}': 'host:port'}}."
        if not addresses:
            return Topic("name.resolution", place).failure(
                f"{self.host} ({self.role}) does not resolve: {error}.",
                "Driver and every executor talk to StarRocks directly.",
                f"Add the name to DNS or /etc/hosts, or use an IP address; {rewrite}",
            )
        if error:
            return Topic("port", place).failure(
                f"No connection to {self} ({self.role}): {error}.",
                "Driver and every executor talk to StarRocks directly: frontends, their query port, and every backend.",
                f"Check that the server runs and that no firewall blocks the port; {rewrite}",
            )
        address_text = "" if self.host in addresses else f" ({', '.join(addresses[:4])})"
        return Topic("port", place).good(f"{self}{address_text} is open, {self.role}, {1000 * seconds:.0f} ms")


_STEP_SECONDS = 30.0


class SectionSkipped(Exception):
    """Raised by a section that cannot run. The message is the reason: an earlier finding, or a missing option."""


@dataclass(slots=True)
class Target:
    """State of one run. `database` None: the user named none, and the options hold a placeholder. `tables` (): all.
    `written` is the number of tables that the job writes, those that are not there yet included; 0: unknown.

    Sections set fields for later sections: `version`, `leader`, `no_backend` (the section that met its absence), and
    the `endpoints` that executors probe, too.
    """

    options: SinkOptions
    database: str | None
    tables: Sequence[str] = ()
    checkpoint: str | None = None
    executors: int | None = 2
    master: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    written: int = 0
    endpoints: list[ServerPort] = field(default_factory=list)
    version: str = ""
    no_backend: str = ""
    leader: Address | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _sql: SqlConnection | None = None
    _no_sql: str = ""
    _closed: set[Address] = field(default_factory=set)
    _http: HttpTransport = field(init=False)

    def __post_init__(self) -> None:
        self._http = self._stack.enter_context(closing(HttpTransport(self.options)))

    def close(self) -> None:
        """End the connections of HTTP and SQL."""
        self._stack.close()

    def send(self, request: Request, address: Address) -> HttpResponse:
        """Send a request to `address`; a load has an empty body, so a 307 names the backend (wire contract 9).

        Raises the errors of `HttpTransport.ask`.
        """
        return self._http.ask(request, address, Deadline.after(_STEP_SECONDS, self.clock))

    def sql(self) -> SqlConnection:
        """A connection to the first query port that accepts the login. Raises SectionSkipped if none does.

        It is another one after a statement without an answer: what was said of that one says nothing of the next.
        """
        if self._sql is not None and not self._sql.is_open:
            self._sql = None
        for address in self.options.query_addresses:
            if self._sql is None and address not in self._closed:
                with suppress(QueryFailed, QueryRefused):
                    self._sql = self._stack.enter_context(closing(self.log_in(address)))
        if self._sql is None:
            raise SectionSkipped(f"no query port is usable ({self._no_sql})")
        return self._sql

    def log_in(self, address: Address) -> SqlConnection:
        """A connection to the query port at `address`.

        After QueryFailed or QueryRefused `sql` skips the port, because a login at a port of another kind takes long.
        """
        try:
            return SqlConnection(self.options, address)
        except (QueryFailed, QueryRefused) as error:
            self._no_sql = error.message
            self._closed.add(address)
            raise

    def require_database(self) -> str:
        """The database that the user names. Raises SectionSkipped if there is none."""
        if self.database is None:
            raise SectionSkipped("no --database is set")
        return self.database

    def require_leader(self) -> Address:
        """The leader's HTTP address. Raises SectionSkipped if `check_leader` found none."""
        if self.leader is None:
            raise SectionSkipped("no frontend answered as leader")
        return self.leader

    def reach(self, role: str, address: Address) -> Finding:
        """Probe an address, and add it to the `endpoints` that executors probe."""
        endpoint = ServerPort(role, address.host, address.port)
        self.endpoints.append(endpoint)
        return endpoint.probe(self.options.connect_timeout)

    def has_reached(self, address: Address) -> bool:
        """Whether `reach` has probed the address, in whatever role and with whatever result."""
        return any((endpoint.host, endpoint.port) == (address.host, address.port) for endpoint in self.endpoints)
