"""Rows as the sink would write them, from the source's texts: what a repair sends. Pure.

A text becomes the JSON value that the connector sends for it; the sink's own table of values (`rows.values`) then makes
of it what the column keeps, or refuses it, as with every row.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from starrocks_txn_ops.verify.rules import sameness
from starrocks_txn_ops.verify.rules.core import Key, Row
from starrocks_txn_ops.verify.rules.pairs import Pair
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.options.table_rules import DELETED
from starrocks_txn_sink.rows.columns import DELETING, UNCHANGED
from starrocks_txn_sink.rows.target import TargetColumn

_TEXTS: Final = ("CHAR", "VARCHAR", "STRING")
_NESTED: Final = ("ARRAY", "MAP", "STRUCT")
_ZONED: Final = ("zoned time", "zoned timestamp")
_NUMBERS: Final = ("integer", "decimal", "number", "double", "float")


class NotWritable(Exception):
    """A value of which a repair does not know what the connector sends; the message says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows of a table are written: its columns, pairs of the key and of other columns, and values for all rows.

    `keyed`: a PRIMARY KEY table; any other one keeps each row that it gets. `marks`: deleted rows stay, with a mark.
    `decoded` are the columns whose texts the server decodes.
    """

    table: str
    columns: Mapping[str, TargetColumn]
    keys: Sequence[Pair]
    values: Sequence[Pair]
    fixed: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = True
    marks: bool = False
    decoded: Mapping[str, Encoding] = field(default_factory=dict)

    def upsert(self, key: Key, row: Row, *, present: bool) -> str:
        """The row of a key as JSON; of a row that is `present` columns without a pair keep their values."""
        members = self._key(key)
        for pair, text in zip(self.values, row, strict=True):
            members[pair.name] = self._value(pair, text)
        if self.marks:
            members[DELETED] = "false"
        return _row(members, self._others(members) if present and self.keyed else [])

    def delete(self, key: Key) -> str:
        """The delete of a key's row, or its mark."""
        members = self._key(key)
        if not self.marks:
            return f"{DELETING}{''.join(f',{_member(name, raw)}' for name, raw in members.items())}}}"
        members[DELETED] = "true"
        return _row(members, self._others(members), always=True)

    def _key(self, key: Key) -> dict[str, str]:
        members = {name: json.dumps(text, ensure_ascii=False) for name, text in self.fixed.items()}
        return members | {pair.name: self._value(pair, text) for pair, text in zip(self.keys, key, strict=True)}

    def _value(self, pair: Pair, text: str | None) -> str:
        column = self.columns[pair.name]
        return json_of(pair, column.type.name, text, self.decoded.get(pair.name))

    def _others(self, members: Mapping[str, str]) -> list[str]:
        return [column.name for column in self.columns.values() if column.name not in members and not column.generated]


def _member(name: str, raw: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}:{raw}"


def _row(members: Mapping[str, str], unchanged: Sequence[str], *, always: bool = False) -> str:
    parts = [_member(name, raw) for name, raw in members.items()]
    if unchanged or always:
        parts.append(_member(UNCHANGED, json.dumps([*unchanged], ensure_ascii=False)))
    return f"{{{','.join(parts)}}}"


def json_of(pair: Pair, column: str, text: str | None, decoded: Encoding | None = None) -> str:
    """The JSON of a source's text for a column of a type; `decoded` says how the server decodes texts of bytes.

    Raises NotWritable.
    """
    if text is None or pair.null(text):
        return "null"
    text = pair.made(text)
    if pair.kind in _SPECIAL:
        return _SPECIAL[pair.kind](pair, column, text)
    if column == "VARBINARY":
        return _bytes(pair, text, decoded)
    if pair.kind == "bytes" and pair.hexadecimal and column in _TEXTS:
        return _quoted(base64.b64decode(text).hex())
    if pair.kind in ("list", "byte list", "json") or column in _NESTED:
        return _document(pair, column, text)
    if pair.kind == "float":
        text = _shortest(text)
    if pair.kind in _ZONED and column in _TEXTS:
        text = f"{text.replace(' ', 'T')}Z"
    return text if column == "JSON" and pair.kind in _NUMBERS else _quoted(text)


def _bits(_: Pair, column: str, text: str) -> str:
    number = int(text or "0", 2)
    return ("true" if number else "false") if column == "BOOLEAN" else str(number)


def _truth(_: Pair, column: str, text: str) -> str:
    truth = "true" if text == "1" else "false"
    return _quoted(truth) if column in _TEXTS else truth


def _interval(pair: Pair, column: str, text: str) -> str:
    size = sameness.microseconds(text)
    if column in _TEXTS:
        return _quoted(text)
    if size is None:
        raise NotWritable(f"{pair.name}: an interval that has no number of microseconds")
    return str(size)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _document(pair: Pair, column: str, text: str) -> str:
    """A document as it is; in a column of texts as a text."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        raise NotWritable(f"{pair.name}: a document that is no JSON") from None
    if pair.kind == "byte list":
        document = _encoded(document, hexadecimal=pair.hexadecimal)
    elif column not in _TEXTS or pair.kind == "json":
        return text if column not in _TEXTS else _quoted(text)
    plain = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _quoted(plain) if column in _TEXTS else plain


def _encoded(document: Any, *, hexadecimal: bool) -> Any:
    """PostgreSQL's bytes in a document, as the connector encodes them."""
    if isinstance(document, list):
        return [_encoded(element, hexadecimal=hexadecimal) for element in document]
    if not isinstance(document, str):
        return document
    content = bytes.fromhex(document.removeprefix("\\x"))
    return content.hex() if hexadecimal else base64.b64encode(content).decode()


def _bytes(pair: Pair, text: str, decoded: Encoding | None) -> str:
    if pair.kind == "bytes":
        content = bytes.fromhex(text)
    else:
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError:
            raise NotWritable(f"{pair.name}: a text that stands for no bytes") from None
    return _quoted(content.hex() if decoded is Encoding.HEX else base64.b64encode(content).decode())


def _point(pair: Pair, column: str, text: str) -> str:
    """Debezium's document of a point."""
    match = sameness.POINT.fullmatch(text.strip())
    if match is None:
        raise NotWritable(f"{pair.name}: a point in another spelling")
    x, y = float(match[1]), float(match[2])
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, x, y)).decode()
    document = json.dumps({"x": x, "y": y, "wkb": wkb, "srid": None}, separators=(",", ":"))
    return document if column == "JSON" else _quoted(document)


_SPECIAL: Final[Mapping[str, Callable[[Pair, str, str], str]]] = {
    "point": _point,
    "bits": _bits,
    "boolean": _truth,
    "interval": _interval,
}


def _shortest(text: str) -> str:
    """The shortest digits of a number of 32 bits, as the connector writes them."""
    try:
        number = np.float32(text)
    except ValueError:
        return text
    return np.format_float_positional(number, trim="-") if np.isfinite(number) and abs(number) < 1e16 else str(number)
