"""Lanes whose task ends early: a few new labels, then an error with Spark's reason and the place."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.coordinator import (
    MOST_REPEATS,
    LaneFailure,
    LanesResult,
    Pause,
    RoundLimits,
    RunLanes,
    SharedTransactionCoordinator,
    perform_all,
)
from starrocks_txn_sink.errors import LaneDied, LoadFailed, TaskRepeated
from starrocks_txn_sink.sink import failures
from starrocks_txn_sink.sink.failures import reason_of_task
from starrocks_txn_sink.sink.lanes import name_death
from starrocks_txn_sink.sources.kafka.ranges import OffsetRanges
from starrocks_txn_sink.writer.pipe import place_of_first
from tests.support.manual_clock import ManualClock


def write(*errors: Exception | None) -> int:
    """Write with lanes that end with `errors`, label after label; returns the number of labels."""
    clock, ends, labels = ManualClock(), iter(errors), 0
    coordinator = SharedTransactionCoordinator(
        (f"label-{number}" for number in itertools.count()),
        RoundLimits(60.0, max_attempts=2),
        Deadline.after(600.0, clock),
        random.Random(1),
        name_death=lambda error, times: name_death(error, times, clock),
    )

    def carry_out(order: object) -> object:
        nonlocal labels
        if isinstance(order, Pause):
            clock.advance(order.seconds)
        if not isinstance(order, RunLanes):
            return None
        labels += 1
        error = next(ends)
        return LanesResult() if error is None else LanesResult(failures=[LaneFailure(error)])  # type: ignore[arg-type]

    assert perform_all(coordinator.write(), carry_out) == []
    return labels


def test_a_task_that_ends_early_costs_a_few_labels_and_then_the_micro_batch() -> None:
    died = TaskRepeated("again", lane=1, reads="ev-0 offsets 0 to 4")
    with pytest.raises(LaneDied, match=rf"lane 1 ended early, {MOST_REPEATS} times in a row.*reads=ev-0"):
        write(died, died, died)


def test_another_failure_between_begins_the_count_again() -> None:
    died = TaskRepeated("again", lane=1)
    assert write(died, died, None) == 3
    with pytest.raises(LoadFailed):
        write(died, LoadFailed("no backend"), died)


class Store:
    """Spark's store of tasks, which knows of a failed try a little later."""

    def __init__(self, *tries: tuple[int, str | None], late: int = 0) -> None:
        self._tries, self._late = tries, late

    def statusStore(self) -> Store:  # noqa: N802
        return self

    def lastStageAttempt(self, stage: int) -> Any:  # noqa: N802
        assert stage == 4
        return SimpleNamespace(attemptId=lambda: 0)

    def taskList(self, stage: int, attempt: int, _: int) -> Any:  # noqa: N802
        assert (stage, attempt) == (4, 0)
        self._late -= 1
        tries = [] if self._late >= 0 else [self._try(*attempt) for attempt in self._tries]
        return SimpleNamespace(iterator=lambda: SimpleNamespace(hasNext=lambda: bool(tries), next=lambda: tries.pop(0)))

    def _try(self, task: int, message: str | None) -> Any:
        text = SimpleNamespace(isDefined=lambda: message is not None, get=lambda: message)
        return SimpleNamespace(index=lambda: task, errorMessage=lambda: text)


def test_the_reason_is_that_of_the_first_failed_try_at_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = "ExecutorLostFailure (executor 2 exited): Container from a bad node. Exit status: 137\n\tat org.apache"
    traced = "PythonException: Traceback (most recent call last):\n  File\nValueError: no such day\n"

    def reason(store: Any) -> str:
        context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: store))
        monkeypatch.setattr(failures, "active_context", lambda: context)
        return reason_of_task(4, 1, ManualClock())

    assert reason(Store((0, "another task"), (1, loss), (1, None), late=3)) == loss.splitlines()[0]
    assert reason(Store((1, traced))) == "ValueError: no such day"
    assert reason(Store((0, "another task"), (1, None))) == ""
    assert reason(None) == ""  # another release of Spark
    monkeypatch.setattr(failures, "active_context", lambda: None)
    assert reason_of_task(4, 1, ManualClock()) == ""


def test_a_lane_is_named_by_what_it_reads() -> None:
    ranges = {("ev", number): (10 * number, 10 * number + 5) for number in range(10)}
    assert OffsetRanges(dict(list(ranges.items())[:2]), 1.0, {}).place == "ev-0 offsets 0 to 4, ev-1 offsets 10 to 14"
    assert OffsetRanges(ranges, 1.0, {}).place.endswith("ev-7 offsets 70 to 74 and 2 partitions more")
    batch = pa.RecordBatch.from_pydict({"source_partition": ["p-0", "p-0"], "position": [7, 8]})
    assert place_of_first(iter([batch.slice(0, 0), batch])) == "from source partition p-0, position 7"
    in_json = batch.set_column(1, "position", pa.nulls(2, pa.int64()))
    for batches in ([], [batch.select(["source_partition"])], [in_json]):
        assert place_of_first(batches) is None
