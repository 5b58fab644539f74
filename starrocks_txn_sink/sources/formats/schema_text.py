"""Kafka Connect's schema of the registry's schemas, as the text that goes in front of each message."""

from __future__ import annotations

from typing import Any, Final

import orjson

MOST_PARTS: Final = 300_000  # a table has some thousand columns at most, each of a few parts


def schema_text(connect: dict[str, Any]) -> bytes:
    """The JSON of Connect's schema, each type written out where it is named.

    Raises ValueError for one that is too large: forty types that each name the next one twice would be 2**40.
    """
    if _parts(connect, {}) > MOST_PARTS:
        raise too_large()
    return orjson.dumps(connect)


def too_large() -> ValueError:
    """The error of a schema with more than MOST_PARTS."""
    return ValueError(f"too large: it has more than {MOST_PARTS:,} parts where each type is written out")


def _parts(part: Any, counts: dict[int, int]) -> int:
    """How many objects, arrays and values the JSON of a part has; `counts` has those of the parts met before."""
    if not isinstance(part, dict | list):
        return 1
    if id(part) not in counts:
        counts[id(part)] = 1 + sum(
            _parts(inner, counts) for inner in (part.values() if isinstance(part, dict) else part)
        )
    return counts[id(part)]
