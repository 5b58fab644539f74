"""A lane's authority to commit, and its entries in the ledger and in the receipts' log.

An attempt that Spark started first owns its lane without a word; a retry, and a lane that could not settle an outcome,
take the lane over. Before every commit the owner is read again (docs/exactly-once.md, "How it works").
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from starrocks_txn_sink.coordinator.actions import PositionSpan
from starrocks_txn_sink.coordinator.region import Chunk
from starrocks_txn_sink.coordinator.write_buffer import EntriesBuilder, TransactionBatch
from starrocks_txn_sink.errors import CommitFailed, Fenced, OutcomeUnknown
from starrocks_txn_sink.protocol.fencing import (
    NewToken,
    Scope,
    TakenOver,
    check_owner,
    roll_back_until_confirmed,
    take_over,
)
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, LabelPrefix, Outcome, Steps, Unknown
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, Owner, Position, position_rows
from starrocks_txn_sink.protocol.receipts_log import LOG_TABLE

MOST_TABLES = 200
"""Tables named in a row of the receipts' log at most."""


@dataclass(slots=True)
class LaneOwnership:
    """Who we are to the ledger. `owner.token` is empty until the lane has been taken over.

    `seen` are the labels of the positions that this attempt knows, its own commits apart.
    """

    job: str
    database: str
    driver_token: str
    owner: Owner
    new_token: NewToken
    now_text: Callable[[], str]  # the time as a DATETIME literal, for people who look at the ledger
    known_labels: frozenset[str] = frozenset()

    def take_over(self, rng: random.Random) -> Steps[TakenOver]:
        """Claim the lane, end what others left open in it, and read the positions; raises Fenced."""
        scope = Scope(self.job, self.database, self.owner)
        taken = yield from take_over(scope, self.new_token, rng, self.driver_token)
        self.owner = taken.owner
        self.known_labels = labels_of(taken.positions)
        return taken

    def check(self, rng: random.Random) -> Steps[None]:
        """Read the owner again, after the last load's reply and before the commit; raises Fenced."""
        yield from check_owner(self.job, self.owner, self.driver_token, rng)

    def recover(self, label: str, spans: Sequence[PositionSpan], rng: random.Random) -> Steps[Outcome]:
        """Settle a commit of unknown outcome: no more of it can happen after this, and the ledger says what did.

        Raises Fenced when somebody else took over, or has written some of these rows meanwhile.
        """
        yield from roll_back_until_confirmed(Label(self.database, label), rng)
        before = self.known_labels
        taken = yield from self.take_over(rng)
        self._refuse_other_writers(label, before, taken.positions)
        return _outcome_of(label, spans, taken.positions)

    def _refuse_other_writers(self, label: str, before: frozenset[str], positions: Mapping[str, Position]) -> None:
        """Raise Fenced when another try at this lane has committed since `before`.

        It had taken the lane over while nobody answered us. Whatever became of `label`, the rows that we still hold for
        the StarRocks transactions after it may be among those that it has written.
        """
        lane, ours = LabelPrefix(self.job, self.owner.epoch, self.owner.lane), label.rpartition("_")[0] + "_"
        for other in labels_of(positions) - before:
            if lane.matches(other) and not other.startswith(ours):
                raise _fenced_by(other, label)

    def ledger_entries(self, label: str, work: TransactionBatch) -> Chunk:
        """The position rows of `work` as a chunk of the ledger's table; its rows are no rows of the user's."""
        rows = work.rows_by_partition()
        positions = [
            Position(
                span.partition,
                span.last,
                self.owner.checkpoint,
                self.owner.batch,
                label,
                rows[span.partition],
                span.digest,
            )
            for span in work.position_spans()
        ]
        chunk = Chunk("", LEDGER_TABLE)
        chunk.append(position_rows(self.job, positions, self.now_text()), len(positions))
        return chunk


def _outcome_of(label: str, spans: Sequence[PositionSpan], positions: Mapping[str, Position]) -> Outcome:
    """All rows of a label are visible or none, so its ledger rows tell; half of them would be a broken server.

    Raises Fenced when another label has reached into `spans`: that writer took over before we did, and has written
    rows that another attempt of ours would write once more.
    """
    known_labels = {_has_written(label, span, positions.get(span.partition)) for span in spans}
    if known_labels == {True}:
        return Committed(label, None)
    if known_labels == {False}:
        return Aborted(
            label, CommitFailed("The ledger does not have the transaction: it was not committed.", label=label)
        )
    return Unknown(label, OutcomeUnknown("The ledger has only a part of the transaction's positions.", label=label))


def _has_written(label: str, span: PositionSpan, known: Position | None) -> bool:
    """Whether `label` wrote `span`, rather than nobody."""
    if known is None or known.position < span.first:
        return False
    if known.label != label or known.position != span.last:
        raise _fenced_by(known.label, label)
    return True


def _fenced_by(other: str, label: str) -> Fenced:
    return Fenced(f"Rows of this lane were written by another writer, under label {other}.", label=label)


def labels_of(positions: Mapping[str, Position]) -> frozenset[str]:
    """The labels that the ledger's positions came with."""
    return frozenset(position.label for position in positions.values())


def first_owner(epoch: str, checkpoint: str, batch: int, lane: int) -> Owner:
    """The owner that an attempt is before any claim."""
    return Owner("", epoch, checkpoint, batch, lane)


def log_entries(job: str, lane: int, batch: int, now_text: Callable[[], str]) -> EntriesBuilder:
    """Make entries in the receipts' log: what a work brings of each source partition.

    `now_text` tells the time as a DATETIME literal in UTC.
    """

    def entries(label: str, work: TransactionBatch) -> Chunk:
        chunk, at, tables = Chunk("", LOG_TABLE), now_text(), _tables(work)
        counted = work.rows_by_partition()
        rows = [
            {
                "job": job,
                "source_partition": span.partition,
                "last_position": span.last,
                "first_position": span.first,
                "source_transactions": span.source_transactions,
                "row_count": counted[span.partition],
                "label": label,
                "lane": lane,
                "batch": batch,
                "tables": ",".join(tables.get(span.partition, ())[:MOST_TABLES]),
                "loaded_at": at,
            }
            for span in work.position_spans()
        ]
        chunk.append(memoryview(b"".join(b"," + orjson.dumps(row) for row in rows)), len(rows))
        return chunk

    return entries


def _tables(work: TransactionBatch) -> dict[str, list[str]]:
    """The tables that each source partition has rows for."""
    tables: dict[str, list[str]] = {}
    for count in work.region_counts():
        tables.setdefault(count.partition, []).append(count.table)
    return tables
