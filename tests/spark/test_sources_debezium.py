"""Debezium's JSON as rows, and verified transactions inside Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from starrocks_txn_sink import assemble_debezium
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources import parse_debezium, parse_debezium_transactions
from tests.support.debezium_feed import KAFKA, Message, change, marker, message, mysql, postgres, with_schema
from tests.support.folder_stream import FolderStream

pytestmark = pytest.mark.spark

ORDERS, ITEMS = postgres("orders", 90), postgres("order_items", 91)


def frame(spark: SparkSession, *messages: Message) -> DataFrame:
    return spark.createDataFrame(list(messages), KAFKA)


def rows(spark: SparkSession, *values: Any, **options: Any) -> list[Row]:
    messages = [value if isinstance(value, tuple) else message(n, value) for n, value in enumerate(values)]
    return parse_debezium(frame(spark, *messages), **options).collect()


def markers(spark: SparkSession, *values: Any, **options: Any) -> list[Row]:
    messages = [message(n, value, "shop.transaction") for n, value in enumerate(values)]
    return parse_debezium_transactions(frame(spark, *messages), **options).collect()


# --- parsing ---


@pytest.mark.parametrize("wrap", [lambda value: value, with_schema])
def test_changes_become_rows_with_and_without_schema(spark: SparkSession, wrap: Callable[[Any], Any]) -> None:
    after = {"id": 1, "note": "ü", "amount": "12345678901234567890.125", "big": 9007199254740993}
    inserted = change(ORDERS, "555:90", 2, after)
    deleted = change(ITEMS, "555:91", 3, None, {"id": 7}, "d")
    first, second = rows(spark, wrap(inserted), message(1, None), wrap(deleted))
    assert first[:7] == ("shop", "555", 2, "public.orders", 90, None, "orders")
    assert (first.op, json.loads(first.row)) == ("c", after)
    assert (second.table, second.op, json.loads(second.row)) == ("order_items", "d", {"id": 7})


def test_a_row_keeps_its_own_spelling(spark: SparkSession) -> None:
    text = '{"amount":12345678901234567890.125,"rate":1.10,"tiny":1E-400,"half":"\\ud800"}'
    value = json.dumps(change(ORDERS, "5:9", 1, {})).replace("{}", text)
    assert [row.row for row in rows(spark, value)] == [text]
    delete = json.dumps(change(ORDERS, "5:9", 1, None, None, "d"))
    (row,) = parse_debezium(frame(spark, ("t", 0, 1, text.encode(), delete.encode())), deleted_row="key").collect()
    assert row.row == text


PLACEHOLDER = "__debezium_unavailable_value"
ENCODED = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="


@pytest.mark.parametrize("wrap", [lambda value: value, pytest.param(with_schema, marks=pytest.mark.deep)])
@pytest.mark.parametrize(
    "value",
    [
        PLACEHOLDER,
        ENCODED,
        PLACEHOLDER.encode().hex(),
        [PLACEHOLDER],
        {PLACEHOLDER: PLACEHOLDER},
        json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
        [PLACEHOLDER.encode()[at] for at in range(len(PLACEHOLDER))],
    ],
)
def test_a_placeholder_never_overwrites_a_value(spark: SparkSession, value: Any, wrap: Callable[[Any], Any]) -> None:
    text = json.dumps(
        wrap(change(ORDERS, "555:90", 1, {"id": 1, "note": value, "n": 2}, op="u")), separators=(",", ":")
    )
    with pytest.raises(PySparkException) as failure:
        rows(spark, text)
    message = str(failure.value)
    assert "table=orders columns=note position=90 topic=shop.public.orders partition=0 offset=0." in message
    assert "ALTER TABLE public.orders REPLICA IDENTITY FULL" in message


def test_a_placeholder_matters_only_where_it_would_be_written(spark: SparkSession) -> None:
    placeholder = {"id": 1, "note": PLACEHOLDER}
    near = {"id": 1, "note": f'the text "{PLACEHOLDER}" of a user', "more": f"{PLACEHOLDER}!"}
    parsed_rows = rows(
        spark,
        change(ORDERS, "5:9", 1, near, placeholder, "u"),
        change(ORDERS, "5:9", 2, None, placeholder, "d"),
        change(ITEMS, "5:9", 3, placeholder, op="u"),
        tables={"public.orders": "orders"},
        on_unknown_table="skip",
    )
    assert [(row.table, row.op) for row in parsed_rows] == [("orders", "u"), ("orders", "d"), (None, "u")]
    changed = change(ORDERS, "5:9", 1, placeholder, op="u")
    (row,) = rows(spark, changed, unavailable_value=None)
    assert json.loads(row.row) == placeholder
    (row,) = rows(spark, changed, unavailable_value="other")
    for same in ("gone", "hex:676f6e65"):
        with pytest.raises(PySparkException, match="columns=a position"):
            rows(spark, change(ORDERS, "5:9", 1, {"id": 1, "a": "gone"}, op="u"), unavailable_value=same)
    with pytest.raises(OptionError, match="is no placeholder"):
        rows(spark, changed, unavailable_value="hex:xy")


def test_a_delete_with_a_malformed_key_is_malformed(spark: SparkSession) -> None:
    delete = json.dumps(change(ORDERS, "5:9", 1, None, None, "d")).encode()
    messages = frame(spark, ("t", 0, 1, b'{"id":1}{"id":2}', delete))
    with pytest.raises(PySparkException, match=r"not a Debezium change event.*offset=1"):
        parse_debezium(messages, deleted_row="key").collect()


def test_a_snapshots_row_has_no_transaction(spark: SparkSession) -> None:
    (row,) = rows(spark, change(ORDERS, None, None, {"id": 1}, op="r"))
    assert (row.txn_id, row.total_order, row.op, row.position) == (None, None, "r", 90)


def test_a_deletes_row_may_be_the_messages_key(spark: SparkSession) -> None:
    delete = change(ORDERS, "5:9", 1, None, {"id": 1, "note": None}, "d")
    keys = ({"id": 1}, with_schema({"id": 1}))
    parsed_rows = rows(spark, *(message(n, delete, key=key) for n, key in enumerate(keys)), deleted_row="key")
    assert [json.loads(row.row) for row in parsed_rows] == [{"id": 1}, {"id": 1}]


def test_mysql_places_rows_by_binlog_position(spark: SparkSession) -> None:
    first, second = rows(
        spark,
        change(mysql("orders", "mysql-bin.000003", 154), "file=mysql-bin.000003,pos=100", 1, {"id": 1}),
        change(mysql("orders", "mysql-bin.000004", 4), "24bff:23", 1, {"id": 1}),
    )
    assert (first.collection, first.txn_id) == ("shop.orders", "file=mysql-bin.000003,pos=100")
    assert (first.position, second.position) == (3 * 2**32 + 154, 4 * 2**32 + 4)
    assert second.txn_id == "24bff:23"


def test_markers_have_the_stable_part_of_the_id_and_the_position(spark: SparkSession) -> None:
    begin, end, mysql_end, gtid = markers(
        spark,
        marker("BEGIN", "571:53195829"),
        with_schema(marker("END", "571:53195832", {"public.orders": 2})),
        marker("END", "file=mysql-bin.000003,pos=154", {"shop.orders": 1}),
        marker("END", "24bff081-71a4:23", {}),
    )
    assert begin[:4] == ("shop", "571", "BEGIN", None)
    assert end[:4] == ("shop", "571", "END", 2)
    assert (end.sequence, end.position) == (1, 53195832)
    assert [collection.asDict() for collection in end.data_collections] == [
        {"data_collection": "public.orders", "event_count": 2}
    ]
    assert (mysql_end.position, gtid.position, gtid.txn_id) == (3 * 2**32 + 154, None, "24bff081-71a4:23")


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (r"public\.(\w+)", ["orders", None]),
        (r"\w+\.(\w+)", ["orders", "audit"]),
        ({"public.orders": "o", "other.audit": "a"}, ["o", "a"]),
        ({"public.orders": "o"}, ["o", None]),
    ],
)
def test_tables_go_by_a_rule_and_unknown_ones_can_be_left_out(
    spark: SparkSession, tables: Any, expected: list[str | None]
) -> None:
    values = change(ORDERS, "5:9", 1, {}), change(postgres("audit", 9, "other"), "5:9", 2, {})
    assert [row.table for row in rows(spark, *values, tables=tables, on_unknown_table="skip")] == expected


def test_an_unknown_table_fails_by_its_name_unless_an_option_says_otherwise(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"does not know public\.orders.*on_unknown_table"):
        rows(spark, change(ORDERS, "5:9", 1, {}), tables={"public.other": "x"})


def test_an_unknown_tables_rows_can_become_dead_letters(spark: SparkSession) -> None:
    (row,) = rows(
        spark,
        change(ORDERS, "5:9", 4, None, {"id": 1}, "d"),
        tables={"public.other": "x"},
        on_unknown_table="dead_letter",
        dead_letter_table="letters",
    )
    assert (row.table, row.op, row.collection) == ("letters", "c", "public.orders")
    assert json.loads(row.row) == {
        "txn_id": "5", "total_order": 4, "collection": "public.orders", "position": 90, "reason": "unknown table",
        "op": "d", "content": '{"id": 1}',
    }  # fmt: skip


BAD = [
    '{"secret',
    "[1]",
    "7",
    json.dumps(change(ORDERS, "5:9", 1, {})) * 2,
    json.dumps(change(ORDERS, "5:9", 1, {})) + " garbage",
    json.dumps(change(ORDERS, "5:9", 1, {})).replace('"', "'"),
    json.dumps(change(ORDERS | {"lsn": "secret"}, "5:9", 1, {})),
    json.dumps(change(ORDERS, "5:9", 1, {}, op="x")),
    json.dumps(change(ORDERS, "5:9", 1, None)),
    json.dumps(with_schema(change(ORDERS, "5:9", "secret", {}))),  # type: ignore[arg-type]
]


# The plain profile takes a value that is no JSON, one that is no object, and an operation that there is not.
@pytest.mark.parametrize(
    "bad", [pytest.param(bad, marks=[] if at in (0, 1, 4) else pytest.mark.deep) for at, bad in enumerate(BAD)]
)
def test_what_is_no_change_fails_with_its_place_or_is_left_out(spark: SparkSession, bad: str) -> None:
    values = change(ORDERS, "5:9", 1, {}), bad
    with pytest.raises(PySparkException, match=r"not a Debezium change event.*topic=shop\.public\.orders.*offset=1"):
        rows(spark, *values)
    assert len(rows(spark, *values, on_malformed="drop")) == 1


@pytest.mark.deep
def test_what_is_no_marker_fails_with_its_place(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"not a Debezium transaction marker.*offset=0"):
        markers(spark, {"status": "MAYBE", "id": "5:9"})
    assert markers(spark, "{", on_malformed="drop") == []


def test_a_transaction_topic_of_several_partitions_is_refused(spark: SparkSession) -> None:
    second = message(0, marker("END", "5:9", {}), "shop.transaction", partition=1)
    with pytest.raises(PySparkException, match="more than one partition"):
        parse_debezium_transactions(frame(spark, second)).collect()


def test_options_and_columns_are_checked_at_once(spark: SparkSession) -> None:
    good = frame(spark, message(0, change(ORDERS, "5:9", 1, {})))
    for options, text in (
        ({"tables": "("}, "no regular expression"),
        ({"tables": "abc"}, "has 0 groups"),
        ({"tables": {}}, "tables is empty"),
        ({"on_unknown_table": "ignore"}, "fail, skip, dead_letter"),
        ({"on_unknown_table": "dead_letter"}, "do not fit together"),
        ({"deleted_row": "after"}, "before, key"),
        ({"on_malformed": "skip"}, "fail, drop"),
    ):
        with pytest.raises(OptionError, match=text):
            parse_debezium(good, **options)
    with pytest.raises(InputError, match="lacks the column value"):
        parse_debezium(good.drop("value"))
    with pytest.raises(InputError, match="lacks the column offset"):
        parse_debezium_transactions(good.drop("offset"))
    with pytest.raises(InputError, match="rows lack the column source_partition"):
        assemble_debezium(good, good)


# --- assembling ---


class Stream(FolderStream):
    """Both topics as files, one micro-batch a call of `put`."""

    offset = 0

    def start(
        self,
        on_malformed: Any = "fail",
        *,
        on_truncate: Any = "fail",
        available_now: bool = False,
        **options: Any,
    ) -> StreamingQuery:
        text = self.spark.readStream.text(str(self.folder))
        kafka = text.select(F.from_json("value", KAFKA.replace("BINARY", "STRING")).alias("m")).select("m.*")
        changes = parse_debezium(
            kafka.where("topic <> 'shop.transaction'"), on_malformed=on_malformed, on_truncate=on_truncate
        )
        markers = kafka.where("topic = 'shop.transaction'")
        ends = parse_debezium_transactions(markers, on_malformed=on_malformed)
        return self.run(assemble_debezium(changes, ends, **options), available_now=available_now)

    def put(self, *values: dict[str, Any]) -> None:
        messages = []
        for value in values:
            self.offset += 1
            topic = "shop.transaction" if "status" in value else "shop.public.orders"
            messages.append({"topic": topic, "partition": 0, "offset": self.offset, "value": json.dumps(value)})
        self.put_lines(messages)

    def places(self) -> list[tuple[Any, ...]]:
        return [(r.source_partition, r.position, r.seq, r.transaction_end, r.txn_id, r.table) for r in self.out]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    with Stream(spark, tmp_path) as running:
        yield running


def observed(query: StreamingQuery, name: str = "assemble_debezium") -> Counter[str]:
    metrics: Counter[str] = Counter()
    for progress in query.recentProgress:
        if name in progress.observedMetrics:
            metrics.update(progress.observedMetrics[name].asDict())
    return +metrics


def test_rows_and_ends_meet_over_micro_batches_and_a_restart(stream: Stream) -> None:
    """And availableNow ends while a transaction waits."""
    stream.put(change(ORDERS, None, None, {"id": 0}, op="r"), change(ORDERS, "5:90", 1, {"id": 1}))
    query = stream.start(available_now=True, open_timeout="10 min")
    assert query.awaitTermination(60)
    metrics = observed(query)
    assert (metrics["data"], metrics["snapshot_rows"], metrics["rows"], metrics["released"]) == (1, 1, 1, 0)
    query = stream.start(open_timeout="10 min")
    stream.put(marker("BEGIN", "5:89"), marker("END", "5:99", {"public.orders": 1, "public.order_items": 1}))
    query.processAllAvailable()
    assert stream.places() == [("shop", 1, 0, True, None, "orders")]
    stream.put(change(ITEMS, "5:91", 2, {"id": 2}), change(ORDERS, "5:90", 1, {"id": 1}))
    query.processAllAvailable()
    query.stop()
    assert stream.places() == [
        ("shop", 1, 0, True, None, "orders"),
        ("shop", 99, 0, False, "5", "orders"),
        ("shop", 99, 1, True, "5", "order_items"),
    ]
    assert observed(query)["repeated_rows"] == 1


@pytest.mark.deep
def test_what_never_adds_up_is_quarantined_with_the_next_events(stream: Stream) -> None:
    query = stream.start(open_timeout="1ms", dead_letter_table="letters")
    stream.put(change(ORDERS, "5:90", 1, {"id": 1}), marker("END", "5:99", {"public.orders": 2}))
    query.processAllAvailable()
    assert stream.out == []
    stream.put(marker("END", "6:110", {"public.orders": 1}), change(ORDERS, "6:100", 1, {"id": 1}))
    query.processAllAvailable()
    query.stop()
    assert sorted(stream.places()) == [
        ("shop", 110, 0, True, "6", "orders"),
        ("shop#quarantine", 1, 0, True, "5", "letters"),
    ]
    assert observed(query)["quarantined"] == 1


@pytest.mark.deep
def test_what_is_malformed_and_dropped_is_counted(stream: Stream) -> None:
    query = stream.start(on_malformed="drop", on_truncate="ignore")
    good = change(ORDERS, "5:90", 1, {"id": 1}), marker("END", "5:99", {"public.orders": 2})
    stream.put(*good, good[0] | {"op": "?"}, good[0] | {"transaction": "no object"}, good[1] | {"event_count": "many"})
    stream.put(change(ORDERS, "5:91", 2, None, op="t"))
    query.processAllAvailable()
    query.stop()
    assert len(stream.out) == 1
    assert observed(query, "parse_debezium") == {"malformed": 2, "truncates": 1}
    assert observed(query, "parse_debezium_transactions") == {"malformed": 1}


@pytest.mark.deep
def test_an_event_that_cannot_be_placed_stops_the_query(stream: Stream) -> None:
    query = stream.start()
    stream.put(change(ORDERS, None, None, {"id": 1}))
    with pytest.raises(PySparkException, match=r"has no transaction.*provide\.transaction\.metadata"):
        query.processAllAvailable()


@pytest.mark.deep
def test_a_batch_frame_gives_what_a_stream_gives_after_all(spark: SparkSession) -> None:
    changes = [message(n, change(ORDERS, "5:90", n, {"id": n})) for n in (3, 1, 2)]
    ends = [message(1, marker("END", "5:99", {"public.orders": 3}), "shop.transaction")]
    rows = assemble_debezium(
        parse_debezium(frame(spark, *changes)), parse_debezium_transactions(frame(spark, *ends))
    ).collect()
    assert [(row.position, row.seq, json.loads(row.row)["id"]) for row in rows] == [
        (99, 0, 1), (99, 1, 2), (99, 2, 3)
    ]  # fmt: skip


def test_a_transaction_that_a_restart_cut_is_joined_by_the_timestamps_of_kafka(spark: SparkSession) -> None:
    """Rows 1 and 2, then after the restart rows 2 and 3 as 1 and 2: once with the column `timestamp`, once without."""

    def row(offset: int, number: int, order: int) -> Message:
        return message(offset, change(postgres("orders", 90 + number), f"5:{90 + number}", order, {"id": number}))

    changes = [row(0, 1, 1), row(1, 2, 2), row(100, 2, 1), row(101, 3, 2)]
    of_topic = [marker("BEGIN", "5:90"), marker("BEGIN", "5:90"), marker("END", "5:99", {"public.orders": 2})]
    ends = [message(n, value, "shop.transaction") for n, value in zip((0, 100, 101), of_topic, strict=True)]
    for times in (True, False):
        read = [frame(spark, *messages) for messages in (changes, ends)]
        if times:
            read = [part.withColumn("timestamp", F.timestamp_seconds("offset")) for part in read]
        rows = assemble_debezium(parse_debezium(read[0]), parse_debezium_transactions(read[1])).collect()
        assert [json.loads(row.row)["id"] for row in rows] == ([1, 2, 3] if times else [])
