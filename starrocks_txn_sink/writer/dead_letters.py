"""The source transactions of a lane that become dead letters, and their rows on the way to the dead-letter table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.coordinator.model import SEPARATOR, Ints, PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.coordinator.quarantine import Cut, DeadLetter
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, DeadLetterSource, dead_letter_rows
from starrocks_txn_sink.protocol.refusals import UNSAID
from starrocks_txn_sink.rows.admission import PartitionRun
from starrocks_txn_sink.rows.bad_rows import Judge
from starrocks_txn_sink.rows.columns import PARTITION, PAYLOAD, POSITION, TABLE
from starrocks_txn_sink.rows.places import in_kafka
from starrocks_txn_sink.rows.segments import Bools

if TYPE_CHECKING:
    from starrocks_txn_sink.writer.task import LaneTask


class BadRowsFound(Exception):
    """The lane knows source transactions with bad rows, and cannot set them aside any more; no error, because the lanes
    run again with them set aside.

    It has loaded rows of one before it met the bad row, or they are more than may be.
    """

    def __init__(self, places: dict[Cut, DeadLetter]) -> None:
        super().__init__()
        self.places = places


class DeadLetters:
    """Sets source transactions aside: those that the driver names, and those of the rows that `judge` finds bad.

    Their rows become rows of the dead-letter table, in their places; a `segments.SetAside`. `explain` judges the rows
    that the server has rejected without a reason.
    """

    def __init__(self, task: LaneTask, judge: Judge, now: Callable[[], str], explain: Judge = lambda _: ()) -> None:
        self._task, self._judge, self._now, self._explain = task, judge, now, explain
        self._places = dict(task.part.set_aside)
        self._found: dict[Cut, DeadLetter] = {}
        self._rows: dict[Cut, Counter[str]] = defaultdict(Counter)  # by table
        self._bytes: dict[Cut, Counter[str]] = defaultdict(Counter)

    @property
    def first_found(self) -> str:
        """Why this lane has set the first source transaction aside; "" if it has set none aside by itself."""
        return next((letter.reason for letter in self._found.values()), "")

    def __call__(
        self, batch: pa.RecordBatch, runs: Sequence[PartitionRun], positions: Ints, begun: Cut | None
    ) -> tuple[pa.RecordBatch, Bools | None]:
        """The batch with dead letters, and where; raises BadRowsFound."""
        for bad_row in self._judge(batch):
            place = batch.column(PARTITION)[bad_row.number].as_py(), int(positions[bad_row.number])
            if place not in self._places:
                table, message = batch.column(TABLE)[bad_row.number].as_py(), in_kafka(batch, bad_row.number)
                reason = f"A row of {table}{message and f' at {message}'} {bad_row.reason}."
                self._places[place] = self._found[place] = DeadLetter(reason, self._task.label)
                if place == begun or len(self._found) > self._task.options.max_quarantined:
                    raise BadRowsFound(self._found)
        aside = self._mask(runs, positions) if self._places else None
        if aside is None or not aside.any():
            return batch, None
        self._find_reasons(batch.take(pa.array(np.flatnonzero(aside))), positions[aside])
        return self._with_letters(batch, aside), aside

    def _find_reasons(self, rows: pa.RecordBatch, positions: Ints) -> None:
        """Add to reasons that the server does not say what the sink finds in `rows`, which are set aside."""
        if not any(f"{UNSAID}." in letter.reason for letter in self._places.values()):
            return
        for bad_row in self._explain(rows):
            place = rows.column(PARTITION)[bad_row.number].as_py(), int(positions[bad_row.number])
            table, letter = rows.column(TABLE)[bad_row.number].as_py(), self._places[place]
            message = in_kafka(rows, bad_row.number)
            reason = f"{UNSAID}; the sink finds that a row of {table}{message and f' at {message}'} {bad_row.reason}."
            self._places[place] = replace(letter, reason=letter.reason.replace(f"{UNSAID}.", reason))

    def receipt(self, receipt: Receipt) -> Receipt:
        """The receipt, which counts dead letters by their own tables."""
        spans, regions = [], []
        for span in receipt.positions:
            places = sorted(
                place for place in self._rows if place[0] == span.partition and span.first <= place[1] <= span.last
            )
            if not places:
                continue
            spans.append(PositionSpan(span.partition, places[0][1], places[-1][1], len(places)))
            rows, sizes = (sum((counts[place] for place in places), Counter()) for counts in (self._rows, self._bytes))
            regions += [
                RegionCount(span.partition, table, count, sizes[table]) for table, count in sorted(rows.items())
            ]
        rest = tuple(region for region in receipt.regions if region.table != DEAD_LETTER_TABLE)
        return replace(receipt, regions=rest, dead_lettered=tuple(regions), dead_lettered_positions=tuple(spans))

    def _mask(self, runs: Sequence[PartitionRun], positions: Ints) -> Bools:
        aside = np.zeros(len(positions), dtype=bool)
        for name, low, high in runs:
            places = [position for partition, position in self._places if partition == name]
            aside[low:high] = np.isin(positions[low:high], places)
        return aside

    def _with_letters(self, batch: pa.RecordBatch, aside: Bools) -> pa.RecordBatch:
        """The batch with dead letters in place of the rows of `aside`."""
        numbers = np.flatnonzero(aside)
        old = batch.select([PARTITION, POSITION, TABLE, PAYLOAD]).take(pa.array(numbers))
        names = (column.cast(kind).to_pylist() for column, kind in zip(old.columns, _KINDS, strict=True))
        letters = [self._letter(*row) for row in zip(*names, strict=True)]
        payload = batch.column(PAYLOAD)
        wide = pa.types.is_large_string(payload.type) or pa.types.is_large_binary(payload.type)
        binary = payload.cast(pa.large_binary() if wide else pa.binary())  # other rows need not be UTF-8
        batch = _with_column(batch, PAYLOAD, _replaced(binary, numbers, letters))
        tables = _replaced(batch.column(TABLE), numbers, [DEAD_LETTER_TABLE] * len(letters))
        return _with_column(batch, TABLE, tables)

    def _letter(self, partition: str, position: int, table: str, payload: bytes) -> bytes:
        place = partition, position
        letter = self._places[place]
        source = DeadLetterSource(*place, letter.reason, letter.label, self._task.batch_id, self._now())
        columns = self._task.options.load_headers(table).get("columns", "")
        row = payload[len(SEPARATOR) :]
        (dead_letter,) = dead_letter_rows(self._task.job, source, table, columns, [row], self._rows[place][table])
        self._rows[place][table] += 1
        self._bytes[place][table] += len(payload)
        return dead_letter


_KINDS = (pa.string(), pa.int64(), pa.string(), pa.large_binary())


def _replaced(column: pa.Array, numbers: Ints, values: list[bytes] | list[str]) -> pa.Array:
    """The column with `values` in the rows of these numbers."""
    places = np.arange(len(column))
    places[numbers] = len(column) + np.arange(len(values))
    return pa.concat_arrays([column, pa.array(values, column.type)]).take(pa.array(places))


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    columns = {field: batch.column(field) for field in batch.schema.names} | {name: column}
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])
