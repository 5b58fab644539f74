"""Kinds of DDL at the source, by the converter's schemas, under each `schema_changes`: nothing is lost in silence.

A micro-batch has rows from before and after the DDL, in whole source transactions. Drivers end at each site.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import DebeziumAssembly, SinkOptions, StarRocksSink, TableRules, plan_tables
from starrocks_txn_sink.errors import NarrowColumn, StarRocksSinkError, UnfitValue, UnknownColumn
from starrocks_txn_sink.options import TableOptions
from starrocks_txn_sink.sink import events_writer
from starrocks_txn_sink.sink.schema import changes
from starrocks_txn_sink.telemetry import Event
from tests.support.connect_schema import Field, decimal, field
from tests.support.debezium_topics import transaction
from tests.support.query_port import query
from tests.support.servers import place_of
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(280),
    pytest.mark.emulator("CREATE TABLE shop.other (id INT NOT NULL, n INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"),
]

Fields = dict[str, Field]
Row = dict[str, Any]
OTHER: Fields = {"id": field("int32"), "n": field("int32")}


def varchar(length: int) -> Field:
    return field("string", source_type="VARCHAR", source_length=length)


def number(text: str) -> str:
    """A decimal as the converter writes it."""
    value = int(text.replace(".", ""))
    return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)).decode()


@dataclass(frozen=True)
class Kind:
    """A DDL: the table's fields and a row before and after it, and what StarRocks shows of both rows.

    `fails` is the error by which the query stops without `apply`, None for a DDL that needs no change; `ignored` is
    what it shows with `ignore` (None: as `shown`), or the error. With `apply` it shows `shown`, or stops with `stuck`.
    `says` is the column at fault.
    """

    name: str
    before: Fields
    first: Row
    after: Fields
    second: Row
    shown: list[tuple[Any, ...]]
    fails: type[StarRocksSinkError] | None = None
    ignored: Any = None
    stuck: type[StarRocksSinkError] | None = None
    select: str = "*"
    says: str = ""


ID = field("int32")
N: Fields = {"id": ID, "n": field("int32")}
ONE: Row = {"id": 1, "n": 1}
KINDS = [
    Kind(
        *("add_column", N, ONE, {**N, "a": varchar(9)}, {"id": 2, "n": 2, "a": "x"}, [(1, 1, None), (2, 2, "x")]),
        fails=UnknownColumn, ignored=[(1, 1), (2, 2)], says="a",
    ),
    Kind(
        *("add_with_default", N, ONE, {**N, "a": {**ID, "default": 7}}, {"id": 2, "n": 2, "a": 7}),
        [(1, 1, None), (2, 2, 7)], fails=UnknownColumn, ignored=[(1, 1), (2, 2)], says="a",
    ),
    Kind(
        *("add_not_null", N, ONE, {**N, "a": {**ID, "default": 0, "optional": False}}, {"id": 2, "n": 2, "a": 0}),
        [(1, 1, None), (2, 2, 0)], fails=UnknownColumn, ignored=[(1, 1), (2, 2)], says="a",
    ),
    Kind("drop_column", N, ONE, {"id": ID}, {"id": 2}, [(1, 1), (2, None)]),
    Kind(
        *("rename_column", N, ONE, {"id": ID, "m": field("int32")}, {"id": 2, "m": 2}, [(1, 1, None), (2, None, 2)]),
        fails=UnknownColumn, ignored=[(1, 1), (2, None)], says="m",
    ),
    Kind(
        *("widen_int", N, ONE, {**N, "n": field("int64")}, {"id": 2, "n": 1 << 40}, [(1, 1), (2, 1 << 40)]),
        fails=UnfitValue, ignored=UnfitValue, says="n",
    ),
    Kind(
        *("widen_varchar", {**N, "a": varchar(2)}, {**ONE, "a": "x"}, {**N, "a": varchar(20)}),
        {"id": 2, "n": 2, "a": "y" * 18}, [(1, "x"), (2, "y" * 18)], fails=UnfitValue, ignored=UnfitValue,
        select="id, a", says="a",
    ),
    Kind(
        *("widen_decimal", {"id": ID, "p": decimal(2, 10)}, {"id": 1, "p": number("1.25")}),
        {"id": ID, "p": decimal(4, 14)}, {"id": 2, "p": number("1.2345")}, [(1, "1.2500"), (2, "1.2345")],
        fails=NarrowColumn, ignored=NarrowColumn, select="id, CAST(p AS VARCHAR)", says="p",
    ),
    Kind(
        *("number_to_text", N, ONE, {**N, "n": varchar(9)}, {"id": 2, "n": "two"}, []),
        fails=UnfitValue, ignored=UnfitValue, stuck=UnfitValue, says="n",
    ),
    Kind(
        *("whole_to_fraction", N, ONE, {**N, "n": field("double")}, {"id": 2, "n": 1.5}, []),
        fails=NarrowColumn, ignored=NarrowColumn, stuck=NarrowColumn, says="n",
    ),
    Kind(
        *("time_of_a_date", {"id": ID, "d": field("int32", "io.debezium.time.Date")}, {"id": 1, "d": 1}),
        {"id": ID, "d": field("int64", "io.debezium.time.MicroTimestamp")}, {"id": 2, "d": 3_600_000_000}, [],
        fails=NarrowColumn, ignored=NarrowColumn, stuck=NarrowColumn, says="d",
    ),
    Kind(
        *("another_enum_value", {"id": ID, "e": field("string", "io.debezium.data.Enum", allowed="a")}),
        {"id": 1, "e": "a"}, {"id": ID, "e": field("string", "io.debezium.data.Enum", allowed="a,longer")},
        {"id": 2, "e": "longer"}, [(1, "a"), (2, "longer")],
    ),
    Kind("another_key", N, ONE, {**N, "n": {**ID, "optional": False}}, {"id": 2, "n": 2}, [(1, 1), (2, 2)]),
]  # fmt: skip
QUICK = {"add_column", "widen_decimal", "number_to_text"}
"""The plans of the others have unit tests in test_schema_plan.py and test_schema_carry_out.py."""
BY_NAME = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=() if kind.name in QUICK else pytest.mark.deep) for kind in KINDS],
)


def options(server: Emulator, job: str, **more: Any) -> SinkOptions:
    values = {**place_of(server), "job": job}
    return SinkOptions(**{**values, **more})


class Stream:
    """The messages of a source whose table changes, as frames, and a table that the plan has created."""

    def __init__(self, spark: SparkSession, server: Emulator, kind: Kind) -> None:
        self.server, self.kind = server, kind
        first = [
            transaction(1, (kind.name, kind.before, kind.first), ("other", OTHER, {"id": 1, "n": 1})),
            transaction(2, (kind.name, kind.after, kind.second), ("other", OTHER, {"id": 2, "n": 2})),
            transaction(3, (kind.name, kind.after, kind.second), ("other", OTHER, {"id": 3, "n": 3})),
        ]
        messages = [message for part in first for message in part]
        texts = [(topic, 0, offset, key, value, None) for offset, (topic, key, value) in enumerate(messages)]
        names = "topic string, partition int, offset long, key binary, value binary, timestamp timestamp"
        self.frame: DataFrame = spark.createDataFrame(texts, names).coalesce(1)
        self.frame = self.frame.withColumn("timestamp", F.lit(0).cast("timestamp"))
        described = [(key, value) for topic, key, value in first[0] if topic.endswith(kind.name)]
        plan_tables(options(server, "plan"), described).apply()

    def write(
        self, setting: str, events: list[Event] | None = None, rules: Sequence[TableRules] = (), **more: Any
    ) -> None:
        sink_options = options(self.server, "test", schema_changes=setting, **more)
        assembly = DebeziumAssembly(reader="spark", on_unknown_table="skip", rules=rules)
        listener = events.append if events is not None else lambda _: None
        StarRocksSink(sink_options, assemble=assembly, listener=listener).write(self.frame)

    def shown(self) -> list[tuple[Any, ...]]:
        return query(self.server, f"SELECT {self.kind.select} FROM shop.{self.kind.name} ORDER BY id")

    def whole(self) -> bool:
        """Whether all source transactions are there, with their rows of the other table."""
        return query(self.server, "SELECT count(*) FROM shop.other") == [(3,)]

    def nothing(self) -> bool:
        return query(self.server, "SELECT count(*) FROM shop.other") == [(0,)] and self.shown() == []


class DriverEnds(BaseException):
    """Nothing after it is done, as with a killed process."""


@contextmanager
def ends(where: Any, name: str, *, after: bool) -> Iterator[None]:
    right: Callable[..., Any] = getattr(where, name)

    def run(*arguments: Any, **keywords: Any) -> Any:
        if after:
            right(*arguments, **keywords)
        raise DriverEnds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, run)
        yield


SITES: list[tuple[Any, str, bool]] = [
    (events_writer, "add_missing", False),
    (changes, "changed", False),
    (events_writer, "add_missing", True),
]


@BY_NAME
def test_apply_follows_the_source_over_drivers_that_end(spark: SparkSession, server: Emulator, kind: Kind) -> None:
    stream = Stream(spark, server, kind)
    if kind.stuck is not None:
        with pytest.raises(kind.stuck, match=f"olumn {kind.says} "):
            stream.write("apply")
        assert stream.nothing()
        return
    if kind.fails is not None:
        where, name, after = SITES[KINDS.index(kind) % len(SITES)]
        with ends(where, name, after=after), pytest.raises(DriverEnds):
            stream.write("apply")
        assert query(server, "SELECT count(*) FROM shop.other") == [(0,)]
    stream.write("apply")
    stream.write("apply")
    assert stream.shown() == kind.shown
    assert stream.whole()


@BY_NAME
def test_fail_stops_with_a_statement_that_lets_the_query_go_on(
    spark: SparkSession, server: Emulator, kind: Kind
) -> None:
    stream = Stream(spark, server, kind)
    if kind.fails is None:
        stream.write("fail")
    else:
        with pytest.raises(kind.fails) as stopped:
            stream.write("fail")
        assert stream.nothing()
        if kind.stuck is not None:
            return
        statement = re.search(
            rf"ALTER TABLE `{kind.name}` \w+ COLUMN `{kind.says}` [^,;]*?(\([\d,]+\))?(?=[,;. ])", str(stopped.value)
        )
        assert statement is not None, str(stopped.value)
        query(
            server,
            "USE shop",
        )
        query(server, statement[0].replace(f"`{kind.name}`", f"`shop`.`{kind.name}`", 1))
        of_table = f"SHOW ALTER TABLE COLUMN FROM shop WHERE TableName = '{kind.name}'"
        wait_until(lambda: {row[9] for row in query(server, of_table)} == {"FINISHED"})
        stream.write("fail")
    assert stream.shown() == kind.shown
    assert stream.whole()


@BY_NAME
def test_ignore_leaves_out_unknown_columns_alone(spark: SparkSession, server: Emulator, kind: Kind) -> None:
    stream = Stream(spark, server, kind)
    if isinstance(kind.ignored, type):
        with pytest.raises(kind.ignored):
            stream.write("ignore")
        assert stream.nothing()
    else:
        stream.write("ignore")
        assert stream.shown() == (kind.ignored or kind.shown)
        assert stream.whole()


@pytest.mark.parametrize(
    ("name", "columns"), [("add_column", []), ("add_with_default", ["a"]), ("add_not_null", ["a"])]
)
def test_rows_that_the_source_has_filled_are_said(
    spark: SparkSession, server: Emulator, name: str, columns: list[str]
) -> None:
    (kind,) = (candidate for candidate in KINDS if candidate.name == name)
    events: list[Event] = []
    Stream(spark, server, kind).write("apply", events)
    assert [event.fields["columns"] for event in events if event.name == "columns.unfilled"] == columns


def test_nothing_is_said_to_lack_in_the_rows_of_a_history(spark: SparkSession, server: Emulator) -> None:
    """They are what the source has written, column by column."""
    (kind,) = (candidate for candidate in KINDS if candidate.name == "add_with_default")
    events: list[Event] = []
    stream = Stream(spark, server, kind)
    query(
        server,
        f"CREATE TABLE shop.{kind.name}_log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, id INT) "
        "DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH (_position)",
    )
    stream.write("apply", events, [TableRules(tables=kind.name, history="{0}_log")])
    unfilled_tables = [event.fields["table"] for event in events if event.name == "columns.unfilled"]
    altered = {event.fields["table"] for event in events if event.name == "schema.changed"}
    assert (unfilled_tables, altered) == ([kind.name], {kind.name, f"{kind.name}_log"})


def test_a_declared_type_is_taken_as_it_is(spark: SparkSession, server: Emulator) -> None:
    (kind,) = (candidate for candidate in KINDS if candidate.name == "widen_decimal")
    stream = Stream(spark, server, kind)
    declared = {kind.name: TableOptions(types={"p": "DECIMAL(10,2)"})}
    for setting in ("fail", "apply"):  # values are judged all the same
        with pytest.raises(UnfitValue, match=r"column p of table widen_decimal.* it has more than 2 decimals"):
            stream.write(setting, tables=declared)
        assert stream.nothing()
    stream.write("fail", tables=declared, check_values=False)
    assert stream.shown() == [(1, "1.25"), (2, "1.23")]
