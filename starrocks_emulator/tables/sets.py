"""BITMAP and HLL columns: sets of numbers, kept as lists, and StarRocks' functions over them in DuckDB.

A set is counted exactly, also one of an HLL column, which a server estimates beyond 160 values. `bitmap_hash` gives the
server's very numbers (MurmurHash3 of 32 bits); the hashes of an HLL are DuckDB's, which nothing shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from starrocks_emulator.tables.nested import nested_json, sorted_json

KEPT_AS = "UBIGINT[]"
LOADED_BY: Mapping[str, tuple[str, ...]] = {
    "BITMAP": ("to_bitmap", "bitmap_hash", "bitmap_empty"),
    "HLL": ("hll_hash", "hll_empty"),
}
"""Type → the functions with which a load fills such a column (wire contract 5.5)."""

COUNTED_BY: Mapping[str, str] = {"BITMAP": "bitmap_union_count", "HLL": "hll_union_agg"}
"""Type → the aggregate function that COUNT(DISTINCT …) of such a column means."""

_MASK = 0xFFFFFFFF
_WHOLE = "regexp_full_match(CAST(value AS VARCHAR), '[0-9]+')"
_EMPTY = f"CAST([] AS {KEPT_AS})"
_UNION = "list_distinct(flatten(list(value)))"

_FUNCTIONS: Mapping[str, str] = {
    "to_bitmap(value)": f"CASE WHEN {_WHOLE} AND TRY_CAST(value AS UBIGINT) >= 0 THEN [TRY_CAST(value AS UBIGINT)] END",
    "bitmap_hash(value)": f"CASE WHEN value IS NULL THEN {_EMPTY} ELSE [murmur3(CAST(value AS VARCHAR))] END",
    "bitmap_empty()": _EMPTY,
    "bitmap_count(value)": "coalesce(len(value), 0)",
    "bitmap_to_string(value)": "array_to_string(list_sort(value), ',')",
    "bitmap_union(value)": _UNION,
    "bitmap_union_count(value)": f"coalesce(len({_UNION}), 0)",
    "hll_hash(value)": f"CASE WHEN value IS NULL THEN {_EMPTY} ELSE [hash(CAST(value AS VARCHAR))] END",
    "hll_empty()": _EMPTY,
    "hll_cardinality(value)": "len(value)",
    "hll_union(value)": _UNION,
    "hll_union_agg(value)": f"coalesce(len({_UNION}), 0)",
}


def murmur3(text: str) -> int:
    """MurmurHash3 of 32 bits with StarRocks' seed."""
    content = text.encode()
    state = 104729
    for start in range(0, len(content), 4):
        word = int.from_bytes(content[start : start + 4], "little")
        mixed = (_turned((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK
        state ^= mixed
        if start + 4 <= len(content):
            state = (_turned(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= len(content)
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return state ^ (state >> 16)


def _turned(word: int, bits: int) -> int:
    return ((word << bits) & _MASK) | (word >> (32 - bits))


def define_functions(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to every session of the database."""
    cursor.create_function("sorted_json", sorted_json, ["VARCHAR"], "VARCHAR")
    cursor.create_function("nested_json", nested_json, ["VARCHAR", "VARCHAR"], "VARCHAR")
    cursor.create_function("murmur3", murmur3, ["VARCHAR"], "UBIGINT")
    for head, body in _FUNCTIONS.items():
        cursor.execute(f"CREATE OR REPLACE MACRO {head} AS {body}")
