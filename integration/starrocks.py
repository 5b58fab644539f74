"""A StarRocks in one container: started, waited for until its backend can take tables, and reachable from here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pymysql

from integration.engine import Engine, Running
from tests.support.servers import login

IMAGE = "starrocks/allin1-ubuntu"
TAG = "4.1.1"
FE_HTTP, QUERY, BE_HTTP = 8030, 9030, 8040
START_SECONDS = 300.0
_POLL_SECONDS = 2.0

Row = dict[str, str]
Ask = Callable[[str, int, str], list[Row]]
"""Runs one SQL statement as root at (host, port); raises pymysql's errors or OSError."""


class NotReady(Exception):
    """The server did not become ready in time; the text says what was seen last."""


@dataclass(frozen=True, slots=True)
class StarRocks:
    """A server that is ready. `rewrites` maps the addresses it calls itself to those it has here, as host:port."""

    load_url: str
    query_url: str
    version: str
    rewrites: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    password: str = field(default="", repr=False)


@contextlib.contextmanager
def running(
    engine: Engine,
    tag: str = TAG,
    *,
    ask: Ask | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """A StarRocks of `tag`, stopped at the end, also when it never became ready (NotReady)."""
    container = engine.start(f"{IMAGE}:{tag}", (FE_HTTP, QUERY, BE_HTTP), {})
    try:
        yield _ready(container, ask or ask_mysql, now, sleep)
    finally:
        container.stop()


def _ready(container: Running, ask: Ask, now: Callable[[], float], sleep: Callable[[float], None]) -> StarRocks:
    """Wait for the frontend, for the backend to register, and for it to have room for a table, in this order."""
    host, port = container.host, container.port(QUERY)
    limit, state = now() + START_SECONDS, "nothing"
    while now() < limit:
        try:
            backends = ask(host, port, "SHOW BACKENDS")
            state = f"backends: {[backend.get('alive') for backend in backends]}"
            if any(backend.get("alive") == "true" for backend in backends):
                _make_a_table(ask, host, port)
                return _found(container, ask, backends)
        except (pymysql.MySQLError, OSError) as error:
            state = f"{type(error).__name__}: {str(error)[:200]}"
        sleep(_POLL_SECONDS)
    raise NotReady(f"StarRocks was not ready after {START_SECONDS:g} s; last seen: {state}.\n{container.log_end()}")


def _make_a_table(ask: Ask, host: str, port: int) -> None:
    """A backend is alive before it has reported how much room it has; only a new table proves that it takes one."""
    ask(host, port, "CREATE DATABASE IF NOT EXISTS ready")
    ask(
        host,
        port,
        "CREATE TABLE IF NOT EXISTS ready.t (id INT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id) BUCKETS 1"
        " PROPERTIES ('replication_num' = '1')",
    )
    ask(host, port, "DROP DATABASE ready")


def _found(container: Running, ask: Ask, backends: list[Row]) -> StarRocks:
    host, port = container.host, container.port(QUERY)
    rewrites = {f"{backend['ip']}:{backend['httpport']}": f"{host}:{container.port(BE_HTTP)}" for backend in backends}
    for frontend in ask(host, port, "SHOW FRONTENDS"):
        rewrites[f"{frontend['ip']}:{frontend['httpport']}"] = f"{host}:{container.port(FE_HTTP)}"
        rewrites[f"{frontend['ip']}:{frontend['queryport']}"] = f"{host}:{port}"
    (version,) = ask(host, port, "SELECT current_version() AS version")
    return StarRocks(f"http://{host}:{container.port(FE_HTTP)}", f"mysql://{host}:{port}", version["version"], rewrites)


def ask_mysql(host: str, port: int, sql: str) -> list[Row]:
    """One statement over the MySQL protocol; names in lower case, values as text."""
    words: dict[str, Any] = {"user": login().user, "password": login().password}
    connection = pymysql.connect(host=host, port=port, autocommit=True, connect_timeout=5, read_timeout=60, **words)
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(sql)
        names = [column[0].lower() for column in cursor.description or ()]
        return [dict(zip(names, map(str, row), strict=True)) for row in cursor.fetchall()]
