"""`KafkaInput`: messages that the lanes read themselves, from the offsets that the query's plan has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sink.driver_lane import run_beside
from starrocks_txn_sink.sink.events_input import EventsInput
from starrocks_txn_sink.sink.input import InputMemory, OpenInput
from starrocks_txn_sink.sink.lane_plan import LanePlan
from starrocks_txn_sink.sink.spark_jobs import context_of, has_local_tasks, run_without_input
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.formats.raw_format import MESSAGE_KEY, POSITION, SOURCE_PARTITION
from starrocks_txn_sink.sources.kafka.spark_reader import KafkaSource
from starrocks_txn_sink.writer.messages import Message, decode

_LANE_BYTES: Final = 4 << 20
"""Payload that is worth a lane of its own.

One more lane costs a job about 50 ms, in which a lane writes this much, and 2 CPU seconds once, for its process.
"""

_DRIVER_BYTES: Final = 2 * _LANE_BYTES
"""The most payload for a lane in the driver's process: from there on two lanes would be worth their tasks.

It bounds what the driver's memory keeps of a lane. At full speed a worker is also better off with its own settings for
memory (`writer.worker`), which are not for a process that is the user's.
"""


@dataclass(frozen=True, slots=True)
class KafkaInput(EventsInput):
    """A micro-batch of Spark's Kafka source whose rows Spark never reads."""

    @property
    def reads_kafka(self) -> bool:
        return True

    def open(self, terms: TableTerms, plan: LanePlan, memory: InputMemory) -> OpenInput:
        """The planned offsets; the empty frame if there are none. Raises the errors of `KafkaSource`."""
        source = memory.once(KafkaSource, self._source)
        if source is not None:
            minimum = 1 if terms.options.lanes is not None else round(_LANE_BYTES / memory.row_bytes)
            planned = source.plan(self.frame, plan.tasks, max(1, minimum), topic_names=memory.topic_names)
            if planned.lanes:
                is_small = planned.offsets * memory.row_bytes <= _DRIVER_BYTES
                here = len(planned.lanes) == 1 and is_small and has_local_tasks(self.spark)
                return OpenInput(self._run_here if here else self._run, self.assembly.lines, planned)
        return EventsInput.open(self, terms, plan, memory)

    def _source(self) -> KafkaSource | None:
        lines = self.assembly.lines
        assert lines is not None
        fields = {SOURCE_PARTITION: "partition", POSITION: "offset"}
        # The lanes read the key of a message from Kafka, whatever the frame has.
        own = {name: column for name, column in lines.columns.items() if name != MESSAGE_KEY}
        columns = {column: fields.get(name, name) for name, column in own.items()}
        columns |= {EVENT_TIME: "timestamp"} if projection.event_time(self.frame) else {}
        return KafkaSource.of(self.frame, self.origin.checkpoint, columns, tuple(lines.columns))

    def _run(self, task: Any, lanes: int) -> list[Message]:
        """One Spark task a lane, without a row."""
        return [decode(text) for text in run_without_input(context_of(self.spark), task, lanes)]

    def _run_here(self, task: Any, lanes: int) -> list[Message]:
        """The only lane, in this process if no other one runs here."""
        messages = run_beside(task, self.spark)
        return self._run(task, lanes) if messages is None else messages
