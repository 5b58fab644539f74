"""Texts that stand for bytes of a VARBINARY column, which the server decodes (`options.decoding`).

The server makes an empty value of a text in another encoding, without a word (wire contract 5.5): so the sink judges.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows.target import MOST_BYTES

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*", re.ASCII)


def count_bytes(text: str, encoding: Encoding) -> int | None:
    """How many bytes a text stands for; None for a longer text than the server reads, and for one in another encoding.

    Of base64 only the one form counts that an encoder writes, with its padding.
    """
    if len(text) > MOST_BYTES:
        return None
    if encoding is Encoding.HEX:
        return len(text) // 2 if _HEX.fullmatch(text) else None
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return len(content) if base64.b64encode(content).decode() == text else None


DECODED: Final = (
    ("text", "base64 with its padding, or hexadecimal digits, by the source", f"texts of another form, or of more than "
     f"{MOST_BYTES:,} letters; more bytes than the column has"),
    ("anything else", "", "all"),
)  # fmt: skip
"""What becomes of JSON in a VARBINARY column that the server decodes: the kind, what is kept, and what is refused."""
