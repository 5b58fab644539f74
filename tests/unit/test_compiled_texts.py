"""The compiled loops over whole columns of texts, and what objects have in common with the ones before."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.compiled.library import is_available
from starrocks_txn_sink.compiled.objects import read_objects
from starrocks_txn_sink.compiled.texts import gather, pairs, search

pytestmark = pytest.mark.skipif(not is_available(), reason="this installation has no compiled loop")

kinds = st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
columns = st.lists(
    st.tuples(st.lists(st.none() | st.text(max_size=20), max_size=9), kinds, st.integers(0, 3)), max_size=5
)


@given(columns, st.data())
def test_texts_of_several_columns_come_together_in_any_order(
    parts: list[tuple[list[str | None], pa.DataType, int]], data: st.DataObject
) -> None:
    texts, given_columns = list[str | None](), list[tuple[int, pa.Array]]()
    for values, kind, start in parts:
        given_columns.append((len(texts), pa.array(values, pa.string()).cast(kind).slice(start)))
        texts += values[start:]
    numbers = data.draw(st.lists(st.integers(0, len(texts) - 1))) if texts else []
    found = gather(given_columns, np.array(numbers, dtype=np.int64))
    if found is None:
        assert not texts
        return
    found.validate(full=True)
    assert found.to_pylist() == [texts[number] for number in numbers]


def test_texts_of_other_types_are_left_to_arrow() -> None:
    assert gather([(0, pa.array([b"ab"], pa.binary(2)))], np.array([0])) is None


@given(
    st.text('ab["', max_size=80), st.lists(st.text('ab["', min_size=2, max_size=4), min_size=1, max_size=9), st.data()
)
def test_a_search_finds_what_is_there(text: str, wanted: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    values = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    column = pa.array(["in front", *values, "[behind"]).slice(1, len(values))
    assert search(column, [each.encode() for each in wanted]) == any(each in text for each in wanted)


@given(st.lists(st.none() | st.tuples(st.integers(0, 1 << 70), st.integers(0, (1 << 63) - 1))))
def test_pairs_of_numbers_are_taken_apart(numbers: list[tuple[int, int] | None]) -> None:
    texts = [None if pair is None else f"{pair[0]}:{pair[1]}" for pair in numbers]
    found = pairs(pa.array(["x", *texts], pa.string()).slice(1))
    assert found is not None
    found[0].validate(full=True)
    assert found[0].to_pylist() == [pair and str(pair[0]) for pair in numbers]
    assert found[1].tolist() == [pair[1] if pair else 0 for pair in numbers]


@pytest.mark.parametrize("odd", ["", "5", ":5", "5:", "5:9:1", "5x:9", "5:x", "é:1", "-1:2", "1:9223372036854775808"])
def test_other_texts_are_no_pairs(odd: str) -> None:
    assert pairs(pa.array(["1:2", odd, None])) is None


FEW = pa.dictionary(pa.int32(), pa.string())
NESTED = pa.schema([("a", FEW), ("o", pa.struct([("b", FEW), ("n", pa.int64())])), ("t", pa.string())])
LONG = "a name that is longer than those that are kept"


def _values(rng: random.Random) -> list[dict[str, Any]]:
    """Objects that mostly have the members of the one before, in the same order."""
    names, inner = ["a", "o", "t", "other", LONG, *(f"m{n}" for n in range(40))], ["b", "n", "c"]
    values = list[dict[str, Any]]()
    for number in range(600):
        many = [f"{rng.randrange(400)} of many"] * 50 if number % 300 > 20 else []
        if rng.random() < 0.05:
            rng.shuffle(names)
            rng.shuffle(inner)
        text = rng.choice(["x", "y", "é\n", "", "long text " * 9, None, str(rng.randrange(12)), *many])
        of_inner = {"b": rng.choice(["p", "q", None, str(rng.randrange(20))]), "n": rng.randrange(99), "c": [1]}
        whole = {"a": text, "o": {name: of_inner[name] for name in inner[: rng.randint(1, 3)]}, "t": text}
        values.append({name: whole.get(name, rng.choice([1, "x", None, [{}]])) for name in names[: rng.randint(3, 45)]})
    return values


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wrapper", [None, "payload"])
def test_objects_with_changing_members_and_many_texts(seed: int, wrapper: str | None) -> None:
    rng = random.Random(seed)
    values = _values(rng)
    separators = rng.choice([(",", ":"), (", ", ": ")])
    asked = [number for number in range(600) if rng.random() < 0.01]  # Python reads these, and C goes on behind them
    texts = [json.dumps(value, separators=separators) for value in values]
    for number in asked:
        texts[number] = '{"\\u0061' + texts[number][len('{"a') :] if texts[number].startswith('{"a"') else texts[number]
    if wrapper:
        texts = [f'{{"schema":{{}},"payload":{text}}}' if rng.random() < 0.5 else text for text in texts]

    def judge(value: pa.Scalar) -> dict[str, Any]:
        read = json.loads(value.as_buffer().to_pybytes())
        return _fields(read.get("payload") or read if wrapper else read)

    found = read_objects(pa.array(texts, pa.binary()), NESTED, judge, wrapper)
    assert found is not None
    assert found[1].all()
    found[0].validate(full=True)
    assert found[0].select(NESTED.names).to_pylist() == [_fields(value) for value in values]
    for encoded in (found[0]["a"].chunk(0), found[0]["o"].chunk(0).field("b")):
        assert len(set(encoded.dictionary.to_pylist())) == len(encoded.dictionary)


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    of_inner = value.get("o")
    inner = None if of_inner is None else {"b": of_inner.get("b"), "n": of_inner.get("n")}
    return {"a": value.get("a"), "o": inner, "t": value.get("t")}
