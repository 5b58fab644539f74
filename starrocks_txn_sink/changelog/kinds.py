"""The four row kinds: codes for changelogs, names for mappings."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Any, NamedTuple

Row = Any  # opaque: rules only compare rows and pass them through


class RowKind(StrEnum):
    """Kind of a change; the value is its code (`+I`), the name its long form (`INSERT`)."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def adds(self) -> bool:
        """Whether the change adds its row; the other kinds retract it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class RowChange(NamedTuple):
    """One row of a changelog."""

    kind: RowKind
    row: Row


Key = Hashable
