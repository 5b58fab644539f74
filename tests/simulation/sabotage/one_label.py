# ruff: noqa: ARG005 - a planted bug has the signature of what it replaces
"""Planted bugs of the label that all lanes share: who loads, who judges, who commits, and rounds."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from starrocks_txn_sink.coordinator import coordinator, ownership
from starrocks_txn_sink.coordinator.coordinator import SharedTransactionCoordinator
from starrocks_txn_sink.coordinator.model import PositionSpan, RegionRows
from starrocks_txn_sink.coordinator.ownership import Ownership
from starrocks_txn_sink.errors import OutcomeUnknown
from starrocks_txn_sink.protocol import fencing, label as protocol, ledger
from starrocks_txn_sink.protocol.label import Unknown
from starrocks_txn_sink.protocol.ledger import ReadOwner
from starrocks_txn_sink.writer import lane_try
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.pipe import Stop

from .begins import as_the_first
from .registry import bug, nothing


@bug
def a_task_that_spark_runs_again_loads_under_the_label(put: Any) -> None:
    put(SparkLane, "repeated", lambda *_: None)


@bug
def a_second_try_does_not_mind_the_claim_of_the_first(put: Any) -> None:
    put(lane_try, "claim", nothing)
    put(lane_try, "enter", as_the_first(lane_try.enter))


@bug
def a_source_partition_in_two_tasks_is_not_noticed(put: Any) -> None:
    put(coordinator, "find_shared_partition", lambda shares: None)


@bug
def the_label_is_committed_although_a_lane_has_failed(put: Any) -> None:
    right = coordinator.judge

    def broken(lanes: Any, *, may_sort: bool) -> Any:
        return right(dataclasses.replace(lanes, failures=() if lanes.shares else lanes.failures), may_sort=may_sort)

    put(coordinator, "judge", broken)


@bug
def rows_out_of_order_are_committed_all_the_same(put: Any) -> None:
    put(coordinator, "judge", lambda lanes, may_sort: "")


@bug
def the_label_is_committed_without_its_positions(put: Any) -> None:
    right = coordinator.commit_shared
    put(
        coordinator,
        "commit_shared",
        lambda label, contents, entries, *more, **named: right(label, contents, (), *more, **named),
    )


@bug
def a_label_of_unknown_outcome_is_not_ended_before_the_ledger_is_read(put: Any) -> None:
    def broken(self: Any, label: str, spans: Any, rng: Any) -> Any:
        scope = fencing.Scope(self.job, self.database, self.owner)
        positions = yield from fencing.read_positions(scope, self.new_token, rng)
        return ownership._outcome_of(label, spans, positions)

    put(Ownership, "recover", broken)


@bug
def a_failed_label_is_used_again(put: Any) -> None:
    right = SharedTransactionCoordinator._write_part

    def broken(self: Any, part: Any) -> Any:
        label = next(self.labels)
        self.labels = iter(lambda: label, None)
        return (yield from right(self, part))

    put(SharedTransactionCoordinator, "_write_part", broken)
    put(coordinator, "roll_back", nothing)


@bug
def an_error_while_committing_starts_over(put: Any) -> None:
    right = SharedTransactionCoordinator._write_part

    def broken(self: Any, part: Any) -> Any:
        for tries in range(3):
            try:
                return (yield from right(self, part))
            except Exception as error:
                if tries == 2 or getattr(error, "code", "") != "outcome_unknown":
                    raise

    put(SharedTransactionCoordinator, "_write_part", broken)
    put(Ownership, "recover", lambda self, label, spans, rng: unknown(label))


def unknown(label: str) -> Any:
    yield from ()
    return Unknown(label, OutcomeUnknown("unknown"))


@bug
def the_owner_is_read_when_the_transaction_begins(put: Any) -> None:
    """The check is made before the loads instead of after them."""
    owners: dict[str, Any] = {}
    begin = protocol.begin

    def early(label: Any, headers: Any) -> Any:
        owners[label.name] = yield from ledger.retry_until_answered(ReadOwner("job"), random.Random(0))
        yield from begin(label, headers)

    def late(self: Any, label: str, rng: Any) -> Any:
        del rng
        self.canary, self.listed = False, True  # which it would be
        if owners[label] is None or owners[label].token != self.owner.token:
            raise ledger.fenced("The job", owners[label])
        yield from ()

    put(protocol, "begin", early)
    put(Ownership, "check", late)


@bug
def a_lane_that_has_stopped_counts_as_ended(put: Any) -> None:
    right = SharedTransactionCoordinator.finish

    def broken(self: Any, *arguments: Any) -> Any:
        receipt, _ = yield from right(self, *arguments)
        return receipt, False

    put(SharedTransactionCoordinator, "finish", broken)


@bug
def a_lane_stops_inside_a_source_transaction(put: Any) -> None:
    right = Stop.__call__

    def broken(self: Any, items: Any, ends: Any = None) -> Any:
        if ends is None:
            return right(self, items)
        return inside(self, items)

    def inside(self: Any, segments: Any) -> Any:
        for segment in segments:
            yield segment
            if self.due() and isinstance(segment, RegionRows):
                position = int(segment.row_index.positions[-1]) if segment.row_index is not None else 10**9
                yield PositionSpan(segment.partition, position, position, 1, "crc1:00000000")
                self.end()
                return

    put(Stop, "__call__", broken)


@bug
def a_round_is_not_learned_before_the_next_one(put: Any) -> None:
    right = SharedTransactionCoordinator.write

    def broken(self: Any, *rooms: Any) -> Any:
        callback, self.committed = self.committed, lambda receipt: receipts.append(receipt)
        receipts: list[Any] = []
        try:
            return (yield from right(self, *rooms))
        finally:
            for receipt in receipts:
                callback(receipt)

    put(SharedTransactionCoordinator, "write", broken)
