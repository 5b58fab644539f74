"""The coordinator's output: actions that it wants done, and receipts of committed StarRocks transactions.

A receipt exists only for a transaction that was confirmed VISIBLE. Executors are short-lived, so receipts also carry
counts to the driver's metrics: each committed row is counted once, however often its task was repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from starrocks_txn_sink.coordinator.region import Chunk


@dataclass(frozen=True, slots=True)
class RegionCount:
    """Rows and bytes of one region in the transaction.

    `compacted` rows were not sent, because a later row of the transaction has their key.
    """

    partition: str
    table: str
    rows: int
    bytes: int
    compacted: int = 0


@dataclass(frozen=True, slots=True)
class PositionSpan:
    """First and last position of a source partition in the transaction, with its number of source transactions.

    `digest` fingerprints the content of the last source transaction.
    """

    partition: str
    first: int
    last: int
    source_transactions: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One committed StarRocks transaction.

    The server has confirmed it as VISIBLE. Times are seconds.

    Args:
        label: The label of the transaction.
        txn_id: The server's number of the transaction, if it is known.
        job: The job that wrote it.
        lane: The number of the lane.
        batch_id: The number of the micro-batch.
        regions: Rows and bytes for each source partition and table.
        positions: First and last position of each source partition.
        loads: The number of loads.
        attempts: The number of attempts, each under a label of its own.
        retries: The number of retries in all attempts.
        recycled: Whether the sink committed it early, because most of its timeout had passed.
        phase_seconds: Seconds of begin, load, check, commit (the request), publish (until VISIBLE) and, after an
            unknown outcome, recover; summed over all attempts.
        committed_at: The time of the commit, in seconds since the Unix epoch.
        open_seconds: The age of the last attempt's label when it became VISIBLE.
        dead_lettered: Rows that the server rejected. They are in the dead-letter table, and not in `regions`.
        filtered: Rows by table that the server left out, as `max_filter_ratio` allows. They are in `regions` too.
    """

    label: str
    txn_id: int | None
    job: str
    lane: int
    batch_id: int
    regions: tuple[RegionCount, ...]
    positions: tuple[PositionSpan, ...]
    loads: int
    attempts: int
    retries: int
    recycled: bool
    phase_seconds: dict[str, float] = field(default_factory=dict)
    committed_at: float = 0.0
    open_seconds: float = 0.0
    dead_lettered: tuple[RegionCount, ...] = ()
    filtered: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all regions."""
        return sum(region.rows for region in self.regions)

    @property
    def dead_lettered_rows(self) -> int:
        """Rows of dead letters; input rows = `rows` + `compacted` + `dead_lettered_rows`."""
        return sum(region.rows for region in self.dead_lettered)

    @property
    def compacted(self) -> int:
        """Rows that a later row replaced before the load."""
        return sum(region.compacted for region in self.regions)

    @property
    def bytes(self) -> int:
        """Bytes of all regions."""
        return sum(region.bytes for region in self.regions)

    @property
    def source_transactions(self) -> int:
        """Source transactions of all source partitions."""
        return sum(span.source_transactions for span in self.positions)

    @property
    def tables(self) -> dict[str, int]:
        """Rows per table."""
        rows: dict[str, int] = {}
        for region in self.regions:
            rows[region.table] = rows.get(region.table, 0) + region.rows
        return rows

    def to_json(self) -> str:
        """The receipt as one line of JSON; see `from_json`."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """The receipt that `to_json` has written.

        Args:
            text: One line of JSON.
        """
        return receipt_of(orjson.loads(text))


def receipt_of(fields: dict[str, Any]) -> Receipt:
    """The receipt with these fields, in JSON's types."""
    nested = {
        "regions": tuple(RegionCount(**region) for region in fields["regions"]),
        "dead_lettered": tuple(RegionCount(**region) for region in fields.get("dead_lettered", ())),
        "positions": tuple(PositionSpan(**span) for span in fields["positions"]),
    }
    return Receipt(**{**fields, **nested})


@dataclass(frozen=True, slots=True)
class BeginAction:
    """Open a StarRocks transaction."""

    label: str


@dataclass(frozen=True, slots=True)
class LoadAction:
    """Send chunks of one table under the label; `newest_first`: those of the table's earlier loads come after them."""

    label: str
    table: str
    chunks: tuple[Chunk, ...]
    newest_first: bool = False

    @property
    def pieces(self) -> list[memoryview]:
        return [piece for chunk in self.chunks for piece in chunk.pieces]

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def memory(self) -> int:
        """Bytes of its rows in memory."""
        return sum(chunk.memory for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class CheckAction:
    """Read the owner rows of the ledger again: this lane must still be their owner."""

    label: str


@dataclass(frozen=True, slots=True)
class RecoverAction:
    """Settle an unknown outcome: take the lane over from ourselves and read the ledger.

    The rows are visible exactly if the ledger has `label` at the last positions of `spans`.
    """

    label: str
    spans: tuple[PositionSpan, ...]


@dataclass(frozen=True, slots=True)
class CommitAction:
    """Commit, and confirm that the rows are VISIBLE."""

    label: str


@dataclass(frozen=True, slots=True)
class RollbackAction:
    """Roll the label back."""

    label: str


Action = BeginAction | LoadAction | CheckAction | CommitAction | RecoverAction | RollbackAction


@dataclass(frozen=True, slots=True)
class LaneIdentity:
    """Job, lane and micro-batch of a coordinator."""

    job: str
    lane: int
    batch_id: int
