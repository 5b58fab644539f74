"""The compiled loops: plain values of TxnEvents and nothing else, read as Python reads them; and messages of Kafka.

`test_one_judgement` judges values with and without them; `tests/kafka` reads a broker with and without them."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_ops.cli import OWN_PACKAGES
from starrocks_txn_sink.compiled.layout import Message
from starrocks_txn_sink.compiled.library import PURE, is_available, library
from starrocks_txn_sink.compiled.messages import Messages, UnreadableHeaders
from starrocks_txn_sink.compiled.objects import ORIGIN, read_objects
from starrocks_txn_sink.sources.formats import txn_events
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from tests.support.depth import scaled
from tests.support.event_lines import DeepRecursion, judge, random_value, same_event

ROOT = Path(__file__).parents[2]
FIELDS = TxnEventLines(source_partition=None, position=None)._fields()
BASE = '{"position": 1, "row": %s}'

needed = pytest.mark.skipif(not is_available(), reason="this installation has no compiled loop")


def read(*values: bytes | str | None, kind: pa.DataType | None = None) -> list[dict[str, Any]] | None:
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    return rows_of(pa.array(raw, kind or pa.binary()))


def rows_of(values: pa.Array) -> list[dict[str, Any]] | None:
    """The rows that the loop reads; None if it leaves a value to Python, or is not there."""
    misfits: list[pa.Scalar] = []
    objects = read_objects(values, FIELDS, misfits.append)
    if objects is None or misfits or not objects[1].all():
        return None
    objects[0].validate(full=True)
    return [dict(row) for row in objects[0].to_pylist()]


@needed
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ('"{}"', "{}"),
        ('""', ""),
        ("null", None),
        (r'"{\"id\": 1}"', '{"id": 1}'),
        (r'"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00\u0000"', '"\\/\b\f\n\r\tAé€😀\x00'),
        ('"é€😀\x7f"', "é€😀\x7f"),
        ("-1.50E+3", "-1.50E+3"),
        ("0", "0"),
        ("true", "true"),
        ('{"a" : [1, {"b":"]}"}, [], {} ]}', '{"a" : [1, {"b":"]}"}, [], {} ]}'),
        (r'{"a": "\ud800"}', r'{"a": "\ud800"}'),
        ("[" * 64 + "]" * 64, "[" * 64 + "]" * 64),
        ('"' + "x" * 100 + r"\n" + "y" * 100 + '"', "x" * 100 + "\n" + "y" * 100),
    ],
)
def test_plain_values_are_read(row: str, text: str | None) -> None:
    for number in (1, 40):  # at the end of the buffer, and before it
        rows = read(*[BASE % row] * number)
        assert rows is not None
        assert [(row["position"], row["row"]) for row in rows] == [(1, text)] * number


@needed
@given(
    st.integers(-(1 << 65), 1 << 65) | st.integers(-(10**9), 10**9),
    st.from_regex(r"-?(0|[1-9]\d{0,40})(\.\d{1,40})?(e[+-]?\d{1,20})?", fullmatch=True, alphabet="-0123456789.e+"),
    st.sampled_from(["", " " * 40]),
)
def test_numbers_of_every_length_are_read(whole: int, number: str, behind: str) -> None:
    """The loop looks at sixteen digits at once, and joins eight, where the text has as many."""
    rows = read(f'{{"row": {number}, "other": {number}, "position": {whole}{behind}}}', kind=pa.string())
    if -(1 << 63) <= whole < 1 << 63:
        assert rows is not None
        assert (rows[0]["position"], rows[0]["row"]) == (whole, number)
    else:
        assert rows is None


@needed
@pytest.mark.parametrize(
    "value",
    [
        None, "", " ", "null", "[]", "{", "{}{}", '{"position": 1,}', '{"position" 1}', '{"position": "1"}',
        '{"position": 1.0}', '{"position": 9223372036854775808}', '{"position": -9223372036854775809}',
        '{"position": 18446744073709551617}', '{"position": 1234567x}', '{"position": 12345678x901234567}',
        '{"a": 1:2}', '{"a": 1/2}',
        r'{"posi\u0074ion": 1}', '{"a": 01}', '{"a": 1.}', '{"a": -}', '{"a": 1e}', '{"a": NaN}', '{"a": tru}',
        '{"a": "\n"}', r'{"a": "\x"}', r'{"a": "\u12g4"}', r'{"row": "\ud800"}', r'{"row": "\ud800\u0041"}',
        r'{"row": "\udc00"}', '{"a": [1,]}', '{"a": [}', '{"a": {"b": 1]}', '{"a": {"b"}}', '{"a": "',
        '{"a": ' + "[" * 65 + "]" * 65 + "}", "\ufeff{}", b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xc0\x80"}', b'{"a": "\xe0\x80\xaf"}', b'{"a": "\xe0\x9f\xbf"}', b'{"a": "\xf0\x8f\xbf\xbf"}',
        b'{"a": "\xf4\x90\x80\x80"}', b'{"a": "\xc3"}', b'{"a": "\xe2\x82"}', b"{}\x00",
    ],
)  # fmt: skip
def test_other_values_are_left_to_python(value: bytes | str | None) -> None:
    assert read(value) is None
    assert read(BASE % 1, value, BASE % 2) is None


@needed
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_python_judges_only_the_values_that_are_not_plain(kind: pa.DataType) -> None:
    """The loop goes on behind such a value, takes its half-read fields back, and never asks about NULL."""
    judgements: dict[str, dict[str, Any] | None] = {
        "not json": None,
        r'{"position": 1, "source_partition": "p", "type": "t", "row": "\ud800"}': None,
        r'{"p\u006fsition": 7, "row": "escaped"}': {"position": 7, "row": "ü\n"},
        '{"a": ' + "[" * 65 + "]" * 65 + "}": {"position": None, "row": "x" * 100},
    }
    plain = [orjson.dumps({"position": number, "row": f"r{number}"}).decode() for number in range(100)]
    expected: list[tuple[int | None, str | None]] = [(number, f"r{number}") for number in range(100)]
    values: list[str | None] = list(plain)
    for at, value in ((0, None), (1, list(judgements)[1]), (40, "not json"), (41, None), (99, list(judgements)[1])):
        values[at] = value
        expected[at] = (-1, None)
    for at, value in ((2, list(judgements)[2]), (50, list(judgements)[3]), (98, list(judgements)[2])):
        event = judgements[value]
        assert event is not None
        values[at], expected[at] = value, (event["position"], event["row"])
    judged_texts: list[str] = []

    def judge(value: pa.Scalar) -> dict[str, Any] | None:
        text = value.as_py()
        judged_texts.append(text.decode() if isinstance(text, bytes) else text)
        return judgements[judged_texts[-1]]

    objects = read_objects(pa.array(["", None, *values, "["]).cast(kind).slice(2, 100), FIELDS, judge)
    assert objects is not None
    table, events = objects
    table.validate(full=True)
    assert [at for at, is_event in enumerate(events) if not is_event] == [0, 1, 40, 41, 99]
    assert list(zip(table["position"].to_pylist(), table["row"].to_pylist(), strict=True)) == [
        row for row in expected if row != (-1, None)
    ]
    assert table["type"].null_count == table["source_partition"].null_count == table.num_rows == 95
    assert judged_texts == [value for value in values if value in judgements]


@needed
def test_what_was_read_stays_when_a_thread_reads_on_also_in_the_middle_of_a_value() -> None:
    """Its room for texts is used again; a judge that reads by itself finds that room taken."""

    def objects(word: str, *more: str) -> pa.Array:
        return pa.array([*(json.dumps({"row": f"{word} {number}", "type": word}) for number in range(9)), *more])

    def judge(_: pa.Scalar) -> dict[str, Any]:
        inner = read_objects(objects("inner"), FIELDS, lambda _: None)
        assert inner is not None
        return {"row": inner[0]["row"][8].as_py(), "type": "judged"}

    tables = [read_objects(objects(word, "no object"), FIELDS, judge) for word in ("first", "second", "third" * 999)]
    for word, read_table in zip(("first", "second", "third" * 999), tables, strict=True):
        assert read_table is not None
        read_table[0].validate(full=True)
        assert read_table[0]["row"].to_pylist() == [*(f"{word} {number}" for number in range(9)), "inner 8"]
        assert read_table[0]["type"].to_pylist() == [word] * 9 + ["judged"]


@needed
def test_many_values_that_are_not_plain_are_read_another_way() -> None:
    judged_texts: list[pa.Scalar] = []
    values = pa.array(['{"t": 1}', "no"] * 10_000)
    assert read_objects(values, FIELDS, judged_texts.append) is None
    assert len(judged_texts) < 100


@needed
def test_it_agrees_with_the_judge_on_random_values() -> None:
    rng = random.Random(5)
    plain_count = 0
    for _ in range(scaled(20_000)):
        value = random_value(rng)
        events = read(value)
        if events is not None:
            plain_count += 1
            with DeepRecursion():
                judgement = judge(value)
                assert judgement is not None, value
                assert same_event(events[0], judgement), value
    assert plain_count > scaled(20_000) // 3


NESTED = pa.schema(
    [
        ("a", pa.string()),
        ("o", pa.struct([("t", pa.string()), ("p", pa.struct([("n", pa.int64())])), ("m", pa.int64())])),
        ("z", pa.int64()),
    ]
)
EMPTY_OBJECT = {"t": None, "p": None, "m": None}


def nested(*values: str, wrapper: str | None = "w") -> list[dict[str, Any] | None]:
    """The members of each value; None for one that is left to Python."""
    misfits: list[pa.Scalar] = []
    objects = read_objects(pa.array([value.encode() for value in values]), NESTED, misfits.append, wrapper)
    assert objects is not None
    objects[0].validate(full=True)
    rows = iter(objects[0].select(NESTED.names).to_pylist())
    assert len(misfits) == len(values) - objects[0].num_rows
    return [next(rows) if is_object else None for is_object in objects[1]]


@needed
@pytest.mark.parametrize(
    ("value", "members"),
    [
        ('{"z": 1, "o": {"m": 2, "x": {"t": 3}, "t": "\\n", "p": {"n": 4}}, "a": {"z": 5}}',
         {"a": '{"z": 5}', "o": {"t": "\n", "p": {"n": 4}, "m": 2}, "z": 1}),
        ('{"o": {}}', {"a": None, "o": EMPTY_OBJECT, "z": None}),
        ('{"o": null, "t": "x", "n": 1}', {"a": None, "o": None, "z": None}),
        ('{"o": {"p": {"n": 1}, "m": 2}, "o": {"p": {}}}',
         {"a": None, "o": {"t": None, "p": {"n": None}, "m": None}, "z": None}),
        ('{"o": {"p": {"n": 1}, "p": null}}', {"a": None, "o": EMPTY_OBJECT, "z": None}),
        ('{"o": {"p": {"n": 1}}, "o": null}', {"a": None, "o": None, "z": None}),
        ('{"o": {"t": 1}}', None), ('{"o": {"t": []}}', None), ('{"o": 1}', None), ('{"o": []}', None),
        ('{"o": {"m": "1"}}', None), ('{"o": {"m": 1.5}}', None), ('{"o": {"t": "\\ud800"}}', None),
        ('{"o": {"m": 1}', None), ('{"o": {"m": 1,}}', None), ('{"o": {"\\u006d": 1}}', None), ('{"o": {', None),
    ],
)  # fmt: skip
def test_members_of_objects_are_read(value: str, members: dict[str, Any] | None) -> None:
    plain = '{"a": "x", "o": {"t": "y", "p": {"n": 7}, "m": 8}, "z": 9}'
    around = {"a": "x", "o": {"t": "y", "p": {"n": 7}, "m": 8}, "z": 9}
    assert nested(plain, value, plain) == [around, members, around]
    assert nested(value, wrapper=None) == [members]
    assert nested(f'{{"z": 3, "w": {value}, "a": "late"}}') == [members]


@needed
@pytest.mark.parametrize(
    ("value", "z"),
    [
        ('{"w": {"z": 1}}', 1), ('{"w": null, "z": 2}', 2), ('{"z": 3}', 3), ('{}', None), (' { } ', None),
        ('{"w": null, "z": 4, "w": {}}', None), ('{"z": 5, "o": {"m": 6}, "w": {"a": 1}}', None),
        ('{"w": {"z": 7}, "z": "no number"}', 7), ('{"w": {"w": {"z": 8}, "z": 9}}', 9),
    ],
)  # fmt: skip
def test_a_wrapped_object_counts_instead_of_the_value(value: str, z: int | None) -> None:
    (row,) = nested(value)
    assert row is not None
    assert row["z"] == z
    assert row["o"] is None


@needed
@pytest.mark.parametrize(
    "value",
    ['{"w": 1}', '{"w": []}', '{"w": {}, "w": {}}', '{"w": {}, "w": null}', r'{"\u0077": {}}', '{"w": {}', '{"w": {},}',
     '{"w": {}} {}', '{"w": {}, 1}', '{"z": "no number", "w": {}}'],
)  # fmt: skip
def test_an_odd_wrapper_is_left_to_python(value: str) -> None:
    assert nested('{"w": {}}', value, '{"w": {}}') == [
        {"a": None, "o": None, "z": None},
        None,
        {"a": None, "o": None, "z": None},
    ]


@needed
def test_a_schema_in_front_of_a_wrapped_object_is_recognised() -> None:
    """Values of many tables, one behind the other; what differs by a byte is no known schema."""
    rng = random.Random(3)
    schemas = [json.dumps({"fields": ["x" * rng.randrange(60), number % 3]}) for number in range(20)]
    values, expected = [], []
    for number in range(3_000):
        schema = schemas[rng.randrange(20) if rng.random() < 0.2 else number // 100 % 20]
        if rng.random() < 0.05:
            at = rng.randrange(len(schema))
            schema = schema[:at] + rng.choice('"x0}') + schema[at + 1 :]
        tail = rng.choice(("", ', "z": 5', ', "w": {}', ","))
        values.append(f'{{"schema": {schema}, "w": {{"z": {number}}}{tail}}}')
        try:
            json.loads(values[-1])
            expected.append(None if '"w": {}' in tail else number)
        except ValueError:
            expected.append(None)
    for chunk in range(0, 3_000, 30):  # so that few are judged in one call
        rows = nested(*values[chunk : chunk + 30])
        assert [row and row["z"] for row in rows] == expected[chunk : chunk + 30]


@needed
def test_each_wrapped_object_has_a_value_with_the_same_text_around_it() -> None:
    values = ['{"s":1,"w":{}}', '{"s":2,"w":{"z":1}}', '{"s":1,"w":{"z":2}}', '{"w":{},"s":1}', '{"w":{},"s":2}',
              '{"z":1}', '{"s":2,"w":{}}', r'{"\u0073":1,"w":{}}']  # fmt: skip
    objects = read_objects(pa.array(values), NESTED, lambda _: {}, "w")
    assert objects is not None
    assert objects[0][ORIGIN].to_pylist() == [0, 1, 0, 3, 4, -1, 1, 7]


@needed
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_slices_of_every_text_type(kind: pa.DataType) -> None:
    values = pa.array([orjson.dumps({"position": number, "row": {"n": number}}).decode() for number in range(100)])
    rows = rows_of(values.cast(kind).slice(30, 20))
    assert rows is not None
    assert [row["position"] for row in rows] == list(range(30, 50))
    assert [row["row"] for row in rows] == [f'{{"n":{number}}}' for number in range(30, 50)]


@needed
def test_columns_keep_no_more_memory_than_they_have_content() -> None:
    lines = pa.array([orjson.dumps({"type": "DATA", "row": "x" * 1000})] * 1000)
    read_by_loop = read_objects(lines, FIELDS, lambda _: None)
    assert read_by_loop is not None
    columns_read, _ = read_by_loop
    assert columns_read.get_total_buffer_size() < columns_read.nbytes + 1000


@pytest.fixture
def forgotten() -> Iterator[None]:
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("why", ["missing", "another version", "not a library", "unwanted"])
def test_python_does_without_it(why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if why == "another version":
        monkeypatch.setattr("starrocks_txn_sink.compiled.library.number_of", lambda _: -1)
    elif why == "unwanted":
        monkeypatch.setenv(PURE, "1")
    else:
        place = tmp_path / "_compiled.so"
        if why == "not a library":
            place.write_bytes(b"no")
        monkeypatch.setattr("starrocks_txn_sink.compiled.library.LIBRARY", place)
    assert not is_available()
    assert read(BASE % '"{}"') is None
    read_by_python = txn_events._parse_at_once(pa.array([BASE % '"{}"']), FIELDS)
    assert read_by_python is not None
    assert read_by_python["row"].to_pylist() == ["{}"]


# --- Kafka's messages ---

TIMESTAMP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
texts = st.none() | st.binary(max_size=40)
kinds = st.tuples(st.sampled_from([0, 0, 0, -191]), texts, texts, st.integers(0, 2**62))


class Buffers:
    """Buffers that outlive the messages that point to them; an empty one is not NULL."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def place(self, content: bytes | None) -> tuple[int | None, int]:
        if content is None:
            return None, 0
        self._kept.append(ctypes.create_string_buffer(content, len(content) + 1))
        return ctypes.addressof(self._kept[-1]), len(content)


@needed
@given(st.lists(kinds, max_size=30), st.booleans())
def test_messages_become_columns_and_each_is_given_back_once(
    received: list[tuple[int, bytes | None, bytes | None, int]], keys: bool
) -> None:
    buffers = Buffers()
    messages_made = [
        Message(error, 7, number, *buffers.place(value), *buffers.place(key), offset, None)
        for number, (error, value, key, offset) in enumerate(received)
    ]
    time, back = TIMESTAMP(lambda at, _: Message.from_address(at).offset // 2), list[int]()
    messages = Messages(np.array([ctypes.addressof(message) for message in messages_made], dtype=np.uintp))
    topics, partitions, offsets, times, values, keys_found = messages.columns(time, keys)
    rows = [(number, *row) for number, row in enumerate(received) if not row[0]]
    assert topics.tolist() == [7] * len(rows)
    assert partitions.tolist() == [row[0] for row in rows]
    assert offsets.tolist() == [row[4] for row in rows]
    assert times.tolist() == [row[4] // 2 for row in rows]
    for array, expected in ((values, [row[2] for row in rows]), (keys_found, [row[3] for row in rows])):
        if array is not None:
            array.validate(full=True)
            assert array.to_pylist() == expected
    assert (keys_found is not None) == keys
    errors = [number for number, message in enumerate(received) if message[0]]
    assert [error.partition for error in messages.errors()] == errors
    assert messages.rows_before_errors() == [number - place for place, number in enumerate(errors)]
    messages.destroy(DESTROY(back.append))
    assert sorted(back) == sorted(map(ctypes.addressof, messages_made))


HEADERS_OF = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
HEADER_AT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, *[ctypes.POINTER(ctypes.c_void_p)] * 3)
NO_ENTRY, MALFORMED = -156, -199
entries = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), texts), max_size=3
)


def headers_of(received: list[list[tuple[bytes, bytes | None]] | int]) -> pa.Array:
    """Messages with these headers, through the loop; a number is librdkafka's answer instead of headers."""
    buffers = Buffers()
    messages = [Message(0, None, 0, None, 0, None, 0, number, None) for number in range(len(received))]

    def find(message: int, to: Any) -> int:
        offset = Message.from_address(message).offset
        headers = received[offset]
        to[0] = offset + 1
        return headers if isinstance(headers, int) else 0

    def header(number: int, place: int, name: Any, value: Any, size: Any) -> int:
        headers = received[number - 1]
        if isinstance(headers, int) or place == len(headers):
            return NO_ENTRY
        name[0], _ = buffers.place(headers[place][0])
        value[0], size[0] = buffers.place(headers[place][1])
        return 0

    addresses = np.array([ctypes.addressof(message) for message in messages], dtype=np.uintp)
    return Messages(addresses).headers(HEADERS_OF(find), HEADER_AT(header))


@needed
@given(st.lists(st.just(NO_ENTRY) | entries, max_size=20))
def test_headers_become_lists(received: list[list[tuple[str, bytes | None]] | int]) -> None:
    as_bytes = [row if isinstance(row, int) else [(name.encode(), value) for name, value in row] for row in received]
    array = headers_of(as_bytes)
    array.validate(full=True)
    rows = [None if row is None else [(entry["key"], entry["value"]) for entry in row] for row in array.to_pylist()]
    assert rows == [None if isinstance(row, int) else row or None for row in received]


@needed
def test_a_name_that_is_no_text_has_the_replacement_character_and_headers_that_cannot_be_read_are_an_error() -> None:
    assert headers_of([[(b"a\xffb", b"1")]]).to_pylist() == [[{"key": "a\ufffdb", "value": b"1"}]]
    with pytest.raises(UnreadableHeaders) as raised:
        headers_of([NO_ENTRY, [], MALFORMED])
    assert raised.value.args[0].offset == 2


# --- wheels ---


def build(place: Path, **environment: str) -> Path:
    """The wheel of a copy of what a wheel is made from."""
    source, skipped = place / "source", shutil.ignore_patterns("__pycache__", "_compiled.so")
    for name in (*OWN_PACKAGES, "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place / "dist")]
    subprocess.run(command, cwd=source, env=os.environ | environment, check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


def has_library(wheel: Path) -> bool:
    names = zipfile.ZipFile(wheel).namelist()
    assert not any(name.endswith((".c", ".h")) for name in names)
    return "starrocks_txn_sink/_compiled.so" in names


@needed
def test_a_wheel_with_the_loop_is_for_one_platform_and_every_python(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    assert has_library(wheel)


@pytest.mark.parametrize("environment", [{"CC": "/there/is/no/compiler"}, {"CC": "false"}, {PURE: "1"}])
def test_a_wheel_without_a_compiler_is_for_every_platform(tmp_path: Path, environment: dict[str, str]) -> None:
    wheel = build(tmp_path, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not has_library(wheel)
