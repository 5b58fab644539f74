"""The assembling lane: the task runs the assembler's rules over raw events and writes whole source transactions.

Open source transactions go on in the next micro-batch: the lane writes their rows into the state's directory before the
task returns, and the CarryOver has the places of the rows (`assembler.rules.spill`). The driver's manifest decides
which files count, so a failed or repeated attempt leaves only files without a reference.

Unless Spark has sorted the events, a lane checks their order while it reads. Two lanes may have events of one source
partition, and the driver notices it when both have ended, before it commits. A lane sorts a small micro-batch itself: a
shuffle would be the larger part of the time.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

import starrocks_txn_sink.arrow_start  # noqa: F401 - first: other modules make arrays
from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.directory import FileDirectory, StateDirectory
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.release import Assembler
from starrocks_txn_sink.assembler.rules.spill import CarriedState, SpillStorage
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import ColumnNeeds, LaneShare, MissingColumns
from starrocks_txn_sink.errors import InputError, SourceTransactionError, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.options.table_rules import METADATA, NO_RULES, RuleSet, RulesOfTable
from starrocks_txn_sink.protocol.snapshots import Marks, beside
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.arrival import SMALL_ROWS, take_first
from starrocks_txn_sink.rows.columns import EVENT_TIME, OFFSET, TOPIC_PARTITION
from starrocks_txn_sink.rows.places import with_offsets
from starrocks_txn_sink.sources.formats.column_rules import apply_rules, ruled_columns
from starrocks_txn_sink.sources.formats.connect_types import SourceColumn, columns_of
from starrocks_txn_sink.sources.formats.raw_format import POSITION, SOURCE_PARTITION, ParsedMessages, RawFormat
from starrocks_txn_sink.sources.kafka.options import no_client
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import CarryOver, Message
from starrocks_txn_sink.writer.pipe import (
    InputStage,
    Lacking,
    LaneInput,
    SourceSchema,
    Stop,
    place_of_first,
    sorts_away,
)
from starrocks_txn_sink.writer.worker import Attempt

if TYPE_CHECKING:
    from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges

In = TypeVar("In")
Out = TypeVar("Out")

_PARSERS: Final = 2  # threads that parse ahead of the rules: pyarrow releases the GIL
_CHUNK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 8 << 20  # about four are in memory at once, as text, as columns, and as payloads
_LARGE_PIECE_BYTES: Final = 16 << 20  # of a lane that is alone: each piece costs milliseconds, whatever its size


@dataclass(frozen=True, slots=True)
class AssemblySpec(LaneInput):
    """The settings of a lane that assembles, and the open state of the previous micro-batch (`carried`, `inline`).

    The lane has the rules `assembler` with their `policy`. `now` is in seconds since the Unix
    epoch; `lines` parses raw values, None for parsed events. Without a `directory` (a batch frame has none) the lane
    spills to the executor's temporary directory. With `arrival_order` events are not sorted; if they are also
    `sortable`, the driver may sort them after a wrong order. Up to `small_rows` events may come in any order. The
    driver has written the file `marker` into the `directory`: a lane that finds the file shares the directory. A
    `relayed` lane cannot reach the query's directory: it has no `directory`, and all its files travel in `inline`. With
    `ranges` each lane reads its own offsets of Kafka, and takes no rows from Spark. `compare`: see
    TransactionAssembler; `in_order`: see Assembler.of. The source partitions of `placed` messages are Kafka's, and
    their positions are offsets. `described` are the types, by the schemas of earlier micro-batches, of columns that
    tables lack.
    """

    assembler: type[Assembler]
    policy: Any
    content: PayloadEncoder
    now: float
    directory: StateDirectory | None
    stem: str
    carried: Mapping[str, CarriedState] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)
    lines: RawFormat | None = None
    arrival_order: bool = True
    sortable: bool = True
    small_rows: int = SMALL_ROWS
    chunk_rows: int = 20_000  # of one poll, without a copy; smaller chunks cost more calls of the rules …
    partition_rows: int = 100  # … and so do fewer rows of each source partition
    marker: str = ""
    relayed: bool = False
    ranges: Sequence[OffsetRanges] = ()
    compare: bool = True
    in_order: bool = True
    placed: bool = False
    rules: RuleSet = NO_RULES
    described: MissingColumns = field(default_factory=dict)

    def open(self, attempt: Attempt, stop: Stop | None = None) -> LaneAssembler:
        """The stages of one attempt at a lane; those that go on with their own reading stop at `stop`."""
        if isinstance(self.directory, FileDirectory) and self.marker:
            self.directory.require_shared(self.marker)
        return LaneAssembler(self, attempt, stop)

    def place(self, batches: Iterable[pa.RecordBatch], attempt: Attempt) -> str | None:
        return self.ranges[attempt.lane].place if self.ranges else place_of_first(batches)


class Parse(SourceSchema):
    """The stage that parses messages, some pieces ahead, and applies the rules of their tables.

    It knows what the schemas of the messages that were read say of columns; `described` are the types, by the schemas
    of earlier micro-batches, of columns that tables lack. Without `lines` the events are parsed already. `placed` and
    `encoded`: see `with_offsets`.
    """

    describes = True

    def __init__(
        self, lines: RawFormat | None, rules: RuleSet, described: MissingColumns, *, placed: bool, encoded: bool = False
    ) -> None:
        self._encoded = encoded
        self._lines, self._rules, self._described_before, self._placed = lines, rules, described, placed
        self.completes = any(rule.deletes == "mark" for rule in rules.rules)
        if lines is not None:
            self.completes = self.completes or lines.keeps_unchanged
            self.encodes_bytes = lines.encodes_bytes
        self.malformed = 0
        self.truncates: Counter[str] = Counter()
        self.marks: Marks = {}
        self.keys: set[SourceKey] = set()
        self.described: dict[str, dict[str, ColumnNeeds]] = {}
        self._schemas: dict[str, list[str]] = {}
        self._new_schemas: list[tuple[str, str]] = []
        self._columns: dict[str, list[dict[str, SourceColumn]]] = {}  # by table, of each schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.RecordBatch]]:
        """The events of each piece of the batches, and the piece."""
        lines = self._lines
        if lines is None:
            yield from ((apply_rules(self._rules, _cast_events(batch)), batch) for batch in batches)
            return
        parse = partial(_parse, lines, self._rules, self._placed, self._encoded)
        pieces = _pieces(batches, _LARGE_PIECE_BYTES if self._encoded else _PIECE_BYTES)
        for parsed, piece in map_ahead(parse, pieces, _PARSERS):
            self._take(parsed)
            yield parsed.events, piece

    def _take(self, parsed: ParsedMessages) -> None:
        self.malformed += parsed.malformed
        self.truncates.update(parsed.truncates)
        if parsed.marks:
            self.marks = beside(self.marks, parsed.marks)
        self.keys |= parsed.keys
        for table, schemas in parsed.schemas.items():
            known_schemas = self._schemas.setdefault(table, [])
            new = [schema for schema in schemas if schema not in known_schemas]
            known_schemas += new
            self._new_schemas += [(table, schema) for schema in new]

    def types_of(self, table: str, name: str) -> list[str]:
        described = self._described_before.get(table, {}).get(name, ColumnNeeds())
        return [
            *described.types,
            *(column.type for column in self._described(table, name) if column.type),
        ]

    def filled(self, table: str, name: str) -> bool:
        described = self._described_before.get(table, {}).get(name, ColumnNeeds())
        return described.filled or any(column.filled for column in self._described(table, name))

    def options_of(self, table: str, options: SinkOptions) -> TableOptions:
        return self._rules.declared(table, options_of=options.options_of)

    def _described(self, table: str, name: str) -> Sequence[SourceColumn]:
        """A column of a table as the schemas describe it."""
        return [columns[name] for columns in self._schemas_of(table) if name in columns]

    def _schemas_of(self, table: str) -> Sequence[Mapping[str, SourceColumn]]:
        """The columns of a table by each of its schemas; each one is read once, for all columns."""
        rules = self._rules
        described = self._columns.setdefault(table, [])
        for schema in self._schemas.get(rules.main_of(table), [])[len(described) :]:
            described.append({column.name: column for column in ruled_columns(rules, table, columns_of(schema))})
        return described

    def keep_types(self, lacking: Lacking) -> None:
        """Take the types of columns that tables lack into the carry-over.

        A row may wait for the END of its transaction in a later micro-batch, which has no message with its schema.
        """
        rules = self._rules
        for main in self._schemas:
            for table in (rules.of(main) or RulesOfTable(main)).targets:
                with contextlib.suppress(InputError):  # the rows are judged without it
                    names = {name for columns in self._schemas_of(table) for name in columns}
                    for name in lacking(table, names):
                        types = tuple(dict.fromkeys(self.types_of(table, name)))
                        needs = ColumnNeeds(types=types, filled=self.filled(table, name))
                        self.described.setdefault(table, {})[name] = needs

    def new_types(self) -> Iterator[tuple[str, dict[str, str]]]:
        """The types of tables and histories by the schemas that were read since the last call.

        Columns about the source are left out, and schemas that say nothing certain.
        """
        rules, new = self._rules, self._new_schemas
        self._new_schemas = []
        for main, schema in new:
            with contextlib.suppress(InputError):  # the rows are judged without it
                columns_given = [column for column in columns_of(schema) if not column.vague]
                for table in (rules.of(main) or RulesOfTable(main)).targets:
                    columns = ruled_columns(rules, table, columns_given)
                    yield table, {column.name: column.type for column in columns if column.name not in METADATA}


class LaneAssembler(InputStage):
    """The stages of one attempt at a lane that assembles: read, parse, assemble by the rules, encode.

    `schema` is the stage that parses. A lane that reads Kafka itself stops there, and goes on from what it has
    `reached` in the next round. Of another lane Spark would send all rows again.
    """

    def __init__(self, assembly: AssemblySpec, attempt: Attempt, stop: Stop | None) -> None:
        self._assembly = assembly
        self._ranges = assembly.ranges[attempt.lane] if assembly.ranges else None
        # What is judged together goes through all offsets again in the next round.
        goes_on = self._ranges is not None and not assembly.assembler.judges_together
        self._stop = stop if goes_on else None
        self._reached = dict(self._ranges.starts()) if self._ranges is not None and goes_on else {}
        self.schema: Parse = Parse(
            assembly.lines,
            assembly.rules,
            assembly.described,
            placed=assembly.placed,
            encoded=assembly.assembler.judges_together,
        )
        self._scratch = tempfile.TemporaryDirectory() if assembly.directory is None else None
        directory = assembly.directory or FileDirectory(self._scratch.name if self._scratch else "")
        stem = f"{assembly.stem}-{attempt.lane}-{attempt.number}"
        self._storage = SpillStorage(directory, stem, assembly.inline)
        self._assembler = assembly.assembler.of(
            assembly.policy,
            assembly.carried,
            assembly.now,
            self._storage,
            arrival_order=assembly.arrival_order,
            compare=assembly.compare,
            in_order=assembly.in_order,
        )
        self._small = False
        self._reading = contextlib.ExitStack()

    def read(self, batches: Iterator[pa.RecordBatch], deadline: Deadline) -> Iterator[pa.RecordBatch]:
        if self._ranges is None:
            return batches
        deque(batches, maxlen=0)  # Spark ends a worker that leaves rows behind, and the Kafka consumer with it
        return self._reading.enter_context(contextlib.closing(_read_kafka(self._ranges, deadline)))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of ended source transactions, in the form that the lane reads.

        Raises Unordered, and the errors of the rules, the parser and the content.
        """
        spec, rules = self._assembly, self._assembler
        events = self._events(self.schema(filter(len, batches)))
        first, self._small = take_first(events, spec.small_rows, _CHUNK_BYTES)
        # Rules that judge no chunk only copy a row when it is released.
        join = pa.concat_tables if spec.assembler.judges_together else _concatenate
        chunks = [join(first)] if self._small and first else _chunks(chain(first, events), self._chunk_rows, join)
        for chunk in chunks:
            yield from spec.content.batches(rules.feed(chunk, any_order=self._small))
        yield from spec.content.batches(rules.finish())

    def _events(self, parsed: Iterable[tuple[pa.Table, pa.RecordBatch]]) -> Iterator[pa.Table]:
        """The events, as far as the lane goes: pieces that are parsed ahead are read again."""
        if self._stop is None:
            yield from (events for events, _ in parsed)
            return
        for events, piece in self._stop(parsed):
            self._stop.start()
            yield events
            self._reach(piece)

    def _reach(self, piece: pa.RecordBatch) -> None:
        """The raw values of `piece` are read: note the next offset of each source partition."""
        last = (
            pa.table(piece.select([SOURCE_PARTITION, POSITION]))
            .group_by(SOURCE_PARTITION, use_threads=False)
            .aggregate([(POSITION, "max")])
        )
        names, positions = last[SOURCE_PARTITION].to_pylist(), last[f"{POSITION}_max"].to_pylist()
        self._reached |= {name: position + 1 for name, position in zip(names, positions, strict=True)}

    def _chunk_rows(self) -> int:
        spec = self._assembly
        return max(spec.chunk_rows, min(spec.partition_rows * self._assembler.source_partitions, SMALL_ROWS))

    def sorted_first(self, error: StarRocksSinkError) -> bool:
        # In arrival order a BEGIN may only be late, and nothing is committed yet.
        may_sort = self._assembly.arrival_order and self._assembly.sortable
        return sorts_away(error, may_sort=may_sort) or (may_sort and isinstance(error, SourceTransactionError))

    def messages(self) -> list[Message]:
        return [self.carry_over()]

    def carry_over(self) -> CarryOver:
        """Write the open rows into the directory and return their places; a batch frame writes none."""
        partitions: Mapping[str, CarriedState] = {}
        inline: Mapping[str, bytes] = {}
        rules, parse = self._assembler, self.schema
        marks = rules.visible_marks(parse.marks)
        if self._scratch is None or self._assembly.relayed:
            partitions, inline = rules.carry_over(), self._storage.new_inline
        if self._assembly.relayed:
            files = {place.file for state in partitions.values() for place in state.places.values()}
            inline = {**inline, **self._storage.contents(files)}
        truncates = (
            Event("truncate.ignored", {"table": table, "count": count}) for table, count in parse.truncates.items()
        )
        return CarryOver(
            partitions,
            rules.flows,
            (*rules.notices, *rules.repeat_notices(), *truncates),
            inline,
            small=self._small,
            malformed=parse.malformed,
            reached=self._reached if self._stop is not None and self._stop.stopped else None,
            marks=marks,
            keys=tuple(sorted(parse.keys)),
            described=parse.described,
        )

    def share(self, share: LaneShare) -> LaneShare:
        """Also the source partitions without a released row."""
        return replace(share, partitions=tuple(sorted(self._assembler.names.union(share.partitions))))

    def close(self) -> None:
        """Give up reading, close the files with rows of open source transactions, delete those only this lane needs."""
        self._reading.close()
        self._storage.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def _read_kafka(ranges: OffsetRanges, deadline: Deadline) -> Generator[pa.RecordBatch, None, None]:
    try:
        from starrocks_txn_sink.sources.kafka.ranges import read_values  # confluent-kafka is an extra
    except ImportError:
        raise no_client() from None
    return read_values(ranges, deadline)


def _pieces(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The batches, cut to about `size` bytes each, because several are in memory at once."""
    for batch in batches:
        step = batch.num_rows * size // max(batch.nbytes, 1) + 1
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


def _parse(
    lines: RawFormat, rules: RuleSet, placed: bool, encoded: bool, batch: pa.RecordBatch
) -> tuple[ParsedMessages, pa.RecordBatch]:
    """The events in a batch by the rules, and the batch itself."""
    messages = with_offsets(batch, placed=placed, encoded=encoded)
    names = tuple(name for name in (EVENT_TIME, OFFSET, TOPIC_PARTITION) if name in messages.schema.names)
    parsed = lines.parse(messages, names)
    return replace(parsed, events=apply_rules(rules, parsed.events)) if rules.rules else parsed, batch


def _cast_events(batch: pa.RecordBatch) -> pa.Table:
    kinds = {model.SOURCE_PARTITION: pa.string(), **dict(model.EVENT_FIELDS)}
    columns = {name: batch.column(name).cast(kind) for name, kind in kinds.items()}  # large strings become plain ones
    return pa.table(columns | ({EVENT_TIME: batch.column(EVENT_TIME)} if EVENT_TIME in batch.schema.names else {}))


def _chunks(
    tables: Iterable[pa.Table], enough: Callable[[], int], join: Callable[[list[pa.Table]], pa.Table]
) -> Iterator[pa.Table]:
    """Tables joined until they have `enough` rows for one call of the rules, or _CHUNK_BYTES."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= enough() or size >= _CHUNK_BYTES:
            yield join(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield join(waiting)


def _concatenate(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if len(tables) > 1 else tables[0].combine_chunks()
