"""The clock of `open_timeout`, which stands while the query is down."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.assembler.rules.model import AssemblerState, OpenTransaction
from starrocks_txn_sink.assembler.rules.reading_clock import ReadingClock
from starrocks_txn_sink.assembler.rules.spill import CarriedState, Manifest
from starrocks_txn_sink.assembler.verified.intake import VerifiedState


def test_the_time_between_two_runs_does_not_count() -> None:
    clock = ReadingClock()
    assert clock.running_since(101.0, 100.0) == clock, "the first run of all"
    clock = clock.after(100.0).after(130.0)
    assert clock.read(130.0) == 130.0
    clock = clock.running_since(731.0, 730.0)
    assert clock.read(730.0) == 130.0
    clock = clock.after(730.0).running_since(731.0, 740.0)
    assert clock.read(740.0) == 139.0, "but for the second until the run's first micro-batch began"
    clock = clock.after(740.0).running_since(1001.0, 1000.0)
    assert clock.read(1000.0) == 139.0


def test_the_pause_is_behind_a_micro_batch_that_runs_again() -> None:
    clock = ReadingClock().after(100.0).running_since(900.0, 110.0).after(110.0)
    assert clock.read(110.0) == 100.0
    clock = clock.running_since(900.0, 905.0)
    assert clock.read(905.0) == 105.0


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    clock = ReadingClock().after(100.0).running_since(41.0, 40.0)
    assert (clock.down, clock.after(40.0).at) == (0.0, 100.0)


@pytest.mark.parametrize(
    "state",
    [AssemblerState(1, (OpenTransaction("t", 1, 50.0),)), VerifiedState(oldest=50.0)],
    ids=["events", "debezium"],
)
def test_a_manifest_knows_when_one_is_due_and_keeps_its_clock(state: AssemblerState | VerifiedState) -> None:
    manifest = Manifest(3, "q", {"p": CarriedState(state)}, clock=ReadingClock(80.0, 7.5))
    assert (manifest.is_due(10.0, 59.9), manifest.is_due(10.0, 60.0)) == (False, True)
    assert Manifest.from_json(manifest.to_json()).clock == ReadingClock(80.0, 7.5)


def test_a_manifest_of_an_earlier_release_has_the_clock_of_spark() -> None:
    text = Manifest(3, "q").to_json().replace(b'"clock"', b'"other"')
    assert Manifest.from_json(text).clock == ReadingClock()
