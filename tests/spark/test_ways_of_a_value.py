"""A value has one fate, whatever way it comes: every value that was asked of a real server, by every way in.

What the table of values takes (`rows/values/rules.py`) is in the table, and the same in each way; any other value makes
its source transaction a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame

from starrocks_txn_sink import (
    DebeziumAssembly,
    MaxwellAssembly,
    SinkOptions,
    StarRocksSink,
    TransactionAssembly,
    assemble_debezium,
)
from starrocks_txn_sink.compiled.library import PURE
from starrocks_txn_sink.rows.json_members import value_at
from starrocks_txn_sink.rows.target import parse_type
from starrocks_txn_sink.rows.values.rules import Unfit, Value, fitted
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions
from tests.support.assembling_shop import IN_JSON
from tests.support.debezium_feed import change, marker, postgres
from tests.support.debezium_shop import DebeziumShop
from tests.support.exactly_once_shop import SCHEMA
from tests.support.maxwell_feed import row as maxwell_row
from tests.support.recorded_values import recorded_values

Way = Callable[[DebeziumShop], None]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

KINDS = [name for name in recorded_values() if "VARBINARY" not in name and "NULL" not in name and "DEFAULT" not in name]
"""Bytes are texts in some ways, and the letters themselves in others."""
COLUMNS = {kind: f"c{number}" for number, kind in enumerate(KINDS)}
VALUES = [
    (number, COLUMNS[kind], kind, sent)
    for number, (kind, sent) in enumerate((kind, sent) for kind in KINDS for sent in recorded_values()[kind])
]
TABLE = f"CREATE TABLE shop.v (id BIGINT NOT NULL, {', '.join(f'{name} {kind}' for kind, name in COLUMNS.items())})"
KEY = " PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"


def fits(kind: str, sent: str) -> bool:
    """Whether the table of values takes a JSON value for a column; NULL always fits."""
    if sent == "null":
        return True
    try:
        fitted(parse_type(kind), Value(value_at(sent, 0)[0], sent))
    except Unfit:
        return False
    return True


def row(number: int, column: str, sent: str) -> str:
    return f'{{"id": {number}, "{column}": {sent}}}'


def with_row(message: dict[str, Any], text: str) -> str:
    """The message as JSON, with the row's own characters in place of `@`."""
    return json.dumps(message).replace('"@"', text)


def options(shop: DebeziumShop, job: str) -> SinkOptions:
    return shop.options(job=job, on_bad_rows="quarantine", max_quarantined=len(VALUES))


def ready_rows(shop: DebeziumShop) -> None:
    shop.files += 1
    rows = [("p", number, 0, "v", row(number, column, sent), True) for number, column, _, sent in VALUES]
    StarRocksSink(options(shop, f"job{shop.files}")).write(shop.spark.createDataFrame(rows, SCHEMA))


def txn_events(*, as_text: bool) -> Iterator[str]:
    for number, column, _, sent in VALUES:
        place = {"source_partition": "p", "txn_id": str(number)}
        text = row(number, column, sent)
        yield json.dumps({**place, "position": 3 * number, "type": "BEGIN"})
        event = {**place, "position": 3 * number + 1, "type": "DATA", "table": "v", "op": "c", "row": "@"}
        yield with_row(event, json.dumps(text) if as_text else text)
        yield json.dumps({**place, "position": 3 * number + 2, "type": "END"})


def assembled(shop: DebeziumShop, assembly: Any, messages: list[dict[str, Any]]) -> None:
    put(shop, messages)
    run(shop, shop.topics(), assembly)


def put(shop: DebeziumShop, messages: list[dict[str, Any]]) -> None:
    """The messages, in place of those of another way."""
    for file in shop.source.iterdir():
        file.unlink()
    shop.files += 1
    shop.put_file(messages)


def run(shop: DebeziumShop, frame: DataFrame, assembly: Any = None) -> None:
    job = f"job{shop.files}"
    sink = StarRocksSink(options(shop, job), assemble=assembly)
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(shop.checkpoint(job)))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def of_topic(topic: str, texts: Iterator[str] | list[str]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": 0, "offset": at, "key": None, "value": text} for at, text in enumerate(texts)]


def raw_events(shop: DebeziumShop, *, as_text: bool) -> None:
    assembled(shop, TransactionAssembly(lines=IN_JSON), of_topic("e", txn_events(as_text=as_text)))


def changes() -> Iterator[str]:
    for number, column, _, sent in VALUES:
        place = 10 * number + 10
        value = change(postgres("v", place), f"{number}:{place}", 1, "@")
        yield with_row(value, row(number, column, sent))


def ends() -> Iterator[str]:
    for number, *_ in VALUES:
        yield json.dumps(marker("END", f"{number}:{10 * number + 11}", {"public.v": 1}))


def debezium_whole(shop: DebeziumShop) -> None:
    messages = [*of_topic("shop.public.v", changes()), *of_topic("shop.transaction", ends())]
    assembled(shop, DebeziumAssembly(reader="spark"), messages)


def debezium_changes(shop: DebeziumShop) -> None:
    assembled(shop, DebeziumAssembly(reader="spark", transactions="none"), of_topic("shop.public.v", changes()))


def maxwell(shop: DebeziumShop) -> None:
    messages = [
        with_row(maxwell_row("insert", "@", table="v", xid=number, commit=True), row(number, column, sent))  # type: ignore[arg-type]
        for number, column, _, sent in VALUES
    ]
    assembled(shop, MaxwellAssembly(reader="spark"), of_topic("maxwell", messages))


def debezium_stage(shop: DebeziumShop) -> None:
    put(shop, [*of_topic("shop.public.v", changes()), *of_topic("shop.transaction", ends())])
    frame = shop.topics()
    markers = parse_debezium_transactions(frame.where("topic = 'shop.transaction'"))
    run(shop, assemble_debezium(parse_debezium(frame.where("topic <> 'shop.transaction'")), markers))


def without_loops(way: Way, shop: DebeziumShop) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shop.spark.sparkContext.environment, PURE, "1")
        way(shop)


WAYS: dict[str, Way] = {
    "ready rows": ready_rows,
    "ready rows, no loops": partial(without_loops, ready_rows),
    "events": partial(raw_events, as_text=True),
    "events, rows as objects": partial(raw_events, as_text=False),
    "Debezium, whole": debezium_whole,
    "Debezium, whole, no loops": partial(without_loops, debezium_whole),
    "Debezium, change by change": debezium_changes,
    "Debezium, by a stage": debezium_stage,
    "Maxwell": maxwell,
}


@pytest.mark.deep
def test_a_value_has_one_fate(debezium: DebeziumShop) -> None:
    expected = {number for number, _, kind, sent in VALUES if fits(kind, sent)}
    assert len(expected) > 400
    assert len(VALUES) > len(expected) + 400
    first: dict[int, Any] = {}
    for name, way in WAYS.items():
        debezium.ask("DROP TABLE IF EXISTS shop.v")
        debezium.ask(TABLE + KEY)
        way(debezium)
        kept = {int(number): values for number, *values in debezium.ask("SELECT * FROM shop.v")}
        assert [VALUES[number] for number in kept.keys() ^ expected] == [], name
        first = first or kept
        # Debezium's texts in a JSON column are documents.
        differing = [VALUES[number] for number in kept if kept[number] != first[number]]
        as_texts = [value for value in differing if value[2] == "JSON" and value[3].startswith('"')]
        assert differing == (as_texts if "Debezium" in name else []), name
