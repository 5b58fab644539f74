"""The load property with which the server decodes texts that stand for bytes into VARBINARY columns.

JSON has no bytes, and a VARBINARY keeps the letters of a text (wire contract 5.5). So the property `columns` of a table
says which columns the server decodes, and how. It names nothing else: the server then reads all other columns by their
names, as without the property.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final


class Encoding(Enum):
    """How texts stand for bytes, by the server's name of it."""

    BASE64 = "encode64"
    HEX = "hex"


_DECODED: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*=\s*to_binary\s*\("
    r"\s*(?:`(?P<same_quoted>(?:[^`]|``)+)`|(?P<same_plain>\w+))\s*,\s*'(?P<encoding>encode64|hex)'\s*\)\s*(?:,|$)",
    re.IGNORECASE,
)


def decoding(columns: Mapping[str, Encoding]) -> str:
    """The property `columns` with which the server decodes texts of these columns."""
    names = {"`" + name.replace("`", "``") + "`": encoding.value for name, encoding in columns.items()}
    return ",".join(f"{name}=to_binary({name}, '{encoding}')" for name, encoding in names.items())


def decoded_by(header: str) -> Mapping[str, Encoding] | None:
    """The columns that a property `columns` decodes; None for one that says anything else, and for an empty one."""
    columns, place = dict[str, Encoding](), 0
    while match := _DECODED.match(header, place):
        name, same = match["quoted"] or match["plain"], match["same_quoted"] or match["same_plain"]
        if name != same:
            return None
        columns[name.replace("``", "`")] = Encoding(match["encoding"].lower())
        place = match.end()
    return columns if columns and place == len(header) and not header.rstrip().endswith(",") else None
