"""Declared keys with a column that the source's key lacks: an update that changes it takes the former row away."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink import CanalAssembly, DebeziumAssembly, MaxwellAssembly, SinkOptions, TableOptions, TableRules
from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options.table_rules import RuleSet
from starrocks_txn_sink.rows.target import TargetColumn, parse_type
from starrocks_txn_sink.sink.assembly import MessageAssembly
from starrocks_txn_sink.sink.source_progress import keys_that_move
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS, Tables
from starrocks_txn_sink.sources.formats.declared_keys import with_declared_keys
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.canal_feed import batch as canal, flat
from tests.support.connect_schema import field, key as described_key, schema
from tests.support.debezium_feed import change, mysql, postgres
from tests.support.maxwell_feed import batch as maxwell, row
from tests.support.memory_directory import MemoryDirectory

pytestmark = pytest.mark.usefixtures("loop")

ORDERS = postgres("orders", 90)
KEYS = {"orders": ("id", "day")}
Row = dict[str, Any]


def written(assembly: MessageAssembly, batch: pa.RecordBatch, keys: Any = None) -> list[tuple[bool, Row]]:
    """Of each row that a lane sends: whether it is a delete, and its members without the mark."""
    rules = RowRules(assembly.rule_set)
    spec = AssemblySpec(
        assembly.assembler,
        assembly.policy,
        PayloadEncoder("shop", rules=rules, moving=frozenset(KEYS if keys is None else keys)),
        0.0,
        MemoryDirectory(),
        "s",
        lines=with_declared_keys(assembly.lines, KEYS if keys is None else keys),
        rules=assembly.rule_set,
    )
    opened = spec.open(Attempt(0, 0, False))
    try:
        rows = [row for sent in opened([batch]) for row in sent.to_pylist()]
    finally:
        opened.close()
    ends = [row["transaction_end"] for row in rows]
    assert not ends or ends[-1]
    members = [json.loads(row["payload"][1:]) for row in rows]
    return [(row.pop("__op", 0) == 1, row) for row in members]


def debezium(*changes: Any, key: Any = b'{"id":1}') -> pa.RecordBatch:
    values = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in changes]
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "source_partition": ["0"] * count,
            "position": pa.array(range(5, 5 + count), pa.int64()),
            "value": pa.array(values, pa.binary()),
            "message_key": pa.array([key] * count, pa.binary()),
            "topic": ["shop.public.orders"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(5, 5 + count), pa.int64()),
            "timestamp": pa.array([70] * count, pa.int64()),
        }
    )


def update(before: Row | None, after: Row, source: Any = ORDERS) -> Row:
    return change(source, None, None, after, before, op="u")


ALONE = DebeziumAssembly(transactions="none")
OLD = {"id": 1, "day": "2024-01-31", "n": 1}
NEW = {"id": 1, "day": "2024-02-01", "n": 2}


def test_an_update_with_its_former_row_is_a_delete_and_an_insert() -> None:
    assert written(ALONE, debezium(update(OLD, NEW))) == [(True, OLD), (False, NEW)]


def test_an_update_that_leaves_the_key_is_one_row() -> None:
    same = {**OLD, "n": 7}
    assert written(ALONE, debezium(update(OLD, same), change(ORDERS, None, None, NEW))) == [(False, same), (False, NEW)]
    assert written(ALONE, debezium(update(OLD, NEW)), {}) == [(False, NEW)]


def test_the_former_row_is_converted_by_its_schema_and_by_rules() -> None:
    fields = {"id": field("int32"), "day": field("int32", "io.debezium.time.Date"), "mail": field("string")}
    payload = update({"id": 1, "day": 19753, "mail": "a@b.c"}, {"id": 1, "day": 19754, "mail": "d@e.f"})
    value = {"schema": schema([{**of, "field": name} for name, of in fields.items()]), "payload": payload}
    rules = [TableRules(tables="orders", mask={"mail": "null"}, rename={"day": "on"}, metadata=["_source_table"])]
    key = described_key({"id": field("int32")}, {"id": 1})
    rows = written(
        DebeziumAssembly(transactions="none", rules=rules), debezium(json.dumps(value).encode(), key=key), KEYS
    )
    about = {"_source_table": "public.orders", "id": 1, "mail": None}
    assert rows == [(True, {**about, "on": "2024-01-31"}), (False, {**about, "on": "2024-02-01"})]


def test_a_value_that_did_not_change_comes_from_the_former_row() -> None:
    left_out = "__debezium_unavailable_value"
    deleted, moved = written(ALONE, debezium(update({**OLD, "big": "x"}, {**NEW, "big": left_out})))
    assert deleted == (True, {**OLD, "big": "x"})
    assert moved == (False, {**NEW, "__starrocks_txn_sink_unchanged": ["", "big"]})
    (kept,) = written(ALONE, debezium(update(OLD, {**OLD, "day": left_out})))
    assert kept[1]["__starrocks_txn_sink_unchanged"] == ["day"]


@pytest.mark.parametrize(
    "before", [None, {"id": 1, "day": None, "n": 1}, {**OLD, "day": "__debezium_unavailable_value"}]
)
def test_an_update_that_does_not_show_its_former_key_is_refused(before: Row | None) -> None:
    with pytest.raises(InputError, match=r"table orders does not say what day was before.*\(id, day\)") as refused:
        written(ALONE, debezium(update(OLD, {**OLD, "n": 3}), update(before, NEW)))
    assert "at topic=shop.public.orders partition=3 offset=6." in refused.value.message
    assert "ALTER TABLE public.orders REPLICA IDENTITY FULL" in refused.value.advice
    assert "2024" not in str(refused.value)


@pytest.mark.parametrize("key", [b'{"id":1,"day":"2024-02-01"}', b"1", None], ids=["whole", "bare", "none"])
def test_nothing_is_asked_where_the_messages_key_has_the_column_or_says_nothing(key: Any) -> None:
    """With the column in the message's key the connector writes a delete and an insert itself."""
    assert written(ALONE, debezium(update(None, NEW), key=key)) == [(False, NEW)]


def test_a_delete_with_nothing_but_filled_in_values_is_refused() -> None:
    def delete(before: Row, source: Any = ORDERS) -> Row:
        return change(source, None, None, None, before, op="d")

    filled = {"id": 1, "day": 0, "n": None, "note": "", "sum": "AA==", "at": "1970-01-01T00:00:00Z"}
    with pytest.raises(InputError, match="A delete of a row of table orders does not say what day was before"):
        written(ALONE, debezium(delete(filled)))
    whole = {**filled, "n": 7}
    assert written(ALONE, debezium(delete(whole))) == [(True, whole)]
    assert written(ALONE, debezium(delete(filled), key=b'{"id":1,"day":0}')) == [(True, filled)]
    of_mysql = delete(filled, mysql("orders", "binlog.000001", 4))
    mapped = DebeziumAssembly(transactions="none", tables={"shop.orders": "orders"})
    assert written(mapped, debezium(of_mysql)) == [(True, filled)]


def test_a_history_has_the_delete_and_the_row() -> None:
    rules = [TableRules(tables="orders", history="log", only_history=False)]
    rows = written(DebeziumAssembly(transactions="none", rules=rules), debezium(update(OLD, NEW)))
    logged = [(row["_op"], row["day"]) for _, row in rows if "_op" in row]
    assert logged == [("d", OLD["day"]), ("u", NEW["day"])]
    assert [row for _, row in rows if "_op" not in row] == [OLD, NEW]


@pytest.mark.parametrize("whole", [True, False])
def test_updates_of_maxwell_and_canal_have_the_delete_in_front(whole: bool) -> None:
    assembly = MaxwellAssembly(transactions="whole" if whole else "none")
    messages = maxwell(row("update", NEW, old={"day": OLD["day"], "n": 1}, table="orders", commit=True))
    assert written(assembly, messages) == [(True, OLD), (False, NEW)]
    texts: list[Any] = [{name: str(value) for name, value in row.items()} for row in (OLD, NEW)]
    old: list[Any] = [{"day": OLD["day"], "n": "1"}]
    values = canal(flat("UPDATE", [texts[1]], old))
    assert written(CanalAssembly(), values) == [(True, texts[0]), (False, texts[1])]
    assert written(CanalAssembly(), values, {}) == [(False, texts[1])]


def test_the_tables_own_key_counts_in_the_names_of_the_source() -> None:
    columns = tuple(
        TargetColumn(name, parse_type("INT"), nullable=False, key=name != "n")
        for name in ("_source_table", "number", "on", "n")
    )
    options = SinkOptions(
        load_url="fe",
        database="shop",
        delivery="at-least-once",
        tables={name: TableOptions(keys=["a"]) for name in ("t", "new", "log", "kept", "dup")}
        | {"free": TableOptions()},
    )
    rules = RuleSet(
        (
            TableRules(tables="t", rename={"id": "number"}, metadata=["_source_table"]),
            TableRules(tables="log", history="log_log", only_history=True),
            TableRules(tables="kept", deletes="ignore"),
        )
    )
    tables = Tables({"t": PRIMARY_KEYS, "dup": "DUP_KEYS"}, required={"t": columns})
    assert keys_that_move(options, rules, tables) == {"t": ("id", "on"), "new": ("a",)}
