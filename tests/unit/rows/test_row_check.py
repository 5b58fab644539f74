"""A row is one JSON object without `__op`: the check of a batch agrees with a plain reading of each row."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.arrival import RowCheck
from starrocks_txn_sink.rows.columns import COLUMNS, DELETED, DELETING, PAYLOAD, POSITION
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from tests.support.depth import scaled


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
    '{"v":NaN}',
]


@pytest.mark.parametrize("row", FAULTS)
def test_a_row_that_is_something_else_is_refused_with_its_place(row: str) -> None:
    rows = [*GOOD, row, *GOOD]
    with pytest.raises(
        InputError, match=f"{FAULTS[row]}.* at source partition p-1, position 49, table items"
    ) as failure:
        RowCheck()(batch(rows))
    assert "SECRET" not in str(failure.value)


@pytest.mark.parametrize("row", [row for row, fault in FAULTS.items() if fault == "__op"])
def test_a_delete_has_the_sinks_op_alone(row: str) -> None:
    RowCheck()(batch(GOOD, [True] * len(GOOD)))
    with pytest.raises(InputError, match="__op"):
        RowCheck()(batch([*GOOD, row], [False] * len(GOOD) + [True]))
    with pytest.raises(InputError, match="__op"):
        RowCheck()(batch([*GOOD, row], [True] * len(GOOD) + [False]))


def test_with_a_quarantine_text_that_is_no_json_is_the_servers_to_reject() -> None:
    RowCheck(allow_torn=True)(batch([*GOOD, '{"id": ', '{"id":1],"z":[{"id":2}']))
    for row in ('{"id":1},{"id":2}', '{"id":1,"__op":1}', "[]"):
        with pytest.raises(InputError):
            RowCheck(allow_torn=True)(batch([*GOOD, row]))


JOINING = {
    "a string": ('{"a":"x}', '{","b":1}'),
    "a string over a row that is valid alone": ('{"a":"x}', '{",":1}', '{":1}'),
    "an array": ('{"a":[{"b":1}', '{"c":1}]}'),
    "an array with blanks": ('{"a": [ {"b": 1}', '{"c": 1} ] }'),
    "an array of numbers": ('{"a":[1', "{}]}"),
    "an array of arrays": ('{"a":[[{"b":1}', '{"c":1}],[{"d":1}', '{"e":1}]]}'),
}


@pytest.mark.parametrize("rows", JOINING.values(), ids=JOINING)
@pytest.mark.parametrize("allow_torn", [False, True])
def test_rows_that_are_valid_only_together_are_refused(rows: tuple[str, ...], allow_torn: bool) -> None:
    assert len(json.loads(f"[{','.join(rows)}]")) < len(rows)
    with pytest.raises(InputError, match="exactly one"):
        RowCheck(allow_torn=allow_torn)(batch([*GOOD, *rows, *GOOD]))
    assert any(_is_refused(row, allow_torn) for row in rows)  # alone in its batch, too


def _is_refused(row: str, allow_torn: bool) -> bool:
    try:
        RowCheck(allow_torn=allow_torn)(batch([row]))
    except InputError:
        return True
    return False


@pytest.mark.parametrize("allow_torn", [False, True])
def test_random_texts_that_pass_are_the_same_objects_in_a_body_as_alone(allow_torn: bool) -> None:
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
        try:
            RowCheck(allow_torn=allow_torn)(batch(rows))
        except InputError:
            continue
        assert body == [json.loads(row) for row in rows]
    assert joined > 20


@pytest.mark.parametrize("allow_torn", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_without_even_a_separator_is_refused(allow_torn: bool, at: int) -> None:
    payload = [',{"id":1}', ',{"id":2}']
    payload.insert(at, "")
    with pytest.raises(InputError, match="exactly one JSON object at table t"):
        RowCheck(allow_torn)(pa.RecordBatch.from_pydict({PAYLOAD: pa.array(payload), "table": pa.array(["t"] * 3)}))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_slice_is_checked_alone(kind: pa.DataType) -> None:
    whole = batch(['{"id":1},{"id":2}', *GOOD, '{"__op":1}'])
    whole = whole.set_column(4, PAYLOAD, whole.column(PAYLOAD).cast(kind))
    RowCheck()(whole.slice(1, len(GOOD)))
    with pytest.raises(InputError, match="position 40"):
        RowCheck()(whole.slice(0, 1))


def test_both_segmenters_check_the_rows_that_they_pass_on() -> None:
    bad = batch(['{"id":1},{"id":2}'])
    with pytest.raises(InputError, match="exactly one"):
        list(Segmenter(check=RowCheck()).split(bad.select(list(COLUMNS))))
    plain = bad.select(["table", PAYLOAD]).append_column("hash", pa.array([1], pa.int64()))
    with pytest.raises(InputError, match="exactly one"):
        list(UnpositionedSegmenter("q/0/1", 1, check=RowCheck()).split(plain))


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_are_judged_as_when_read_alone(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(scaled(400)):
        rows = [_random_row(rng) for _ in range(rng.choice((1, 3, 30)))]
        deleted = [rng.random() < 0.3 for _ in rows] if rng.random() < 0.5 else None
        at_fault = [number for number, row in enumerate(rows) if _plain_fault(row)]
        if at_fault:
            with pytest.raises(InputError, match=f"position {40 + at_fault[0]},"):
                RowCheck()(batch(rows, deleted))
        else:
            RowCheck()(batch(rows, deleted))


def _random_row(rng: random.Random) -> str:
    """Valid JSON objects, or several of them; never text that is no JSON, which the server refuses."""
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
        return "__op" in json.loads(row)
    except ValueError:
        return True
