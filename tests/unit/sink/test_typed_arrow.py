"""Rows of plain frames, made over Arrow: the text says what the value is, in any mixture of values."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from pyspark.sql import types as T

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.target import TargetType
from starrocks_txn_sink.sink.typed.arrow import ArrowField, ArrowRoute
from starrocks_txn_sink.sink.typed.fit import fit
from starrocks_txn_sink.sink.typed.route import TypedField

TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))


def route(source: T.DataType, target: TargetType, zone: str | None = None, key: str = "c") -> ArrowRoute:
    found = fit(source, target)
    assert not isinstance(found, str)
    return ArrowRoute("orders", (ArrowField(TypedField(key, "c", found, found.faults), target, zone),))


def written(made: ArrowRoute, values: list[Any], kind: pa.DataType) -> list[Any]:
    """The values that a reader of the rows finds, numbers in their own digits; a slice shows offsets that are not 0."""
    column = pa.array([values[0] if values else None, *values], kind)[1:]
    rows = made.rows(pa.RecordBatch.from_arrays([column], ["c"])).to_pylist()
    found = []
    for row in rows:
        (value,) = json.loads(row, parse_float=str, parse_int=str).values()
        found.append(value)
    return found


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=8)


@given(optional(st.text()))
@example(['"', "\\", '\\"', "\n\t\r\b\f", "\x00\x1f\x7f", "{}", "ä€😀", ""])
def test_strings_keep_every_character(values: list[Any]) -> None:
    assert written(route(T.StringType(), TargetType("VARCHAR")), values, pa.string()) == values


@given(optional(st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers_keep_their_digits(values: list[Any]) -> None:
    found = written(route(T.LongType(), TargetType("BIGINT")), values, pa.int64())
    assert [each and int(each) for each in found] == [each and int(each) for each in values]


@given(optional(st.floats(allow_nan=False, allow_infinity=False)))
def test_a_double_is_the_same_double(values: list[Any]) -> None:
    found = written(route(T.DoubleType(), TargetType("DOUBLE")), values, pa.float64())
    assert [None if each is None else float(each) for each in found] == values


def test_a_double_in_a_document_stays_a_double() -> None:
    made = route(T.DoubleType(), TargetType("JSON"))
    assert written(made, [0.0, -7.0, 0.5, 1e20, None], pa.float64()) == ["0.0", "-7.0", "0.5", "1e+20", None]


@given(optional(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_a_float_is_the_same_float(values: list[Any]) -> None:
    found = written(route(T.FloatType(), TargetType("FLOAT")), values, pa.float32())
    assert [None if each is None else float(np.float32(each)) for each in found] == values


@given(optional(st.decimals(-(10**17), 10**17, places=20)))
@example([Decimal(0), Decimal("0.00000000000000000001"), Decimal("-0.00000000000000000010"), Decimal(10**17)])
def test_decimals_keep_their_digits(values: list[Any]) -> None:
    made = route(T.DecimalType(38, 20), TargetType("DECIMAL", precision=38, scale=20))
    found = written(made, values, pa.decimal128(38, 20))
    assert all(each is None or (each[-21], "E" in each) == (".", False) for each in found)
    assert [None if each is None else Decimal(each) for each in found] == values


@given(optional(st.integers(-(10**38) + 1, 10**38 - 1)))
def test_decimals_without_a_part_behind_the_point_have_no_point(values: list[Any]) -> None:
    made = route(T.DecimalType(38, 0), TargetType("DECIMAL", precision=38))
    found = written(made, [None if each is None else Decimal(each) for each in values], pa.decimal128(38, 0))
    assert found == [None if each is None else str(each) for each in values]


def test_large_strings_become_the_same_rows() -> None:
    made = route(T.StringType(), TargetType("VARCHAR"))
    plain, large = (pa.array(['a"b', None, ""], kind) for kind in (pa.string(), pa.large_string()))
    assert made.rows(pa.record_batch({"c": large})).to_pylist() == made.rows(pa.record_batch({"c": plain})).to_pylist()


@given(optional(st.booleans()))
def test_booleans_are_words_or_numbers(values: list[Any]) -> None:
    assert written(route(T.BooleanType(), TargetType("BOOLEAN")), values, pa.bool_()) == values
    numbers = written(route(T.BooleanType(), TargetType("TINYINT")), values, pa.bool_())
    assert numbers == [None if each is None else str(int(each)) for each in values]


@given(optional(st.binary(max_size=8)))
def test_bytes_are_hexadecimal_digits(values: list[Any]) -> None:
    found = written(route(T.BinaryType(), TargetType("VARBINARY", 8)), values, pa.binary())
    assert found == [None if each is None else each.hex().upper() for each in values]


@given(optional(st.dates()), optional(TIMES), optional(TIMES))
def test_dates_and_times_are_those_of_the_wall(days: list[Any], moments: list[Any], local: list[Any]) -> None:
    found = written(route(T.DateType(), TargetType("DATE")), days, pa.date32())
    assert found == [each and each.isoformat() for each in days]
    wall = written(route(T.TimestampNTZType(), TargetType("DATETIME")), local, pa.timestamp("us"))
    assert wall == [each and each.isoformat(" ", "microseconds") for each in local]
    utc = written(route(T.TimestampType(), TargetType("DATETIME")), moments, pa.timestamp("us", "UTC"))
    assert utc == [each and each.isoformat(" ", "microseconds") for each in moments]


def test_a_moment_is_written_in_the_zone_of_the_option() -> None:
    made = route(T.TimestampType(), TargetType("DATETIME"), "Asia/Tokyo")
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone.utc)
    assert written(made, [noon, None], pa.timestamp("us", "UTC")) == ["2026-01-02 21:00:00.000000", None]


def test_a_key_is_json_too() -> None:
    made = route(T.LongType(), TargetType("BIGINT"), key='a"\\b')
    assert made.rows(pa.record_batch({"c": pa.array([1])})).to_pylist() == ['{"a\\"\\\\b":1}']


@pytest.mark.parametrize(
    ("source", "target", "column", "words"),
    [
        (T.DoubleType(), TargetType("DOUBLE"), pa.array([1.0, float("nan")]), "NaN"),
        (T.StringType(), TargetType("VARCHAR", 2), pa.array(["äö"]), "longer than 2 bytes"),
        (T.StringType(), TargetType("VARCHAR"), pa.array([b"\xff"]).view(pa.string()), "UTF-8"),
        (T.DateType(), TargetType("DATE"), pa.array([-800_000], pa.int32()).cast(pa.date32()), "year"),
    ],
)
def test_a_value_that_cannot_be_written_is_named_by_its_column(
    source: T.DataType, target: TargetType, column: pa.Array, words: str
) -> None:
    with pytest.raises(InputError, match=f"Column c of table orders .*{words}"):
        route(source, target).rows(pa.record_batch({"c": column}))
