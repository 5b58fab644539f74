"""The cluster to check: the options of the job, and connections that open when a section first needs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.doctor.http_probe import HttpProbe
from starrocks_txn_sink.doctor.reach import Endpoint
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.sql_connection import SqlConnection


class SectionSkipped(Exception):
    """A section cannot run. The message gives the reason: an earlier finding, or an option that is not set."""


@dataclass(slots=True)
class Target:
    """State of one run. `database` None: none was named, the options hold a placeholder. `tables` (): all tables.

    Sections fill in fields for later ones: `endpoints` to probe from executors too, `version` and `leader`.
    """

    options: SinkOptions
    database: str | None
    tables: Sequence[str] = ()
    checkpoint: str | None = None
    executors: int | None = 2
    master: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    endpoints: list[Endpoint] = field(default_factory=list)
    version: str = ""
    leader: Address | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _http: HttpProbe | None = None
    _sql: SqlConnection | None = None
    _no_sql: str = ""

    def close(self) -> None:
        self._stack.close()

    def http(self) -> HttpProbe:
        if self._http is None:
            self._http = HttpProbe(self.options, self.clock)
            self._stack.callback(self._http.close)
        return self._http

    def sql(self) -> SqlConnection:
        """A connection to the first query port that accepts the login. Raises SectionSkipped if none does."""
        if self._sql is None and not self._no_sql:
            self._connect()
        if self._sql is None:
            raise SectionSkipped(f"no query port is usable ({self._no_sql})")
        return self._sql

    def _connect(self) -> None:
        for address in self.options.query_addresses:
            try:
                self._sql = SqlConnection(self.options, address)
            except (QueryFailed, QueryRefused) as error:
                self._no_sql = error.message
            else:
                self._stack.callback(self._sql.close)
                return

    def require_database(self) -> str:
        if self.database is None:
            raise SectionSkipped("no --database is set")
        return self.database

    def require_leader(self) -> Address:
        """The leader's HTTP address. Raises SectionSkipped if `check_leader` found none."""
        if self.leader is None:
            raise SectionSkipped("no frontend answered as leader")
        return self.leader

    def has_endpoint(self, endpoint: Endpoint) -> bool:
        return any((known.host, known.port) == (endpoint.host, endpoint.port) for known in self.endpoints)
