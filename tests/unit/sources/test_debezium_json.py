"""Debezium's values over Arrow mean the same by the compiled loop, at once and one by one; rows keep their text."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.sources.formats import debezium_json, json_text
from starrocks_txn_sink.sources.formats.debezium import _stable_id
from starrocks_txn_sink.sources.formats.debezium_json import CHANGE, MARKER, read_keys, read_values
from starrocks_txn_sink.sources.formats.json_text import judge_object
from tests.support.debezium_feed import change, marker, postgres, with_schema
from tests.support.depth import scaled

ROW = '{"amount":12345678901234567890.125,"rate":1.10,"note":"}{,\\"after\\":1","deep":[{"x":{}}]}'


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def event(row: str = ROW, op: str = "c") -> str:
    return compact(change(postgres("orders", 90), "5:9", 1, {"ROW": 0}, None, op)).replace('{"ROW":0}', row)


def wrapped(text: str) -> str:
    return compact(with_schema("PAYLOAD")).replace('"PAYLOAD"', text)


pytestmark = pytest.mark.usefixtures("loop")


def read(*values: str | bytes, fields: pa.Schema = CHANGE) -> list[Any]:
    """The fields of each value; None for a malformed one."""
    messages = pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    table, valid = read_values(messages, fields)
    table.validate(full=True)
    table = table.select(fields.names)
    sound = iter(table.to_pylist())
    return [next(sound) if is_sound else None for is_sound in valid]


@pytest.mark.parametrize("shape", [event(), wrapped(event()), event().replace('":', '" : '), f" {event()}\n"])
def test_a_row_keeps_its_text(shape: str) -> None:
    for row in read(shape, shape):
        assert json.loads(row["after"].replace('" : ', '":'), parse_float=str) == json.loads(ROW, parse_float=str)
        assert (row["before"], row["op"], row["source"]["lsn"]) == (None, "c", 90)
    if " :" not in shape:
        assert row["after"] == ROW


def test_values_of_a_usual_feed_are_read_at_once(monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    calls: list[str] = []

    def counted(text: str) -> dict[str, tuple[Any, str]]:
        calls.append(text)
        return members(text)

    for module in (debezium_json, json_text):
        monkeypatch.setattr(module, "members", counted)
    assert len(read(*[event()] * 100)) == 100
    assert calls == []
    assert {fields["after"] for fields in read(*[wrapped(event())] * 100)} == {ROW}
    # Python reads the first value alone: for the place of its payload, and for its rows.
    assert len(calls) == (0 if loop == "compiled" else 3)


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
    assert [row is None for row in read(good, value, good)] == [False, True, False]


def test_a_payload_of_another_type_is_malformed() -> None:
    assert read('{"payload":1}') == [None]


def test_members_that_come_again_or_are_spelled_otherwise_count_as_everywhere() -> None:
    for text in (
        event()[:-1] + ',"after":{"id":2}}',
        event()[:-1] + r',"\u0061fter":{"id":2}}',
        event()[:-1] + ' , "after" : {"id":2} }',
    ):
        assert [row["after"] for row in read(text, event())] == ['{"id":2}', ROW]
    doubled = wrapped(event())[:-1] + ',"payload":' + event('{"id":2}') + "}"
    assert [row["after"] for row in read(wrapped(event()), wrapped(event()), doubled)] == [ROW, ROW, '{"id":2}']


def test_the_key_of_a_delete_is_one_object() -> None:
    usual = [b'{"id":1.10}', b'{ "id" : 2 }']
    odd = [b'{"schema":{},"payload":{"payload":7}}', b'{"payload":7}', rb'{"p\u0061yload":{"id":1},"schema":{}}']
    rows, sound, _ = read_keys(pa.array(usual))
    assert (rows.to_pylist(), sound.tolist()) == (['{"id":1.10}', '{ "id" : 2 }'], [True, True])
    rows, sound, _ = read_keys(pa.array([*usual, *odd]))
    assert rows.to_pylist()[2:] == ['{"payload":7}', '{"payload":7}', '{"id":1}']
    rows, sound, _ = read_keys(pa.array([*usual, b'{"id":1}{"id":2}', b'{"schema":{},"payload":7}', b"\xff"]))
    assert (rows.to_pylist()[2:], sound.tolist()) == ([None] * 3, [True, True, False, False, False])


@pytest.mark.parametrize("tables", [0, 255, 256])
def test_keys_of_a_table_share_their_schema(tables: int) -> None:
    """Python reads the schema of one key of a table, for 256 of them; behind so many, and without the loop, of each."""
    keys = {
        **{b'{"schema":%d,"payload":{"id":0}}' % number: '{"id":0}' for number in range(tables)},
        b'{"schema":{"a":1},"payload":{"id":1}}': '{"id":1}',
        b'{"id":"\\u0041"}': r'{"id":"\u0041"}',
        b'{"schema":{"a":1},"payload":{"id":{"payload":2}}}': '{"id":{"payload":2}}',
        b'{"schema":{"b":1},"payload":{"id":3}}': '{"id":3}',
        b'{"schema":{"a":1},"payload":7}': None,
        b'{"schema":{"a":1},"payload":"{}"}': None,
        b'{"schema":{"a":1},"payload":{"id":4},"x":{}}': '{"schema":{"a":1},"payload":{"id":4},"x":{}}',
        b'{"schema":{"a":1},"payload":{"id":5} }': '{"id":5}',
        b'{"payload":{"id":6},"schema":{"a":1}}': '{"id":6}',
        b'{"schema":{"a":1},"payload":{"id":7},"payload":{"id":8}}': '{"id":8}',
    }
    rows, sound, origins = read_keys(pa.array(keys))
    assert rows.to_pylist() == [*keys.values()]
    assert sound.tolist() == [row is not None for row in keys.values()]
    schemas_of = [json.loads(key).get("schema") if "payload" in json.loads(key) else None for key in keys]
    for at, origin in enumerate(origins.tolist()):
        assert origin < 0 or schemas_of[origin] == schemas_of[at]
        assert origin >= 0 or not sound[at] or schemas_of[at] is None


def test_markers() -> None:
    begin, end = marker("BEGIN", "5:9"), marker("END", "5:9", {"public.orders": 2})
    for wrap in (compact, lambda value: compact(with_schema(value))):
        first, second = read(wrap(begin), wrap(end), fields=MARKER)
        assert (first["status"], first["event_count"], first["data_collections"]) == ("BEGIN", None, None)
        assert second["data_collections"] == [{"data_collection": "public.orders", "event_count": 2}]


_LISTS = (
    '[{"data_collection":"public.orders","event_count":2}]',
    '[ {"event_count" : 3, "more":[1], "data_collection":"p\\u00e9"} ,null]',
    "[]",
    "null",
    '"[]"',
    '[{"data_collection":"a","event_count":1.0}]',
    '[{"data_collection":"a","event_count":18446744073709551616}]',
    '[{"data_collection":"\\ud800","event_count":1}]',
    '[{"data_collection":7,"event_count":1}]',
    "[7]",
    "{}",
    "[1",
    "[[]]",
    "[" * 70 + "]" * 70,
)


@pytest.mark.parametrize("seed", range(3))
def test_lists_of_markers_mean_the_same_at_once_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(60)):
        lists = rng.sample(_LISTS, 3)
        sound = [text for text in lists if judge_object(pa.scalar(f'{{"data_collections":{text}}}'), MARKER)]
        choice = rng.choice((sound, lists)) or ["null"]
        texts = [f'{{"status":"END","id":"5:9","data_collections":{rng.choice(choice)}}}' for _ in range(20)]
        values = [text if rng.random() < 0.7 else wrapped(text) for text in texts]
        judgements = [judge_object(pa.scalar(value.encode(), pa.binary()), MARKER, "payload") for value in values]
        assert read(*values, fields=MARKER) == judgements


def test_a_list_that_python_writes_longer_than_its_value_stays_in_its_buffer() -> None:
    """Its objects get the members that they lack; the escape in a name is what Python is asked about."""
    text = f'{{"stat\\u0075s":"END","id":"5:9","data_collections":[{",".join(["{}"] * 5000)}]}}'
    usual = compact(marker("END", "7:9", {"public.orders": 2}))
    first, last = read(text, usual, fields=MARKER)
    assert first["data_collections"] == [{"data_collection": None, "event_count": None}] * 5000
    assert (first["status"], last["id"]) == ("END", "7:9")


def test_many_different_lists_of_markers() -> None:
    markers = [compact(marker("END", "5:9", {"public.orders": count})) for count in range(1, 2000)]
    counts = [fields["data_collections"][0]["event_count"] for fields in read(*markers, fields=MARKER)]
    assert counts == list(range(1, 2000))


@pytest.mark.parametrize("odd", [None, "", "5", ":5", "5:", "5:9:1", "5x:9", "é:1", "gtid-1:file=binlog.000003,pos=9"])
def test_an_id_with_an_lsn_is_its_number(odd: str | None) -> None:
    usual = ["7:90", "12345:6", None, "0:0"]
    expected = ["7", "12345", None, "0"]
    assert _stable_id(pa.array(usual)).to_pylist() == expected
    assert _stable_id(pa.array(["x", *usual]).slice(1)).to_pylist() == expected
    assert _stable_id(pa.array([*usual, odd, "1:2"])).to_pylist() == [*expected, odd, "1"]


@pytest.mark.parametrize("seed", range(3))
def test_random_values_mean_the_same_at_once_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(500)):
        values = [_random_value(rng).encode() for _ in range(rng.choice((1, 2, 5, 40)))]
        judgements = [judge_object(value, CHANGE, "payload") for value in pa.array(values, pa.binary())]
        assert read(*values) == judgements


_SPELLINGS = {
    '"op"': (r'"\u006fp"', '"op" '),
    '"lsn":90': ('"lsn":null', '"lsn":1e2', '"lsn":"90"', '"lsn":-9223372036854775808', '"lsn":9223372036854775808'),
    '"table":"orders"': (
        '"table":5',
        '"table":null',
        r'"table":"\ud83d\ude00\n"',
        r'"table":"\ud800"',
        '"table":[]',
    ),
    '"transaction":{': ('"transaction":null,"t":{', '"transaction":[],"t":{', '"transaction":{"id":null,"id":"7",'),
    '"source":{': ('"source":{"name":"first"},"source":{', '"source":null,"s":{', '"sourc":{', '"source":7,"s":{'),
    '"payload":': ('"payload":null,"payload":', '"payload":{"op":"d"},"payload":', '"payload":"text","p":', '"p":'),
    '"schema":': ('"op":{},"schema":', '"after":{"old":1},"lsn":7,"schema":', '"payload":null,"schema":'),
    '"total_order":1': ('"total_order":1.0', '"total_order":true', '"total_order":-0', '"total_order":1e1'),
}


def _random_value(rng: random.Random) -> str:
    """A change event with or without the converter's schema, often with an oddity or two."""
    row = rng.choice((ROW, "{}", "null", '{"a":{"after":1}}', '"text"', "1.10", r'{"v":"\u00e9"}', "[" * 70 + "]" * 70))
    text = event(row, rng.choice("cudr"))
    if rng.random() < 0.5:
        text = wrapped(text)
    for _ in range(rng.choice((0, 0, 1, 2))):
        usual = rng.choice(list(_SPELLINGS))
        text = text.replace(usual, rng.choice(_SPELLINGS[usual]), 1)
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(('"', "{", "}", ",", " ", "1", "\\", "é")) + text[at + rng.randrange(2) :]
    return text
