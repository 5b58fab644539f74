"""Debezium's change events and transaction markers: two raw formats, whose events `assembler.verified` makes whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import one_array
from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.compiled.objects import ORIGIN
from starrocks_txn_sink.compiled.texts import pairs
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.protocol.snapshots import Marks
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.coded import is_one_of, joined, plain
from starrocks_txn_sink.sources.formats.connect_values import MALFORMED, PlansOfValues, convert_rows
from starrocks_txn_sink.sources.formats.debezium_json import CHANGE, MARKER, read_keys, read_values
from starrocks_txn_sink.sources.formats.debezium_other import (
    LOGICAL,
    LOGICAL_COLLECTION,
    TRUNCATE,
    TRUNCATE_HINT,
    judge_other,
)
from starrocks_txn_sink.sources.formats.declared_keys import DELETE, DebeziumRows, with_former
from starrocks_txn_sink.sources.formats.lone_tombstones import with_lone_tombstones
from starrocks_txn_sink.sources.formats.placeholders import (
    UnavailableSpellings,
    columns_with,
    rows_with,
    without_unavailable,
)
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    MESSAGE_KEY,
    POSITION,
    SOURCE_PARTITION,
    SOURCE_TIME,
    VALUE,
    OnMalformed,
    OnTruncate,
    ParsedMessages,
    Reader,
    place_of,
    place_text,
)
from starrocks_txn_sink.sources.formats.snapshot_marks import marks_of
from starrocks_txn_sink.sources.formats.source_keys import source_keys
from starrocks_txn_sink.sources.formats.tables import TableMapping
from starrocks_txn_sink.sources.formats.unknown_tables import with_dead_letters

DeletedRow = Literal["before", "key"]

PLACE: Final = ("topic", "partition", "offset")

_TYPES: Final = {field.name: field.type for field in v.EVENTS} | {
    SOURCE_PARTITION: pa.string(),
    SOURCE_TIME: pa.int64(),
}
_INSERT: Final = "c"
_UNAVAILABLE: Final = "unavailable"  # a mask of rows with a placeholder
_Numbers = np.ndarray[Any, np.dtype[np.int32]]
_OPS: Final = (_INSERT, "u", v.SNAPSHOT, DELETE, LOGICAL, TRUNCATE)
_WITHOUT_ROW: Final = (LOGICAL, TRUNCATE)
_STATUSES: Final = pa.array([v.BEGIN, v.END])
_NUMBER_AND_LSN: Final = r"^\d+:\d+$"
_BINLOG_FILE: Final = 1 << 32  # a binlog file has at most 4 GiB, so file number × this + offset ascends
_BINLOG_FILES: Final = 1 << 31
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumChanges:
    """The rows of change events (`parse_debezium`); messages without rows are passed over, and so are tombstones, but
    for those of `placed` messages that have lost their delete (`lone_tombstones`).

    `places` are the columns that name a message in errors; `key` is the column with a deleted row, None for `before`.
    The column `timestamp` is in milliseconds. With `placed` an event has its message's source partition and position,
    not those of its source transaction. With `keeps_unchanged` rows name the columns that `unavailable` stands in, and
    leave them out (`rows.unchanged`); otherwise such a row is an error. A logical message and a TRUNCATE are events
    without a row: they count for their transaction. With `source_time` events have SOURCE_TIME. The message's key is in
    the column `message_key`, if the frame has it: its names are compared with those before.
    """

    of_markers: ClassVar[bool] = False

    value: str = "value"
    key: str | None = None
    places: tuple[str, ...] = PLACE
    encodes_bytes: ClassVar[bool] = True

    tables: TableMapping
    unavailable: UnavailableSpellings | None = None
    keeps_unchanged: bool = False
    on_malformed: OnMalformed = "fail"
    on_truncate: OnTruncate = "fail"
    reader: Reader = "spark"
    placed: bool = False
    source_time: bool = False
    message_key: str | None = None

    @property
    def columns(self) -> Mapping[str, str]:
        """Value, key and place of a message, and its time; the columns of `places` keep their names."""
        key = {} if self.message_key is None else {MESSAGE_KEY: self.message_key}
        key = key if self.key is None else {KEY: self.key}
        place = {SOURCE_PARTITION: "partition", POSITION: "offset"} if self.placed else {}
        return {VALUE: self.value, **key, **place, **{name: name for name in (*self.places, v.TIMESTAMP)}}

    @property
    def events(self) -> pa.Schema:
        """Source partition, transaction and place in it, and the row: an event a message."""
        time = (SOURCE_TIME,) if self.source_time else ()
        return pa.schema([(name, _TYPES[name]) for name in (SOURCE_PARTITION, *v.ROW_COLUMNS, *time)])

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`).

        Raises InputError for a TRUNCATE of a table that is written, unless it is to be ignored, and for a row with a
        placeholder, unless the row may leave the value out.
        """
        messages, batch = batch, _without_tombstones(batch)
        read, valid = read_values(batch.column(VALUE), CHANGE)
        rows = self._rows(read, batch, valid)
        source, operation = one_array(read["source"]), one_array(read["op"])
        good = is_one_of(operation, *_OPS) & _is_valid(source) & _is_valid(rows.text) & rows.sound
        logical = is_one_of(operation, LOGICAL)
        good &= ~(logical & ~_is_valid(one_array(read["transaction"])))
        good &= logical | _is_valid(source.field("table"))
        read = read.append_column(model.ROW, rows.text).append_column(_UNAVAILABLE, rows.unavailable)
        read, batch, malformed = _without_malformed(self, "change event", read, batch, valid, good)
        parsed = self._events(read, batch, keep)
        schemas = _schemas_by_table(rows.schemas, read[ORIGIN], parsed.events[model.TABLE])
        parsed = replace(parsed, malformed=malformed, schemas=schemas)
        if self.placed and messages.column(VALUE).null_count:
            parsed = with_lone_tombstones(parsed, batch, messages, self.tables, keep, _rows_of_keys)
        return parsed

    def _rows(self, read: pa.Table, batch: pa.RecordBatch, valid: Bools) -> _Rows:
        """The rows of the values that were read."""
        before, after = (one_array(read[name]) for name in ("before", "after"))
        operation = one_array(read["op"])
        deleted = is_one_of(operation, DELETE)
        deletes = pa.array(deleted)
        sound: Bools = np.ones(len(deletes), dtype=bool)
        plans = PlansOfValues()
        (of_before, of_after), schemas = _plan_numbers(
            plans, batch.column(VALUE), read[ORIGIN].to_numpy(), ("before", "after")
        )
        moved = self._moved(read, batch, valid)
        former, of_former = before.filter(pa.array(moved)), of_before[moved]
        if self.key is not None and deletes.true_count:
            keys = batch.column(KEY).filter(pa.array(valid))
            key_deletes = pc.and_(deletes, keys.is_valid())
            keys = keys.filter(key_deletes)
            rows, of_keys, of_keys_of_rows = _planned_keys(plans, keys)
            before = pc.replace_with_mask(pa.nulls(len(deletes), pa.string()), key_deletes, rows)
            place: Bools = key_deletes.to_numpy(zero_copy_only=False)
            sound[place] = of_keys
            # The schema of a key lacks the source's types, which tell an unsigned number; that of its value has them.
            by_value = np.isin(of_before[place], plans.unsigned) & (of_keys_of_rows != MALFORMED)
            of_before[place] = np.where(by_value, of_before[place], of_keys_of_rows)
        text = pc.if_else(deletes, before, after) if deletes.true_count else after
        without = is_one_of(operation, *_WITHOUT_ROW)
        text = pc.if_else(pa.array(without), "{}", text) if without.any() else text
        unavailable: Bools = np.zeros(len(text), dtype=bool)
        if self.unavailable is not None:
            unavailable = rows_with(self.unavailable, text).to_numpy(zero_copy_only=False) & ~deleted
            if self.keeps_unchanged and unavailable.any():
                inserted = is_one_of(operation, _INSERT) | moved
                text, unavailable = without_unavailable(self.unavailable, text, unavailable, inserted)
        plan_numbers = np.where(deleted, of_before, of_after)
        sound &= plan_numbers != MALFORMED
        plan_numbers[unavailable | without | ~sound] = -1
        if (plan_numbers >= 0).any():
            text, fits = convert_rows(text, plans.plans, plan_numbers)
            sound &= fits
        if moved.any():
            former, fits = convert_rows(former, plans.plans, np.where(of_former == MALFORMED, -1, of_former))
            sound[moved] &= fits & (of_former != MALFORMED)
            of_moved = text.filter(pa.array(moved))
            text = pc.replace_with_mask(text, pa.array(moved), with_former(of_moved, former))
        return _Rows(text, sound, pa.array(unavailable), schemas)

    def _moved(self, read: pa.Table, batch: pa.RecordBatch, valid: Bools) -> Bools:
        """A mask of the updates that move a row to another declared key; the errors of `DebeziumRows.moved`."""
        if not self.tables.keys:
            return np.zeros(read.num_rows, dtype=bool)
        batch, (source, names) = batch.filter(pa.array(valid)), _sources_of(read)
        tables = [None if name is None else self.tables.table_of(name) or None for name in names.dictionary.to_pylist()]
        key = next((name for name in (KEY, MESSAGE_KEY) if name in batch.schema.names), None)
        changes = DebeziumRows(
            pa.array(tables, pa.string()).take(names.indices),
            plain(names),
            plain(one_array(read["op"])),
            plain(source["name"]),
            source["lsn"],
            one_array(read["before"]),
            one_array(read["after"]),
            None if key is None else batch.column(key),
        )
        return changes.moved(
            self.tables.keys, self.unavailable, lambda number: place_text(place_of(batch, number, self.places))
        )

    def _events(self, read: pa.Table, batch: pa.RecordBatch, keep: tuple[str, ...]) -> ParsedMessages:
        """The events, and what they say besides."""
        source, collection = _sources_of(read)
        txn_id, total_order = one_array(read["transaction"]).flatten()
        operation = one_array(read["op"])
        logical = pa.array(is_one_of(operation, LOGICAL))
        if logical.true_count:
            collection = pc.if_else(logical, pa.scalar(None, pa.string()), plain(collection)).dictionary_encode()
        source_tables, table = self.tables.tables_of(collection)
        collection = plain(collection)
        without = pa.array(is_one_of(operation, *_WITHOUT_ROW))
        truncates: Mapping[str, int] = {}
        if without.true_count:
            is_truncate = pa.array(is_one_of(operation, TRUNCATE))
            truncates = self._truncates(pc.and_(is_truncate, pc.is_valid(source_tables)), table, batch)
            table = pc.if_else(without, pa.scalar(None, table.type), table)
            source_tables = pc.if_else(without, "", source_tables)
            collection = pc.if_else(logical, LOGICAL_COLLECTION, collection)
        has_snapshot = v.SNAPSHOT in operation.dictionary.to_pylist()
        operation, connector = plain(operation), plain(source["name"])
        events = {
            SOURCE_PARTITION: batch.column(SOURCE_PARTITION) if self.placed else connector,
            model.TXN_ID: _stable_id(txn_id),
            v.TOTAL_ORDER: total_order,
            v.COLLECTION: collection,
            model.POSITION: (
                batch.column(POSITION) if self.placed else _row_position(source["lsn"], source["file"], source["pos"])
            ),
            model.DATABASE: pa.nulls(len(table), pa.string()),
            model.TABLE: table,
            model.OP: operation,
            model.ROW: one_array(read[model.ROW]),
            v.TIMESTAMP: batch.column(v.TIMESTAMP),
            SOURCE_TIME: source["ts_ms"],
        }
        if self.unavailable is not None:
            self._refuse_unavailable(self.unavailable, one_array(read[_UNAVAILABLE]), events, source_tables, batch)
        if self.tables.dead_letter_table is not None:
            events |= with_dead_letters(events, source_tables.is_null())
        columns = pa.table(events | {name: batch.column(name) for name in keep})
        partition = batch.column("partition") if "partition" in batch.schema.names else None
        marks: Marks = {}
        if has_snapshot:
            marks = marks_of(operation, plain(source["snapshot"]), connector, collection, table, partition)
        keys: frozenset[SourceKey] = frozenset()
        for name in (KEY, MESSAGE_KEY):
            if name in batch.schema.names:
                keys = source_keys(batch.column(name), operation, connector, collection, table)
        return ParsedMessages(columns.select([*self.events.names, *keep]), 0, {}, truncates, marks, keys)

    def _truncates(self, truncates: pa.Array, tables: pa.Array, batch: pa.RecordBatch) -> Mapping[str, int]:
        """How often the source has emptied each table that is written; InputError for the first time under `fail`."""
        number = pc.index(pc.and_(truncates, pc.is_valid(tables)), True).as_py()
        if number < 0:
            return {}
        if self.on_truncate == "fail":
            place = place_text({"table": tables[number].as_py(), **place_of(batch, number, self.places)})
            raise InputError(
                f"The source has emptied a table with TRUNCATE, which no load can do in StarRocks,{place}.",
                hint=TRUNCATE_HINT,
            )
        return dict(Counter(tables.filter(truncates).drop_null().to_pylist()))

    def _refuse_unavailable(
        self,
        spellings: UnavailableSpellings,
        unavailable: pa.Array,
        events: Mapping[str, pa.Array],
        tables: pa.Array,
        batch: pa.RecordBatch,
    ) -> None:
        """Raise InputError for a placeholder in a row that is written. A delete counts by its key alone."""
        number = pc.index(pc.and_(events[model.TABLE].is_valid(), unavailable), True).as_py()
        if number < 0:
            return
        place = {
            "table": tables[number].as_py() or "NULL",
            "columns": ",".join(columns_with(spellings, members(events[model.ROW][number].as_py()))) or "?",
            "position": events[model.POSITION][number].as_py() or "NULL",
            **place_of(batch, number, self.places),
        }
        raise InputError(
            "Debezium sent a placeholder for a value that did not change, and it would overwrite the true value,"
            f"{place_text(place)}.",
            hint=f"PostgreSQL: ALTER TABLE {events[v.COLLECTION][number].as_py()} REPLICA IDENTITY FULL, or leave the "
            "column out (column.exclude.list). For messages that the topic has already see "
            'docs/guides/debezium.md, "Values that did not change".',
        )


def _sources_of(read: pa.Table) -> tuple[dict[str, pa.Array], pa.DictionaryArray]:
    """The fields of the messages' sources, and the names of the source's tables."""
    fields = [field.name for field in CHANGE.field("source").type]
    source = dict(zip(fields, one_array(read["source"]).flatten(), strict=True))
    owner = source["schema"]
    if owner.null_count:
        owner = pc.coalesce(plain(owner), plain(source["db"])).dictionary_encode()
    return source, joined(owner, source["table"])


def _is_valid(values: pa.Array) -> Bools:
    mask: Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of values, masks of those that are sound, and of those with a placeholder, which stay as they came.

    `schemas` has the schema of each value that stands for all with the same one.
    """

    text: pa.Array
    sound: Bools
    unavailable: pa.Array
    schemas: Mapping[int, str]


def _planned_keys(plans: PlansOfValues, keys: pa.Array) -> tuple[pa.Array, Bools, _Numbers]:
    """The rows of messages' keys, a mask of the sound ones, and the numbers of their plans."""
    rows, sound, schema_at = read_keys(keys)
    (numbers,), _ = _plan_numbers(plans, keys, schema_at, ("",))
    return rows, sound, numbers


def _rows_of_keys(keys: pa.Array) -> tuple[pa.Array, Bools]:
    """The rows of messages' keys with converted values, and a mask of the sound ones."""
    plans = PlansOfValues()
    rows, sound, numbers = _planned_keys(plans, keys)
    sound = sound & (numbers != MALFORMED)
    numbers[~sound] = -1
    if (numbers >= 0).any():
        rows, fits = convert_rows(rows, plans.plans, numbers)
        sound &= fits
    return rows, sound


def _plan_numbers(
    plans: PlansOfValues, values: pa.Array, origins: np.ndarray[Any, np.dtype[np.int64]], names: tuple[str, ...]
) -> tuple[_Numbers, dict[int, str]]:
    """The numbers of the plans of the rows `names` of each value; its schema is that of value `origins`.

    And the schema of each of these values.
    """
    if not (origins >= 0).any():
        return np.full((len(names), len(origins)), -1, dtype=np.int32), {}
    distinct, places = np.unique(origins, return_inverse=True)
    texts = [*_texts(values.take(pa.array(distinct, mask=distinct < 0)), distinct >= 0)]
    numbers = [plans.numbers(text, names) for text in texts]
    plan_numbers: _Numbers = np.array(numbers, dtype=np.int32).T[:, places]
    schemas = zip(distinct.tolist(), map(plans.schema, texts), strict=True)
    return plan_numbers, {origin: schema for origin, schema in schemas if schema is not None}


def _schemas_by_table(
    schemas: Mapping[int, str], origins: pa.ChunkedArray, tables: pa.ChunkedArray
) -> dict[str, list[str]]:
    """The schemas of the rows of each table, without rows that go to no table."""
    if not schemas:
        return {}
    pairs = (
        pa.table({"origin": origins, "table": tables}).group_by(["origin", "table"], use_threads=False).aggregate([])
    )
    by_table: dict[str, list[str]] = {}
    for origin, table in zip(pairs["origin"].to_pylist(), pairs["table"].to_pylist(), strict=True):
        if table is not None and origin in schemas:
            by_table.setdefault(table, []).append(schemas[origin])
    return by_table


def _texts(values: pa.Array, sound: Bools) -> Iterator[str]:
    """The texts of values; an empty one where they are not sound."""
    for value, is_sound in zip(values, sound.tolist(), strict=True):
        content = value.as_buffer() if is_sound else None
        yield "" if content is None else content.to_pybytes().decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumMarkers:
    """The markers of the transaction topic (`parse_debezium_transactions`).

    `source` is the source partition; None takes the topic without its last part. See DebeziumChanges.
    """

    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = True
    of_markers: ClassVar[bool] = True

    value: str = "value"
    source: str | None = None
    places: tuple[str, ...] = PLACE
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"

    @property
    def columns(self) -> Mapping[str, str]:
        """The value, the place of a message, and its time; the columns of `places` keep their names."""
        return {VALUE: self.value, **{name: name for name in (*self.places, v.TIMESTAMP)}}

    @property
    def events(self) -> pa.Schema:
        """Source partition, transaction, status and counts: an event a message."""
        return pa.schema([(name, _TYPES[name]) for name in (SOURCE_PARTITION, *v.MARKER_COLUMNS)])

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The markers of a batch (`RawFormat.parse`); InputError for a topic of more than one partition."""
        batch = _without_tombstones(batch)
        read, valid = read_values(batch.column(VALUE), MARKER)
        status, txn_id = (one_array(read[name]) for name in ("status", "id"))
        good = pc.is_in(status, value_set=_STATUSES).to_numpy(zero_copy_only=False) & _is_valid(txn_id)
        read, batch, malformed = _without_malformed(self, "transaction marker", read, batch, valid, good)
        if pc.any(pc.not_equal(batch.column("partition"), 0)).as_py():
            raise InputError(
                "The transaction topic has more than one partition and so loses the order of commits.",
                hint="Create it with one.",
            )
        txn_id = one_array(read["id"])
        events = {
            SOURCE_PARTITION: self._sources(batch),
            model.TXN_ID: _stable_id(txn_id),
            v.STATUS: read["status"],
            v.EVENT_COUNT: read["event_count"],
            v.DATA_COLLECTIONS: read["data_collections"],
            v.SEQUENCE: batch.column("offset"),
            model.POSITION: _marker_position(txn_id),
            v.TIMESTAMP: batch.column(v.TIMESTAMP),
        }
        return ParsedMessages(pa.table(events | {name: batch.column(name) for name in keep}), malformed)

    def _sources(self, batch: pa.RecordBatch) -> pa.Array:
        if self.source is not None:
            return pa.repeat(pa.scalar(self.source), batch.num_rows)
        topics = batch.column("topic").dictionary_encode()
        return pc.replace_substring_regex(topics.dictionary, r"\.[^.]*$", "").take(topics.indices)


def _without_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column(VALUE)
    return batch.filter(values.is_valid()) if values.null_count else batch


def _without_malformed(
    messages: DebeziumChanges | DebeziumMarkers,
    description: str,
    read: pa.Table,
    batch: pa.RecordBatch,
    valid: Bools,
    good: Bools,
) -> tuple[pa.Table, pa.RecordBatch, int]:
    """What was read of the `good` messages, these messages, and the number of malformed ones; InputError under `fail`.

    `valid` is a mask of the messages of which something was read, `good` a mask of what was read.
    """
    good_rows = valid.copy()
    good_rows[valid] = good
    if good_rows.all():
        return read, batch, 0
    malformed = 0
    for number in np.flatnonzero(~good_rows).tolist():
        other_message = judge_other(batch.column(VALUE)[number], markers=messages.of_markers)
        malformed += not other_message.passed
        if not other_message.passed and messages.on_malformed == "fail":
            place = place_text(place_of(batch, number, messages.places))
            raise InputError(
                f"A value is not a Debezium {description} {other_message.what}{place}.", hint=other_message.hint
            )
    batch = batch.select([name for name in batch.schema.names if name != VALUE])  # long, and read already
    return read.filter(pa.array(good_rows[valid])), batch.filter(pa.array(good_rows)), malformed


def _stable_id(txn_id: pa.Array) -> pa.Array:
    # PostgreSQL's id is `number:LSN`, and the LSN differs between BEGIN and END: only the number joins them.
    numbers = pairs(txn_id)
    if numbers is not None:
        return numbers[0]
    has_lsn = pc.match_substring_regex(txn_id, _NUMBER_AND_LSN)
    if not pc.any(has_lsn).as_py():
        return txn_id
    return pc.if_else(has_lsn, pc.list_element(pc.split_pattern(txn_id, ":"), 0), txn_id)


def _row_position(lsn: pa.Array, file: pa.Array, pos: pa.Array) -> pa.Array:
    return pc.coalesce(lsn, _binlog(file, pos)) if lsn.null_count else lsn


def _marker_position(txn_id: pa.Array) -> pa.Array:
    """The LSN in PostgreSQL's id, or the place in the binlog that MySQL's id has without GTIDs; NULL otherwise."""
    numbers = pairs(txn_id)
    if numbers is not None and not txn_id.null_count:
        return pa.array(numbers[1])
    file, pos = _found(txn_id, r"file=(?P<found>[^,]+)"), _found(txn_id, r"pos=(?P<found>\d+)")
    return pc.coalesce(_whole(_found(txn_id, r"^\d+:(?P<found>\d+)$")), _binlog(file, _whole(pos)))


def _binlog(file: pa.Array, pos: pa.Array) -> pa.Array:
    files = file.dictionary_encode()
    number = _whole(_found(files.dictionary, r"\.(?P<found>\d+)$")).take(files.indices)
    number = pc.if_else(pc.less(number, _BINLOG_FILES), number, None)
    return pc.add(pc.multiply(number, _BINLOG_FILE), pos)


def _found(texts: pa.Array, pattern: str) -> pa.Array:
    """The group `found` of a pattern in each text; NULL where the pattern is not."""
    first_group: pa.Array = pc.extract_regex(texts, pattern).flatten()[0]
    return first_group


def _whole(digits: pa.Array) -> pa.Array:
    """Digits as numbers; NULL for NULL and a number of more than 64 bits."""
    try:
        return digits.cast(pa.int64())
    except pa.ArrowInvalid:
        numbers = [None if text is None or int(text) > _LARGEST else int(text) for text in digits.to_pylist()]
        return pa.array(numbers, pa.int64())
