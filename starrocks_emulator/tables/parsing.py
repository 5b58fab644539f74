"""Numbers, truth values and moments out of texts, by the rules of the server's own parsers (wire contract 5.7).

They are those of MySQL and Impala rather than of a standard: blanks are taken, `1e2` is a number, a date may have any
separator or none, and what follows a moment is not looked at. None stands for a text that is refused.
"""

from __future__ import annotations

import math
import re
from typing import Final

_BLANKS: Final = " \t\n\v\f\r"
_INTEGER = re.compile(r"[+-]?[0-9]*[ \t\n\v\f\r]*")
_FLOAT = re.compile(r"[+-]?(?:[0-9][0-9.]*|\.[0-9]*)(?:[eE][+-]?[0-9]+)?[ \t\n\v\f\r]*")
_INFINITE = re.compile(r"([+-]?)[0-9.]*inf", re.IGNORECASE)
_NOT_A_NUMBER = re.compile(r"[+-]?[0-9.]*nan", re.IGNORECASE)
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_EXPONENTS: Final = 127
"""The largest exponent of a DECIMAL's text: the server reads it into one byte."""
_DATE = re.compile(r"([0-9]{4})[^0-9]([0-9]{2})[^0-9]([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{0,6}))?")
_MOST_PARTS: Final = 7
_MICROS: Final = 6
_LARGEST_PART: Final = 999_999
_SEPARATOR = re.compile(r"[!-/:-@\[-`{-~ \t\n\v\f\r]*")
_CENTURY_TURNS: Final = 70
"""Years of two digits below are of this century, the others of the last."""
_DAYS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def integer_of(text: str, bits: int) -> int | None:
    """A whole number of so many bits; blanks before and behind are taken."""
    text = text.lstrip(_BLANKS)
    if not text or not _INTEGER.fullmatch(text) or text[0] in _BLANKS:
        return None
    digits = text.rstrip(_BLANKS)
    number = int(digits) if digits not in ("+", "-") else 0
    return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else None


def float_of(text: str) -> float | None:
    """A number with or without fraction and exponent, `inf…` and `nan…`; None where it is too large, too."""
    text = text.lstrip(_BLANKS)
    if match := _INFINITE.match(text):
        return -math.inf if match[1] == "-" else math.inf
    if _NOT_A_NUMBER.match(text):
        return math.nan
    if not _FLOAT.fullmatch(text):
        return None
    whole, point, rest = text.partition(".")
    number = float((whole + point + rest.replace(".", "")) if point and rest.strip(_BLANKS) else whole or "0")
    return None if math.isinf(number) else number


def boolean_of(text: str) -> bool | None:
    """`true` and `false` in any case, or a whole number of 32 bits: 0 is false, any other true."""
    number = integer_of(text, 32)
    if number is not None:
        return number != 0
    return {"true": True, "false": False}.get(text.strip(_BLANKS).lower())


def decimal_of(text: str, precision: int, scale: int) -> int | None:
    """The unscaled value of a DECIMAL(precision, scale), which may have more digits than the column holds.

    Half is rounded away from zero; but digits beyond those of the number in which the server keeps the column (18 or
    38) are cut before. None for no number, or one too large for that number.
    """
    digits = 18 if precision <= 18 else 38
    match = _DECIMAL.fullmatch(text.strip(_BLANKS))
    if match is None or not text.strip(_BLANKS):
        return None
    sign, whole, fraction, exponent_text = match.groups()
    if not whole and fraction is None:
        return None
    exponent = int(exponent_text or 0)
    if exponent > _EXPONENTS:
        return None
    if exponent < -_EXPONENTS - 1:
        return 0
    significant = (whole + (fraction or "")).lstrip("0")
    shift = scale + exponent - len(fraction or "")
    if len(significant) + shift - scale > digits - scale:
        return None
    kept = int(significant[:digits] or "0")
    shift += max(len(significant) - digits, 0)
    if shift >= 0:
        kept *= int(10**shift)
    else:
        kept, rest = divmod(kept, 10**-shift)
        kept += int(rest * 2 >= 10**-shift)
    return -int(kept) if sign == "-" else int(kept)


def moment_of(text: str) -> str | None:
    """A date and time as `YYYY-MM-DD HH:MM:SS.ffffff`, read as far as it is one: no zone, no era; midnight without."""
    text = text.strip(_BLANKS)
    date = _DATE.match(text)
    if date is None or not _is_day(*_numbers(date)):
        return _loose_moment(text)
    rest = text[date.end() :]
    if rest[:1] == "T":
        rest = rest[1:]
    elif rest[:1] and rest[0] in _BLANKS:
        rest = rest.lstrip(_BLANKS)
    else:
        rest = ""
    if not rest:
        return _written(*_numbers(date))
    time = _TIME.match(rest)
    if time is None or not _is_time(*_numbers(time)):
        return _loose_moment(text)
    if rest[time.end() :] and rest[time.end()] != "Z":
        return _loose_moment(text)
    micros = int(f"{time[4] or '':0<6}")
    return _written(*_numbers(date), *_numbers(time), micros)


def _loose_moment(text: str) -> str | None:
    """The parts of a date in MySQL's manner: digits with any separators, or digits alone, a year of two digits too."""
    if not text or not _is_digit(text[0]):
        return None
    run = re.match(r"[0-9T]*", text)
    digits = run.end() if run else 0
    unbroken = digits == len(text) or text[digits] == "."
    year_digits = 4 if digits in (4, 8) or digits >= 14 else 2
    parts = _parts(text, year_digits if unbroken else None)
    if parts is None or len(parts) < 3:
        return None
    values = [int(part) for part in parts] + [0] * (_MOST_PARTS - len(parts))
    year, month, day, hour, minute, second, micros = values
    if len(parts) == _MOST_PARTS:
        micros = int(f"{parts[-1]:0<6}")
    if (year_digits if unbroken else len(parts[0])) == 2:
        year += 2000 if year < _CENTURY_TURNS else 1900
    fits = _is_day(year, month, day) and _is_time(hour, minute, second)
    return _written(year, month, day, hour, minute, second, micros) if fits else None


def _parts(text: str, year_digits: int | None) -> list[str] | None:
    """Year, month, day, hour, minute, second, microseconds as far as they are there; without `year_digits` separators
    end each part but the last. None for a part that is too long, and for a blank where none may be."""
    parts: list[str] = []
    at, width = 0, year_digits
    while at < len(text) and _is_digit(text[at]) and len(parts) < _MOST_PARTS:
        fixed = _MICROS if len(parts) == _MOST_PARTS - 1 else width
        digits = re.compile(r"[0-9]*" if fixed is None else f"[0-9]{{0,{fixed}}}").match(text, at)
        parts.append(digits[0] if digits else "")
        at += len(parts[-1])
        if len(parts[-1]) > _MICROS and int(parts[-1]) > _LARGEST_PART:
            return None
        width = None if width is None else 2
        behind = text[at : at + 1]
        if behind and len(parts) == 3 and behind == "T":
            at += 1
        elif behind and len(parts) == _MOST_PARTS - 1:
            if behind != ".":
                return parts
            at += 1
        else:
            separator = _SEPARATOR.match(text, at)
            if separator and len(parts) not in (3, _MOST_PARTS) and any(letter in _BLANKS for letter in separator[0]):
                return None
            at += len(separator[0]) if separator else 0
    return parts


def _numbers(match: re.Match[str]) -> tuple[int, int, int]:
    first, second, third = match.groups()[:3]
    return int(first), int(second), int(third)


def _is_digit(letter: str) -> bool:
    return "0" <= letter <= "9"


def _is_day(year: int, month: int, day: int) -> bool:
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or (year % 400 == 0 and year != 0))
    return year <= 9999 and 1 <= month <= 12 and 1 <= day <= _DAYS[month] + leap


def _is_time(hour: int, minute: int, second: int) -> bool:
    return hour <= 23 and minute <= 59 and second <= 59


def _written(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micros: int = 0) -> str:
    fraction = f".{micros:06d}" if micros else ""
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}{fraction}"
