"""JSON documents as the server keeps and shows them: keys in order, numbers at their shortest (wire contract 5.11)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from starrocks_emulator.tables.json_text import BadText, BrokenRow, elements_of, members_of, unescaped

NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LARGEST_WHOLE: Final = (1 << 64) - 1
_PLAIN_BELOW: Final = 1e16
"""From here on a number is written with an exponent."""


class NoDocument(ValueError):
    """A text that is no JSON, or has what the server refuses: a number beyond a double's, half of a surrogate pair."""


class _Unusual(Exception):
    """What Python's own writer cannot write as the server does."""


def shown(text: str) -> str:
    """A document as the server shows it: a space after each comma and colon; raises NoDocument."""
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_int=_whole, parse_float=_fraction, parse_constant=_refuse
        )
        written = json.dumps(document, sort_keys=True, ensure_ascii=False)
        written.encode()
    except (_Unusual, RecursionError):
        return _written(text)
    except (ValueError, UnicodeEncodeError) as error:
        raise NoDocument("the text is no JSON document") from error
    return written


def shown_or_none(text: str) -> str | None:
    """`shown`, or None for what is no document."""
    try:
        return shown(text)
    except NoDocument:
        return None


def number_text(number: float) -> str:
    """A double as the server writes it: the shortest that reads the same, a whole one without a point."""
    text = repr(number)
    return text.removesuffix(".0")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):  # the server keeps both
        raise _Unusual
    return members


def _whole(text: str) -> int | float:
    if text == "-0":
        return 0
    number = int(text) if len(text) < 40 else float(text)
    if -(1 << 63) <= number <= _LARGEST_WHOLE:
        return number
    return _fraction(text)


def _fraction(text: str) -> int | float:
    number = float(text)
    if math.isinf(number):
        raise NoDocument(f"{text} is beyond a double's numbers")
    if not number.is_integer() or abs(number) >= _PLAIN_BELOW:
        return number
    if number == 0 and text.startswith("-"):
        raise _Unusual
    return int(number)


def _refuse(text: str) -> Any:
    raise NoDocument(f"{text} is no JSON")


def _written(text: str) -> str:
    """`shown` step by step, for documents of any depth."""
    parts: list[str] = []
    left: list[str | tuple[str, str]] = [("", text.strip(" \t\r\n"))]
    while left:
        step = left.pop()
        if isinstance(step, str):
            parts.append(step)
            continue
        _, value = step
        try:
            left.extend(reversed(_steps(value)))
        except (BrokenRow, BadText) as error:
            raise NoDocument("the text is no JSON document") from error
    return "".join(parts)


def _steps(value: str) -> list[str | tuple[str, str]]:
    """What to write for a value: texts as they are, and values (in pairs, to be taken apart later)."""
    if value[:1] == "{":
        members = sorted(members_of(value), key=lambda member: member[0])
        steps: list[str | tuple[str, str]] = ["{"]
        for place, (key, part) in enumerate(members):
            steps += [(", " if place else "") + json.dumps(key, ensure_ascii=False) + ": ", ("", part)]
        return [*steps, "}"]
    if value[:1] == "[":
        steps = ["["]
        for place, part in enumerate(elements_of(value)):
            steps += [", " if place else "", ("", part)]
        return [*steps, "]"]
    return [_scalar(value)]


def _scalar(value: str) -> str:
    if value in ("true", "false", "null"):
        return value
    if value[:1] == '"':
        return json.dumps(unescaped(value), ensure_ascii=False)
    if not NUMBER.fullmatch(value):
        raise BrokenRow("a value is none")
    if value.lstrip("-").isdigit():
        number = _whole(value)
        return str(number) if isinstance(number, int) else number_text(number)
    double = float(value)
    if math.isinf(double):
        raise NoDocument(f"{value} is beyond a double's numbers")
    return number_text(double)
