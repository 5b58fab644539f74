"""Events without source transactions over one task: each is a unit of its own, at its own position.

Nothing waits for another event, so nothing is carried over, and rows go on as they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import intake, model
from starrocks_txn_sink.assembler.rules.intake import PartitionedEvents
from starrocks_txn_sink.assembler.rules.model import Counters, Partition
from starrocks_txn_sink.assembler.rules.release import Assembler, ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage, other_rules
from starrocks_txn_sink.assembler.verified.intake import SNAPSHOT
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.columns import EVENT_TIME, OFFSET
from starrocks_txn_sink.telemetry import Event

_COLUMNS: Final = (model.POSITION, model.TXN_ID, *model.PAYLOAD)
_IDENTITY: Final = (model.COLLECTION, *model.PAYLOAD)


@dataclass(slots=True)
class SingleEvents(Assembler):
    """Takes in the events of one task: none waits, and the ledger alone knows repeats.

    An event without a table has no row, and one that comes twice is dropped.

    With a column `seq` the events of one position are the rows of one message, numbered from 0, and one unit.

    With `arrival_order` the events are unsorted, and a position that does not ascend raises Unordered. Otherwise they
    are sorted by (source partition, position).
    """

    arrival_order: bool
    flows: Counters = field(default_factory=Counters)
    notices: list[Event] = field(default_factory=list)
    _latest: dict[Partition, int] = field(default_factory=dict)  # the last position of each source partition
    _last: dict[Partition, pa.Table] = field(default_factory=dict)  # of sorted events, with which a chunk may go on

    @classmethod
    def of(
        cls,
        policy: None,  # noqa: ARG003 - nothing to decide
        carried: Mapping[str, CarriedState],
        now: float,  # noqa: ARG003
        storage: SpillStorage,  # noqa: ARG003
        *,
        arrival_order: bool,
        compare: bool,  # noqa: ARG003
        in_order: bool,  # noqa: ARG003
    ) -> SingleEvents:
        """See Assembler.of; rows of open source transactions would be lost."""
        for source in carried:
            raise other_rules(source)
        return cls(arrival_order)

    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Yield the rows of `events`, per source partition in the order of their positions.

        `any_order` is for a task with a single chunk. Raises Unordered, and InputError for a position that is NULL, and
        for two different events at one position.
        """
        partitioned = intake.group_by_partition(events, sort_names=any_order)
        if not partitioned.names:
            return
        intake.refuse_null(partitioned, model.POSITION)
        partitioned = intake.sorted_by_position(partitioned) if any_order else partitioned
        arrivals, snapshots = (
            partitioned.table.num_rows,
            pc.sum(pc.equal(partitioned.table[model.OP], SNAPSHOT)).as_py() or 0,
        )
        partitioned = self._without_repeats(partitioned, any_order=any_order)
        count = partitioned.table.num_rows
        more = [name for name in (model.SEQ, EVENT_TIME, OFFSET) if name in partitioned.table.column_names]
        columns = partitioned.table.select([*_COLUMNS, *more])
        rows = columns if partitioned.order is None else columns.take(pa.array(partitioned.order))
        filled = rows[model.TABLE].is_valid()
        unit = np.cumsum(rows[model.SEQ].to_numpy() == 0) if model.SEQ in more else np.arange(count)
        groups, unit = partitioned.groups[filled.to_numpy()], unit[filled.to_numpy()]
        rows = rows.filter(filled) if len(groups) < count else rows
        self.flows += Counters(
            events=arrivals,
            data=arrivals - snapshots,
            snapshot_rows=snapshots,
            rows=len(groups),
            skipped_rows=count - len(groups),
            repeats=arrivals - count,
            repeated_rows=arrivals - count,
        )
        counts = np.bincount(groups, minlength=len(partitioned.names))
        ends = np.append(unit[1:] != unit[:-1], True)[: len(unit)]
        rows = rows.append_column(model.TRANSACTION_END, pa.array(ends, pa.bool_()))
        yield ReleasedRows(partitioned.names, counts, rows)

    def _without_repeats(self, partitioned: PartitionedEvents, *, any_order: bool) -> PartitionedEvents:
        if model.SEQ in partitioned.table.column_names:
            self._refuse_repeats(intake.messages_of(partitioned), any_order=any_order)
            return partitioned
        positions = partitioned.positions()
        latest = [self._latest.get(name) for name in partitioned.names]
        self._latest |= zip(partitioned.names, positions[partitioned.ends - 1].tolist(), strict=True)
        if self.arrival_order and not any_order:
            intake.refuse_disorder(partitioned, positions, latest)
            return partitioned
        before, self._last = self._last, {partitioned.names[-1]: _row(partitioned, partitioned.table.num_rows - 1)}
        repeated = intake.not_above(partitioned, positions, latest)
        for group in np.flatnonzero(repeated[partitioned.starts]).tolist():
            name = partitioned.names[group]
            if name not in before:
                intake.refuse_disorder(partitioned, positions, latest)
            intake.refuse_other_content(
                before[name], _row(partitioned, int(partitioned.starts[group])), name, _IDENTITY
            )
        return intake.without_repeats(partitioned, repeated, _IDENTITY) if repeated.any() else partitioned

    def _refuse_repeats(self, messages: PartitionedEvents, *, any_order: bool) -> None:
        """Raise Unordered or InputError for a message whose position is not above the one before."""
        positions, names = messages.positions(), messages.names
        latest = [self._latest.get(name) for name in names]
        self._latest |= zip(names, positions[messages.ends - 1].tolist(), strict=True)
        if self.arrival_order and not any_order:
            intake.refuse_disorder(messages, positions, latest)
        repeated = intake.not_above(messages, positions, latest)
        if repeated.any():
            at = int(repeated.argmax())
            raise InputError(
                "Two messages have the same position.",
                hint="Give each message its own, ascending position (in Kafka: the offset).",
                partition=messages.name_at(at),
                position=int(positions[at]),
            )

    @property
    def names(self) -> set[str]:
        """The source partitions with events in this task."""
        return set(map(str, self._latest))


def _row(events: PartitionedEvents, place: int) -> pa.Table:
    """The event at `place`; a copy, because a slice would keep its chunk in memory."""
    return events.table.take(pa.array([place if events.order is None else int(events.order[place])]))
