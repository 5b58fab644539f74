from __future__ import annotations

import gzip
import io
from itertools import pairwise

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.rows import body
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


@pytest.mark.parametrize("compression", ["gzip", "lz4_frame", "zstd"])
def test_compressed_bodies_read_back(compression: str) -> None:
    compressed = load_body(PIECES, compression)
    data = b"".join(compressed)
    assert len(compressed) == len(data)
    name = {"lz4_frame": "lz4"}.get(compression, compression)
    plain = pa.CompressedInputStream(pa.BufferReader(data), name).read()
    assert orjson.loads(plain) == [{"a": 1}, {"a": 2}, {"b": "é"}]
    if compression == "gzip":
        assert gzip.GzipFile(fileobj=io.BytesIO(data)).read() == plain


def test_a_body_that_is_released_as_it_is_sent_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_RELEASED_BYTES", 8)
    plain, sent, released = load_body(PIECES, "none"), list[memoryview](), list[int]()
    parts = ReleasedBody(plain, lambda: released.append(sum(map(len, sent))))
    for part in parts:
        assert len(part) <= 8
        sent.append(part)
    assert b"".join(sent) == b"".join(plain)
    assert len(parts) == len(plain) == released[-1]
    assert max(after - before for before, after in pairwise([0, *released])) < 2 * 8
