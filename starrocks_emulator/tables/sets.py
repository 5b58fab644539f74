"""BITMAP and HLL columns: sets of numbers, kept as lists, and StarRocks' functions over them as DuckDB's macros; JSON.

A set is counted exactly, also one of an HLL column, which a server estimates beyond 160 values. `bitmap_hash` gives the
server's very numbers (MurmurHash3 of 32 bits); the hashes of an HLL are DuckDB's, which nothing shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import duckdb

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
    "murmur_word(digits)": "CAST('0x' || digits[7:8] || digits[5:6] || digits[3:4] || digits[1:2] AS UBIGINT)",
    "murmur_turn(word, bits)": f"(((word << bits) & {_MASK}) | (word >> (32 - bits)))",
    "murmur_mixed(word)": f"((murmur_turn((word * {0xCC9E2D51}) & {_MASK}, 15) * {0x1B873593}) & {_MASK})",
    "murmur_next(state, word)": (f"((murmur_turn(xor(state, murmur_mixed(word)), 13) * 5 + {0xE6546B64}) & {_MASK})"),
    "murmur_words(digits)": (
        "list_transform(range(length(digits) // 8), lambda place: murmur_word(digits[place * 8 + 1:place * 8 + 8]))"
    ),
    "murmur_body(digits)": (
        "xor(list_reduce(list_prepend(CAST(104729 AS UBIGINT), murmur_words(digits)),"
        " lambda state, word: murmur_next(state, word)),"
        " murmur_mixed(murmur_word(rpad(digits[length(digits) // 8 * 8 + 1:], 8, '0'))))"
    ),
    "murmur_folded(state, bits, factor)": f"((xor(state, state >> bits) * factor) & {_MASK})",
    "murmur(value)": (
        "murmur_folded(murmur_folded(murmur_folded("
        "xor(murmur_body(hex(encode(value))), CAST(strlen(value) AS UBIGINT)),"
        f" 16, {0x85EBCA6B}), 13, {0xC2B2AE35}), 16, 1)"
    ),
    "to_bitmap(value)": f"CASE WHEN {_WHOLE} AND TRY_CAST(value AS UBIGINT) >= 0 THEN [TRY_CAST(value AS UBIGINT)] END",
    "bitmap_hash(value)": f"CASE WHEN value IS NULL THEN {_EMPTY} ELSE [murmur(CAST(value AS VARCHAR))] END",
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


def sorted_json(text: str) -> str:
    """A JSON value as the server shows it: keys in order, a space after each comma and colon (wire contract 5.11)."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:  # DuckDB may evaluate what a CASE leaves out
        return text


def define_functions(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known to every session of the database."""
    cursor.create_function("sorted_json", sorted_json, ["VARCHAR"], "VARCHAR")
    for head, body in _FUNCTIONS.items():
        cursor.execute(f"CREATE OR REPLACE MACRO {head} AS {body}")
