"""Rows of a frame without positions, made in Python: for the data source, whose frames no JVM projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.assembler.rules.release import ReleasedRows
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.sink.typed.arrow import ArrowRoute

TABLE_OPTION: Final = "table"
_IDENTIFIER: Final = "starrocks.table.identifier"
_TEXTS: Final = (names.TABLE, names.ROW, names.OP, names.DATABASE)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Makes lane rows of a task's Arrow batches: from typed columns with `route`, else from table, row and op."""

    encoder: PayloadEncoder
    route: ArrowRoute | None = None

    def lane_rows(self, batch: pa.RecordBatch, lane: int, first: int) -> pa.RecordBatch:
        """The rows as TABLE, PAYLOAD and DELETED; errors name the Spark partition `lane`, and count from `first`."""
        size = batch.num_rows
        if self.route is None:
            table, row, database = (_texts(batch, name) for name in (names.TABLE, names.ROW, names.DATABASE))
        else:
            table = pa.array([self.route.table]).take(pa.array(np.zeros(size, np.int64)))
            row, database = self.route.rows(batch), pa.nulls(size, pa.string())
        rows = {
            model.POSITION: pa.array(np.arange(first, first + size)),
            model.TABLE: table,
            model.TRANSACTION_END: pa.nulls(size, pa.bool_()),
            model.ROW: row,
            model.OP: _texts(batch, names.OP),
            model.DATABASE: database,
        }
        part = ReleasedRows([f"(Spark partition {lane})"], np.array([size]), pa.table(rows))
        encoded = self.encoder.batch([part])
        column_names = (names.TABLE, names.PAYLOAD, names.DELETED)
        return encoded.select([name for name in encoded.schema.names if name in column_names])


def _texts(batch: pa.RecordBatch, name: str) -> pa.Array:
    has_column = name in batch.schema.names
    return batch.column(name).cast(pa.string()) if has_column else pa.nulls(batch.num_rows, pa.string())


def refuse_positions(schema: T.StructType, *, typed: bool) -> None:
    """Raise InputError for rows of source transactions.

    In a typed frame single such columns are columns of the table; only the whole set counts.
    """
    marks = [name for name in names.TRANSACTION_COLUMNS if name in schema.names]
    if len(marks) == len(names.TRANSACTION_COLUMNS) or (marks and not typed):
        raise InputError(
            f"The frame has columns of source transactions ({', '.join(marks)}), and the data source writes rows "
            "without positions only.",
            hint="Use StarRocksSink(options).write(frame), or drop these columns.",
        )


def table_of(texts: Mapping[str, str]) -> str | None:
    """The table of typed columns: the option `table`, or the one that the official connector reads."""
    return texts.get(TABLE_OPTION) or texts.get(_IDENTIFIER, "").partition(".")[2] or None


def check_texts(schema: T.StructType, *, typed: bool) -> None:
    """Raise InputError unless the frame has the columns that the sink itself reads, as texts."""
    missing = [] if typed else [name for name in (names.TABLE, names.ROW) if name not in schema.names]
    if missing:
        raise InputError(
            f"The frame lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}, and no option names "
            f"its table; it has {', '.join(schema.names) or 'none'}.",
            hint='Name the table of typed columns, .option("table", "orders"), or give rows as JSON texts in '
            "the columns table and row.",
            option=TABLE_OPTION,
        )
    for field in schema.fields:
        read = field.name in ((names.OP,) if typed else _TEXTS)
        if read and not isinstance(field.dataType, T.StringType):
            raise InputError(
                f"Column {field.name} of the frame is {field.dataType.simpleString()}, not string.",
                hint="Cast it before the write.",
            )
