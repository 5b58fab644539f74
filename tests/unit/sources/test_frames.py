"""The number in front of a message: Confluent's, Apicurio's, or none."""

from __future__ import annotations

import pyarrow as pa

from starrocks_txn_sink.sources.formats import frames
from starrocks_txn_sink.sources.formats.frames import Form, key_of

MESSAGES: dict[bytes | None, int] = {
    b"\0\0\0\0\x11": key_of(17),
    b"\0\xff\xff\xff\xffx": key_of(2**32 - 1),
    b"\0\0\0\0\0\0\0\0\x07x": key_of(7, Form.EIGHT_BYTES),
    b'{"schemaId":12,"payload":{"a":1}}': key_of(12, Form.MEMBER),
    b'{"schemaId":12,"payload":"\xff': key_of(12, Form.MEMBER),
    None: -1,
    b"": -1,
    b"\0\0\0\0": -1,
    b"\1\0\0\0\1x": -1,
    b"\0\0\0\0\0": -1,
    b"\0" * 9: -1,
    b"\0\0\0\0\0\0\0\1": -1,
    b'{"op":"c"}': -1,
    b'{"schemaId":0,"payload":{}}': -1,
    b'{"schemaId":1234567890123456789,"payload":{}}': -1,
    b' {"schemaId":12,"payload":{}}': -1,
}


def test_keys() -> None:
    messages = pa.array([*MESSAGES], pa.binary())
    assert frames.keys_of(messages).tolist() == [*MESSAGES.values()]
    assert frames.keys_of(messages[3:]).tolist() == [*MESSAGES.values()][3:]
    assert frames.keys_of(messages.cast(pa.large_binary())).tolist() == [*MESSAGES.values()]
    assert frames.keys_of(messages[:0]).tolist() == []


def test_what_a_key_says() -> None:
    keys = [key for key in MESSAGES.values() if key >= 0]
    assert [frames.number_of(key) for key in keys[2:4]] == [(7, Form.EIGHT_BYTES), (12, Form.MEMBER)]
    assert [frames.header_size(key) for key in keys[1:4]] == [5, 9, len('{"schemaId":12,"payload":')]
