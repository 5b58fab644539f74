"""Which Spark type fits which StarRocks type, and what the routes say about columns that do not; no Spark session."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as T

from starrocks_txn_sink import SinkOptions, TableOptions, TableRoute
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.json_members import value_at
from starrocks_txn_sink.rows.target import (
    BITS,
    TargetColumn,
    TargetType,
    may_count,
    parse_type,
    target_columns,
    with_counters,
)
from starrocks_txn_sink.rows.values.rules import Value, fitted
from starrocks_txn_sink.rows.widening import holds
from starrocks_txn_sink.sink.typed.fit import Fit, fit, natural
from starrocks_txn_sink.sink.typed.route import NOT_NULL, TypedRoute
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.terms import with_columns
from tools.pages import SOURCES

ROOT = Path(__file__).parents[3]
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


@pytest.mark.parametrize(
    ("text", "type_text"),
    [
        ("tinyint(1)", "BOOLEAN"),
        ("tinyint(4)", "TINYINT"),
        ("boolean", "BOOLEAN"),
        ("bigint(20) unsigned", "LARGEINT"),
        ("largeint", "LARGEINT"),
        ("decimal64(18, 4)", "DECIMAL(18,4)"),
        ("varchar(1048576)", "VARCHAR(1048576)"),
        ("string", "STRING(65533)"),
        ("binary(4)", "VARBINARY(4)"),
        ("array<map<int(11),varchar(3)>>", "ARRAY<MAP<INT, VARCHAR(3)>>"),
        ("struct<c1 int(11), `c 2` struct<d datetime>>", "STRUCT<c1 INT, c 2 STRUCT<d DATETIME>>"),
        ("struct<a: int>", "STRUCT<a INT>"),
        ("bitmap", "BITMAP"),
        ("hll", "HLL"),
        ("percentile", "OTHER"),
        ("array<int", "OTHER"),
        ("array<int>>", "OTHER"),
        ("", "OTHER"),
    ],
)
def test_column_types_are_read_as_the_server_writes_them(text: str, type_text: str) -> None:
    assert str(parse_type(text)) == type_text


@given(DECIMALS, DECIMALS)
def test_a_decimal_fits_only_where_all_its_digits_do(source: tuple[int, int], target: tuple[int, int]) -> None:
    fit_found = fit(T.DecimalType(*source), parse_type(f"decimal({target[0]}, {target[1]})"))
    widest = 10 ** source[0] - 1  # unscaled
    exact = widest * 10 ** (38 - source[1]) < 10 ** (target[0] - target[1] + 38) and source[1] <= target[1]
    assert isinstance(fit_found, Fit) == exact


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (T.LongType(), "int(11)", "bigint does not fit into INT without loss"),
        (T.LongType(), "double", "bigint does not fit into DOUBLE without loss"),
        (T.IntegerType(), "float", "int does not fit into FLOAT without loss"),
        (T.IntegerType(), "decimal(11, 2)", "int does not fit into DECIMAL(11,2) without loss"),
        (T.DoubleType(), "float", "double does not fit into FLOAT without loss"),
        (T.DoubleType(), "decimal(38, 10)", "double does not fit into DECIMAL(38,10) without loss"),
        (T.DecimalType(38, 1), "largeint", "decimal(38,1) does not fit into LARGEINT without loss"),
        (T.TimestampType(), "date", "a timestamp would lose its time of day"),
        (T.StringType(), "int(11)", "a text is not turned into INT by guessing"),
        (T.BinaryType(), "varchar(9)", "there is no way from binary to VARCHAR(9)"),
        (T.ArrayType(T.LongType()), "array<int(11)>", "its elements: bigint does not fit into INT"),
        (T.ArrayType(T.BinaryType()), "json", "its elements: binary values cannot be written inside"),
        (T.MapType(T.DateType(), T.LongType()), "map<date,bigint>", "the keys of a JSON object are texts"),
        (T.StructType().add("z", T.LongType()), "struct<a bigint>", "its field z is not in STRUCT<a BIGINT>"),
        (T.DoubleType(), "bitmap", "BITMAP is made of integers and texts only; cast it"),
        (T.BinaryType(), "hll", "HLL is made of integers and texts only; cast it"),
        (T.DayTimeIntervalType(), "bigint", "there is no way from interval day to second to BIGINT"),
    ],
)
def test_what_would_lose_something_is_refused_with_the_reason(source: T.DataType, target: str, reason: str) -> None:
    reason_found = fit(source, parse_type(target))
    assert isinstance(reason_found, str)
    assert reason in reason_found


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.simpleString())
def test_every_type_fits_the_one_that_is_closest_to_it(source: T.DataType) -> None:
    assert isinstance(fit(source, natural(source)), Fit)


NUMBER_TYPES = [
    *(T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
    *(
        T.DecimalType(precision, scale)
        for precision in (1, 2, 5, 9, 15, 18, 38)
        for scale in (0, 1)
        if scale < precision
    ),
]
NUMBER_COLUMNS = [
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE"),
    *(str(natural(kind)) for kind in NUMBER_TYPES if isinstance(kind, T.DecimalType)),
]


@pytest.mark.parametrize("target", NUMBER_COLUMNS)
def test_a_column_of_a_frame_fits_where_one_of_a_source_s_schema_does(target: str) -> None:
    """`rows.widening` is the one judge: a plan and a frame agree on each pair of types of numbers."""
    for source in NUMBER_TYPES:
        fits = isinstance(fit(source, parse_type(target)), Fit)
        assert fits == holds(parse_type(target), natural(source)), source


@pytest.mark.parametrize("target", NUMBER_COLUMNS)
def test_a_column_that_has_room_for_a_type_keeps_each_of_its_numbers(target: str) -> None:
    """What a plan and a frame promise, the judgement of values keeps: the least and the greatest number, and a 1."""
    kind = parse_type(target)
    for source in map(natural, NUMBER_TYPES):
        if source.name in ("FLOAT", "DOUBLE") or not holds(kind, source):
            continue
        for text in _extremes(source):
            for raw in (text, f'"{text}"'):
                value = value_at(raw, 0)[0]
                new = fitted(kind, Value(value, raw)).strip('"')
                assert Decimal(new) == Decimal(text), (source, raw)


def _extremes(kind: TargetType) -> list[str]:
    if kind.name == "DECIMAL":
        most = "9" * (kind.precision - kind.scale) + ("." + "9" * kind.scale if kind.scale else "")
        return [f"-{most}", most, "1"]
    return [str(-(2 ** (BITS[kind.name] - 1))), str(2 ** (BITS[kind.name] - 1) - 1), "1"]


def test_nulls_without_a_type_go_anywhere() -> None:
    assert fit(T.NullType(), parse_type("largeint")) == Fit()


# --- routes ---

DDL = """CREATE TABLE `t` (
  `id` bigint(20) NOT NULL COMMENT "",
  `v` varchar(5) NOT NULL COMMENT "`v` bigint(20) AUTO_INCREMENT",
  `auto` bigint(20) NOT NULL AUTO_INCREMENT COMMENT "",
) ENGINE=OLAP PRIMARY KEY(`id`)"""
PLAIN = target_columns(
    [
        ("t", "id", "bigint(20)", "NO", None, "PRI", None),
        ("t", "v", "varchar(5)", "NO", None, "", None),
        ("t", "n", "int(11)", "NO", "7", "", ""),
        ("t", "b", "varbinary", "YES", None, "", None),
        ("t", "auto", "bigint(20)", "NO", None, "", None),
        ("t", "made", "int(11)", "YES", None, "", "id + 1"),
    ]
)["t"]
COLUMNS = with_counters(PLAIN, DDL)
FRAME = T.StructType().add("id", "long").add("v", "string").add("big", "long").add("blob", "binary")


def route(
    columns: object, target: tuple[TargetColumn, ...] | None = COLUMNS, properties: dict[str, str] | None = None
) -> TypedRoute:
    options = SinkOptions(
        load_url="fe:1", database="d", delivery="at-least-once", tables={"t": TableOptions(properties=properties or {})}
    )
    tables = Tables(columns=None if target is None else {"t": target})
    return TypedRoute.of(TableRoute("t", columns), FRAME, "UTC", options, tables)  # type: ignore[arg-type]


def test_the_header_names_what_is_sent_and_leaves_the_rest_to_defaults() -> None:
    typed_route = route({"ID": "id", "v": "v", "b": "blob"})
    assert typed_route.columns == "`id`,`v`,`__hex_b`,`b`=to_binary(`__hex_b`, 'hex')"


def test_sets_are_made_by_functions_of_the_server() -> None:
    target = target_columns(
        [
            ("t", "v", "varchar(5)", "NO", None, "AGG", None),
            ("t", "users", "bitmap", "NO", None, "", None),
            ("t", "names", "bitmap", "NO", None, "", None),
            ("t", "devices", "hll", "NO", None, "", None),
        ]
    )["t"]
    typed_route = route({"v": "v", "users": "id", "names": "v", "devices": "big"}, target)
    assert typed_route.columns == (
        "`v`,`__raw_users`,`__raw_names`,`__raw_devices`,`users`=to_bitmap(`__raw_users`),"
        "`names`=bitmap_hash(`__raw_names`),`devices`=hll_hash(`__raw_devices`)"
    )
    refused_nulls = [field.name for field in typed_route.fields if NOT_NULL in field.faults]
    assert refused_nulls == ["v", "users"], "the others make an empty set of a NULL"


@pytest.mark.parametrize(
    ("columns", "properties", "message"),
    [
        (["id"], {}, "column v is NOT NULL without a DEFAULT, and the route leaves it out"),
        ({"id": "id", "v": "v", "n": "big"}, {}, "column n: bigint does not fit into INT without loss"),
        ({"id": "id", "v": "v", "nowhere": "big"}, {}, "the table has no column nowhere"),
        ({"id": "id", "v": "v", "made": "big"}, {}, "column made is generated by the server"),
        ({"id": "id", "v": "missing"}, {}, "the input has no column missing"),
        (["v"], {"partial_update": "true"}, "partial_update needs the key column id"),
        (["id", "v"], {"columns": "id,other"}, "the property columns does not name v"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: object, properties: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match="Cast or rename the columns") as failure:
        route(columns, properties=properties)
    assert message in str(failure.value)


def test_only_the_ddl_shows_which_column_counts() -> None:
    assert [column.name for column in PLAIN if column.required] == ["id", "v", "auto"]
    assert [column.name for column in COLUMNS if column.required] == ["id", "v"]
    assert may_count(PLAIN)
    assert not may_count(column for column in PLAIN if column.name not in ("id", "auto"))


def test_all_complaints_come_at_once() -> None:
    with pytest.raises(InputError, match=r"column v is NOT NULL.*no column nowhere"):
        route({"id": "id", "nowhere": "big"})


def test_a_partial_update_needs_only_the_keys() -> None:
    assert route({"id": "id"}, properties={"partial_update": "true"}).columns == "`id`"


def test_the_users_own_columns_header_wins_and_may_name_fields_that_are_no_columns() -> None:
    own = "id,big,n=big % 10"
    typed_route = route({"id": "id", "big": "big"}, properties={"columns": own})
    options = SinkOptions(
        load_url="fe:1", database="d", delivery="at-least-once", tables={"t": TableOptions(properties={"columns": own})}
    )
    assert with_columns(options, [typed_route]).load_headers("t")["columns"] == own


def test_without_sql_access_types_decide_alone() -> None:
    assert route(["id", "big"], None).columns == "`id`,`big`"


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="There is no table t"):
        route(["id"], ())


def test_the_users_properties_do_not_reach_the_sinks_own_tables() -> None:
    options = SinkOptions(load_url="fe:1", database="d", delivery="at-least-once", properties={"where": "id > 1"})
    assert "where" in options.load_headers("orders")
    assert "where" not in options.load_headers("_starrocks_txn_sink_ledger")
