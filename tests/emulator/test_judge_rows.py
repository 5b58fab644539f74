"""How values are judged: types, NOT NULL, lengths in bytes, precision, dates, strict mode, ratio, reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.sql.session import QuerySession
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.judge import any_of
from starrocks_emulator.tables.store import CommitRejected, Store
from tests.support.depth import examples
from tests.support.store_setup import JSON_ARRAY, load, rows, with_tables

WIDE = """CREATE TABLE test.wide (id BIGINT NOT NULL, bo BOOLEAN, ti TINYINT, si SMALLINT, i INT, bi BIGINT,
li LARGEINT, f FLOAT, d DOUBLE, de DECIMAL(6,2), da DATE, dt DATETIME, ch CHAR(3), vc VARCHAR(4), s STRING,
vb VARBINARY(4), j JSON, ar ARRAY<INT>) PRIMARY KEY(id)"""

FITTING: list[tuple[str, Any, Any]] = [
    ("bo", True, True),
    ("bo", "false", False),
    ("bo", 2, True),
    ("ti", 127, 127),
    ("si", "-32768", -32768),
    ("i", "12", 12),
    ("i", 12.0, 12),
    ("i", 1.5, 1),
    ("i", "1e2", 100),
    ("bi", 2**63 - 1, 2**63 - 1),
    ("li", 2**100, str(2**100)),
    ("d", 1.5e300, 1.5e300),
    ("de", "12.345", Decimal("12.35")),
    ("de", 9999.99, Decimal("9999.99")),
    ("de", "1e2", Decimal("100.00")),
    ("da", "2024-02-29", date(2024, 2, 29)),
    ("da", "20240229", date(2024, 2, 29)),
    ("da", "2024-02-29 10:00:00", date(2024, 2, 29)),
    ("dt", "2024-02-29 10:11:12.5", datetime(2024, 2, 29, 10, 11, 12, 500000)),
    ("dt", "2024-02-29T10:11:12", datetime(2024, 2, 29, 10, 11, 12)),
    ("dt", "20240229101112", datetime(2024, 2, 29, 10, 11, 12)),
    ("dt", "2024-02-29T10:11:12+08:00", datetime(2024, 2, 29, 10, 11, 12)),
    ("ch", "abc", "abc"),
    ("vc", "éé", "éé"),
    ("vc", 12, "12"),
    ("s", 'it\'s "quoted"\n', 'it\'s "quoted"\n'),
    ("vb", "ab", b"ab"),
    ("j", {"a": [1, None]}, '{"a": [1, null]}'),
    ("j", "text", '"text"'),
    ("ar", [1, 2], "[1,2]"),
    ("ar", [1.5, "x"], "[1,null]"),
]
DECODED = [
    ("encode64", "AP/+", b"\x00\xff\xfe"),
    ("encode64", "", b""),
    ("encode64", None, None),
    ("hex", "00ffFE", b"\x00\xff\xfe"),
    ("hex", None, None),
]
MISFITTING: list[tuple[str, Any]] = [
    ("bo", "maybe"),
    ("ti", 128),
    ("si", "x"),
    ("i", True),
    ("i", "1_000"),
    ("li", 1.0),
    ("i", "0x10"),
    ("i", ""),
    ("bi", 2**63),
    ("f", 1e39),
    ("de", "1234567890123456789.00"),
    ("de", "1,5"),
    ("da", "2024-02-30"),
    ("da", "infinity"),
    ("dt", "2024-02-29 24:00:00"),
    ("ar", "[1, 2]"),
    ("ch", "abcd"),
    ("vc", "ééé"),
    ("s", "x" * 65534),
]
REFUSED: list[tuple[str, Any]] = [("de", "12345.00"), ("de", "123456789.00"), ("vb", "abcde")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = with_tables(Store(tmp_path_factory.mktemp("judge")))
    run(opened, QuerySession(), WIDE)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _empty(store: Store) -> None:
    run(store, QuerySession(), "TRUNCATE TABLE test.wide; TRUNCATE TABLE test.orders")


@pytest.mark.parametrize(("column", "value", "stored"), FITTING)
def test_a_fitting_value_is_kept(store: Store, column: str, value: Any, stored: Any) -> None:
    load(store, "wide", [{"id": 1, column: value}], headers={**JSON_ARRAY, "strict_mode": "true"})
    assert rows(store, f"SELECT {column} FROM wide") == [(stored,)]


@pytest.mark.parametrize(("column", "value"), MISFITTING)
def test_a_misfitting_value_is_null_or_filters_the_row_in_strict_mode(store: Store, column: str, value: Any) -> None:
    load(store, "wide", [{"id": 1, column: value}])
    assert rows(store, f"SELECT {column} FROM wide") == [(None,)]
    with pytest.raises(CommitRejected) as failure:
        load(store, "wide", [{"id": 2, column: value}], headers={**JSON_ARRAY, "strict_mode": "true"})
    assert failure.value.filtered == 1
    assert re.search(rf"column={column}\b|'{column}'", failure.value.reasons[0])


@pytest.mark.parametrize("holds", ["true", "false"])
def test_conditions_of_thousands_of_columns_are_not_too_deep(holds: str) -> None:
    conditions = any_of([*["false"] * 5_000, holds])
    assert duckdb.execute(f"SELECT {conditions}").fetchone() == (holds == "true",)


@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize(("column", "value"), REFUSED)
def test_what_the_writer_refuses_is_filtered_without_strict_mode_too(
    store: Store, column: str, value: Any, strict: str
) -> None:
    with pytest.raises(CommitRejected) as failure:
        load(store, "wide", [{"id": 2, column: value}], headers={**JSON_ARRAY, "strict_mode": strict})
    assert failure.value.filtered == 1
    assert f"'{column}'" in failure.value.reasons[0]


@pytest.mark.parametrize(
    "row", [{"order_id": 1}, {"order_id": 1, "customer_id": None}, {"order_id": "x", "customer_id": 1}]
)
def test_not_null_filters_the_row(store: Store, row: dict[str, Any]) -> None:
    with pytest.raises(CommitRejected, match="No rows were imported from upstream, tracking_url: "):
        load(store, "orders", [row])


def test_one_filtered_row_fails_the_commit_unless_the_ratio_allows_it(store: Store) -> None:
    content = [{"order_id": 1, "customer_id": 1}, {"order_id": 2}]
    with pytest.raises(CommitRejected) as failure:
        load(store, "orders", content)
    assert failure.value.cause.startswith("abnormal data more than max filter rate, tracking_url: ")
    assert (failure.value.loaded, failure.value.filtered) == (1, 1)
    with pytest.raises(CommitRejected):
        load(store, "orders", content, headers={**JSON_ARRAY, "max_filter_ratio": "0.49"})
    _, counts = load(store, "orders", content, headers={**JSON_ARRAY, "max_filter_ratio": "0.5"})
    assert (counts.loaded, counts.filtered) == (1, 1)


def test_reasons_name_the_column_and_the_log_shows_the_row(store: Store) -> None:
    with pytest.raises(CommitRejected) as failure:
        load(
            store,
            "orders",
            [{"order_id": "secret", "customer_id": 1}, {"order_id": 5}],
            headers={**JSON_ARRAY, "strict_mode": "true"},
            label="explained",
        )
    unread, missing = failure.value.reasons
    assert unread.startswith("Invalid argument: Unable to cast string value to BIGINT. value=secret, column=order_id\n")
    assert missing == "NULL value in non-nullable column 'customer_id' (1 rows, first: row 2)"
    ((log,),) = rows(store, "SELECT tracking_log FROM information_schema.load_tracking_logs WHERE label = 'explained'")
    lines = log.splitlines()
    assert lines[0] == "Error: Invalid argument: Unable to cast string value to BIGINT. value=secret, column=order_id"
    assert lines[2].endswith('. Row: {"order_id": "secret", "customer_id": 1}')
    assert lines[3] == "Error: NULL value in non-nullable column 'customer_id'. Row: [5, NULL, NULL, NULL, 0]"


@pytest.mark.parametrize("content", ["", [], "[ ]"])
def test_a_table_without_rows_fails_the_commit(store: Store, content: Any) -> None:
    with pytest.raises(CommitRejected, match=r"No rows were imported from upstream$"):
        load(store, "orders", content)


@pytest.mark.parametrize("operation", ["upsert", "delete", "x", True, None])
def test_an_operation_that_is_no_number_is_filtered(store: Store, operation: Any) -> None:
    with pytest.raises(CommitRejected) as failure:
        load(
            store,
            "orders",
            [{"order_id": 1, "customer_id": 1, "__op": operation}],
            headers={**JSON_ARRAY, "strict_mode": "true"},
        )
    assert "__op" in failure.value.reasons[0]


def test_one_deletes_and_any_other_number_does_not(store: Store) -> None:
    load(store, "orders", [{"order_id": key, "customer_id": 1} for key in range(6)])
    operations = [1, "1", 1.0, 0, 2, -1]
    load(store, "orders", [{"order_id": key, "customer_id": 2, "__op": op} for key, op in enumerate(operations)])
    assert rows(store, "SELECT order_id, customer_id FROM orders ORDER BY 1") == [(3, 2), (4, 2), (5, 2)]


@pytest.mark.parametrize(
    ("columns", "rest", "most"),
    [
        ("name VARCHAR(200) NOT NULL", {}, 128),
        ("id INT NOT NULL, name VARCHAR(200) NOT NULL", {"id": 1}, 124),
        ("name VARCHAR(200) NOT NULL, day DATE NOT NULL", {"day": "2024-01-01"}, 122),
        ("name VARCHAR(200) NOT NULL, part VARCHAR(200) NOT NULL", {"part": "\0é"}, 123),
    ],
)
def test_a_too_large_primary_key_fails_the_commit_without_a_count(
    store: Store, columns: str, rest: dict[str, Any], most: int
) -> None:
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    run(store, QuerySession(), "DROP TABLE IF EXISTS test.named")
    run(store, QuerySession(), f"CREATE TABLE test.named ({columns}) PRIMARY KEY({names})")
    load(store, "named", [{"name": "x" * most} | rest])
    with pytest.raises(CommitRejected, match=r"No rows were imported from upstream$") as refused:
        load(store, "named", [{"name": "x" * (most + 1)} | rest])
    assert not refused.value.counts


def test_a_null_character_in_front_of_another_value_of_the_key_counts_twice(store: Store) -> None:
    run(store, QuerySession(), "CREATE TABLE IF NOT EXISTS test.ended (n VARCHAR(200), id INT) PRIMARY KEY(n, id)")
    load(store, "ended", [{"n": "x" * 120 + "\0", "id": 1}])
    with pytest.raises(CommitRejected):
        load(store, "ended", [{"n": "x" * 119 + "\0\0", "id": 1}])


@given(unscaled=st.integers(-(10**10) + 1, 10**10 - 1), quoted=st.booleans())
@examples(40)
def test_decimals_stay_exact(store: Store, unscaled: int, quoted: bool) -> None:
    text = str(Decimal(unscaled).scaleb(-2))
    value = f'"{text}"' if quoted else text
    load(store, "orders", f'[{{"order_id": 1, "customer_id": 1, "total_amount": {value}}}]')
    assert rows(store, "SELECT total_amount FROM orders") == [(Decimal(text),)]


def test_long_decimals_stay_exact_as_strings(store: Store) -> None:
    ddl = "CREATE TABLE IF NOT EXISTS test.exact (id INT NOT NULL, d DECIMAL(38,10)) PRIMARY KEY(id)"
    run(store, QuerySession(), ddl)
    text = "1234567890123456789012345678.0123456789"
    load(store, "exact", [{"id": 1, "d": text}])
    assert rows(store, "SELECT d FROM exact") == [(Decimal(text),)]


@pytest.mark.parametrize(("encoding", "text", "content"), DECODED)
def test_a_text_is_decoded_into_bytes_under_its_own_name(
    store: Store, encoding: str, text: str | None, content: bytes | None
) -> None:
    """The other columns have their own names, although the header names none (Load.java: initColumns)."""
    headers = {**JSON_ARRAY, "columns": f"`vb`=to_binary(`vb`, '{encoding}')"}
    load(store, "wide", json.dumps([{"id": 1, "i": 7, "vb": text}, {"id": 2}]), headers=headers)
    assert rows(store, "SELECT id, i, vb FROM wide ORDER BY id") == [(1, 7, content), (2, None, None)]
