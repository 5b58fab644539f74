"""Maxwell's messages: changes of rows, as units of their own or with their numbers in a source transaction.

The members are those of https://maxwells-daemon.io/dataformat and /bootstrapping. `xoffset` counts the rows of a
transaction from 0; its last row has `commit` and no xoffset. Maxwell reads a transaction whole before it sends the
first row, and after a crash goes on at the beginning of a transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.model import COMMIT, NUMBER, NUMBERED
from starrocks_txn_sink.assembler.verified.intake import SNAPSHOT
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.json_text import read_members
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    MALFORMED_HINT,
    POSITION,
    SOURCE_PARTITION,
    SOURCE_TIME,
    VALUE,
    OnMalformed,
    ParsedMessages,
    Reader,
)
from starrocks_txn_sink.sources.formats.row_changes import (
    DELETE,
    INSERT,
    UPDATE,
    ChangedRows,
    Indexes,
    Names,
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
        *((name, pa.string()) for name in ("database", "table", "type", "data", "old", "primary_key_columns")),
        *((name, pa.string()) for name in ("commit", "reason")),
        *((name, pa.int64()) for name in ("ts", "xid", "xoffset")),
    ]
)
_OPS: Final[Mapping[str, str]] = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "bootstrap-insert": SNAPSHOT}
_PASSED: Final = r"^(?:(?:table|database)-[a-z]+|bootstrap-(?:start|complete))$"
"""The types of messages without a row: DDL, and the ends of a bootstrap."""
_VALUE: Final = r'([^\\])":\s*(?:"(?:[^"\\]|\\.)*"|[^,{}\[\]"]+)'
"""A member's value in a message's key, which has no nested values of its own, behind the end of its name."""
_PK, _WITHOUT_KEY = "pk.", "_uuid"
_CONNECTOR: Final = "maxwell"  # messages name none


def is_maxwell(document: Mapping[str, Any]) -> bool:
    """Whether a message with these members is a change of a row of Maxwell's."""
    is_row = document.get("type") in _OPS and isinstance(document.get("data"), dict) and "ts" in document
    return is_row and bool(document.get("database") and document.get("table"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxwellMessages:
    """The changes in Maxwell's messages; tombstones, DDL and the ends of a bootstrap are passed over.

    With `whole` the events have NUMBER and COMMIT, for `assembler.rules.numbered`. A message's key, or its
    `primary_key_columns`, has the names of key columns: only with them an update shows that it changes a key.
    """

    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = True

    tables: TableMapping
    whole: bool = False
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"
    source_time: bool = False

    @property
    def columns(self) -> Mapping[str, str]:
        """Those of Kafka's source; the offset is the position, the key has the names of key columns."""
        return {VALUE: "value", KEY: "key", SOURCE_PARTITION: "partition", POSITION: "offset"}

    @property
    def events(self) -> pa.Schema:
        """Those of `events_schema`, an event a row; with `whole` also NUMBERED."""
        fields = events_schema(source_time=self.source_time)
        return pa.schema([*fields, *NUMBERED]) if self.whole else fields

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`); an update that changes its key has a delete in front of it.

        Raises InputError also for an update whose key nothing names, and with `whole` for a row without a number.
        """
        batch = batch.filter(batch.column(VALUE).is_valid())
        read, valid = read_members(batch.column(VALUE), _MEMBERS)
        op = read["type"].combine_chunks()
        op = pa.array(_OPS.values()).take(pc.index_in(op, value_set=pa.array(_OPS)))
        message_keys = batch.column(KEY).filter(pa.array(valid))
        keys, names = _keys(read, op, message_keys)
        good = valid.copy()
        good[valid] = _are_changes(read, op)
        passed = ~good
        passed[valid] &= mask_of(pc.match_substring_regex(read["type"].combine_chunks(), _PASSED))
        passed &= valid
        malformed = ~good & ~passed
        if malformed.any() and self.on_malformed == "fail":
            refuse(batch, malformed, *_MALFORMED)
        chosen = pa.array(good[valid])
        read, op, keys, batch = read.filter(chosen), op.filter(chosen), keys[good[valid]], batch.filter(pa.array(good))
        message_keys = message_keys.filter(chosen)
        unknown = mask_of(pc.and_(pc.equal(op, UPDATE), read["old"].combine_chunks().is_valid())) & (keys < 0)
        if unknown.any():
            refuse(batch, unknown, *_NO_KEY)
        if self.whole:
            self._refuse_unnumbered(batch, read, op)
        rows = ChangedRows(
            np.arange(len(op)), op, read["data"].combine_chunks(), read["old"].combine_chunks(), keys, names
        )
        events = events_of(rows, batch, read, self.tables, self._columns(read, op), keep).select(
            [*self.events.names, *keep]
        )
        return ParsedMessages(events, int(malformed.sum()), keys=self._source_keys(read, keys, names, message_keys))

    def _source_keys(self, read: pa.Table, keys: Indexes, names: Names, message_keys: pa.Array) -> frozenset[SourceKey]:
        """The keys of the source's tables: those that messages name, and that of each table's first other message."""
        collections = collections_of(read)
        has_key = keys >= 0
        groups = written_groups(
            {"collection": collections.filter(pa.array(has_key)), "key": pa.array(keys[has_key])}, self.tables
        )
        keys_of_groups = [(row["collection"], row["table"], names[row["key"]]) for row in groups]
        rest = np.flatnonzero(~has_key & mask_of(message_keys.is_valid()))
        first = np.unique(collections.take(pa.array(rest)).dictionary_encode().indices, return_index=True)[1]
        columns = {
            name: column.take(pa.array(rest[first]))
            for name, column in (("collection", collections), ("key", message_keys))
        }
        of_messages = written_groups({**columns, "key": _columns_of(columns["key"])}, self.tables)
        keys_of_groups += [
            (row["collection"], row["table"], names_in(row["key"]) or ()) for row in of_messages if row["key"]
        ]
        return frozenset((_CONNECTOR, *found_key) for found_key in keys_of_groups)

    def _columns(self, read: pa.Table, op: pa.Array) -> dict[str, pa.Array]:
        """The columns of events that each row of a message has."""
        columns = {model.TXN_ID: read["xid"].combine_chunks().cast(pa.string())}
        if self.source_time:
            columns[SOURCE_TIME] = pc.multiply(read["ts"].combine_chunks(), 1000)
        if self.whole:
            commit = pc.or_(_is_commit(read), pc.equal(op, SNAPSHOT))
            columns |= {NUMBER: read["xoffset"].combine_chunks(), COMMIT: commit}
        return columns

    def _refuse_unnumbered(self, batch: pa.RecordBatch, read: pa.Table, op: pa.Array) -> None:
        numbered = pc.or_(read["xoffset"].combine_chunks().is_valid(), pc.equal(op, SNAPSHOT))
        unnumbered = ~mask_of(pc.or_(numbered, _is_commit(read)))
        if unnumbered.any():
            refuse(batch, unnumbered, *_NO_NUMBER)


_MALFORMED: Final = (
    "A value is not a message of Maxwell's about a row (not exactly one JSON object, a field of another type, an "
    "unknown type, no data, or a row that Maxwell could not send)",
    "Encrypted rows are not read; leave the topic of Maxwell's dead letters out. " + MALFORMED_HINT,
)
_NO_KEY: Final = (
    "An update names no columns of a key, neither in its value nor in Kafka's key, so a changed key would not be seen,",
    "Set output_primary_key_columns=true at Maxwell, or leave Kafka's keys in the messages.",
)
_NO_NUMBER: Final = (
    "A row has neither xoffset nor commit, so nothing shows whether its transaction is whole,",
    'Set output_commit_info=true and output_xoffset=true at Maxwell, or set transactions="none".',
)


def _is_commit(read: pa.Table) -> pa.Array:
    return pc.fill_null(pc.equal(read["commit"].combine_chunks(), "true"), False)


def _are_changes(read: pa.Table, op: pa.Array) -> Bools:
    """A mask of the messages with all that a change has."""
    named = pc.and_(read["database"].combine_chunks().is_valid(), read["table"].combine_chunks().is_valid())
    rows = pc.starts_with(read["data"].combine_chunks(), "{")
    sent = read["reason"].combine_chunks().is_null()
    return mask_of(pc.and_(pc.and_(op.is_valid(), named), pc.and_(rows, sent)))


def _keys(read: pa.Table, op: pa.Array, keys: pa.Array) -> tuple[Indexes, Names]:
    """The key columns of each update, as far as they are known (`ChangedRows`)."""
    columns = read["primary_key_columns"].combine_chunks()
    updates = pc.and_(pc.equal(op, UPDATE), pc.and_(read["old"].combine_chunks().is_valid(), columns.is_null()))
    updates = pc.and_(pc.fill_null(updates, False), keys.is_valid())
    if updates.true_count:
        columns = pc.replace_with_mask(columns, updates, _columns_of(keys.filter(updates)))
    return keys_of(columns)


def _columns_of(keys: pa.Array) -> pa.Array:
    """The names of key columns in keys of messages, as JSON arrays; NULL for other keys.

    Keys of a table differ in their values alone, so Python reads each form of a key once.
    """
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.nulls(len(keys), pa.string())
    forms = pc.replace_substring_regex(texts, _VALUE, r'\1":0').dictionary_encode()
    columns = pa.array([_columns_in(form) for form in forms.dictionary.to_pylist()], pa.string()).take(forms.indices)
    if columns.null_count:  # a name or a text with a colon and more
        rest = [_columns_in(text) for text in texts.filter(columns.is_null()).to_pylist()]
        columns = pc.replace_with_mask(columns, columns.is_null(), pa.array(rest, pa.string()))
    return columns


def _columns_in(key: str) -> str | None:
    """The names of key columns in a key, of either `kafka_key_format`; None for another key."""
    try:
        content: Any = json.loads(key)
        if isinstance(content, dict):
            names = [name.removeprefix(_PK) for name in content if name.startswith(_PK)]
            return json.dumps(names) if names or _WITHOUT_KEY in content else None
        _, _, columns = content
        return json.dumps([name for column in columns for name in column])
    except (ValueError, TypeError):
        return None
