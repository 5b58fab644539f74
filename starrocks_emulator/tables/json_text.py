"""JSON as the server's parser reads it (wire contract 5.4): the rows of a body, the members of a row, texts.

It looks at the structure of the whole body first (quotes, brackets, commas), and at a value only when a column wants
it: a number that is none is the fault of its row alone; a brace that is missing hides all rows behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKENS = re.compile(r'[{}\[\]:,]|"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*"|"|[^ \t\r\n{}\[\]:,"]+')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL
)
_OUTSIDE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)
_PAIRS = {"{": "}", "[": "]"}


class UnreadableJson(Exception):
    """A body of which the server keeps no row at all; the message says why."""


class BrokenRow(ValueError):
    """An object whose structure is wrong: its row is filtered, and what is behind it in the body is not seen."""


class BadText(ValueError):
    """A text with an escape that is none, or half of a surrogate pair."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The objects of a body as they were written; `torn` says that the last one is broken."""

    texts: Sequence[str]
    torn: bool = False


class _Tokens:
    """The structure of a text: where its tokens begin, and which character that is."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = [(match.start(), match.end()) for match in _TOKENS.finditer(text)]
        self.spans = found
        self.first = [text[start] for start, _ in found]

    def end_of_value(self, place: int) -> int:
        """The place behind the value that begins there; raises BrokenRow where none begins, or it does not end."""
        opened = self._first(place)
        if opened in ("}", "]", ":", ",", ""):
            raise BrokenRow("a value is missing")
        if opened not in _PAIRS:
            return place + 1
        depth = 0
        for at in range(place, len(self.first)):
            letter = self.first[at]
            depth += (letter in "{[") - (letter in "}]")
            if depth == 0:
                return at + 1
        raise BrokenRow("a bracket is missing")

    def members(self, place: int) -> Iterator[tuple[int, int, int]]:
        """(key, value, end of the value) of the object that begins at `place`; raises BrokenRow."""
        at = place + 1
        if self._first(at) == "}":
            return
        while True:
            if self._first(at) != '"' or self._first(at + 1) != ":":
                raise BrokenRow("a key is missing")
            end = self.end_of_value(at + 2)
            yield at, at + 2, end
            if self._first(end) == "}":
                return
            if self._first(end) != ",":
                raise BrokenRow("a comma is missing")
            at = end + 1

    def elements(self, place: int) -> Iterator[tuple[int, int]]:
        """(element, its end) of the array that begins at `place`; raises BrokenRow."""
        at = place + 1
        if self._first(at) == "]":
            return
        while True:
            end = self.end_of_value(at)
            yield at, end
            if self._first(end) == "]":
                return
            if self._first(end) != ",":
                raise BrokenRow("a comma is missing")
            at = end + 1

    def part(self, start: int, end: int) -> str:
        """The text of the tokens from `start` to before `end`."""
        return self.text[self.spans[start][0] : self.spans[end - 1][1]]

    def _first(self, place: int) -> str:
        return self.first[place] if place < len(self.first) else ""


def rows_of(body: bytes, *, array: bool) -> Rows:
    """The rows of a body: of one array, or of objects one after the other; raises UnreadableJson.

    Nothing behind the end of an array is read; a stream's last object that does not end is dropped without a word.
    """
    try:
        tokens = _Tokens(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UnreadableJson("the body is not valid UTF-8") from error
    for (start, end), first in zip(tokens.spans, tokens.first, strict=True):
        if first == '"' and end - start == 1:
            raise UnreadableJson("a text does not end, or holds a control character")
    return _array_rows(tokens) if array else _stream_rows(tokens)


def _array_rows(tokens: _Tokens) -> Rows:
    if not tokens.first or tokens.first[0] != "[" or tokens.first[-1] != "]":
        raise UnreadableJson("the body is not one array")
    texts: list[str] = []
    at = 1
    if tokens.first[at] == "]":
        return Rows(texts)
    while True:
        if tokens.first[at : at + 1] != ["{"]:
            raise UnreadableJson("an element of the array is not an object")
        end, torn = _row(tokens, at)
        texts.append(tokens.part(at, end))
        if torn or tokens.first[end] == "]":
            return Rows(texts, torn)
        if tokens.first[end] != ",":
            raise UnreadableJson("a comma between two elements of the array is missing")
        at = end + 1


def _stream_rows(tokens: _Tokens) -> Rows:
    texts: list[str] = []
    at = 0
    while at < len(tokens.first):
        if tokens.first[at] != "{":
            raise UnreadableJson("a document of the stream is not an object")
        try:
            tokens.end_of_value(at)
        except BrokenRow:
            return Rows(texts)
        end, torn = _row(tokens, at)
        texts.append(tokens.part(at, end))
        if torn:
            return Rows(texts, torn)
        at = end
    return Rows(texts)


def _row(tokens: _Tokens, at: int) -> tuple[int, bool]:
    """(end of the object at that place, whether its structure is wrong)."""
    end = at + 1
    try:
        for member in tokens.members(at):
            end = member[2]
    except BrokenRow:
        return min(end + 1, len(tokens.first)), True
    return end + 1, False


def members_of(text: str) -> list[tuple[str, str]]:
    """The members of an object, in order, values as they were written; raises BrokenRow and BadText."""
    tokens = _Tokens(text)
    if tokens.first[:1] != ["{"]:
        raise BrokenRow("the row is not an object")
    return [(unescaped(tokens.part(key, key + 1)), tokens.part(value, end)) for key, value, end in tokens.members(0)]


def elements_of(text: str) -> list[str]:
    """The elements of an array, as they were written; raises BrokenRow."""
    tokens = _Tokens(text)
    return [tokens.part(start, end) for start, end in tokens.elements(0)]


def unescaped(token: str) -> str:
    """The text of a JSON string with its quotes; raises BadText."""
    text = token[1:-1]
    return _ESCAPED.sub(_letter, text) if "\\" in text else text


def _letter(match: re.Match[str]) -> str:
    high, low, code, letter = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    if code and not 0xD800 <= int(code, 16) <= 0xDFFF:
        return chr(int(code, 16))
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    raise BadText("half of a surrogate pair" if code else "an escape that is none")


def minified(text: str) -> str:
    """A value without the blanks between its tokens."""
    return _OUTSIDE.sub(lambda match: match[1] or "", text)
