"""Why a commit was refused: rejected rows by table, and the server's reasons without the rows' values.

`SHOW ALL STREAM LOAD FOR` a label answers in milliseconds with the rows that each table rejected, and the address of a
log (wire contract 6.5). It alone decides whether rows are at fault: "No rows were imported" is also what the server
says in its own trouble. A log is there only if a row of its load was good; it is read once, and whatever becomes of
that, the kind of the error and its counts stay.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import CommitFailed, RowsRejected, StarRocksSinkError
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.protocol.refusals import NO_ROWS, UNSAID

AskRows = Callable[[str, tuple[object, ...], Deadline], list[dict[str, Any]]]
"""As `LeaderConnection.rows`, with names of columns in lower case."""

ReadLog = Callable[[str, Deadline], str]
"""As `HttpTransport.error_log`."""

_MOST_REASONS: Final = 5
_MOST_LOGS: Final = 3  # of so many tables: the reasons are mostly the same, and each log is a request
_SHOWN_BYTES: Final = 500

_RULES: Final = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"^NULL value in non-nullable column '(\w+)'", "NULL in a NOT NULL column"),
        (r"^Value length is beyond the capacity\. column=(\w+)", "a text that is too long"),
        (r"too long\. The max length of '(\w+)' is", "a text that is too long"),
        (r"^Value is overflow\. column=(\w+)", "a value out of range"),
        (r"^Unable to cast .*column=(\w+)$", "a value that does not fit the column's type"),
        (r"^Failed to parse value as .*column=(\w+)$", "a value that does not fit the column's type"),
        # The server says so of a text that is none of the type, too.
        (r"is out of range\. The type of '(\w+)' is", "a value that does not fit the column's type"),
        (r"^value does not fit type .*column: (\w+)", "a value that does not fit the column's type"),
        (r"out of partition ranges", "a row that no partition takes"),
        (r"op type", "an unknown __op"),
        (r"column count|value count", "another number of columns"),
    )
)
_PREFIX: Final = re.compile(r"^Error: (?:Invalid argument: )?")


@dataclass(frozen=True, slots=True)
class Explainer:
    """Asks the server about refused commits in `database`; with `values` reasons are the log's own lines.

    Without `ask`, the text of the commit's reply decides alone; without `read_log` no reason is known.
    """

    database: str
    ask: AskRows | None
    read_log: ReadLog | None = None
    values: bool = False

    def explain(self, error: StarRocksSinkError, label: str, deadline: Deadline) -> StarRocksSinkError:
        """`error` as RowsRejected with tables, counts and reasons, if the server has rejected rows under `label`.

        Other errors stay, and those about which the server says nothing, or does not answer.
        """
        may_be_rows = isinstance(error, RowsRejected) or (isinstance(error, CommitFailed) and NO_ROWS in error.message)
        if self.ask is None or not may_be_rows:
            return error
        try:
            loads = self.ask(_loads_of(self.database, label), (), deadline)
            rows = {str(load["tablename"]): int(load["numrowsabnormal"] or 0) for load in loads}
        except (StarRocksSinkError, ValueError, KeyError):
            return error
        rows = {table: count for table, count in sorted(rows.items()) if count > 0}
        if not rows:
            return error
        logs = {
            str(load["tablename"]): str(load["trackingurl"])
            for load in loads
            if load["tablename"] in rows and load.get("trackingurl")
        }
        lines = self._lines(logs, deadline)
        rejected = _rejected(
            rows, self._reasons([line for of_table in lines.values() for line in of_table]), error.context
        )
        rejected.by_table = {table: (rows[table], "; ".join(self._reasons(lines.get(table, [])))) for table in rows}
        return rejected

    def _lines(self, logs: Mapping[str, str], deadline: Deadline) -> dict[str, list[str]]:
        """By table the lines with a reason, of the first logs."""
        lines = dict[str, list[str]]()
        for table, url in list(logs.items())[:_MOST_LOGS] if self.read_log is not None else ():
            with contextlib.suppress(StarRocksSinkError):
                assert self.read_log is not None
                lines[table] = errors_in(self.read_log(url, deadline))
        return lines

    def _reasons(self, lines: Sequence[str]) -> list[str]:
        return [line[:_SHOWN_BYTES] for line in lines[:_MOST_REASONS]] if self.values else reasons(lines)


def _loads_of(database: str, label: str) -> str:
    return f"SHOW ALL STREAM LOAD FOR {identifier(label)} FROM {identifier(database)}"


def _rejected(rows: Mapping[str, int], why: list[str], context: Mapping[str, object]) -> RowsRejected:
    counts = ", ".join(f"{count} row{'s' if count > 1 else ''} of {table}" for table, count in rows.items())
    return RowsRejected(
        f"The server rejected {counts}, so nothing of the transaction became visible: {'; '.join(why) or UNSAID}.",
        hint="Correct the rows or the table, or set on_bad_rows='quarantine'.",
        **{**context, "table": ", ".join(rows)},
    )


def errors_in(log: str) -> list[str]:
    """The lines of a log that are reasons: others are places in the server's source, or go on with a row."""
    return [line.strip() for line in log.splitlines() if line.startswith("Error: ")]


def reasons(lines: Iterable[str]) -> list[str]:
    """The reasons in `lines` without the rows' values: rule and column, the most frequent first."""
    counts: Counter[str] = Counter()
    for line in lines:
        head = _PREFIX.sub("", line.split(" Row:", 1)[0].rstrip(". "))
        matches = ((match, rule) for pattern, rule in _RULES if (match := pattern.search(head)) is not None)
        match, rule = next(matches, (None, "a reason of another kind"))
        column = match[1] if match is not None and match.groups() else ""
        counts[f"{rule}, column {column}" if column else rule] += 1
    largest = [f"{reason} ({count})" for reason, count in counts.most_common(_MOST_REASONS)]
    return [*largest, "…"] if len(counts) > _MOST_REASONS else largest
