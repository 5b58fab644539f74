"""The size of a row's primary key as the server keeps it; above a limit no row of its table is loaded.

The server puts the values of a key behind each other: those of a fixed size, and texts as their bytes. A text in front
of another value also gets an end of two bytes, and each U+0000 in it a byte more, so that keys sort (wire contract
4.7). A commit with a longer key fails as in trouble of the server's own, without a word about keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starrocks_txn_sink.rows.target import TargetColumn

LIMIT: Final = 128
"""Bytes of a key unless the backends are configured otherwise (`primary_key_limit_size`)."""

_FIXED: Final = {
    "BOOLEAN": 1,
    "TINYINT": 1,
    "SMALLINT": 2,
    "INT": 4,
    "BIGINT": 8,
    "LARGEINT": 16,
    "DATE": 4,
    "DATETIME": 8,
}
_TEXTS: Final = ("VARCHAR", "STRING")
_END: Final = 2


@dataclass(frozen=True, slots=True)
class KeySize:
    """The sizes of one table's keys: `texts` are its columns of texts, `fixed` the bytes of all else.

    The `last` text (None: a key that ends with another value) has no end. `most` is the size that no key exceeds.
    """

    columns: tuple[str, ...]
    texts: tuple[str, ...]
    last: str | None
    fixed: int
    most: int

    @classmethod
    def of(cls, columns: Iterable[TargetColumn]) -> KeySize | None:
        """That of a table with these columns; None without a key, and for a key of a type that is not known here."""
        key = [column for column in columns if column.key]
        if not key or any(column.type.name not in (*_FIXED, *_TEXTS) for column in key):
            return None
        texts = tuple(column for column in key if column.type.name in _TEXTS)
        last = key[-1].name if key[-1] in texts else None
        fixed = sum(_FIXED.get(column.type.name, 0) for column in key)
        fixed += _END * sum(column.name != last for column in texts)
        longest = sum((column.type.length or 0) * (1 if column.name == last else 2) for column in texts)
        names = tuple(column.name for column in key), tuple(column.name for column in texts)
        return cls(*names, last, fixed, fixed + longest)

    def of_row(self, row: bytes) -> int:
        """The size of the key of a JSON object, of whose equal members the first counts; 0 for what is no object."""
        try:
            members = json.loads(row, object_pairs_hook=_first_members, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return 0
        if not isinstance(members, dict):
            return 0
        texts = [(name, _bytes_of(members.get(name))) for name in self.texts]
        return self.fixed + sum(len(text) + (text.count(0) if name != self.last else 0) for name, text in texts)


def _first_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return dict(reversed(pairs))


def _bytes_of(value: object) -> bytes:
    """A value as a column of texts keeps it; NULL has no bytes."""
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"1" if value else b"0"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")
