"""The whole way once: writers on PostgreSQL, Debezium, Kafka, the query and StarRocks, with crashes in between."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.protocol.snapshots import SNAPSHOT, Progress
from tests.cdc import shop
from tests.cdc.connect import Connect, for_postgres, with_defaults
from tests.cdc.postgres import Postgres
from tests.cdc.witness import Witness, wait_or_time_out
from tests.kafka.broker import Broker
from tests.kafka.jars import SPARK, archives
from tests.kafka.query_process import QueryProcess
from tests.kafka.workload import MARKERS
from tests.support.query_port import query
from tests.support.servers import Server, place_of

_WAIT = 400.0


@dataclass(frozen=True)
class Verdict:
    """`different` names the tables that do not equal PostgreSQL's at the end; `snapshot` is the ledger's word."""

    looks: int
    torn: int
    rows: int
    different: tuple[str, ...]
    snapshot: str = ""

    @property
    def good(self) -> bool:
        return self.looks > 0 and not self.torn and not self.different


def run(
    home: Path,
    starrocks: Server,
    *,
    writers: int,
    transactions: int,
    seconds: float,
    huge: int,
    say: Callable[[str], None],
    defaults: bool = False,
) -> Verdict:
    """Capture, crash, catch up, compare; writers are busy for `seconds` with so many transactions each. With `defaults`
    the connector has those of Debezium, and two lanes take each change by itself. Raises NoMaven and NoPostgres where
    something is not there."""
    jars = archives(SPARK)
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres())
        broker = stack.enter_context(Broker(home / "broker"))
        ask = asking(starrocks)
        postgres.sql(shop.POSTGRES)
        for sql in shop.STARROCKS:
            ask(sql)
        connector = for_postgres(postgres.port)
        connector = with_defaults(connector) if defaults else connector
        connect = stack.enter_context(Connect(home / "connect", broker.servers, connector))
        first = "shop.public.stock_a" if defaults else MARKERS.format("shop")
        wait_or_time_out(
            lambda: not connect.running or first in broker.topics() or bool(postgres.sql(_TOUCH)),
            _WAIT,
            "Debezium",
        )
        _check(connect)
        say("PostgreSQL, Debezium and Kafka are up")
        task = task_of(broker, starrocks, jars, home)
        if defaults:
            task |= {"assemble": "lanes", "reader": "librdkafka", "transactions": "none"}
            task["options"] |= {"lanes": 2}
        query = QueryProcess(task)
        stack.callback(lambda: query.kill())
        witness = stack.enter_context(Witness(ask))
        wait_or_time_out(lambda: witness.looks > 0 or not query.running, _WAIT, "the snapshot")
        _check(query)
        say("the snapshot is in StarRocks; the reader looks from now on")
        with ThreadPoolExecutor(writers) as pool:
            work = [pool.submit(postgres.sql, shop.writer(n, transactions, seconds)) for n in range(1, writers + 1)]
            wait_or_time_out(lambda: witness.items > 0, _WAIT, "the first orders")
            wait_or_time_out(lambda: connect.streams, _WAIT, "the offset of a change")
            say(f"{witness.items} items, {witness.looks} looks; kill -9 of the driver and of Kafka Connect")
            query.kill()
            connect.kill()
            connect.start()
            query = QueryProcess(task)
            for future in work:
                future.result()
            say(f"{witness.items} items, {witness.looks} looks; the writers are done, one transaction of {huge} rows")
        postgres.sql(shop.huge(huge))
        try:
            wait_or_time_out(
                lambda: not _different(postgres, ask) or not query.running or not connect.running,
                _WAIT,
                "StarRocks to equal PostgreSQL",
            )
        except TimeoutError as late:
            different = ", ".join(_different(postgres, ask))
            raise TimeoutError(
                f"{late} {different} differ. Query: {query.messages()} Kafka Connect: {connect.messages()}"
            ) from None
        _check(query)
        _check(connect)
        count = sum(len(postgres.sql(sql.format(""))) for sql in shop.CONTENT.values())
        marks = ask(f"SELECT name, token FROM {shop.DATABASE}.{LEDGER_TABLE} WHERE kind = '{SNAPSHOT}'")
        snapshot = Progress.of({str(name): str(mark) for name, mark in marks}).text
        return Verdict(witness.looks, len(witness.torn), count, tuple(_different(postgres, ask)), snapshot)


def _check(process: QueryProcess | Connect) -> None:
    if not process.running:
        raise TimeoutError(f"It ended too early: {process.messages()}")


_TOUCH = "UPDATE stock_a SET n = n WHERE id = 1"  # no row comes back; Debezium creates the topic for a transaction


def task_of(broker: Broker, starrocks: Server, jars: str, home: Path) -> dict[str, Any]:
    options = {**place_of(starrocks, shop.DATABASE), "job": "cdc"}
    return {
        "servers": broker.servers,
        "jars": jars,
        "folder": str(home / "spark"),
        "checkpoint": str(home / "checkpoint"),
        "format": "debezium",
        "per_trigger": 50_000,
        "trigger": "500 milliseconds",
        "options": options,
    }


def asking(starrocks: Server) -> Callable[[str], list[tuple[Any, ...]]]:
    return lambda sql: query(starrocks, sql)


def _different(postgres: Postgres, ask: Callable[[str], list[tuple[Any, ...]]]) -> list[str]:
    return [
        table
        for table, sql in shop.CONTENT.items()
        if [tuple(row) for row in postgres.sql(sql.format(""))] != [_text(row) for row in ask(sql.format("shop."))]
    ]


def _text(row: tuple[Any, ...]) -> tuple[str, ...]:
    """As psql shows it."""
    return tuple("" if cell is None else f"{cell:.2f}" if isinstance(cell, Decimal) else str(cell) for cell in row)
