"""Debezium's values over Arrow: read at once and one by one, they mean the same, and rows keep their text."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.sources import debezium_values
from starrocks_txn_sink.sources.debezium_values import CHANGE, KEY, MARKER, _Reader
from starrocks_txn_sink.sources.txn_lines import members
from tests.support.debezium_feed import change, marker, postgres, with_schema
from tests.support.depth import scaled

ROW = '{"amount":12345678901234567890.125,"rate":1.10,"note":"}{,\\"after\\":1","deep":[{"x":{}}]}'


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def event(row: str = ROW, op: str = "c") -> str:
    return compact(change(postgres("orders", 90), "5:9", 1, {"ROW": 0}, None, op)).replace('{"ROW":0}', row)


def wrapped(text: str) -> str:
    return compact(with_schema("PAYLOAD")).replace('"PAYLOAD"', text)


def read(*values: str | bytes, fields: Any = CHANGE, keys: list[bytes | None] | None = None) -> list[Any]:
    texts = [each.encode() if isinstance(each, str) else each for each in values]
    columns = {"_value": pa.array(texts, pa.binary())} | ({KEY: pa.array(keys, pa.binary())} if keys else {})
    (made,) = _Reader(fields)([pa.RecordBatch.from_pydict(columns)])
    found = made.to_pydict()
    assert found["_bad"] == [each is None for each in found["_event"]]
    return found["_event"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("shape", [event(), wrapped(event()), event().replace('":', '" : '), f" {event()}\n"])
def test_a_row_keeps_its_text(shape: str) -> None:
    for found in read(shape, shape):
        assert json.loads(found["after"].replace('" : ', '":'), parse_float=str) == json.loads(ROW, parse_float=str)
        assert (found["before"], found["op"], found["source"]["lsn"]) == (None, "c", 90)
    if " :" not in shape:
        assert found["after"] == ROW


def test_values_of_a_usual_feed_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Reader, "_read_one_by_one", lambda *_: pytest.fail("one by one"))
    calls: list[str] = []

    def counted(text: str) -> dict[str, tuple[Any, str]]:
        calls.append(text)
        return members(text)

    monkeypatch.setattr(debezium_values, "members", counted)
    assert len(read(*[event()] * 100)) == 100
    assert calls == []
    assert {each["after"] for each in read(*[wrapped(event())] * 100)} == {ROW}
    assert len(calls) == 3  # the first value alone: for the place of its payload, and for its rows


BAD: dict[str, str | bytes] = {
    "two objects": event() + event(),
    "garbage": event() + " garbage",
    "torn": event()[:-1],
    "single quotes": event().replace('"', "'"),
    "a byte order mark": "\ufeff" + event(),
    "no UTF-8": event().encode().replace(b"note", b"\xff"),
    "NaN": event('{"x":NaN}'),
    "a lone surrogate": event().replace('"orders"', r'"\ud800"'),
    "a text for a number": event().replace('"lsn":90', '"lsn":"90"'),
    "a number out of range": event().replace('"lsn":90', '"lsn":9223372036854775808'),
    "an array": "[1]",
    "nothing": "",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("wrap", [False, True])
def test_what_is_not_one_object_is_malformed_alone_and_among_others(bad: str, wrap: bool) -> None:
    value = BAD[bad]
    if wrap and isinstance(value, str) and value:
        value = wrapped(value)
    good = wrapped(event()) if wrap else event()
    assert read(value) == [None]
    assert [each is None for each in read(good, value, good)] == [False, True, False]


def test_a_payload_of_another_type_is_malformed() -> None:
    assert read('{"payload":1}') == [None]


def test_members_that_come_again_or_are_spelled_otherwise_count_as_everywhere() -> None:
    for text in (
        event()[:-1] + ',"after":{"id":2}}',
        event()[:-1] + r',"\u0061fter":{"id":2}}',
        event()[:-1] + ' , "after" : {"id":2} }',
    ):
        assert [each["after"] for each in read(text, event())] == ['{"id":2}', ROW]
    doubled = wrapped(event())[:-1] + ',"payload":' + event('{"id":2}') + "}"
    assert [each["after"] for each in read(wrapped(event()), wrapped(event()), doubled)] == [ROW, ROW, '{"id":2}']


def test_the_key_of_a_delete_is_one_object() -> None:
    keys = [b'{"id":1.10}', b'{"schema":{},"payload":{"payload":7}}', b'{"payload":7}', b'{"id":1}{"id":2}', None]
    found = read(*[event("null", "d")] * 5, keys=keys)
    assert [each and each[KEY] for each in found] == ['{"id":1.10}', '{"payload":7}', '{"payload":7}', None, None]
    assert found[3] is None
    assert found[4] is not None
    (kept,) = read(event(), keys=[b"no JSON"])
    assert kept[KEY] is None


def test_markers() -> None:
    begin, end = marker("BEGIN", "5:9"), marker("END", "5:9", {"public.orders": 2})
    for wrap in (compact, lambda value: compact(with_schema(value))):
        first, second = read(wrap(begin), wrap(end), fields=MARKER)
        assert (first["status"], first["event_count"], first["data_collections"]) == ("BEGIN", None, None)
        assert second["data_collections"] == [{"data_collection": "public.orders", "event_count": 2}]


@pytest.mark.parametrize("seed", range(3))
def test_random_values_mean_the_same_at_once_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(300)):
        values = [_random_value(rng) for _ in range(rng.choice((1, 2, 5)))]
        assert read(*values) == [read(each)[0] for each in values]
        alone = [_Reader(CHANGE)._event(each.encode()) for each in values]
        assert [each and each["after"] for each in read(*values)] == [each and each["after"] for each in alone]


def _random_value(rng: random.Random) -> str:
    row = rng.choice((ROW, "{}", "null", '{"a":{"after":1}}', '"text"', "1.10", r'{"v":"\u00e9"}'))
    made = event(row)
    if rng.random() < 0.5:
        made = wrapped(made)
    if rng.random() < 0.2:
        at = rng.randrange(len(made))
        made = made[:at] + rng.choice(('"', "{", "}", ",", " ", "1")) + made[at + rng.randrange(2) :]
    return made
