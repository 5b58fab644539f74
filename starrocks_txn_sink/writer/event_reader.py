"""The events of a lane: what it reads of Kafka, parsed ahead of the rules, in chunks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified.intake import NUMBER, ORIGIN
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.options.table_rules import NO_RULES, RuleSet
from starrocks_txn_sink.rows.arrival import SMALL_ROWS
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sources.formats.column_rules import apply_rules, ruled_columns
from starrocks_txn_sink.sources.formats.connect_types import columns_of
from starrocks_txn_sink.sources.formats.raw_format import ParsedMessages, RawFormat
from starrocks_txn_sink.sources.kafka.options import no_client
from starrocks_txn_sink.telemetry import Event

if TYPE_CHECKING:
    from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges

In = TypeVar("In")
Out = TypeVar("Out")

_KEPT: Final = (EVENT_TIME, ORIGIN, NUMBER)  # columns of messages that their events have too
_PARSERS: Final = 2  # threads that parse ahead of the rules: pyarrow releases the GIL
_CHUNK_ROWS: Final = 30_000  # smaller chunks cost more calls of the rules …
_PARTITION_ROWS: Final = 100  # … and so do fewer rows of each source partition
CHUNK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 8 << 20  # about four are in memory at once, as text, as columns, and as payloads


def chunk_rows(source_partitions: int) -> int:
    """How many events are worth one call of the rules."""
    return max(_CHUNK_ROWS, min(_PARTITION_ROWS * source_partitions, SMALL_ROWS))


@dataclass(slots=True)
class EventReader:
    """Makes events of the batches of a lane; `lines` parses raw values, None for parsed events.

    The `rules` apply right behind the parsing. `malformed` counts values that were left out, `truncates` the ignored
    TRUNCATEs of each table; `schemas` has those of the messages of each StarRocks table.
    """

    lines: RawFormat | None
    rules: RuleSet = NO_RULES
    malformed: int = 0
    truncates: Counter[str] = field(default_factory=Counter)
    schemas: dict[str, list[str]] = field(default_factory=dict)

    def events(
        self, batches: Iterable[pa.RecordBatch], until: Callable[[pa.RecordBatch], bool] | None = None
    ) -> Iterator[pa.Table]:
        """The events, up to the raw values for which `until` is true."""
        if self.lines is None:
            yield from (apply_rules(self.rules, _cast_events(batch)) for batch in batches)
            return
        for parsed, piece in map_ahead(partial(_parse, self.lines, self.rules), _pieces(batches), _PARSERS):
            self.malformed += parsed.malformed
            self.truncates.update(parsed.truncates)
            for table, schemas in parsed.schemas.items():
                known = self.schemas.setdefault(table, [])
                known += [schema for schema in schemas if schema not in known]
            yield parsed.events
            if until is not None and until(piece):
                return


def truncate_notices(truncates: Mapping[str, int]) -> Iterator[Event]:
    """What listeners hear of ignored TRUNCATEs."""
    for table, count in truncates.items():
        yield Event("truncate.ignored", {"table": table, "count": count})


def types_in(schemas: Mapping[str, Sequence[str]], rules: RuleSet, table: str, name: str) -> list[str]:
    """The types of a column by the `schemas` of its table's messages, and the rules."""
    columns = [
        column
        for schema in schemas.get(rules.main_of(table), ())
        for column in ruled_columns(rules, table, columns_of(schema))
    ]
    return [column.type for column in columns if column.name == name and column.type]


def read_kafka(ranges: OffsetRanges, deadline: Deadline) -> Iterator[pa.RecordBatch]:
    try:
        from starrocks_txn_sink.sources.kafka.ranges import read_values  # confluent-kafka is an extra
    except ImportError:
        raise no_client() from None
    return read_values(ranges, deadline)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, cut to about _PIECE_BYTES each, because several are in memory at once."""
    for batch in batches:
        step = batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1) + 1
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def map_ahead(work: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """Yield `work(item)` for each item, in order; an error of `work` is raised in its item's turn.

    At most `threads` + 1 items are under way, which bounds memory.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="starrocks-parse") as pool:
        futures: deque[Future[Out]] = deque()
        for item in items:
            futures.append(pool.submit(work, item))
            if len(futures) > threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def _parse(lines: RawFormat, rules: RuleSet, batch: pa.RecordBatch) -> tuple[ParsedMessages, pa.RecordBatch]:
    """The events in a batch by the rules, and the batch itself."""
    parsed = lines.parse(batch, tuple(name for name in _KEPT if name in batch.schema.names))
    return replace(parsed, events=apply_rules(rules, parsed.events)) if rules.rules else parsed, batch


def _cast_events(batch: pa.RecordBatch) -> pa.Table:
    kinds = {model.SOURCE_PARTITION: pa.string(), **dict(model.EVENT_FIELDS)}
    columns = {name: batch.column(name).cast(kind) for name, kind in kinds.items()}  # large strings become plain ones
    return pa.table(columns | ({EVENT_TIME: batch.column(EVENT_TIME)} if EVENT_TIME in batch.schema.names else {}))


def chunks_of(tables: Iterable[pa.Table], enough: Callable[[], int]) -> Iterator[pa.Table]:
    """Tables joined until they have `enough` rows for one call of the rules, or CHUNK_BYTES."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= enough() or size >= CHUNK_BYTES:
            yield concatenate(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield concatenate(waiting)


def concatenate(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0].combine_chunks()
