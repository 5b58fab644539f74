"""A lane whose rows are cut off commits nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import RowsCutOff, StageRepeated
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows.columns import COLUMNS, SENTINEL_POSITION, TASK
from starrocks_txn_sink.rows.segments import rows_before_sentinel
from starrocks_txn_sink.writer import task, worker
from starrocks_txn_sink.writer.messages import of_kind
from starrocks_txn_sink.writer.worker import Attempt, resolve_attempt
from tests.support.model_server import ModelServer

TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string())
ROW = ("p", 1, "orders", True, ',{"id":1}')
END = (None, SENTINEL_POSITION, None, None, None)


def batch(*rows: tuple[object, ...]) -> pa.RecordBatch:
    arrays = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def test_the_last_row_is_taken_off_wherever_batches_are_cut() -> None:
    for batches in ([batch(ROW, ROW, END)], [batch(ROW), batch(ROW, END)], [batch(ROW, ROW), batch(END)]):
        assert sum(part.num_rows for part in rows_before_sentinel(batches, "position")) == 2
    assert list(rows_before_sentinel([batch(END)], "position")) == []


def test_a_row_of_a_user_is_never_taken_for_the_last() -> None:
    strange = (None, SENTINEL_POSITION, "orders", True, ",[1]")
    (kept,) = rows_before_sentinel([batch(strange, (None, None, None, None, None), END)], "position")
    assert kept.num_rows == 2  # they are refused later, with their place


@pytest.mark.parametrize("batches", [[], [batch(ROW)], [batch(ROW), batch(ROW)]])
def test_rows_without_an_end_were_cut_off(batches: list[pa.RecordBatch]) -> None:
    with pytest.raises(RowsCutOff):
        list(rows_before_sentinel(batches, "position"))


OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    server = ModelServer()
    monkeypatch.setattr(worker, "HttpTransport", lambda _: server)
    yield server
    worker.RESOURCES.close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_lane_commits_only_after_its_last_row(server: ModelServer, whole: bool) -> None:
    lane = task.LaneTask(OPTIONS, "job", "e", "c", 0)
    batches = [batch(ROW), *([batch(END)] if whole else [])]
    if whole:
        assert len(of_kind(task.LaneTry(lane, Attempt(0, 1, False), SystemClock()).run(batches), Receipt)) == 1
    else:
        with pytest.raises(RowsCutOff):
            task.LaneTry(lane, Attempt(0, 1, False), SystemClock()).run(batches)
    assert server.tables == ({"orders": [{"id": 1}]} if whole else {})
    assert server.open_labels() == []


@pytest.mark.parametrize(
    ("thread", "again"),
    [
        ("Thread[Executor task launch worker for task 0.0 in stage 7.0 (TID 9),5,main]", False),
        ("Thread[Executor task launch worker for task 0.0 in stage 7.1 (TID 9),5,main]", True),
        ("Thread[Executor task launch worker for task 3.2 in stage 7.0 (TID 9),5,main]", True),
        ("Thread[something else]", True),
        (None, True),
    ],
)
def test_the_first_row_tells_whether_the_task_is_a_retry(thread: str | None, again: bool) -> None:
    rows = pa.RecordBatch.from_pydict({TASK: pa.array([thread, None], pa.string())})
    attempt, batches = resolve_attempt(Attempt(2, 9, False), [rows])
    assert attempt == Attempt(2, 9, again)
    assert [part.num_rows for part in batches] == [2]


FIRST = "Thread[Executor task launch worker for task 0.0 in stage 7.0 (TID 9),5,main]"
SECOND = "Thread[Executor task launch worker for task 0.0 in stage 7.1 (TID 9),5,main]"


def named_at_end(*names: str | None, column: str = "source_partition") -> list[pa.RecordBatch]:
    """Batches of one row each."""
    return [pa.RecordBatch.from_pydict({column: pa.array([name], pa.string())}) for name in names]


def test_a_first_try_may_learn_at_the_end_that_it_was_one() -> None:
    attempt, batches = resolve_attempt(Attempt(2, 9, False), named_at_end(None, None, FIRST))
    assert attempt == Attempt(2, 9, False)
    assert sum(part.num_rows for part in batches) == 3


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ((None, SECOND), StageRepeated),
        (("p-0", "p-0"), RowsCutOff),
        ((None, None), RowsCutOff),
    ],
)
def test_a_first_try_of_a_repeated_stage_ends_before_it_commits(
    names: tuple[str | None, ...], error: type[Exception]
) -> None:
    for column in ("source_partition", "table"):
        attempt, batches = resolve_attempt(Attempt(2, 9, False), named_at_end(*names, column=column))
        assert not attempt.retry
        with pytest.raises(error):
            list(batches)


def test_a_retry_and_a_lane_without_rows_may_be_of_any_stage() -> None:
    for attempt, names in (Attempt(2, 9, True), (None, SECOND)), (Attempt(2, 9, False), (SECOND,)):
        told, batches = resolve_attempt(attempt, named_at_end(*names))
        assert told == attempt
        assert sum(part.num_rows for part in batches) == len(names)
