"""Source transactions whose rows are numbered, without BEGIN and END: Maxwell's `xoffset` and `commit`.

The rows of a transaction come one after the other in one source partition, numbered from 0, and the last one has the
commit's mark instead of its number. So the rules know of each row whether a transaction begins with it, and that no row
in front of it is missing, but for those right in front of the last. `TransactionAssembler` does the rest.

A source that starts again sends a transaction from its beginning: what came of it before is given up, as behind any
BEGIN. A row number that does not follow is an error, because a row is missing or the rows are scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import intake, model
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler, PartitionBuffer
from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask, PartitionedEvents
from starrocks_txn_sink.assembler.rules.model import AssemblerState, Counters, Policy
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.assembler.verified.intake import COLLECTION
from starrocks_txn_sink.errors import SourceTransactionError, StarRocksSinkError
from starrocks_txn_sink.telemetry import Event

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
_PLACES: Final = ("position", "last_position", "upto")  # in errors and notices
_TOGETHER: Final = (
    "All rows of a transaction must come through one partition, in order: no topic for each table, no compaction, no "
    'filter behind the numbers, no asynchronous bootstrap, an idempotent producer. Otherwise set transactions="none".'
)


@dataclass(frozen=True, slots=True)
class NumberedPolicy(Policy):
    """The options of transactions by numbers: `missing_begin` alone."""


@dataclass(slots=True)
class NumberedAssembler(IncrementalAssembler):
    """Assembles numbered rows of one task; the events of one position are the rows of one message.

    Positions are those of messages, also in the state that is carried over, in errors and in notices; the rules between
    have a place for each of a message's marks and rows. Raises SourceTransactionError for a row whose number does not
    follow.
    """

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Take in rows; see IncrementalAssembler.feed. A row without a table counts, and is not released."""
        partitioned = intake.group_by_partition(events, sort_names=any_order)
        if not partitioned.names:
            return
        intake.refuse_null(partitioned, model.POSITION)
        if any_order:
            partitioned = intake.sorted_by_position(partitioned)
        elif self.arrival_order:
            messages = intake.messages_of(partitioned)
            latest = [self._buffer(name).latest for name in partitioned.names]
            before = [None if place is None else place // _SLOTS for place in latest]
            intake.refuse_disorder(messages, messages.positions(), before)
        read = _Messages.of(partitioned, [self._buffer(name).state for name in partitioned.names])
        read.refuse_gaps(in_front=self.policy.missing_begin == "fail")
        marked, notices = read.with_marks(), len(self.notices)
        try:
            for released in IncrementalAssembler.feed(self, marked, any_order=any_order):
                positions = pc.divide(released.rows[model.POSITION], _SLOTS)
                at = released.rows.schema.get_field_index(model.POSITION)
                yield replace(released, rows=released.rows.set_column(at, model.POSITION, positions))
        except StarRocksSinkError as error:
            error.context = _of_messages(error.context)
            raise
        self.notices[notices:] = map(_notice, self.notices[notices:])
        self.flows += Counters(events=len(read.number) - marked.num_rows)
        for name, end in zip(partitioned.names, read.ends.tolist(), strict=True):
            self._remember(name, int(read.number[end - 1]))

    def repeat_notices(self) -> list[Event]:
        """As those of IncrementalAssembler."""
        return [*map(_notice, IncrementalAssembler.repeat_notices(self))]

    def carry_over(self) -> dict[str, CarriedState]:
        """As that of IncrementalAssembler."""
        carried = IncrementalAssembler.carry_over(self)
        states = {str(name): _in_messages(buffer.state) for name, buffer in self._buffers.items()}
        return {name: replace(carried[name], state=state) for name, state in states.items()}

    def _buffer(self, name: model.Partition) -> PartitionBuffer:
        is_new = name not in self._buffers
        buffer = IncrementalAssembler._buffer(self, name)
        if is_new:
            buffer.state = _in_slots(buffer.state)
        return buffer

    def _remember(self, name: model.Partition, number: int) -> None:
        buffer = self._buffers[name]
        if buffer.state.open:
            *others, last = buffer.state.open
            buffer.state = replace(buffer.state, open=(*others, replace(last, number=number)))


def _in_slots(state: AssemblerState) -> AssemblerState:
    """A state with the places of the rules; all of the last message is read."""
    last = None if state.last_position is None else state.last_position * _SLOTS + _END
    return replace(state, last_position=last, open=_at(state, lambda position: position * _SLOTS))


def _in_messages(state: AssemblerState) -> AssemblerState:
    """A state with the positions of messages."""
    last = None if state.last_position is None else state.last_position // _SLOTS
    return replace(state, last_position=last, open=_at(state, lambda position: position // _SLOTS))


def _at(state: AssemblerState, place: Callable[[int], int]) -> tuple[model.OpenTransaction, ...]:
    return tuple(replace(transaction, position=place(transaction.position)) for transaction in state.open)


def _of_messages(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an error or a notice with the positions of messages."""
    return {name: value // _SLOTS if name in _PLACES else value for name, value in fields.items()}


def _notice(notice: Event) -> Event:
    return replace(notice, fields=_of_messages(notice.fields))


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages in order, one source partition after the other, with exclusive `ends`; `rows` has all their rows.

    `first` and `last` are the places of each message's first and last row. The message `goes_on` with the transaction
    of the one in front of it, whose number is `before`; in front of a source partition's first message is what is open
    there. `behind_open`: the message in front of it has not ended its transaction. `fresh`: it is none of those that
    the state has read.
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
    fresh: Mask

    @classmethod
    def of(cls, events: PartitionedEvents, states: list[AssemblerState]) -> _Messages:
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
        fresh, positions = np.ones(len(first), dtype=bool), rows[model.POSITION].take(places).to_numpy() * _SLOTS
        for start, end, state in zip(intake.starts(ends).tolist(), ends.tolist(), states, strict=True):
            transaction = state.open[-1] if state.open else None
            if state.last_position is not None:
                fresh[start:end] = positions[start:end] > state.last_position
            behind_open[start] = transaction is not None
            goes_on[start] = transaction is not None and transaction.txn_id == ids[start].as_py()
            before[start] = _NONE if transaction is None or transaction.number is None else transaction.number
        last = np.append(first[1:], len(is_first)) - 1
        groups = events.groups
        return cls(events.names, ends, rows, groups, first, last, number, commit, before, goes_on, behind_open, fresh)

    @property
    def begins(self) -> Mask:
        """A mask of the messages with which a transaction begins."""
        begins: Mask = (self.number == 0) | ((self.number == _NONE) & ~self.goes_on)
        return begins

    def refuse_gaps(self, *, in_front: bool) -> None:
        """Raise SourceTransactionError for the first number that does not follow the one before in its transaction.

        With `in_front` also for one with which a transaction would begin, but 0.
        """
        follows = self.behind_open & self.goes_on & (self.number == self.before + 1)
        wrong = self.fresh & (self.number > 0) & ~follows & (self.behind_open | in_front)
        if not wrong.any():
            return
        at = int(wrong.argmax())
        row, number = int(self.first[at]), self.number[at]
        message, hint = (
            f"Row {number} of a source transaction does not follow the row in front of it: rows are missing, or not in "
            "the order of the source.",
            _TOGETHER,
        )
        if not self.behind_open[at]:
            message = f"The rows of a source transaction in front of row {number} were never read, or not together."
            hint = f'Where the topic begins in the middle of a transaction, pass missing_begin="drop". {_TOGETHER}'
        raise SourceTransactionError(
            message,
            hint=hint,
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
