"""One try at a lane: its claim, its share of the label, the rows of a part, and rows that become dead letters."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.coordinator import claim_of
from starrocks_txn_sink.coordinator.model import LaneShare, PositionSpan, Receipt, RegionCount, RegionRows
from starrocks_txn_sink.coordinator.quarantine import DeadLetter, Part
from starrocks_txn_sink.errors import LoadFailed, StarRocksSinkError, TaskRepeated, TooManyTransactions, notes_of
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, MOST_ROW_BYTES, read_rows
from starrocks_txn_sink.protocol.label import Label, Steps, begin, run
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.protocol.refusals import UNSAID
from starrocks_txn_sink.protocol.wire import Operation
from starrocks_txn_sink.rows.bad_rows import BadRow, Judge
from starrocks_txn_sink.rows.columns import PAYLOAD
from starrocks_txn_sink.rows.segments import Segmenter
from starrocks_txn_sink.writer import worker
from starrocks_txn_sink.writer.dead_letters import BadRowsFound, DeadLetters
from starrocks_txn_sink.writer.lane_try import LaneTry, SparkLane
from starrocks_txn_sink.writer.messages import (
    DriverUnreached,
    LaneCost,
    LaneReport,
    Message,
    attach_report,
    decode,
    encode,
    envelope,
    of_kind,
)
from starrocks_txn_sink.writer.pipe import InputStage, ReadyRows, SourceSchema
from starrocks_txn_sink.writer.task import JobOwnership, LaneTask
from starrocks_txn_sink.writer.turns import TurnsAddress, lane_turns, service_at, turns_of
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.http_peer import unused_port
from tests.support.lane_rows import Row, batch
from tests.support.manual_clock import ManualClock
from tests.support.model_server import Fault, ModelServer, plan_faults

LABEL = "job-e-all-7-1_0"
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
TASK = LaneTask(OPTIONS, "job", "e", "c", 7, label=LABEL)
ROWS: list[Row] = [("p", position, "items", True, f',{{"id":{position}}}') for position in (1, 2, 3)]
FIRST, SECOND = Attempt(2, 9, False), Attempt(2, 10, False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server that has begun the label."""
    server = ModelServer()
    monkeypatch.setattr(worker, "HttpTransport", lambda _: server)
    clock = SystemClock()
    run(begin(Label("shop", LABEL), OPTIONS.begin_headers()), server, clock, Deadline.after(10, clock))
    yield server
    worker.RESOURCES.close()


def run_lane(
    task: LaneTask = TASK, batches: Iterable[pa.RecordBatch] | None = None, attempt: Attempt = FIRST
) -> tuple[LaneShare, LaneReport]:
    batches = [batch(ROWS)] if batches is None else batches
    messages = [decode(encode(message)) for message in LaneTry(task, attempt, SystemClock()).run(iter(batches))]
    (share,), (report,) = of_kind(messages, LaneShare), of_kind(messages, LaneReport)
    return share, report


def loaded_rows(server: ModelServer) -> list[Any]:
    return [row for _, body in server.tasks[LABEL].loads for row in orjson.loads(body)]


def begun(server: ModelServer) -> list[str]:
    return [request.label for request in server.requests if request.operation is Operation.BEGIN]


def test_a_lane_tells_what_it_has_loaded_and_commits_nothing(server: ModelServer) -> None:
    share, _ = run_lane()
    assert (share.partitions, share.stopped, share.cuts) == (("p",), False, {})
    (receipt,) = share.loaded
    assert (receipt.label, receipt.rows) == (LABEL, 3)
    assert [(span.first, span.last) for span in receipt.positions] == [(1, 3)]
    assert server.tasks[LABEL].state == "BEGIN"


def test_a_lane_that_has_ended_is_gone_with_all_that_it_has_read(server: ModelServer) -> None:
    """It is in no circle of objects, which would be there until a collection, and no waiting thread keeps it."""

    class Completing(SourceSchema):
        completes = True

    source, gone = InputStage(), threading.Event()
    source.schema = Completing()
    weakref.finalize(source, gone.set)
    gc.collect()
    gc.disable()
    try:
        LaneTry(TASK, FIRST, SystemClock(), source=source).run(iter([batch(ROWS)]))
        del source
        assert gone.wait(10)
    finally:
        gc.enable()
    assert server.tasks[LABEL].loads


def test_rows_that_are_visible_are_left_out_and_their_source_partition_is_named(server: ModelServer) -> None:
    positions = {"p": Position("p", 3, "c", 6, "job-d-all-6-1_0", 1, "")}
    share, report = run_lane(replace(TASK, ownership=JobOwnership("t", positions)))
    assert (share.loaded, share.partitions, report.work.replayed_rows) == ((), ("p",), 3)
    assert server.tasks[LABEL].loads == []


def test_plain_rows_are_reported_by_number_and_sum(server: ModelServer) -> None:
    names, hashes = pa.array(["items", "items"]), pa.array([1, 2], pa.int64())
    rows = pa.RecordBatch.from_pydict({"table": names, "payload": pa.array([',{"id":1}', ',{"id":2}']), "hash": hashes})
    share, _ = run_lane(replace(TASK, marked=False), [rows])
    assert (share.rows, share.sum, share.partitions, share.cuts) == (2, 3, (), {})
    assert len(loaded_rows(server)) == 2


# --- claims ---


def test_a_lane_claims_before_it_loads(server: ModelServer) -> None:
    run_lane(replace(TASK, claims=True))
    assert begun(server) == [LABEL, claim_of(LABEL, 2)]
    assert server.requests[1].operation is Operation.BEGIN
    assert len(loaded_rows(server)) == 3
    assert server.tasks[claim_of(LABEL, 2)].loads == []


def test_lanes_of_one_label_have_claims_of_their_own(server: ModelServer) -> None:
    task = replace(TASK, claims=True)
    for lane in (0, 1):
        run_lane(task, attempt=Attempt(lane, lane, False))
    assert begun(server)[1:] == [claim_of(LABEL, 0), claim_of(LABEL, 1)]


def test_a_second_try_loads_nothing_and_fails_after_it_has_read_its_rows(server: ModelServer) -> None:
    task, read = replace(TASK, claims=True), list[int]()
    run_lane(task)

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            read.append(number)
            yield batch(ROWS)

    with pytest.raises(TaskRepeated, match=r"Another try of Spark at lane 2 .*lane=2") as failure:
        run_lane(task, rows(), SECOND)
    assert failure.value.retryable
    assert read == [0, 1, 2]  # a speculative copy must not be the first to end
    assert len(loaded_rows(server)) == 3


@pytest.mark.parametrize("batches", [[], [batch([])]])
def test_nothing_is_claimed_without_rows(server: ModelServer, batches: list[pa.RecordBatch]) -> None:
    for attempt in (FIRST, SECOND):
        share, _ = run_lane(replace(TASK, claims=True), batches, attempt)
        assert share.loaded == ()
    assert begun(server) == [LABEL]


def test_a_claim_without_an_answer_may_be_anybodys(server: ModelServer) -> None:
    server.faults = plan_faults({(Operation.BEGIN, 0): Fault.LOST_AFTER})
    with pytest.raises(TaskRepeated):
        run_lane(replace(TASK, claims=True))
    assert loaded_rows(server) == []


def test_a_full_database_is_no_second_try(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> StarRocksSinkError:
        return TooManyTransactions("current running txns on db 7 is 1000")

    monkeypatch.setattr("starrocks_txn_sink.protocol.label.refusals.begin_error", full)
    server.faults = plan_faults({(Operation.BEGIN, 0): Fault.REFUSED})
    with pytest.raises(TooManyTransactions):
        run_lane(replace(TASK, claims=True))


# --- tries, errors and messages ---


def answer(task: LaneTask, attempt: Attempt, error: BaseException | None = None) -> list[Message]:
    class Failing(ReadyRows):
        def open(self, *_: object) -> InputStage:
            raise error or AssertionError("It loads.")

    return SparkLane(task, Failing()).run([], attempt)


def test_a_task_that_spark_runs_again_does_not_load_without_a_claim() -> None:
    (message,) = answer(TASK, Attempt(1, 7, True))
    assert isinstance(message, LaneReport)
    error = message.lane_error()
    assert isinstance(error, TaskRepeated)
    assert error.retryable
    with pytest.raises(AssertionError, match="It loads"):  # here the claim decides
        answer(replace(TASK, claims=True), Attempt(1, 7, True))


def test_errors_are_messages_and_bugs_are_not() -> None:
    (message,) = answer(TASK, FIRST, LoadFailed("no backend", label="L"))
    assert isinstance(message, LaneReport)
    assert message.trouble.failure is not None
    assert (message.code, message.trouble.failure.place) == ("load_failed", {"label": "L"})
    with pytest.raises(ZeroDivisionError):
        answer(TASK, FIRST, ZeroDivisionError())


def test_a_report_goes_into_the_text_of_an_error_only_where_it_leaves_the_task() -> None:
    report = LaneReport("job", 1, 0, cost=LaneCost({"load": Counter(OK=3)}))
    within, leaving = LoadFailed("no backend"), ZeroDivisionError()
    for error in (within, leaving):
        attach_report(error, report)
    (message,) = answer(TASK, FIRST, within)
    assert isinstance(message, LaneReport)
    assert (message.code, message.cost, notes_of(within)) == ("load_failed", report.cost, [])
    with pytest.raises(ZeroDivisionError):
        answer(TASK, FIRST, leaving)
    assert notes_of(leaving) == [envelope(report)]


# --- entering a label that a lane begins ---


@pytest.fixture
def opened() -> Iterator[LaneTask]:
    """A task whose label is open at the driver, which is this process."""
    address = turns_of("local", "", "")
    assert address is not None
    service, task = service_at(address), replace(TASK, label=f"{LABEL}1", lane_begins=True, turns=address)
    service.open_label(task.label)
    yield task
    service.close_label(task.label)
    turns = lane_turns(address)
    assert turns is not None
    turns.close()


def test_the_first_lane_with_rows_begins_the_label_and_the_next_one_loads_under_it(
    server: ModelServer, opened: LaneTask
) -> None:
    first, _ = run_lane(opened)
    other, _ = run_lane(opened, attempt=Attempt(FIRST.lane + 1, 99, False))
    assert begun(server).count(opened.label) == 1
    assert [receipt.rows for share in (first, other) for receipt in share.loaded] == [3, 3]


def test_a_lane_whose_rows_are_visible_begins_nothing(server: ModelServer, opened: LaneTask) -> None:
    positions = {"p": Position("p", 3, "c", 6, "job-d-all-6-1_0", 1, "")}
    share, _ = run_lane(replace(opened, ownership=JobOwnership("t", positions)))
    assert (share.loaded, opened.label in begun(server)) == ((), False)
    with pytest.raises(TaskRepeated):  # and yet no second try may load
        run_lane(opened, attempt=SECOND)


def test_a_second_try_reads_its_rows_and_loads_nothing_however_late_it_comes(
    server: ModelServer, opened: LaneTask
) -> None:
    """Where Spark may run a task twice; the server is asked for nothing."""
    task, read = replace(opened, claims=True), list[int]()
    run_lane(task)

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            read.append(number)
            yield batch(ROWS)

    with pytest.raises(TaskRepeated, match="Another try of Spark at lane"):
        run_lane(task, rows(), SECOND)
    assert (len(read), len(server.tasks[task.label].loads)) == (3, 1)
    assert claim_of(task.label, FIRST.lane) not in begun(server)


def test_a_label_that_is_closed_takes_no_lane(server: ModelServer, opened: LaneTask) -> None:
    with pytest.raises(LoadFailed, match="given up"):
        run_lane(replace(opened, label=f"{LABEL}2"))
    assert begun(server) == [LABEL]  # by the test


def test_a_lane_that_cannot_ask_says_so_and_begins_nothing(server: ModelServer, opened: LaneTask) -> None:
    task = replace(opened, turns=TurnsAddress("127.0.0.1", unused_port(), "secret"))
    unreached, report = LaneTry(task, FIRST, SystemClock()).run(iter([batch(ROWS)]))
    assert unreached == DriverUnreached("127.0.0.1")
    assert decode(encode(unreached)) == unreached
    assert isinstance(report, LaneReport)
    assert (report.code, begun(server)) == ("", [LABEL])


def test_a_lane_whose_round_has_failed_while_it_read_begins_nothing(server: ModelServer, opened: LaneTask) -> None:
    """As Debezium's lane, which is alone, and reads everything before it has rows; Spark may cancel it late."""
    assert opened.turns is not None
    service, task = service_at(opened.turns), replace(opened, label=f"{LABEL}2")
    service.open_label(task.label)

    def rows(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        read = [*batches]
        assert not service.close_label(task.label).told  # so the driver has nothing to roll back
        return read

    with pytest.raises(LoadFailed, match="given up"):
        LaneTry(task, FIRST, SystemClock(), source=InputStage(rows)).run(iter([batch(ROWS)]))
    assert begun(server) == [LABEL]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("age", "stopped"), [(None, False), (100.0, False), (300.0, True)])
def test_a_round_is_as_old_as_a_label_that_was_begun_before_or_counts_from_the_first_rows(
    opened: LaneTask, age: float | None, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entered(*_: object) -> Steps[float | None]:
        yield from ()
        return age

    monkeypatch.setattr("starrocks_txn_sink.writer.lane_try.enter", entered)
    clock = ManualClock()

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = [*batches]
        clock.advance(0.0 if age else 300.0)
        yield from read

    task = replace(opened, ordered=True, round_ends=0.0, round_seconds=240.0)
    batches = [batch([ROWS[0]]), batch([("p", 2, "items", True, ",{}")])]
    (share,) = of_kind(LaneTry(task, FIRST, clock, source=InputStage(rows)).run(iter(batches)), LaneShare)
    assert share.stopped is stopped


# --- the end of a round ---


def test_a_lane_of_sorted_rows_stops_between_two_source_transactions(server: ModelServer) -> None:
    ended = replace(TASK, ordered=True, round_ends=0.0, round_seconds=240.0)
    batches = [batch([ROWS[0]]), batch([("p", 2, "items", False, ',{"id":2}'), ("p", 2, "items", True, ',{"id":3}')])]
    share, _ = run_lane(ended, batches)
    assert share.stopped
    (receipt,) = share.loaded
    assert [(span.first, span.last) for span in receipt.positions] == [(1, 1)]
    positions = {"p": Position("p", 1, "c", 7, LABEL, 1, "")}
    share, _ = run_lane(replace(ended, ownership=JobOwnership("t", positions)), batches)
    assert (share.stopped, [span.last for span in share.loaded[0].positions]) == (False, [2])
    assert [row["id"] for row in loaded_rows(server)] == [1, 2, 3]


def test_a_lane_in_arrival_order_reads_to_its_end(server: ModelServer) -> None:
    share, _ = run_lane(replace(TASK, round_ends=0.0, round_seconds=240.0))
    assert not share.stopped
    assert len(loaded_rows(server)) == 3


# --- parts and dead letters ---

QUARANTINE = replace(OPTIONS, query_url="mysql://fe:9030", delivery="exactly-once", on_bad_rows="quarantine")


def test_a_lane_loads_its_part_and_names_its_cuts(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LeaderConnection", lambda _: None)
    task = replace(TASK, options=replace(QUARANTINE, schema_changes="ignore"), part=Part({"p": 2}))
    rows = [*ROWS, ("q", 1, "items", True, ',{"id":9}')]
    share, _ = run_lane(task, [batch(rows)])
    assert [row["id"] for row in loaded_rows(server)] == [1, 2]
    assert share.cuts == {"p": [1, 2]}
    share, _ = run_lane(replace(task, part=Part()), [batch(rows)])
    assert share.cuts == {"p": [1, 2, 3], "q": [1]}


def no_judge(_: pa.RecordBatch) -> list[BadRow]:
    return []


def judge_bad(rows: pa.RecordBatch) -> list[BadRow]:
    """Rows with the word BAD are bad."""
    texts = rows.column(PAYLOAD).to_pylist()
    return [BadRow(number, "is bad") for number, text in enumerate(texts) if "BAD" in text]


def dead_letters(judge: Judge = no_judge) -> DeadLetters:
    task = replace(TASK, part=Part(set_aside={("p", 5): DeadLetter("a value is too long", "job-e-all-7-1_3")}))
    return DeadLetters(task, judge, lambda: "2026-01-01 00:00:00")


def segments(letters: DeadLetters, *pieces: list[Row]) -> list[Any]:
    segmenter = Segmenter(with_row_index=True, set_aside=letters)
    return [segment for rows in pieces for segment in segmenter.split(batch(rows))]


def content(rows: RegionRows) -> list[dict[str, Any]]:
    return list(orjson.loads(b"[" + bytes(rows.piece).lstrip(b",") + b"]"))


def test_rows_of_a_source_transaction_become_rows_of_the_dead_letter_table() -> None:
    row, end = segments(dead_letters(), [("p", 5, "items", True, ',{"id":1.10, "t" : "é"}')])
    assert isinstance(row, RegionRows)
    assert isinstance(end, PositionSpan)
    assert (row.partition, row.table, row.rows) == ("p", DEAD_LETTER_TABLE, 1)
    (letter,) = content(row)
    assert letter["content"] == '{"id":1.10, "t" : "é"}'  # every byte
    place = ("source_partition", "position", "table_name", "row_number", "reason", "label", "batch", "set_aside_at")
    assert [letter[name] for name in place] == [
        *("p", 5, "items", 0, "a value is too long", "job-e-all-7-1_3", 7, "2026-01-01 00:00:00"),
    ]


def test_a_reason_that_the_server_does_not_say_has_what_the_sink_finds() -> None:
    unsaid = DeadLetter(f"The server rejected 1 row of items: {UNSAID}.", "job-e-all-7-1_3")
    task = replace(TASK, part=Part(set_aside={("p", 5): unsaid, ("p", 6): unsaid, ("p", 7): DeadLetter("said", "l")}))
    letters = DeadLetters(task, no_judge, lambda: "2026-01-01 00:00:00", judge_bad)
    rows = [("p", 5, "items", False, ',{"id":1}'), ("p", 5, "orders", True, ',{"id":"BAD"}')]
    rows += [("p", 6, "items", True, ',{"id":2}'), ("p", 7, "items", True, ',{"id":"BAD"}')]
    reasons = [
        row["reason"] for piece in segments(letters, rows) if isinstance(piece, RegionRows) for row in content(piece)
    ]
    found = f"The server rejected 1 row of items: {UNSAID}; the sink finds that a row of orders is bad."
    assert reasons == [found, found, unsaid.reason, "said"]


def test_row_numbers_go_on_over_pieces_by_table() -> None:
    numbers, ids = list[tuple[str, int]](), set[str]()
    pieces = [("items", "orders"), ("items", "items"), ("orders", "items")]
    rows = [
        [("p", 5, table, (number, at) == (2, 1), f',{{"n":{at}}}') for at, table in enumerate(tables)]
        for number, tables in enumerate(pieces)
    ]
    for segment in segments(dead_letters(), *rows):
        if isinstance(segment, RegionRows):
            numbers += [(row["table_name"], row["row_number"]) for row in content(segment)]
            ids.update(row["id"] for row in content(segment))
    assert sorted(numbers) == [*(("items", number) for number in range(4)), ("orders", 0), ("orders", 1)]
    assert len(ids) == 6


def test_the_lane_sets_whole_source_transactions_of_bad_rows_aside() -> None:
    letters = dead_letters(judge_bad)
    found = segments(
        letters,
        [
            ("p", 6, "orders", False, ',{"id":1}'),
            ("p", 6, "items", True, ',{"id":"BAD"}'),
            ("p", 7, "items", True, ',{"id":2}'),
            ("p", 8, "items", False, ',{"id":"BAD"}'),
        ],
        [("p", 8, "orders", True, ',{"id":3}'), ("q", 8, "orders", True, ',{"id":4}')],
    )
    rows = [segment for segment in found if isinstance(segment, RegionRows)]
    kept = [row["id"] for segment in rows if segment.table != DEAD_LETTER_TABLE for row in content(segment)]
    dead = [row for segment in rows if segment.table == DEAD_LETTER_TABLE for row in content(segment)]
    assert kept == [2, 4]
    assert [(row["position"], row["table_name"]) for row in dead] == [
        (6, "orders"), (6, "items"), (8, "items"), (8, "orders"),
    ]  # fmt: skip
    assert dead[0]["reason"] == "A row of items is bad."
    assert letters.first_found == "A row of items is bad."


def test_a_bad_row_behind_rows_that_are_loaded_is_for_the_next_label() -> None:
    with pytest.raises(BadRowsFound) as raised:
        segments(
            dead_letters(judge_bad),
            [("p", 6, "orders", False, ',{"id":1}')],
            [("p", 6, "items", True, ',{"id":"BAD"}')],
        )
    assert list(raised.value.places) == [("p", 6)]


def test_the_receipt_counts_dead_letters_by_their_own_tables() -> None:
    letters = dead_letters()
    segments(
        letters,
        [("p", 5, "orders", False, ",[1]"), ("p", 5, "items", False, ",[22]"), ("p", 5, "orders", True, ",[333]")],
    )
    span = PositionSpan("p", 4, 6, 3, "d")
    regions = RegionCount("p", DEAD_LETTER_TABLE, 3, 999), RegionCount("p", "items", 2, 20)
    receipt = letters.receipt(Receipt(LABEL, 1, "job", 7, regions, (span,), 1, 1, 0, recycled=False))
    assert (receipt.regions, receipt.rows) == (regions[1:], 2)
    assert receipt.dead_lettered == (RegionCount("p", "items", 1, 5), RegionCount("p", "orders", 2, 10))
    assert (receipt.positions, receipt.dead_lettered_positions) == ((span,), (PositionSpan("p", 5, 5, 1),))
    assert (receipt.source_transactions, receipt.dead_lettered_transactions, receipt.dead_lettered_rows) == (2, 1, 3)


def test_a_row_that_is_larger_than_a_text_becomes_several_dead_letters_and_counts_as_one() -> None:
    text = '"' + "xé" * 800_000 + '"'
    row, _ = segments(dead_letters(), [("p", 5, "items", True, f",{text}")])
    assert row.rows == 1
    pieces = content(row)
    assert all(len(piece["content"].encode()) <= MOST_ROW_BYTES for piece in pieces)
    names = "id", "table_name", "content", "load_columns", "row_number"
    (whole,) = read_rows([[piece[name] for name in names] for piece in pieces])
    assert (whole.content, len(whole.ids), len(set(whole.ids))) == (text, 3, 3)


def test_a_lane_of_dead_letters_loads_them_and_nothing_else(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LeaderConnection", lambda _: None)
    part = Part({"p": 2}, {("p", 2): DeadLetter("bad", "L")})
    positions = {"p": Position("p", 1, "c", 7, LABEL, 1, "")}
    options = replace(QUARANTINE, schema_changes="ignore")
    share, _ = run_lane(replace(TASK, options=options, part=part, ownership=JobOwnership("t", positions)))
    (receipt,) = share.loaded
    assert {table for table, _ in server.tasks[LABEL].loads} == {DEAD_LETTER_TABLE}
    assert [(row["position"], row["content"]) for row in loaded_rows(server)] == [(2, '{"id":2}')]
    assert receipt.dead_lettered == (RegionCount("p", "items", 1, len(',{"id":2}')),)
