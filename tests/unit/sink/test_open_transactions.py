"""A source transaction without END: a warning after a minute, with its place, and then ever more rarely."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink.sink import batch_events
from starrocks_txn_sink.sink.batch_events import OpenTransactionWatch, _StageCounts
from starrocks_txn_sink.telemetry import Event, ignore_event
from tests.support.manual_clock import ManualClock


class Watched:
    def __init__(self) -> None:
        self.clock, self.events = ManualClock(), list[Event]()
        self.watch = OpenTransactionWatch(self.events.append, self.clock, start=lambda _: None)

    def count(self, opened: int, oldest: tuple[dict[str, Any], ...] = (), name: str = "q/lanes") -> None:
        counts = {"events": 3, "open": opened, "open_rows": 7, "oldest_open": oldest[0]["since"] if oldest else 0}
        self.watch(Event("assembler.counted", {"query": "q", "name": name, "counts": counts, "oldest": oldest}))

    def warned(self) -> list[int]:
        return [round(event.fields["seconds"]) for event in self.events]


def oldest(clock: ManualClock) -> tuple[dict[str, Any], ...]:
    return ({"partition": "p-0", "position": 17, "since": clock.wall(), "rows": 7, "bytes": 9},)


def test_the_oldest_one_is_named_after_a_minute() -> None:
    watched = Watched()
    watched.count(1, oldest(watched.clock))
    assert watched.watch.look()
    watched.clock.sleep(59)
    watched.watch.look()
    assert watched.events == []
    watched.clock.sleep(2)
    watched.watch.look()
    (event,) = watched.events
    assert event.name == "transaction.open"
    assert (event.fields["place"], event.fields["rows"]) == ("p-0 at 17", 7)
    assert "Its END has not come" in event.fields["advice"]


def test_the_warning_comes_again_ever_more_rarely_until_it_ends() -> None:
    watched = Watched()
    watched.count(1, oldest(watched.clock))
    for _ in range(600):
        watched.clock.sleep(1)
        watched.watch.look()
    assert watched.warned() == [60, 120, 240, 480]
    watched.count(0)
    assert not watched.watch.look()


def test_a_stage_that_does_not_name_transactions_is_warned_about_too() -> None:
    watched = Watched()
    watched.count(2, name="q/assembler")
    watched.clock.sleep(61)
    watched.watch.look()
    assert (watched.warned(), watched.events[0].fields["open"]) == ([61], 2)


def test_what_an_ended_query_has_left_open_is_no_longer_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, running = Watched(), {"q", "other"}
    monkeypatch.setattr(batch_events, "is_running", lambda _, query: query in running)
    watched.count(2)
    watched.clock.sleep(30)
    watched.count(1, oldest(watched.clock), "other/lanes")
    running.remove("q")
    for _ in range(61):
        watched.clock.sleep(1)
        watched.watch.look()
    assert [event.fields["stage"] for event in watched.events] == ["other/lanes"]
    running.clear()
    watched.clock.sleep(60)
    assert not watched.watch.look()
    running.add("q")  # restarted, and its micro-batches are empty
    assert watched.watch.look()
    assert [event.fields["stage"] for event in watched.events] == ["other/lanes", "q/lanes"]


def test_a_timer_looks_by_itself() -> None:
    clock, events = ManualClock(), list[Event]()
    watch = OpenTransactionWatch(events.append, clock, look_seconds=0.01)
    counts = {"events": 1, "open": 1, "open_rows": 1}
    watch(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": counts}))
    clock.sleep(61)
    for _ in range(500):
        if events:
            break
        thread = watch._looking
        if thread is not None:
            thread.join(0.02)
    assert [event.name for event in events] == ["transaction.open"]
    watch(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": {**counts, "open": 0}}))


def test_it_travels_without_its_knowledge() -> None:
    watch = OpenTransactionWatch(ignore_event)
    watch(Event("batch.completed", {}))
    assert not pickle.loads(pickle.dumps(watch)).look()


def test_one_listener_of_spark_serves_all_sinks_and_none_where_no_stage_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watches: list[Any] = []
    session = SimpleNamespace()
    builder, planned = SimpleNamespace(getOrCreate=lambda: session), threading.Event()
    monkeypatch.setattr(batch_events, "ProgressWatch", lambda session, emit: watches.append((session, emit)))
    monkeypatch.setattr(batch_events, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(batch_events, "PLANNED", planned)
    spark: Any = SimpleNamespace(_sc=object())
    first, second, stages = Watched(), Watched(), _StageCounts()
    stages.follow(first.watch, spark)
    assert watches == []
    planned.set()
    stages.follow(first.watch, spark)
    stages.follow(second.watch, spark)
    stages.follow(second.watch, spark)
    assert watches == [(session, stages)]
    counts = {"events": 1, "open": 1, "open_rows": 1}
    stages(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": counts}))
    for watched in (first, second):
        watched.clock.sleep(61)
        watched.watch.look()
        assert watched.warned() == [61]
