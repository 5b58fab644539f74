"""Values of Kafka Connect's JSON, written as StarRocks reads them; the schema in front of a payload says what they are.

A *plan* has the conversion of each member of a row. It is made once for each text of a schema. Dates, times and
decimals become texts of one form whatever the connector's modes are; other values stay as they are. The compiled loop
converts rows, and asks Python about each one that is not plain. Both write the same.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.compiled import rewrites
from starrocks_txn_sink.compiled.layout import ConversionKind as Kind
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.rows.json_members import Number, elements_of, members, spans_of, value_at
from starrocks_txn_sink.rows.segments import Bools
from starrocks_txn_sink.sources.formats.json_text import whole_number


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a value is written. `number` has the decimals of a second, or the scale; `array`: an array of such values.

    An ODD value is an array or a map with `inner` values, or an object with `members`. A `bare` value has no schema: a
    value of another form stays as it is, and a date or time fits no plan with a `number` below 0 (unknown unit).
    """

    kind: Kind = Kind.KEEP
    number: int = 0
    array: bool = False
    inner: Conversion | None = None
    members: Mapping[str, Conversion] | None = None
    bare: bool = False


Plan = Mapping[str, Conversion]
"""The conversion of each member of a row."""

KEEP: Final = Conversion()
UNSIGNED: Final = Conversion(Kind.UNSIGNED)

_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
_BY_NAME: Final = {
    _CONNECT + "Date": Conversion(Kind.DATE),
    _CONNECT + "Time": Conversion(Kind.TIME, 3),
    _CONNECT + "Timestamp": Conversion(Kind.TIMESTAMP, 3),
    _TIME + "Date": Conversion(Kind.DATE),
    _TIME + "Time": Conversion(Kind.TIME, 3),
    _TIME + "MicroTime": Conversion(Kind.TIME, 6),
    _TIME + "NanoTime": Conversion(Kind.TIME, 9),
    _TIME + "Timestamp": Conversion(Kind.TIMESTAMP, 3),
    _TIME + "MicroTimestamp": Conversion(Kind.TIMESTAMP, 6),
    _TIME + "NanoTimestamp": Conversion(Kind.TIMESTAMP, 9),
    _TIME + "IsoDate": Conversion(Kind.ISO_DATE),
    _TIME + "IsoTime": Conversion(Kind.ISO_TIME),
    _TIME + "IsoTimestamp": Conversion(Kind.ISO_TIMESTAMP),
    _TIME + "ZonedTimestamp": Conversion(Kind.ISO_TIMESTAMP),
    _DATA + "VariableScaleDecimal": Conversion(Kind.VARIABLE_DECIMAL),
    _DATA + "Bits": Conversion(Kind.BITS),
    _DATA + "Json": Conversion(Kind.DOCUMENT),
}
_DECIMAL: Final = _CONNECT + "Decimal"
_UNSIGNED_BIGINT: Final = re.compile(r"BIGINT UNSIGNED\b.*")


# --- plans ---


@lru_cache(maxsize=512)
def plans_of(schema: str) -> Mapping[str, Plan]:
    """The plans of the rows in a value with this schema (the converter's JSON), by the names `before` and `after`.

    The value itself has an empty name. Without a plan a row stays as it is. Raises ValueError for no schema.
    """
    try:
        value = json.loads(schema)
        rows = {"": value} | {field["field"]: field for field in value.get("fields") or ()}
        plans = {name: _members_of(row) for name, row in rows.items() if name in ("", "before", "after")}
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"no schema: {error!r}") from None
    return {name: plan for name, plan in plans.items() if any(member != KEEP for member in plan.values())}


def _members_of(struct: Mapping[str, Any]) -> dict[str, Conversion]:
    return {field["field"]: conversion_of(field) for field in struct.get("fields") or ()}


def conversion_of(field: Mapping[str, Any]) -> Conversion:
    """How the values of a field are written; raises KeyError, TypeError or ValueError for a field of another form."""
    name, kind = field.get("name"), field.get("type")
    if name == _DECIMAL:
        return Conversion(Kind.DECIMAL, int(field["parameters"]["scale"]))
    if name in _BY_NAME:
        return _BY_NAME[name]
    if kind in ("array", "map"):
        inner = conversion_of(field["items"] if kind == "array" else field["values"])
        if inner == KEEP or (kind == "map" and field["keys"]["type"] != "string"):
            return KEEP
        if kind == "array" and inner.kind is not Kind.ODD and not inner.array:
            return Conversion(inner.kind, inner.number, array=True)
        return Conversion(Kind.ODD, array=kind == "array", inner=inner)
    if kind == "struct":
        inner_members = _members_of(field)
        plain = all(member == KEEP for member in inner_members.values())
        return KEEP if plain else Conversion(Kind.ODD, members=inner_members)
    return UNSIGNED if kind == "int64" and is_unsigned_bigint(field) else KEEP


def source_type(field: Mapping[str, Any]) -> str:
    """The type of a column at the source, in upper case; "" unless the connector propagates it."""
    return str((field.get("parameters") or {}).get("__debezium.source.column.type", "")).upper()


def is_unsigned_bigint(field: Mapping[str, Any]) -> bool:
    """Whether the source's type is MySQL's BIGINT UNSIGNED, which a connector may write as a signed number."""
    return _UNSIGNED_BIGINT.fullmatch(source_type(field)) is not None


# --- rows ---


def convert_rows(
    rows: pa.Array, plans: Sequence[Plan], plan_numbers: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[pa.Array, Bools]:
    """The rows (`convert_row`) with their values rewritten, and a mask of those that fit their plans.

    `plan_numbers` has the number of each row's plan, -1 for a row that stays as it is.
    """
    plan_numbers = np.where(rows.is_valid().to_numpy(zero_copy_only=False), plan_numbers, np.int32(-1))

    def judge(number: int) -> bytes | None:
        try:
            return convert_row(rows[number].as_py(), plans[plan_numbers[number]]).encode()
        except (ValueError, IndexError):
            return None

    flat = [_flat(plan) for plan in plans]
    output = rewrites.convert_rows(rows, flat, plan_numbers, judge)
    if output is not None:
        return output
    texts = [None if plan < 0 else judge(number) for number, plan in enumerate(plan_numbers.tolist())]
    fits: Bools = (plan_numbers < 0) | np.fromiter((text is not None for text in texts), dtype=bool, count=len(texts))
    rewritten = pa.array([(text or b"").decode() for text in texts], pa.string())
    return pc.if_else(pa.array(plan_numbers < 0), rows.cast(pa.string()), rewritten), fits


def _flat(plan: Plan) -> rewrites.Conversions:
    return [(name.encode(), member.kind, member.number, member.array, member.bare) for name, member in plan.items()]


def convert_row(row: str, plan: Plan) -> str:
    """One row (JSON) with its values rewritten; SEPARATOR may stand in front of it.

    Raises ValueError or IndexError for a row that does not fit.
    """
    front, row = row[: row.startswith(SEPARATOR)], row.removeprefix(SEPARATOR)
    pieces, copied = [front], 0
    for name, value, start, end in spans_of(row):
        conversion = plan.get(name, KEEP)
        if conversion is not KEEP and conversion.kind is not Kind.KEEP:
            pieces += row[copied:start], _converted(conversion, value, row[start:end])
            copied = end
    return "".join((*pieces, row[copied:]))


def _converted(conversion: Conversion, value: Any, raw: str) -> str:
    """A value in JSON, rewritten; ValueError for a value of another type."""
    if value is None or conversion.kind is Kind.KEEP:
        return raw
    if conversion.kind is Kind.ODD:
        return _odd(conversion, value)
    if conversion.array:
        if not isinstance(value, list):
            if conversion.bare:
                return raw
            raise ValueError(value)
        pieces, copied = list[str](), 0
        for element, start, end in elements_of(raw):
            pieces += raw[copied:start], _plain(conversion, element, raw[start:end])
            copied = end
        return "".join((*pieces, raw[copied:]))
    return _plain(conversion, value, raw)


def _plain(conversion: Conversion, value: Any, raw: str) -> str:
    kind, number = conversion.kind, conversion.number
    if value is None or (conversion.bare and _stays(kind, value)):
        return raw
    if kind is Kind.UNSIGNED:
        negative = isinstance(value, Number) and value.startswith("-")
        return f'"{whole_number(value) % 2**64}"' if negative else raw  # type: ignore[operator]
    if kind is Kind.DOCUMENT:
        return value if _is_document(value) else raw
    if kind is Kind.BITS:
        return str(int.from_bytes(b"" if value == "" else _bytes(value), "little"))
    if kind is Kind.DECIMAL:
        return raw if isinstance(value, Number) else f'"{decimal_text(value, number)}"'
    if kind is Kind.VARIABLE_DECIMAL:
        if not isinstance(value, dict) or value.keys() != {"scale", "value"} or value["scale"] is None:
            raise ValueError(value)
        return f'"{decimal_text(value["value"], _scale(value["scale"]))}"'
    if kind in (Kind.ISO_DATE, Kind.ISO_TIME, Kind.ISO_TIMESTAMP):
        if not isinstance(value, str) or isinstance(value, Number):
            raise ValueError(value)
        text = _iso(kind, value)
        return raw if text is None else f'"{text}"'
    return f'"{_counted(kind, _count(conversion, value), number)}"'


def _count(conversion: Conversion, value: Any) -> int:
    """What a date or time counts."""
    count = whole_number(value)
    assert count is not None
    if conversion.kind is Kind.DATE and not -(2**31) <= count < 2**31:
        raise ValueError(value)
    if conversion.bare and (conversion.number < 0 or (conversion.kind is Kind.TIMESTAMP and count and count in _DAYS)):
        raise ValueError(value)  # of an unknown unit; or the days of a date in place of a time near 1970
    return count


def _stays(kind: Kind, value: Any) -> bool:
    """Whether a bare value is none that its kind is about: no number, or no decimal in bytes."""
    if kind is not Kind.VARIABLE_DECIMAL:
        return not isinstance(value, Number)
    return not isinstance(value, dict) and not is_base64(value)


def is_base64(value: Any) -> bool:
    """Whether a value is a text that the converter may have written for bytes."""
    if value == _INFINITY:
        return False
    try:
        return bool(_bytes(value))
    except ValueError:
        return False


_INFINITY: Final = "Infinity"  # of a FLOAT or DOUBLE, in the alphabet of base64


def _is_document(value: Any) -> bool:
    """Whether a value is the text of a JSON document; the connector's placeholder is none."""
    if not isinstance(value, str) or isinstance(value, Number):
        return False
    try:
        value.encode()
        _, end = value_at(value, len(value) - len(value.lstrip(_BLANKS)))
    except (ValueError, IndexError):
        return False
    return not value[end:].strip(_BLANKS)


_BLANKS: Final = " \t\r\n"


def _odd(conversion: Conversion, value: Any) -> str:
    if conversion.array and isinstance(value, list):
        assert conversion.inner is not None
        return f"[{','.join(_converted(conversion.inner, element, _json(element)) for element in value)}]"
    if conversion.array or not isinstance(value, dict):
        raise ValueError(value)
    members_of_it = conversion.members or {}
    pairs = list[str]()
    for name, member in value.items():
        inner = conversion.inner or members_of_it.get(name, KEEP)
        pairs.append(f"{_json(name)}:{_converted(inner, member, _json(member))}")
    return f"{{{','.join(pairs)}}}"


def _json(value: Any) -> str:
    """A value that `members` has read, as JSON; numbers in their own digits."""
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_json, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json(name)}:{_json(member)}' for name, member in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


# --- values ---

_MOST_SCALE: Final = 1 << 14  # above that of any number in PostgreSQL
_DATE_INFINITY: Final = {
    -2147472692: "infinity",
    -2147472691: "-infinity",
    # In a snapshot: the days of PostgreSQL's infinite Java dates, in the zone of the connector.
    **{-622191234 + zone: "infinity" for zone in (-1, 0, 1)},
    **{-625821272 + zone: "-infinity" for zone in (-1, 0, 1)},
}
"""By the lower 32 bits of the days; no source has dates there."""
_MICROS_INFINITY: Final = {9223372036825200000: "infinity", -9223372036832400000: "-infinity"}
_DAY: Final = 86_400
_DAYS: Final = range(-719_162, 2_932_897)
"""The days of the years 1 to 9999."""
_DATE_TEXT: Final = r"(?P<year>\d{4}|[+-]\d{4,9})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])"
_CLOCK_TEXT: Final = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:\.(?P<fraction>\d{1,9}))?"
_OFFSET_TEXT: Final = r"(?:Z|(?P<sign>[+-])(?P<hours>0\d|1[0-8]):(?P<minutes>[0-5]\d))"
_ISO: Final = {
    Kind.ISO_DATE: re.compile(_DATE_TEXT + _OFFSET_TEXT, re.ASCII),
    Kind.ISO_TIME: re.compile(_CLOCK_TEXT + _OFFSET_TEXT, re.ASCII),
    Kind.ISO_TIMESTAMP: re.compile(f"{_DATE_TEXT}T{_CLOCK_TEXT}{_OFFSET_TEXT}", re.ASCII),
}


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str) or isinstance(value, Number) or not value:
        raise ValueError(value)
    content = base64.b64decode(value, validate=True)
    if base64.b64encode(content).decode() != value:
        raise binascii.Error("no base64")
    return content


def decimal_text(value: Any, scale: int) -> str:
    """The number of big-endian bytes in base64, with `scale` decimals; no exponent, and no loss.

    Raises ValueError for any other value or scale.
    """
    if not -_MOST_SCALE <= scale <= _MOST_SCALE:
        raise ValueError(scale)
    unscaled = int.from_bytes(_bytes(value), "big", signed=True)
    digits, sign = _digits(abs(unscaled)), "-" if unscaled < 0 else ""
    if scale <= 0:
        return sign + digits + "0" * (-scale if unscaled else 0)
    digits = digits.zfill(scale + 1)
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _digits(number: int) -> str:
    """The digits of a number of any length; `str` refuses very long ones."""
    parts = list[str]()
    while number >= _PART:
        number, part = divmod(number, _PART)
        parts.append(str(part).zfill(_PART_DIGITS))
    return "".join((str(number), *reversed(parts)))


_PART_DIGITS: Final = 1000
_PART: Final = 10**_PART_DIGITS


def _scale(value: Any) -> int:
    scale = whole_number(value)
    assert scale is not None
    return scale


def _counted(kind: Kind, count: int, decimals: int) -> str:
    """Days or parts of a second, counted from 1970-01-01 or from midnight, as text."""
    if kind is Kind.DATE:
        return _DATE_INFINITY.get((count + 2**31) % 2**32 - 2**31) or date_text(count)
    unit = 10**decimals
    if kind is Kind.TIME:
        seconds, remainder = divmod(abs(count), unit)
        return ("-" if count < 0 else "") + clock_text(seconds, remainder * 10 ** (9 - decimals))
    if decimals <= 6 and (text := _MICROS_INFINITY.get(count * 10 ** (6 - decimals))):
        return text
    seconds, remainder = divmod(count, unit)
    return _timestamp(seconds, remainder * 10 ** (9 - decimals))


def _iso(kind: Kind, text: str) -> str | None:
    """A text of ISO 8601 in UTC; None for another text, such as PostgreSQL's `infinity`."""
    parts = _ISO[kind].fullmatch(text)
    if parts is None:
        return None
    offset = (int(parts["hours"] or 0) * 60 + int(parts["minutes"] or 0)) * (-60 if parts["sign"] == "-" else 60)
    if offset and kind is not Kind.ISO_TIMESTAMP:
        return None
    days = seconds = nanos = 0
    if kind is not Kind.ISO_TIME:
        days = day_of(int(parts["year"]), int(parts["month"]), int(parts["day"]))
    if kind is not Kind.ISO_DATE:
        seconds = (int(parts["hour"]) * 60 + int(parts["minute"])) * 60 + int(parts["second"])
        nanos = int((parts["fraction"] or "").ljust(9, "0"))
    if kind is Kind.ISO_TIME:
        return clock_text(seconds, nanos)
    if kind is Kind.ISO_DATE:
        return _counted(Kind.DATE, days, 0)
    seconds += days * _DAY - offset
    if not nanos % 1000 and (infinity := _MICROS_INFINITY.get(seconds * 10**6 + nanos // 1000)):
        return infinity
    return _timestamp(seconds, nanos)


def _timestamp(seconds: int, nanos: int) -> str:
    days, remainder = divmod(seconds, _DAY)
    return f"{date_text(days)} {clock_text(remainder, nanos)}"


def clock_text(seconds: int, nanos: int) -> str:
    """Hours, minutes and seconds, with 6 or 9 decimals where there are any."""
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    if not nanos:
        return text
    return f"{text}.{nanos:09}" if nanos % 1000 else f"{text}.{nanos // 1000:06}"


def date_text(days: int) -> str:
    """The Gregorian date of a day, counted from 1970-01-01; with a sign beyond the year 9999 and before 0."""
    era, day_of_era = divmod(days + 719_468, 146_097)  # 400 years from 0000-03-01 on
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day_of_year - (153 * shifted + 2) // 5 + 1:02}"


def day_of(year: int, month: int, day: int) -> int:
    """The day of a Gregorian date, counted from 1970-01-01."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


# --- the schemas of values ---

_SCHEMA, _PAYLOAD, _BEHIND = "schema", "payload", ',"payload":'
_LATE_SCHEMA: Final = re.compile(
    rf'"{_SCHEMA}"[ \t\r\n]*:[ \t\r\n]*[^" \t\r\n]'
)  # a text is the name of a source's schema


class PlansOfValues:
    """The plans of rows, by the schemas in their values; a text in front of a payload is read once, then recognised."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self._numbers: dict[int, int] = {}
        self._fronts: dict[str, tuple[Mapping[str, Plan], str] | None] = {}

    def numbers(self, text: str, names: Sequence[str]) -> list[int]:
        """The number in `plans` of each row of `names` in a value (`plans_of`).

        It is -1 without a plan, and MALFORMED for a value with a schema that is none.
        """
        try:
            plans_by_name, _ = self._plans(text) or ({}, "")
        except ValueError:
            return [MALFORMED] * len(names)
        return [self._number(plans_by_name[name]) if name in plans_by_name else -1 for name in names]

    @property
    def unsigned(self) -> list[int]:
        """The numbers of the plans with UNSIGNED members."""
        return [number for number, plan in enumerate(self.plans) if UNSIGNED in plan.values()]

    def schema(self, text: str) -> str | None:
        """The schema of a value, as JSON; None without one, and for a value with a schema that is none."""
        try:
            plans = self._plans(text)
        except ValueError:
            return None
        return None if plans is None else plans[1]

    def _number(self, plan: Plan) -> int:
        number = self._numbers.setdefault(id(plan), len(self.plans))
        if number == len(self.plans):
            self.plans.append(plan)
        return number

    def _plans(self, text: str) -> tuple[Mapping[str, Plan], str] | None:
        """The plans of a value, and the text of its schema."""
        escaped = text.find("\\u") >= 0  # a name may be spelled with escapes
        if f'"{_PAYLOAD}"' not in text and not escaped:
            return None
        place = text.find(_BEHIND)
        usual = place >= 0 and not escaped and text.startswith("{", place + len(_BEHIND))
        front = text[:place] if usual and not _LATE_SCHEMA.search(text, place) else None
        if front is not None and front in self._fronts:
            return self._fronts[front]
        (schema, raw), (payload, _) = (members(text).get(name, (None, "")) for name in (_SCHEMA, _PAYLOAD))
        plans = None if schema is None or payload is None else (plans_of(raw), raw)
        if front == f'{{"{_SCHEMA}":{raw}':
            self._fronts[front] = plans
        return plans


MALFORMED: Final = -2
