"""Typed columns as JSON rows, made over Arrow in a task: for frames that no projection of the sink has touched.

The types are judged by `typed.fit`, as everywhere; values are written, and refused, as the JVM does (`TypedRoute.row`).
Only flat columns and JSON bodies are written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.columns import DELETES, OP
from starrocks_txn_sink.sink.typed.fit import NEGATIVE, NOT_FINITE, NOT_UTF8, OUT_OF_YEARS, natural
from starrocks_txn_sink.sink.typed.route import NOT_NULL, TypedField, TypedRoute
from starrocks_txn_sink.sink.typed.target import TargetColumn, TargetType
from starrocks_txn_sink.spark_version import VariantType

_NESTED = (T.ArrayType, T.MapType, T.StructType, VariantType)
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")
_MICROSECONDS = "%Y-%m-%d %H:%M:%S"  # with six digits behind the seconds of an Arrow timestamp in microseconds


class _Fault(Exception):
    """The end of a sentence about a value that cannot be written."""


@dataclass(frozen=True, slots=True)
class ArrowField:
    """One column of a row: its key in the JSON object, the frame's column, and the type that it is written into.

    `field.faults` has no say here but for NOT_NULL; with `filled` a deleted row may be NULL.
    """

    field: TypedField
    target: TargetType
    zone: str | None = None
    filled: bool = False

    def values(self, column: pa.Array, deleted: pa.Array | None) -> list[Any]:
        """The values as orjson takes them; raises _Fault for one that cannot be written."""
        if NOT_NULL in self.field.faults and column.null_count:
            missing = column.is_null()
            if self.filled and deleted is not None:
                missing = pc.and_(missing, pc.invert(deleted))
            if pc.any(missing).as_py():
                raise _Fault(NOT_NULL.text)
        return self._written(column)

    def _written(self, column: pa.Array) -> list[Any]:
        kind = column.type
        if pa.types.is_boolean(kind):
            return self._list(column.cast(pa.int8()) if self.target.name in _INTEGERS else column)
        if pa.types.is_integer(kind):
            return self._integers(column)
        if pa.types.is_floating(kind):
            if not pc.all(pc.is_finite(column)).as_py() and column.null_count < len(column):
                raise _Fault(NOT_FINITE)
            return self._list(column)
        if pa.types.is_decimal(kind):
            return [None if value is None else format(value, "f") for value in self._list(column)]
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return self._times(column)
        if pa.types.is_null(kind):
            return self._list(column)
        self._check_length(column)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return [None if value is None else value.hex().upper() for value in self._list(column)]
        try:
            return self._list(column)
        except UnicodeDecodeError:
            raise _Fault(NOT_UTF8) from None

    def _integers(self, column: pa.Array) -> list[Any]:
        if self.field.fit.function is None:
            return self._list(column)
        if self.target.name == "BITMAP" and pc.any(pc.less(column, 0)).as_py():
            raise _Fault(NEGATIVE)
        return [None if value is None else str(value) for value in self._list(column)]

    def _times(self, column: pa.Array) -> list[Any]:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None and self.zone is not None:
            column = column.cast(pa.timestamp("us", self.zone))
        years = pc.year(column)
        if pc.any(pc.or_(pc.less(years, 1), pc.greater(years, 9999))).as_py():
            raise _Fault(OUT_OF_YEARS)
        if pa.types.is_date(column.type):
            return [None if value is None else value.isoformat() for value in self._list(column)]
        return self._list(pc.strftime(column, format=_MICROSECONDS))

    def _check_length(self, column: pa.Array) -> None:
        length = self.target.length
        if length is not None and pc.any(pc.greater(pc.binary_length(column), length)).as_py():
            raise _Fault(f"is longer than {length} bytes")

    @staticmethod
    def _list(column: pa.Array) -> list[Any]:
        values: list[Any] = column.to_pylist()
        return values


@dataclass(frozen=True, slots=True)
class ArrowRoute:
    """A route whose rows are made over Arrow."""

    table: str
    fields: tuple[ArrowField, ...]

    @classmethod
    def of(
        cls,
        route: TypedRoute,
        frame: T.StructType,
        columns: Sequence[TargetColumn] | None,
        *,
        zone: str | None,
        filled: Sequence[str] = (),
    ) -> ArrowRoute:
        """`route` for `frame` and the table's `columns`; a delete may be NULL in the keys `filled`.

        Raises InputError for columns that only the JVM makes JSON of.
        """
        known = {column.name.lower(): column.type for column in columns or ()}
        fields, complaints = [], []
        for field in route.fields:
            kind = frame[field.source].dataType
            target = known.get(field.name.lower()) or natural(kind)
            if isinstance(kind, _NESTED) or (isinstance(kind, T.StringType) and target.name == "JSON"):
                complaints.append(f"{field.name} ({kind.simpleString()} into {target})")
            fields.append(ArrowField(field, target, zone, field.key in filled))
        if route.csv:
            complaints.append("rows as CSV")
        if complaints:
            raise InputError(
                f"A frame as it is cannot be written into {route.table}: {', '.join(complaints)} need the JVM.",
                hint=f'Write lane_partitioned(frame, options, routes=[TableRoute("{route.table}", columns)]), or use '
                "StarRocksSink.",
                table=route.table,
            )
        return cls(route.table, tuple(fields))

    def rows(self, batch: pa.RecordBatch) -> pa.Array:
        """The rows of `batch` as JSON texts. Raises InputError with the column of a value that cannot be written."""
        deleted = None
        if OP in batch.schema.names:
            op = pc.utf8_lower(batch.column(OP).cast(pa.string()))
            deleted = pc.fill_null(pc.is_in(op, value_set=pa.array(DELETES)), False)
        columns, keys = [], [each.field.key for each in self.fields]
        for each in self.fields:
            try:
                columns.append(each.values(batch.column(each.field.source), deleted))
            except (_Fault, pa.ArrowInvalid) as fault:
                raise InputError(
                    f"Column {each.field.name} of table {self.table} {_sentence(fault)}.",
                    hint="Correct the value, or filter such rows out before the write.",
                    table=self.table,
                ) from None
        texts = [orjson.dumps(dict(zip(keys, row, strict=True))).decode() for row in zip(*columns, strict=True)]
        return pa.array(texts, pa.string())


def _sentence(fault: Exception) -> str:
    return str(fault) if isinstance(fault, _Fault) else f"cannot be read ({type(fault).__name__})"
