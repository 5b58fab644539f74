"""A lane whose rows are cut off commits nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.lane import task
from starrocks_txn_sink.lane.attempt import TASK, Attempt, with_stage
from starrocks_txn_sink.lane.ending import BEGIN_POSITION, END_POSITION, RowsCutOff, until_end
from starrocks_txn_sink.lane.segments import COLUMNS
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.testing.model_server import ModelServer

TYPES = (pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.string())
ROW = ("p", 1, "orders", True, ",[1]")
END = (None, END_POSITION, None, None, None)


def batch(*rows: tuple[object, ...]) -> pa.RecordBatch:
    arrays = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def test_the_last_row_is_taken_off_wherever_batches_are_cut() -> None:
    for batches in ([batch(ROW, ROW, END)], [batch(ROW), batch(ROW, END)], [batch(ROW, ROW), batch(END)]):
        assert sum(part.num_rows for part in until_end(batches, "position")) == 2
    assert list(until_end([batch(END)], "position")) == []


def test_a_row_of_a_user_is_never_taken_for_the_last() -> None:
    strange = (None, END_POSITION, "orders", True, ",[1]")
    (kept,) = until_end([batch(strange, (None, None, None, None, None), END)], "position")
    assert kept.num_rows == 2  # they are refused later, with their place


@pytest.mark.parametrize("batches", [[], [batch(ROW)], [batch(ROW), batch(ROW)]])
def test_rows_without_an_end_were_cut_off(batches: list[pa.RecordBatch]) -> None:
    with pytest.raises(RowsCutOff):
        list(until_end(batches, "position"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    server = ModelServer()
    monkeypatch.setattr(task, "HttpTransport", lambda _: server)
    yield server
    for equipment in task._kept.values():
        equipment.close()
    task._kept.clear()


@pytest.mark.parametrize("whole", [True, False])
def test_a_lane_commits_only_after_its_last_row(server: ModelServer, whole: bool) -> None:
    options = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once")
    lane = task.LaneTask(options, "job", "e", "c", 0)
    batches = [batch(ROW), *([batch(END)] if whole else [])]
    if whole:
        assert len(lane.write(batches, Attempt(0, 1, False), SystemClock())) == 1
    else:
        with pytest.raises(RowsCutOff):
            lane.write(batches, Attempt(0, 1, False), SystemClock())
    assert server.tables == ({"orders": [[1]]} if whole else {})
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
    attempt, batches = with_stage(Attempt(2, 9, False), [rows])
    assert attempt == Attempt(2, 9, again)
    assert [part.num_rows for part in batches] == [2]


@pytest.mark.parametrize("column", ["position", "hash"])
def test_a_row_that_only_names_the_task_is_no_row(column: str) -> None:
    thread = "Thread[Executor task launch worker for task 0.0 in stage 7.1 (TID 9),5,main]"
    columns = {column: pa.array([BEGIN_POSITION, 1]), "value": pa.array([None, "x"]), TASK: pa.array([thread, None])}
    rows = pa.RecordBatch.from_pydict(columns)
    attempt, batches = with_stage(Attempt(2, 9, False), [rows.slice(0, 1), rows.slice(1)])
    assert attempt == Attempt(2, 9, True)
    assert [value for part in batches for value in part.column("value").to_pylist()] == ["x"]


def test_a_row_that_has_more_than_its_task_is_one_whatever_its_position() -> None:
    columns = {"position": pa.array([BEGIN_POSITION]), "value": pa.array(["x"]), TASK: pa.array(["?"])}
    _, batches = with_stage(Attempt(2, 9, False), [pa.RecordBatch.from_pydict(columns)])
    assert [part.num_rows for part in batches] == [1]
