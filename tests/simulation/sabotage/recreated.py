"""Planted bugs of what tells a recreated source from one that comes again."""

from __future__ import annotations

from typing import Any

import numpy as np

from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.verified import deliveries, lane, parts
from starrocks_txn_sink.rows.unpositioned import UnpositionedSegmenter
from starrocks_txn_sink.sources.kafka import topic_ids

from .registry import nothing, recreated_bug

# --- the one judge, by both readers ---


def _believe(put: Any) -> None:
    def broken(_: Any, __: Any, places: Any, *___: Any, **____: Any) -> history.Verdict:
        return history.Verdict(np.ones(len(places), dtype=bool), None)

    put(history, "judge", broken)


def _take_all_for_new(put: Any) -> None:
    put(history, "kinds", lambda above, **_: np.full(len(above), history.Kind.NEW, np.int8))


def _compare_no_contents(put: Any) -> None:
    put(history, "_disproof", nothing_wrong)


def nothing_wrong(*_: object) -> None:
    """No unit is another one."""


@recreated_bug("retold")
def an_event_that_comes_again_is_believed(put: Any) -> None:
    _believe(put)


@recreated_bug("same ids")
def a_transaction_that_comes_again_is_believed(put: Any) -> None:
    _believe(put)


@recreated_bug("retold")
def an_event_at_a_lower_place_is_new(put: Any) -> None:
    _take_all_for_new(put)


@recreated_bug("same ids")
def a_transaction_at_a_lower_place_is_new(put: Any) -> None:
    _take_all_for_new(put)


@recreated_bug("retold")
def events_that_come_again_are_not_compared(put: Any) -> None:
    _compare_no_contents(put)


@recreated_bug("same ids")
def transactions_that_come_again_are_not_compared(put: Any) -> None:
    _compare_no_contents(put)


# --- what is dropped is told ---


@recreated_bug("retold")
def what_nothing_proves_is_dropped_without_a_word(put: Any) -> None:
    put(IncrementalAssembler, "repeat_notices", lambda _: [])


# --- ids that come twice ---


@recreated_bug("same ids")
def what_else_is_read_of_a_cut_transaction_goes_with_its_release(put: Any) -> None:
    put(deliveries._CutTransactions, "_others", lambda _, __, delivery, **___: delivery.places[:0])


@recreated_bug("same ids")
def a_begin_whose_rows_are_unread_goes_with_the_transaction_of_its_id(put: Any) -> None:
    right = deliveries._CutTransactions._others

    def broken(self: Any, rows: Any, delivery: Any, *, awaited: bool) -> Any:
        return right(self, rows, delivery, awaited=awaited and len(delivery.places) > 1)

    put(deliveries._CutTransactions, "_others", broken)


@recreated_bug("same ids")
def what_waits_stays_with_the_source_whose_ids_come_again(put: Any) -> None:
    put(lane.VerifiedLane, "_hand_over", nothing)


@recreated_bug("same ids")
def what_is_left_of_a_transaction_is_of_the_one_that_has_its_id_again(put: Any) -> None:
    put(parts, "_part_of", lambda code, *_: np.unique(code, return_inverse=True)[1])


# --- rows without positions ---


@recreated_bug("unit")
def the_digest_of_a_replayed_unit_is_not_compared(put: Any) -> None:
    put(UnpositionedSegmenter, "compare_replay", nothing_wrong)


# --- topics ---


@recreated_bug("topic")
def a_topic_is_what_its_name_is(put: Any) -> None:
    put(topic_ids, "refuse_new_topics", nothing_wrong)


@recreated_bug("topic")
def a_run_asks_for_a_topic_once(put: Any) -> None:
    put(topic_ids, "ASKED_AGAIN", float("inf"))


@recreated_bug("topic")
def a_run_does_not_know_what_the_one_before_has_asked(put: Any) -> None:
    right = topic_ids.TopicIds.check

    def broken(self: Any, topics: Any, _: Any, *others: Any) -> Any:
        return right(self, topics, {}, *others)

    put(topic_ids.TopicIds, "check", broken)
