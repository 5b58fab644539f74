"""Planted bugs of `verify --repair`, beside a job that goes on (`tests.support.repair_model`)."""

from __future__ import annotations

from typing import Any

from starrocks_txn_ops.verify.repair import Repair
from starrocks_txn_sink.errors import Fenced

from .registry import repair_bug


@repair_bug
def a_repair_writes_rows_that_it_read_before_the_hold(put: Any) -> None:
    right, look = Repair._mend, Repair._look

    def broken(self: Any, keys: Any, before: Any, _: Any, held: Any) -> Any:
        put(Repair, "_look", lambda *_: before)
        try:
            return right(self, keys, before, before, held)
        finally:
            put(Repair, "_look", look)

    put(Repair, "_mend", broken)


@repair_bug
def a_repair_writes_behind_its_hold(put: Any) -> None:
    right, look = Repair._mend, Repair._look
    late: list[Any] = []

    class Later:
        """Keeps rows until the hold is over."""

        def __init__(self, held: Any) -> None:
            self._held = held

        def write(self, rows: Any) -> str:
            late.append((self._held, [*rows]))
            return "label"

    def broken(self: Any, *args: Any) -> Any:
        while late:
            held, rows = late.pop()
            held.write(rows)
        return look(self, *args)

    def mended(self: Any, keys: Any, before: Any, target: Any, held: Any) -> Any:
        later: Any = Later(held)
        return right(self, keys, before, target, later)

    put(Repair, "_mend", mended)
    put(Repair, "_look", broken)


@repair_bug
def a_repair_that_lost_the_job_counts_as_written(put: Any) -> None:
    right = Repair._mend

    def broken(self: Any, keys: Any, *args: Any) -> Any:
        try:
            return right(self, keys, *args)
        except Fenced:
            return []

    put(Repair, "_mend", broken)
