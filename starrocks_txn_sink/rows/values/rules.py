"""The table: for each kind of JSON value and each type of column what is sent in its place, and what is refused.

The rule behind it: what is sent is kept as the same value. A server of 4.1 changes many values without a word, and
strict_mode does not stop that (wire contract 5.7). What it would change is written so that it is kept, where the value
has one plain meaning (`true` in a column of integers, `1e2`, an instant in a DATETIME), and refused otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final

from starrocks_txn_sink.rows.json_members import Number, elements_of, spans_of
from starrocks_txn_sink.rows.target import BITS, MOST_BYTES, TargetType
from starrocks_txn_sink.rows.values.numbers import JSON_NUMBER, LARGE_BITS, Digits, comes_back, digits_of
from starrocks_txn_sink.rows.values.times import NoTime, plain_date, plain_time

DOCUMENT_BYTES: Final = MOST_BYTES
"""Of a JSON document. The server refuses longer ones, and a backend that takes a longer text inside one may crash while
it spreads the document over columns of its own (wire contract 5.7)."""


class Unfit(ValueError):
    """A value that its column would not keep; the text ends a sentence about the value, and has none of it."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value: as `json_members` reads it, as it is written, and the zone of times without one (None: UTC)."""

    value: Any
    raw: str
    zone: tzinfo | None = None


Fit = Callable[[TargetType, Value], str]
"""The JSON to send in place of a value, the value's own text where it is kept as it is. Raises Unfit."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How values of one kind are judged for one type, and the same in words: what is sent as it is, what in another
    spelling, and what is refused."""

    fit: Fit
    exact: str = ""
    converted: str = ""
    refused: str = ""


def fitted(kind: TargetType, value: Value) -> str:
    """The JSON to send for a value that is not null; its own text if the column keeps it as it is. Raises Unfit."""
    rules = TABLE.get(kind.name)
    if rules is None:
        return value.raw
    name = _kind_of(value.value)
    if name not in rules:
        way = _OF_STRUCTURED if name == "object" and kind.name in ("DATE", "DATETIME") else ""
        raise Unfit(f"is {_ARTICLES[name]}, which {kind.name} does not hold{way}")
    return rules[name].fit(kind, value)


_OF_STRUCTURED: Final = (
    "; Debezium writes dates so with time.precision.mode=structured: set another one (isostring) at the connector, and "
    "resync the table for the messages that are in the topic"
)


def _kind_of(value: Any) -> str:
    if isinstance(value, Number):
        return "number"
    if isinstance(value, str):
        return "text"
    return "true, false" if isinstance(value, bool) else "array" if isinstance(value, list) else "object"


_ARTICLES: Final = {
    "number": "a number",
    "text": "a text",
    "true, false": "true or false",
    "array": "an array",
    "object": "an object",
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- numbers ---


def _number_in(value: Value) -> tuple[Digits, bool]:
    """The number that a value is, or that its text has; and whether it is written as JSON writes numbers."""
    text = value.value.strip(" ") if not isinstance(value.value, Number) else value.value
    number = digits_of(text)
    if number is None:
        raise Unfit("is a text that is no number")
    return number, JSON_NUMBER.fullmatch(value.value) is not None


def _integer(kind: TargetType, value: Value) -> str:
    number, plain = _number_in(value)
    if number.exponent < 0:
        raise Unfit("has a fraction, which is cut off")
    bits, integer = BITS[kind.name], number.integer
    minimum = -(1 << bits - 1) + (bits == 1 + LARGE_BITS)  # LARGEINT lacks the least number of its bits
    if integer is None or not minimum <= integer < 1 << bits - 1:
        raise Unfit("is outside of the range of the type")
    return value.raw if plain and value.value.lstrip("-").isdigit() else str(integer)


def _boolean_number(_: TargetType, value: Value) -> str:
    number, _plain = _number_in(value)
    if number.integer not in (0, 1):
        raise Unfit("is a number other than 0 and 1, which becomes true")
    return value.raw if value.value in ("0", "1") else str(number.integer)


def _boolean_text(kind: TargetType, value: Value) -> str:
    if value.value.lower() in ("true", "false"):
        return value.raw if value.value.islower() else value.value.lower()
    return _boolean_number(kind, value)


def _floating(kind: TargetType, value: Value) -> str:
    number, plain = _number_in(value)
    whole = value.value.lstrip("-").isdigit()
    if not comes_back(number, kind.name):
        raise Unfit(f"is a number whose digits {kind.name} does not give back")
    if isinstance(value.value, Number) and whole and number.whole_digits > _WHOLE_DIGITS:
        return f"{value.raw}.0"  # the server refuses integers of more than 128 bits, also for these types
    return value.raw if plain else number.plain


_WHOLE_DIGITS: Final = 38  # each integer of so many has 128 bits at most


def _decimal(kind: TargetType, value: Value) -> str:
    number, plain = _number_in(value)
    if number.decimals > kind.scale:
        raise Unfit(f"has more than {kind.scale} decimals, which are rounded or cut off")
    if number.whole_digits > kind.precision - kind.scale:
        raise Unfit(f"has more than {kind.precision - kind.scale} digits in front of the point")
    _, _, fraction = value.value.partition(".")
    if plain and (len(fraction) <= kind.scale or not fraction.isdigit()):
        return value.raw
    return number.plain if isinstance(value.value, Number) else _quoted(number.plain)


def _one_or_zero(_: TargetType, value: Value) -> str:
    return "1" if value.value else "0"


def _as_it_is(_: TargetType, value: Value) -> str:
    return value.raw


# --- dates and times ---


def _date(_: TargetType, value: Value) -> str:
    return _time_text(plain_date, value)


def _datetime(_: TargetType, value: Value) -> str:
    return _time_text(plain_time, value)


def _time_text(read: Callable[[str, tzinfo | None], str], value: Value) -> str:
    try:
        text = read(value.value, value.zone)
    except NoTime as fault:
        raise Unfit(str(fault)) from None
    return value.raw if text == value.value else f'"{text}"'


def _no_date(_: TargetType, __: Value) -> str:
    raise Unfit("is a number, which does not say what it counts")


# --- texts, bytes and documents ---

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_BLANKS: Final = re.compile(rf"({_STRING})|[ \t\r\n]+", re.DOTALL)
_SCALARS: Final = re.compile(rf"(?P<text>{_STRING})|(?P<number>-?\d[\d.eE+-]*)", re.DOTALL)
_SIGNED, _UNSIGNED = 1 << 63, 1 << 64  # a document keeps integers of 64 bits, with a sign or without


def _text(kind: TargetType, value: Value) -> str:
    _check_unicode(value.value)
    _check_size(kind, len(value.value.encode()))
    if kind.name == "CHAR" and "\0" in value.value:
        raise Unfit("has the character U+0000, at which a CHAR is cut off")
    return value.raw


def _text_of_number(kind: TargetType, value: Value) -> str:
    _check_size(kind, len(value.raw))
    return value.raw


def _text_of_truth(kind: TargetType, value: Value) -> str:
    _check_size(kind, len(value.raw))
    return f'"{value.raw}"'  # the server writes 1 and 0


def _text_of_document(kind: TargetType, value: Value) -> str:
    text = _BLANKS.sub(r"\1", value.raw)
    _check_unicode(text)
    _check_size(kind, len(text.encode()))
    return _quoted(text)


def _check_size(kind: TargetType, size: int) -> None:
    if kind.length is not None and size > kind.length:
        raise Unfit(f"has more than the {kind.length} bytes of the column")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unfit("has half of a surrogate pair, which is no character") from None


def _document(_: TargetType, value: Value) -> str:
    _check_unicode(value.raw)
    if len(value.raw.encode()) > DOCUMENT_BYTES:
        raise Unfit(f"is a document of more than {DOCUMENT_BYTES} bytes")
    for match in _SCALARS.finditer(value.raw):
        if match["number"] is not None:
            _check_number(match["number"])
        elif "\\u" in match["text"]:
            _check_unicode(json.loads(match["text"], strict=False))
    return value.raw


def _check_number(text: str) -> None:
    number = digits_of(text)
    if number is None:
        raise Unfit("has a number that is none of JSON's")
    if text.lstrip("-").isdigit() and number.integer is not None and -_SIGNED <= number.integer < _UNSIGNED:
        return
    if not comes_back(number, "DOUBLE"):
        raise Unfit("has a number in the document that is rounded: it has more digits than a DOUBLE, or is beyond it")


# --- nested types ---


def _array(kind: TargetType, value: Value) -> str:
    (_, element_type), *_ = kind.items
    pieces, copied = list[str](), 0
    for element, start, end in elements_of(value.raw):
        pieces += value.raw[copied:start], _inner(element_type, element, value, start, end, "an element that ")
        copied = end
    return "".join((*pieces, value.raw[copied:]))


def _map(kind: TargetType, value: Value) -> str:
    (_, key_type), (_, value_type) = kind.items
    names, pieces, copied = set[str](), list[str](), 0
    for name, member, start, end in spans_of(value.raw):
        if name in names:
            raise Unfit("has a key twice, of which the last one stays")
        names.add(name)
        key = _quoted(name)
        try:
            fits = fitted(key_type, Value(name, key, value.zone)) == key
        except Unfit:
            fits = False
        if not fits:
            raise Unfit(f"has a key that {key_type} does not hold")
        pieces += value.raw[copied:start], _inner(value_type, member, value, start, end, "a value that ")
        copied = end
    return "".join((*pieces, value.raw[copied:]))


def _struct(kind: TargetType, value: Value) -> str:
    """The fields that the type has, by its names: the server takes other names for other fields."""
    fields = {name.lower(): (name, field_type) for name, field_type in kind.items}
    names, pairs, pieces, copied = list[str](), list[str](), list[str](), 0
    for member_name, member, start, end in spans_of(value.raw):
        name, field_type = fields.get(member_name.lower(), ("", kind))
        if not name:
            raise Unfit(f"has a field that {kind} does not have, which is dropped")
        new = _inner(field_type, member, value, start, end, f"a field {name} that ")
        names.append(member_name)
        pairs.append(f"{_quoted(name)}:{new}")
        pieces += value.raw[copied:start], new
        copied = end
    if len({name.lower() for name in names}) < len(names):
        raise Unfit("has a field twice")
    missing = [name for name, _ in kind.items if name.lower() not in {member_name.lower() for member_name in names}]
    if missing:
        raise Unfit(f"lacks the field {missing[0]}, which becomes NULL; write null for it")
    if {*names} == {name for name, _ in kind.items}:
        return "".join((*pieces, value.raw[copied:]))
    return f"{{{','.join(pairs)}}}"


def _inner(kind: TargetType, part: Any, whole: Value, start: int, end: int, place: str) -> str:
    raw = whole.raw[start:end]
    if raw == "null":
        return raw
    try:
        return fitted(kind, Value(part, raw, whole.zone))
    except Unfit as fault:
        raise Unfit(f"has {place}{fault}") from None


# --- the table ---

_NUMERIC_TEXT = "a number in another spelling (`+1`, `1.0`, `1e2`, blanks around it): as JSON writes it"
_NO_NUMBER = "a text that is no number, also `NaN`, `Infinity` and an empty one"
_ONE_OR_ZERO = Rule(_one_or_zero, converted="as 1 and 0")
_LONG_TEXT = "more bytes than the column has"

_INTEGERS: Final = {
    "number": Rule(
        _integer, "integers of the type's range", "`1.0`, `1e2`: as 1, 100", "a fraction; a number beyond the range"
    ),
    "text": Rule(_integer, "the same", _NUMERIC_TEXT, f"the same; {_NO_NUMBER}"),
    "true, false": _ONE_OR_ZERO,
}
_FLOATING: Final = {
    "number": Rule(
        _floating,
        "numbers of up to 15 digits (FLOAT: 6), and longer ones that the type gives back, digit by digit",
        "integers of more than 38 digits: with a point",
        "digits that are lost; numbers beyond the range",
    ),
    "text": Rule(_floating, "the same", _NUMERIC_TEXT, f"the same; {_NO_NUMBER}"),
    "true, false": _ONE_OR_ZERO,
}
_TEXTS: Final = {
    "text": Rule(_text, "texts up to the column's bytes", "", f"{_LONG_TEXT}; half of a surrogate pair"),
    "number": Rule(_text_of_number, "in its own digits", "", _LONG_TEXT),
    "true, false": Rule(_text_of_truth, "", "as the texts `true` and `false`", _LONG_TEXT),
    **dict.fromkeys(
        ("array", "object"), Rule(_text_of_document, "", "as the text of its JSON, without blanks", _LONG_TEXT)
    ),
}
_LOST_DIGITS = "numbers with more digits than a DOUBLE gives back, but integers of 64 bits"
_DOCUMENT = Rule(
    _document, f"up to {DOCUMENT_BYTES:,} bytes", "", f"longer ones; half of a surrogate pair; {_LOST_DIGITS}"
)

TABLE: Final[Mapping[str, Mapping[str, Rule]]] = {
    "BOOLEAN": {
        "true, false": Rule(_as_it_is, "all"),
        "number": Rule(_boolean_number, "0 and 1", "`1.0`: as 1", "other numbers"),
        "text": Rule(
            _boolean_text, "`true`, `false`, `0`, `1`", "`TRUE`, ` 1 `: as true, 1", "other texts, other numbers"
        ),
    },
    **dict.fromkeys(BITS, _INTEGERS),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _FLOATING),
    "DECIMAL": {
        "number": Rule(
            _decimal,
            "as many digits as the type has in front of the point and behind it",
            "zeros behind the last decimal of the type: left out",
            "more digits in front of the point, or behind it",
        ),
        "text": Rule(_decimal, "the same", _NUMERIC_TEXT, f"the same; {_NO_NUMBER}"),
        "true, false": _ONE_OR_ZERO,
    },
    "DATE": {
        "text": Rule(
            _date,
            "`2024-02-29`",
            "`20240229`, `2024/2/29`, `2024-02-29Z`, and midnight, in the job's zone: as 2024-02-29",
            "a time of the day; a date with an offset; a year of two or five digits; an era; days that do not exist",
        ),
        "number": Rule(_no_date, refused="all: what a number counts, it does not say"),
    },
    "DATETIME": {
        "text": Rule(
            _datetime,
            "`2024-02-29 12:34:56.123456` with up to six decimals, also with `T`; `2024-02-29` as midnight",
            "`2024-02-29T12:34:56Z`, `… UTC`, `…+05:30`: as the time in the job's zone; `2024/2/29 1:02`, "
            "`20240229`: as the server's own spelling; more decimals that are 0: left out",
            "a name of a zone; more decimals; an hour without minutes; a year of two or five digits; an era; times "
            "that do not exist",
        ),
        "number": Rule(_no_date, refused="all: what a number counts, it does not say"),
    },
    "CHAR": {**_TEXTS, "text": Rule(_text, _TEXTS["text"].exact, "", f"{_TEXTS['text'].refused}; U+0000")},
    **dict.fromkeys(("VARCHAR", "STRING", "VARBINARY"), _TEXTS),
    "JSON": {
        **dict.fromkeys(("object", "array"), _DOCUMENT),
        "text": Rule(_document, "as a text, not as the document that it may have", "", _DOCUMENT.refused),
        "number": Rule(_document, "numbers up to 64 bits, and those that a DOUBLE gives back", "", _LOST_DIGITS),
        "true, false": Rule(_as_it_is, "all"),
    },
    "ARRAY": {"array": Rule(_array, "if its elements are", "its elements", "if an element is, which would be NULL")},
    "MAP": {
        "object": Rule(
            _map, "if its values are", "its values", "if a value is, which would be NULL; a key twice; a key that does "
            "not fit"
        )
    },
    "STRUCT": {
        "object": Rule(
            _struct,
            "if its fields are",
            "its fields, and names in another case",
            "if a field is, which would be NULL; a missing field; another field",
        )
    },
}  # fmt: skip
"""The rules by the name of a type and the kind of a JSON value; a kind without a rule is refused, a type without rules
is not judged. NULL is a matter of the column, not of its type."""
