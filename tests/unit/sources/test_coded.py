"""Columns of few texts mean what their texts mean."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.sources.formats import coded

texts = st.none() | st.sampled_from(["", "a", "b.c", "shop"])


@pytest.mark.parametrize("counted", [0, 1 << 14])
@given(pairs=st.lists(st.tuples(texts, texts), max_size=20))
def test_two_columns_are_joined(counted: int, pairs: list[tuple[str | None, str | None]]) -> None:
    first, second = (pa.array([pair[n] for pair in pairs], pa.string()).dictionary_encode() for n in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coded, "_COUNTED", counted)
        found = coded.joined(first, second)
    assert coded.plain(found).to_pylist() == [".".join(text for text in pair if text is not None) for pair in pairs]
    assert set(found.dictionary.to_pylist()) == set(found.to_pylist())


@given(st.lists(texts, max_size=20))
def test_texts_that_are_wanted(values: list[str | None]) -> None:
    mask = coded.is_one_of(pa.array(["d", *values], pa.string()).dictionary_encode().slice(1), "a", "shop", "d")
    assert mask.tolist() == [value in ("a", "shop", "d") for value in values]
