"""What the sink and the stages of a query, which are another package, know of each other in one process or query.

A stage says that it was planned; the sink tells the stage's tasks about time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import orjson
from pyspark import TaskContext

PLANNED = threading.Event()
"""Set once this process has planned a stage of a streaming query, whose counts come through Spark's progress."""

TIMED = threading.Event()
"""Set once one of them had `open_timeout`."""

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class TaskTime:
    """What a run of the query tells the tasks of micro-batch `batch` about time, by a local property of Spark.

    `now` is the time of the run's clock (`rules.reading_clock`), in seconds; without `judged` messages were left
    unread, and the micro-batch moves no watermark. Where no sink tells it, time is Spark's, and each second counts.
    """

    query: str
    batch: int
    now: float
    judged: bool

    PROPERTY: ClassVar = "starrocks_txn_sink.time"

    @property
    def tick(self) -> int:
        """The watermark that the micro-batch asks for, in milliseconds since the epoch."""
        return int(self.now * 1000) if self.judged else 0

    def to_text(self) -> str:
        """The local property."""
        return orjson.dumps(self).decode()

    @classmethod
    def of_task(cls, context: Any = None) -> TaskTime | None:
        """What the task that runs here was told; None if nothing, or of another micro-batch."""
        context = context or TaskContext.get()
        text = context.getLocalProperty(cls.PROPERTY) if context is not None else None
        if not text:
            return None
        told = cls(**orjson.loads(text))
        place = (context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH))
        return told if place == (told.query, str(told.batch)) else None
