"""Named regressions of the take-over and of recovery: each was a way to write rows twice, or to wait for nothing.

All were found by the exhaustive exploration of the protocol, or while writing it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt, RegionCount
from starrocks_txn_sink.coordinator.ownership import LabelContents, Ownership, ReplayOwnership, log_entries
from starrocks_txn_sink.errors import Fenced, JobHeld, QueryFailed, ReplyLost, TransportError
from starrocks_txn_sink.protocol.fencing import Scope, TakenOver, refuse_successor, take_over
from starrocks_txn_sink.protocol.hold import hold, release
from starrocks_txn_sink.protocol.label import (
    Aborted,
    Committed,
    Label,
    LabelPrefix,
    LedgerRequest,
    Steps,
    Unknown,
    begin,
    run,
)
from starrocks_txn_sink.protocol.ledger import (
    LEDGER_TABLE,
    LOG_TABLE,
    ListUnfinished,
    Owner,
    Position,
    ReadMarker,
    ReadOwner,
    ReadPositions,
    WriteClaim,
    WriteMarker,
    check_owner,
)
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.manual_clock import LongestWaits, ManualClock


class Ledger:
    """A ledger whose inserts become visible one question later than `delay` says; `log` tells what was asked."""

    def __init__(self, *, delay: int = 0, unfinished: tuple[str, ...] = ()) -> None:
        self.delay = delay
        self.unfinished = unfinished
        self.log: list[str] = []
        self.rows: dict[str, WriteClaim | WriteMarker] = {}
        self.pending: list[tuple[int, str, WriteClaim | WriteMarker]] = []
        self.positions: dict[str, Position] = {}
        self.before: Callable[[LedgerRequest], TransportError | None] = lambda _: None

    def execute(self, question: LedgerRequest, deadline: Deadline) -> Any:
        del deadline
        self.log.append(type(question).__name__)
        failure = self.before(question)
        if failure is not None:
            raise failure
        self._publish()
        match question:
            case WriteClaim() | WriteMarker():
                self.pending.append((self.delay, key_of(question), question))
                if not self.delay:
                    self._publish()
            case ReadMarker(job, scope, token):
                row = self.rows.get(f"{job}/marker/{scope}")
                return isinstance(row, WriteMarker) and row.token == token
            case ReadOwner(job, kind):
                row = self.rows.get(f"{job}/{kind}/")
                return row.owner if isinstance(row, WriteClaim) else None
            case ListUnfinished():
                self.log[-1] += f" while visible: {sorted(self.rows)}"
                return self.unfinished
            case ReadPositions():
                return dict(self.positions)
        return None

    def _publish(self) -> None:
        """In the order of the commits."""
        self.pending = [(visits - 1, key, row) for visits, key, row in self.pending]
        while self.pending and self.pending[0][0] < 0:
            _, key, row = self.pending.pop(0)
            self.rows[key] = row


def key_of(question: WriteClaim | WriteMarker) -> str:
    """The key of the row as the SQL has it."""
    _, (_, job, kind, name, *_) = question.statement("shop")
    return f"{job}/{kind}/{name}"


class Server:
    """Rolls everything back, and notes it in the ledger's log; labels in `visible` are committed."""

    visible: tuple[str, ...] = ()

    def __init__(self, ledger: Ledger, *replies: Reply | TransportError) -> None:
        self.ledger = ledger
        self.replies = list(replies)
        self.requests: list[Request] = []

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        if request.operation is Operation.LOAD_STATE:
            return Reply(Status.OK, state=LabelState.VISIBLE if request.label in self.visible else LabelState.PREPARE)
        assert request.operation is Operation.ROLLBACK
        self.requests.append(request)
        self.ledger.log.append(f"rollback {request.label}")
        answer = self.replies.pop(0) if self.replies else Reply(Status.OK)
        if isinstance(answer, TransportError):
            raise answer
        return answer

    def close(self) -> None: ...


def play(steps: Steps[Any], ledger: Ledger, server: Server | None = None, seconds: float = 600) -> Any:
    clock = ManualClock()
    return run(steps, server or Server(ledger), clock, Deadline.after(seconds, clock), ledger)


def tokens(name: str) -> Callable[[], str]:
    counter = iter(range(10**6))
    return lambda: f"{name}{next(counter)}"


def taking_over(owner: Owner, name: str) -> Steps[TakenOver]:
    return take_over(Scope("job", "shop", owner), tokens(name), random.Random(1))


DRIVER = Owner("", "e1", "cp")
REPLAYING = Owner("", "replay", "dead-letter replay", kind="replay")


@pytest.mark.parametrize("delay", [0, 1, 2, 5, 30])
def test_labels_are_listed_only_when_the_claim_is_visible(delay: int) -> None:
    """An INSERT may be answered while it is only committed; who loads after the list must see the claim."""
    ledger = Ledger(delay=delay, unfinished=("job-e0-0-1-1_0",))
    take_over_ = play(taking_over(DRIVER, "t"), ledger)
    assert take_over_.owner.token == "t0"
    listed = next(n for n, line in enumerate(ledger.log) if line.startswith("ListUnfinished"))
    assert "job/driver/" in ledger.log[listed]
    after = [line.split()[0] for line in ledger.log[listed + 1 :]]
    assert after[:2] == ["rollback", "WriteMarker"]
    assert after[-3:] == ["ReadOwner", "ReadPositions", "ReadGate"]


def test_every_listed_label_is_rolled_back_before_the_barrier() -> None:
    labels = ("job-e0-0-1-1_0", "job-e0-1-1-2_0", "job-e1-0-2-1_3")
    ledger = Ledger(unfinished=labels)
    server = Server(ledger, *[Reply(Status.OK) for _ in labels])
    play(taking_over(DRIVER, "t"), ledger, server)
    assert [request.label for request in server.requests] == list(labels)
    steps = [line.split()[0] for line in ledger.log]
    assert steps[2:7] == ["ListUnfinished", "rollback", "rollback", "rollback", "WriteMarker"]


def test_committed_labels_that_are_listed_as_unfinished_are_left_alone() -> None:
    """Wire contract 10.6: some releases list each committed label."""
    labels = tuple(f"job-e0-0-1-1_{number}" for number in range(949))
    server = Server(Ledger(unfinished=labels))
    server.visible = labels[:500] + labels[501:]
    play(taking_over(DRIVER, "t"), server.ledger, server)
    assert [request.label for request in server.requests] == [labels[500]]


@pytest.mark.parametrize("message", ["Transaction 7 abort is already in progress", "abort initiated, rollback pending"])
def test_a_rollback_that_is_only_begun_is_asked_for_again(message: str) -> None:
    """Wire contract 10.5: it may still end committed."""
    ledger = Ledger(unfinished=("job-e0-0-1-1_0",))
    server = Server(
        ledger, Reply(Status.OK, message), Reply(Status.OK, message), Reply(Status.OK, "has already aborted")
    )
    play(taking_over(DRIVER, "t"), ledger, server)
    assert len(server.requests) == 3


def test_a_visible_claim_costs_one_question() -> None:
    ledger = Ledger()
    play(taking_over(DRIVER, "t"), ledger)
    steps = [line.split()[0] for line in ledger.log]
    assert steps == [
        "WriteClaim",
        "ReadOwner",
        "ListUnfinished",
        "WriteMarker",
        "ReadMarker",
        "ReadOwner",
        "ReadPositions",
        "ReadGate",
    ]


def test_a_driver_and_a_replay_of_its_dead_letters_do_not_fence_each_other() -> None:
    ledger = Ledger()
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    replay = play(taking_over(REPLAYING, "r"), ledger).owner
    newer = play(taking_over(REPLAYING, "s"), ledger).owner
    for owner in (driver, newer):
        play(check_owner("job", owner, random.Random(1)), ledger)
    with pytest.raises(Fenced, match="The replay of the job's dead letters was taken over"):
        play(check_owner("job", replay, random.Random(1)), ledger)


def test_a_marker_that_another_writer_overwrote_is_written_again() -> None:
    ledger = Ledger()
    overwritten: list[str] = []

    def overwrite(question: LedgerRequest) -> None:
        if isinstance(question, ReadMarker) and not overwritten:
            overwritten.append(question.token)
            ledger.rows[f"job/marker/{question.scope}"] = WriteMarker("job", question.scope, "another's")

    ledger.before = overwrite
    assert play(taking_over(DRIVER, "t"), ledger, seconds=60).owner.token == "t0"
    assert ledger.log.count("WriteMarker") == 2


def test_a_slow_server_is_not_outrun_by_new_markers() -> None:
    """Each marker is looked for longer than the one before, so that some marker is seen however slow the server is."""
    ledger = Ledger(delay=40)
    assert play(taking_over(DRIVER, "t"), ledger).owner.token == "t0"


def test_unanswered_claims_and_markers_are_repeated_with_other_tokens() -> None:
    ledger = Ledger()
    claims: list[str] = []
    marks: list[str] = []

    def lose_first(question: LedgerRequest) -> TransportError | None:
        if isinstance(question, WriteClaim):
            claims.append(question.owner.token)
            return QueryFailed("lost") if len(claims) == 1 else None
        if isinstance(question, WriteMarker):
            marks.append(question.token)
            return QueryFailed("lost") if len(marks) == 1 else None
        return None

    ledger.before = lose_first
    take_over_ = play(taking_over(DRIVER, "t"), ledger)
    assert claims == ["t0", "t1"]
    assert take_over_.owner.token == "t1"
    assert len(set(marks)) == 2


def ownership(ledger: Ledger) -> Ownership:
    """The ownership of a driver that has taken the job over."""
    take_over_ = play(taking_over(DRIVER, "d"), ledger)
    owner = replace(take_over_.owner, batch=7)
    return Ownership("job", "shop", owner, tokens("mine"), lambda: "2026-01-01 00:00:00")


def known(label: str, position: int, partition: str = "p") -> Position:
    return Position(partition, position, "cp", 7, label, 1, "")


SPANS = (PositionSpan("p", 11, 20, 2), PositionSpan("q", 31, 40, 2))


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([known("L", 20), known("L", 40, "q")], Committed),
        ([], Aborted),
        ([known("before", 10), known("before", 30, "q")], Aborted),
        ([known("L", 20), known("before", 30, "q")], Unknown),
        ([known("other", 20), known("other", 40, "q")], Fenced),
        ([known("other", 15)], Fenced),
        ([known("other", 11)], Fenced),
        ([known("L", 19), known("L", 40, "q")], Fenced),
        ([known("other", 60), known("other", 60, "q")], Fenced),
    ],
)
def test_an_unknown_outcome_is_settled_by_positions(positions: list[Position], expected: type) -> None:
    """Rows that another attempt wrote meanwhile are neither ours nor missing: trying again would double them."""
    ledger = Ledger()
    ledger.positions = {position.partition: position for position in positions}
    steps = ownership(ledger).recover("L", SPANS, random.Random(1))
    if expected is Fenced:
        with pytest.raises(Fenced):
            play(steps, ledger)
    else:
        assert type(play(steps, ledger)) is expected


def test_recovery_ends_its_own_label_first_and_insists_on_it() -> None:
    ledger = Ledger()
    owner = ownership(ledger)
    ledger.log.clear()
    during = Reply(Status.FAILED, "Can not abort transaction 1 during committing, label is L")
    play(owner.recover("L", SPANS, random.Random(1)), ledger, Server(ledger, during, ReplyLost("lost")))
    barrier = ["WriteMarker", "ReadMarker", "ReadOwner", "ReadPositions"]
    assert ledger.log == ["rollback L", "rollback L", "rollback L", *barrier]
    assert owner.owner.token == "d0"


@pytest.mark.parametrize(
    ("holder", "refused"),
    [(Owner("d0", "e1", "cp"), ""), (None, "no owner"), (Owner("d1", "e9", "cp", 7, "noon"), "The job was taken over")],
)
def test_who_may_commit(holder: Owner | None, refused: str) -> None:
    ledger, ledger_of_driver = Ledger(), Owner("d0", "e1", "cp")
    if holder is not None:
        ledger.execute(WriteClaim("job", holder), Deadline.after(1, ManualClock()))
    steps = check_owner("job", ledger_of_driver, random.Random(1))
    if not refused:
        play(steps, ledger)
        return
    with pytest.raises(Fenced, match=refused) as failure:
        play(steps, ledger)
    if holder is not None:
        assert failure.value.context == {"epoch": "e9", "checkpoint": "cp", "since": "noon"}


@pytest.mark.parametrize("visible", [True, False])
def test_an_unknown_outcome_of_a_replay_is_settled_by_its_marker(visible: bool) -> None:
    ledger = Ledger()
    take_over_ = play(taking_over(REPLAYING, "r"), ledger)
    own_replay = ReplayOwnership("job", "shop", take_over_.owner, tokens("mine"), str)
    (row,) = orjson.loads(b"[" + b"".join(own_replay.ledger_entries("L", contents()).pieces).lstrip(b",") + b"]")
    assert (row["job"], row["kind"], row["token"]) == ("job", "marker", "L")
    if visible:
        ledger.execute(WriteMarker(row["job"], row["name"], row["token"]), Deadline.after(1, ManualClock()))
    ledger.log.clear()
    outcome = play(own_replay.recover("L", (), random.Random(1)), ledger)
    assert type(outcome) is (Committed if visible else Aborted)
    assert ledger.log == ["rollback L", "WriteMarker", "ReadMarker", "ReadOwner", "ReadPositions", "ReadMarker"]
    play(taking_over(REPLAYING, "s"), ledger)
    with pytest.raises(Fenced, match="The replay of the job's dead letters was taken over"):
        play(own_replay.recover("L", (), random.Random(1)), ledger)


def test_a_fate_carries_its_label_and_its_reason() -> None:
    ledger = Ledger()
    outcome = play(ownership(ledger).recover("L", SPANS, random.Random(1)), ledger)
    assert (outcome.label, outcome.error.context) == ("L", {"label": "L"})
    assert "not committed" in outcome.error.message
    ledger.positions = {"p": known("L", 20)}
    unknown = play(ownership(ledger).recover("L", SPANS, random.Random(1)), ledger)
    assert (unknown.label, unknown.error.context) == ("L", {"label": "L"})
    assert "only a part" in unknown.error.message
    ledger.positions = {"p": known("L", 20), "q": known("L", 40, "q")}
    assert play(ownership(ledger).recover("L", SPANS, random.Random(1)), ledger) == Committed("L", None)
    ledger.positions = {"p": known("other", 20)}
    with pytest.raises(Fenced, match="under label other") as failure:
        play(ownership(ledger).recover("L", SPANS, random.Random(1)), ledger)
    assert failure.value.context == {"label": "L"}


def test_everything_that_is_repeated_waits_longer_each_time() -> None:
    ledger, clock = Ledger(unfinished=("job-e0-0-1-1_0",)), ManualClock()
    times: dict[str, list[float]] = {}

    def lose_thrice(question: LedgerRequest) -> TransportError | None:
        moments = times.setdefault(type(question).__name__, [])
        moments.append(clock.monotonic())
        return QueryFailed("lost") if len(moments) < 4 else None

    ledger.before = lose_thrice
    server = Server(ledger, ReplyLost("lost"), Reply(Status.FAILED, "x"), ReplyLost("lost"))
    steps = take_over(Scope("job", "shop", DRIVER), tokens("t"), LongestWaits())
    run(steps, server, clock, Deadline.after(60, clock), ledger)
    for name in ("WriteClaim", "ListUnfinished", "WriteMarker", "ReadMarker", "ReadPositions"):
        first, *later = times[name][:4]
        waits = [round(time - before, 6) for before, time in zip([first, *later], later, strict=False)]
        assert waits == [0.05, 0.1, 0.2], name
    assert [request.label for request in server.requests] == ["job-e0-0-1-1_0"] * 4
    assert {request.database for request in server.requests} == {"shop"}


def test_a_replay_lists_the_labels_of_replays_and_a_driver_all_of_the_job() -> None:
    families = []
    for kind in (DRIVER, REPLAYING):
        ledger = Ledger()

        def listed(question: LedgerRequest) -> None:
            if isinstance(question, ListUnfinished):
                families.append(question.prefix)

        ledger.before = listed
        play(taking_over(kind, "t"), ledger)
    assert families == [LabelPrefix("job"), LabelPrefix("job", "replay")]


def contents() -> LabelContents:
    """The rows of two lanes under a label."""
    regions = [RegionCount("p", "orders", 2, 20), RegionCount("p", "items", 2, 20, 1)]
    spans = PositionSpan("p", 11, 20, 2, "crc1:x"), PositionSpan("q", 31, 31, 1, "crc1:y")
    first = Receipt("L", 1, "job", 7, tuple(regions), spans[:1], 2, 1, 0, recycled=False)
    return LabelContents([first, replace(first, regions=(RegionCount("q", "orders", 1, 10),), positions=spans[1:])])


def test_the_ledgers_rows_of_a_label_are_the_last_positions_of_its_source_partitions() -> None:
    entries = ownership(Ledger()).ledger_entries("L", contents())
    assert (entries.table, entries.partition, entries.rows) == (LEDGER_TABLE, "", 2)
    rows = orjson.loads(b"[" + b"".join(entries.pieces).lstrip(b",") + b"]")
    assert [(row["name"], row["position"], row["row_count"], row["digest"]) for row in rows] == [
        ("p", 20, 5, "crc1:x"),
        ("q", 31, 1, "crc1:y"),
    ]
    assert {(row["job"], row["kind"], row["label"], row["batch"], row["checkpoint"]) for row in rows} == {
        ("job", "position", "L", 7, "cp")
    }
    assert {row["updated_at"] for row in rows} == {"2026-01-01 00:00:00"}


def test_the_receipts_log_has_a_row_for_each_source_partition_of_a_label() -> None:
    chunk = log_entries("job", 7, lambda: "2026-01-01 00:00:00")("L", contents())
    rows = orjson.loads(b"[" + b"".join(chunk.pieces).lstrip(b",") + b"]")
    columns = ("source_partition", "first_position", "last_position", "source_transactions", "row_count", "tables")
    assert (chunk.table, chunk.rows) == (LOG_TABLE, 2)
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("p", 11, 20, 2, 5, "items,orders"),
        ("q", 31, 31, 1, 1, "orders"),
    ]


@pytest.mark.parametrize(("unfinished", "listed"), [(("job-e1-0-7-1_0",), True), (("job-e1-0-7-2_0",), False)])
def test_the_canary_asks_once_whether_a_take_over_would_find_the_label(
    unfinished: tuple[str, ...], listed: bool
) -> None:
    ledger = Ledger(unfinished=unfinished)
    owner = ownership(ledger)
    play(owner.check("job-e1-0-7-1_0", LongestWaits()), ledger)
    assert owner.listed is None
    owner.canary = True
    for _ in range(2):
        play(owner.check("job-e1-0-7-1_0", LongestWaits()), ledger)
        assert owner.listed is listed
    assert not owner.canary


def test_a_driver_checks_and_recovers_in_its_own_name() -> None:
    ledger = Ledger()
    owner = ownership(ledger)
    play(owner.check("l", LongestWaits()), ledger)
    server = Server(ledger, ReplyLost("lost"), Reply(Status.OK))
    play(owner.recover("L", SPANS, LongestWaits()), ledger, server)
    assert {(request.database, request.label) for request in server.requests} == {("shop", "L")}
    play(owner.check("l", LongestWaits()), ledger)
    play(taking_over(Owner("", "e2", "cp"), "u"), ledger)
    with pytest.raises(Fenced, match="The job was taken over"):
        play(owner.check("l", LongestWaits()), ledger)
    with pytest.raises(Fenced, match="The job was taken over"):
        play(owner.recover("L", SPANS, LongestWaits()), ledger)


def test_a_replay_waits_for_its_own_claim_no_matter_which_driver_owns_the_job() -> None:
    ledger = Ledger()
    play(taking_over(DRIVER, "d"), ledger)
    ledger.delay = 3
    play(taking_over(REPLAYING, "t"), ledger)
    listed = [line for line in ledger.log if line.startswith("ListUnfinished")][-1]
    assert "job/replay/" in listed


def test_a_begin_takes_its_headers_along() -> None:
    steps = begin(Label("shop", "L"), {"timeout": "600"})
    assert next(steps) == Request(Operation.BEGIN, "shop", "L", headers={"timeout": "600"})


# --- holds ---


def holding(name: str, seconds: int = 30) -> Steps[TakenOver]:
    return hold("job", "shop", seconds, tokens(name), random.Random(1))


def checking(owner: Owner) -> Steps[None]:
    return check_owner("job", owner, random.Random(1))


def coming_back(owner: Owner) -> Steps[None]:
    return refuse_successor("job", {owner.token, *owner.written}, random.Random(1))


def test_a_held_driver_cannot_commit_and_takes_the_job_back() -> None:
    ledger = Ledger(unfinished=("job-e1-0-1-1_0",))
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    held = play(holding("h"), ledger).owner
    assert "rollback job-e1-0-1-1_0" in ledger.log
    with pytest.raises(JobHeld, match="for at most 30 s"):
        play(checking(driver), ledger)
    play(checking(held), ledger)
    play(release("job", held, random.Random(1)), ledger)
    play(coming_back(driver), ledger, seconds=1)
    back = play(taking_over(DRIVER, "b"), ledger).owner
    play(checking(back), ledger)
    with pytest.raises(Fenced):
        play(checking(held), ledger)


def test_a_hold_ends_by_itself() -> None:
    """The command was killed: its driver waits for the hold's seconds, and no longer."""
    ledger, clock = Ledger(), ManualClock()
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    play(holding("h", seconds=30), ledger)
    run(coming_back(driver), Server(ledger), clock, Deadline.after(600, clock), ledger)
    assert 30 <= clock.monotonic() < 32


def test_a_hold_lasts_until_it_is_released() -> None:
    ledger, clock, looks = Ledger(), ManualClock(), 0
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    held = play(holding("h", seconds=30), ledger).owner

    def releases(question: LedgerRequest) -> None:
        nonlocal looks
        looks += isinstance(question, ReadMarker)
        if looks == 8:
            ledger.rows["job/marker/released"] = WriteMarker("job", "released", held.token)

    ledger.before = releases
    run(coming_back(driver), Server(ledger), clock, Deadline.after(600, clock), ledger)
    assert looks == 8
    assert 0 < clock.monotonic() < 5


def test_a_second_hold_is_of_the_same_driver() -> None:
    """The driver was idle between the two, and has not taken the job back."""
    ledger = Ledger()
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    first = play(holding("h"), ledger).owner
    play(release("job", first, random.Random(1)), ledger)
    second = play(holding("i"), ledger).owner
    assert second.held_from == driver.token
    with pytest.raises(Fenced):
        play(checking(first), ledger)
    with pytest.raises(JobHeld):
        play(checking(driver), ledger)


def test_a_driver_that_another_has_followed_does_not_come_back_after_a_hold() -> None:
    ledger = Ledger()
    old = play(taking_over(DRIVER, "d"), ledger).owner
    new = play(taking_over(Owner("", "e2", "cp"), "n"), ledger).owner
    held = play(holding("h"), ledger).owner
    play(release("job", held, random.Random(1)), ledger)
    for steps in (checking(old), coming_back(old)):
        with pytest.raises(Fenced):
            play(steps, ledger)
    play(coming_back(new), ledger)


def test_a_release_that_comes_late_does_not_touch_the_driver() -> None:
    ledger = Ledger()
    driver = play(taking_over(DRIVER, "d"), ledger).owner
    held = play(holding("h", seconds=0), ledger).owner
    play(coming_back(driver), ledger)
    back = play(taking_over(DRIVER, "b"), ledger).owner
    play(release("job", held, random.Random(1)), ledger)
    play(checking(back), ledger)
