"""What the driver asks Spark in each micro-batch is asked once, and again where the answer may have changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import spark_version
from starrocks_txn_sink.sink import spark_jobs


class Run:
    """A run of a query, as Spark shows it."""

    def __init__(self) -> None:
        self.active = True

    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self.active


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that Spark names, the newest one last."""
    named: list[Run] = [Run()]
    monkeypatch.setattr(spark_version, "running_query", lambda *_: named[-1])
    monkeypatch.setattr(spark_version, "_QUERIES", {})
    return named


SESSION: Any = None


def test_a_run_is_asked_for_once(runs: list[Run]) -> None:
    first = spark_version.query_of_batch(SESSION, "q")
    runs.append(Run())
    assert spark_version.query_of_batch(SESSION, "q") is first


def test_a_query_that_was_started_again_is_its_new_run(runs: list[Run]) -> None:
    spark_version.query_of_batch(SESSION, "q").active = False
    runs.append(Run())
    assert spark_version.query_of_batch(SESSION, "q") is runs[-1]


def test_the_runs_of_many_queries_are_not_all_kept(runs: list[Run]) -> None:
    numbers = range(len(runs) * 100)
    for number in numbers:
        spark_version.query_of_batch(SESSION, f"q{number}")
    assert len(spark_version._QUERIES) == spark_version._MOST_QUERIES


def test_the_slots_are_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, now = [2, 8], [0.0]
    monkeypatch.setattr(spark_jobs, "task_slots", lambda _: answers.pop(0))
    clock: Any = SimpleNamespace(monotonic=lambda: now[0])
    slots = spark_jobs.TaskSlots(object(), clock)
    assert (slots(), slots()) == (2, 2)
    now[0] = spark_jobs._SLOTS_SECONDS
    assert slots() == 8
