"""The driver's part: how lanes read, and the coordinator's orders carried out against a model server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import claim_of
from starrocks_txn_sink.coordinator.model import (
    BeginAction,
    Chunk,
    LaneShare,
    LoadAction,
    PositionSpan,
    Receipt,
    RegionCount,
)
from starrocks_txn_sink.errors import (
    DeadlineExceeded,
    InputError,
    KeyRepeated,
    LoadFailed,
    NotSent,
    SourceChanged,
    StarRocksSinkError,
    Unordered,
)
from starrocks_txn_sink.protocol.label import Backoff, Label, begin_once, run
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.openings import GONE, Answer, LaneQuestion, Topic, Word
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request
from starrocks_txn_sink.rows.segments import Skip
from starrocks_txn_sink.sink.lane_plan import LanePlan, Reading
from starrocks_txn_sink.sink.lanes import RoundRunner, Written, roll_back_claims
from starrocks_txn_sink.writer import worker
from starrocks_txn_sink.writer.messages import (
    CarryOver,
    DriverUnreached,
    LaneReport,
    LaneTrouble,
    LaneWork,
    Message,
    OrderViolation,
    SentError,
    attached_report,
)
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask
from starrocks_txn_sink.writer.turns import TurnsAddress, lane_turns, turns_of
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Fault, ModelServer, plan_faults

OPTIONS = SinkOptions(load_url="fe", database="shop", delivery="at-least-once", lanes=2)
TASK = LaneTask(OPTIONS, "job", "e1", "c1", 7)
Lanes = Callable[[LaneTask], list[Message]]


# --- how lanes read ---


@pytest.mark.parametrize(
    ("plan", "reading"),
    [
        (LanePlan(4), Reading.OWN_TASKS),
        (LanePlan(4, disordered=True), Reading.SORTED),
        (LanePlan(4, disordered=True, small=True), Reading.ONE_TASK),
        (LanePlan(4, disordered=True, small=True, follows_a_shuffle=True), Reading.SORTED),
        (LanePlan(4, small=True), Reading.OWN_TASKS),
        (LanePlan(4, shuffle=True), Reading.SORTED),
        (LanePlan(4, shuffle=True, disordered=True, small=True), Reading.SORTED),
        (LanePlan(4, shuffle=False, disordered=True, small=True), Reading.OWN_TASKS),
        (LanePlan(4, direct=True), Reading.DIRECT),
        (LanePlan(4, direct=True, shuffle=True, disordered=True), Reading.DIRECT),
    ],
)
def test_how_lanes_read(plan: LanePlan, reading: Reading) -> None:
    assert plan.reading is reading


@pytest.mark.parametrize(
    ("plan", "tasks"),
    [
        (LanePlan(64, slots=lambda: 2), 4),
        (LanePlan(3, slots=lambda: 2), 3),
        (LanePlan(64, direct=True, slots=lambda: 16), 32),
        (LanePlan(64, shuffle=True, slots=lambda: 2), 4),
        (LanePlan(64), 64),  # the cluster grows with the tasks that wait, or hides its size
        (LanePlan(64, disordered=True, small=True, slots=lambda: 2), 1),
    ],
)
def test_lanes_far_beyond_what_the_cluster_runs_at_a_time_are_not_made(plan: LanePlan, tasks: int) -> None:
    assert plan.tasks == tasks


@pytest.mark.parametrize(
    ("plan", "claims", "ordered", "whole"),
    [
        (LanePlan(4), False, False, False),
        (LanePlan(4, claims=True), True, False, False),
        (LanePlan(4, disordered=True), True, True, False),  # behind a shuffle Spark may run a stage again
        (LanePlan(4, disordered=True, small=True), False, False, False),
        (LanePlan(4, direct=True), False, False, True),
        (LanePlan(1, shuffle=False, proves=True), False, True, True),  # it gives out all rows in order
    ],
)
def test_lanes_know_how_they_read(plan: LanePlan, claims: bool, ordered: bool, whole: bool) -> None:
    task = plan.task_of(TASK)
    assert (task.claims, task.ordered, task.whole) == (claims, ordered, whole)


PLACE = TurnsAddress("driver", 1, "token")


@pytest.mark.parametrize(
    ("plan", "begins", "turns"),
    [
        (LanePlan(4, turns=lambda: PLACE), True, PLACE),
        (LanePlan(1, turns=lambda: PLACE), True, PLACE),
        (LanePlan(1, turns=lambda: PLACE, proves=True), True, PLACE),
        (LanePlan(4), False, None),  # nobody to ask
        (LanePlan(1, proves=True), False, None),
        (LanePlan(4, turns=lambda: PLACE, asks=False), False, PLACE),  # a lane could not
        (LanePlan(1, turns=lambda: PLACE, asks=False), False, None),
    ],
)
def test_a_lane_begins_the_label_where_it_can_ask_the_driver(
    plan: LanePlan, begins: bool, turns: TurnsAddress | None
) -> None:
    task = plan.task_of(TASK)
    assert (task.lane_begins, task.turns) == (begins, turns)


def test_once_a_lane_could_not_ask_the_driver_begins_the_labels() -> None:
    plan = LanePlan(4, turns=lambda: PLACE)
    plan.learn(unreached=False)
    assert plan.task_of(TASK).lane_begins
    plan.learn(unreached=True)
    plan.learn(unreached=False)
    assert not plan.task_of(TASK).lane_begins


def test_rows_that_came_out_of_order_are_sorted_from_then_on() -> None:
    plan = LanePlan(4, small=True)
    plan.sort("Position 1 came after 2.", "rows")
    assert (plan.disordered, plan.small) == (True, False)  # this micro-batch was not as small as it seemed
    assert plan.reading is Reading.SORTED


def test_without_a_shuffle_disorder_is_an_error_with_advice() -> None:
    with pytest.raises(Unordered, match="Position 1 came after 2") as failure:
        LanePlan(4, shuffle=False).sort("Position 1 came after 2.", "events")
    assert "events are sorted first" in failure.value.advice


# --- the coordinator's orders, carried out ---


class Server(ModelServer):
    """A model server behind a transport that keeps to its deadline."""

    def send(self, request: Request, deadline: Deadline) -> Reply:
        if deadline.expired():
            raise DeadlineExceeded("too late")
        return super().send(request, deadline)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    server = Server()
    monkeypatch.setattr(worker, "HttpTransport", lambda _: server)
    monkeypatch.setattr(Backoff, "seconds", lambda *_: 1.0)
    yield server
    worker.RESOURCES.close()


def share(label: str, lane: int = 0, *, stopped: bool = False) -> LaneShare:
    """What a lane has loaded: a row of a source partition of its own."""
    name = str(lane)
    regions = (RegionCount(name, "t", 1, 9),)
    receipt = Receipt(label, 1, "job", 7, regions, (PositionSpan(name, 1, 1, 1),), 1, 1, 0, recycled=False)
    return LaneShare((receipt,), (name,), stopped=stopped)


def loading(runner: list[RoundRunner], task: LaneTask, *, stopped: bool = False) -> list[Message]:
    """Two lanes; the model server has a row of the first one."""
    chunk = _chunk()
    runner[0].perform(iter_of(LoadAction(task.label, "t", (chunk,))))
    reports = [LaneReport("job", lane, 7) for lane in range(2)]
    return [share(task.label, 0, stopped=stopped), share(task.label, 1), *reports]


def _chunk() -> Chunk:
    chunk = Chunk("0", "t")
    chunk.append(memoryview(b',{"id":1}'), 1)
    return chunk


def iter_of(order: Any) -> Any:
    """Orders that consist of one."""
    return (yield order)


class Case:
    """A micro-batch whose lanes are `lanes`, with what its driver collects, on a manual clock."""

    def __init__(self, lanes: Lanes | None = None, task: LaneTask = TASK) -> None:
        self.clock = ManualClock()
        self.tasks: list[LaneTask] = []
        self.collected: list[str] = []
        self.carried: list[list[CarryOver]] = []
        self._lanes = lanes or self.load
        self._task = task
        self.runner: list[RoundRunner] = []

    def load(self, task: LaneTask) -> list[Message]:
        return loading(self.runner, task)

    def _run_lanes(self, task: LaneTask) -> list[Message]:
        self.tasks.append(task)
        return self._lanes(task)

    def write(self) -> Written:
        deadline = Deadline.after(self._task.time_limit, self.clock)
        with worker.RESOURCES.lease(OPTIONS) as resources:
            self.runner = [
                RoundRunner(
                    self._task,
                    resources,
                    deadline,
                    random.Random(1),
                    self._run_lanes,
                    lambda receipts, _: self.collected.extend(receipt.label for receipt in receipts),
                    lambda shares: self.carried.append(list(shares)),
                )
            ]
            return self.runner[0].write()


def operations(server: ModelServer) -> list[str]:
    names = [request.operation.value for request in server.requests]
    return [name for name, _ in itertools.groupby(names) if name != "get_load_state"]


def test_the_lanes_load_under_the_label_that_the_driver_has_begun(server: ModelServer) -> None:
    case = Case()
    outcome = case.write()
    (receipt,), (task,) = outcome.receipts, case.tasks
    assert (receipt.label, receipt.rows) == (task.label, 2)
    assert task.label.startswith("job-e1-all-7-")
    assert operations(server) == ["begin", "load", "commit"]
    assert server.commits == [task.label] == case.collected
    assert [report.lane for report in outcome.reports] == [0, 1, 0]  # the driver's own comes last
    assert (task.round_seconds, task.round_ends) == (TASK.longest_round, case.clock.wall() + TASK.longest_round)


def asking(case: Callable[[], Case], *, loads: bool = True) -> Lanes:
    """Two lanes, of which one begins the label as the driver tells it, and then loads; or none has rows."""

    def lanes(task: LaneTask) -> list[Message]:
        clock, turns = SystemClock(), lane_turns(task.turns)
        assert turns is not None
        deadline = Deadline.after(20, clock)
        try:
            assert turns.ask(LaneQuestion(Topic.ENTER, task.label, 0, 1), deadline) == Answer(Word.OPEN)
            turns.leave()
            if not loads:
                return [LaneShare(), LaneReport("job", 0, 7)]
            with worker.RESOURCES.lease(OPTIONS) as resources:
                steps = begin_once(Label("shop", task.label), OPTIONS.begin_headers(), random.Random(1))
                run(steps, resources.transport, clock, deadline, turns=turns)
            sent, *others = loading(case().runner, task)
            assert isinstance(sent, LaneShare)
            (loaded,) = sent.loaded
            return [replace(sent, loaded=(replace(loaded, phase_seconds={"begin": 2.0}),)), *others]
        finally:
            turns.close()

    return lanes


@pytest.fixture
def asks() -> LaneTask:
    return replace(TASK, turns=turns_of("local", "", ""), lane_begins=True)


def test_the_label_of_several_lanes_is_begun_by_one_of_them(server: ModelServer, asks: LaneTask) -> None:
    case = Case(asking(lambda: case), asks)
    case.clock.advance(1_000_000.0)  # of a machine that has been up for days
    (receipt,) = case.write().receipts
    assert operations(server) == ["begin", "load", "commit"]
    assert 0 < receipt.open_seconds < 20
    assert receipt.phase_seconds["begin"] == 2.0
    assert server.commits == [receipt.label]


def test_without_rows_nothing_is_begun_or_rolled_back(server: ModelServer, asks: LaneTask) -> None:
    case = Case(asking(lambda: case, loads=False), asks)
    outcome = case.write()
    assert (outcome.receipts, operations(server)) == ([], [])
    assert [report.trouble.aborted for report in outcome.reports] == [0, 0]


@pytest.mark.parametrize("stopped", [True, False])
def test_what_a_lane_may_have_begun_is_rolled_back_and_nobody_begins_it_later(
    server: ModelServer, asks: LaneTask, stopped: bool
) -> None:
    begin_it = asking(lambda: case)

    def lanes(task: LaneTask) -> list[Message]:
        begin_it(task)
        if stopped:
            raise KeyboardInterrupt
        return [LaneReport("job", 1, 7).fail(InputError("torn"))]

    case = Case(lanes, replace(asks, whole=True))
    with pytest.raises((KeyboardInterrupt, InputError)):
        case.write()
    assert operations(server) == ["begin", "load", "rollback"]
    turns = lane_turns(asks.turns)
    assert turns is not None
    answer = turns.ask(LaneQuestion(Topic.BEGIN, case.tasks[0].label), Deadline.after(20, SystemClock()))
    turns.leave()
    turns.close()
    assert answer == GONE


def test_lanes_that_cannot_ask_run_again_under_a_label_of_the_drivers(
    server: ModelServer, asks: LaneTask, caplog: pytest.LogCaptureFixture
) -> None:
    def lanes(task: LaneTask) -> list[Message]:
        return [DriverUnreached("driver.example"), LaneReport("job", 0, 7)] if task.lane_begins else case.load(task)

    case = Case(lanes, asks)
    outcome = case.write()
    assert [task.lane_begins for task in case.tasks] == [True, False]
    assert (outcome.unreached, case.clock.slept) == (True, [])
    assert operations(server) == ["begin", "load", "commit"]
    (line,) = [line for line in caplog.messages if line.startswith("begins.unreached")]
    assert "host=driver.example" in line


def test_a_failed_lane_is_run_again_under_a_new_label_and_all_reports_are_kept(server: ModelServer) -> None:
    def lanes(task: LaneTask) -> list[Message]:
        if len(case.tasks) == 1:
            return [share(task.label), LaneReport("job", 1, 7).fail(LoadFailed("no backend"))]
        return case.load(task)

    case = Case(lanes)
    outcome = case.write()
    first, second = case.tasks
    assert first.label != second.label
    assert (server.open_labels(), server.commits) == ([], [second.label])
    assert second.round_seconds == first.round_seconds / 2
    assert [(report.lane, report.code) for report in outcome.reports][-2:] == [(1, "load_failed"), (0, "")]
    assert case.clock.slept == [1.0]


def test_a_lane_that_fails_for_good_ends_the_write_with_its_error_and_report(server: ModelServer) -> None:
    report = LaneReport("job", 1, 7).fail(StarRocksSinkError("no such table", table="t"))
    with pytest.raises(StarRocksSinkError, match=r"no such table \[table=t\]") as failure:
        Case(lambda _: [report]).write()
    assert attached_report(failure.value) == report
    assert server.open_labels() == []


def test_a_failure_that_this_process_does_not_know_is_one_all_the_same(server: ModelServer) -> None:
    with pytest.raises(StarRocksSinkError, match="Lane 1 failed with the code of_a_newer_release"):
        Case(lambda _: [LaneReport("job", 1, 7, trouble=LaneTrouble(failure=SentError("of_a_newer_release")))]).write()
    assert server.open_labels() == []


def test_disorder_rolls_back_and_says_why_to_sort(server: ModelServer) -> None:
    outcome = Case(lambda _: [OrderViolation("back"), LaneReport("job", 1, 7).fail(LoadFailed("gone"))]).write()
    assert (outcome.unsorted, outcome.receipts) == ("back", [])
    assert (server.open_labels(), server.commits) == ([], [])


@pytest.mark.parametrize(
    ("changes", "sorts"),
    [({}, True), ({"whole": True}, False), ({"ordered": True}, False), ({"marked": False}, False)],
)
def test_an_error_about_the_input_is_a_reason_to_sort_only_where_rows_may_be_sorted(
    server: ModelServer, changes: dict[str, Any], sorts: bool
) -> None:
    case = Case(lambda _: [LaneReport("job", 1, 7).fail(InputError("torn"))], replace(TASK, **changes))
    if sorts:
        assert case.write().unsorted == "torn"
    else:
        with pytest.raises(InputError, match="torn"):
            case.write()
    assert server.open_labels() == []


def test_after_repeated_keys_the_lanes_run_again_and_hold_their_rows(server: ModelServer) -> None:
    def lanes(task: LaneTask) -> list[Message]:
        return case.load(task) if task.hold else [LaneReport("job", 1, 7).fail(KeyRepeated("again"))]

    case = Case(lanes)
    outcome = case.write()
    assert [task.hold for task in case.tasks] == [False, True]
    assert (outcome.reports[-1].trouble.aborted, case.clock.slept) == (0, [])  # nothing has failed
    assert len(server.commits) == 1


def test_a_stop_of_the_query_rolls_the_label_back(server: ModelServer) -> None:
    def stop(_: LaneTask) -> list[Message]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Case(stop).write()
    assert (server.open_labels(), server.commits) == ([], [])


# --- rounds ---


def test_each_receipt_renews_the_deadline_and_the_lanes_go_on(server: ModelServer) -> None:
    carried = CarryOver(reached={"0": 5})

    def lanes(task: LaneTask) -> list[Message]:
        case.clock.advance(OPTIONS.batch_deadline * 0.9)
        return [*loading(case.runner, task, stopped=len(case.tasks) < 4), carried]

    case = Case(lanes, replace(TASK, whole=True, seconds=OPTIONS.batch_deadline * 0.95))
    outcome = case.write()
    assert [receipt.recycled for receipt in outcome.receipts] == [True, True, True, False]
    assert server.commits == [task.label for task in case.tasks] == case.collected
    assert case.carried == [[carried]] * 3
    assert [task.seconds for task in case.tasks] == [OPTIONS.batch_deadline * 0.95, None, None, None]


def test_without_progress_the_deadline_stays(server: ModelServer) -> None:
    def lanes(_: LaneTask) -> list[Message]:
        case.clock.advance(OPTIONS.batch_deadline * 0.6)
        return [LaneShare(stopped=True), LaneReport("job", 0, 7)]

    case = Case(lanes, replace(TASK, whole=True))
    with pytest.raises(DeadlineExceeded):
        case.write()
    assert len(case.tasks) == 2
    assert server.commits == []


def test_a_round_that_fails_takes_nothing_away_from_those_before(server: ModelServer) -> None:
    def lanes(task: LaneTask) -> list[Message]:
        if len(case.tasks) > 1:
            return [LaneReport("job", 0, 7).fail(NotSent("nobody"))]
        return loading(case.runner, task, stopped=True)

    case = Case(lanes, replace(TASK, whole=True))
    with pytest.raises(NotSent):
        case.write()
    assert case.collected == server.commits == [case.tasks[0].label]
    assert case.runner[0].written.receipts[0].recycled
    assert len(case.tasks) == 1 + OPTIONS.max_attempts


def test_the_next_round_knows_what_was_left_out_before(server: ModelServer) -> None:
    skip = Skip(9, met=False)

    def lanes(_: LaneTask) -> list[Message]:
        stopped = len(case.tasks) == 1
        return [LaneShare(partitions=("0",), stopped=stopped), LaneReport("job", 0, 7, LaneWork(skips={"0": skip}))]

    # No ledger is asked: nothing is loaded, so nothing is committed.
    case = Case(lanes, replace(TASK, whole=True, ownership=JobOwnership("token", skips={"1": skip})))
    case.write()
    first, second = (task.ownership for task in case.tasks)
    assert first is not None
    assert second is not None
    assert (dict(first.skips), dict(second.skips)) == ({"1": skip}, {"0": skip, "1": skip})
    assert server.open_labels() == []


# --- claims ---


def test_claims_are_rolled_back_when_their_label_is_settled(server: ModelServer) -> None:
    def lanes(task: LaneTask) -> list[Message]:
        for lane in range(2):
            case.runner[0].perform(iter_of(BeginAction(claim_of(task.label, lane))))
        if len(case.tasks) == 2:
            assert server.open_labels() == [task.label, *(claim_of(task.label, lane) for lane in range(2))]
            return case.load(task)
        return [LaneReport("job", lane, 7).fail(LoadFailed("no")) for lane in range(2)]

    case = Case(lanes, replace(TASK, claims=True))
    case.write()
    assert server.open_labels() == []
    assert server.commits == [case.tasks[1].label]


def test_lanes_that_enter_the_label_leave_no_claims_to_roll_back(server: ModelServer, asks: LaneTask) -> None:
    case = Case(asking(lambda: case), replace(asks, claims=True))
    case.write()
    assert operations(server) == ["begin", "load", "commit"]


def test_a_server_that_does_not_answer_is_not_asked_for_each_claim(server: ModelServer) -> None:
    server.faults = plan_faults({(Operation.ROLLBACK, number): Fault.NOT_SENT for number in range(99)})
    with worker.RESOURCES.lease(OPTIONS) as resources:
        roll_back_claims(TASK, resources, ManualClock(), [f"job-e1-{lane}-7-1_0" for lane in range(50)])
    assert len({request.label for request in server.requests}) < 5


# --- rows without positions ---


def test_rows_without_positions_are_one_batch_of_all_lanes_and_are_compared(server: ModelServer) -> None:
    known_position = Position("c1/0/1", 7, "c1", 7, "label", 5, "sum1:5:000000000000000c")
    ownership = JobOwnership("token", {"c1/0/1": known_position})

    def lanes(number: int, total: int) -> Lanes:
        return lambda _: [LaneShare(rows=2, sum=4), LaneShare(rows=number, sum=total)]

    task = replace(TASK, marked=False, ownership=ownership)
    assert Case(lanes(3, 8), task).write().receipts == []
    with pytest.raises(SourceChanged, match="micro-batch 7"):
        Case(lanes(3, 9), task).write()
    assert server.open_labels() == []
