"""Columns about a row's source: members in front of the members that a JSON row has."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.options.table_rules import COMMIT_TIME

Numbers = np.ndarray[Any, np.dtype[Any]]

_LEADING_TIME: Final = rf'^\{{"{COMMIT_TIME}":(?:null|"[^"]*"),?'


def numbers_by_table(tables: pa.Array) -> tuple[list[str], Numbers]:
    """The distinct names, and the number of each row's name; the number behind the last one for NULL."""
    encoded = tables.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    return names, encoded.indices.fill_null(len(names)).to_numpy()


def heads_of(
    wanted_by: Sequence[Collection[str] | None], of_row: Numbers, values: Mapping[str, pa.Array]
) -> pa.Array | None:
    """The members of the metadata `values` that each row's table wants; None where no row wants any."""
    wanted = {
        name: np.array([each is not None and name in each for each in wanted_by] + [False])[of_row] for name in values
    }
    pieces = [(f"{json.dumps(name)}:", _texts(values[name]), mask) for name, mask in wanted.items() if mask.any()]
    if all(mask.all() for _, _, mask in pieces):
        fronts = [f",{front}" if number else front for number, (front, _, _) in enumerate(pieces)]
        texts = [part for front, (_, values_of, _) in zip(fronts, pieces, strict=True) for part in (front, values_of)]
        return pc.binary_join_element_wise(*texts, "") if texts else None
    heads: pa.Array | None = None
    for front, texts_of, mask in pieces:
        members = pc.if_else(pa.array(mask), pc.binary_join_element_wise(front, texts_of, ""), None)
        heads = (
            members if heads is None else pc.coalesce(pc.binary_join_element_wise(heads, members, ","), heads, members)
        )
    return heads


def _texts(values: pa.Array) -> pa.Array:
    """Texts or whole numbers as JSON."""
    if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return pc.fill_null(values.cast(pa.string()), "null")
    distinct = values.dictionary_encode()
    texts = [json.dumps(text) for text in distinct.dictionary.to_pylist()]
    return pc.fill_null(pa.array(texts, pa.string()).take(distinct.indices), "null")


def with_heads(rows: pa.Array, heads: pa.Array | None) -> pa.Array:
    """The rows with `heads` as their first members; a row without one stays as it is. Rows begin with a brace."""
    if heads is None:
        return rows
    rest = pc.binary_replace_slice(rows.cast(pa.binary()), 0, 1, b",").cast(pa.string())
    empty = pc.equal(rest, ",}")
    rest = pc.if_else(empty, "}", rest) if pc.any(empty).as_py() else rest
    headed = pc.binary_join_element_wise("{", heads, rest, "")
    return pc.coalesce(headed, rows) if headed.null_count else headed


def time_texts(times: pa.Array, unit: str) -> pa.Array:
    """Times since the Unix epoch as StarRocks' DATETIME, in UTC."""
    return times.cast(pa.int64()).cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.string())


def without_time(rows: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The rows without a commit's time as their first member: it may be a message's, and others repeat the row."""
    return pc.replace_substring_regex(rows, _LEADING_TIME, "{")
