"""What bodies may look like: JSON and CSV in all their forms, compressed or not, and what is said about broken ones."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from starrocks_emulator.sql.session import QuerySession
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.tables.store import NO_ROWS, CommitRejected, Store
from tests.support.store_setup import JSON_ARRAY, load, rows, with_tables

JSON = {"format": "json"}
CSV = {"format": "csv", "column_separator": ","}
PAIR = "SELECT order_id, customer_id FROM orders ORDER BY order_id"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = with_tables(Store(tmp_path_factory.mktemp("bodies")))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _empty(store: Store) -> None:
    run(store, QuerySession(), "TRUNCATE TABLE test.orders")


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (JSON_ARRAY, '[{"order_id":1,"customer_id":2,"unknown":{"a":1}}]'),
        (JSON_ARRAY, ' [ {"order_id":1,\n "customer_id":2} ] \n'),
        (JSON, '{"order_id":1,"customer_id":2}'),
        ({**JSON, "jsonpaths": '["$.k.id", "$.c[0]"]', "columns": "order_id,customer_id"}, '{"k":{"id":1},"c":[2]}'),
        ({**JSON, "json_root": "$.data"}, '{"data":{"order_id":1,"customer_id":2}}'),
        ({**JSON_ARRAY, "json_root": "$.data"}, '{"data":[{"order_id":1,"customer_id":2}]}'),
        ({**JSON, "columns": "order_id,b,customer_id=b+1"}, '{"order_id":1,"b":1}'),
        ({**JSON, "ignore_json_size": "true"}, '{"order_id":1,"customer_id":2}'),
        ({**JSON, "columns": "order_id,customer_id,customer_id=customer_id+1"}, '{"order_id":1,"customer_id":1}'),
        ({**JSON, "columns": "customer_id=order_id+1"}, '{"order_id":1,"customer_id":7}'),
        ({**CSV, "columns": "order_id,customer_id"}, "1,2\n"),
        ({**CSV, "columns": "customer_id,order_id"}, "2,1"),
        ({"columns": "order_id,customer_id"}, "1\t2\n"),
        ({**CSV, "columns": "order_id,customer_id", "skip_header": "1"}, "a,b\n1,2\n"),
        ({**CSV, "columns": "order_id,customer_id", "trim_space": "true"}, " 1 , 2 \n"),
        ({"column_separator": "\\x01", "row_delimiter": "\\x02", "columns": "order_id,customer_id"}, "1\x012\x02"),
        ({"column_separator": "||", "row_delimiter": "\\r\\n", "columns": "order_id,customer_id"}, "1||2\r\n"),
        ({**CSV, "columns": "order_id,temp,customer_id=temp*2"}, "1,1\n"),
        ({**CSV, "columns": "order_id,customer_id", "enclose": '"'}, '"1","2"\n'),
        ({**CSV}, "1,2,\\N,open\n"),
    ],
)
def test_one_row_in_many_shapes(store: Store, headers: Mapping[str, str], content: str) -> None:
    load(store, "orders", content, headers=headers)
    assert rows(store, PAIR) == [(1, 2)]


def test_objects_one_after_another(store: Store) -> None:
    content = '{"order_id":1,"customer_id":1}{"order_id":2,"customer_id":2}\n {"order_id":3,\n"customer_id":3}'
    load(store, "orders", content, '{"order_id":4,"customer_id":4}', headers=JSON)
    assert [key for key, _ in rows(store, PAIR)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("gzip", gzip.compress),
        ("bzip2", bz2.compress),
        ("zstd", lambda data: pa.compress(data, "zstd", asbytes=True)),
        ("lz4_frame", lambda data: _stream(data, "lz4")),
        ("deflate", zlib.compress),
    ],
)
def test_compressed_bodies(store: Store, name: str, compress: Any) -> None:
    load(store, "orders", compress(b'[{"order_id":1,"customer_id":2}]'), headers={**JSON_ARRAY, "compression": name})
    csv = {**CSV, "format": name.removesuffix("_frame"), "columns": "order_id,customer_id"}
    load(store, "orders", compress(b"3,4\n"), compress(b"5,6\n"), headers=csv)
    assert rows(store, PAIR) == [(1, 2), (3, 4), (5, 6)]
    with pytest.raises(CommitRejected, match="Failed to decompress the body"):
        load(store, "orders", b"[not compressed]", headers={**JSON_ARRAY, "compression": name})


def _stream(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def test_csv_bodies_are_one_stream(store: Store) -> None:
    headers = {**CSV, "columns": "order_id,customer_id"}
    load(store, "orders", "1,2\n3,", "4\n5,6\n", headers=headers)
    assert rows(store, PAIR) == [(1, 2), (3, 4), (5, 6)]


def test_a_csv_row_of_another_width_is_filtered(store: Store) -> None:
    with pytest.raises(CommitRejected) as failure:
        load(store, "orders", "1,2\n1,2,3\n", headers={**CSV, "columns": "order_id,customer_id"})
    assert failure.value.reasons == ["value count does not match column count, expected 2 (1 rows, first: row 2)"]


def test_enclosed_and_escaped_separators(store: Store) -> None:
    columns = {**CSV, "columns": "order_id,customer_id,order_status"}
    load(store, "orders", '1,1,"a,b"\n', headers={**columns, "enclose": '"'})
    load(store, "orders", "2,1,a\\,b\n", headers={**columns, "escape": "\\"})
    assert rows(store, "SELECT order_status FROM orders") == [("a,b",), ("a,b",)]


def test_operations_in_csv(store: Store) -> None:
    load(store, "orders", "1,1\n2,1\n", headers={**CSV, "columns": "order_id,customer_id"})
    load(store, "orders", "1,1,1\n3,1,0\n", headers={**CSV, "columns": "order_id,customer_id,__op"})
    load(store, "orders", "3,1\n", headers={**CSV, "columns": "order_id,customer_id,__op='delete'"})
    assert rows(store, PAIR) == [(2, 1)]


def test_where_leaves_rows_out_without_filtering(store: Store) -> None:
    headers = {**CSV, "columns": "order_id,customer_id", "where": "order_id > 1 AND customer_id <> 9"}
    _, counts = load(store, "orders", "1,1\n2,1\n3,9\n", headers=headers)
    assert (counts.loaded, counts.filtered, counts.unselected) == (1, 0, 2)
    assert rows(store, PAIR) == [(2, 1)]


@pytest.mark.parametrize(
    ("headers", "content", "cause"),
    [
        (JSON_ARRAY, '[{"order_id":1,"customer_id":2},{', NO_ROWS),
        (JSON, '{"order_id":1,"customer_id":2},{"order_id":1}', NO_ROWS),
        (JSON_ARRAY, '{"order_id":1,"customer_id":2}', NO_ROWS),
        (JSON, '[{"order_id":1,"customer_id":2}]', NO_ROWS),
        (JSON_ARRAY, b'\xef\xbb\xbf[{"order_id":1,"customer_id":2}]', NO_ROWS),
        (JSON_ARRAY, '[{"order_id":1,"customer_id":2},1]', NO_ROWS),
        ({**CSV, "columns": "order_id,customer_id"}, b"1,\xff\n", "UTF-8"),
    ],
)
def test_a_broken_body_fails_the_commit_with_its_cause(
    store: Store, headers: Mapping[str, str], content: Any, cause: str
) -> None:
    with pytest.raises(CommitRejected) as failure:
        load(store, "orders", content, headers=headers)
    assert cause in failure.value.cause
    assert str(store.spool_dir) not in failure.value.cause
    assert rows(store, PAIR) == []


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"format": "parquet"}, "Unknown data format parquet"),
        ({"compression": "brotli"}, "Unsupported compression type: brotli"),
        ({"strict_mode": "yes"}, "strict_mode"),
        ({"max_filter_ratio": "2"}, "max_filter_ratio"),
        ({"columns": "order_id"}, "Column has no default value. column: customer_id"),
        ({"columns": "order_id,customer_id,x=1"}, "Mapping column is not in table. column: x"),
        ({"columns": "order_id,order_id"}, "Duplicate column: order_id"),
        ({"columns": "note='a',note='b'"}, "Duplicate column mapping: note"),
        ({"columns": "order_id,customer_id,__op='merge'"}, "load op type string not supported: merge"),
        ({"columns": "customer_id", "partial_update": "true"}, "key column order_id not in partial update columns"),
        ({"merge_condition": "order_id"}, "Merge condition column order_id"),
        ({"jsonpaths": "{", "format": "json"}, "Invalid json paths"),
        ({"where": "nope > 1"}, "Column 'nope' cannot be resolved"),
        ({"columns": "order_id,customer_id=no_such_function(order_id)"}, "cannot be evaluated"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(store: Store, headers: Mapping[str, str], message: str) -> None:
    with pytest.raises(PlanRejected) as failure:
        store.plan("test", "orders", headers)
    assert message in failure.value.message


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"partial_update": "true"}, "Only primary key table support partial update"),
        ({"merge_condition": "note"}, "Conditional update only support primary key table order_events"),
    ],
)
def test_primary_key_features_are_refused_elsewhere(store: Store, headers: Mapping[str, str], message: str) -> None:
    with pytest.raises(PlanRejected, match=message):
        store.plan("test", "order_events", headers)
