from __future__ import annotations

import gzip
import io

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.rows.body import JsonArray, load_body

PIECES = [memoryview(b',{"a":1},{"a":2}'), memoryview(b',{"b":"\xc3\xa9"}')]


def test_pieces_become_one_json_array_and_can_be_sent_again() -> None:
    body = JsonArray(PIECES)
    for _ in range(2):
        data = b"".join(body)
        assert orjson.loads(data) == [{"a": 1}, {"a": 2}, {"b": "é"}]
        assert len(body) == len(data)


def test_no_piece_is_copied() -> None:
    backing = bytearray(b',{"a":1}')
    parts = list(JsonArray([memoryview(backing)]))
    backing[6:7] = b"7"
    assert b"".join(parts) == b'[{"a":7}]'


@pytest.mark.parametrize("compression", ["gzip", "lz4_frame", "zstd"])
def test_compressed_bodies_read_back(compression: str) -> None:
    body = load_body(PIECES, compression)
    data = b"".join(body)
    assert len(body) == len(data)
    name = {"lz4_frame": "lz4"}.get(compression, compression)
    plain = pa.CompressedInputStream(pa.BufferReader(data), name).read()
    assert orjson.loads(plain) == [{"a": 1}, {"a": 2}, {"b": "é"}]
    if compression == "gzip":
        assert gzip.GzipFile(fileobj=io.BytesIO(data)).read() == plain
