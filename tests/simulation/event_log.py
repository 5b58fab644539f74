"""The source as an event log: the same source transactions, cut into slices that begin and end anywhere.

A micro-batch takes some slices of each source partition, so source transactions stay open over micro-batches, and a
few events are sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges

from .checker import AtLeastOnceChecker, Checker
from .source import Cut, Source, SourceTransaction, _events

Event = dict[str, Any]


@dataclass(slots=True)
class EventSource(Source):
    """`slices[i]` are runs of source partition i's events; cuts count slices."""

    slices: list[list[list[Event]]] = field(default_factory=list)

    @property
    def end(self) -> Cut:
        return tuple(len(slices) for slices in self.slices)

    def events(self, partition: int, low: int, high: int, overlap: int, *, changed: bool = False) -> list[Event]:
        """The events of slices `low` to `high`, and up to `overlap` before them once more, perhaps `changed`."""
        before = [event for slice in self.slices[partition][:low] for event in slice]
        events_again = before[len(before) - min(overlap, len(before)) :]
        if changed:
            events_again = [
                {**event, **({"row": "{}"} if event.get("row") else {"txn_id": "another"})} for event in events_again
            ]
        return events_again + [event for slice in self.slices[partition][low:high] for event in slice]

    def offsets(self, partition: int, low: int, high: int) -> tuple[int, int]:
        """The positions of slices `low` to `high` as a range of Kafka's offsets, which may have gaps."""
        slices = self.slices[partition][low:high]
        return slices[0][0]["position"], slices[-1][-1]["position"] + 1

    def between(self, partition: int, start: int, end: int) -> list[Event]:
        """The events at the offsets `start` to `end`."""
        return [event for events in self.slices[partition] for event in events if start <= event["position"] < end]

    def ended(self, partition: int, slices: int) -> int:
        """How many source transactions have ended in the first `slices` slices."""
        ends = {
            event["position"] for slice in self.slices[partition][:slices] for event in slice if event["type"] == "END"
        }
        return sum(transaction.position in ends for transaction in self.truth[partition])

    def ended_later(self, cut: Cut) -> Cut:
        """The same of sources that follow others in their slices."""
        del cut
        return ()


class EventChecker(Checker):
    """The checker, which gets cuts through the event log."""

    def acknowledged(self, who: str, cut: Cut) -> None:
        source = self._source
        assert isinstance(source, EventSource)
        ended = tuple(source.ended(number, slices) for number, slices in enumerate(cut))
        super().acknowledged(who, (*ended, *source.ended_later(cut)))


class AtLeastOnceEventChecker(EventChecker, AtLeastOnceChecker):
    """That of schedules without a ledger."""


def event_source(truth: list[list[SourceTransaction]], rng: Random) -> EventSource:
    return EventSource(truth, [], [_sliced(transactions, rng) for transactions in truth])


def _sliced(transactions: list[SourceTransaction], rng: Random) -> list[list[Event]]:
    partition = transactions[0].partition
    return sliced([{"source_partition": partition, **event} for event in _events(transactions, rng)], rng)


def sliced(events: list[Event], rng: Random) -> list[list[Event]]:
    """The events in slices of a few."""
    slices = []
    while events:
        size = rng.randint(1, 7)
        slices.append(events[:size])
        events = events[size:]
    return slices


def event_batches(events: list[Event], rng: Random, *, raw: bool) -> list[pa.RecordBatch]:
    """Events as a lane gets them from Spark, in record batches that end anywhere."""
    batch = [_raw(event) if raw else event for event in events]
    cut = rng.randrange(1, len(batch)) if len(batch) > 2 and rng.random() < 0.5 else len(batch)
    kinds = _RAW if raw else _PARSED
    return [pa.RecordBatch.from_pylist(part, schema=kinds) for part in (batch[:cut], batch[cut:]) if part]


def kafka_batches(source: EventSource, ranges: OffsetRanges, rng: Random) -> list[pa.RecordBatch]:
    """The events of `ranges` as a lane reads them from Kafka: in small pieces, source partitions by turns."""
    queues = [source.between(number, *bounds) for (_, number), bounds in ranges.ranges.items()]
    batches = []
    while queues := [queue for queue in queues if queue]:
        queue, count = rng.choice(queues), rng.randint(1, 6)
        batches.append(pa.RecordBatch.from_pylist([{**event, **_raw(event)} for event in queue[:count]], schema=_RAW))
        del queue[:count]
    return batches


def _raw(event: Event) -> dict[str, Any]:
    return {"value": orjson.dumps({name: value for name, value in event.items() if value is not None}).decode()}


_PARSED = pa.schema([(model.SOURCE_PARTITION, pa.string()), *model.EVENT_FIELDS])
_RAW = pa.schema([(model.SOURCE_PARTITION, pa.string()), (model.POSITION, pa.int64()), ("value", pa.string())])
