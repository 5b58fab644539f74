"""The coordinator of a label, order by order: what it asks for, and what each result leads to."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import (
    MOST_COLLISIONS,
    ChangeTables,
    LaneFailure,
    LanesResult,
    NextRound,
    Order,
    Pause,
    RoundLimits,
    RunLanes,
    SharedTransactionCoordinator,
    claim_of,
    find_shared_partition,
    judge,
    perform_all,
    roll_back,
)
from starrocks_txn_sink.coordinator.model import (
    BeginAction,
    CheckAction,
    Chunk,
    ColumnNeeds,
    CommitAction,
    LaneShare,
    LoadAction,
    PositionSpan,
    Receipt,
    RecoverAction,
    RegionCount,
    RollbackAction,
)
from starrocks_txn_sink.coordinator.ownership import LabelContents
from starrocks_txn_sink.coordinator.quarantine import EVERYTHING
from starrocks_txn_sink.errors import (
    BeginFailed,
    CommitFailed,
    DeadlineExceeded,
    Fenced,
    InputError,
    JobHeld,
    KeyRepeated,
    LoadFailed,
    LoadsCollided,
    NotSent,
    OutcomeUnknown,
    RowsRejected,
    SourceChanged,
    StarRocksSinkError,
    TaskRepeated,
    TransactionTimedOut,
    UnknownColumn,
)
from starrocks_txn_sink.protocol.label import Aborted, Committed, Unknown, labels
from tests.support.manual_clock import ManualClock

LEDGER = "ledger"
UNKNOWN = OutcomeUnknown("?")


def receipt(partition: str = "p", rows: int = 2, first: int = 1, last: int = 1) -> Receipt:
    regions = (RegionCount(partition, "t", rows, 10 * rows),)
    return Receipt("", 7, "job", 9, regions, (PositionSpan(partition, first, last, 1, "d"),), 1, 1, 0, False)


def share(*partitions: str, stopped: bool = False) -> LaneShare:
    """A lane that has loaded a row of each source partition."""
    loaded = tuple(receipt(partition=name, rows=1) for name in partitions)
    return LaneShare(loaded, partitions, stopped=stopped)


def failed(error: StarRocksSinkError, at: float = 0.0) -> LanesResult:
    return LanesResult(failures=[LaneFailure(error, at)])


LOADED = LanesResult([share("p"), share("q")])


class Script:
    """Carries out orders: answers the next of `lanes` to each RunLanes, and those of `answers` to other kinds."""

    def __init__(self, *lanes: LanesResult | BaseException, **answers: list[Any]) -> None:
        self.lanes = deque(lanes)
        self.answers = {name: deque(values) for name, values in answers.items()}
        self.orders: list[Order] = []

    def __call__(self, order: Order) -> object:
        self.orders.append(order)
        name = type(order).__name__
        if isinstance(order, RunLanes):
            answer: Any = self.lanes.popleft()
        elif self.answers.get(name):
            answer = self.answers[name].popleft()
        else:
            answer = Committed(order.label, 3) if isinstance(order, CommitAction) else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def of(self, kind: type[Any]) -> list[Any]:
        return [order for order in self.orders if isinstance(order, kind)]

    @property
    def said(self) -> list[str]:
        """The kinds of the orders, short."""
        return [type(order).__name__.removesuffix("Action") for order in self.orders]

    def open_labels(self) -> set[str]:
        ended = {order.label for order in self.orders if isinstance(order, CommitAction | RollbackAction)}
        return {order.label for order in self.of(BeginAction)} - ended


def entries(label: str, contents: LabelContents) -> Chunk:
    del contents
    chunk = Chunk("", LEDGER)
    chunk.append(memoryview(f",{label}".encode()), 1)
    return chunk


def coordinator(clock: ManualClock | None = None, **changes: Any) -> SharedTransactionCoordinator:
    limits = {"seconds": 240.0, "max_attempts": 3, **changes.pop("limits", {})}
    settings = {"entries": [entries], **changes}
    return SharedTransactionCoordinator(
        (f"L{number}" for number in range(100)),
        RoundLimits(**limits),
        Deadline.after(3600.0, clock or ManualClock()),
        random.Random(1),
        **settings,
    )


def write(script: Callable[[Any], object], **changes: Any) -> tuple[list[Receipt], SharedTransactionCoordinator]:
    coordinator_ = coordinator(**changes)
    return perform_all(coordinator_.write(), script), coordinator_


# --- one label ---


def test_begin_lanes_own_rows_owner_check_and_commit_come_in_this_order() -> None:
    script = Script(LOADED)
    write(script)
    begin, run, load, check, commit = script.orders
    assert (begin, check, commit) == (BeginAction("L0"), CheckAction("L0"), CommitAction("L0"))
    assert run == RunLanes("L0", EVERYTHING, hold=False, seconds=240.0)
    assert isinstance(load, LoadAction)
    assert (load.label, load.table) == ("L0", LEDGER)


def test_the_receipt_is_that_of_all_lanes() -> None:
    clock = ManualClock()
    clock.advance(5)
    committed_receipts: list[Receipt] = []
    (only,), _ = write(Script(LOADED), clock=clock, committed=committed_receipts.append)
    assert committed_receipts == [only]
    assert (only.label, only.txn_id, only.job, only.batch_id) == ("L0", 3, "job", 9)
    assert (only.rows, only.loads, only.attempts, only.retries, only.recycled) == (2, 2, 1, 0, False)
    assert [span.partition for span in only.positions] == ["p", "q"]
    assert only.committed_at == clock.wall()


def test_the_rows_of_a_region_are_counted_together_over_the_lanes() -> None:
    contents = LabelContents([receipt("p", 2), receipt("p", 3), receipt("q", 1)])
    assert contents.rows_by_partition() == {"p": 5, "q": 1}
    assert [(region.partition, region.rows, region.bytes) for region in contents.region_counts()] == [
        ("p", 5, 50),
        ("q", 1, 10),
    ]


def test_without_rows_the_label_is_rolled_back_and_nothing_else_happens() -> None:
    script = Script(LanesResult([LaneShare(partitions=("p",)), LaneShare()]))
    receipts, coordinator_ = write(script)
    assert (receipts, coordinator_.unsorted) == ([], "")
    assert script.said == ["Begin", "RunLanes", "Rollback"]


def test_without_a_ledger_there_is_no_owner_to_check() -> None:
    script = Script(LOADED)
    write(script, fenced=False, entries=[])
    assert script.said == ["Begin", "RunLanes", "Commit"]


def test_an_unpositioned_batch_takes_the_place_of_the_lanes_spans() -> None:
    span = PositionSpan("c/0/1", 9, 9, 0, "sum1:2")
    script = Script(LOADED, CommitAction=[Unknown("L0", UNKNOWN)], RecoverAction=[Committed("L0", 1)])
    (only,), _ = write(script, unpositioned=lambda _: span)
    assert only.positions == (span,)
    assert script.of(RecoverAction) == [RecoverAction("L0", (span,))]


def test_a_replay_with_other_rows_rolls_the_label_back() -> None:
    def refuse(_: object) -> PositionSpan:
        raise SourceChanged("other rows")

    script = Script(LOADED)
    with pytest.raises(SourceChanged):
        write(script, unpositioned=refuse)
    assert script.said == ["Begin", "RunLanes", "Rollback"]


# --- failures ---


def test_a_failed_lane_rolls_back_and_a_failure_that_passes_begins_a_shorter_round() -> None:
    script = Script(failed(LoadFailed("no backend")), failed(LoadFailed("no backend")), LOADED)
    (only,), _ = write(script)
    assert (only.label, only.attempts, only.retries) == ("L2", 3, 2)
    first = ["Begin", "RunLanes", "Rollback", "Pause"]
    assert script.said == [*first, *first, "Begin", "RunLanes", "Load", "Check", "Commit"]
    assert [(run.label, run.seconds) for run in script.of(RunLanes)] == [("L0", 240.0), ("L1", 120.0), ("L2", 60.0)]
    first_wait, second_wait = (pause.seconds for pause in script.of(Pause))
    assert 0 < first_wait <= 0.2 < second_wait * 2 <= 0.8


def test_attempts_are_bounded_and_the_last_error_counts() -> None:
    script = Script(*(failed(LoadFailed(f"error {number}")) for number in range(9)))
    with pytest.raises(LoadFailed, match="error 2"):
        write(script)
    assert len(script.of(BeginAction)) == 3
    assert script.open_labels() == set()


def test_a_job_that_is_held_makes_no_further_attempt() -> None:
    """The sink waits for the command, and takes the job over again (`sink.failures`)."""
    script = Script(LOADED, CheckAction=[JobHeld("held")])
    with pytest.raises(JobHeld):
        write(script)
    assert script.said == ["Begin", "RunLanes", "Load", "Check", "Rollback"]


def test_no_attempt_follows_after_the_deadline() -> None:
    clock = ManualClock()
    script = Script(failed(LoadFailed("no backend")), LOADED)

    def perform(order: Order) -> object:
        clock.advance(2000.0)
        return script(order)

    with pytest.raises(LoadFailed):
        write(perform, clock=clock)
    assert len(script.of(BeginAction)) == 1


@pytest.mark.parametrize("error", [Fenced("other"), InputError("torn"), RowsRejected("bad")])
def test_what_no_repetition_cures_is_not_repeated(error: StarRocksSinkError) -> None:
    script = Script(failed(error), LOADED)
    with pytest.raises(type(error)):
        write(script)
    assert script.said == ["Begin", "RunLanes", "Rollback"]


def test_a_label_that_was_too_slow_is_tried_again_with_a_shorter_round() -> None:
    script = Script(failed(TransactionTimedOut("600 s")), LOADED)
    (only,), _ = write(script)
    assert only.label == "L1"
    assert [order.seconds for order in script.of(RunLanes)] == [240.0, 120.0]


def test_a_lane_that_begins_the_label_is_the_only_one_to_do_so() -> None:
    script = Script(failed(LoadFailed("slow")), LOADED)
    assert len(write(script, limits={"lane_begins": True})[0]) == 1
    assert script.said[:4] == ["RunLanes", "Rollback", "Pause", "RunLanes"]
    assert script.of(BeginAction) == []


def test_what_no_lane_has_begun_is_not_rolled_back() -> None:
    script = Script(LanesResult([LaneShare()], begun=False))
    assert write(script, limits={"lane_begins": True})[0] == []
    assert script.said == ["RunLanes"]


def test_lanes_that_fail_before_one_of_them_begins_the_label_leave_nothing_to_roll_back() -> None:
    failure = replace(failed(LoadFailed("no backend")), begun=False)
    script = Script(failure, LOADED)
    assert len(write(script, limits={"lane_begins": True})[0]) == 1
    assert script.said[:3] == ["RunLanes", "Pause", "RunLanes"]


@pytest.mark.parametrize("begun", [True, False])
def test_the_driver_begins_the_labels_once_a_lane_could_not_ask_it_and_nothing_has_failed(begun: bool) -> None:
    """Another lane may have begun the label; with rows that come unsorted, that is cured first."""
    script = Script(LanesResult([share("p")], unreached=["driver"], begun=begun), failed(LoadFailed("slow")), LOADED)
    (only,), _ = write(script, limits={"lane_begins": True, "max_attempts": 2})
    first = ["RunLanes", "Rollback"] if begun else ["RunLanes"]
    again = ["Begin", "RunLanes", "Rollback", "Pause", "Begin", "RunLanes"]
    assert script.said == [*first, *again, "Load", "Check", "Commit"]
    assert [run.lane_begins for run in script.of(RunLanes)] == [True, False, False]
    assert only.label == "L2"
    assert write(Script(LanesResult(unsorted=["back"], unreached=["driver"])), limits={"lane_begins": True})[0] == []


LACKING = LanesResult(
    [share("p")],
    missing=[
        {"t": {"b": ColumnNeeds(("TEXT",), ("INT",))}},
        {
            "t": {"a": ColumnNeeds(("LONG",)), "b": ColumnNeeds(("INTEGER",), ("BIGINT", "INT"), filled=True)},
            "s": {"c": ColumnNeeds()},
        },
    ],
)


def test_tables_change_between_two_labels_and_the_lanes_run_again() -> None:
    script = Script(LACKING, LOADED)
    ((receipt,), _) = write(script)
    names = [type(order).__name__ for order in script.orders[:6]]
    assert names == ["BeginAction", "RunLanes", "RollbackAction", "ChangeTables", "BeginAction", "RunLanes"]
    (change,) = script.of(ChangeTables)
    assert change.missing == {
        "s": {"c": ColumnNeeds()},
        "t": {"b": ColumnNeeds(("INTEGER", "TEXT"), ("BIGINT", "INT"), filled=True), "a": ColumnNeeds(("LONG",))},
    }
    first, second = script.of(RunLanes)
    assert (first.seconds, first.label != second.label) == (second.seconds, True)
    assert receipt.attempts == 2


def test_a_change_that_fails_and_passes_is_tried_again() -> None:
    script = Script(LACKING, LOADED, ChangeTables=[LoadFailed("later"), None])
    assert len(write(script)[0]) == 1
    assert len(script.of(ChangeTables)) == 2


def test_a_change_that_is_refused_ends_the_write() -> None:
    script = Script(LACKING, ChangeTables=[UnknownColumn("no type")])
    with pytest.raises(UnknownColumn, match="no type"):
        write(script)
    assert len(script.of(BeginAction)) == len(script.of(RollbackAction)) == 1


def test_a_change_without_effect_is_not_repeated_forever() -> None:
    with pytest.raises(UnknownColumn, match=r"still lack after the change of the tables \(s: c; t: b, a\)"):
        write(Script(LACKING, LACKING))


def test_disorder_is_cured_before_the_tables() -> None:
    script = Script(LanesResult(unsorted=["back"], missing=LACKING.missing))
    assert write(script)[0] == []
    assert not script.of(ChangeTables)


def test_repeated_keys_make_the_lanes_hold_their_rows_and_are_no_failure() -> None:
    again = failed(KeyRepeated("again"))
    script = Script(again, failed(LoadFailed("no backend")), LOADED)
    (only,), coordinator_ = write(script, limits={"max_attempts": 2})
    assert [(run.hold, run.seconds) for run in script.of(RunLanes)] == [(False, 240.0), (True, 240.0), (True, 120.0)]
    assert (coordinator_.hold, only.attempts) == (True, 3)
    assert len(script.of(Pause)) == 1
    script = Script(again, again, LOADED)
    with pytest.raises(KeyRepeated):
        write(script)
    assert len(script.of(RunLanes)) == 2


def test_collided_loads_begin_again_at_once_and_use_no_attempt_up() -> None:
    collided, cancelled = LaneFailure(LoadsCollided("met"), 2.0), LaneFailure(LoadFailed("had ended before"), 1.0)
    meeting = LanesResult(failures=[cancelled, collided])
    script = Script(*[meeting] * (MOST_COLLISIONS - 1), LOADED)
    (only,), _ = write(script, limits={"max_attempts": 1})
    assert (only.attempts, script.of(Pause)) == (MOST_COLLISIONS, [])
    assert {run.seconds for run in script.of(RunLanes)} == {240.0}
    assert script.open_labels() == set()
    with pytest.raises(LoadsCollided):
        write(Script(*[meeting] * MOST_COLLISIONS, LOADED))


@pytest.mark.parametrize("answers", [{"BeginAction": [BeginFailed("lost")]}, {"LoadAction": [LoadFailed("full")]}])
def test_a_failed_step_of_the_driver_is_repeated_under_a_new_label(answers: dict[str, list[Any]]) -> None:
    script = Script(LOADED, LOADED, **answers)
    (only,), _ = write(script)
    assert (only.label, only.attempts) == ("L1", 2)
    assert [order.label for order in script.of(RollbackAction)] == ["L0"]
    assert script.open_labels() == set()


def test_who_is_not_the_owner_any_more_rolls_back_and_does_not_commit() -> None:
    script = Script(LOADED, CheckAction=[Fenced("other")], RollbackAction=[LoadFailed("and that fails, too")])
    with pytest.raises(Fenced):
        write(script)
    assert script.said == ["Begin", "RunLanes", "Load", "Check", "Rollback"]


class Stop(Exception):
    """Not an error of the sink."""


@pytest.mark.parametrize("error", [Stop(), KeyboardInterrupt(), DeadlineExceeded("late"), NotSent("nobody")])
@pytest.mark.parametrize("step", [BeginAction, RunLanes, LoadAction, CheckAction])
def test_an_error_of_any_kind_rolls_the_label_back(error: BaseException, step: type) -> None:
    script = Script(LOADED)

    def perform(order: Order) -> object:
        if isinstance(order, step):
            script.orders.append(order)
            raise error
        return script(order)

    with pytest.raises(type(error)):
        write(perform, limits={"max_attempts": 1})
    assert script.said[-1] == "Rollback"
    assert script.open_labels() == set()


def test_a_generator_that_is_closed_asks_for_nothing_any_more() -> None:
    """It would raise RuntimeError otherwise: nobody carries out its orders."""
    for steps in range(1, 5):
        write_steps, orders = coordinator().write(), list[Order]()
        answer: Any = None
        for _ in range(steps):
            orders.append(write_steps.send(answer))
            answer = LOADED if isinstance(orders[-1], RunLanes) else None
        write_steps.close()


# --- the outcome of a commit ---


@pytest.mark.parametrize("settled", [Committed("L0", None), Committed("L0", 5)])
def test_an_unknown_outcome_is_settled_by_the_ledger(settled: Committed) -> None:
    script = Script(LOADED, CommitAction=[Unknown("L0", UNKNOWN)], RecoverAction=[settled])
    (only,), _ = write(script)
    assert only.label == "L0"
    (recover,) = script.of(RecoverAction)
    assert [span.partition for span in recover.spans] == ["p", "q"]
    assert only.txn_id == (5 if settled.txn_id else 7)  # else the number that the loads have sent


def test_an_unknown_outcome_that_was_no_commit_is_tried_again() -> None:
    missing = Aborted("L0", CommitFailed("not there"))
    script = Script(LOADED, LOADED, CommitAction=[Unknown("L0", UNKNOWN)], RecoverAction=[missing])
    (only,), _ = write(script)
    assert (only.label, only.attempts) == ("L1", 2)
    assert script.said[:8] == ["Begin", "RunLanes", "Load", "Check", "Commit", "Recover", "Pause", "Begin"]


def test_a_refused_commit_ends_with_its_reason_once_the_ledger_shows_nothing() -> None:
    refused = Unknown("L0", UNKNOWN, CommitFailed("no quorum"))
    missing = Aborted("L0", CommitFailed("The ledger does not have it."))
    script = Script(LOADED, CommitAction=[refused], RecoverAction=[missing])
    with pytest.raises(CommitFailed, match="no quorum"):
        write(script, limits={"max_attempts": 1})


@pytest.mark.parametrize("result", [Fenced("other"), Unknown("L0", UNKNOWN)])
def test_a_recovery_that_cannot_tell_ends_the_write_without_a_rollback(result: Any) -> None:
    script = Script(LOADED, LOADED, CommitAction=[Unknown("L0", UNKNOWN)], RecoverAction=[result])
    with pytest.raises(Fenced if isinstance(result, Fenced) else OutcomeUnknown):
        write(script)
    assert script.said == ["Begin", "RunLanes", "Load", "Check", "Commit", "Recover"]


def test_without_a_ledger_an_unknown_outcome_is_final() -> None:
    script = Script(LOADED, LOADED, CommitAction=[Unknown("L0", UNKNOWN)])
    with pytest.raises(OutcomeUnknown):
        write(script, fenced=False, entries=[])
    assert script.said == ["Begin", "RunLanes", "Commit"]


def test_rejected_rows_are_reported_with_their_places_in_the_source() -> None:
    script = Script(LOADED, CommitAction=[Aborted("L0", RowsRejected("bad rows"))])
    with pytest.raises(RowsRejected) as failure:
        write(script)
    assert failure.value.context["source_positions"] == "p 1 to 1; q 1 to 1"


def test_an_impossible_outcome_is_a_bug() -> None:
    with pytest.raises(TypeError, match="A commit cannot end with str"):
        write(Script(LOADED, CommitAction=["done"]))


# --- rounds ---


def test_lanes_that_stop_go_on_under_the_next_label() -> None:
    stopping = LanesResult([share("p", stopped=True), share("q")])
    script, committed_receipts = Script(stopping, stopping, LOADED), list[Receipt]()
    receipts, _ = write(script, committed=committed_receipts.append)
    assert [(receipt.label, receipt.recycled, receipt.attempts) for receipt in receipts] == [
        ("L0", True, 1),
        ("L1", True, 1),
        ("L2", False, 1),
    ]
    assert committed_receipts == receipts
    label = ["Begin", "RunLanes", "Load", "Check", "Commit"]
    assert script.said == [*label, "NextRound", *label, "NextRound", *label]


def test_the_receipt_is_known_before_the_lanes_go_on() -> None:
    script, labels = Script(LanesResult([share("p", stopped=True)]), LOADED), list[str]()

    def perform(order: Order) -> object:
        if isinstance(order, NextRound):
            assert labels == ["L0"]
        return script(order)

    write(perform, committed=lambda receipt: labels.append(receipt.label))


def test_a_round_that_has_read_only_what_is_visible_goes_on_without_a_commit() -> None:
    script = Script(LanesResult([LaneShare(partitions=("p",), stopped=True)]), LOADED)
    (only,), _ = write(script)
    assert only.label == "L1"
    assert script.said[:4] == ["Begin", "RunLanes", "Rollback", "NextRound"]


def test_a_failure_costs_its_own_round_only() -> None:
    script = Script(LanesResult([share("p", stopped=True)]), failed(LoadFailed("no")), LOADED)
    receipts, _ = write(script)
    assert [(receipt.label, receipt.attempts) for receipt in receipts] == [("L0", 1), ("L2", 2)]
    assert [run.seconds for run in script.of(RunLanes)] == [240.0, 240.0, 120.0]
    assert len(script.of(NextRound)) == 1


@given(
    st.lists(
        st.sampled_from(["stop", "stop without rows", "load fails", "check fails", "unknown, gone", "unknown, there"]),
        max_size=8,
    )
)
def test_whatever_passes_every_round_is_committed_once(events: list[str]) -> None:
    """Each round has a row with the round's number; a lane reads the round that comes after the visible ones."""
    script, plan = list[Order](), deque(events)
    visible: list[int] = []
    rounds = 1 + sum(event == "stop" for event in events)
    loaded: dict[str, int] = {}
    event = ""

    def perform(order: Order) -> object:
        nonlocal event
        script.append(order)
        match order:
            case RunLanes(label):
                event = plan.popleft() if plan else ""
                if event == "load fails":
                    return failed(LoadFailed("no"))
                if event == "stop without rows":
                    return LanesResult([LaneShare(stopped=True)])
                loaded[label] = len(visible)
                return LanesResult([share("p", stopped=len(visible) + 1 < rounds)])
            case CheckAction() if event == "check fails":
                raise NotSent("nobody")
            case CommitAction(label) if event.startswith("unknown"):
                return Unknown(label, UNKNOWN)
            case CommitAction(label):
                visible.append(loaded[label])
                return Committed(label, 1)
            case RecoverAction(label):
                if event == "unknown, gone":
                    return Aborted(label, CommitFailed("not there"))
                visible.append(loaded[label])
                return Committed(label, None)
        return None

    receipts, _ = write(perform, limits={"max_attempts": 99})
    assert visible == list(range(rounds))
    assert [receipt.recycled for receipt in receipts] == [True] * (rounds - 1) + [False]
    labels = [order.label for order in script if isinstance(order, BeginAction)]
    ended = [order.label for order in script if isinstance(order, RollbackAction | CommitAction)]
    assert sorted(labels) == sorted(ended)
    assert len(set(labels)) == len(labels)


# --- the judgement of lanes ---


def test_lanes_with_source_partitions_of_their_own_are_committed() -> None:
    shares = [LaneShare(partitions=("0", "2")), LaneShare(partitions=("1",)), LaneShare()]
    assert judge(LanesResult(shares), may_sort=True) == ""
    assert find_shared_partition(shares) is None


@pytest.mark.parametrize("may_sort", [True, False])
def test_a_source_partition_in_two_lanes_is_sorted_first(may_sort: bool) -> None:
    result = LanesResult([share("0", "1"), share("1", "2")])
    assert judge(result, may_sort=may_sort) == "Source partition 1 came in two tasks."
    script = Script(result)
    receipts, coordinator_ = write(script)
    assert (receipts, coordinator_.unsorted) == ([], "Source partition 1 came in two tasks.")
    assert script.said == ["Begin", "RunLanes", "Rollback"]


@pytest.mark.parametrize("error", [InputError("torn"), SourceChanged("torn")])
def test_an_error_about_the_input_is_no_verdict_as_long_as_rows_may_be_sorted(error: StarRocksSinkError) -> None:
    result = LanesResult([share("0")], [LaneFailure(error)])
    assert judge(result, may_sort=True) == "torn"
    with pytest.raises(type(error), match="torn"):
        judge(result, may_sort=False)


def test_disorder_counts_more_than_a_failure() -> None:
    result = LanesResult([], [LaneFailure(LoadFailed("rolled back"))], ["back"])
    assert judge(result, may_sort=False) == "back"
    script = Script(result)
    _, coordinator_ = write(script)
    assert (coordinator_.unsorted, script.said) == ("back", ["Begin", "RunLanes", "Rollback"])


def test_the_failure_is_raised_that_no_repetition_cures_and_else_the_first() -> None:
    later, first = LaneFailure(LoadFailed("the label is gone"), 2.0), LaneFailure(LoadFailed("no backend"), 1.0)
    with pytest.raises(LoadFailed) as failure:
        judge(LanesResult([share("0")], [later, first]), may_sort=False)
    assert failure.value is first.error
    with pytest.raises(Fenced):
        judge(LanesResult([], [first, LaneFailure(Fenced("other"), 3.0)]), may_sort=False)


@pytest.mark.parametrize("cause", [KeyRepeated("again"), Fenced("other"), TaskRepeated("again"), NotSent("nobody")])
def test_a_clock_that_is_ahead_does_not_make_a_consequence_the_cause(cause: StarRocksSinkError) -> None:
    consequence = LaneFailure(LoadFailed("the label has already been cancelled"), 100.0)
    with pytest.raises(type(cause)):
        judge(LanesResult([], [LaneFailure(cause, 101.0), consequence]), may_sort=False)


def test_repeated_keys_make_the_lanes_hold_rows_whatever_else_failed() -> None:
    failures = [LaneFailure(InputError("no column"), 1.0), LaneFailure(KeyRepeated("again"), 2.0)]
    with pytest.raises(KeyRepeated):
        judge(LanesResult([], failures), may_sort=False)


# --- small parts ---


def test_a_rollback_that_fails_hides_nothing() -> None:
    def perform(_: object) -> object:
        raise NotSent("nobody")

    perform_all(roll_back("L"), perform)


def test_the_claim_of_a_lane_is_a_label_of_its_own_in_the_same_family() -> None:
    label = next(labels("a-job", "e1", "all", 7, 3))
    claims = [claim_of(label, lane) for lane in (0, 1, 12)]
    assert len({label, *claims}) == 4
    assert claims[1] == label.replace("-all-", "-1-")
    assert claims[1] == next(labels("a-job", "e1", 1, 7, 3))
