"""Columns of few different texts, as numbers with a dictionary: what is said of a text is said once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.rows.segments import Bools

_COUNTED: Final = 1 << 14
"""Up to so many pairs of texts are counted, which costs less than a sort."""

_Numbers = np.ndarray[Any, np.dtype[np.int64]]


def is_one_of(texts: pa.DictionaryArray, *wanted: str) -> Bools:
    """A mask of the texts that are among those that are wanted."""
    among = [text in wanted for text in texts.dictionary.to_pylist()]
    if not any(among) or (all(among) and not texts.null_count):  # as a rule: a source inserts, or it does not
        return np.full(len(texts), any(among))
    mask: Bools = np.array([*among, False])[_codes_of(texts)]
    return mask


def plain(texts: pa.DictionaryArray) -> pa.StringArray:
    """The texts without a dictionary."""
    return texts.dictionary.take(texts.indices)


def joined(first: pa.DictionaryArray, second: pa.DictionaryArray) -> pa.DictionaryArray:
    """The texts of two columns with a point between; of one alone where the other is NULL, and "" where both are.

    The dictionary has only what is there.
    """
    firsts, seconds = [*first.dictionary.to_pylist(), None], [*second.dictionary.to_pylist(), None]
    codes = _codes_of(first) * len(seconds) + _codes_of(second)
    distinct, places = _distinct(codes, len(firsts) * len(seconds))
    pairs = [divmod(code, len(seconds)) for code in distinct.tolist()]
    texts = [".".join(text for text in (firsts[i], seconds[j]) if text is not None) for i, j in pairs]
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(texts, pa.string()))


def _codes_of(texts: pa.DictionaryArray) -> _Numbers:
    """The number of each text; that behind all for NULL."""
    codes: _Numbers = pc.fill_null(texts.indices, len(texts.dictionary)).to_numpy().astype(np.int64)
    return codes


def _distinct(codes: _Numbers, limit: int) -> tuple[_Numbers, _Numbers]:
    """The distinct ones of codes below a limit, and of each code its place among them."""
    if limit > _COUNTED:
        distinct, places = np.unique(codes, return_inverse=True)
        return distinct, places
    distinct = np.flatnonzero(np.bincount(codes, minlength=limit))
    places = np.zeros(limit, dtype=np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[codes]
