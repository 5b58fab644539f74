"""The choices that options offer, and what a user may set for one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Delivery(Enum):
    """What a replayed batch does to the tables."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


class SchemaChanges(Enum):
    """What happens when a typed route and its table differ."""

    FAIL = "fail"
    IGNORE = "ignore"
    APPLY = "apply"


class OnBadRows(Enum):
    """What happens when the server rejects rows."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


class Compression(Enum):
    """How load bodies are compressed; the value is what the user writes, `header` what the server reads."""

    NONE = "none"
    GZIP = "gzip"
    LZ4_FRAME = "lz4_frame"
    ZSTD = "zstd"

    @property
    def header(self) -> str | None:
        return None if self is Compression.NONE else self.value

    @property
    def csv_format(self) -> str:
        """The property `format` of CSV that is compressed so (wire contract 5.2)."""
        return {"none": "csv", "lz4_frame": "lz4"}.get(self.value, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What differs for one table: stream-load properties that are laid over those of all tables."""

    properties: Mapping[str, str] = field(default_factory=dict)
