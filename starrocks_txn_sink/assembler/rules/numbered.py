"""Source transactions whose rows are numbered, without BEGIN and END: Maxwell's `xoffset` and `commit`.

The rows of a transaction come one after the other in one source partition, numbered from 0, and the last one has the
commit's mark instead of its number. So the rules know of each row whether a transaction begins with it, and that no row
in front of it is missing, but one directly in front of the last. `TransactionAssembler` does the rest.

A source that starts again sends a transaction from its beginning: what came of it before is given up, as behind any
BEGIN. A row number that does not follow is an error, because a row is missing or the rows are scattered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import intake, model
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, PartitionedEvents
from starrocks_txn_sink.assembler.rules.model import Counters, Policy
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.verified.intake import COLLECTION
from starrocks_txn_sink.errors import SourceTransactionError

NUMBER: Final = "number"
COMMIT: Final = "commit"
NUMBERED: Final = pa.schema([(NUMBER, pa.int64()), (COMMIT, pa.bool_())])
"""Further columns of the events, the same in all rows of a message. A row has a number, or the commit's mark."""

_SLOTS: Final = 4  # a message's places in the order of events: BEGIN, up to two rows, END
_END: Final = 3
_NONE: Final = -1
_TYPES: Final = ("BEGIN", "DATA", "END")
_DATA: Final = 1
_OWN: Final = (model.SEQ, NUMBER, COMMIT, COLLECTION)


@dataclass(frozen=True, slots=True)
class NumberedPolicy(Policy):
    """The options of transactions by numbers: `missing_begin` alone."""


@dataclass(slots=True)
class NumberedAssembler(IncrementalAssembler):
    """Assembles numbered rows of one task; the events of one position are the rows of one message.

    Positions are those of messages. Raises SourceTransactionError for a row whose number does not follow.
    """

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Take in rows; see IncrementalAssembler.feed. A row without a table counts, and is not released."""
        partitioned = intake.group_by_partition(events, sort_names=any_order)
        if not partitioned.names:
            return
        if any_order:
            partitioned = intake.sorted_by_position(partitioned)
        elif self.arrival_order:
            messages = intake.messages_of(partitioned)
            latest = [self._buffer(name).latest for name in partitioned.names]
            before = [None if place is None else place // _SLOTS for place in latest]
            intake.refuse_disorder(messages, messages.positions(), before)
        read = _Messages.of(partitioned, [self._open(name) for name in partitioned.names])
        read.refuse_gaps()
        marked = read.with_marks()
        for released in IncrementalAssembler.feed(self, marked, any_order=any_order):
            positions = pc.divide(released.rows[model.POSITION], _SLOTS)
            at = released.rows.schema.get_field_index(model.POSITION)
            yield replace(released, rows=released.rows.set_column(at, model.POSITION, positions))
        self.flows += Counters(events=len(read.number) - marked.num_rows)
        for name, end in zip(partitioned.names, read.ends.tolist(), strict=True):
            self._remember(name, int(read.number[end - 1]))

    def _open(self, name: model.Partition) -> model.OpenTransaction | None:
        opened = self._buffer(name).state.open
        return opened[-1] if opened else None

    def _remember(self, name: model.Partition, number: int) -> None:
        buffer = self._buffers[name]
        if buffer.state.open:
            *others, last = buffer.state.open
            buffer.state = replace(buffer.state, open=(*others, replace(last, number=number)))


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages in order, one source partition after the other, with exclusive `ends`; `rows` has all their rows.

    `first` and `last` are the places of each message's first and last row. The message `goes_on` with the transaction
    of the one in front of it, whose number is `before`; in front of a source partition's first message is what is open
    there. `behind_open`: the message in front of it has not ended its transaction.
    """

    names: list[model.Partition]
    ends: Indexes
    rows: pa.Table
    partitions: Indexes
    first: Indexes
    last: Indexes
    number: Indexes
    commit: Mask
    before: Indexes
    goes_on: Mask
    behind_open: Mask

    @classmethod
    def of(cls, events: PartitionedEvents, opened: list[model.OpenTransaction | None]) -> _Messages:
        rows = events.table if events.order is None else events.table.take(pa.array(events.order))
        is_first: Mask = rows[model.SEQ].to_numpy() == 0
        first = np.flatnonzero(is_first)
        ends: Indexes = np.cumsum(is_first, dtype=np.int64)[events.ends - 1]
        places = pa.array(first)
        number: Indexes = pc.fill_null(rows[NUMBER].take(places), _NONE).to_numpy()
        commit: Mask = rows[COMMIT].take(places).to_numpy()
        ids = intake.one_array(rows[model.TXN_ID].take(places))
        codes = ids.dictionary_encode().indices.fill_null(_NONE).to_numpy(zero_copy_only=False)
        goes_on, before = np.zeros(len(first), dtype=bool), np.full(len(first), _NONE, dtype=np.int64)
        behind_open = np.concatenate([np.zeros(1, dtype=bool), ~commit[:-1]])
        goes_on[1:], before[1:] = behind_open[1:] & (codes[1:] == codes[:-1]), number[:-1]
        for start, transaction in zip(intake.starts(ends).tolist(), opened, strict=True):
            behind_open[start] = transaction is not None
            goes_on[start] = transaction is not None and transaction.txn_id == ids[start].as_py()
            before[start] = _NONE if transaction is None or transaction.number is None else transaction.number
        last = np.append(first[1:], len(is_first)) - 1
        return cls(events.names, ends, rows, events.groups, first, last, number, commit, before, goes_on, behind_open)

    @property
    def begins(self) -> Mask:
        """A mask of the messages with which a transaction begins."""
        begins: Mask = (self.number == 0) | ((self.number == _NONE) & ~self.goes_on)
        return begins

    def refuse_gaps(self) -> None:
        """Raise SourceTransactionError for the first number that does not follow the one before in its transaction."""
        follows = self.goes_on & (self.number == self.before + 1)
        wrong = self.behind_open & (self.number > 0) & ~follows
        if not wrong.any():
            return
        at = int(wrong.argmax())
        row = int(self.first[at])
        raise SourceTransactionError(
            f"Row {self.number[at]} of a source transaction does not follow the row in front of it: rows are missing, "
            "or not in the order of the source.",
            hint="All rows of a transaction must come through one partition, in order: no topic for each table, no "
            "compaction, no filter behind the numbers, no asynchronous bootstrap, an idempotent producer. Otherwise "
            'pass transactions="none".',
            partition=self.names[int(np.searchsorted(self.ends, at, side="right"))],
            position=self.rows[model.POSITION][row].as_py(),
            txn_id=self.rows[model.TXN_ID][row].as_py(),
        )

    def with_marks(self) -> pa.Table:
        """The rows with a table as DATA, with BEGIN in front of each transaction, and END behind a commit."""
        data = np.flatnonzero(self.rows[model.TABLE].is_valid().to_numpy())
        begins, ends = self.first[self.begins], self.last[self.commit]
        seq: Indexes = self.rows[model.SEQ].to_numpy()
        slots = np.concatenate([np.zeros(len(begins), np.int64), 1 + seq[data], np.full(len(ends), _END)])
        kinds = np.repeat([0, _DATA, 2], [len(begins), len(data), len(ends)])
        row = np.concatenate([begins, data, ends])
        message = np.searchsorted(self.first, row, side="right") - 1
        order = np.argsort(message * _SLOTS + slots, kind="stable")
        places, is_data = pa.array(row[order]), kinds[order] == _DATA
        names = [name for name in self.rows.column_names if name not in _OWN]
        columns = {name: self.rows[name].take(places) for name in names if name not in model.PAYLOAD}
        payload_places = pa.array(row[order], mask=~is_data)
        columns |= {name: self.rows[name].take(payload_places) for name in model.PAYLOAD}
        columns[model.POSITION] = pa.array(columns[model.POSITION].to_numpy() * _SLOTS + slots[order])
        columns[model.TYPE] = intake.value_set(*_TYPES).take(pa.array(kinds[order]))
        partitions = pa.array(self.names).take(pa.array(self.partitions[row[order]]))
        return pa.table({model.SOURCE_PARTITION: partitions, **columns})
