"""What a row gets in a column that it leaves out: the column's DEFAULT, because the server would write NULL.

The loads of a table under one label are all of the same columns (wire contract 4.6), so the server cannot fill a column
for those rows alone that lack it: the sink writes the DEFAULT into the row, also one that the server would compute.
"""

from __future__ import annotations

import json
import re
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Final

from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.rows.values.rules import TABLE, Unfit, Value, fitted

_NOW: Final = re.compile(r"(?i)\s*(?:current_timestamp|now)\s*(?:\(\s*([0-6]?)\s*\))?\s*")
_UUID: Final = re.compile(r"(?i)\s*uuid\s*\(\s*\)\s*")
_UUID_NUMBER: Final = re.compile(r"(?i)\s*uuid_numeric\s*\(\s*\)\s*")
_UUID_BYTES: Final = 36


@dataclass(frozen=True)
class Filling:
    """A DEFAULT as JSON: the constant `text`, or the time with so many `decimals`, or a number of its own for each row.

    `base` is that of the digits of such a number: 16 in a UUID, 10 in an integer of 38 digits, 0 for none.
    """

    text: str = ""
    decimals: int | None = None
    base: int = 0

    def json(self, moment: float, zone: tzinfo | None) -> str:
        """The DEFAULT at `moment`, in seconds since the Unix epoch; times are written in `zone` (None: UTC)."""
        if self.decimals is not None:
            text = f"{datetime.fromtimestamp(moment, zone or timezone.utc):%Y-%m-%d %H:%M:%S.%f}"
            return f'"{text[: len(text) - 6 + self.decimals].removesuffix(".")}"'
        if self.base == 16:
            return f'"{uuid.uuid4()}"'
        return str(10**37 + secrets.randbelow(9 * 10**37)) if self.base else self.text


def filling_of(column: TargetColumn) -> Filling | None:
    """How a column's DEFAULT is written; None without one, and for one whose text the column's type does not take.

    information_schema shows a DEFAULT as a text, and a function by its name.
    """
    text, kind = column.default, column.type.name
    if text is None or kind not in TABLE:
        return None
    now = _NOW.fullmatch(text)
    if kind == "DATETIME" and now is not None:
        return Filling(decimals=int(now[1] or 0))
    if kind in ("CHAR", "VARCHAR", "STRING") and _UUID.fullmatch(text):
        return Filling(base=16) if (column.type.length or _UUID_BYTES) >= _UUID_BYTES else None
    if kind == "LARGEINT" and _UUID_NUMBER.fullmatch(text):
        return Filling(base=10)
    try:
        return Filling(fitted(column.type, Value(text, json.dumps(text, ensure_ascii=False))))
    except Unfit:
        return None


LEFT_OUT: Final = (
    ("a DEFAULT that is a value", "the DEFAULT", "NULL"),
    (
        "DATETIME with DEFAULT CURRENT_TIMESTAMP",
        "the time at the sink, in the job's zone",
        "NULL",
    ),
    ("text with DEFAULT uuid(), LARGEINT with DEFAULT uuid_numeric()", "a random one for each row", "NULL"),
    ("another DEFAULT", "refused: only the server can compute it", "NULL"),
    ("AUTO_INCREMENT", "nothing", "the next number"),
    ("a generated column (`AS …`)", "nothing, and a value in the row is not judged", "what it computes"),
    ("NULL without DEFAULT", "nothing", "NULL"),
    ("NOT NULL without DEFAULT", "refused", "refused"),
    ("a column of the key, in a delete", "a DEFAULT that is a value; else refused", "refused"),
)
"""A column that a row leaves out: the column, what the row gets from the sink, and what the server would keep."""
