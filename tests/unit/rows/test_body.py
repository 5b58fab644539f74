from __future__ import annotations

import gzip
import io
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.options import Compression, SinkOptions
from starrocks_txn_sink.options.enums import COMPRESSIONS
from starrocks_txn_sink.rows.body import ReleasedBody, load_body

PIECES = [memoryview(b',{"a":1},{"a":2}'), memoryview(b',{"b":"\xc3\xa9"}')]


def test_pieces_become_one_json_array_and_can_be_sent_again() -> None:
    array = load_body(PIECES, "none")
    for _ in range(2):
        data = b"".join(array)
        assert orjson.loads(data) == [{"a": 1}, {"a": 2}, {"b": "é"}]
        assert len(array) == len(data)


def test_no_piece_is_copied() -> None:
    backing = bytearray(b',{"a":1}')
    parts = list(load_body([memoryview(backing)], "none"))
    backing[6:7] = b"7"
    assert b"".join(parts) == b'[{"a":7}]'


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_compressed_bodies_read_back(compression: Compression) -> None:
    compressed = load_body(PIECES, compression.value)
    data = b"".join(compressed)
    assert len(compressed) == len(data)
    plain = pa.CompressedInputStream(pa.BufferReader(data), compression.codec).read()
    assert orjson.loads(plain) == [{"a": 1}, {"a": 2}, {"b": "é"}]
    if compression is Compression.GZIP:
        assert gzip.GzipFile(fileobj=io.BytesIO(data)).read() == plain


@pytest.mark.parametrize("compression", Compression)
def test_each_compression_is_an_option_a_property_and_a_value_of_other_connectors(compression: Compression) -> None:
    text = compression.value
    server: dict[str, Any] = {"load_url": "fe", "database": "shop", "delivery": "at-least-once"}
    flink = {"load-url": "fe", "database-name": "shop", "sink.semantic": "at-least-once"}
    for options in (
        SinkOptions(**server, compression=text),
        SinkOptions(**server, properties={"compression": text}),
        SinkOptions.from_properties({**flink, "sink.properties.compression": text}),
    ):
        assert options.compression_of("t") is compression
        assert options.load_headers("t").get("compression", "none") == text
    assert text in COMPRESSIONS


def test_a_body_that_is_released_as_it_is_sent_has_the_same_bytes() -> None:
    plain, sent_parts, released = load_body(PIECES, "none"), list[memoryview](), list[int]()
    parts = ReleasedBody(plain, lambda: released.append(sum(map(len, sent_parts))), part_bytes=8)
    for part in parts:
        assert len(part) <= 8
        sent_parts.append(part)
    assert b"".join(sent_parts) == b"".join(plain)
    assert len(parts) == len(plain) == released[-1]
    assert max(after - before for before, after in pairwise([0, *released])) < 2 * 8
