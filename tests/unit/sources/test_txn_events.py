"""Raw TxnEvent lines: the fast reader and the plain one agree, and what is no TxnEvent is found with its place."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources.formats.json_text import read_one_by_one
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines, _parse_at_once

IN_JSON = TxnEventLines(source_partition=None, position=None)
NAMES = ["source_partition", "position", "type", "txn_id", "database", "table", "op", "row"]
ROW = {"source_partition": "p", "position": 3, "type": "DATA", "txn_id": "t", "database": "shop", "table": "items"}


def batch(values: list[Any], partition: list[str] | None = None, position: list[int] | None = None) -> pa.RecordBatch:
    nothing = [None] * len(values)
    kind = pa.binary() if any(isinstance(value, bytes) for value in values) else pa.string()
    return pa.RecordBatch.from_arrays(
        [
            pa.array(partition or nothing, pa.string()),
            pa.array(position or nothing, pa.int64()),
            pa.array(values, kind),
        ],
        names=["source_partition", "position", "value"],
    )


def read(*values: Any, lines: TxnEventLines = IN_JSON) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = lines.parse(batch(list(values))).events.to_pylist()
    return events


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.fixed_dictionaries({name: texts for name in NAMES if name != "position"}), min_size=1, max_size=20))
def test_both_readers_give_every_character(events: list[dict[str, Any]]) -> None:
    for number, event in enumerate(events):
        event["position"] = number - 2
    values = [json.dumps(event, ensure_ascii=number % 2 == 0) for number, event in enumerate(events)]
    whole = _parse_at_once(pa.array(values), IN_JSON._fields())
    assert whole is not None
    assert whole.select(NAMES).to_pylist() == [{name: event[name] for name in NAMES} for event in events]
    assert read(*values) == read_one_by_one(pa.array(values), IN_JSON._fields())[0].select(NAMES).to_pylist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_kafkas_binary_values_are_read_at_once_too(kind: pa.DataType) -> None:
    values = pa.array(['{"type": "BEGIN", "txn_id": "ü"}', '{"type": "END"}']).cast(kind)
    whole = _parse_at_once(values, IN_JSON._fields())
    assert whole is not None
    assert whole["txn_id"].to_pylist() == ["ü", None]


def test_bytes_that_are_no_text_are_refused_also_between_braces() -> None:
    with pytest.raises(InputError, match=r"source_partition_before=p position_before=1"):
        read(b'{"type": "BEGIN", "source_partition": "p", "position": 1}', b'{"type": "\xff"}')


def test_missing_and_further_fields() -> None:
    (event,) = read('{"type": "BEGIN", "further": {"a": [1, "}{"]}, "position": 1}')
    assert event == dict.fromkeys(NAMES) | {"type": "BEGIN", "position": 1}


def test_columns_give_the_place_and_the_jsons_own_is_not_looked_at() -> None:
    lines = TxnEventLines()
    values = ['{"type": "BEGIN", "position": "no number"}', '{"type": "END"}']
    table = lines.parse(batch(values, ["7", "8"], [70, 80])).events
    assert [(e["source_partition"], e["position"], e["type"]) for e in table.to_pylist()] == [
        ("7", 70, "BEGIN"),
        ("8", 80, "END"),
    ]


@pytest.mark.parametrize(
    ("row_text", "text"),
    [
        ('{"a": 1.10, "b" : [ 1 ]}', '{"a": 1.10, "b" : [ 1 ]}'),
        ("[1, 2]", "[1, 2]"),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        ("true", "true"),
        ("null", None),
        (r'"{\"k\": \"\u00fc\\n\"}"', '{"k": "ü\\n"}'),
    ],
)
def test_a_row_keeps_its_own_text_whatever_it_is(row_text: str, text: str | None) -> None:
    first, second = read('{"position": 1, "row": "a"}', f'{{"position": 2, "row": {row_text} }}')
    assert (first["row"], second["row"]) == ("a", text)


MALFORMED = [
    "", " ", "null", "[]", '"text"', "{", "}", "{}{}", "{} x", '{"a": 1,}', "{'a': 1}", '{"position": "7"}',
    '{"position": 7.0}', '{"position": true}', '{"position": 9223372036854775808}', '{"row": NaN}',
    '{"row": "\\ud800"}', '{"row": "a\nb"}', "{a: 1}", '{"a" 1}', '{"a": }', None, b"\xff{}",
    '{"type": "BEGIN"', "{" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("value", MALFORMED)
def test_what_is_no_txn_event_is_refused_with_its_place_and_without_its_content(value: Any) -> None:
    good = json.dumps(ROW)
    values = [good.encode() if isinstance(value, bytes) else good, value]
    with pytest.raises(InputError, match="not a TxnEvent") as refused:
        IN_JSON.parse(batch(values))
    assert "source_partition_before=p position_before=3" in str(refused.value)
    with pytest.raises(InputError, match="at source_partition=1 position=11") as refused:
        TxnEventLines().parse(
            batch(["{}" if isinstance(value, str | None) else b"{}", _unplaced(value)], ["0", "1"], [10, 11])
        )
    in_kafka = batch(values)
    for name, places in (("topic", ["t", "t"]), ("partition", [3, 3]), ("offset", [40, 41])):
        in_kafka = in_kafka.append_column(name, pa.array(places))
    with pytest.raises(InputError, match="at topic=t partition=3 offset=41 source_partition_before=p"):
        IN_JSON.parse(in_kafka)
    dropping = TxnEventLines(source_partition=None, position=None, on_malformed="drop")
    assert [event["position"] for event in dropping.parse(batch([*values, values[0]])).events.to_pylist()] == [3, 3]


def _unplaced(value: Any) -> Any:
    """The same fault in a field that is read when columns give the place."""
    return "{" if isinstance(value, str) and "position" in value else value


def test_lines_that_would_make_up_for_each_other_are_told_apart() -> None:
    """One value with two objects and one with none are as many objects as values."""
    with pytest.raises(InputError):
        IN_JSON.parse(batch(['{"position": 1}{"position": 2}', ""]))
    with pytest.raises(InputError):
        IN_JSON.parse(batch(['{"position": 1}\n{"position": 2}', "\n"]))
    with pytest.raises(InputError):
        IN_JSON.parse(batch(['{"position":', '{"a": 1}}', '{"position": 2} {"position": 3}']))


def test_a_value_with_line_breaks_between_its_fields_is_one_event() -> None:
    assert [e["position"] for e in read('{\n "position": 1\n}', ' {"position": 2}')] == [1, 2]


def test_the_last_of_two_equal_fields_counts() -> None:
    assert [e["position"] for e in read('{"position": 1, "position": 2}')] == [2]


def test_slices_of_a_larger_batch_are_read_alone() -> None:
    values = [orjson.dumps({"position": number}).decode() for number in range(100)]
    part = batch(values).slice(40, 20)
    assert [e["position"] for e in IN_JSON.parse(part).events.to_pylist()] == list(range(40, 60))
    assert IN_JSON.parse(batch(values).slice(0, 0)).events.num_rows == 0


def test_on_malformed_is_checked() -> None:
    with pytest.raises(OptionError, match="on_malformed"):
        TxnEventLines(on_malformed="ignore")  # type: ignore[arg-type]
