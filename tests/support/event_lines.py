"""Random raw values, most of them events with an oddity or two; and a plain judge of one value, for comparison."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import Any

TEXTS = ("type", "txn_id", "database", "table", "op", "row")
FIELDS = ("source_partition", "position", *TEXTS)

_STRINGS = (
    '"DATA"', '"BEGIN"', '"END"', '"t"', '""', '"ü"', '"😀"', r'"\ud83d\ude00"', r'"a\u0000b"', r'"\\"', r'"\""',
    '"NaN"', '": NaN"', '", Infinity"', '"Information"', '"}{"', r'"{\"id\": 1}"', r'"{\"id\":1},{\"id\":2}"', '"\x7f"',
    '"\u2028"',
)  # fmt: skip
_NUMBERS = (
    "0", "-0", "7", "1.10", "1e400", "-1E+2", "0.1234567890123456789012345678", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "00000000000000000001"[:1],
)  # fmt: skip
_OTHERS = ("null", "true", "false", "[]", "{}", "[1, 2]", '{"a": 1.10, "b" : [ 1 ]}', '{"row": "x", "type": "y"}')
_WRONG = (
    "NaN", "Infinity", "-Infinity", "[NaN]", '{"a":-Infinity}', "nan", "Inf", "01", "1.", ".5", "+1", "-", "1e", "tRue",
    "'a'", "[1,]", '{"a":1,}', '{"a" 1}', "{a: 1}", "[1 2]", "", '"a\nb"', '"a\tb"', r'"\x"', r'"\u12"', '"', "[", "{",
    "]", "}", "/*c*/1", "[[}]", '{"a":}', "\x00",
)  # fmt: skip
_SURROGATES = (r'"\ud800"', r'"\udc00"', r'"a\ud800\ud800"', r'"\udc00\ud800"')
_SPACE = ("", "", "", "", " ", "\n", "\t", "\r\n", "  ")
_TAILS = ("{}", " {}", "\n{}", "x", "\x0b", "\xa0", "\ufeff", ",", "}", "//", "\x00")
_BYTES = (b"\xff", b"\xed\xa0\x80", b"\xc3", b"\x80", b"\xe0\x80\xaf", b"\xe0\x9f\xbf", b"\xf8\x88\x80\x80\x80")


def random_value(rng: random.Random) -> bytes | None:
    """One value, as Kafka has it."""
    if rng.random() < 0.3:
        return _plain_event(rng)
    if rng.random() < 0.005:
        return rng.choice((None, b"", b" ", b"null", b"[]", b'"text"', b"{}", b"}{", b"\xef\xbb\xbf{}"))
    text = _event(rng)
    if rng.random() < 0.1:
        text += rng.choice(_TAILS) if rng.random() < 0.5 else _event(rng)
    if rng.random() < 0.05:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", "", '"', "\\", ",", "{", "}", "\n")) + text[at + 1 :]
    raw = text.encode()
    if rng.random() < 0.03:
        at = rng.randrange(len(raw))
        raw = raw[:at] + rng.choice(_BYTES) + raw[at + rng.randrange(2) :]
    return raw


def _plain_event(rng: random.Random) -> bytes:
    event: dict[str, Any] = {"source_partition": "p", "position": rng.randrange(1000), "type": "DATA", "txn_id": "t"}
    return json.dumps(event | {"table": "items", "op": "c", "row": json.dumps({"id": rng.randrange(9)})}).encode()


def _event(rng: random.Random) -> str:
    names = rng.sample(FIELDS, rng.randrange(len(FIELDS) + 1))
    if rng.random() < 0.5:
        names.append(rng.choice(("further", "TYPE", "", "rów", rng.choice(FIELDS))))
    rng.shuffle(names)
    members = (f"{_space(rng)}{_name(rng, name)}{_space(rng)}:{_space(rng)}{_member(rng, name)}" for name in names)
    return f"{_space(rng)}{{{f'{_space(rng)},'.join(members)}{_space(rng)}}}{_space(rng)}"


def _space(rng: random.Random) -> str:
    return rng.choice(_SPACE)


def _name(rng: random.Random, name: str) -> str:
    if name and rng.random() < 0.02:
        name = f"\\u{ord(name[0]):04x}{name[1:]}"
    return f'"{name}"'


def _member(rng: random.Random, name: str) -> str:
    chance = rng.random()
    if chance < 0.04:
        return rng.choice(_WRONG)
    if chance < 0.05:
        return rng.choice(_SURROGATES)
    if chance < 0.055:
        return _extreme(rng)
    if name == "position":
        return str(rng.randrange(-5, 1000)) if chance < 0.9 else rng.choice(_NUMBERS)
    usual = _STRINGS if name in FIELDS and chance < 0.85 else (*_STRINGS, *_NUMBERS, *_OTHERS)
    return rng.choice(usual)


def _extreme(rng: random.Random) -> str:
    """A number of more digits, or a nesting deeper, than Python's `json` takes by default; at times one too short."""
    if rng.random() < 0.5:
        return "9" * rng.choice((4_300, 4_301, 5_000))
    depth, short = rng.choice((400, 990, 1_100, 1_500)), rng.choice((0, 0, 0, 1))
    opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"b" : ', "} ]"), ("[1,", "]")))
    return opened * depth + "1" + closed * (depth - short)


# --- the plain judge ---


class Raw(str):
    """A number's own text."""

    __slots__ = ()


def judge(value: bytes | None) -> dict[str, Any] | None:
    """The fields of the event `value`, by Python's `json` alone; None if it is none. Objects and arrays are parsed.

    Needs a recursion limit above the depth of the value (`deep_recursion`).
    """
    if value is None:
        return None
    try:
        document = json.loads(value.decode(), parse_constant=_refuse, parse_int=Raw, parse_float=Raw)
        if not isinstance(document, dict) or value.decode().startswith("\ufeff"):
            return None
        event = {name: document.get(name) for name in FIELDS}
        event["position"] = _position(event["position"])
        for name in ("source_partition", *TEXTS):
            json.dumps(event[name], ensure_ascii=False).encode() if isinstance(event[name], str) else None
    except ValueError:
        return None
    return event


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _position(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Raw) or not re.fullmatch(r"-?[0-9]{1,20}", value) or not -(2**63) <= int(value) < 2**63:
        raise ValueError("position")
    return int(value)


def same_event(parsed: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether the parser's event is the judge's; the text of an object or array must parse to it."""
    return all(_same_field(parsed[name], expected[name]) for name in FIELDS)


def _same_field(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, (dict, list, bool)):
        return bool(json.loads(ours, parse_int=Raw, parse_float=Raw) == theirs)
    return bool(ours == theirs)


class DeepRecursion:
    """A context in which Python's `json` takes a nesting of some thousands."""

    def __enter__(self) -> None:
        self._before = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)

    def __exit__(self, *_: object) -> None:
        sys.setrecursionlimit(self._before)
