"""One client's session on the query port, a statement's answer, and a statement's error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starrocks_emulator.settings import Configuration, Settings
from starrocks_emulator.transactions.scan_threads import Scans, ScanTimedOut, WaitingCommits
from starrocks_emulator.users import Rights, Users

SYNTAX, NO_DATABASE, UNKNOWN_ERROR, LOCK_TIMEOUT, DENIED = 1064, 1046, 1105, 1205, 5203

FORWARD_MODE = "follower_query_forward_mode"
"""With `leader` a follower passes queries on, too."""

LOCK_DATABASE = "cbo_use_lock_db"
"""With it SELECT is planned under the database's lock (wire contract 4.11)."""

HIDDEN_VARIABLES = frozenset({FORWARD_MODE, LOCK_DATABASE})
"""What SET takes and SHOW VARIABLES leaves out (wire contract 4.11, 10.11)."""

_VARIABLES = {
    "auto_increment_increment": "1",
    "autocommit": "1",
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "character_set_server": "utf8mb4",
    "collation_connection": "utf8mb4_general_ci",
    "collation_server": "utf8mb4_general_ci",
    "enable_insert_strict": "true",
    FORWARD_MODE: "default",
    "init_connect": "",
    "interactive_timeout": "3600",
    "language": "/starrocks/share/english/",
    "license": "Apache License 2.0",
    "lower_case_table_names": "0",
    "max_allowed_packet": "33554432",
    "net_buffer_length": "16384",
    "net_read_timeout": "60",
    "net_write_timeout": "60",
    "performance_schema": "OFF",
    "query_cache_size": "1048576",
    "query_cache_type": "0",
    "query_timeout": "300",
    "sql_mode": "ONLY_FULL_GROUP_BY",
    "system_time_zone": "UTC",
    "time_zone": "UTC",
    "transaction_isolation": "READ-COMMITTED",
    "transaction_read_only": "0",
    "tx_isolation": "READ-COMMITTED",
    "tx_read_only": "0",
    "version": "8.0.33",
    "wait_timeout": "28800",
}


def analyzing_error(message: str, part: tuple[int, int] | None = None) -> str:
    """The server's text for a statement that it can parse, and not run; `part` has the columns of its wrong part."""
    where = f" from line 1, column {part[0]} to line 1, column {part[1]}" if part else ""
    return f"Getting analyzing error{where}. Detail message: {message}" + ("" if message.endswith(".") else ".")


FIRST_BACKEND = 10_001
"""The number of the first backend; the others follow."""


class SqlError(Exception):
    """A statement that failed; `code` is the MySQL error code that the client gets."""

    def __init__(self, message: str, code: int = SYNTAX) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True)
class FrontendInfo:
    """What SHOW FRONTENDS, SHOW BACKENDS and ADMIN SHOW FRONTEND CONFIG say of this emulator; `peers` are the other
    frontends. Without `backends_alive` it answers only what a frontend answers alone (wire contract 10.14)."""

    host: str = "127.0.0.1"
    http_port: int = 0
    query_port: int = 0
    be_http_ports: tuple[int, ...] = ()
    backends_alive: bool = True
    leader: bool = True
    peers: tuple[FrontendInfo, ...] = ()
    cores: int = 1
    config: Configuration = field(default_factory=lambda: Configuration(Settings()))


def no_backend(frontend: FrontendInfo) -> str:
    """The server's text for a query while no backend is alive: each backend with its state (wire contract 10.14)."""
    states = "".join(f"[{frontend.host} alive: false inBlacklist: true] " for _ in frontend.be_http_ports)
    return f"Backend node not found. Check if any backend node is down.backend: {states}"


def no_replica(frontend: FrontendInfo) -> str:
    """The server's text for a change of rows while no backend is alive (wire contract 10.14)."""
    replicas = ",".join(f"{10_001 + place}:{frontend.host}:DEAD" for place in range(len(frontend.be_http_ports)))
    return analyzing_error(
        f"Tablet lost replicas. Check if any backend is down or not. tablet_id: 10100, replicas: {replicas},. "
        "Check quorum number failed(OlapTableSink): BeReplicaSize:0, quorum:1."
    )


@dataclass(slots=True)
class QuerySession:
    """What a client has set: the current database and variables; and what it sees of the server, and waits for."""

    database: str = ""
    user: str = "root"
    version: str = "4.0.7-emulator"
    connection_id: int = 0
    frontend: FrontendInfo = field(default_factory=FrontendInfo)
    users: Users = field(default_factory=lambda: Users("root", ""))
    scans: Scans = field(default_factory=lambda: Scans(tuple, WaitingCommits(lambda: 0.0, bool), lambda: 0.0))
    variables: dict[str, str] = field(default_factory=lambda: dict(_VARIABLES))

    def __post_init__(self) -> None:
        self.variables.setdefault("version_comment", self.version)

    @property
    def rights(self) -> Rights:
        """What the session's user may do."""
        return self.users.rights(self.user)

    @property
    def query_seconds(self) -> float:
        """How long a query may take."""
        return float(self.variables["query_timeout"])

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Give the server's error to a statement that has waited for too long inside."""
        try:
            yield
        except ScanTimedOut as error:
            text = f"Query reached its timeout of {self.query_seconds:g} seconds, please increase the 'query_timeout'"
            raise SqlError(f"{text} session variable and retry", UNKNOWN_ERROR) from error

    @property
    def locks_database(self) -> bool:
        """Whether a SELECT sees all of a commit or nothing, by `cbo_use_lock_db` (wire contract 4.11)."""
        return self.variables.get(LOCK_DATABASE, "").lower() in ("true", "1", "on")


@dataclass(frozen=True, slots=True)
class Answer:
    """A result set, or with no columns the number of affected rows. `columns` are (name, DuckDB type)."""

    columns: Sequence[tuple[str, str]] = ()
    rows: Sequence[Sequence[Any]] = ()
    affected: int = 0


def text_answer(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Answer:
    """A result set of texts."""
    return Answer(
        [(name, "VARCHAR") for name in names],
        [tuple(None if value is None else str(value) for value in row) for row in rows],
    )
