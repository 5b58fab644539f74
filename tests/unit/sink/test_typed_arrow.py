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
    fit_found = fit(source, target)
    assert not isinstance(fit_found, str)
    return ArrowRoute("orders", (ArrowField(TypedField(key, "c", fit_found, fit_found.faults), target, zone),))


def written(arrow_route: ArrowRoute, values: list[Any], kind: pa.DataType) -> list[Any]:
    """The values that a reader of the rows finds, numbers in their own digits; a slice shows offsets that are not 0."""
    column = pa.array([values[0] if values else None, *values], kind)[1:]
    rows = arrow_route.rows(pa.RecordBatch.from_arrays([column], ["c"])).to_pylist()
    texts = []
    for row in rows:
        (value,) = json.loads(row, parse_float=str, parse_int=str).values()
        texts.append(value)
    return texts


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=8)


@given(optional(st.text()))
@example(['"', "\\", '\\"', "\n\t\r\b\f", "\x00\x1f\x7f", "{}", "ä€😀", ""])
def test_strings_keep_every_character(values: list[Any]) -> None:
    assert written(route(T.StringType(), TargetType("VARCHAR")), values, pa.string()) == values


@given(optional(st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers_keep_their_digits(values: list[Any]) -> None:
    texts = written(route(T.LongType(), TargetType("BIGINT")), values, pa.int64())
    assert [text and int(text) for text in texts] == [value and int(value) for value in values]


@given(optional(st.floats(allow_nan=False, allow_infinity=False)))
def test_a_double_is_the_same_double(values: list[Any]) -> None:
    texts = written(route(T.DoubleType(), TargetType("DOUBLE")), values, pa.float64())
    assert [None if text is None else float(text) for text in texts] == values


def test_a_double_in_a_document_stays_a_double() -> None:
    arrow_route = route(T.DoubleType(), TargetType("JSON"))
    assert written(arrow_route, [0.0, -7.0, 0.5, 1e20, None], pa.float64()) == ["0.0", "-7.0", "0.5", "1e+20", None]


@given(optional(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_a_float_is_the_same_float(values: list[Any]) -> None:
    texts = written(route(T.FloatType(), TargetType("FLOAT")), values, pa.float32())
    assert [None if text is None else float(np.float32(text)) for text in texts] == values


@given(optional(st.decimals(-(10**17), 10**17, places=20)))
@example([Decimal(0), Decimal("0.00000000000000000001"), Decimal("-0.00000000000000000010"), Decimal(10**17)])
def test_decimals_keep_their_digits(values: list[Any]) -> None:
    arrow_route = route(T.DecimalType(38, 20), TargetType("DECIMAL", precision=38, scale=20))
    texts = written(arrow_route, values, pa.decimal128(38, 20))
    assert all(text is None or (text[-21], "E" in text) == (".", False) for text in texts)
    assert [None if text is None else Decimal(text) for text in texts] == values


@given(optional(st.integers(-(10**38) + 1, 10**38 - 1)))
def test_decimals_without_a_part_behind_the_point_have_no_point(values: list[Any]) -> None:
    arrow_route = route(T.DecimalType(38, 0), TargetType("DECIMAL", precision=38))
    texts = written(arrow_route, [None if value is None else Decimal(value) for value in values], pa.decimal128(38, 0))
    assert texts == [None if value is None else str(value) for value in values]


def test_large_strings_become_the_same_rows() -> None:
    arrow_route = route(T.StringType(), TargetType("VARCHAR"))
    plain, large = (pa.array(['a"b', None, ""], kind) for kind in (pa.string(), pa.large_string()))
    assert (
        arrow_route.rows(pa.record_batch({"c": large})).to_pylist()
        == arrow_route.rows(pa.record_batch({"c": plain})).to_pylist()
    )


@given(optional(st.booleans()))
def test_booleans_are_words_or_numbers(values: list[Any]) -> None:
    assert written(route(T.BooleanType(), TargetType("BOOLEAN")), values, pa.bool_()) == values
    numbers = written(route(T.BooleanType(), TargetType("TINYINT")), values, pa.bool_())
    assert numbers == [None if value is None else str(int(value)) for value in values]


@given(optional(st.binary(max_size=8)))
def test_bytes_are_hexadecimal_digits(values: list[Any]) -> None:
    texts = written(route(T.BinaryType(), TargetType("VARBINARY", 8)), values, pa.binary())
    assert texts == [None if value is None else value.hex().upper() for value in values]


@given(optional(st.dates()), optional(TIMES), optional(TIMES))
def test_dates_and_times_are_those_of_the_wall(days: list[Any], moments: list[Any], local: list[Any]) -> None:
    texts = written(route(T.DateType(), TargetType("DATE")), days, pa.date32())
    assert texts == [day and day.isoformat() for day in days]
    wall = written(route(T.TimestampNTZType(), TargetType("DATETIME")), local, pa.timestamp("us"))
    assert wall == [moment and moment.isoformat(" ", "microseconds") for moment in local]
    utc = written(route(T.TimestampType(), TargetType("DATETIME")), moments, pa.timestamp("us", "UTC"))
    assert utc == [moment and moment.isoformat(" ", "microseconds") for moment in moments]


def test_a_moment_is_written_in_the_zone_of_the_option() -> None:
    arrow_route = route(T.TimestampType(), TargetType("DATETIME"), "Asia/Tokyo")
    noon = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone.utc)
    assert written(arrow_route, [noon, None], pa.timestamp("us", "UTC")) == ["2026-01-02 21:00:00.000000", None]


def test_a_key_is_json_too() -> None:
    arrow_route = route(T.LongType(), TargetType("BIGINT"), key='a"\\b')
    assert arrow_route.rows(pa.record_batch({"c": pa.array([1])})).to_pylist() == ['{"a\\"\\\\b":1}']


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
