"""Payloads of released rows, encoded with Arrow for an assembling lane; equal to those of `sink.projection` (JVM).

Raises InputError for another database, an unknown `op`, and a delete from a table without primary key; the error names
the place, never the row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.by_rules import RowRules
from starrocks_txn_sink.assembler.rules.intake import one_array, value_set
from starrocks_txn_sink.assembler.rules.moved import without_former
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.places import in_kafka, with_partitions

_BATCH_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class PayloadEncoder:
    """Encodes rows of tables in `database`; `keyless` tables have no primary key, so they take no deletes.

    A delete gets a placeholder for each column in `placeholders` that it lacks. Rows follow their `rules`. The query
    reads the `topic` alone, unless that is "".
    """

    database: str
    keyless: tuple[str, ...] = ()
    placeholders: columns.Placeholders = field(default_factory=dict)
    rules: RowRules = RowRules()  # noqa: RUF009 - frozen
    topic: str = ""
    moving: frozenset[str] = frozenset()

    def batches(self, released: Iterable[ReleasedRows]) -> Iterator[pa.RecordBatch]:
        """Yield batches of lane rows; joins small parts, because each batch costs milliseconds."""
        waiting: list[ReleasedRows] = []
        size = 0
        for part in released:
            if waiting and (size > _BATCH_BYTES or waiting[-1].rows.schema != part.rows.schema):
                yield self.batch(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += part.rows.nbytes
        if waiting:
            yield self.batch(waiting)

    def batch(self, parts: Sequence[ReleasedRows]) -> pa.RecordBatch:
        """One batch of all `parts`, with the columns of `rows.segments`."""
        rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
        names = pa.array([name for part in parts for name in part.names], pa.string())
        counts = np.concatenate([part.counts for part in parts])
        of_row = np.repeat(np.arange(len(names)), counts)
        partitions, rows = names.take(pa.array(of_row)), with_partitions(rows, names.to_pylist(), of_row, self.topic)
        databases = rows[model.DATABASE]
        if databases.null_count < rows.num_rows:
            other_database = columns.other_database(self.database)
            _refuse(pc.not_equal(databases, self.database), other_database, databases, partitions, rows)
        rows, partitions = without_former(rows, partitions, self.moving)
        if self.rules.rules.rules:
            rows, partitions = self.rules.apply(rows, partitions)
        payload, deleted = self._payload(partitions, rows)
        batch = {
            columns.PARTITION: partitions,
            columns.POSITION: one_array(rows[model.POSITION]),
            columns.TABLE: one_array(rows[model.TABLE]),
            columns.TRANSACTION_END: one_array(rows[model.TRANSACTION_END]),
            columns.PAYLOAD: payload,
        }
        further = (columns.EVENT_TIME, columns.OFFSET, columns.TOPIC_PARTITION)
        batch |= {name: one_array(rows[name]) for name in further if name in rows.schema.names}
        if deleted is not None:
            batch[columns.DELETED] = deleted
        return pa.RecordBatch.from_pydict(batch)

    def _payload(self, partitions: pa.Array, rows: pa.Table) -> tuple[pa.Array, pa.Array | None]:
        """The payloads, and the mask of deletes (None if there are none)."""
        row, op = one_array(rows[model.ROW]), one_array(rows[model.OP])
        upsert = pc.binary_join_element_wise(SEPARATOR, row, "")
        kinds = None if op.null_count == len(op) else _lower_case_values(op)
        if kinds is None or pc.all(pc.is_in(kinds, value_set=value_set(*columns.UPSERTS))).as_py():
            return upsert, None
        deleted = self._deleted(partitions, rows, op)
        row, fields = self._filled(one_array(rows[model.TABLE]), row, deleted)
        tail = pc.utf8_slice_codeunits(pc.utf8_ltrim(row, " "), 1)
        comma = pc.if_else(pc.starts_with(pc.utf8_ltrim(tail, " "), "}"), "", ",")
        delete = pc.binary_join_element_wise(SEPARATOR + columns.DELETING, fields, comma, tail, "")
        return pc.if_else(deleted, delete, upsert), deleted

    def _filled(self, table: pa.Array, row: pa.Array, deleted: pa.Array) -> tuple[pa.Array, pa.Array | str]:
        """The rows with placeholders in place of a delete's NULLs, and the text of the fields that a delete lacks."""
        missing: pa.Array | str = ""
        for name, placeholders in self.placeholders.items():
            of_table = pc.and_(deleted, pc.fill_null(pc.equal(table, name), False))
            deletes = row.filter(of_table)
            if not len(deletes):
                continue
            texts = [
                pc.if_else(pc.match_substring_regex(deletes, pattern), "", text)
                for pattern, text in columns.missing_fields(placeholders)
            ]
            for pattern, value in columns.null_fields(placeholders):
                deletes = pc.replace_substring_regex(deletes, pattern, rf"\1{value}")
            missing = pa.nulls(len(row), row.type).fill_null("") if isinstance(missing, str) else missing
            missing = pc.replace_with_mask(missing, of_table, pc.binary_join_element_wise(*texts, "").cast(row.type))
            row = pc.replace_with_mask(row, of_table, deletes)
        return row, missing

    def _deleted(self, partitions: pa.Array, rows: pa.Table, op: pa.Array) -> pa.Array:
        kinds = pc.utf8_lower(op)
        deleted = pc.fill_null(pc.is_in(kinds, value_set=value_set(*columns.DELETES)), False)
        upserts = pc.is_in(kinds, value_set=value_set(*columns.UPSERTS))
        unknown = pc.invert(pc.or_(op.is_null(), pc.or_(upserts, deleted)))
        _refuse(unknown, columns.UNKNOWN_OP, op, partitions, rows)
        if self.keyless:
            table = one_array(rows[model.TABLE])
            keyless = pc.and_(deleted, pc.fill_null(pc.is_in(table, value_set=pa.array(self.keyless)), False))
            _refuse(keyless, columns.NO_PRIMARY_KEY, table, partitions, rows, columns.KEYLESS_ADVICE)
        return deleted


def _lower_case_values(op: pa.Array) -> pa.Array:
    """The distinct values of `op` in lower case: there are few, so this avoids a pass over all rows."""
    return pc.utf8_lower(pc.drop_null(pc.unique(op)))


def _refuse(
    wrong: pa.Array, texts: tuple[str, str], values: pa.Array, partitions: pa.Array, rows: pa.Table, advice: str = ""
) -> None:
    """Raise InputError for the first of the rows `wrong`; its value stands between the two `texts`."""
    if pc.any(wrong).as_py():
        at = pc.index(wrong, True).as_py()
        place = f"source partition {partitions[at].as_py()}, position {rows[model.POSITION][at].as_py()}"
        kafka = in_kafka(rows, at)
        raise InputError(
            f"{columns.REFUSED}{values[at].as_py().join(texts)} at {place}{kafka and ', '}{kafka}.",
            hint=advice or "Correct the source, or filter such events out before the sink.",
        )
