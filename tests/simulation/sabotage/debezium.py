"""Planted bugs of the lanes that take Debezium's messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from starrocks_txn_sink.assembler.rules import intake
from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.assembler.verified import deliveries, intake as verified_intake, lane, repeats, tally
from starrocks_txn_sink.sink.session import Session
from starrocks_txn_sink.writer.assembling import LaneAssembler

from .registry import debezium_bug, nothing


@debezium_bug
def an_end_alone_makes_a_transaction_whole(put: Any) -> None:
    right = tally.tally

    def broken(*arguments: Any) -> Any:
        counts = right(*arguments)
        return replace(counts, whole=(counts.end >= 0) & ~counts.conflict)

    put(tally, "tally", broken)


@debezium_bug
def the_counts_of_the_tables_are_not_compared_and_rows_may_lack(put: Any) -> None:
    right = tally.tally

    def broken(*arguments: Any) -> Any:
        counts = right(*arguments)
        return replace(counts, whole=(counts.expected >= counts.count) & (counts.count > 0) & ~counts.conflict)

    put(tally, "tally", broken)


@debezium_bug
def a_commit_overtakes_one_that_waits(put: Any) -> None:
    right = tally.classify

    def broken(counts: Any, *arguments: Any) -> Any:
        waiting = (counts.end >= 0) & ~counts.whole
        return right(replace(counts, end=np.where(waiting, -1, counts.end)), *arguments)

    put(tally, "classify", broken)


@debezium_bug
def the_rest_of_a_cut_transaction_is_taken_for_the_whole(put: Any) -> None:
    put(deliveries._CutTransactions, "_start", lambda *_, **__: 0)


@debezium_bug
def a_second_begin_changes_nothing(put: Any) -> None:
    def broken(events: Any, code: Any, is_begin: Any, known: Any, overdue: Any, with_rows: Any) -> Any:
        del events, code, is_begin, known, with_rows
        return {}, np.zeros(len(overdue), dtype=bool)

    put(tally, "join_deliveries", broken)


@debezium_bug
def the_newest_of_the_rows_that_wait_are_forgotten(put: Any) -> None:
    right = lane.VerifiedLane._rewritten

    def broken(self: Any, segments: Any, new_events: Any) -> Any:
        held = [(segment, mask & (np.cumsum(mask) < mask.sum())) for segment, mask in segments]
        return right(self, held, (events.slice(0, events.num_rows - 1) for events in new_events))

    put(lane.VerifiedLane, "_rewritten", broken)


@debezium_bug
def rows_that_wait_over_a_second_micro_batch_are_forgotten(put: Any) -> None:
    right = lane.VerifiedLane._written

    def broken(self: Any, state: Any, segments: Any) -> Any:
        return right(self, state, [segment for segment in segments if segment.number is None])

    put(lane.VerifiedLane, "_written", broken)


@debezium_bug
def a_lane_that_dies_between_counting_and_loading_has_counted_for_the_next_one(put: Any) -> None:
    right = lane.VerifiedLane._judge

    def broken(self: Any, name: str, source: Any) -> Any:
        judgement = right(self, name, source)
        places = lane._places(source.segments[: source.held])
        self.carried[name] = CarriedState(replace(judgement.state, blobs=source.before.blobs), places)
        return judgement

    put(lane.VerifiedLane, "_judge", broken)


@debezium_bug
def of_two_drivers_the_older_one_publishes_what_waits(put: Any) -> None:
    put(Session, "check_owner", nothing)


@debezium_bug
def a_transaction_that_comes_again_is_written_again(put: Any) -> None:
    right = tally.classify

    def broken(*arguments: Any) -> Any:
        classes = right(*arguments)
        all_indexes = np.concatenate([classes.released, classes.repeated])
        return replace(classes, released=all_indexes, repeated=classes.repeated[:0])

    put(tally, "classify", broken)
    put(verified_intake, "remember_ids", lambda *_: ())


@debezium_bug
def a_message_that_comes_twice_is_written_twice(changes: Any) -> None:
    changes(intake, "without_repeats", lambda changes, *_: changes)


@debezium_bug
def a_lane_of_changes_stops_behind_a_message_that_it_has_not_read(put: Any) -> None:
    right = LaneAssembler._reach

    def broken(self: Any, piece: Any) -> None:
        right(self, piece)
        self._reached = {name: offset + 1 for name, offset in self._reached.items()}

    put(LaneAssembler, "_reach", broken)


@debezium_bug
def what_comes_at_a_lower_place_is_a_repeat_whatever_it_is(put: Any) -> None:
    put(repeats, "judge", lambda _, past, *__, **___: (past, set(), set()))


@debezium_bug
def what_waits_stays_with_the_source_that_another_one_follows(put: Any) -> None:
    put(lane.VerifiedLane, "_hand_over", nothing)
