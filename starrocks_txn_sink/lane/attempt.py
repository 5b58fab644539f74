"""Which try of Spark's at a lane this is: the first one owns its lane, any other has to take it over.

PySpark tells a task its own attempt number but not its stage's, and a stage that is run again starts at attempt 0 while
tasks of the former run may still be alive. The name of the task's thread in the JVM has both ("task 0.0 in stage 2.1"),
so the JVM puts it into a row: the first one of a lane, in the column TASK, or, where rows come without a shuffle, and
nothing is committed before the last one, into that one, in a column that is NULL there otherwise (`place_at_end`).
Spark has no code of its own for the name: it would slow down every row that stands in the same projection, or comes
after it in the same task. A name that cannot be read in the first row counts as a retry, which is always safe; in the
last row it ends the task before anything is committed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from starrocks_txn_sink.lane.columns import PARTITION, TABLE, TASK
from starrocks_txn_sink.lane.ending import RowsCutOff, StageRepeated

_THREAD = re.compile(r"task \d+\.(\d+) in stage \d+\.(\d+) \(TID")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a lane; `number` is unique in the Spark application, `retry` tells that it is not the first."""

    lane: int
    number: int
    retry: bool

    @classmethod
    def current(cls) -> Attempt:
        """The running task's, as far as its context tells."""
        context = TaskContext.get()
        if context is None:
            return cls(0, 0, False)
        return cls(context.partitionId(), context.taskAttemptId(), context.attemptNumber() > 0)


def place_at_end(columns: Collection[str]) -> str:
    """The column whose value in a lane's last row names the task, unless the first row does so in TASK."""
    return PARTITION if PARTITION in columns else TABLE


def with_stage(attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> tuple[Attempt, Iterator[pa.RecordBatch]]:
    """The attempt, with what the first row says of its stage, and the batches again. Without rows nothing is needed.

    Where the last row tells it, reading that raises StageRepeated for a task that would not be the lane's first.
    """
    rest = iter(batches)
    for first in rest:
        if not first.num_rows:
            continue
        again = itertools.chain([first], rest)
        if TASK not in first.schema.names:
            return attempt, again if attempt.retry else _of_first_stage(again)
        retry = attempt.retry or _again(first.column(TASK)[0].as_py())
        return Attempt(attempt.lane, attempt.number, retry), again
    return attempt, iter(())


def _of_first_stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; at their end raises StageRepeated if there were rows to write and the stage is run again."""
    rows, thread = 0, None
    for batch in batches:
        if batch.num_rows:
            rows, thread = rows + batch.num_rows, batch.column(place_at_end(batch.schema.names))[-1].as_py()
        yield batch
    if rows <= 1:
        return
    if not _THREAD.search(thread or ""):
        raise RowsCutOff("The rows of the lane ended without the one that names its task.")
    if _again(thread):
        raise StageRepeated(
            "Spark runs the lane's stage again, and a task of its first run may be alive.",
            hint="Spark's next try at the task takes the lane over; give it some (spark.task.maxFailures).",
        )


def _again(thread: str | None) -> bool:
    found = _THREAD.search(thread or "")
    return found is None or (int(found[1]), int(found[2])) != (0, 0)
