"""The receipts' log: its table, and the location of a source transaction from ledger and log. Pure.

The ledger has the last visible position of each source partition; every position up to it is visible. The log has the
labels. A position between two logged ends belongs to the source transaction with the next end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from starrocks_txn_sink.protocol.ledger import Sql, identifier, own_table_ddl


class PositionStatus(Enum):
    """Whether a position is visible, and whether the log names its label; `--json` shows the value."""

    CONTAINED = "contained"
    VISIBLE = "visible"
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class LedgerPosition:
    """Row of the ledger for a source partition; times are UTC of the server or the lane, as text."""

    position: int
    label: str
    batch: int
    since: str


@dataclass(frozen=True, slots=True)
class LoggedSpan:
    """Row of the log: the positions of a source partition that a label made visible."""

    first: int
    last: int
    label: str
    lane: int
    batch: int
    rows: int
    tables: str
    since: str


@dataclass(frozen=True, slots=True)
class LocatedPosition:
    """Answer for a position. `span` is set for CONTAINED; `reached` is the ledger's row, None without one.

    `upper` is set for VISIBLE: the position was visible at that time, perhaps earlier.
    """

    status: PositionStatus
    reached: LedgerPosition | None
    span: LoggedSpan | None = None
    upper: str = ""


def locate(position: int, reached: LedgerPosition | None, around: Sequence[LoggedSpan]) -> LocatedPosition:
    """Locate `position`; `around` are its neighbours in the log: the first end at or above, the last end below."""
    if reached is None or position > reached.position:
        return LocatedPosition(PositionStatus.NOT_YET, reached)
    above = min((span for span in around if span.last >= position), key=lambda span: span.last, default=None)
    if above is None:
        return LocatedPosition(PositionStatus.VISIBLE, reached, upper=reached.since)
    below = any(span.last < position for span in around)
    if above.first <= position or below:
        return LocatedPosition(PositionStatus.CONTAINED, reached, above)
    return LocatedPosition(PositionStatus.VISIBLE, reached, upper=above.since)


LOG_TABLE = "_starrocks_txn_sink_receipts"

COLUMNS = (
    ("job", "VARCHAR(64) NOT NULL"),
    ("source_partition", "VARCHAR(1024) NOT NULL"),
    ("last_position", "BIGINT NOT NULL"),
    ("first_position", "BIGINT NOT NULL"),
    ("source_transactions", "BIGINT"),
    ("row_count", "BIGINT"),
    ("label", "VARCHAR(128)"),
    ("lane", "INT"),
    ("batch", "BIGINT"),
    ("tables", "VARCHAR(65533)"),
    ("loaded_at", "DATETIME"),
)


def create_table(database: str, replication: int | None = None) -> str:
    """The DDL; `replication` None leaves the number of replicas to the server."""
    keys = "`job`, `source_partition`, `last_position`"
    layout = f"DUPLICATE KEY ({keys}) DISTRIBUTED BY HASH (`source_partition`) BUCKETS 1"
    return own_table_ddl(identifier(database, LOG_TABLE), COLUMNS, layout, replication)


def delete_older(database: str, job: str, before: str) -> Sql:
    """Statement that deletes a job's rows loaded before `before` (a DATETIME literal)."""
    return f"DELETE FROM {identifier(database, LOG_TABLE)} WHERE job = %s AND loaded_at < %s", (job, before)
