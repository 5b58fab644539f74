"""RowKind: the four kinds of change, by the code that a changelog carries and by the name that mappings use."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from typing import Any, NamedTuple

Row = Any  # opaque to every rule: rows are only compared and handed on


class RowKind(StrEnum):
    """A kind is its code (`+I`); its `name` is the long form (`INSERT`)."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def adds(self) -> bool:
        """Whether the row is there after the change; the other kinds retract it."""
        return self in (RowKind.INSERT, RowKind.UPDATE_AFTER)


INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Change(NamedTuple):
    """One row of a changelog."""

    kind: RowKind
    row: Row


Key = Hashable
