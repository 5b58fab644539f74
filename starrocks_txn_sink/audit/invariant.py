"""The invariant: one SELECT that returns a row for each violation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from starrocks_txn_sink.errors import OptionError

_READS = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*\(*\s*(SELECT|WITH)\b", re.IGNORECASE | re.DOTALL)
MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Audit:
    """An invariant and the seconds between two samples.

    Each row that `sql` returns is a violation, and no row means that the invariant holds:
    `SELECT * FROM (SELECT (SELECT sum(cents) FROM a) + (SELECT sum(cents) FROM b) AS total) t WHERE total <> 100000`.
    The auditor keeps up to `evidence_rows` rows of the first violation, and writes them to `evidence_file` if set; no
    event and no log has them. Raises OptionError for a statement that is no SELECT, or a number out of range.
    """

    sql: str
    interval: float = 1.0
    evidence_rows: int = 20
    evidence_file: str | None = None

    def __post_init__(self) -> None:
        if _READS.match(self.sql) is None:
            raise OptionError(
                "The statement of an audit does not begin with SELECT or WITH.",
                hint="Write one SELECT. An audit only reads.",
            )
        if not (math.isfinite(self.interval) and self.interval > 0):
            raise OptionError(f"The interval of an audit is {self.interval}.", hint="Set a number of seconds above 0.")
        if not 1 <= self.evidence_rows <= MOST_ROWS:
            raise OptionError(f"evidence_rows is {self.evidence_rows}.", hint=f"Set a number from 1 to {MOST_ROWS}.")

    def __repr__(self) -> str:
        """Omits the statement, which may contain values."""
        return f"Audit(interval={self.interval:g})"
