"""A source transaction without END: a warning after a minute, with its place, and then ever more rarely."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink.sink import open_transactions
from starrocks_txn_sink.sink.open_transactions import OpenTransactionWatch, _StageCounts
from starrocks_txn_sink.telemetry import Event, ignore_event
from tests.support.manual_clock import ManualClock


class Watched:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(OpenTransactionWatch, "_look_later", lambda _: None)
        self.clock, self.events = ManualClock(), list[Event]()
        self.watch = OpenTransactionWatch(self.events.append, self.clock)

    def count(self, opened: int, oldest: tuple[dict[str, Any], ...] = (), name: str = "q/lanes") -> None:
        counts = {"events": 3, "open": opened, "open_rows": 7, "oldest_open": oldest[0]["since"] if oldest else 0}
        self.watch(Event("assembler.counted", {"query": "q", "name": name, "counts": counts, "oldest": oldest}))

    def warned(self) -> list[int]:
        return [round(event.fields["seconds"]) for event in self.events]


def oldest(clock: ManualClock) -> tuple[dict[str, Any], ...]:
    return ({"partition": "p-0", "position": 17, "since": clock.wall(), "rows": 7, "bytes": 9},)


def test_the_oldest_one_is_named_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch)
    one.count(1, oldest(one.clock))
    assert one.watch.look()
    one.clock.sleep(59)
    one.watch.look()
    assert one.events == []
    one.clock.sleep(2)
    one.watch.look()
    (event,) = one.events
    assert event.name == "transaction.open"
    assert (event.fields["place"], event.fields["rows"]) == ("p-0 at 17", 7)
    assert "Its END has not come" in event.fields["advice"]


def test_the_warning_comes_again_ever_more_rarely_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch)
    one.count(1, oldest(one.clock))
    for _ in range(600):
        one.clock.sleep(1)
        one.watch.look()
    assert one.warned() == [60, 120, 240, 480]
    one.count(0)
    assert not one.watch.look()


def test_a_stage_that_does_not_name_transactions_is_warned_about_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Watched(monkeypatch)
    one.count(2, name="q/assembler")
    one.clock.sleep(61)
    one.watch.look()
    assert (one.warned(), one.events[0].fields["open"]) == ([61], 2)


def test_what_an_ended_query_has_left_open_is_no_longer_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    one, running = Watched(monkeypatch), {"q", "other"}
    monkeypatch.setattr(open_transactions, "is_running", lambda _, query: query in running)
    one.count(2)
    one.clock.sleep(30)
    one.count(1, oldest(one.clock), "other/lanes")
    running.remove("q")
    for _ in range(61):
        one.clock.sleep(1)
        one.watch.look()
    assert [event.fields["stage"] for event in one.events] == ["other/lanes"]
    running.clear()
    one.clock.sleep(60)
    assert not one.watch.look()
    running.add("q")  # restarted, and its micro-batches are empty
    assert one.watch.look()
    assert [event.fields["stage"] for event in one.events] == ["other/lanes", "q/lanes"]


def test_a_timer_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starrocks_txn_sink.sink.open_transactions._LOOK_SECONDS", 0.01)
    clock, seen = ManualClock(), list[Event]()
    watch = OpenTransactionWatch(seen.append, clock)
    counts = {"events": 1, "open": 1, "open_rows": 1}
    watch(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": counts}))
    clock.sleep(61)
    for _ in range(500):
        if seen:
            break
        thread = watch._looking
        if thread is not None:
            thread.join(0.02)
    assert [event.name for event in seen] == ["transaction.open"]
    watch(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": {**counts, "open": 0}}))


def test_it_travels_without_its_knowledge() -> None:
    watch = OpenTransactionWatch(ignore_event)
    watch(Event("batch.completed", {}))
    assert not pickle.loads(pickle.dumps(watch)).look()


def test_one_listener_of_spark_serves_all_sinks_and_none_where_no_stage_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    session = SimpleNamespace()
    builder, planned = SimpleNamespace(getOrCreate=lambda: session), threading.Event()
    monkeypatch.setattr(open_transactions, "ProgressWatch", lambda session, emit: made.append((session, emit)))
    monkeypatch.setattr(open_transactions, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(open_transactions, "PLANNED", planned)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(_sc=object()))
    one, other, stages = Watched(monkeypatch), Watched(monkeypatch), _StageCounts()
    stages.follow(one.watch, frame)
    assert made == []
    planned.set()
    stages.follow(one.watch, frame)
    stages.follow(other.watch, frame)
    stages.follow(other.watch, frame)
    assert made == [(session, stages)]
    counts = {"events": 1, "open": 1, "open_rows": 1}
    stages(Event("assembler.counted", {"query": "q", "name": "q/a", "counts": counts}))
    for each in (one, other):
        each.clock.sleep(61)
        each.watch.look()
        assert each.warned() == [61]
