"""Explicit ranges of a table, and the rows that none of them takes: the reason of a rejection that the server keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.rows.target import TargetType

_CLAUSE: Final = re.compile(r"\bPARTITION\s+BY\s+RANGE\s*\(\s*`?([^`,()]+?)`?\s*\)\s*\(", re.IGNORECASE)
_BOUND: Final = r"""\(?\s*(?:["']([^"']*)["']|(-?\d+)|(MAXVALUE))\s*\)?"""
_RANGE: Final = re.compile(
    rf"\bPARTITION\s+\S+\s+VALUES\s+(?:LESS\s+THAN\s*{_BOUND}|\[\s*{_BOUND}\s*,\s*{_BOUND}\s*\))", re.IGNORECASE
)
_PARTITION: Final = re.compile(r"\bPARTITION\s+(?!BY\b)\S|\bSTART\s*\(", re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.\d*)?)?")
_INTEGERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")


@dataclass(frozen=True, slots=True)
class Ranges:
    """PARTITION BY RANGE of one column: each partition is from its first bound below the second; None: endless."""

    column: str
    bounds: tuple[tuple[str | None, str | None], ...]

    @classmethod
    def of(cls, create: str) -> Ranges | None:
        """Those of a SHOW CREATE TABLE; None for another table, and for ranges in a form that is not known here."""
        clause = _CLAUSE.search(create)
        if clause is None:
            return None
        clauses, bounds, last = [*_RANGE.finditer(create, clause.end())], list[tuple[str | None, str | None]](), None
        if not clauses or len(clauses) != len(_PARTITION.findall(create, clause.end())):
            return None
        for match in clauses:
            end, low, high = (_bound(match.groups()[start : start + 3]) for start in (0, 3, 6))
            is_below = match[0].upper().split()[3:4] == ["LESS"]  # LESS THAN: from where the one before ends
            first, last = (last, end) if is_below else (low, high)
            bounds.append((first, last))
        return cls(clause[1], tuple(bounds))

    def leave_out(self, value: object, kind: TargetType) -> bool:
        """Whether no range takes a row with this value; False where that cannot be told, as for NULL."""
        read = _reader(kind)
        place = None if read is None or value is None else read(str(value))
        if read is None or place is None:
            return False
        for first, last in self.bounds:
            low, high = (None if bound is None else read(bound) for bound in (first, last))
            if (first is not None and low is None) or (last is not None and high is None):
                return False  # a bound that cannot be read
            if (low is None or place >= low) and (high is None or place < high):
                return False
        return True


def _bound(groups: Sequence[str | None]) -> str | None:
    """A bound as it is written: a text or a number; None for MAXVALUE."""
    text, number, _ = groups
    return number if text is None else text


def _reader(kind: TargetType) -> Callable[[str], Any] | None:
    """Reads a value of a column as what can be compared; None for other types, and of a text for what is none."""
    if kind.name in _INTEGERS:
        return lambda text: int(text) if re.fullmatch(r"-?\d+", text.strip()) else None
    if kind.name == "DATE":
        return lambda text: match[0] if (match := _DATE.match(text)) else None
    if kind.name == "DATETIME":
        return lambda text: (match[1], match[2] or "00:00:00") if (match := _TIME.fullmatch(text)) else None
    return None
