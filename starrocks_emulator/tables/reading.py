"""JSON rows into columns, value by value, as the server's JSON scanner does (wire contract 5.4, 5.7).

A row goes through three steps there, and each has its own refusals: the reader takes a member into the type nearest to
the column's, a cast makes the column's type of what was read as a text, and the writer looks at what is kept. With
`strict_mode` a refusal of the first two filters the row, without it the value becomes NULL; one of the last always
filters it. Inside of ARRAY, MAP and STRUCT a value that does not fit becomes NULL in silence.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

import duckdb
from duckdb.func import FunctionNullHandling

from starrocks_emulator.tables.documents import NUMBER, NoDocument, number_text, shown, shown_or_none
from starrocks_emulator.tables.json_text import BadText, BrokenRow, elements_of, members_of, minified, unescaped
from starrocks_emulator.tables.parsing import boolean_of, decimal_of, float_of, integer_of, moment_of
from starrocks_emulator.tables.types import ColumnType

BITS: Final[Mapping[str, int]] = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_LARGE_BITS = 128
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_FLOAT_MAX: Final = 3.4028234663852886e38
_TEXTS = frozenset({"CHAR", "VARCHAR", "STRING"})
_ARGUMENT, _QUALITY = "Invalid argument: ", "Data quality error: "
_PLACES: Final = (
    "be/src/formats/json/nullable_column.cpp:41 add_numeric_column<T>(data_column, type_desc, name, value)",
    "be/src/exec/file_scanner/json_scanner.cpp:559 _construct_column(val, column,"
    " _prev_parsed_position[key_index].type, _prev_parsed_position[key_index].key)",
)
"""Lines of its source that the server puts behind a reader's reason: the first for numbers alone."""
_STRUCTURE = (
    "TAPE_ERROR: The JSON document has an improper structure: missing or superfluous commas, braces, missing keys, etc."
)
TORN: Final = f"{_QUALITY}construct row in object order failed, error: TAPE_ERROR"
"""How the reason begins of a row whose structure is wrong."""
_NO_NUMBER = "NUMBER_ERROR: Problem while parsing a number"
_NO_TEXT = "STRING_ERROR: Problem while parsing a string"
_NO_DOCUMENT = "INCORRECT_TYPE: The JSON element does not have the requested type."
_STEP = re.compile(r"\.([^.\[\]\"]+)|\.\"((?:[^\"\\]|\\.)*)\"|\[([0-9]+)\]")
_WORDS: Final = {"true": "boolean", "false": "boolean", "null": "null"}
_KINDS: Final = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


class Misfit(ValueError):
    """A value that its column does not take; the message is the server's."""


class Refused(ValueError):
    """A value that the writer refuses, with and without `strict_mode`."""


@dataclass(frozen=True, slots=True)
class Field:
    """One source field: its name, the path to it in a row, the type of the column that it fills, if there is one."""

    name: str
    path: str
    type: ColumnType | None


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads rows into the texts of their fields: what is kept, in a form that DuckDB casts to the column's type."""

    fields: tuple[Field, ...]
    strict: bool
    operation: str

    def to_json(self) -> str:
        """The text by which DuckDB's function for JSON rows knows the reader."""
        fields = [(field.name, field.path, asdict(field.type) if field.type else None) for field in self.fields]
        return json.dumps([fields, self.strict, self.operation])

    def read(self, text: str) -> list[str | None]:
        """A text for each field (None is NULL), why the row is filtered, and the row as the log shows it, or None."""
        try:
            members = members_of(text)
        except BrokenRow:
            reason = f"{_QUALITY}construct row in object order failed, error: {_STRUCTURE}"
            return [*[None] * len(self.fields), reason, text]
        except BadText:
            reason = f"{_QUALITY}construct row in object order failed, error: {_NO_TEXT}"
            return [*[None] * len(self.fields), reason, text]
        slots, reason = self._slots(text, members)
        if reason:
            return [*slots, reason, text]
        kept: list[str | None] = []
        casts: list[str] = []
        for field, slot in zip(self.fields, slots, strict=True):
            value, misfit = self._cast(field, slot)
            kept.append(value)
            casts.extend(misfit)
        return [*kept, casts[0] if casts else None, None]

    def _slots(self, text: str, members: Sequence[tuple[str, str]]) -> tuple[list[str | None], str]:
        """What the reader takes of each field, and the first refusal in the order in which the row has its members."""
        first = dict(reversed(members))
        order = {name: place for place, (name, _) in reversed(list(enumerate(members)))}
        slots: list[str | None] = []
        reasons: list[tuple[int, str]] = []
        for field in self.fields:
            token, name = _located(field.path, text, first)
            slots.append(None)
            if token is None:
                slots[-1] = "0" if field.name == self.operation else None
            elif token != "null":
                try:
                    slots[-1] = _read(field.type, token, field.name)
                except Misfit as misfit:
                    if self.strict:
                        reasons.append((order.get(name, 0), str(misfit)))
        return slots, min(reasons)[1] if reasons else ""

    def _cast(self, field: Field, slot: str | None) -> tuple[str | None, list[str]]:
        if slot is None or field.type is None:
            return slot, []
        value = _cast(field.type, slot)
        if value is None:
            reason = f"Value ''{slot}'' is out of range. The type of '{field.name}' is {_shown_type(field.type)}"
            return None, [reason] if self.strict else []
        try:
            _check(field.type, value, field.name)
        except Refused as refused:
            return None, [str(refused)]
        return value, []


@lru_cache(maxsize=1_000)
def _reader(text: str) -> Reader:
    fields, strict, operation = json.loads(text)
    typed = [Field(name, path, ColumnType.from_plain(kind) if kind else None) for name, path, kind in fields]
    return Reader(tuple(typed), strict, operation)


def read_row(reader: str, text: str) -> list[str | None]:
    """`Reader.read` for DuckDB, which has the reader as a text."""
    return _reader(reader).read(text)


def define_readers(cursor: duckdb.DuckDBPyConnection) -> None:
    """Make known to every session: `read_row`, `json_shown`, and `text_of`, what CAST(… AS VARCHAR) gives."""
    cursor.create_function("read_row", read_row, ["VARCHAR", "VARCHAR"], "VARCHAR[]")
    cursor.create_function("json_shown", shown_or_none, ["VARCHAR"], "VARCHAR")
    cursor.create_function("double_text", _double_text, ["VARCHAR"], "VARCHAR")
    cursor.create_function("float_text", _float_text, ["VARCHAR"], "VARCHAR")
    text = "CAST(value AS VARCHAR)"
    cases = f"WHEN 'DOUBLE' THEN double_text({text}) WHEN 'FLOAT' THEN float_text({text})"
    # A time with a fraction has six decimals of it.
    cases += f" WHEN 'TIMESTAMP' THEN CASE WHEN contains({text}, '.') THEN rpad({text}, 26, '0') ELSE {text} END"
    cursor.create_function(
        "conv_text", _in_base, ["VARCHAR", "INTEGER", "INTEGER"], "VARCHAR", null_handling=FunctionNullHandling.SPECIAL
    )
    cursor.execute(f"CREATE OR REPLACE MACRO conv(value, base, other) AS {_CONV}")
    cursor.execute(f"CREATE OR REPLACE MACRO text_of(value) AS CASE typeof(value) {cases} ELSE {text} END")


_CONV: Final = (
    "CASE WHEN base = 16 AND other = 10 AND regexp_full_match(CAST(value AS VARCHAR), '[0-9a-fA-F]{1,15}') "
    "THEN CAST(CAST('0x' || CAST(value AS VARCHAR) AS BIGINT) AS VARCHAR) "
    "ELSE conv_text(CAST(value AS VARCHAR), base, other) END"
)
"""The function conv: the usual case without Python."""


# Functions of a module, because DuckDB keeps none alive.
def _in_base(text: str | None, base: int | None, other: int | None) -> str | None:
    """A number of 64 bits without a sign in another base; of digits that are none of the base's the part in front."""
    if text is None or base is None or other is None or not (2 <= base <= 36 and 2 <= other <= 36):
        return None
    number = 0
    for digit in text.strip().upper():
        if digit not in _DIGITS[:base]:
            break
        number = min(number * base + _DIGITS.index(digit), (1 << 64) - 1)
    digits = ""
    while number or not digits:
        number, digit_number = divmod(number, other)
        digits = _DIGITS[digit_number] + digits
    return digits


_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _double_text(text: str) -> str:
    return number_text(float(text))


def _float_text(text: str) -> str:
    """A FLOAT as the server writes it: six digits where they read the same, else eight."""
    number = float(text)
    short = f"{number:.6g}"
    return short if math.isnan(number) or _as_float(float(short)) == _as_float(number) else f"{number:.8g}"


def _as_float(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0]) if abs(number) <= _FLOAT_MAX else number


@lru_cache(maxsize=1_000)
def _steps(path: str) -> tuple[str | int, ...]:
    steps = [
        int(place) if place else unescaped(f'"{quoted}"') if quoted else name
        for name, quoted, place in _STEP.findall(path.removeprefix("$"))
    ]
    return tuple(steps)


def _located(path: str, text: str, members: Mapping[str, str]) -> tuple[str | None, str]:
    """(the value at the path as it was written, the member of the row that has it); None where there is none."""
    steps = _steps(path)
    if not steps:
        return text, ""
    name = str(steps[0])
    token = members.get(name)
    for step in steps[1:]:
        token = _inside(token, step)
    return token, name


def _inside(token: str | None, step: str | int) -> str | None:
    if token is None:
        return None
    if isinstance(step, int):
        elements = elements_of(token) if token.startswith("[") else []
        return elements[step] if step < len(elements) else None
    return dict(reversed(members_of(token))).get(step) if token.startswith("{") else None


def _kind(token: str) -> str:
    """The server's name for what a value is; empty for what begins like none."""
    return "number" if token[0] == "-" or token[0].isdigit() else _KINDS.get(token[0], "")


def _read(column_type: ColumnType | None, token: str, name: str) -> str:
    """What the reader takes of a value that is not null, as a text; raises Misfit with the places in the source."""
    kind = column_type.name if column_type else "VARCHAR"
    try:
        if kind in BITS or kind in _FLOATS:
            return _number(kind, token, name)
        if kind == "BOOLEAN":
            return _boolean(token, name)
        if kind == "JSON":
            return _document(token, name)
        if column_type is not None and column_type.parts:
            return _nested(column_type, token, name)
        return _text(column_type, token, name)
    except Misfit as misfit:
        places = _PLACES[0 if kind in BITS or kind in _FLOATS else 1 :]
        raise Misfit("\n".join([str(misfit), *places])) from None


def _number(kind: str, token: str, name: str) -> str:
    what = _kind(token)
    if what == "number":
        return _of_number(kind, token, name)
    if what == "string":
        return _of_text(kind, token, name)
    if not what:
        raise Misfit(f"{_QUALITY}Failed to parse value as number, column={name}, error={_STRUCTURE}")
    raise Misfit(f"{_ARGUMENT}Unsupported value type. Numeric type is required. column={name}")


def _of_number(kind: str, token: str, name: str) -> str:
    if not NUMBER.fullmatch(token):
        raise Misfit(f"{_QUALITY}Failed to parse value as number, column={name}, error={_NO_NUMBER}")
    if token.lstrip("-").isdigit():
        return _of_whole(kind, token, name)
    number = float(token)
    if math.isinf(number):
        raise Misfit(f"{_QUALITY}Failed to parse value as number, column={name}, error={_NO_NUMBER}")
    return _converted(kind, number, name)


def _of_whole(kind: str, token: str, name: str) -> str:
    number = int(token) if len(token) <= 40 else 1 << _LARGE_BITS
    if not -(1 << 127) <= number < 1 << 127:
        raise Misfit(f"{_ARGUMENT}Fail to convert big integer. column={name}, value={token}")
    if kind in _FLOATS:
        return _converted(kind, float(number), name)
    bits = BITS[kind]
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        # What the server prints of a number beyond 64 bits are its lowest 64, with a sign.
        printed = number if abs(number) < 1 << 64 else (number + (1 << 63)) % (1 << 64) - (1 << 63)
        raise Misfit(f"{_ARGUMENT}Value is overflow. column={name}, value={printed}")
    return str(number)


def _of_text(kind: str, token: str, name: str) -> str:
    try:
        text = unescaped(token)
    except BadText:
        raise Misfit(f"{_QUALITY}Failed to parse value as number, column={name}, error={_NO_TEXT}") from None
    whole = integer_of(text, BITS[kind]) if kind in BITS else None
    if whole is not None:
        return str(whole)
    number = float_of(text)
    if number is None:
        raise Misfit(f"{_ARGUMENT}Unable to cast string value to BIGINT. value={text}, column={name}")
    return _converted(kind, number, name)


def _converted(kind: str, number: float, name: str) -> str:
    """A double as a value of the type: a fraction is cut."""
    if kind == "DOUBLE" or (kind == "FLOAT" and not math.isfinite(number)):
        return repr(number)
    if kind == "FLOAT":
        if abs(number) <= _FLOAT_MAX:
            return repr(_as_float(number))
    else:
        bits = BITS[kind]
        most = float((1 << (bits - 1)) - 1)
        if -most - 1 <= number <= most and number < 2.0**63:
            return str(int(number))
    raise Misfit(f"{_ARGUMENT}Value is overflow. column={name}, value={printed_number(number)}")


def printed_number(number: float) -> str:
    """A double in the server's messages: fifteen digits where they read the same, else seventeen."""
    if not math.isfinite(number):
        return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    short = f"{number:.15g}"
    return short if float(short) == number else f"{number:.17g}"


def _boolean(token: str, name: str) -> str:
    what = _kind(token)
    if token in ("true", "false"):
        return token
    if what == "number":
        return _truth(token, name)
    if what == "string":
        try:
            text = unescaped(token)
        except BadText:
            raise Misfit(f"{_QUALITY}Failed to parse value as boolean, column={name}, error={_NO_TEXT}") from None
        truth = boolean_of(text)
        if truth is None:
            raise Misfit(f"{_ARGUMENT}Failed to parse string value as boolean. column={name}, value={text}")
        return str(truth).lower()
    if what in ("array", "object"):
        raise Misfit(f"{_ARGUMENT}Unsupported value type to boolean. column={name}, type={what}")
    raise Misfit(f"{_QUALITY}Failed to parse value as boolean, column={name}, error={_STRUCTURE}")


def _truth(token: str, name: str) -> str:
    if not NUMBER.fullmatch(token) or math.isinf(float(token) if not token.lstrip("-").isdigit() else 0.0):
        raise Misfit(f"{_QUALITY}Failed to parse value as boolean, column={name}, error={_NO_NUMBER}")
    if not token.lstrip("-").isdigit():
        return str(float(token) != 0).lower()
    if integer_of(token, _LARGE_BITS) is None:
        raise Misfit(f"{_ARGUMENT}Fail to convert big integer. column={name}, value={token}")
    return str(int(token) != 0).lower()


def _document(token: str, name: str) -> str:
    try:
        return shown(token)
    except NoDocument:
        raise Misfit(f"{_QUALITY}Failed to parse value as json type, column={name}, error={_NO_DOCUMENT}") from None


def _text(column_type: ColumnType | None, token: str, name: str) -> str:
    """A value as a text: a number as it was written, 1 and 0 for truth values, a document without blanks."""
    what = _kind(token)
    if what == "string":
        try:
            text = unescaped(token)
        except BadText:
            raise Misfit(f"{_QUALITY}Failed to parse value as string, column={name}, error={_NO_TEXT}") from None
    elif what == "number":
        text = token
    elif token in _WORDS:
        text = "1" if token == "true" else "0"
    elif what in ("array", "object"):
        text = minified(token)
    else:
        raise Misfit(f"{_QUALITY}Failed to parse value as string, column={name}, error={_STRUCTURE}")
    capacity = column_type.length if column_type is not None and column_type.name in _TEXTS else None
    if capacity is not None and len(text.encode()) > capacity:
        raise Misfit(f"{_ARGUMENT}Value length is beyond the capacity. column={name}, capacity={capacity}")
    return text


def _nested(column_type: ColumnType, token: str, name: str) -> str:
    what = _kind(token)
    if column_type.name == "ARRAY":
        if what != "array":
            raise Misfit(f"{_ARGUMENT}Failed to parse value as array, column={name}")
    elif what != "object":
        raise Misfit(f"{_QUALITY}Expected value type [object], got [{what or 'unknown'}]")
    try:
        return _whole_nested(column_type, token)
    except BrokenRow:
        what = "array" if column_type.name == "ARRAY" else "object"
        raise Misfit(f"{_QUALITY}Failed to parse value as {what}, column={name}, error={_STRUCTURE}") from None


def _whole_nested(column_type: ColumnType, token: str) -> str:
    """An ARRAY, MAP or STRUCT as JSON text; raises BrokenRow."""
    if column_type.name == "ARRAY":
        return "[" + ",".join(_element(column_type.parts[0][1], part) for part in elements_of(token)) + "]"
    members = members_of(token)
    if column_type.name == "STRUCT":
        first = dict(reversed(members))
        parts = [f"{_quoted(name)}:{_element(kind, first.get(name, 'null'))}" for name, kind in column_type.parts]
        return "{" + ",".join(parts) + "}"
    (_, of_keys), (_, of_values) = column_type.parts
    pairs = {_element(of_keys, _quoted(key)): _element(of_values, value) for key, value in members}
    return "{" + ",".join(f"{_as_key(key)}:{value}" for key, value in pairs.items()) + "}"


def _element(column_type: ColumnType, token: str) -> str:
    """A value inside of another as JSON: null where it does not fit."""
    if token == "null":
        return token
    try:
        slot = _read(column_type, token, "")
    except Misfit:
        return "null"
    value = _cast(column_type, slot)
    if value is None:
        return "null"
    if column_type.parts or column_type.name in {"JSON", "BOOLEAN", "DECIMAL", "LARGEINT", *BITS}:
        return value
    if column_type.name in _FLOATS:
        return number_text(float(value)) if math.isfinite(float(value)) else _quoted(value)
    return _quoted(value)


def _as_key(token: str) -> str:
    return token if token.startswith('"') else _quoted(token)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _cast(column_type: ColumnType, slot: str) -> str | None:
    """What the cast makes of a slot that was read as a text; None where it refuses it."""
    name = column_type.name
    if name == "LARGEINT":
        number = integer_of(slot, _LARGE_BITS)
        return None if number is None else str(number)
    if name == "DECIMAL":
        unscaled = decimal_of(slot, column_type.precision or 0, column_type.scale or 0)
        return None if unscaled is None else _decimal_text(unscaled, column_type.scale or 0)
    if name in ("DATE", "DATETIME"):
        moment = moment_of(slot)
        return moment[:10] if moment and name == "DATE" else moment
    if name == "CHAR":
        return slot.partition("\0")[0]
    return slot


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = f"{abs(unscaled):0{scale + 1}d}"
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{text}" if unscaled < 0 else text


def _check(column_type: ColumnType, value: str, name: str) -> None:
    """What the writer refuses; raises Refused."""
    if column_type.name == "DECIMAL" and len(value.lstrip("-0").replace(".", "")) > (column_type.precision or 0):
        kind = _shown_type(column_type)
        raise Refused(f"Decimal '{value}' is out of range. The type of '{name}' is {kind}'")
    size = len(value.encode()) if column_type.name in ("VARBINARY", "JSON") else 0
    if column_type.length is not None and size > column_type.length:
        shown_value = value if len(value) <= 100 else value[:100]
        most = column_type.length
        raise Refused(f"String '{shown_value}'(length={size}) is too long. The max length of '{name}' is {most}")


def _shown_type(column_type: ColumnType) -> str:
    """A type as the server's refusals name it."""
    if column_type.name != "DECIMAL":
        return column_type.name
    precision = column_type.precision or 0
    return f"DECIMAL{64 if precision <= 18 else 128}({precision}, {column_type.scale})"
