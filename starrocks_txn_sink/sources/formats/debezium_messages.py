"""Debezium's messages of all topics of a connector: changes and transaction markers in one raw format, for a lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.verified import intake as v
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.debezium import DebeziumChanges, DebeziumMarkers
from starrocks_txn_sink.sources.formats.json_text import read_members
from starrocks_txn_sink.sources.formats.raw_format import (
    SOURCE_PARTITION,
    VALUE,
    OnMalformed,
    ParsedMessages,
    RawFormat,
    Reader,
)

TOPIC: Final = "topic"

_OPERATION: Final = pa.schema([("op", pa.string())])
_FEW_RUNS: Final = 6  # each costs a millisecond, and a copy of all messages several
_EVENTS: Final = pa.schema([(SOURCE_PARTITION, pa.string()), *v.EVENTS])


@dataclass(frozen=True, slots=True)
class DebeziumMessages:
    """The messages of a connector's topics: `markers` of the topics whose last part is `transaction_topic`, `changes`
    of the others. A table may have the same name, so a value with an operation is a change in any topic.

    The events are changes and markers, each in their order: the rules of `assembler.verified` take them in any. With
    `markers` None the events are changes alone, in the order of their messages.
    """

    changes: DebeziumChanges
    markers: DebeziumMarkers | None
    transaction_topic: str = "transaction"

    @property
    def columns(self) -> Mapping[str, str]:
        """Those of changes and markers, which name a message in the same way."""
        return {**(self.markers.columns if self.markers else {}), **self.changes.columns}

    @property
    def events(self) -> pa.Schema:
        """Those of changes and markers; a marker has NULL in those of a row, and a change in those of counts."""
        if self.markers is None:
            return self.changes.events
        extra = [field for field in self.changes.events if field.name not in _EVENTS.names]
        return pa.schema([*_EVENTS, *extra])

    @property
    def on_malformed(self) -> OnMalformed:
        """What changes do; `markers` are made with the same."""
        return self.changes.on_malformed

    @property
    def keeps_unchanged(self) -> bool:
        """What changes do: a marker has no row."""
        return self.changes.keeps_unchanged

    @property
    def encodes_bytes(self) -> bool:
        """What changes do: a marker has no bytes."""
        return self.changes.encodes_bytes

    @property
    def reader(self) -> Reader:
        """That of changes: all topics have one reader."""
        return self.changes.reader

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch (`RawFormat.parse`)."""
        is_marker = self._is_marker(batch)
        if self.markers is None:
            return self.changes.parse(batch if is_marker is None else batch.filter(pa.array(~is_marker)), keep)
        if is_marker is None:
            return self._whole(self.changes, batch, keep)
        bounds = [0, *(np.flatnonzero(np.diff(is_marker)) + 1).tolist(), len(is_marker)]
        if len(bounds) <= _FEW_RUNS:  # as a broker sends them: nothing is copied
            runs = [(bool(is_marker[start]), batch.slice(start, stop - start)) for start, stop in pairwise(bounds)]
        else:
            runs = [(kind, batch.filter(pa.array(is_marker == kind))) for kind in (False, True)]
        in_order = sorted(runs, key=itemgetter(0))
        return ParsedMessages.joined(
            [self._whole(self.markers if kind else self.changes, run, keep) for kind, run in in_order]
        )

    def _is_marker(self, batch: pa.RecordBatch) -> Bools | None:
        """A mask of the markers; None without any."""
        topics = batch.column(TOPIC).dictionary_encode()
        is_marker = [name.rpartition(".")[2] == self.transaction_topic for name in topics.dictionary.to_pylist()]
        mask: Bools = np.array(is_marker, dtype=bool)[topics.indices.to_numpy()]
        if not mask.any():
            return None
        read, valid = read_members(batch.column(VALUE).filter(pa.array(mask)), _OPERATION, "payload")
        changes = valid.copy()
        changes[valid] = read["op"].is_valid().to_numpy()
        mask[mask] = ~changes
        return mask if mask.any() else None

    def _whole(self, messages: RawFormat, batch: pa.RecordBatch, keep: tuple[str, ...]) -> ParsedMessages:
        """The events of a batch in all columns of `events`."""
        parsed, fields = messages.parse(batch, keep), self.events
        count, names = parsed.events.num_rows, parsed.events.column_names
        columns = [
            parsed.events[field.name].cast(field.type) if field.name in names else pa.nulls(count, field.type)
            for field in fields
        ]
        columns_left = [parsed.events[name] for name in keep]
        return replace(parsed, events=pa.table([*columns, *columns_left], [*fields.names, *keep]))
