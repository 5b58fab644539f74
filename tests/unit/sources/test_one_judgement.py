"""A raw value has one meaning: alone or next to any other, as string or binary, read at once or one by one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.formats import json_text
from starrocks_txn_sink.sources.formats.json_text import read_one_by_one
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines, _parse_at_once
from tests.support.depth import scaled
from tests.support.event_lines import DeepRecursion, judge, random_value, same_event

LINES = TxnEventLines(source_partition=None, position=None, on_malformed="drop")
NUMBERED = "number"
PLAIN = b'{"source_partition": "p", "position": 3, "type": "DATA", "txn_id": "t", "table": "items", "row": "{}"}'
WITH_OBJECT = b'{"source_partition": "p", "position": 4, "type": "DATA", "txn_id": "t", "table": "items", "row": {}}'


pytestmark = pytest.mark.usefixtures("loop")


def batch(values: pa.Array) -> pa.RecordBatch:
    count = len(values)
    places = {"source_partition": pa.nulls(count, pa.string()), "position": pa.nulls(count, pa.int64())}
    return pa.RecordBatch.from_pydict({**places, "value": values, NUMBERED: pa.array(range(count), pa.int64())})


def events_of(values: pa.Array) -> dict[int, dict[str, Any]]:
    """The events by the place of their value."""
    rows = LINES.parse(batch(values), (NUMBERED,)).events.to_pylist()
    return {row.pop(NUMBERED): row for row in rows}


def check_ways(values: list[bytes | None], rng: random.Random) -> None:
    """All ways to read `values` agree with the plain judge, value by value."""
    array = pa.array(values, rng.choice((pa.binary(), pa.large_binary())))
    with DeepRecursion():
        judgements = [judge(value) for value in values]
    together = events_of(array)
    assert sorted(together) == [number for number, event in enumerate(judgements) if event is not None]
    with DeepRecursion():
        for number, event in together.items():
            judgement = judgements[number]
            assert judgement is not None
            assert same_event(event, judgement), values[number]
    fields = LINES._fields()
    alone, valid = read_one_by_one(array, fields)
    assert valid.tolist() == [event is not None for event in judgements]
    assert alone.select(list(event_names())).to_pylist() == list(together.values())
    order = rng.sample(range(len(values)), len(values))
    shuffled = events_of(array.take(pa.array(order)))
    assert {order[number]: event for number, event in shuffled.items()} == together
    wide = pa.types.is_large_binary(array.type)
    as_text = pa.Array.from_buffers(pa.large_string() if wide else pa.string(), len(array), array.buffers())
    assert events_of(as_text) == together
    for number in rng.sample(range(len(values)), min(20, len(values))):
        at_once = _parse_at_once(array[number : number + 1], fields)
        assert at_once is None or at_once.select(list(event_names())).to_pylist() == [together[number]]


def event_names() -> tuple[str, ...]:
    return ("source_partition", "position", "type", "txn_id", "database", "table", "op", "row")


def run(lines: int, seed: int) -> int:
    """Judge `lines` random values in batches of many sizes; returns how many are events."""
    rng = random.Random(seed)
    events = 0
    while lines > 0:
        values = [random_value(rng) for _ in range(min(lines, rng.choice((1, 2, 7, 100, 1_000, 3_000))))]
        check_ways(values, rng)
        lines -= len(values)
        events += len(values)
    return events


@pytest.mark.parametrize("seed", [1, 2])
def test_valid_and_meaning_agree_on_random_values(seed: int) -> None:
    run(scaled(10_000), seed)


@pytest.mark.deep
def test_valid_and_meaning_agree_on_values_that_no_run_had_before() -> None:
    """pytest-randomly's seed, which a run prints, brings them again."""
    count = scaled(100_000)
    assert run(count, random.getrandbits(64)) == count


ODD = [
    b'{"type":"BEGIN","x":NaN}',
    b'{"type":"BEGIN","x":[-Infinity]}',
    b'{"type":"BEGIN","x":' + b"9" * 5_000 + b"}",
    b'{"type":"BEGIN","x":' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    b'{"type":"BEGIN","x":' + b'[{"a":' * 3_000 + b"1" + b"}]" * 3_000 + b"}",
    b'{"type":"BEGIN","x":' + b"[" * 3_000 + b"]" * 2_999 + b"}",
    b'{"type":"a\xff"}',
    b'{"type":"a\xe0\x80\xaf"}',
    b'{"type":"BEGIN","x":"\\ud800"}',
]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
@pytest.mark.parametrize("value", ODD)
def test_an_odd_value_means_the_same_next_to_any_neighbour(value: bytes, kind: pa.DataType) -> None:
    """The plain neighbour is read at once, the one with an object one by one."""
    events_found = []
    for neighbours in ([PLAIN], [WITH_OBJECT], [PLAIN, WITH_OBJECT], [PLAIN] * 3_000):
        array = pa.array([value, *neighbours], pa.binary())
        events = events_of(pa.Array.from_buffers(kind, len(array), array.buffers()))
        events_found.append(events.get(0))
        assert len(events) >= len(neighbours)
    assert events_found.count(events_found[0]) == len(events_found)


@pytest.mark.parametrize("number", [0, 700, 2_999])
def test_the_first_malformed_value_among_many_is_named(number: int) -> None:
    values: list[bytes] = [b'{"position": %d}' % at for at in range(3_000)]
    values[number] = b'{"position": 1}{"position": 2}'
    lines = TxnEventLines()
    places = {"source_partition": pa.array(["7"] * 3_000), "position": pa.array(range(100, 3_100), pa.int64())}
    with pytest.raises(InputError, match=f"source_partition=7 position={100 + number}"):
        lines.parse(pa.RecordBatch.from_pydict({**places, "value": pa.array(values)}))
    strict = TxnEventLines(source_partition=None, position=None)
    with pytest.raises(InputError, match=f"position_before={number - 1}" if number else r"type\)\."):
        strict.parse(batch(pa.array(values)))


SPELLED_WITH_ESCAPES = PLAIN.replace(b"type", b"t\\u0079pe")


@pytest.mark.parametrize("odd", [None, b"not json", b'{"type": NaN}', b'{"position": "3"}', SPELLED_WITH_ESCAPES])
def test_a_few_odd_values_leave_the_others_to_the_fast_way(odd: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python judges the odd values alone, not their neighbours: one in 500 must not cost the others their speed."""
    judged_values: list[Any] = []
    judge_by_python = json_text.judge_object

    def counted(value: pa.Scalar, fields: pa.Schema, wrapper: str | None = None) -> dict[str, Any] | None:
        judged_values.append(value.as_py())
        return judge_by_python(value, fields, wrapper)

    monkeypatch.setattr(json_text, "judge_object", counted)
    values = [odd if number % 500 == 250 else PLAIN for number in range(10_000)]
    lost_count = 0 if odd == SPELLED_WITH_ESCAPES else 20
    assert len(events_of(pa.array(values, pa.binary()))) == 10_000 - lost_count
    assert len(judged_values) <= 20
    assert PLAIN not in judged_values
