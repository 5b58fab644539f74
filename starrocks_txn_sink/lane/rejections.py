"""Why the server rejected rows: asked over SQL after a commit was refused, told without the rows' values.

`information_schema.loads` has the counts by table, `load_tracking_logs` the reasons (wire contract 5.10, 6.5, 7.5). A
reason of the server's repeats the row that it is about, so only what is harmless is shown: which rule, which column.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import RowsRejected, StarRocksSinkError

Query = Callable[[str, tuple[object, ...], Deadline], list[tuple[Any, ...]]]
"""As `LeaderConnection.query`."""

_COUNTS = "SELECT TABLE_NAME, FILTERED_ROWS FROM information_schema.loads WHERE LABEL = %s AND FILTERED_ROWS > 0"
_LOGS = "SELECT TRACKING_LOG FROM information_schema.load_tracking_logs WHERE LABEL = %s"
_MOST_REASONS = 5
_SHOWN_BYTES = 500

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), told)
    for pattern, told in (
        (r"NULL value in non-nullable column|NULL .* NOT NULL", "NULL in a NOT NULL column"),
        (r"too long|exceeds? the (?:max )?length|length .* exceed|longer than", "a text that is too long"),
        (r"out of range|overflow", "a value out of range"),
        (r"does(?: not|n't) fit type", "a value that does not fit the column's type"),
        (r"op type", "an unknown __op"),
        (r"column count|value count", "another number of columns"),
        (r"parse|json|invalid|convert|cast", "a value that cannot be read"),
    )
)
_COLUMN = re.compile(r"column:? '?`?(\w+)|(?:type|length) of '(\w+)'", re.IGNORECASE)
_REPEATED = re.compile(r"\((\d+) rows")


@dataclass(frozen=True, slots=True)
class Rejections:
    """Rejected rows by table, and the lines of the server's log."""

    rows: dict[str, int]
    lines: tuple[str, ...]


def ask(query: Query, label: str, deadline: Deadline) -> Rejections:
    """What the server knows of the rows it rejected under `label`; raises QueryFailed or QueryRefused."""
    counts = {str(table): int(rows) for table, rows in query(_COUNTS, (label,), deadline)}
    logs = [str(row[0]) for row in query(_LOGS, (label,), deadline) if row[0]]
    lines = (line.strip() for log in logs for line in log.splitlines())
    return Rejections(counts, tuple(line for line in lines if line))


def filtered_rows(query: Query, label: str, deadline: Deadline) -> dict[str, int]:
    """Rows by table that the server left out of the committed `label`, because `max_filter_ratio` let it; empty when it
    cannot be asked."""
    try:
        return {str(table): int(rows) for table, rows in query(_COUNTS, (label,), deadline)}
    except (StarRocksSinkError, ValueError):
        return {}


def explained(error: RowsRejected, found: Rejections, *, values: bool = False) -> RowsRejected:
    """`error` with tables, counts and reasons; with `values` the server's own lines, which repeat rows."""
    if not found.rows and not found.lines:
        return error
    counts = ", ".join(f"{rows} row{'s' if rows > 1 else ''} of {table}" for table, rows in sorted(found.rows.items()))
    told = found.lines[:_MOST_REASONS] if values else reasons(found.lines)
    why = "; ".join(line[:_SHOWN_BYTES] for line in told)
    message = f"The server rejected {counts or 'rows'}, so nothing of the transaction became visible"
    hint = "Correct the rows or the table, or set on_bad_rows='quarantine'."
    context = {"table": ", ".join(sorted(found.rows)) or None, **error.context}
    return RowsRejected(f"{message}: {why or 'the server gave no reason'}.", hint=hint, **context)


def reasons(lines: Iterable[str]) -> list[str]:
    """What the lines say, without the values they repeat: rule and column, the most frequent first."""
    counted: Counter[str] = Counter()
    for line in lines:
        head = line.split(" Row:", 1)[0]
        rule = next((told for pattern, told in _RULES if pattern.search(head)), "a reason of another kind")
        column = _COLUMN.search(head)
        repeated = _REPEATED.search(head)
        name = next((part for part in column.groups() if part), "") if column else ""
        counted[f"{rule}, column {name}" if name else rule] += int(repeated[1]) if repeated else 1
    most = [f"{told} ({count})" for told, count in counted.most_common(_MOST_REASONS)]
    return [*most, "…"] if len(counted) > _MOST_REASONS else most


def explain_or_keep(
    error: RowsRejected, query: Query, label: str, deadline: Deadline, *, values: bool = False
) -> RowsRejected:
    """As `explained`; the error as it is when the server cannot be asked: the question must not hide it."""
    try:
        return explained(error, ask(query, label, deadline), values=values)
    except (StarRocksSinkError, ValueError):
        return error
