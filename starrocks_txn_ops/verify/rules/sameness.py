"""Whether a value of the source, as a text, and a value in StarRocks, as a text, are the same value. Pure.

The texts come from both databases (`pairs`). Most are equal where the values are; a judge here decides the rest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

Same = Callable[[str, str], bool]
"""Judges two texts, the source's and StarRocks'; NULL is judged before."""

_DAY: Final = 86_400_000_000
_MONTH: Final = 2_629_800_000_000  # Debezium's month of 30.4375 days, in microseconds
_INTERVAL: Final = re.compile(
    r"(-)?P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)
POINT: Final = re.compile(r"(?:POINT)?\s*\(\s*([^\s,]+)[\s,]+([^\s)]+)\s*\)", re.IGNORECASE)
_FRACTION: Final = re.compile(r"\.(\d*?)0*$")
_NO_DAY: Final = ("0000-00-00", "0000-00-00 00:00:00")
_EPOCH: Final = ("1970-01-01", "1970-01-01 00:00:00")


def exactly(source: str, target: str) -> bool:
    """Texts that both sides write in one way."""
    return source == target


def padded(source: str, target: str) -> bool:
    """Texts of a type that fills with blanks."""
    return source.rstrip(" ") == target.rstrip(" ")


def as_numbers(source: str, target: str) -> bool:
    """Numbers in any spelling, exactly."""
    try:
        one, other = Decimal(source), Decimal(target)
    except InvalidOperation:
        return source.lower() == target.lower()
    return one == other or (one.is_nan() and other.is_nan())


def as_doubles(source: str, target: str) -> bool:
    """Numbers of 64 bits, in any spelling."""
    try:
        return float(source) == float(target)
    except ValueError:
        return source == target


def as_floats(source: str, target: str) -> bool:
    """Numbers of which one side has 32 bits only."""
    try:
        return _single(float(source)) == _single(float(target))
    except (ValueError, OverflowError):
        return source == target


def _single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])


def plain_moment(text: str) -> str:
    """A date, a time or both in one spelling: a blank between them, no zeros behind, no sign of UTC."""
    text = text.strip().removesuffix("Z").removesuffix("+00:00").removesuffix("+00")
    if len(text) > 10 and text[10] == "T":
        text = f"{text[:10]} {text[11:]}"
    return plain_fraction(text).removesuffix(" 00:00:00")


def plain_fraction(text: str) -> str:
    """A time without zeros behind its seconds."""
    return _FRACTION.sub(lambda match: f".{match[1]}" if match[1] else "", text)


def as_moments(source: str, target: str) -> bool:
    """Dates and times. MySQL's day of zeros is what the connector makes of it (NULL is judged by `null_for`)."""
    one, other = plain_moment(source), plain_moment(target)
    return one == other or (source in _NO_DAY and other in _EPOCH)


def null_for(source: str) -> bool:
    """Whether StarRocks has NULL for a text of the source that is none: no column holds MySQL's day of zeros."""
    return source in _NO_DAY


def as_truth(source: str, target: str) -> bool:
    """Booleans, as words, their first letters, or 1 and 0."""
    words = {"true": "1", "t": "1", "false": "0", "f": "0"}
    return words.get(source.lower(), source) == words.get(target.lower(), target)


def as_bits(source: str, target: str) -> bool:
    """PostgreSQL's text of bits, and the number that they are."""
    try:
        return int(source or "0", 2) == int(target)
    except ValueError:
        return source == target


def as_bytes(source: str, target: str) -> bool:
    """Bytes as base64 at the source, and any of the texts that a connector writes for them."""
    try:
        content = base64.b64decode(source)
    except (binascii.Error, ValueError):
        return source == target
    forms = (base64.b64encode(content), base64.urlsafe_b64encode(content), content.hex().encode())
    return target.encode() in forms


def bytes_of_text(source: str, target: str) -> bool:
    """A text of the source that stands for bytes, and the bytes as hexadecimal digits."""
    try:
        return base64.b64decode(source, validate=True).hex().upper() == target.upper()
    except (binascii.Error, ValueError):
        return source.upper() == target.upper()


def as_intervals(source: str, target: str) -> bool:
    """PostgreSQL's interval (ISO 8601), and the microseconds or the text that Debezium makes of it."""
    size = microseconds(source)
    if re.fullmatch(r"-?\d+", target):
        return size == int(target)
    return size is not None and size == microseconds(target)


def microseconds(text: str) -> int | None:
    """The size of an interval (ISO 8601) as Debezium counts it; None for a text that is none."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        return None
    years, months, days, hours, minutes = (int(part or 0) for part in match.groups()[1:6])
    size = (years * 12 + months) * _MONTH + days * _DAY + (hours * 60 + minutes) * 60_000_000
    size += int(Decimal(match[7] or "0") * 1_000_000)
    return -size if match[1] else size


def as_points(source: str, target: str) -> bool:
    """A point as a database writes it, and Debezium's document of it."""
    match = POINT.fullmatch(source.strip())
    try:
        document = json.loads(target)
        return match is not None and (float(match[1]), float(match[2])) == (float(document["x"]), float(document["y"]))
    except (ValueError, TypeError, KeyError):
        return False


def as_documents(source: str, target: str) -> bool:
    """Documents of JSON; StarRocks keeps numbers as 64 bits, and in another order."""
    one, other = _document(source), _document(target)
    return _alike(one, other) or source == target


def null_document(source: str) -> bool:
    """Whether the document is `null`, which StarRocks has as NULL."""
    return source.strip() == "null"


def as_lists(source: str, target: str) -> bool:
    """Arrays, and documents made of them: elements are compared as values of any spelling."""
    return _alike(_document(source), _document(target), loose=True)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _alike(one: Any, other: Any, *, loose: bool = False) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name], loose=loose) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_alike(*pair, loose=loose) for pair in zip(one, other, strict=True))
    if isinstance(one, bool) != isinstance(other, bool):
        return loose and as_truth(_spelt(one), _spelt(other))
    if one == other:
        return True
    if one is None or other is None or not loose:
        return False
    return _same_element(_spelt(one), _spelt(other))


def _spelt(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _same_element(one: str, other: str) -> bool:
    if one.startswith("\\x"):  # PostgreSQL's bytes in a document
        try:
            one = base64.b64encode(bytes.fromhex(one[2:])).decode()
        except ValueError:
            return False
        return as_bytes(one, other)
    if as_numbers(one, other) or as_doubles(one, other) or as_moments(one, other):
        return True
    first, second = _document(one), _document(other)
    return not (isinstance(first, str) and isinstance(second, str)) and _alike(first, second)


@lru_cache(maxsize=64)
def hashing(salt: str) -> Callable[[str], str]:
    """The mask sha256: what it makes of a value of the source."""
    return lambda source: hashlib.sha256((salt + source).encode()).hexdigest()


@lru_cache(maxsize=64)
def hashed(salt: str) -> Same:
    """Whether a text in StarRocks is the source's value under the mask sha256."""
    make = hashing(salt)
    return lambda source, target: make(source) == target
