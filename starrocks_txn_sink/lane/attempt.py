"""Which try of Spark at a lane this is: the first one owns its lane, any other has to take it over.

PySpark tells a task its own attempt number but not its stage's, and a stage that is run again starts at attempt 0 while
tasks of the former run may still be alive. The name of the task's thread in the JVM has both ("task 0.0 in stage 2.1"),
so the JVM puts it into the first row of each lane, or into a row before it. A name that cannot be read counts as a
retry, which is always safe.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from starrocks_txn_sink.lane.ending import BEGIN_POSITION

TASK = "task"
_FIRST = (TASK, BEGIN_POSITION)  # what a row has that only names the task
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


def with_stage(attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> tuple[Attempt, Iterator[pa.RecordBatch]]:
    """The attempt, with what the first row says of its stage, and the batches again, without a row that only says that.

    Without rows nothing is needed.
    """
    rest = iter(batches)
    for first in rest:
        if not first.num_rows:
            continue
        again = attempt.retry or _again(first.column(TASK)[0].as_py())
        return Attempt(attempt.lane, attempt.number, again), itertools.chain([first.slice(_only_names(first))], rest)
    return attempt, iter(())


def _only_names(first: pa.RecordBatch) -> bool:
    """Whether the first row has BEGIN_POSITION and the task's name, and nothing else."""
    values = [column[0].as_py() for column in first.columns]
    return BEGIN_POSITION in values and sum(value is not None for value in values) == len(_FIRST)


def _again(thread: str | None) -> bool:
    found = _THREAD.search(thread or "")
    return found is None or (int(found[1]), int(found[2])) != (0, 0)
