"""What must hold in every snapshot: one SELECT that returns what is wrong."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from starrocks_txn_sink.errors import OptionError

_READS = re.compile(r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)*\(*\s*(SELECT|WITH)\b", re.IGNORECASE | re.DOTALL)
MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Audit:
    """An invariant, and how often it is asked for.

    Each row that `sql` returns is a violation, and no row means that the invariant holds:
    `SELECT * FROM (SELECT (SELECT sum(cents) FROM a) + (SELECT sum(cents) FROM b) AS total) t WHERE total <> 100000`.
    Of the first violation up to `evidence_rows` rows are kept, and written to `evidence_file` if one is named; they
    are in no event and no log. Raises OptionError for a statement that does not read, or figures that cannot be.
    """

    sql: str
    interval: float = 1.0
    evidence_rows: int = 20
    evidence_file: str | None = None

    def __post_init__(self) -> None:
        if _READS.match(self.sql) is None:
            raise OptionError("An audit's statement does not begin with SELECT or WITH.", hint="An audit only reads.")
        if not (math.isfinite(self.interval) and self.interval > 0):
            raise OptionError(f"An audit's interval is {self.interval}.", hint="Give seconds above 0.")
        if not 1 <= self.evidence_rows <= MOST_ROWS:
            raise OptionError(f"evidence_rows is {self.evidence_rows}.", hint=f"Give 1 to {MOST_ROWS}.")

    def __repr__(self) -> str:
        """Without the statement, which may hold values."""
        return f"Audit(interval={self.interval:g})"
