"""A task and its Spark worker process: the number of the attempt, resources that last, its memory.

**Resources.** Connections, and the threads that they belong to, last from task to task (`RESOURCES`).

**The heap.** PySpark's worker runs a full garbage collection before it takes the next task. It visits every object of
every loaded library, a tenth of a second of processor time after each task, which small micro-batches feel. Loaded
libraries stay for the life of the process, so `gc.freeze` takes them out of collections once.

**Buffers.** A lane allocates buffers of megabytes, fills them once and frees them. Arrow's own allocator maps such a
buffer anew each time, and the kernel clears its pages: a quarter of the processor time of a lane that parses. glibc
keeps and reuses them, in an *arena* for each thread that allocates, up to eight for each core. A lane has a dozen
threads, whose buffers travel from one to the next, so each arena keeps what another one needs: two are enough.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import itertools
import os
import pickle
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from starrocks_txn_sink.coordinator.model import Chunk, RowIndex
from starrocks_txn_sink.glibc import has_glibc, limit_arenas
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.scratch_file import ScratchFile
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from starrocks_txn_sink.sql.scan_threads import KnownThreads
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.partitions import KnownPartitions
from starrocks_txn_sink.writer.runner import DaemonThreadPool

_MAX_CACHED = 2  # the options change with a table's columns; two queries may take turns in one worker


_OUTSIDE: Final = itertools.count(1 << 40)  # attempts outside of Spark's tasks, whose numbers never get there


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a lane; `number` is unique in the Spark application, and `retry` says whether an earlier try ran.

    `stage` is Spark's number of the task's stage; None outside of Spark.
    """

    lane: int
    number: int
    retry: bool
    stage: int | None = None

    @classmethod
    def current(cls) -> Attempt:
        """The attempt of the running task, as far as PySpark knows it; outside of Spark's tasks a first attempt."""
        context = TaskContext.get()
        if context is None:
            return cls(0, next(_OUTSIDE), False)
        retry = context.attemptNumber() > 0
        return cls(context.partitionId(), context.taskAttemptId(), retry, context.stageId())


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Connections and threads for lanes with the same options."""

    transport: HttpTransport
    threads: DaemonThreadPool
    ledger: SqlLedger | None
    connection: LeaderConnection | None = None
    columns: KnownColumns | None = None
    scan_threads: KnownThreads | None = None
    partitions: KnownPartitions | None = None

    @classmethod
    def open(cls, options: SinkOptions) -> WorkerResources:
        """New resources; connections open when they are first used."""
        connection = LeaderConnection(options) if options.query_url is not None else None
        ledger = SqlLedger(connection, options.database) if connection and options.exactly_once else None
        threads = DaemonThreadPool(options.load_parallelism + 1, "starrocks-lane")
        columns = KnownColumns(connection, options.database) if connection else None
        scan_threads = KnownThreads(options) if connection else None
        partitions = KnownPartitions(connection, options.database) if connection else None
        return cls(HttpTransport(options), threads, ledger, connection, columns, scan_threads, partitions)

    def close(self) -> None:
        """Close the connections; the threads end after their running jobs. Called when no lane uses them."""
        self.transport.close()  # while the threads are there, and their connections with them
        self.threads.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(slots=True)
class _CachedResources:
    resources: WorkerResources
    users: int = 0


class ResourceCache:
    """The most recently used resources, by options: at most _MAX_CACHED, unless more are in use. Thread-safe.

    The key is a keyed hash of the options, because they hold the password.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._salt = secrets.token_bytes(32)
        self._kept: OrderedDict[bytes, _CachedResources] = OrderedDict()  # the most recently used ones come last

    @contextlib.contextmanager
    def lease(self, options: SinkOptions) -> Iterator[WorkerResources]:
        """The resources for `options`, cached or new, for one task.

        An error that leaves the block drops them: a connection or a thread may be stuck, so the next task gets new
        ones.
        """
        key = hashlib.blake2b(_content(options), key=self._salt).digest()
        with self._lock:
            cached = self._kept.pop(key, None) or _CachedResources(WorkerResources.open(options))
            self._kept[key] = cached
            cached.users += 1
            unused = self._surplus()
        _close(unused)
        try:
            yield cached.resources
        except BaseException:
            with self._lock:
                if self._kept.get(key) is cached:
                    del self._kept[key]
            raise
        finally:
            with self._lock:
                cached.users -= 1
                unused = [cached] if not cached.users and self._kept.get(key) is not cached else []
                unused += self._surplus()
            _close(unused)

    def close(self) -> None:
        """Close the resources that no task uses."""
        with self._lock:
            unused = self._surplus(limit=0)
        _close(unused)

    def _surplus(self, limit: int = _MAX_CACHED) -> list[_CachedResources]:
        """Remove and return the resources above `limit`, the longest unused first; never resources in use."""
        idle = [key for key, cached in self._kept.items() if not cached.users]
        count = len(self._kept) - limit
        return [self._kept.pop(key) for key in idle[: max(0, count)]]


def _content(options: SinkOptions) -> bytes:
    """The options as bytes: the same bytes for equal options."""
    content = io.BytesIO()
    pickler = pickle.Pickler(content)
    pickler.fast = True  # without references: whether equal texts are one object makes no difference
    pickler.dump(options)
    return content.getvalue()


def _close(unused: list[_CachedResources]) -> None:
    for cached in unused:
        cached.resources.close()


RESOURCES = ResourceCache()
"""The cache of this worker process."""


def settle_memory() -> None:
    """`settle_process` in a Spark task, before its rows arrive; elsewhere nothing."""
    if TaskContext.get() is not None:
        settle_process()


@cache  # not `gc.get_freeze_count()`, which visits every frozen object
def settle_process() -> None:
    """Exclude the objects loaded so far from later collections, take Arrow's buffers from glibc, which then has few
    arenas; once a process.

    A frozen object that becomes part of a garbage cycle is never collected. What the user has chosen with
    ARROW_DEFAULT_MEMORY_POOL or MALLOC_ARENA_MAX stays.
    """
    gc.collect()
    gc.freeze()
    if has_glibc() and _POOL not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    limit_arenas(_MOST_ARENAS)


_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_MOST_ARENAS: Final = 2


class SpillFile:
    """Moves chunks from memory into a scratch file (`rows.scratch_file`)."""

    def __init__(self, file_bytes: int = 1 << 30) -> None:
        self._file = ScratchFile(file_bytes)

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Move the rows of `chunks` and their indexes into a file; False if the disk does not take them."""
        try:
            taken = iter(self._file.take([buffer for chunk in chunks for buffer in _buffers_of(chunk)]))
        except OSError:
            return False
        for chunk in chunks:
            chunk.pieces = [next(taken) for _ in chunk.pieces]
            # For small rows the indexes are large, and an index that is a slice keeps its whole Arrow batch in memory.
            chunk.row_indexes = [
                index and RowIndex(*(np.frombuffer(next(taken), array.dtype) for array in _arrays_of(index)))
                for index in chunk.row_indexes
            ]
        self.release()
        return True

    def release(self) -> None:
        """See ScratchFile."""
        self._file.release()


def _buffers_of(chunk: Chunk) -> Iterator[memoryview | bytes]:
    """The bytes of a chunk in a file: its pieces, then the arrays of each row index."""
    yield from chunk.pieces
    for index in filter(None, chunk.row_indexes):
        yield from (array.tobytes() for array in _arrays_of(index))


def _arrays_of(index: RowIndex) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return index.positions, index.offsets
