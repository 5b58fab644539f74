"""A row is one JSON object without `__op`: both checks of a batch agree with a plain reading of each row."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.compiled.findings import RowFindings, find
from starrocks_txn_sink.errors import RowsRejected
from starrocks_txn_sink.rows.bad_rows import refused
from starrocks_txn_sink.rows.columns import COLUMNS, DELETED, DELETING, PAYLOAD, POSITION
from starrocks_txn_sink.rows.row_check import DoubtfulRows, RowCheck, no_loop
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from tests.support.depth import scaled

LOOPS: dict[str, DoubtfulRows] = {"compiled": RowFindings().doubtful, "python": no_loop}


@pytest.fixture(params=LOOPS)
def check(request: pytest.FixtureRequest) -> RowCheck:
    """The check with the compiled loop, and its twin."""
    if request.param == "compiled" and find(pa.array([",{}"])) is None:
        pytest.skip("the compiled loop is not there")
    return RowCheck(LOOPS[request.param])


def faults(check: RowCheck, rows: pa.RecordBatch) -> dict[int, str]:
    return {bad.number: bad.reason for bad in check(rows)}


def batch(rows: list[str], deleted: list[bool] | None = None) -> pa.RecordBatch:
    """Payloads as both projections make them: deletes have the sink's `__op` in front."""
    payloads = [_payload(row, is_deleted) for row, is_deleted in zip(rows, deleted or [False] * len(rows), strict=True)]
    count = len(rows)
    columns = {
        "source_partition": pa.array(["p-1"] * count),
        POSITION: pa.array(range(40, 40 + count), pa.int64()),
        "table": pa.array(["items"] * count),
        "transaction_end": pa.array([True] * count),
        PAYLOAD: pa.array(payloads, pa.string()),
    }
    return pa.record_batch(columns | ({} if deleted is None else {DELETED: pa.array(deleted)}))


def _payload(row: str, deleted: bool) -> str:
    if not deleted:
        return "," + row
    tail = row.lstrip(" ")[1:]
    return "," + DELETING + ("" if tail.lstrip(" ").startswith("}") else ",") + tail


FAULTS = {
    '{"id":1},{"id":2,"v":"SECRET"}': "exactly one",
    '{"id":1} , {"id":2}': "exactly one",
    '{"id":1},5,{"id":2}': "exactly one",
    '{"id":1},[{"id":2}],{"id":3}': "exactly one",
    '{"id":1}\n{"id":2}': "exactly one",
    '{"a":{"b":1}},{"id":2}': "exactly one",
    '{"id":1},': "exactly one",
    ' {"id":1}{"id":2} ': "exactly one",
    '[{"id":1}]': "exactly one",
    "": "exactly one",
    "null": "exactly one",
    '{"id":1': "exactly one",
    '{"id":1,"__op":1}': "__op",
    '{"__op":0,"id":1}': "__op",
    '{"__op":1,"id":1}': "__op",
    '{"id":1, "__op" : "delete"}': "__op",
    r'{"id":1,"\u005f_op":1}': "__op",
    r'{"id":1,"__\u006Fp":1}': "__op",
    '{"id":1,"v":"a\tb"}': "control character",
    '{"id":1,"v":"a\x00b"}': "control character",
    '{"id":1,"v":"open}': "exactly one",
    '{"id":1,"v":': "exactly one",
    '{"id":1,}': "exactly one",
    '{"id":1}}': "exactly one",
    '{"id":x}': "exactly one",
    "{'id':1}": "exactly one",
    '{"id":01}': "exactly one",
    '{"id":1/*x*/}': "exactly one",
    '{"v":NaN}': "exactly one",
    r'{"v":"\q"}': "exactly one",
    r'{"v":"\ud800"}': "surrogates",
    r'{"v":"x\udc00\ud800"}': "surrogates",
    r'{"v":["\ud83d\u0041"]}': "surrogates",
    r'{"\ud800":1}': "surrogates",
    '{"v":' + "[" * 1100 + "]" * 1100 + "}": "nested deeper",
    "garbage": "exactly one",
    "5": "exactly one",
}
GOOD = [
    "{}",
    '{"id":1,"v":"x"}',
    ' {"id":1} ',
    '{"id":{"a":{"b":[{"c":1},{"d":2}]}}}',
    '{"id": {"a": 1}, "b": [ {"c": 2} , {"d": 3} ]}',
    r'{"v":"},{","w":"{\"__op\":1}"}',
    '{"v":"__op","nested":{"__op":1},"my__op":2,"__opx":3}',
    r'{"v":"\u005f_op \\u005f é"}',
    r'{"v":"\ud83d\ude00 \\ud800 \u0000"}',
    '{"v":1e400}',
    '{"v":' + "[" * 300 + "]" * 300 + "}",
]


@pytest.mark.parametrize("row", FAULTS)
def test_a_row_that_is_something_else_is_found_alone(check: RowCheck, row: str) -> None:
    found = faults(check, batch([*GOOD, row, *GOOD]))
    assert list(found) == [len(GOOD)]
    assert FAULTS[row] in found[len(GOOD)]


@pytest.mark.parametrize("row", [row for row, fault in FAULTS.items() if fault == "__op"])
def test_a_delete_has_the_sinks_op_alone(check: RowCheck, row: str) -> None:
    assert check(batch(GOOD, [True] * len(GOOD))) == []
    at = len(GOOD)
    assert "__op" in faults(check, batch([*GOOD, row], [False] * at + [True]))[at]
    assert "__op" in faults(check, batch([*GOOD, row], [True] * at + [False]))[at]


def test_bytes_that_are_no_utf_8_are_found(check: RowCheck) -> None:
    payload = pa.array([b',{"v":"a"}', b',{"v":"\xff"}', b',{"v":"\xed\xa0\x80"}'], pa.binary())
    found = faults(check, pa.record_batch({PAYLOAD: payload, "table": pa.array(["t"] * 3)}))
    assert list(found) == [1, 2]
    assert all("not UTF-8" in reason for reason in found.values())


def test_the_error_has_the_first_place_and_no_value(check: RowCheck) -> None:
    rows = batch([*GOOD, '{"id":1},{"id":2,"v":"SECRET"}', '{"id":'])
    text = str(refused(rows, check(rows)))
    assert "is not exactly one JSON object at source partition p-1, position" in text
    assert "table items, and so are 1 more of its batch; nothing of it was sent" in text
    assert "SECRET" not in text


JOINING = {
    "a string": ('{"a":"x}', '{","b":1}'),
    "a string over a row that is valid alone": ('{"a":"x}', '{",":1}', '{":1}'),
    "an array": ('{"a":[{"b":1}', '{"c":1}]}'),
    "an array with blanks": ('{"a": [ {"b": 1}', '{"c": 1} ] }'),
    "an array of numbers": ('{"a":[1', "{}]}"),
    "an array of arrays": ('{"a":[[{"b":1}', '{"c":1}],[{"d":1}', '{"e":1}]]}'),
}


@pytest.mark.parametrize("rows", JOINING.values(), ids=JOINING)
def test_rows_that_are_valid_only_together_are_found(check: RowCheck, rows: tuple[str, ...]) -> None:
    assert len(json.loads(f"[{','.join(rows)}]")) < len(rows)
    torn = {len(GOOD) + number for number, row in enumerate(rows) if _plain_fault(row)}
    assert set(faults(check, batch([*GOOD, *rows, *GOOD]))) == torn


def test_random_texts_that_pass_are_the_same_objects_in_a_body_as_alone(check: RowCheck) -> None:
    rng = random.Random(7)
    pieces = (
        '{"a":',
        '{"',
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "1",
        '"x"',
        ',"b":',
        " ",
        "\\",
        '\\"',
        "{}",
        '{"c":1}',
        "[{",
    )
    joined = 0
    for _ in range(scaled(20_000)):
        rows = ["{" * rng.randrange(2) + "".join(rng.choices(pieces, k=rng.randrange(1, 6))) + "}" for _ in range(2)]
        rows = [rng.choice((row, '{"a":"x}', '{"a":[{"b":1}', '{"a":1}')) for row in rows]
        try:
            body = json.loads(f"[{','.join(rows)}]")
        except ValueError:
            continue
        joined += 1
        found = faults(check, batch(rows))
        assert set(found) == {number for number, row in enumerate(rows) if _plain_fault(row)}
        assert found or body == [json.loads(row) for row in rows]
    assert joined > 20


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_without_even_a_separator_is_found(check: RowCheck, at: int) -> None:
    payload = [',{"id":1}', ',{"id":2}']
    payload.insert(at, "")
    rows = pa.RecordBatch.from_pydict({PAYLOAD: pa.array(payload), "table": pa.array(["t"] * 3)})
    assert list(faults(check, rows)) == [at]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_slice_is_checked_alone(check: RowCheck, kind: pa.DataType) -> None:
    whole = batch(['{"id":1},{"id":2}', *GOOD, '{"__op":1}'])
    whole = whole.set_column(4, PAYLOAD, whole.column(PAYLOAD).cast(kind))
    assert check(whole.slice(1, len(GOOD))) == []
    assert list(faults(check, whole.slice(0, 1))) == [0]


def test_both_segmenters_check_the_rows_that_they_pass_on() -> None:
    bad = batch(['{"id":1},{"id":2}'])

    def check(rows: pa.RecordBatch) -> None:
        raise refused(rows, RowCheck()(rows))

    with pytest.raises(RowsRejected, match="exactly one"):
        list(Segmenter(check=check).split(bad.select(list(COLUMNS))))
    plain = bad.select(["table", PAYLOAD]).append_column("hash", pa.array([1], pa.int64()))
    with pytest.raises(RowsRejected, match="exactly one"):
        list(UnpositionedSegmenter("q/0/1", 1, check=check).split(plain))


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_are_judged_as_when_read_alone(check: RowCheck, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(400)):
        rows = [_random_row(rng) for _ in range(rng.choice((1, 3, 30)))]
        deleted = [rng.random() < 0.3 for _ in rows] if rng.random() < 0.5 else None
        assert list(faults(check, batch(rows, deleted))) == [n for n, row in enumerate(rows) if _plain_fault(row)]


def _random_row(rng: random.Random) -> str:
    """A valid JSON object, or several of them."""
    objects = ",".join(json.dumps(_random_object(rng), separators=rng.choice(((",", ":"), (", ", ": "))))
                    for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3))))  # fmt: skip
    return objects if rng.random() < 0.9 else " " * rng.randrange(3) + objects


def _random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(("id", "v", "w", "}", "{", ",{", "my__op", "ü"), rng.randrange(4))
    if rng.random() < (0.02 if depth == 0 else 0.2):
        names.append("__op")
    return {name: _random_member(rng, depth) for name in names}


def _random_member(rng: random.Random, depth: int) -> Any:
    if depth < 3 and rng.random() < 0.3:
        return rng.choice((_random_object(rng, depth + 1), [_random_object(rng, depth + 1)] * rng.randrange(3)))
    return rng.choice((1, None, "x", "},{", "__op", '"', "\\", "{", "}", 'é{"'))


def _plain_fault(row: str) -> bool:
    try:
        value = json.loads(row)
    except ValueError:
        return True
    return not isinstance(value, dict) or "__op" in value
