"""Rows judged by the columns of their table, one by one: the oracle of the compiled loop, and the judge of odd rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from functools import cached_property
from typing import Any, Final

from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.json_members import Number, spans_of
from starrocks_txn_sink.rows.target import MOST_BYTES, TargetColumn
from starrocks_txn_sink.rows.values.byte_texts import count_bytes
from starrocks_txn_sink.rows.values.defaults import Filling, filling_of
from starrocks_txn_sink.rows.values.rules import Unfit, Value, fitted


class UnfitColumn(Exception):
    """A column's value that it would not keep; `reason` ends a sentence about the value."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column, self.reason = column, reason


@dataclass(frozen=True)
class RowRules:
    """The columns of a table by which its rows are judged; times are written in `zone` (None: UTC).

    The server decodes the texts of `decoded` columns, which stand for bytes. With `encodes_bytes` texts do so
    everywhere, and a VARBINARY that is not decoded would keep the letters: they are refused.
    A member without a column is no matter of this judgement, nor is a column that the server fills by itself.
    """

    columns: Mapping[str, TargetColumn]
    zone: tzinfo | None = None
    fillings: Mapping[str, Filling | None] = field(default_factory=dict)
    """What rows without a column get, by the columns that have a DEFAULT; None for one that the sink cannot write."""
    encodes_bytes: bool = False
    decoded: Mapping[str, Encoding] = field(default_factory=dict)
    moment: float = 0.0
    """The time that CURRENT_TIMESTAMP is, in seconds since the Unix epoch."""

    @classmethod
    def of(
        cls,
        table: Iterable[TargetColumn],
        zone: tzinfo | None = None,
        *,
        encodes_bytes: bool = False,
        decoded: Mapping[str, Encoding] | None = None,
        moment: float = 0.0,
        counters_known: bool = False,
    ) -> RowRules:
        """The rules of a table's columns, without those that are generated.

        A BIGINT that is NOT NULL may be AUTO_INCREMENT (`target.may_count`): the server fills it, or says so. With
        `counters_known` those that are AUTO_INCREMENT are marked (`target.with_counters`), and the others are not.
        """
        rules = {
            column.name: column
            if counters_known or not (column.required and column.type.name == "BIGINT")
            else replace(column, nullable=True)
            for column in table
            if not column.generated
        }
        fillings = {
            name: None if column.default and name in (decoded or {}) else filling_of(column)
            for name, column in rules.items()
            if column.default is not None
        }
        return cls(rules, zone, fillings, encodes_bytes, decoded or {}, moment)

    @property
    def timed(self) -> bool:
        """Whether a column's DEFAULT is the time."""
        return any(filling is not None and filling.decimals is not None for filling in self.fillings.values())

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The columns that a row must not leave out: they would be NULL, in place of a DEFAULT or of an error."""
        return tuple(name for name, column in self.columns.items() if name in self.fillings or column.required)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """The columns that a delete must not leave out."""
        return tuple(name for name, column in self.columns.items() if column.key)

    def filler(self, name: str) -> tuple[str, int]:
        """The member that a row without this column gets, its DEFAULT ("" where there is none to write), and the base
        of the digits by which those of two rows differ (`Filling`)."""
        filling = self.fillings.get(name)
        if filling is None:
            return "", 0
        return f"{json.dumps(name, ensure_ascii=False)}:{filling.json(self.moment, self.zone)}", filling.base

    def fit(self, row: str) -> str:
        """The row as it is sent; the very text if all values are kept as they are. Raises UnfitColumn.

        Of a delete only the key counts; other values that would not fit become NULL, or the type's placeholder. Text
        that is no JSON object stays as it is.
        """
        front = row[: row.startswith(SEPARATOR)]
        text = row.removeprefix(SEPARATOR)
        deletes = text.startswith(columns.DELETING)
        try:
            spans = [*spans_of(text)]
        except (ValueError, IndexError):
            return row
        pieces, copied, seen = [front], 0, dict[str, Any]()
        for name, value, start, end in spans:
            raw = text[start:end]
            new = self._value(name, value, raw, deletes)
            if name in seen and name in self.columns:
                raise UnfitColumn(name, "comes twice in a row, and only the first one is kept")
            seen[name] = value
            if new is not raw:
                pieces += text[copied:start], new
                copied = end
        pieces.append(text[copied:])
        whole = "".join(pieces) if copied else row
        return self._complete(whole, seen, deletes)

    def _value(self, name: str, value: Any, raw: str, deletes: bool) -> str:
        column = self.columns.get(name)
        if column is None:
            return raw
        if value is None:
            if column.nullable or (deletes and not column.key):
                return raw
            raise UnfitColumn(name, f"is NULL {_NO_KEY}" if deletes else "is NULL, and the column is NOT NULL")
        try:
            if name in self.decoded:
                return self._bytes(column, value, raw)
            if self.encodes_bytes and column.type.name == "VARBINARY":
                raise Unfit(_LETTERS)
            return fitted(column.type, Value(value, raw, self.zone))
        except Unfit as fault:
            if deletes and not column.key:
                return "null" if column.nullable else column.type.placeholder or raw
            raise UnfitColumn(name, str(fault)) from None

    def _bytes(self, column: TargetColumn, value: Any, raw: str) -> str:
        """A text that stands for bytes of the column. Raises Unfit."""
        encoding = self.decoded[column.name]
        text = isinstance(value, str) and not isinstance(value, Number)
        size = count_bytes(value, encoding) if text else None
        if size is None:
            raise Unfit(f"is no text of bytes ({_ENCODINGS[encoding]}), or one of more than {MOST_BYTES} letters")
        if column.type.length is not None and size > column.type.length:
            raise Unfit(f"has more than the {column.type.length} bytes of the column")
        return raw

    def _complete(self, row: str, seen: Mapping[str, Any], deletes: bool) -> str:
        """The row with the DEFAULTs of the columns that it leaves out; of a delete, of those in the key."""
        unchanged = seen.get(columns.UNCHANGED) or ()
        names = self.key if deletes else self.needed
        missing = [name for name in names if name not in seen and name not in unchanged]
        if not missing:
            return row
        members = ["" if deletes and self._varies(name) else self.filler(name)[0] for name in missing]
        if not all(members):
            name = missing[members.index("")]
            raise UnfitColumn(
                name, f"is missing {_NO_KEY}" if deletes else _MISSING if name in self.fillings else _REQUIRED
            )
        place = row.index("{") + 1
        if deletes:  # such a row begins with DELETING
            place += len(columns.DELETING) - 1
            return f"{row[:place]}{''.join(f',{member}' for member in members)}{row[place:]}"
        return f"{row[:place]}{','.join(members)}{',' if seen else ''}{row[place:]}"

    def _varies(self, name: str) -> bool:
        """Whether two rows without the column get different values."""
        filling = self.fillings.get(name)
        return filling is not None and not filling.text


_LETTERS: Final = (
    "is a text that stands for bytes, and a VARBINARY keeps its letters unless the sink has them decoded, which it "
    "decides when the query starts: start the query again; or decode it in the property `columns` of the table, as in "
    "photo = to_binary(photo, 'encode64'); or make the column a VARCHAR for the text"
)
_ENCODINGS: Final = {Encoding.BASE64: "base64", Encoding.HEX: "hexadecimal"}
_MISSING: Final = (
    "is missing in a row, and becomes NULL and not its DEFAULT, which only the server computes: name the columns that "
    "rows have in the property `columns` of the table, or write a value"
)
_NO_KEY: Final = (
    "in a delete, and is part of the key: take it out of the table's key, or have the source send it (in PostgreSQL "
    "ALTER TABLE … REPLICA IDENTITY FULL, also behind message.key.columns)"
)
_REQUIRED: Final = (
    "is missing in a row, and the column is NOT NULL without DEFAULT: have the source send it, or make the column "
    "nullable"
)
