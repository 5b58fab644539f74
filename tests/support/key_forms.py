"""Primary keys as they are compared, said once more in Python: the JVM's expressions are held against it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from starrocks_txn_sink.sink.compaction import A_DIGIT, DAY, MOMENT, NUMBER, TIME, TRUTHS, KeyColumn, KeyType


def normal_form(column: KeyColumn, text: str) -> str | None:
    """The same text for all texts that the server takes for the same value; None when that cannot be told."""
    match column.key_type:
        case KeyType.TEXT:
            return text
        case KeyType.INTEGER | KeyType.DECIMAL:
            return _number(column, text)
        case KeyType.BOOLEAN:
            number = _number(column, text.lower())
            return number and ("0" if number == "0" else "1")
        case KeyType.DATE | KeyType.DATETIME:
            return _time(column, text)
        case KeyType.OTHER:
            return None


def survivors(keys: Sequence[Hashable | None]) -> list[bool]:
    """Which rows are sent, given the rows' (table, key) in the order in which they count.

    The last row of each key; a row without a key (None) always.
    """
    last = {key: place for place, key in enumerate(keys)}
    return [key is None or last[key] == place for place, key in enumerate(keys)]


def _number(column: KeyColumn, text: str) -> str | None:
    if text in TRUTHS and column.key_type is not KeyType.DECIMAL:
        return TRUTHS[text]
    found = re.search(NUMBER, text)
    if found is None or not re.search(A_DIGIT, text):
        return None
    sign, whole, fraction = found[1], found[2] or "0", found[3] or ""
    allowed = column.digits_behind_point
    if allowed is not None and len(fraction) > allowed:
        return None
    digits = whole + (f".{fraction}" if fraction else "")
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def _time(column: KeyColumn, text: str) -> str | None:
    plain = re.sub(MOMENT, r"\1-\2-\3 \4:\5:\6", re.sub(DAY, r"\1-\2-\3", text))
    found = re.search(TIME, plain)
    if found is None:
        return None
    year, *rest = (found[group] or "" for group in range(1, 7))
    day = "-".join([year, *(part.rjust(2, "0") for part in rest[:2])])
    if column.key_type is KeyType.DATE:
        return day
    return f"{day} {':'.join(part.rjust(2, '0') for part in rest[2:])}.{(found[7] or '').ljust(6, '0')}"
