"""Debezium's change events and markers as events, without Spark: places, positions, tables, placeholders."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.assembler.verified import intake
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.rows.columns import UNCHANGED
from starrocks_txn_sink.sources.formats.debezium import DebeziumChanges, DebeziumMarkers
from starrocks_txn_sink.sources.formats.debezium_messages import DebeziumMessages
from starrocks_txn_sink.sources.formats.placeholders import spellings_of_unavailable
from starrocks_txn_sink.sources.formats.tables import TableMapping
from tests.support.debezium_feed import change, db2, marker, mongodb, mysql, oracle, postgres, sql_server, with_schema

LAST = TableMapping(r"(?:[^.]+\.)?([^.]+)")
ORDERS = postgres("orders", 90)


pytestmark = pytest.mark.usefixtures("loop")


def messages(*values: Any, topic: str = "shop.public.orders", keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    """Messages from offset 5 on; a value that is text or None travels as it is."""
    count = len(values)
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array([text if text is None else text.encode() for text in texts], pa.binary()),
            "key": pa.array(keys or [None] * count, pa.binary()),
            "topic": pa.array([topic] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(5, 5 + count), pa.int64()),
            "timestamp": pa.array(range(70, 70 + count), pa.int64()),
        }
    )


def rows(*values: Any, keys: list[bytes | None] | None = None, **options: Any) -> list[dict[str, Any]]:
    parsed = DebeziumChanges(**({"tables": LAST} | options)).parse(messages(*values, keys=keys))
    assert parsed.events.schema == DebeziumChanges(tables=LAST).events
    parsed.events.validate(full=True)
    return parsed.events.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_changes_become_rows_with_and_without_schema(wrap: Any) -> None:
    first, deleted, snapshot = rows(
        wrap(change(ORDERS, "555:90", 2, {"id": 1, "amount": "1.10"})),
        None,
        wrap(change(postgres("items", 91), "555:91", 3, None, {"id": 7}, "d")),
        wrap(change(ORDERS, None, None, {"id": 0}, op="r")),
    )
    assert first == {
        "source_partition": "shop", "txn_id": "555", "total_order": 2, "collection": "public.orders", "position": 90,
        "database": None, "table": "orders", "op": "c", "row": '{"id": 1, "amount": "1.10"}', "timestamp": 70,
    }  # fmt: skip
    assert (deleted["table"], deleted["op"], deleted["row"], deleted["timestamp"]) == ("items", "d", '{"id": 7}', 72)
    assert (snapshot["txn_id"], snapshot["total_order"], snapshot["op"]) == (None, None, "r")


def test_the_binlog_gives_positions() -> None:
    files = ("mysql-bin.000003", "mysql-bin.000004", "odd", "mysql-bin.4294967296")
    rows_found = rows(*(change(mysql("orders", file, 154), "24bff:23", 1, {"id": 1}) for file in files))
    assert [row["position"] for row in rows_found] == [3 * 2**32 + 154, 4 * 2**32 + 154, None, None]
    assert {row["txn_id"] for row in rows_found} == {"24bff:23"}
    assert {row["collection"] for row in rows_found} == {"shop.orders"}


def test_other_connectors_are_read_change_by_change() -> None:
    """Their positions have more bits than a position here, or several transactions share one: the offset has to do."""
    sources = [
        sql_server("orders", "00000027:00000ac0:0002"),
        oracle("orders", "2122185"),
        db2("orders", "00000000:000"),
    ]
    values = [change(source, "6.28.807", 1, {"id": number}) for number, source in enumerate(sources)]
    assert [row["position"] for row in rows(*values)] == [None, None, None]
    placed = DebeziumChanges(tables=LAST, placed=True)
    batch = messages(*values)
    batch = batch.append_column("source_partition", pa.array(["0"] * 3)).append_column("position", batch["offset"])
    read = placed.parse(batch).events.to_pylist()
    assert [(row["table"], row["position"]) for row in read] == [("orders", 5), ("orders", 6), ("orders", 7)]


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        change(ORDERS, "5:9", 1, {}, op="x"),
        change(ORDERS, "5:9", 1, None),
        {"op": "c", "after": {"id": 1}},
        change(ORDERS | {"lsn": "secret"}, "5:9", 1, {}),
    ],
)
def test_malformed_messages_have_a_place_or_are_counted(bad: Any) -> None:
    good = change(ORDERS, "5:9", 1, {"id": 1})
    with pytest.raises(
        InputError, match=r"not a Debezium change event.* at topic=\S+ partition=0 offset=7\."
    ) as failure:
        rows(good, None, bad, good)
    assert "secret" not in str(failure.value)
    dropping = DebeziumChanges(tables=LAST, on_malformed="drop")
    parsed = dropping.parse(messages(good, None, bad, good, topic="t"), ("offset",))
    assert (parsed.events["offset"].to_pylist(), parsed.malformed) == ([5, 8], 1)
    assert parsed.events["timestamp"].to_pylist() == [70, 73]


SCHEMA_CHANGE = {"source": {"name": "shop"}, "ts_ms": 1, "databaseName": "shop", "ddl": "ALTER …", "tableChanges": []}
LOGICAL = {"op": "m", "ts_ms": 1, "source": postgres("", 91), "message": {"prefix": "x", "content": "Zm9v"}}
SIGNAL = {"type": "execute-snapshot", "data": {"data-collections": ["public.orders"], "type": "INCREMENTAL"}}
NOTIFICATION = {
    "id": "5",
    "aggregate_type": "Initial Snapshot",
    "type": "STARTED",
    "additional_data": {},
    "timestamp": 1,
}
HEARTBEAT = {"ts_ms": 1, "ts_us": 1000, "ts_ns": 1000000}


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
@pytest.mark.parametrize("message", [SCHEMA_CHANGE, LOGICAL, HEARTBEAT, {"ts_ms": 1}, SIGNAL, NOTIFICATION])
@pytest.mark.parametrize("on_malformed", ["fail", "drop"])
def test_messages_without_rows_are_passed_over(on_malformed: Any, message: Any, wrap: Any) -> None:
    good = change(ORDERS, "5:9", 1, {"id": 1})
    parsed = DebeziumChanges(tables=LAST, on_malformed=on_malformed).parse(
        messages(wrap(message), wrap(good), wrap(message)), ("offset",)
    )
    assert (parsed.events["offset"].to_pylist(), parsed.malformed) == ([6], 0)
    ends = messages(wrap(message), marker("END", "5:9", {}), topic="shop.transaction")
    markers = DebeziumMarkers(on_malformed=on_malformed).parse(ends)
    assert (markers.events["status"].to_pylist(), markers.malformed) == (["END"], 0)


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
@pytest.mark.parametrize(
    ("odd", "description", "remedy"),
    [
        (change(ORDERS, "5:9", 1, None, op="d"), "a delete that has no row", "REPLICA IDENTITY FULL.*deleted_row"),
        ({"id": 1, "__deleted": "secret"}, "without Debezium's envelope", "ExtractNewRecordState"),
        ({}, "without Debezium's envelope", "ExtractNewRecordState"),
        (marker("END", "5:9", {}), "a transaction marker", "parse_debezium_transactions.*transaction_topic"),
        ({"type": "execute-snapshot", "data": "secret"}, "without Debezium's envelope", "ExtractNewRecordState"),
        ({"type": "secret", "data": {}}, "without Debezium's envelope", "ExtractNewRecordState"),
        (NOTIFICATION | {"note": "secret"}, "without Debezium's envelope", "ExtractNewRecordState"),
        ({"ddl": "secret"}, "without Debezium's envelope", "other producers"),
        (
            change(mongodb("users"), None, None, '{"_id": "secret"}'),
            "names no table",
            "MongoDB's connector is not read",
        ),
        (change(mongodb("users"), "1:2", 1, None, op="d"), "names no table", ""),
    ],
)
def test_an_odd_message_is_named_with_its_place_and_its_remedy(
    odd: Any, description: str, remedy: str, wrap: Any
) -> None:
    good = change(ORDERS, "5:9", 1, {"id": 1})
    place = r"topic=shop\.public\.orders partition=0 offset=7\."
    expected = rf"not a Debezium change event but .*{description}.*{place} .*{remedy}"
    with pytest.raises(InputError, match=expected) as failure:
        rows(good, HEARTBEAT, wrap(odd), wrap(odd))
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("value", "description", "remedy"),
    [
        ("\0\0\0\0\1secret", "binary", r"registry=.*\[assembly\.registry\]"),
        ("Struct{after=Struct{id=1,name=secret}}", "StringConverter", "JsonConverter"),
        (json.dumps(json.dumps(change(ORDERS, "5:9", 1, {"id": 1}))), "one JSON text", "none behind it"),
        (json.dumps({"id": "1", "source": "/debezium", "specversion": "1.0", "data": {}}), "a CloudEvent", "JsonConv"),
    ],
)
def test_another_converter_is_named(value: str, description: str, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"but .*{description}.* offset=5\. .*{remedy}") as failure:
        rows(value)
    assert "secret" not in str(failure.value)


def test_a_change_among_the_markers_is_named() -> None:
    mixed = messages(marker("END", "5:9", {}), change(ORDERS, "5:9", 1, {"id": 1}), topic="shop.transaction")
    with pytest.raises(InputError, match=r"but a change event at .*offset=6\. Read its topic with parse_debez"):
        DebeziumMarkers().parse(mixed)


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_a_truncate_that_is_ignored_still_counts_for_its_transaction(wrap: Any) -> None:
    values = [wrap(change(ORDERS, "5:9", 1, {"id": 1})), wrap(change(ORDERS, "5:10", 2, None, op="t"))]
    rule = TableMapping({"public.orders": "o"}, "dead_letter", "letters")
    for tables, name in ((LAST, "orders"), (rule, "o")):
        parsed = DebeziumChanges(tables=tables, on_truncate="ignore").parse(messages(*values))
        events = parsed.events.to_pylist()
        assert [(row["total_order"], row["op"], row["table"]) for row in events] == [(1, "c", name), (2, "t", None)]
        assert (parsed.malformed, parsed.truncates) == (0, {name: 1})


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
@pytest.mark.parametrize("on_malformed", ["fail", "drop"])
def test_a_truncate_is_named_with_its_place_and_its_remedy(on_malformed: Any, wrap: Any) -> None:
    """It is no malformed message, so that nobody drops it unseen."""
    values = change(ORDERS, "5:9", 1, {"id": 1}), wrap(change(ORDERS, "5:9", 2, None, op="t"))
    expected = (
        r"TRUNCATE.* at table=orders topic=shop\.public\.orders partition=0 offset=6\. .*on_truncate.*skipped\.op"
    )
    with pytest.raises(InputError, match=expected):
        rows(*values, on_malformed=on_malformed)


def test_a_truncate_of_a_table_that_is_not_written_changes_nothing() -> None:
    values = change(ORDERS, "5:9", 1, {"id": 1}), change(postgres("audit", 91), "5:9", 2, None, op="t")
    for rule in (
        TableMapping({"public.orders": "o"}, "skip"),
        TableMapping({"public.orders": "o"}, "dead_letter", "letters"),
        TableMapping(((r"public\.audit", ""), (r"public\.(\w+)", "o"))),
    ):
        parsed = DebeziumChanges(tables=rule).parse(messages(*values))
        assert [(row["total_order"], row["table"]) for row in parsed.events.to_pylist()] == [(1, "o"), (2, None)]
        assert parsed.truncates == {}


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_a_logical_message_counts_in_its_transaction(wrap: Any) -> None:
    logical = LOGICAL | {"transaction": {"id": "5:9", "total_order": 2, "data_collection_order": 1}}
    rule = TableMapping({"public.orders": "o"}, "dead_letter", "letters")
    for tables in (LAST, rule):
        changes = DebeziumChanges(tables=tables)
        parsed = changes.parse(messages(wrap(change(ORDERS, "5:9", 1, {"id": 1})), wrap(logical)))
        row = parsed.events.to_pylist()[1]
        assert (row["txn_id"], row["total_order"], row["collection"]) == ("5", 2, "LOGICAL_DECODING_MESSAGE")
        assert (row["table"], row["position"], parsed.malformed) == (None, 91, 0)


def test_a_logical_message_alone_needs_no_table() -> None:
    logical = LOGICAL | {"transaction": {"id": "5:9", "total_order": 1, "data_collection_order": 1}}
    (row,) = rows(logical)
    assert (row["collection"], row["table"]) == ("LOGICAL_DECODING_MESSAGE", None)


def test_a_deletes_row_may_be_the_messages_key() -> None:
    delete, insert = change(ORDERS, "5:9", 1, None, {"id": 1, "note": None}, "d"), change(ORDERS, "5:9", 2, {"id": 3})
    keys = [b'{"id":1}', None, b"no JSON", json.dumps(with_schema({"id": 2})).encode()]
    rows_found = rows(delete, None, insert, delete, keys=keys, key="key")
    assert [row["row"] for row in rows_found] == ['{"id":1}', '{"id": 3}', '{"id": 2}']
    for key in (None, b'{"id":1}{"id":2}'):
        with pytest.raises(InputError, match="offset=6"):
            rows(insert, delete, keys=[None, key], key="key")


def test_unknown_tables_fail_are_left_out_or_become_dead_letters() -> None:
    values = change(ORDERS, "5:9", 1, {"id": 1}), change(postgres("audit", 91), "5:9", 4, None, {"id": 1}, "d")
    with pytest.raises(InputError, match=r"does not know public\.audit\. .*on_unknown_table"):
        rows(*values, tables=TableMapping({"public.orders": "o"}))
    skipped = rows(*values, tables=TableMapping({"public.orders": "o"}, "skip"))
    assert [(row["table"], row["op"]) for row in skipped] == [("o", "c"), (None, "d")]
    known_row, letter = rows(*values, tables=TableMapping({"public.orders": "o"}, "dead_letter", "letters"))
    assert (known_row["table"], known_row["row"]) == ("o", '{"id": 1}')
    assert (letter["table"], letter["op"], json.loads(letter["row"])) == (
        "letters",
        "c",
        {
            "txn_id": "5", "total_order": 4, "collection": "public.audit", "position": 91, "reason": "unknown table",
            "op": "d", "content": '{"id": 1}',
        },
    )  # fmt: skip


def test_a_rule_must_be_a_regular_expression_with_one_group() -> None:
    wrong: Any
    for wrong in ("(", "abc", "([a-z&&[^b]])", {}):
        with pytest.raises(OptionError):
            TableMapping(wrong)


def test_a_placeholder_is_refused_where_it_would_be_written() -> None:
    spellings = spellings_of_unavailable("gone for now")
    update = change(ORDERS, "5:9", 1, {"id": 1, "note": "gone for now", "near": "gone for now!"}, op="u")
    deleted = change(ORDERS, "5:9", 1, None, {"id": 1, "note": "gone for now"}, "d")
    with pytest.raises(InputError, match=r"table=orders columns=note position=90 topic=\S+ partition=0 offset=6\."):
        rows(deleted, update, unavailable=spellings)
    assert len(rows(deleted, unavailable=spellings)) == 1
    assert len(rows(update)) == 1
    skipping = TableMapping({"public.other": "o"}, "skip")
    assert len(rows(update, tables=skipping, unavailable=spellings)) == 1
    # No placeholder begins in one row and ends in the next.
    halves = [change(ORDERS, "5:9", 1, text) for text in ('"gone for ', 'now"')]
    assert len(rows(*halves, unavailable=spellings)) == 2


DAY = {"type": "int32", "name": "io.debezium.time.Date", "field": "day"}
PRICE = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2"},
    "field": "price",
}
NOTE = {"type": "string", "field": "note"}


def described(value: dict[str, Any], *fields: dict[str, Any]) -> dict[str, Any]:
    """A change event with the schema of its rows."""
    row = {"type": "struct", "fields": [{"type": "int64", "field": "id"}, *fields]}
    envelope = [row | {"field": "before"}, row | {"field": "after"}, {"type": "string", "field": "op"}]
    return {"schema": {"type": "struct", "fields": envelope}, "payload": value}


def test_values_are_written_as_their_schemas_say() -> None:
    first, second, deleted, as_it_came, late = rows(
        described(change(ORDERS, "5:9", 1, {"id": 1, "day": 1, "price": "AQ=="}), DAY, PRICE),
        described(change(ORDERS, "5:9", 2, {"id": 2, "day": 1, "note": "x"}), DAY, NOTE),
        described(change(ORDERS, "5:9", 3, None, {"id": 1, "day": 2, "price": None}, "d"), DAY, PRICE),
        change(ORDERS, "5:9", 4, {"id": 4, "day": 1}),
        dict(reversed(described(change(ORDERS, "5:9", 5, {"id": 5, "day": 1}), DAY).items())),
    )
    assert json.loads(first["row"]) == {"id": 1, "day": "1970-01-02", "price": "0.01"}
    assert json.loads(second["row"]) == {"id": 2, "day": "1970-01-02", "note": "x"}
    assert json.loads(deleted["row"]) == {"id": 1, "day": "1970-01-03", "price": None}
    assert json.loads(as_it_came["row"]) == {"id": 4, "day": 1}
    assert json.loads(late["row"]) == {"id": 5, "day": "1970-01-02"}


def test_a_deletes_key_is_written_as_its_schema_says() -> None:
    delete = change(ORDERS, "5:9", 1, None, {"id": 1}, "d")
    key = {"schema": {"type": "struct", "fields": [DAY]}, "payload": {"day": 1}}
    keys: list[bytes | None] = [json.dumps(key).encode(), b'{"day":1}', json.dumps(key).encode()]
    rows_found = rows(delete, delete, described(delete, DAY), keys=keys, key="key")
    assert [json.loads(row["row"]) for row in rows_found] == [{"day": "1970-01-02"}, {"day": 1}, {"day": "1970-01-02"}]


UNSIGNED = {
    "type": "int64",
    "parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED ZEROFILL"},
    "field": "n",
}


def test_an_unsigned_number_has_its_value_in_rows_and_in_keys() -> None:
    """The connector writes it as a signed one by default, and its keys have no types of the source."""
    largest, delete = change(ORDERS, "5:9", 1, {"id": 1, "n": -1}), change(ORDERS, "5:9", 2, None, {"n": -2}, "d")
    small, plain = change(ORDERS, "5:9", 3, {"id": 1, "n": 7}), change(ORDERS, "5:9", 4, None, {"id": -1}, "d")
    values = [described(value, UNSIGNED) for value in (largest, delete, small, plain)]
    texts = [row["row"] for row in rows(*values)]
    assert [json.loads(text) for text in texts] == [
        {"id": 1, "n": str(2**64 - 1)}, {"n": str(2**64 - 2)}, {"id": 1, "n": 7}, {"id": -1}
    ]  # fmt: skip
    in_key = {"type": "int64", "field": "n"}
    key = {"schema": {"type": "struct", "fields": [in_key]}, "payload": {"n": -2}}
    keys: list[bytes | None] = [json.dumps(key).encode()] * len(values)
    deletes = [row["row"] for row in rows(*values, keys=keys, key="key") if row["op"] == "d"]
    assert [json.loads(text) for text in deletes] == [{"n": str(2**64 - 2)}] * 2


@pytest.mark.parametrize("bad", [{"id": 7, "day": "soon"}, {"id": 7, "day": 1.5}])
def test_a_value_that_does_not_fit_its_schema_is_malformed(bad: dict[str, Any]) -> None:
    good = described(change(ORDERS, "5:9", 1, {"id": 1, "day": 1}), DAY)
    with pytest.raises(InputError, match="offset=6"):
        rows(good, described(change(ORDERS, "5:9", 1, bad), DAY), good)
    no_schema = {"schema": [], "payload": good["payload"]}
    with pytest.raises(InputError, match="offset=6"):
        rows(good, no_schema)
    assert DebeziumChanges(tables=LAST, on_malformed="drop").parse(messages(good, no_schema)).malformed == 1


def test_a_placeholder_is_found_before_values_are_rewritten() -> None:
    spellings = spellings_of_unavailable("gone")
    update = change(ORDERS, "5:9", 1, {"id": 1, "day": 1, "price": "Z29uZQ=="}, op="u")
    with pytest.raises(InputError, match="columns=price"):
        rows(described(update, DAY, PRICE), unavailable=spellings)


def test_a_row_may_name_the_columns_of_placeholders_and_its_other_values_are_rewritten() -> None:
    spellings = spellings_of_unavailable("gone")
    update = change(ORDERS, "5:9", 1, {"id": 1, "price": "Z29uZQ==", "day": 1, "note": ["gone"]}, op="u")
    plain = change(ORDERS, "5:9", 2, {"id": 2, "price": "AQ==", "day": 1, "note": "going"}, op="u")
    fields = DAY, PRICE, NOTE
    events = [described(update, *fields), described(plain, *fields)]
    first, second = rows(*events, unavailable=spellings, keeps_unchanged=True)
    assert json.loads(first["row"]) == {"id": 1, "day": "1970-01-02", UNCHANGED: ["price", "note"]}
    assert json.loads(second["row"]) == {"id": 2, "price": "0.01", "day": "1970-01-02", "note": "going"}


@pytest.mark.parametrize(
    ("value", "unchanged"),
    [
        (["gone"], True),
        (["Z29uZQ=="], True),
        ({"gone": "gone"}, True),
        ('{"gone":"gone"}', True),
        ([103, 111, 110, 101], True),
        (["gone", "x"], False),
        ({"text": "gone"}, False),
    ],
)
def test_a_placeholder_is_a_columns_whole_value(value: Any, unchanged: bool) -> None:
    update = change(ORDERS, "5:9", 1, {"id": 1, "note": "gone", "value": value}, op="u")
    settings: dict[str, Any] = {"unavailable": spellings_of_unavailable("gone"), "keeps_unchanged": True}
    if unchanged:
        (row,) = rows(update, **settings)
        assert json.loads(row["row"]) == {"id": 1, UNCHANGED: ["note", "value"]}
    else:
        with pytest.raises(InputError, match="columns=note"):
            rows(update, **settings)


def test_a_document_with_the_placeholders_text_is_a_value() -> None:
    document = json.dumps({"text": "gone"})
    update = change(ORDERS, "5:9", 1, {"id": 1, "note": "gone", "doc": document}, op="u")
    (row,) = rows(update, unavailable=spellings_of_unavailable("gone"), keeps_unchanged=True)
    assert json.loads(row["row"]) == {"id": 1, "doc": document, UNCHANGED: ["note"]}


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_markers_have_the_stable_part_of_the_id_and_the_position(wrap: Any) -> None:
    batch = messages(
        wrap(marker("BEGIN", "571:53195829")),
        None,
        wrap(marker("END", "571:53195832", {"public.orders": 2})),
        wrap(marker("END", "file=mysql-bin.000003,pos=154", {"shop.orders": 1})),
        wrap(marker("END", "24bff081-71a4:23", {})),
        wrap(marker("END", "571:92233720368547758080", {})),
        topic="shop.transaction",
    )
    parsed = DebeziumMarkers().parse(batch)
    assert parsed.events.schema == DebeziumMarkers().events
    markers = parsed.events.to_pylist()
    assert [row["txn_id"] for row in markers] == [
        "571",
        "571",
        "file=mysql-bin.000003,pos=154",
        "24bff081-71a4:23",
        "571",
    ]
    assert [row["position"] for row in markers] == [53195829, 53195832, 3 * 2**32 + 154, None, None]
    assert [row["sequence"] for row in markers] == [5, 7, 8, 9, 10]
    assert {row["source_partition"] for row in markers} == {"shop"}
    assert markers[1]["data_collections"] == [{"data_collection": "public.orders", "event_count": 2}]
    assert (markers[0]["status"], markers[0]["event_count"], markers[1]["event_count"]) == ("BEGIN", None, 2)
    assert {row["source_partition"] for row in DebeziumMarkers(source="x").parse(batch).events.to_pylist()} == {"x"}


def test_what_is_no_marker_has_a_place_or_is_counted() -> None:
    batch = messages(marker("END", "5:9", {}), {"status": "MAYBE", "id": "5:9"}, topic="shop.transaction")
    with pytest.raises(InputError, match=r"not a Debezium transaction marker.*offset=6"):
        DebeziumMarkers().parse(batch)
    assert DebeziumMarkers(on_malformed="drop").parse(batch).malformed == 1
    second = batch.set_column(3, "partition", pa.array([0, 1], pa.int32())).slice(0, 1)
    assert DebeziumMarkers().parse(second).events.num_rows == 1
    with pytest.raises(InputError, match="more than one partition"):
        DebeziumMarkers(on_malformed="drop").parse(batch.set_column(3, "partition", pa.array([1, 0], pa.int32())))


def test_a_batch_without_events_is_empty() -> None:
    for parsed in (DebeziumChanges(tables=LAST).parse(messages(None)), DebeziumMarkers().parse(messages(None))):
        assert (parsed.events.num_rows, parsed.malformed) == (0, 0)
    assert DebeziumChanges(tables=LAST).events.names == ["source_partition", *intake.ROW_COLUMNS]


MARKERS = "shop.transaction"


def together(*parts: pa.RecordBatch) -> pa.RecordBatch:
    """One batch, as a lane gets it from several topics."""
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_the_messages_of_all_topics_are_changes_and_markers(wrap: Any) -> None:
    parser = DebeziumMessages(DebeziumChanges(tables=LAST), DebeziumMarkers())
    batch = together(
        messages(wrap(marker("BEGIN", "555:80")), topic=MARKERS),
        messages(wrap(change(ORDERS, "555:90", 1, {"id": 1})), None),
        messages(wrap(marker("END", "555:95", {"public.orders": 1})), None, topic=MARKERS),
    )
    parsed = parser.parse(batch, ("offset",))
    parsed.events.validate(full=True)
    assert parsed.events.schema.names == [*parser.events.names, "offset"]
    events = parsed.events.to_pylist()
    assert [(row["status"], row["txn_id"], row["position"], row["sequence"], row["offset"]) for row in events] == [
        (None, "555", 90, None, 5),
        ("BEGIN", "555", 80, 5, 5),
        ("END", "555", 95, 5, 5),
    ]
    assert [row["row"] for row in events] == ['{"id": 1}', None, None]
    assert parser.parse(batch.slice(1, 2)).events.num_rows == 1
    assert parser.parse(batch.slice(0, 0)).events.schema == parser.events


@pytest.mark.parametrize("topics", ["ccmm", "mcmc", "cmcmcmcm"])
def test_changes_and_markers_may_come_in_any_turns(topics: str) -> None:
    """Few turns are read where they stand, of many the messages are brought together."""
    parser = DebeziumMessages(DebeziumChanges(tables=LAST), DebeziumMarkers())
    of_topic = {
        "c": lambda number: messages(change(ORDERS, f"{number}:90", 1, {"id": number})),
        "m": lambda number: messages(marker("BEGIN", f"{number}:80"), topic=MARKERS),
    }
    parsed = parser.parse(together(*(of_topic[topic](number) for number, topic in enumerate(topics))))
    in_order = [number for kind in "cm" for number, topic in enumerate(topics) if topic == kind]
    assert parsed.events["txn_id"].to_pylist() == [str(number) for number in in_order]
    assert parsed.events["status"].null_count == topics.count("c")


def test_a_captured_table_may_have_the_transaction_topics_name() -> None:
    """And the transaction topic may have another one."""
    namesake = change(postgres("transaction", 91), "555:91", 2, {"id": 7})
    batch = together(
        messages(namesake, topic="shop.public.transaction"), messages(marker("END", "5:9", {}), topic=MARKERS)
    )
    parser = DebeziumMessages(DebeziumChanges(tables=LAST), DebeziumMarkers())
    assert parser.parse(batch).events["table"].to_pylist() == ["transaction", None]
    parser_of_ends = DebeziumMessages(DebeziumChanges(tables=LAST), DebeziumMarkers(), "ends")
    renamed = together(messages(change(ORDERS, "5:8", 1, {})), messages(marker("END", "5:9", {}), topic="shop.ends"))
    assert parser_of_ends.parse(renamed).events["status"].to_pylist() == [None, "END"]


def test_what_is_no_message_of_its_topic_has_a_place_or_is_counted() -> None:
    good = messages(change(ORDERS, "5:9", 1, {"id": 1}))
    for bad, description in (
        (messages("{", topic=MARKERS), "transaction marker"),
        (messages({"status": "MAYBE", "id": "5:9"}, topic=MARKERS), "transaction marker"),
        (messages(marker("END", "5:9", {})), "change event"),  # the transaction topic has another name
    ):
        topic = bad.column("topic")[0].as_py()
        batch = together(good, bad)
        with pytest.raises(InputError, match=rf"not a Debezium {description}.*topic={topic} partition=0 offset=5"):
            DebeziumMessages(DebeziumChanges(tables=LAST), DebeziumMarkers()).parse(batch)
        dropping = DebeziumMessages(
            DebeziumChanges(tables=LAST, on_malformed="drop"), DebeziumMarkers(on_malformed="drop")
        ).parse(batch)
        assert (dropping.events.num_rows, dropping.malformed) == (1, 1)


def test_the_schemas_of_a_batch_are_known_by_table() -> None:
    """Also of messages whose rows go to no table; a value without a schema has none."""

    def value(table: str, kind: str, op: str = "c") -> Any:
        wrapped = with_schema(change(postgres(table, 90), "5:90", 1, {"id": 1}, op=op))
        row = {"type": "struct", "fields": [{"field": "id", "type": kind}]}
        return {**wrapped, "schema": {"type": "struct", "fields": [{"field": "after", **row}]}}

    values = [value("a", "int32"), value("b", "int32"), value("a", "int64"), value("a", "int32"), value("c", "int8")]
    batch = messages(*values, change(postgres("d", 90), "5:90", 2, {"id": 1}), None)
    changes = DebeziumChanges(tables=TableMapping(r"public\.([abd])", "skip"))
    for parsed in (changes.parse(batch), DebeziumMessages(changes, DebeziumMarkers()).parse(batch)):
        kinds_by_table = {
            table: [json.loads(schema)["fields"][0]["fields"][0]["type"] for schema in schemas]
            for table, schemas in parsed.schemas.items()
        }
        assert {table: set(kinds) for table, kinds in kinds_by_table.items()} == {
            "a": {"int32", "int64"},
            "b": {"int32"},
        }
