"""Every format gives the same events with the compiled loops and without them, byte for byte.

The sink compares what a replay reads with what was written (`rows/segments.py`), and a replay may run on an executor
that lacks the loops, or in a batch in which Python judges the rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink import TableRules
from starrocks_txn_sink.options.table_rules import RuleSet
from starrocks_txn_sink.sources.formats.canal import CanalMessages
from starrocks_txn_sink.sources.formats.column_rules import apply_rules
from starrocks_txn_sink.sources.formats.debezium import DebeziumChanges
from starrocks_txn_sink.sources.formats.maxwell import MaxwellMessages
from starrocks_txn_sink.sources.formats.placeholders import spellings_of_unavailable
from starrocks_txn_sink.sources.formats.raw_format import RawFormat
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, TableMapping
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from tests.support import canal_feed, maxwell_feed
from tests.support.both_ways import both_ways
from tests.support.debezium_feed import change, postgres
from tests.support.depth import examples

TABLES = TableMapping(OWN_NAME)
PLACEHOLDER = "__debezium_unavailable_value"
RULES = TableRules(
    tables="orders",
    drop=["secret"],
    rename={"a": "b"},
    mask={"mail": "sha256", "name": "truncate:3", "pin": "null"},
    salt="s",
    metadata=["_commit_time"],
)
DATE, DECIMAL, MICROS = (
    "io.debezium.time.Date",
    "org.apache.kafka.connect.data.Decimal",
    "io.debezium.time.MicroTimestamp",
)
FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "day", "type": "int32", "name": DATE, "optional": True},
    {"field": "price", "type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}, "optional": True},
    {"field": "at", "type": "int64", "name": MICROS, "optional": True},
    {"field": "days", "type": "array", "items": {"type": "int32", "name": DATE}, "optional": True},
    *({"field": name, "type": "string", "optional": True} for name in ("a", "mail", "name", "note", "pin", "secret")),
]
TYPED: dict[str, st.SearchStrategy[Any]] = {
    "day": st.integers(-9, 30_000),
    "price": st.sampled_from(["AYY=", "/w==", "AA=="]),
    "at": st.integers(-(10**15), 10**16),
    "days": st.lists(st.integers(0, 20_000), max_size=2),
}
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["x" * 70, 1.5])
NESTED = st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)
NAMES = st.sampled_from(["a", "mail", "name", "note", "pin", "secret", "é", 'q"', "w\\"])
ROWS = st.builds(
    lambda number, others, typed: {"id": number, **others, **typed},
    st.integers(0, 9),
    st.dictionaries(NAMES, VALUES | NESTED | st.just(PLACEHOLDER), max_size=5),
    st.fixed_dictionaries({}, optional=TYPED),
)


class Spelling:
    """Spells values as JSON: with spaces, escapes and names in another way each time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self, value: Any) -> str:
        kept = self.rng.random() < 0.4  # as most writers do, everywhere in a message
        return self._text(value, kept)

    def _text(self, value: Any, kept: bool) -> str:
        space: Callable[[], str] = lambda: "" if kept else self.rng.choice(("", "", " ", "\n", "\t "))  # noqa: E731
        if isinstance(value, dict):
            pairs = [f"{self._scalar(name)}{space()}:{space()}{self._text(each, kept)}" for name, each in value.items()]
            return f"{{{space()}{f'{space()},{space()}'.join(pairs)}{space()}}}"
        if isinstance(value, list):
            return f"[{space()}{f'{space()},{space()}'.join(self._text(each, kept) for each in value)}{space()}]"
        return self._scalar(value)

    def _scalar(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.5)


def debezium(rows: list[dict[str, Any]], spelling: Spelling) -> tuple[RawFormat, pa.RecordBatch]:
    rng, values = spelling.rng, list[str]()
    schema = {
        "type": "struct",
        "fields": [{"type": "struct", "field": name, "fields": FIELDS} for name in ("before", "after")],
    }
    for number, row in enumerate(rows):
        deleted = rng.random() < 0.2
        image = {"before": row, "op": "d"} if deleted else {"after": row, "op": rng.choice("cu")}
        value = change(postgres("orders", 90 + number), f"7:{90 + number}", number + 1, None) | image
        values.append(spelling.text(value if rng.random() < 0.3 else {"schema": schema, "payload": value}))
    columns = {
        "value": pa.array([value.encode() for value in values], pa.binary()),
        "key": pa.nulls(len(rows), pa.binary()),
        "topic": pa.array(["shop.public.orders"] * len(rows)),
        "partition": pa.array([0] * len(rows), pa.int32()),
        "offset": pa.array(range(len(rows)), pa.int64()),
        "timestamp": pa.array(range(len(rows)), pa.int64()),
    }
    unavailable = spellings_of_unavailable(PLACEHOLDER)
    messages = DebeziumChanges(tables=TABLES, unavailable=unavailable, keeps_unchanged=True, source_time=True)
    return messages, pa.RecordBatch.from_pydict(columns)


def maxwell(rows: list[dict[str, Any]], spelling: Spelling) -> tuple[RawFormat, pa.RecordBatch]:
    values = [
        maxwell_feed.row("insert", row, table="orders", xid=number, commit=True) for number, row in enumerate(rows)
    ]
    return MaxwellMessages(tables=TABLES, source_time=True), maxwell_feed.batch(*map(spelling.text, values))


def canal(rows: list[dict[str, Any]], spelling: Spelling) -> tuple[RawFormat, pa.RecordBatch]:
    data = [{name: None if each is None else str(each) for name, each in row.items()} for row in rows]
    values = [canal_feed.flat("INSERT", data[number:]) for number in range(len(data))]
    return CanalMessages(tables=TABLES, source_time=True), canal_feed.batch(*map(spelling.text, values))


def txn_events(rows: list[dict[str, Any]], spelling: Spelling) -> tuple[RawFormat, pa.RecordBatch]:
    values = list[str]()
    for number, row in enumerate(rows):
        text = spelling.text(row)
        event = {"source_partition": "p", "position": number, "type": "DATA", "txn_id": "t", "table": "orders"}
        values.append(spelling.text(event | {"row": row if spelling.rng.random() < 0.5 else text}))
    count = len(values)
    columns = {
        "source_partition": pa.nulls(count, pa.string()),
        "position": pa.nulls(count, pa.int64()),
        "value": pa.array([value.encode() for value in values], pa.binary()),
    }
    return TxnEventLines(source_partition=None, position=None), pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("feed", [debezium, maxwell, canal, txn_events])
@pytest.mark.parametrize("rules", [None, RULES], ids=["plain", "rules"])
@examples(40)
@given(rows=st.lists(ROWS, min_size=1, max_size=6), seed=st.integers(0, 1 << 32))
def test_events_are_the_same_with_the_loops_and_without(
    feed: Any, rules: TableRules | None, rows: list[dict[str, Any]], seed: int
) -> None:
    messages, batch = feed(rows, Spelling(random.Random(seed)))

    def events() -> list[dict[str, Any]]:
        parsed = messages.parse(batch).events
        return (apply_rules(RuleSet([rules]), parsed) if rules else parsed).to_pylist()  # type: ignore[no-any-return]

    assert both_ways(events)
