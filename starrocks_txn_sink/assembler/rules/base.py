"""`Assembler`: what a lane asks of the rules over the events of one task, whichever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.protocol.snapshots import Marks
from starrocks_txn_sink.telemetry import Event


class Assembler(ABC):
    """The rules over the events of one task; `flows` and `notices` are those of all events so far."""

    __slots__ = ()

    judges_together: ClassVar[bool] = False
    """Whether one lane reads a micro-batch to its end before it judges any of its events."""
    flows: Counters
    notices: list[Event]

    @classmethod
    @abstractmethod
    def of(
        cls,
        policy: Any,
        carried: Mapping[str, CarriedState],
        now: float,
        storage: SpillStorage,
        *,
        arrival_order: bool,
        compare: bool,
    ) -> Assembler:
        """The rules of `policy` at `now` (seconds since the epoch), after the state `carried`.

        With `arrival_order` the events come as they are, otherwise sorted by (source partition, position). `compare`:
        see TransactionAssembler. Raises InputError for the state of other rules.
        """

    @classmethod
    def expire(
        cls,
        policy: Any,  # noqa: ARG003
        partitions: Mapping[str, CarriedState],  # noqa: ARG003
        now: float,  # noqa: ARG003
    ) -> tuple[dict[str, CarriedState], Counters, list[Event]]:
        """Judge `open_timeout` behind a micro-batch: the changed source partitions, the flows, and notices."""
        return {}, Counters(), []

    @property
    @abstractmethod
    def names(self) -> set[str]:
        """The source partitions with events in this task."""

    @property
    def source_partitions(self) -> int:
        """How many source partitions have events in this task."""
        return len(self.names)

    @abstractmethod
    def feed(self, events: pa.Table, *, any_order: bool = False) -> Iterator[ReleasedRows]:
        """Take in events; yield what is released. `any_order` is for a task with a single chunk."""

    def finish(self) -> Iterator[ReleasedRows]:
        """The rows that are released at the end of the input."""
        return iter(())

    def visible_marks(self, marks: Marks) -> Marks:
        """Those `marks` of a snapshot whose rows are all released."""
        return marks

    def repeat_notices(self) -> list[Event]:
        """A notice for each source partition whose repeats in this task show nothing about its source."""
        return []

    def carry_over(self) -> dict[str, CarriedState]:
        """The state of the source partitions with events, for the next micro-batch."""
        return {}
