"""Lanes that prove whole source transactions together (`assembler.verified.together`), as Spark tasks.

In a first job each lane reads and parses its offsets, and sends its proof. The driver judges, and in a second job each
lane loads what its verdicts name. Spark may run a task of the first job again, because it only reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

from starrocks_txn_sink import telemetry
from starrocks_txn_sink.assembler.verified.together import LoadingLane, ProvingLane, SourceVerdict
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.writer import worker
from starrocks_txn_sink.writer.assembling import AssemblingLaneTask, AssemblySpec, LaneAssembler
from starrocks_txn_sink.writer.event_reader import EventReader, chunk_rows, chunks_of, read_kafka, types_in
from starrocks_txn_sink.writer.messages import LaneProof, Message, message_batch
from starrocks_txn_sink.writer.scratch import Schemas, Scratch, ScratchName
from starrocks_txn_sink.writer.task import LaneTask, in_time

_BEGIN: Final = pa.record_batch({"begin": [True]})
"""Comes before a lane's messages, which it may not read: a lane claims its label when the first batch comes."""


@dataclass(frozen=True, slots=True)
class ProvingLaneTask:
    """A lane's task in the first job: yields a LaneProof, or the report of a lane that has failed."""

    lane: LaneTask
    assembly: AssemblySpec
    scratch: ScratchName

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = worker.Attempt.current()
        deque(batches, maxlen=0)  # Spark ends a worker that leaves rows behind, and the Kafka consumer with it
        reads_only = replace(self.lane, claims=True)  # a second try does no harm
        yield message_batch(reads_only.answer(attempt, SystemClock(), partial(self._run, attempt)))

    def _run(self, attempt: worker.Attempt) -> list[Message]:
        worker.freeze_loaded_objects()
        telemetry.apply_log_settings(self.lane.logging)
        deadline = Deadline.after(self.lane.time_limit, SystemClock())
        scratch = Scratch.of(self.scratch, attempt)
        scratch.clear()
        batches = in_time(read_kafka(self.assembly.ranges[attempt.lane], deadline), deadline)
        try:
            proving, reader = _prove(self.assembly, scratch, batches)
            return [LaneProof(attempt.lane, proving.proofs(), reader.malformed, reader.truncates)]
        finally:
            scratch.storage.close()


def _prove(
    assembly: AssemblySpec, scratch: Scratch, batches: Iterable[pa.RecordBatch]
) -> tuple[ProvingLane, EventReader]:
    """Put the events of the batches into the scratch folder."""
    reader, proving = EventReader(assembly.lines, assembly.rules), ProvingLane(assembly.now, scratch.storage)
    for chunk in chunks_of(reader.events(batch for batch in batches if batch.num_rows), lambda: chunk_rows(1)):
        proving.feed(chunk)
    proving.finish()
    scratch.save(proving.segments, reader.schemas)
    return proving, reader


@dataclass(frozen=True, slots=True)
class LoadingLaneTask(AssemblingLaneTask):
    """A lane's task in the second job; `verdicts` are by lane and source."""

    scratch: ScratchName = field(kw_only=True)
    verdicts: Sequence[Mapping[str, SourceVerdict]] = field(kw_only=True)

    def _read(self, attempt: worker.Attempt, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        return chain([_BEGIN], AssemblingLaneTask._read(self, attempt, deadline))

    def _open(self, attempt: worker.Attempt) -> LaneAssembler:
        stem = self.assembly.stem_of(attempt)
        return LoadingAssembler(self.assembly, stem, Scratch.of(self.scratch, attempt), self.verdicts[attempt.lane])


class LoadingAssembler(LaneAssembler):
    """One attempt at a lane that loads what `verdicts` name."""

    def __init__(
        self, assembly: AssemblySpec, stem: str, scratch: Scratch, verdicts: Mapping[str, SourceVerdict]
    ) -> None:
        super().__init__(assembly, stem, make=lambda storage: LoadingLane(assembly.carried, storage, verdicts))
        self._scratch_files = scratch
        self._schemas: Schemas = {}

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the verdicts, in the form that the lane reads. The first of the batches is _BEGIN."""
        messages = iter(batches)
        next(messages)
        found = self._scratch_files.load()
        if found is None:
            proving, reader = _prove(self._assembly, self._scratch_files, messages)
            found = proving.segments, reader.schemas
        segments, self._schemas = found
        assert isinstance(self._assembler, LoadingLane)
        self._assembler.take(segments)
        yield from self._assembly.content.batches(self._assembler.finish())

    def types_of(self, table: str, name: str) -> list[str]:
        return types_in(self._schemas, self._assembly.rules, table, name)

    def close(self) -> None:
        self._scratch_files.storage.close()
        super().close()
