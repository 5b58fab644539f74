"""The driver's ownership of its job, and the rows of a commit in the ledger and in the receipts' log.

Every commit comes after another reading of the owner (docs/inside/exactly-once.md, "How it works").
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from starrocks_txn_sink.coordinator.model import Chunk, PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.errors import CommitFailed, Fenced, OutcomeUnknown, TransportError
from starrocks_txn_sink.protocol import fencing, ledger
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, LabelPrefix, Outcome, Steps, Unknown
from starrocks_txn_sink.protocol.ledger import Owner, Position, position_rows

REPLAYED: Final = "replayed"
"""Name of the ledger's marker with the label of the last replay of dead letters."""


@dataclass(frozen=True, slots=True)
class LabelContents:
    """The rows of all lanes under a label, as the ledger and the receipts' log count them.

    `unpositioned` replaces the spans of the lanes: all rows without positions are one unpositioned batch.
    """

    loaded: Sequence[Receipt]
    unpositioned: PositionSpan | None = None

    def rows_by_partition(self) -> Counter[str]:
        """Rows of each source partition, over all tables: without dead letters, with rows that a later one replaced."""
        rows: Counter[str] = Counter()
        for region in self.region_counts():
            rows[region.partition] += region.rows + region.compacted
        return rows

    def region_counts(self) -> tuple[RegionCount, ...]:
        """Rows and bytes by source partition and table, sorted: one entry for a region, over all lanes."""
        return _joined(region for receipt in self.loaded for region in receipt.regions)

    def dead_lettered(self) -> tuple[RegionCount, ...]:
        """Rows and bytes of dead letters, in the same form; they are not in `region_counts`."""
        return _joined(region for receipt in self.loaded for region in receipt.dead_lettered)

    def position_spans(self) -> tuple[PositionSpan, ...]:
        """First and last position of each source partition, sorted; of an unpositioned batch its one span."""
        if self.unpositioned is not None:
            return (self.unpositioned,)
        spans = (span for receipt in self.loaded for span in receipt.positions)
        return tuple(sorted(spans, key=lambda span: span.partition))

    def receipt(self, outcome: Committed, attempts: int, committed_at: float, *, recycled: bool) -> Receipt:
        """The receipt of the whole StarRocks transaction; raises ValueError without loaded rows."""
        if not self.loaded:
            raise ValueError("A StarRocks transaction without rows has no receipt.")
        first = self.loaded[0]
        ids = [outcome.txn_id, *(receipt.txn_id for receipt in self.loaded)]
        return Receipt(
            label=outcome.label,
            txn_id=next((txn_id for txn_id in ids if txn_id is not None), None),
            job=first.job,
            batch_id=first.batch_id,
            regions=self.region_counts(),
            positions=self.position_spans(),
            loads=sum(receipt.loads for receipt in self.loaded),
            attempts=attempts,
            retries=attempts - 1 + sum(receipt.retries for receipt in self.loaded),
            recycled=recycled,
            committed_at=committed_at,
            dead_lettered=self.dead_lettered(),
            dead_lettered_positions=tuple(span for receipt in self.loaded for span in receipt.dead_lettered_positions),
        )


def _joined(regions: Iterable[RegionCount]) -> tuple[RegionCount, ...]:
    counts: dict[tuple[str, str], list[int]] = {}
    for region in regions:
        count = counts.setdefault((region.partition, region.table), [0, 0, 0])
        for index, amount in enumerate((region.rows, region.bytes, region.compacted)):
            count[index] += amount
    return tuple(RegionCount(*place, *count) for place, count in sorted(counts.items()))


EntriesBuilder = Callable[[str, LabelContents], Chunk]
"""Builds the rows under a label for a table of the sink's own: the ledger or the receipts' log."""


@dataclass(slots=True)
class Ownership:
    """A driver's ownership of `job`, as the ledger knows it; `owner` has its token.

    With `canary` the first check also asks whether a take-over would find our label, which has loads by then; `listed`
    has the answer. This matters because only the rollback of its label stops a writer that sleeps before its commit.
    """

    job: str
    database: str
    owner: Owner
    new_token: ledger.NewToken
    now_text: Callable[[], str]  # a DATETIME literal in UTC, for readers of the ledger
    canary: bool = False
    listed: bool | None = None
    further_rows: Callable[[], Sequence[memoryview]] = tuple  # of the ledger, beside the positions

    def check(self, label: str, rng: random.Random) -> Steps[None]:
        """Check the owner, after the last load's reply to `label` and before its commit; raises Fenced.

        A claim is visible before its take-over lists labels: a load after that list sees the claim in this check.
        """
        if self.canary:
            unfinished = yield ledger.ListUnfinished(LabelPrefix(self.job, self.owner.epoch))
            if not isinstance(unfinished, TransportError):  # else the next StarRocks transaction asks
                self.canary, self.listed = False, label in unfinished
        yield from ledger.check_owner(self.job, self.owner, rng)

    def recover(self, label: str, spans: Sequence[PositionSpan], rng: random.Random) -> Steps[Outcome]:
        """Settle an unknown outcome: end the label for good, and compare the ledger with `spans`.

        The order matters: a commit that still runs could make rows visible after the positions were read. Raises Fenced
        if another writer took over, or has written some of these rows meanwhile.
        """
        return _outcome_of(label, spans, (yield from self._end(label, rng)))

    def _end(self, label: str, rng: random.Random) -> Steps[dict[str, Position]]:
        """End `label` for good; returns the positions of every commit before now."""
        yield from fencing.roll_back_until_confirmed(Label(self.database, label), rng)
        scope = fencing.Scope(self.job, self.database, self.owner)
        return (yield from fencing.read_positions(scope, self.new_token, rng))

    def ledger_entries(self, label: str, contents: LabelContents) -> Chunk:
        """The position rows of `contents` as a chunk of the ledger's table; no row counts of the user include them."""
        rows = contents.rows_by_partition()
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
            for span in contents.position_spans()
        ]
        chunk = Chunk("", ledger.LEDGER_TABLE)
        chunk.append(position_rows(self.job, positions, self.now_text()), len(positions))
        for row in self.further_rows():
            chunk.append(row, 1)
        return chunk


@dataclass(slots=True)
class ReplayOwnership(Ownership):
    """The ownership of a replay of dead letters, or of a repair, which has no positions.

    A marker in the ledger, of the name `marker`, has its last label.
    """

    marker: str = REPLAYED

    def recover(self, label: str, spans: Sequence[PositionSpan], rng: random.Random) -> Steps[Outcome]:
        """Settle an unknown outcome: end the label for good, and look for its marker; raises Fenced."""
        del spans
        yield from self._end(label, rng)
        is_written = yield from ledger.retry_until_answered(ledger.ReadMarker(self.job, self.marker, label), rng)
        return Committed(label, None) if is_written else Aborted(label, _not_committed(label))

    def ledger_entries(self, label: str, contents: LabelContents) -> Chunk:
        """The marker of `label`; its commit is then one that the barrier of the next replay waits for."""
        del contents
        key = ledger.row_id(self.job, ledger.MARKER, self.marker)
        row = {"id": key, "job": self.job, "kind": ledger.MARKER, "name": self.marker, "token": label}
        chunk = Chunk("", ledger.LEDGER_TABLE)
        chunk.append(memoryview(b"," + orjson.dumps(row)), 1)
        return chunk


def _not_committed(label: str) -> CommitFailed:
    return CommitFailed("The ledger does not have the StarRocks transaction: it was not committed.", label=label)


def _outcome_of(label: str, spans: Sequence[PositionSpan], positions: Mapping[str, Position]) -> Outcome:
    """The outcome of `label`, by its ledger rows: they are visible exactly if its other rows are.

    If only a part of the ledger rows is visible, the server is broken. Raises Fenced if another label has reached into
    `spans`: its writer took over before us, and another attempt of ours would write that writer's rows twice.
    """
    facts = {_has_written(label, span, positions.get(span.partition)) for span in spans}
    if facts == {True}:
        return Committed(label, None)
    if facts == {False}:
        return Aborted(label, _not_committed(label))
    return Unknown(label, OutcomeUnknown("The ledger has only a part of the transaction's positions.", label=label))


def _has_written(label: str, span: PositionSpan, position: Position | None) -> bool:
    """Whether `label` wrote `span`; raises Fenced if another label did."""
    if position is None or position.position < span.first:
        return False
    if position.label != label or position.position != span.last:
        raise Fenced(f"Rows of this label were written by another writer, under label {position.label}.", label=label)
    return True


_MOST_TABLES = 200
"""Most tables that a row of the receipts' log names."""


def log_entries(job: str, batch_id: int, now_text: Callable[[], str]) -> EntriesBuilder:
    """A builder of rows for the receipts' log, one for each source partition of a batch.

    `now_text` returns the time as a DATETIME literal in UTC.
    """

    def entries(label: str, contents: LabelContents) -> Chunk:
        chunk, time, counts = Chunk("", ledger.LOG_TABLE), now_text(), contents.rows_by_partition()
        tables: dict[str, list[str]] = {}
        for count in contents.region_counts():
            tables.setdefault(count.partition, []).append(count.table)
        rows = [
            {
                "job": job,
                "source_partition": span.partition,
                "last_position": span.last,
                "first_position": span.first,
                "source_transactions": span.source_transactions,
                "row_count": counts[span.partition],
                "label": label,
                "batch": batch_id,
                "tables": ",".join(tables.get(span.partition, ())[:_MOST_TABLES]),
                "loaded_at": time,
            }
            for span in contents.position_spans()
        ]
        chunk.append(memoryview(b"".join(b"," + orjson.dumps(row) for row in rows)), len(rows))
        return chunk

    return entries
