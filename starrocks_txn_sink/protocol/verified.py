"""The result of a job's last whole `verify`, as a marker row of its ledger: page, metrics and `status` show it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starrocks_txn_sink.protocol.label import LedgerRequest, Rows, Sql
from starrocks_txn_sink.protocol.ledger import MARKER, table_of

VERIFIED: Final = "verified"
"""Name of the marker row; its token holds the result."""
_TOKEN: Final = 128  # letters that the column takes
_NUMBERS: Final = 5


@dataclass(frozen=True, slots=True)
class Verified:
    """At `at` (seconds since 1970) and `position` of the source: numbers of tables, and of rows that are different.

    `unproven` tables could not be compared or settled. A long `position` is cut.
    """

    at: int
    equal: int
    different: int
    unproven: int
    rows: int
    position: str

    @property
    def token(self) -> str:
        """The result as the marker row has it: five numbers and the position, between colons."""
        numbers = (self.at, self.equal, self.different, self.unproven, self.rows)
        return f"{':'.join(map(str, numbers))}:{self.position}"[:_TOKEN]

    @classmethod
    def of_token(cls, token: str) -> Verified:
        """The result that `token` wrote; ValueError for a text of another form."""
        time, equal, different, unproven, rows, position = token.split(":", _NUMBERS)
        return cls(int(time), int(equal), int(different), int(unproven), int(rows), position)

    @property
    def text(self) -> str:
        """The result in a sentence without its end."""
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.at))
        place = f"to the source at {when} UTC, position {self.position}"
        unproven = f", {self.unproven} not proven" if self.unproven else ""
        if self.different:
            return (
                f"not equal {place}: {self.different} tables different ({self.rows} rows), {self.equal} equal{unproven}"
            )
        return f"equal {place}: {self.equal} tables{unproven}" if self.equal else f"not compared {place}{unproven}"


@dataclass(frozen=True, slots=True)
class ReadVerified(LedgerRequest):
    """Read the results of all jobs of the database. Result: Mapping[str, Verified] by job."""

    def statement(self, database: str) -> Sql:
        return f"SELECT job, token FROM {table_of(database)} WHERE kind = %s AND name = %s", (MARKER, VERIFIED)

    def result(self, rows: Rows) -> Mapping[str, Verified]:
        return {str(job): Verified.of_token(str(token)) for job, token in rows}
