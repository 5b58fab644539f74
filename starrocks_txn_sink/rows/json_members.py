"""The members of a text that is one JSON object, in their own characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_SPACES: Final = frozenset(" \t\r\n")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_PLAIN_NAME: Final = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*')


class Number(str):
    """A JSON number in its own digits."""

    __slots__ = ()


def members(text: str) -> dict[str, tuple[Any, str]]:
    """The value and the raw JSON of each member of the one JSON object in `text`. The last of equal names counts.

    Numbers are `Number`. Raises ValueError or IndexError for any other text: malformed, or more than one document.
    """
    return {name: (value, text[start:end]) for name, value, start, end in spans_of(text)}


def spans_of(text: str) -> Iterator[tuple[str, Any, int, int]]:
    """The name and the value of each member of the one JSON object in `text`, and where the value is (`members`)."""
    place = _skip(text, 0)
    _expect(text, place, "{")
    place = _skip(text, place + 1)
    while text[place] != "}":
        name, start = _name(text, place)
        value, end = value_at(text, start)
        yield name, value, start, end
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
            _expect(text, place, '"')
        else:
            _expect(text, place, "}")
    if _skip(text, place + 1) != len(text):
        raise ValueError("more than one object")


def rewritten(text: str, change: Callable[[str, Any, str, str], str | None]) -> str:
    """The one JSON object in `text` with each member as `change` writes it: "" leaves it out, None as it is.

    `change` gets a member's name and value, then its own characters: the name with its colon, and the value. Members
    as they are keep what stands between them. The compiled loops write the same characters: a row that is replayed
    may be read with a loop once, and once without, and is compared with what was written.
    """
    pieces, span, end_of_last = list[str](), slice(0, 0), 0
    for name, value, start, end in spans_of(text):
        begin, end_of_last = text.index('"', end_of_last), end
        output = change(name, value, text[begin:start], text[start:end])
        if output is None:
            span = slice(span.start if span.stop else begin, end)
            continue
        pieces += filter(None, (text[span], output))
        span = slice(0, 0)
    return f"{{{','.join(filter(None, (*pieces, text[span])))}}}"


def elements_of(text: str) -> Iterator[tuple[Any, int, int]]:
    """The elements of the JSON array in `text`, which is well-formed, and where each one stands."""
    place = _skip(text, 1)
    while text[place] != "]":
        value, end = value_at(text, place)
        yield value, place, end
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)


def _name(text: str, place: int) -> tuple[str, int]:
    """The name of a member and the place of its value."""
    plain = _PLAIN_NAME.match(text, place)
    if plain:
        return plain[1], plain.end()
    _expect(text, place, '"')
    name, place = _DECODER.raw_decode(text, place)
    place = _skip(text, place)
    _expect(text, place, ":")
    return name, _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    if text[place : place + 1] not in _SPACES:
        return place
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _expect(text: str, place: int, character: str) -> None:
    if text[place] != character:
        raise ValueError(character)


def value_at(text: str, place: int) -> tuple[Any, int]:
    """The value at `place` (numbers as text) and its end; for a value nested too deep for `json` only the end."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except RecursionError:
        return (), _end_of_nested(text, place)
    return value, end


def _end_of_nested(text: str, place: int) -> int:
    """The end of the array or object at `place`, without recursion; ValueError or IndexError if it is malformed."""
    closers: list[str] = []
    due = "value"
    while True:
        place = _skip(text, place)
        character = text[place]
        if closers and character == closers[-1] and due in ("comma", "first", "first key"):
            closers.pop()
            place, due = place + 1, "comma"
            if not closers:
                return place
        elif due == "comma":
            _expect(text, place, ",")
            place, due = place + 1, "key" if closers[-1] == "}" else "value"
        elif due in ("key", "first key"):
            place, due = _name(text, place)[1], "value"
        elif character in "[{":
            closers.append("]" if character == "[" else "}")
            place, due = place + 1, "first" if character == "[" else "first key"
        else:
            place, due = _DECODER.raw_decode(text, place)[1], "comma"


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # json accepts NaN and Infinity, which are no JSON


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_float=Number, parse_int=Number)
