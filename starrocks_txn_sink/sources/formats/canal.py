"""Canal's flat messages: the rows of one event of the binlog, each message a unit of its own.

The members are those of Canal's `FlatMessage`, as `MQMessageUtils.messageConverter` fills them
(https://github.com/alibaba/canal): `data` has the rows (of a delete those before it), `old` the former values of the
columns that an update has changed, and all values are texts. Begin and end of a transaction are left out, so nothing
says which message is the last of its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.compiled.objects import LIST_TEXT
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.canal_types import schema_of_types
from starrocks_txn_sink.sources.formats.json_arrays import objects_of
from starrocks_txn_sink.sources.formats.json_text import read_members
from starrocks_txn_sink.sources.formats.raw_format import (
    MALFORMED_HINT,
    POSITION,
    SOURCE_PARTITION,
    SOURCE_TIME,
    VALUE,
    OnMalformed,
    OnTruncate,
    ParsedMessages,
    Reader,
)
from starrocks_txn_sink.sources.formats.row_changes import (
    DELETE,
    INSERT,
    UPDATE,
    ChangedRows,
    collections_of,
    events_of,
    events_schema,
    keys_of,
    mask_of,
    names_in,
    refuse,
    written_groups,
)
from starrocks_txn_sink.sources.formats.tables import TableMapping

_MEMBERS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("database", "table", "type", "isDdl", "gtid", "mysqlType", "_tidb")),
        *((name, LIST_TEXT) for name in ("data", "old", "pkNames")),
        ("es", pa.int64()),
    ]
)
_OPS: Final[Mapping[str, str]] = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
_TRUNCATE: Final = "TRUNCATE"
_WATERMARK: Final = "TIDB_WATERMARK"  # of TiCDC in Canal's format, with enable-tidb-extension: a time, and no row
_KEY_ALONE: Final = r'"(onlyHandleKey"\s*:\s*true|claimCheckLocation"\s*:\s*"[^"])'  # in `_tidb`: the row was too long
_NO_KEY: Final = "[]"
_CONNECTOR: Final = "canal"  # flat messages name none

_MALFORMED: Final = (
    "A value is not a flat message of Canal's about rows (not exactly one JSON object, a field of another type, an "
    "unknown type, or no data)",
    "Set canal.mq.flatMessage=true at Canal, and at MySQL binlog_format=ROW, because a statement has no rows, and "
    "binlog_row_image=FULL. " + MALFORMED_HINT,
)
_CUT: Final = (
    "A message of TiCDC's has only the key of its row, because the whole row is longer than max-message-bytes",
    "Raise max-message-bytes of the changefeed, and max.message.bytes of the topic, in place of "
    "large-message-handle-option. " + MALFORMED_HINT,
)
_EMPTIED: Final = (
    "The source has emptied a table with TRUNCATE, which no load can do in StarRocks,",
    'Pass on_truncate="ignore" until the query is behind it, then truncate the table in StarRocks and load it again '
    "from the source.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanalMessages:
    """The changes in Canal's flat messages; null messages, watermarks and DDL are passed over, but a TRUNCATE."""

    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = True

    tables: TableMapping
    on_malformed: OnMalformed = "fail"
    on_truncate: OnTruncate = "fail"
    reader: Reader = "spark"
    source_time: bool = False

    @property
    def columns(self) -> Mapping[str, str]:
        """Those of Kafka's source; the offset is the position of all rows of a message."""
        return {VALUE: "value", SOURCE_PARTITION: "partition", POSITION: "offset"}

    @property
    def events(self) -> pa.Schema:
        """Those of `events_schema`: an event a row, with the GTID, if there is one, as transaction id."""
        return events_schema(source_time=self.source_time)

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`); an update that changes its key has a delete in front of it.

        Raises InputError for a TRUNCATE of a table that is written, unless it is to be ignored.
        """
        batch = batch.filter(batch.column(VALUE).is_valid())
        read, valid = read_members(batch.column(VALUE), _MEMBERS)
        batch_read = batch.filter(pa.array(valid))
        ddl = mask_of(pc.equal(_column(read, "isDdl"), "true"))
        truncates = self._truncates(read, batch_read, ddl & mask_of(pc.equal(_column(read, "type"), _TRUNCATE)))
        passed = ddl | mask_of(pc.equal(_column(read, "type"), _WATERMARK))
        cut = _are_cut(read)
        changes = _are_changes(read) & ~ddl & ~cut
        rows, sound = _rows_of(read.filter(pa.array(changes)))
        good = changes.copy()
        good[changes] = sound
        malformed = ~valid
        malformed[valid] = ~(good | passed)
        if malformed.any() and self.on_malformed == "fail":
            is_cut = np.zeros(len(valid), bool)
            is_cut[valid] = cut
            refuse(batch, malformed, *(_CUT if is_cut[malformed.argmax()] else _MALFORMED))
        chosen = pa.array(good)
        read, batch = read.filter(chosen), batch_read.filter(chosen)
        gtid = _column(read, "gtid")
        columns = {model.TXN_ID: pc.if_else(pc.equal(gtid, ""), pa.scalar(None, gtid.type), gtid)}
        if self.source_time:
            columns[SOURCE_TIME] = _column(read, "es")
        events = events_of(rows, batch, read, self.tables, columns, keep).select([*self.events.names, *keep])
        schemas, keys = self._described(read)
        return ParsedMessages(events, int(malformed.sum()), schemas, truncates, keys=keys)

    def _described(self, read: pa.Table) -> tuple[Mapping[str, Sequence[str]], frozenset[SourceKey]]:
        """The schemas of each StarRocks table by `mysqlType`, and the keys of the source's tables by `pkNames`."""
        keys_given = _column(read, "pkNames").cast(pa.string())
        columns = {"collection": collections_of(read), "types": _column(read, "mysqlType"), "key": keys_given}
        schemas, keys = dict[str, list[str]](), set[SourceKey]()
        for row in written_groups(columns, self.tables):
            schema = schema_of_types(row["types"]) if row["types"] is not None else None
            if schema is not None:
                schemas[row["table"]] = list(dict.fromkeys([*schemas.get(row["table"], ()), schema]))
            keys.add((_CONNECTOR, row["collection"], row["table"], names_in(row["key"] or _NO_KEY) or ()))
        return schemas, frozenset(keys)

    def _truncates(self, read: pa.Table, batch: pa.RecordBatch, truncates: Bools) -> Mapping[str, int]:
        """How often the source has emptied each table that is written; InputError for the first time under `fail`."""
        if not truncates.any():
            return {}
        by_rule, target = self.tables.tables_of(collections_of(read.filter(pa.array(truncates))))
        has_table = mask_of(pc.and_(pc.is_valid(by_rule), pc.is_valid(target)))
        truncates = truncates.copy()
        truncates[truncates] = has_table
        if truncates.any() and self.on_truncate == "fail":
            refuse(batch, truncates, *_EMPTIED)
        return dict(Counter(target.filter(pa.array(has_table)).to_pylist()))


def _column(read: pa.Table, name: str) -> pa.Array:
    return read[name].combine_chunks()


def _op(read: pa.Table) -> pa.Array:
    return pa.array(_OPS.values()).take(pc.index_in(_column(read, "type"), value_set=pa.array(_OPS)))


def _are_cut(read: pa.Table) -> Bools:
    """A mask of TiCDC's inserts and updates without the whole row; a delete needs the key alone."""
    short = mask_of(pc.match_substring_regex(_column(read, "_tidb"), _KEY_ALONE))
    return short & ~mask_of(pc.equal(_column(read, "type"), "DELETE"))


def _are_changes(read: pa.Table) -> Bools:
    """A mask of the messages with the members of a change."""
    op = _op(read)
    named = pc.and_(pc.is_valid(_column(read, "database")), pc.is_valid(_column(read, "table")))
    rows = pc.and_(
        pc.is_valid(_column(read, "data")), pc.or_(pc.not_equal(op, UPDATE), pc.is_valid(_column(read, "old")))
    )
    return mask_of(pc.and_(pc.and_(pc.is_valid(op), named), rows))


def _rows_of(read: pa.Table) -> tuple[ChangedRows, Bools]:
    """The rows of changes, and a mask of the messages that are sound; the rows are those of sound messages."""
    op = _op(read)
    row, counts, sound = objects_of(_column(read, "data").cast(pa.string()))
    updates = mask_of(pc.equal(op, UPDATE))
    old, old_counts, old_sound = objects_of(_column(read, "old").filter(pa.array(updates)).cast(pa.string()))
    sound[updates] &= old_sound & (old_counts == counts[updates])
    old = old.filter(pa.array(np.repeat(sound[updates], old_counts)))
    row = row.filter(pa.array(np.repeat(sound, counts)))
    op, counts, updates = op.filter(pa.array(sound)), counts[sound], updates[sound]
    message = np.repeat(np.arange(len(counts)), counts)
    keys, names = keys_of(_column(read, "pkNames").cast(pa.string()).fill_null(_NO_KEY))
    all_old = pc.replace_with_mask(pa.nulls(len(row), pa.string()), pa.array(updates[message]), old)
    return ChangedRows(message, op.take(pa.array(message)), row, all_old, keys[sound][message], names), sound
