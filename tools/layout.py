"""`compiled/layout.py` from `compiled/layout.h`: what Python and C exchange is declared once, in C."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

HEADER: Final = Path(__file__).parents[1] / "starrocks_txn_sink/compiled/layout.h"

_DECLARATION: Final = re.compile(
    r"/\* (?P<text>[^/]*?) \*/\n"
    r"(?:enum (?P<enum>\w+)|typedef struct(?: \w+)?) \{\n(?P<members>[^{}]*)\}(?: (?P<struct>\w+))?;"
)
_TYPES: Final = {
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "size_t": "c_size_t",
    "const char *": "c_char_p",
}
"""Of C's types; every other one is a pointer."""

_HEAD: Final = '''"""What Python and C exchange. Written by `python -m tools` from `layout.h`: change that file."""

import ctypes
import enum
'''


def layout_py() -> str:
    """The module; ValueError for a declaration that has no comment in front, or another form than the others."""
    text = HEADER.read_text(encoding="utf-8")
    declarations = list(_DECLARATION.finditer(text))
    if len(declarations) != len(re.findall(r"^(?:enum|typedef)", text, re.MULTILINE)):
        raise ValueError(f"{HEADER.name}: a declaration has no comment in front, or another form than the others")
    return "\n\n".join([_HEAD.rstrip("\n") + "\n", *("\n".join(_lines(match)) + "\n" for match in declarations)])


def _lines(match: re.Match[str]) -> Iterator[str]:
    members = [line.strip().rstrip(",;") for line in match["members"].splitlines()]
    name = match["enum"] or match["struct"]
    yield f"class {name}({'enum.IntEnum' if match['enum'] else 'ctypes.Structure'}):"
    yield from _docstring(match["text"])
    yield ""
    yield from (_constants(members) if match["enum"] else _fields(members))


def _docstring(comment: str) -> list[str]:
    text = " ".join(comment.split())
    if len(text) < 110:
        return [f'    """{text}"""']
    first, _, others = text.partition(". ")
    lines = textwrap.wrap(others, 116)
    return [f'    """{first}.', "", *(f"    {line}" for line in lines), '    """']


def _constants(names: Sequence[str]) -> Iterator[str]:
    yield from (f"    {name.partition('_')[2]} = {number}" for number, name in enumerate(names))


def _fields(members: Sequence[str]) -> Iterator[str]:
    yield "    _fields_ = ("
    for member in members:
        kind, name = re.fullmatch(r"(.*?)\b(\w+)", member).groups()  # type: ignore[union-attr]
        yield f'        ("{name}", ctypes.{_TYPES.get(kind.strip(), "c_void_p")}),'
    yield "    )"
