"""Bounded collections of label values, so that a metric never has unlimited series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from starrocks_txn_sink.metrics.catalogue import OTHER

Value = TypeVar("Value")


class BoundedNames:
    """Label values for names: the first `limit` names keep theirs, all later ones become OTHER."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label_for(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(name)
        return name


class LatestValues(Generic[Value]):
    """The newest value of each name, for at most `limit` names; a new name evicts the name set longest ago."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[str, Value] = {}

    def set(self, name: str, value: Value) -> None:
        self._values.pop(name, None)
        self._values[name] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def get(self, name: str) -> Value | None:
        return self._values.get(name)

    def items(self) -> Iterator[tuple[str, Value]]:
        yield from self._values.items()

    def __len__(self) -> int:
        return len(self._values)
