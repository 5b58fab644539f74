"""Planted bugs of the lanes that take Debezium's messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from starrocks_txn_sink.assembler.rules import intake
from starrocks_txn_sink.assembler.verified import deliveries, intake as verified_intake, lane, tally
from starrocks_txn_sink.writer.assembling import LaneAssembler

from .registry import debezium_bug


@debezium_bug
def an_end_alone_makes_a_transaction_whole(put: Any) -> None:
    right = tally.tally

    def broken(*given: Any) -> Any:
        found = right(*given)
        return replace(found, whole=(found.end >= 0) & ~found.conflict)

    put(tally, "tally", broken)


@debezium_bug
def the_counts_of_the_tables_are_not_compared_and_rows_may_lack(put: Any) -> None:
    right = tally.tally

    def broken(*given: Any) -> Any:
        found = right(*given)
        return replace(found, whole=(found.expected >= found.count) & (found.count > 0) & ~found.conflict)

    put(tally, "tally", broken)


@debezium_bug
def a_commit_overtakes_one_that_waits(put: Any) -> None:
    right = tally.classify

    def broken(found: Any, last_position: Any) -> Any:
        waiting = (found.end >= 0) & ~found.whole
        return right(replace(found, end=np.where(waiting, -1, found.end)), last_position)

    put(tally, "classify", broken)


@debezium_bug
def the_rest_of_a_cut_transaction_is_taken_for_the_whole(put: Any) -> None:
    put(deliveries._CutTransactions, "_start", lambda *_, **__: 0)


@debezium_bug
def a_second_begin_changes_nothing(put: Any) -> None:
    def broken(events: Any, code: Any, is_begin: Any, overdue: Any, with_rows: Any) -> Any:
        del events, code, is_begin, with_rows
        return {}, np.zeros(len(overdue), dtype=bool)

    put(tally, "join_deliveries", broken)


@debezium_bug
def the_newest_of_the_rows_that_wait_are_forgotten(put: Any) -> None:
    right = lane.VerifiedLane._rewritten

    def broken(self: Any, rest: Any) -> Any:
        return right(self, [(segment, chosen & (np.cumsum(chosen) < chosen.sum())) for segment, chosen in rest])

    put(lane.VerifiedLane, "_rewritten", broken)


@debezium_bug
def a_transaction_that_comes_again_is_written_again(put: Any) -> None:
    right = tally.classify

    def broken(found: Any, last_position: Any) -> Any:
        classes = right(found, last_position)
        both = np.concatenate([classes.released, classes.repeated])
        return replace(classes, released=both, repeated=classes.repeated[:0])

    put(tally, "classify", broken)
    put(verified_intake, "remember_ids", lambda *_: ())


@debezium_bug
def a_message_that_comes_twice_is_written_twice(put: Any) -> None:
    put(intake, "without_repeats", lambda given, *_: given)


@debezium_bug
def a_lane_of_changes_stops_behind_a_message_that_it_has_not_read(put: Any) -> None:
    right = LaneAssembler._stops_after

    def broken(self: Any, *given: Any) -> Any:
        stopped = right(self, *given)
        self._reached = {name: offset + 1 for name, offset in self._reached.items()}
        return stopped

    put(LaneAssembler, "_stops_after", broken)
