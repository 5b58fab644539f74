"""Reading bodies off a socket: announced, chunked, broken, discarded."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.http.listener import HttpBody
from starrocks_emulator.transactions.backend import BodyBroken


def body_of(data: bytes, **headers: str) -> tuple[HttpBody, io.BufferedReader[io.BytesIO], list[str]]:
    stream = io.BufferedReader(io.BytesIO(data))
    requests: list[str] = []
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpBody(header_fields, stream, lambda: requests.append("asked")), stream, requests


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\nX: y\r\n\r\n"


@given(st.binary(max_size=5000), st.binary(max_size=50))
def test_an_announced_body_ends_where_it_says(data: bytes, after: bytes) -> None:
    body, stream, _ = body_of(data + after, content_length=str(len(data)))
    assert body.read(10_000) == data
    assert body.finished
    assert stream.read() == after


@given(st.lists(st.binary(max_size=700), max_size=8), st.binary(max_size=50))
def test_a_chunked_body_ends_after_its_trailers(pieces: list[bytes], after: bytes) -> None:
    body, stream, _ = body_of(chunked(pieces) + after, transfer_encoding="chunked")
    assert body.length is None
    assert body.read(10_000) == b"".join(pieces)
    assert stream.read() == after


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4), st.data())
def test_a_chunked_body_cut_anywhere_is_broken(pieces: list[bytes], data: st.DataObject) -> None:
    whole = chunked(pieces)
    cut = data.draw(st.integers(0, len(whole) - 1))
    body, _, _ = body_of(whole[:cut], transfer_encoding="chunked")
    with pytest.raises(BodyBroken):
        body.read(10_000)
    assert body.broken


def test_a_short_body_is_broken() -> None:
    body, _, _ = body_of(b"abc", content_length="4")
    with pytest.raises(BodyBroken):
        body.read(100)


@pytest.mark.parametrize("line", [b"zz\r\n", b"-5\r\n", b"5", b""])
def test_a_chunk_size_that_is_none_breaks_the_body(line: bytes) -> None:
    body, _, _ = body_of(line, transfer_encoding="chunked")
    with pytest.raises(BodyBroken):
        body.read(100)


def test_the_client_is_asked_once_and_only_when_the_body_is_wanted() -> None:
    body, _, requests = body_of(b"abcdef", content_length="6", expect="100-continue")
    assert body.may_never_come
    assert requests == []
    view = memoryview(bytearray(4))
    body.readinto(view)
    body.readinto(view)
    assert requests == ["asked"]
    assert not body.may_never_come


def test_a_body_beyond_the_limit_is_not_discarded() -> None:
    body, stream, _ = body_of(b"x" * 100, content_length="100")
    assert not body.discard(99)
    assert stream.tell() == 0
    assert body.discard(100)
    assert body.finished
