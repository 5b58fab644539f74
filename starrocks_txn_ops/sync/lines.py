"""Where a name stands in a file of TOML, for errors: `tomllib` gives values without their lines."""

from __future__ import annotations

import re
from typing import Final

_HEADER: Final = re.compile(r"\s*\[{1,2}\s*([^\[\]#]+?)\s*\]{1,2}\s*(?:#.*)?")
_QUOTES: Final = re.compile(r"[\"']|\s")


def line_of(text: str, place: tuple[str, ...], number: int = 0) -> int:
    """The line of a name in a section, else of what it is in, such as an inline table or the section, else the first.

    `place` are the section's names and the name itself; of several sections with one header `number` says which.
    """
    header, *_ = place or ("",)
    number_seen, at = -1, ""
    for line, content in enumerate(text.splitlines(), 1):
        opened = _HEADER.fullmatch(content)
        if opened:
            at = _QUOTES.sub("", opened[1])
            number_seen += at == header
            if at == ".".join(place) and (len(place) > 1 or number_seen == number):
                return line
        within = at == ".".join(place[:-1]) and (len(place) == 1 or at != header or number_seen == number)
        if within and re.match(rf"""\s*["']?{re.escape(place[-1])}["']?\s*[=.]""", content, re.IGNORECASE):
            return line
    return line_of(text, place[:-1], number) if len(place) > 1 else 1
