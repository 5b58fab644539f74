"""Typed columns as JSON rows, made over Arrow in a task: for frames that the JVM has not projected (`plain_frames`).

`typed.fit` judges the types, as for all other frames. This module writes and refuses values as `TypedRoute.row` does in
the JVM. It writes only flat columns, and only JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.rows.columns import DELETES, OP
from starrocks_txn_sink.rows.json_objects import checked_text
from starrocks_txn_sink.rows.segments import layout
from starrocks_txn_sink.rows.target import BITS, TargetType
from starrocks_txn_sink.sink.typed.fit import NEGATIVE, NOT_FINITE, NOT_UTF8, OUT_OF_YEARS, natural
from starrocks_txn_sink.sink.typed.route import NOT_NULL, TypedField
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.spark_version import VariantType

_NESTED = (T.ArrayType, T.MapType, T.StructType, VariantType)


class _Fault(Exception):
    """The end of a sentence about a value that cannot be written."""


@dataclass(frozen=True, slots=True)
class ArrowField:
    """One column of a row: the `field` of its route, and the type of the table's column.

    Of `field.faults` only NOT_NULL counts here: the others are conditions of the JVM. With `filled` a deleted row may
    be NULL in the column, because the column gets a placeholder later.
    """

    field: TypedField
    target: TargetType
    zone: str | None = None
    filled: bool = False

    def texts(self, column: pa.Array, deleted: pa.Array | None) -> pa.Array:
        """Each value as JSON text; raises _Fault for one that cannot be written."""
        if NOT_NULL in self.field.faults and column.null_count:
            missing = column.is_null()
            if self.filled and deleted is not None:
                missing = pc.and_(missing, pc.invert(deleted))
            if pc.any(missing).as_py():
                raise _Fault(NOT_NULL.text)
        return pc.fill_null(self._written(column), "null")

    def _written(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_boolean(kind):
            return (column.cast(pa.int8()) if self.target.name in BITS else column).cast(pa.string())
        if pa.types.is_integer(kind):
            return self._integers(column)
        if pa.types.is_floating(kind):
            return self._floats(column)
        if pa.types.is_decimal(kind):
            return _quoted(_decimals(column))
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return _quoted(self._times(column))
        if pa.types.is_null(kind):
            return column.cast(pa.string())
        self._check_length(column)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return _quoted(_hexadecimals(column))
        try:
            return _quoted(_escaped(checked_text(column)).cast(pa.string()))
        except pa.ArrowInvalid:
            raise _Fault(NOT_UTF8) from None

    def _integers(self, column: pa.Array) -> pa.Array:
        digits = column.cast(pa.string())
        if self.field.fit.function is None:
            return digits
        if self.target.name == "BITMAP" and pc.any(pc.less(column, 0)).as_py():
            raise _Fault(NEGATIVE)
        return _quoted(digits)

    def _floats(self, column: pa.Array) -> pa.Array:
        if not pc.all(pc.is_finite(column)).as_py() and column.null_count < len(column):
            raise _Fault(NOT_FINITE)
        texts = column.cast(pa.string())
        if self.target.name != "JSON":
            return texts
        whole = pc.match_substring_regex(texts, "^-?[0-9]+$")  # without ".0" a JSON column would store an integer
        return pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)

    def _times(self, column: pa.Array) -> pa.Array:
        if pa.types.is_timestamp(column.type) and column.type.tz is not None:
            if self.zone is not None:
                column = column.cast(pa.timestamp("us", self.zone))
            column = pc.local_timestamp(column)
        years = pc.year(column)
        if pc.any(pc.or_(pc.less(years, 1), pc.greater(years, 9999))).as_py():
            raise _Fault(OUT_OF_YEARS)
        return column.cast(pa.string())

    def _check_length(self, column: pa.Array) -> None:
        length = self.target.length
        if length is not None and pc.any(pc.greater(pc.binary_length(column), length)).as_py():
            raise _Fault(f"is longer than {length} bytes")


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _decimals(column: pa.Array) -> pa.Array:
    """Decimals as plain digits.

    Arrow's own text has an exponent for a zero with more than six digits behind the point. So this writes the unscaled
    integer, and inserts the point.
    """
    scale = column.type.scale
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(column), column.buffers(), column.null_count, column.offset
    ).cast(pa.string())
    if not scale:
        return unscaled
    sign = pc.if_else(pc.starts_with(unscaled, "-"), "-", "")
    digits = pc.ascii_lpad(pc.ascii_ltrim(unscaled, "-"), scale + 1, "0")
    whole, part = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(sign, whole, ".", part, "")


def _hexadecimals(column: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits. Each byte becomes two digits, so this converts the whole buffer at once."""
    bounds, data = layout(column)
    digits = bytes(memoryview(data)[bounds[0] : bounds[-1]]).hex().upper().encode()
    offsets = pa.array((bounds - bounds[0]) * 2, pa.int64()).buffers()[1]
    texts = pa.Array.from_buffers(pa.large_string(), len(column), [None, offsets, pa.py_buffer(digits)])
    return pc.if_else(column.is_valid(), texts.cast(pa.string()), pa.scalar(None, pa.string()))


def _escaped(texts: pa.Array) -> pa.Array:
    """Strings with JSON's escapes: one pass for each character that needs an escape and occurs."""
    bounds, data = layout(texts)
    content = np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
    characters = np.flatnonzero(np.bincount(content, minlength=128)[:128])
    for character in sorted(map(chr, characters), key="\\".__ne__):  # the backslash first, because escapes contain it
        if character < " " or character in '"\\':
            texts = pc.replace_substring(texts, character, orjson.dumps(character).decode()[1:-1])
    return texts


@dataclass(frozen=True, slots=True)
class ArrowRoute:
    """A route whose rows are made over Arrow."""

    table: str
    fields: tuple[ArrowField, ...]

    @classmethod
    def of(cls, terms: TableTerms, frame: T.StructType) -> ArrowRoute:
        """The one route of `terms` for `frame`. Raises InputError for columns that only the JVM can write as JSON."""
        (route,), zone = terms.routes, terms.options.timestamp_zone
        columns, filled = (terms.tables.columns or {}).get(route.table, ()), terms.placeholders.get(route.table, ())
        types_by_name = {column.name.lower(): column.type for column in columns}
        fields, complaints = [], []
        for field in route.fields:
            kind = frame[field.source].dataType
            target = types_by_name.get(field.name.lower()) or natural(kind)
            if isinstance(kind, _NESTED) or (isinstance(kind, T.StringType) and target.name == "JSON"):
                complaints.append(f"{field.name} ({kind.simpleString()} into {target})")
            fields.append(ArrowField(field, target, zone, field.key in filled))
        if complaints:
            raise InputError(
                f"A frame as it is cannot be written into {route.table}: {', '.join(complaints)} need the JVM.",
                hint=f'Use StarRocksSink(options, routes=[TableRoute("{route.table}", columns)]).write(frame).',
                table=route.table,
            )
        return cls(route.table, tuple(fields))

    def rows(self, batch: pa.RecordBatch) -> pa.Array:
        """The rows of `batch` as JSON texts. Raises InputError with the column of a value that cannot be written."""
        deleted = None
        if OP in batch.schema.names:
            op = pc.utf8_lower(batch.column(OP).cast(pa.string()))
            deleted = pc.fill_null(pc.is_in(op, value_set=pa.array(DELETES)), False)
        parts: list[pa.Array | str] = []
        for field in self.fields:
            try:
                texts = field.texts(batch.column(field.field.source), deleted)
            except (_Fault, pa.ArrowInvalid) as fault:
                raise InputError(
                    f"Column {field.field.name} of table {self.table} {_sentence(fault)}.",
                    hint="Correct the value, or filter such rows out before the write.",
                    table=self.table,
                ) from None
            parts += [f"{',' if parts else '{'}{orjson.dumps(field.field.key).decode()}:", texts]
        return pc.binary_join_element_wise(*parts, "}", "")


def _sentence(fault: Exception) -> str:
    return str(fault) if isinstance(fault, _Fault) else f"cannot be read ({type(fault).__name__})"
