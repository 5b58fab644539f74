"""JSON numbers by their digits, and whether a binary number gives all of the digits back."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"([+-]?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?", re.ASCII)
JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_MOST_EXPONENT: Final = 10**6
"""Exponents beyond count as this one: no column has such numbers, and their digits would fill the memory."""
LARGE_BITS: Final = 127
_SURE_DIGITS: Final = {"FLOAT": 6, "DOUBLE": 15}
"""Each number of so few digits comes back (C's FLT_DIG and DBL_DIG) …"""
_SURE_EXPONENTS: Final = {"FLOAT": range(-37, 38), "DOUBLE": range(-307, 308)}
"""… while a number as 0.ddd × 10^n has such an n: neither below the smallest normal number nor infinite."""
_MOST_DIGITS: Final = 17  # more digits than these a binary number has only if it is the very number


@dataclass(frozen=True, slots=True)
class Digits:
    """A number: `digits` (an integer without zeros at either end, "" for 0) times 10 to the `exponent`."""

    negative: bool
    digits: str
    exponent: int

    @property
    def whole_digits(self) -> int:
        """Digits in front of the point; below 1 for a number below 0.1."""
        return len(self.digits) + self.exponent

    @property
    def decimals(self) -> int:
        """Digits behind the point."""
        return max(0, -self.exponent)

    @property
    def integer(self) -> int | None:
        """The number, if it is whole and has at most 40 digits."""
        if self.exponent < 0 or self.whole_digits > 40:
            return None
        number = int((self.digits or "0") + "0" * self.exponent)
        return -number if self.negative else number

    @property
    def plain(self) -> str:
        """The number without exponent, and without zeros that say nothing."""
        if self.exponent >= 0:
            text = (self.digits or "0") + "0" * self.exponent
        else:
            padded = self.digits.rjust(1 - self.exponent, "0")
            text = f"{padded[: self.exponent]}.{padded[self.exponent :]}"
        return f"-{text}" if self.negative and self.digits else text


def digits_of(text: str) -> Digits | None:
    """The digits of a number as JSON writes it, or with a plus sign or zeros in front; None for another text."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, power = match[1], match[2], match[3] or "", match[4] or "0"
    exponent = int(power[:8])  # longer ones are beyond all bounds
    exponent = max(-_MOST_EXPONENT, min(exponent, _MOST_EXPONENT)) - len(fraction)
    digits = (whole + fraction).lstrip("0")
    stripped = digits.rstrip("0")
    return Digits(sign == "-", stripped, exponent + len(digits) - len(stripped) if stripped else 0)


def comes_back(number: Digits, kind: str) -> bool:
    """Whether the FLOAT or DOUBLE next to a number, written with as many digits, is the number again."""
    size = len(number.digits)
    if not size or (size <= _SURE_DIGITS[kind] and number.whole_digits in _SURE_EXPONENTS[kind]):
        return True
    if not -400 < number.whole_digits < 400:
        return False
    text = f"{number.digits}e{number.exponent}"
    binary = float(text)
    if kind == "FLOAT" and binary:
        try:
            (binary,) = struct.unpack("f", struct.pack("f", binary))
        except OverflowError:
            return False
    if binary in (0.0, float("inf")):
        return False
    if size > _MOST_DIGITS:
        return Decimal(binary) == Decimal(text)
    return digits_of(f"{binary:.{size - 1}e}") == Digits(False, number.digits, number.exponent)
