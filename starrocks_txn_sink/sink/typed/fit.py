"""Which Spark type fits which StarRocks type, and how its values become JSON: the table of docs/guides/types.md.

`fit` returns a `Fit`, or the reason why there is none. A fit loses nothing: if a type could lose digits, bytes or a
time zone, the sink refuses it before the first load. Only faults that a type does not show (NaN, a text that is too
long) are a `ValueFault`: a condition that the JVM evaluates row by row. Decimals and LARGEINT travel as JSON strings,
because a JSON number may lose digits on its way. A `Function` of the server fills VARBINARY, BITMAP and HLL columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, functions as F, types as T

from starrocks_txn_sink.rows.target import BITS, TargetType
from starrocks_txn_sink.rows.widening import holds
from starrocks_txn_sink.spark_version import JSON_TEXTS, VariantType, is_valid_utf8

Encode = Callable[[Column], Column]

NOT_FINITE = "is NaN or infinite, which StarRocks and JSON do not know"
OUT_OF_YEARS = "is outside of the years 1 to 9999"
NOT_UTF8 = "is no valid UTF-8"
NOT_JSON = "is a text that is not JSON"
NEGATIVE = "is negative, and a BITMAP has no such numbers"

_NUMBERS = (*BITS, "FLOAT", "DOUBLE", "DECIMAL")
_INTEGERS: dict[type[T.DataType], str] = {
    T.ByteType: "TINYINT",
    T.ShortType: "SMALLINT",
    T.IntegerType: "INT",
    T.LongType: "BIGINT",
}
_TEXTS = ("CHAR", "VARCHAR", "STRING")
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_KEYS = (T.StringType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True, slots=True)
class ValueFault:
    """`condition(column)` is true for a value that cannot be written; `text` completes "Column c of table t …".

    `silent`: the server would not notice the fault, because the JSON row would be valid with another content.
    """

    condition: Encode
    text: str
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of StarRocks, in the header `columns`, that computes a column from a field (wire contract 5.5).

    The name of the field is `prefix` and the name of the column; `more` are further arguments. With `takes_null` the
    function turns a NULL into a value, an empty set.
    """

    name: str
    prefix: str = "__raw_"
    more: str = ""
    takes_null: bool = False


TO_BINARY = Function("to_binary", "__hex_", ", 'hex'")
TO_BITMAP = Function("to_bitmap")
BITMAP_HASH = Function("bitmap_hash", takes_null=True)
HLL_HASH = Function("hll_hash", takes_null=True)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a value is written: by `encode` (None: by to_json alone), and on the server by `function`."""

    encode: Encode | None = None
    faults: tuple[ValueFault, ...] = ()
    function: Function | None = None

    def encode_column(self, column: Column) -> Column:
        """`column` as to_json takes it."""
        return self.encode(column) if self.encode else column


def fit(source: T.DataType, target: TargetType, zones: tuple[str, str] = ("UTC", "UTC")) -> Fit | str:
    """How `source` values are written into a column of type `target`, or the reason why not, as the end of a sentence.

    `zones` are the session's time zone and the one in which timestamps are written.
    """
    if isinstance(source, T.NullType):
        return Fit()
    if target.name in ("BITMAP", "HLL"):
        return _bitmap_or_hll(source, target)
    if target.name == "JSON" and isinstance(source, VariantType):
        return Fit()
    if target.name == "JSON" and isinstance(source, _NESTED):  # the parts follow the rules of their natural types
        target = _mirror(source)
    rule = next((rule for kinds, rule in _RULES.items() if isinstance(source, kinds)), None)
    answer = rule(source, target, zones) if rule is not None else None
    return f"there is no way from {source.simpleString()} to {target}" if answer is None else answer


def natural(source: T.DataType) -> TargetType:
    """The StarRocks type closest to `source`, for a table whose columns are unknown; `OTHER` if there is none."""
    if isinstance(source, T.DecimalType):
        return TargetType("DECIMAL", precision=source.precision, scale=source.scale)
    if isinstance(source, (*_NESTED, VariantType, T.NullType)):
        return TargetType("JSON")
    for kind, name in _NATURAL.items():
        if isinstance(source, kind):
            return TargetType(name)
    return TargetType("OTHER")


_NATURAL: dict[type[T.DataType], str] = {
    T.BooleanType: "BOOLEAN",
    **_INTEGERS,
    T.FloatType: "FLOAT",
    T.DoubleType: "DOUBLE",
    T.StringType: "VARCHAR",
    T.BinaryType: "VARBINARY",
    T.DateType: "DATE",
    T.TimestampType: "DATETIME",
    T.TimestampNTZType: "DATETIME",
}

Zones = tuple[str, str]
RuleResult = Fit | str | None


def _bitmap_or_hll(source: T.DataType, target: TargetType) -> Fit | str:
    """Into BITMAP and HLL columns, as the official Spark connector fills them."""
    if isinstance(source, T.StringType):
        utf8 = ValueFault(lambda column: ~is_valid_utf8(column), NOT_UTF8, silent=True)
        return Fit(None, (utf8,), BITMAP_HASH if target.name == "BITMAP" else HLL_HASH)
    if isinstance(source, tuple(_INTEGERS)):
        faults = (ValueFault(lambda column: column < 0, NEGATIVE, silent=True),) if target.name == "BITMAP" else ()
        return Fit(lambda column: column.cast("string"), faults, TO_BITMAP if target.name == "BITMAP" else HLL_HASH)
    return f"{target} is made of integers and texts only; cast it before the sink"


def _boolean(_source: T.BooleanType, target: TargetType, _: Zones) -> RuleResult:
    if target.name in ("BOOLEAN", "JSON"):
        return Fit()
    return Fit(lambda column: column.cast("int")) if target.name in BITS else None


def _integer(source: T.IntegralType, target: TargetType, _: Zones) -> RuleResult:
    if target.name in _NUMBERS:
        return Fit() if holds(target, natural(source)) else _narrowing(source, target)
    return Fit() if target.name == "JSON" else None


def _decimal(source: T.DecimalType, target: TargetType, _: Zones) -> RuleResult:
    as_text = Fit(lambda column: column.cast("string"))
    if target.name in _NUMBERS:
        return as_text if holds(target, natural(source)) else _narrowing(source, target)
    return as_text if target.name == "JSON" else None


def _floating(source: T.FloatType | T.DoubleType, target: TargetType, _: Zones) -> RuleResult:
    finite = (ValueFault(_not_finite, NOT_FINITE),)
    if target.name in ("DOUBLE", "JSON"):
        # to_json writes the shortest text of a float; read as a double, this text is another number
        widened = isinstance(source, T.FloatType)
        return Fit((lambda column: column.cast("double")) if widened else None, finite)
    if target.name in _NUMBERS:
        return Fit(None, finite) if holds(target, natural(source)) else _narrowing(source, target)
    return None


def _text(_source: T.StringType, target: TargetType, _: Zones) -> RuleResult:
    if target.name == "JSON":
        if not JSON_TEXTS.works:
            return f"a JSON text needs Spark 4.0. {JSON_TEXTS.instead[:-1]}"
        return Fit(F.try_parse_json, (ValueFault(_not_json, NOT_JSON, silent=True),))
    if target.name not in _TEXTS:
        return f"a text is not turned into {target} by guessing; cast it before the sink"
    faults = [ValueFault(lambda column: ~is_valid_utf8(column), NOT_UTF8, silent=True)]
    if target.length is not None:
        faults.append(_too_long(target.length))
    return Fit(None, tuple(faults))


def _binary(_source: T.BinaryType, target: TargetType, _: Zones) -> RuleResult:
    if target.name != "VARBINARY":
        return None
    faults = () if target.length is None else (_too_long(target.length),)
    return Fit(F.hex, faults, TO_BINARY)


def _date(_source: T.DateType, target: TargetType, _: Zones) -> RuleResult:
    if target.name in ("DATE", "DATETIME", "JSON"):
        return Fit(None, (ValueFault(_out_of_years, OUT_OF_YEARS),))
    return None


def _timestamp(source: T.TimestampType | T.TimestampNTZType, target: TargetType, zones: Zones) -> RuleResult:
    if isinstance(source, T.TimestampNTZType):
        fault = ValueFault(_out_of_years, OUT_OF_YEARS)
    else:
        fault = ValueFault(lambda column: _out_of_years(_wall_clock(column, zones)), OUT_OF_YEARS)
    if target.name == "DATE":
        return "a timestamp would lose its time of day; cast it to date before the sink"
    return Fit(None, (fault,)) if target.name in ("DATETIME", "JSON") else None


def _mirror(source: T.DataType) -> TargetType:
    """The nested type with the shape of `source`; its texts stay texts, and are not parsed as JSON."""
    if isinstance(source, T.ArrayType):
        return TargetType("ARRAY", items=(("", _mirror(source.elementType)),))
    if isinstance(source, T.MapType):
        return TargetType("MAP", items=(("", natural(source.keyType)), ("", _mirror(source.valueType))))
    if isinstance(source, T.StructType):
        return TargetType("STRUCT", items=tuple((field.name, _mirror(field.dataType)) for field in source.fields))
    return natural(source)


def _array(source: T.ArrayType, target: TargetType, zones: Zones) -> RuleResult:
    if target.name != "ARRAY":
        return None
    inner = _inner(source.elementType, target.items[0][1], zones)
    if isinstance(inner, str):
        return f"its elements: {inner}"
    encode = inner.encode
    return Fit(
        None if encode is None else lambda column: F.transform(column, encode),
        tuple(_within(fault, lambda column: column, "an element that ") for fault in inner.faults),
    )


def _map(source: T.MapType, target: TargetType, zones: Zones) -> RuleResult:
    if target.name != "MAP":
        return None
    keys = _inner(source.keyType, target.items[0][1], zones)
    values = _inner(source.valueType, target.items[1][1], zones)
    if not isinstance(source.keyType, _KEYS):
        return "the keys of a JSON object are texts, and only texts and integers are turned into them"
    if isinstance(keys, str) or isinstance(values, str):
        return f"its keys or values: {keys if isinstance(keys, str) else values}"
    encode = values.encode
    return Fit(
        None if encode is None else lambda column: F.transform_values(column, lambda _, value: encode(value)),
        (
            *(_within(fault, F.map_keys, "a key that ") for fault in keys.faults),
            *(_within(fault, F.map_values, "a value that ") for fault in values.faults),
        ),
    )


def _struct(source: T.StructType, target: TargetType, zones: Zones) -> RuleResult:
    if target.name != "STRUCT":
        return None
    targets = {name.lower(): (name, kind) for name, kind in target.items}
    encoded: list[tuple[str, str, Encode | None]] = []
    faults: list[ValueFault] = []
    for field in source.fields:
        if field.name.lower() not in targets:
            return f"its field {field.name} is not in {target}"
        name, kind = targets[field.name.lower()]
        inner = _inner(field.dataType, kind, zones)
        if isinstance(inner, str):
            return f"its field {field.name}: {inner}"
        encoded.append((field.name, name, inner.encode))
        faults += [_of_field(fault, field.name) for fault in inner.faults]
    changed = any(encode is not None or old != new for old, new, encode in encoded)
    return Fit((lambda column: _rebuilt(column, encoded)) if changed else None, tuple(faults))


_RULES: dict[type[T.DataType], Callable[[Any, TargetType, Zones], RuleResult]] = {
    T.BooleanType: _boolean,
    **dict.fromkeys(_INTEGERS, _integer),
    T.DecimalType: _decimal,
    **dict.fromkeys((T.FloatType, T.DoubleType), _floating),
    T.StringType: _text,
    T.BinaryType: _binary,
    T.DateType: _date,
    **dict.fromkeys((T.TimestampType, T.TimestampNTZType), _timestamp),
    T.ArrayType: _array,
    T.MapType: _map,
    T.StructType: _struct,
}
"""Spark type → rule, which returns a `Fit`, a reason, or None for a target without a rule."""


def _inner(source: T.DataType, target: TargetType, zones: Zones) -> Fit | str:
    inner_fit = fit(source, target, zones)
    return (
        "binary values cannot be written inside of another type"
        if isinstance(inner_fit, Fit) and inner_fit.function
        else inner_fit
    )


def _rebuilt(column: Column, fields: list[tuple[str, str, Encode | None]]) -> Column:
    parts = [(encode(column[old]) if encode else column[old]).alias(new) for old, new, encode in fields]
    return F.when(column.isNotNull(), F.struct(*parts))


def _within(fault: ValueFault, items: Encode, place_text: str) -> ValueFault:
    """The fault of an array or map in which one of `items` has `fault`."""
    return ValueFault(
        lambda column: F.exists(items(column), lambda item: F.coalesce(fault.condition(item), F.lit(False))),
        f"has {place_text}{fault.text}",
        fault.silent,
    )


def _of_field(fault: ValueFault, name: str) -> ValueFault:
    return ValueFault(
        lambda column: fault.condition(column[name]), f"has a field {name} that {fault.text}", fault.silent
    )


def _not_finite(column: Column) -> Column:
    return F.isnan(column) | (F.abs(column) == float("inf"))


def _not_json(column: Column) -> Column:
    return column.isNotNull() & F.try_parse_json(column).isNull()


def _out_of_years(column: Column) -> Column:
    return ~F.year(column).between(1, 9999)


def _wall_clock(column: Column, zones: Zones) -> Column:
    """The wall-clock time in the zone that is written; the cast gives the wall-clock time in the session's zone."""
    return F.convert_timezone(F.lit(zones[0]), F.lit(zones[1]), column.cast("timestamp_ntz"))


def _too_long(length: int) -> ValueFault:
    return ValueFault(lambda column: F.octet_length(column) > length, f"is longer than {length} bytes")


def _narrowing(source: T.DataType, target: TargetType) -> str:
    return f"{source.simpleString()} does not fit into {target} without loss"
