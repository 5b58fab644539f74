"""Planted bugs of a job that is held at a position of its source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starrocks_txn_sink.assembler.verified import bounds as rules
from starrocks_txn_sink.protocol.bound import EXACT, Bound, ReadBound

from .. import bounded_world
from .registry import bounded_bug


@bounded_bug
def what_is_behind_a_bound_is_released(put: Any) -> None:
    right = rules.cut

    def broken(bound: Any, counts: Any, classes: Any, settled: Any) -> Any:
        return classes, right(bound, counts, classes, settled)[1]

    put(rules, "cut", broken)


@bounded_bug
def a_micro_batch_that_is_cut_at_a_bound_counts_as_written(put: Any) -> None:
    put(bounded_world, "at_bound", lambda *_: None)


@bounded_bug
def a_bound_never_ends(put: Any) -> None:
    right = ReadBound.result

    def broken(self: Any, rows: Any) -> Bound | None:
        bound = right(self, [(name, token, 10_000, 0) for name, token, _, _ in rows])
        return None if bound is None else replace(bound, seconds=10_000)

    put(ReadBound, "result", broken)


@bounded_bug
def commits_that_a_snapshot_shows_in_another_order_are_exact(put: Any) -> None:
    right = rules.cut

    def broken(*arguments: Any) -> Any:
        classes, how = right(*arguments)
        return classes, how and EXACT

    put(rules, "cut", broken)
