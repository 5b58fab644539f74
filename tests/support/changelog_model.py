"""Simple models to hold the changelog rules against: tables as dicts, multisets as counters, lists of everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from starrocks_spark_stages.changelog.rules.conversions import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, RowChange

SinkRow = tuple[Any, ...]


def upserted(changes: Iterable[RowChange], table: SinkRow | None = None) -> SinkRow | None:
    """What a table keyed by one key shows after `changes` of that key: the last add, or nothing after a -D."""
    for change in changes:
        if change.kind.adds:
            table = change.row
        elif change.kind is DELETE:
            table = None
    return table


def multiset(changes: Iterable[RowChange]) -> Counter[Any]:
    """How often each row is there after `changes`."""
    count: Counter[Any] = Counter()
    for change in changes:
        count[change.row] += 1 if change.kind.adds else -1
    return Counter({row: times for row, times in count.items() if times})


def retract_changelog(random: Random, length: int, key: Any = 1) -> list[RowChange]:
    """A valid changelog of one key with whole images: +I, then pairs of -U and +U, then perhaps -D, and again."""
    changes: list[RowChange] = []
    row: SinkRow | None = None
    while len(changes) < length:
        new = (key, random.randrange(4))
        if row is None:
            changes.append(RowChange(INSERT, new))
            row = new
        elif random.random() < 0.3:
            changes.append(RowChange(DELETE, row))
            row = None
        else:
            changes += [RowChange(UPDATE_BEFORE, row), RowChange(UPDATE_AFTER, new)]
            row = new
    return changes


def live_rows(history: Iterable[tuple[RowChange, Any]]) -> list[SinkRow]:
    """The rows that a history of (change, upsert key or None) leaves, in the order in which they came to be there."""
    live: list[tuple[Any, SinkRow]] = []
    for change, key in history:
        identity = change.row if key is None else key
        identities = [identity for identity, _ in live]
        if not change.kind.adds:
            if identity in identities:
                del live[identities.index(identity)]
        elif key is not None and identity in identities:
            live[identities.index(identity)] = identity, change.row
        else:
            live.append((identity, change.row))
    return [row for _, row in live]
