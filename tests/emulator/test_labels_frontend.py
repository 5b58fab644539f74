"""The frontend over a store in memory: registration, aborts, restarts, held commits (wire contract 3.2, 4, 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.settings import Generation, Limits
from starrocks_emulator.sql.information_schema import load_rows
from starrocks_emulator.transactions.backend import Backend
from starrocks_emulator.transactions.labels import Planning
from starrocks_emulator.transactions.messages import transaction_parameters
from tests.support.protocol_doubles import Stage

B, C = Generation.B, Generation.C
both_generations = pytest.mark.parametrize("generation", [B, C])


@both_generations
def test_spooled_bodies_are_gone_after_every_end(tmp_path: Path, generation: Generation) -> None:
    stage = Stage(tmp_path, generation)
    for label, end in (("c", stage.commit), ("r", stage.rollback), ("f", lambda label: stage.load(label, "missing"))):
        stage.begin(label)
        stage.load(label, "t")
        assert list(tmp_path.iterdir())
        end(label)
        assert list(tmp_path.iterdir()) == []


@both_generations
def test_a_rejected_commit_cancels_and_drops_every_table(tmp_path: Path, generation: Generation) -> None:
    stage = Stage(tmp_path, generation)
    stage.begin("l")
    stage.load("l", "t")
    stage.load("l", "without_rows", b"")  # the commit finishes it first
    assert stage.commit("l")["Status"] == "FAILED"
    assert stage.store.tables == {}
    assert list(tmp_path.iterdir()) == []
    assert {row["STATE"] for row in load_rows(stage.memory)} == {"CANCELLED"}
    assert stage.state("l") == {B: "UNKNOWN", C: "ABORTED"}[generation]


def test_in_b_a_failed_commit_is_registered_once_a_table_was_in_order(tmp_path: Path) -> None:
    """Wire contract 6.2."""
    stage = Stage(tmp_path, B)
    stage.begin("l")
    stage.load("l", "t")
    stage.load("l", "empty", b"")  # the commit finishes it last
    assert stage.commit("l")["Status"] == "FAILED"
    assert stage.state("l") == "ABORTED"


def test_in_b_ok_may_mean_rolled_back(tmp_path: Path) -> None:
    """Wire contract 3.2, 10.7, the hole of B: the label stays PREPARE until its inner timeout."""
    stage = Stage(tmp_path, B, Limits(label_clean_interval_second=100))
    stage.begin("l")
    stage.load("l", "t")
    assert stage.commit("l", rolled_back=True)["ChannelId"] == 0
    assert stage.state("l") == "PREPARE"
    assert stage.commit("l")["Message"].startswith("Can not commit CANCELLED transaction")
    assert stage.store.tables == {}
    assert list(tmp_path.iterdir()) == []
    stage.clock.now += 301
    assert stage.state("l") == "ABORTED"


@both_generations
def test_b_ends_a_transaction_after_300_seconds_and_c_does_not(tmp_path: Path, generation: Generation) -> None:
    """Wire contract 4.12, 10.7: whatever begin's timeout was."""
    stage = Stage(tmp_path, generation)
    stage.memory.settings = replace(stage.memory.settings, second_clock=True)
    stage.begin("l", timeout="900")
    stage.load("l", "t")
    stage.clock.now += 301
    assert stage.commit("l")["Status"] == {B: "FAILED", C: "OK"}[generation]


@both_generations
def test_a_frontend_that_takes_over_knows_no_end_of_a_label(tmp_path: Path, generation: Generation) -> None:
    """Wire contract 10.5: BEGIN, whatever became of it; what was committed stays VISIBLE."""
    stage = Stage(tmp_path, generation)
    stage.committed("done")
    for label in ("open", "undone"):
        stage.begin(label)
        stage.load(label, "t")
    stage.rollback("undone")
    stage.memory.hand_over()
    assert list(tmp_path.iterdir()) == []
    for label in ("done", "open", "undone"):
        assert stage.begin(label)["ExistingJobStatus"] == "BEGIN"
        assert "NullPointerException" in stage.commit(label)["Message"]
        assert stage.begin(label)["ExistingJobStatus"] == "CANCELLED"
    assert stage.state("done") == "VISIBLE"
    stage.begin("new")
    stage.load("new", "t")
    assert stage.commit("new")["Status"] == "OK"


@both_generations
def test_a_frontend_that_takes_over_says_ok_to_any_rollback(tmp_path: Path, generation: Generation) -> None:
    """Wire contract 10.5: so an OK to a rollback proves nothing then."""
    stage = Stage(tmp_path, generation)
    stage.committed("done")
    stage.memory.hand_over()
    assert stage.rollback("done")["Message"] == "stream load done abort"
    assert stage.state("done") == "VISIBLE"


def test_a_frontend_that_takes_over_cancels_an_open_label_at_its_next_load(tmp_path: Path) -> None:
    """Wire contract 10.5."""
    stage = Stage(tmp_path)
    stage.begin("open")
    stage.load("open", "t")
    stage.memory.hand_over()
    refused = stage.load("open", "t")
    assert refused["Status"] == "FAILED"
    assert "error_msg{cancel stream task for exception: Transaction " in refused["Message"]
    assert refused["Message"].endswith(" does not exist}")
    assert stage.begin("open")["ExistingJobStatus"] == "CANCELLED"


def test_first_loads_of_a_table_collide_while_it_is_planned(tmp_path: Path) -> None:
    """Wire contract 4.5: an OK without a backend at first; then the label is cancelled for all tables."""
    stage = Stage(tmp_path)
    stage.begin("l")
    stage.begin("m")
    met: list[Any] = []

    def plan(*arguments: Any) -> Any:
        label = arguments[2]["label"]
        stage.memory.tasks[label].planning["t"] = {"l": Planning.BEGIN, "m": Planning.CHANNEL}[label]
        parameters = transaction_parameters(stage.request(label, table="t"))
        met.append(stage.frontend.load(parameters, stage.request(label, table="t")))
        return right(*arguments)

    right = stage.store.plan
    stage.store.plan = plan  # type: ignore[method-assign, assignment]
    assert stage.load("l", "t")["Status"] == "OK"
    assert met.pop() == {"Status": "OK", "Message": "stream load task is in unexpected state BEGIN"}
    assert "has already been cancelled" in stage.load("m", "t")["Message"]
    assert "channel id 0 for label m already exist backend [id=" in met.pop()["Message"]
    assert stage.begin("m")["ExistingJobStatus"] == "CANCELLED"


@both_generations
def test_a_table_that_was_dropped_since_its_load_fails_the_commit(tmp_path: Path, generation: Generation) -> None:
    """Wire contract 3.2."""
    stage = Stage(tmp_path, generation)
    stage.begin("l")
    stage.load("l", "t")
    stage.load("l", "gone")
    stage.store.dropped.add("gone")
    refused = stage.commit("l")["Message"]
    assert refused.startswith("class com.starrocks.common.MetaNotFoundException: Failed to find table ")
    assert stage.begin("l")["ExistingJobStatus"] == "CANCELLED"
    assert stage.store.tables == {}
    assert list(tmp_path.iterdir()) == []


def test_without_a_backend_a_first_load_has_no_plan(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for label in ("l", "m"):
        stage.begin(label)
    for backend in stage.backends:
        backend.alive = False
    assert "No available backends: {warehouseId=0}" in stage.load("l", "t")["Message"]
    assert stage.begin("l")["ExistingJobStatus"] == "CANCELLED"
    stage.backends[1].alive = True
    assert [stage.load("m", table)["Status"] for table in ("t", "u")] == ["OK", "OK"]


def test_loads_of_committed_labels_may_stay_preparing(tmp_path: Path) -> None:
    """Wire contract 4.15, 10.6."""
    stage = Stage(tmp_path)
    stage.memory.settings = replace(stage.memory.settings, loads_stay_preparing=True)
    stage.committed("l")
    assert stage.state("l") == "VISIBLE"
    assert [row["STATE"] for row in load_rows(stage.memory)] == ["PREPARING"]


def test_c_has_no_such_hole(tmp_path: Path) -> None:
    stage = Stage(tmp_path, C)
    stage.begin("l")
    stage.load("l", "t")
    assert stage.commit("l", rolled_back=True)["Status"] == "FAILED"
    assert stage.state("l") == "ABORTED"


@both_generations
def test_a_held_commit_is_committed_until_it_is_released(tmp_path: Path, generation: Generation) -> None:
    stage = Stage(tmp_path, generation)
    stage.begin("l")
    stage.load("l", "t")
    assert stage.commit("l", hold=math.inf)["Status"] == "OK"
    assert stage.state("l") == "COMMITTED"
    assert [row["STATE"] for row in load_rows(stage.memory)] == ["COMMITED"]
    assert stage.begin("l")["ExistingJobStatus"] == "COMMITED"
    assert len(stage.publisher.release()) == 1
    assert stage.state("l") == "VISIBLE"
    assert [row["STATE"] for row in load_rows(stage.memory)] == ["FINISHED"]


@both_generations
def test_a_restart_loses_live_transactions_and_keeps_committed_ones(tmp_path: Path, generation: Generation) -> None:
    """Wire contract 10.5: every remembered label is CANCELLED, visible ones too."""
    stage = Stage(tmp_path, generation)
    stage.committed("done")
    stage.begin("live")
    stage.load("live", "t")
    stage.memory.restart()
    assert list(tmp_path.iterdir()) == []
    for label in ("live", "done"):
        assert "Can not commit CANCELLED" in stage.commit(label)["Message"]
        assert "has already aborted" in stage.rollback(label)["Message"]
    assert load_rows(stage.memory) == []
    assert stage.state("live") in ("UNKNOWN", "ABORTED")
    assert stage.state("done") == "VISIBLE"
    assert stage.begin("done")["Status"] == "LABEL_ALREADY_EXISTS"


def test_a_new_process_knows_committed_labels_from_the_store(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.committed("done")
    stage.begin("live")
    stage.start()
    assert stage.state("done") == "VISIBLE"
    assert stage.begin("done")["ExistingJobStatus"] == "VISIBLE"
    assert stage.begin("live")["Status"] == "OK"


def test_a_lost_backend_fails_the_commit(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begin("l")
    stage.load("l", "t")
    for backend in stage.backends:
        backend.crash()
    assert stage.commit("l")["Status"] == "FAILED"
    assert list(tmp_path.iterdir()) == []


def test_tables_are_spread_over_backends_and_stay_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begin("l")
    targets: dict[str, Any] = {}
    for table in ("t", "u", "t", "u"):
        request = stage.request("l", table=table)
        place = stage.frontend.load(transaction_parameters(request), request)
        assert isinstance(place, Backend)
        assert targets.setdefault(table, place) is place
    assert targets["t"] is not targets["u"]


def test_the_loads_view_names_what_it_knows(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.committed("l")
    (row,) = load_rows(stage.memory)
    assert (row["LABEL"], row["DB_NAME"], row["TABLE_NAME"], row["STATE"]) == ("l", "shop", "t", "FINISHED")
    assert (row["SINK_ROWS"], row["FILTERED_ROWS"], row["SCAN_BYTES"]) == (1, 0, 3)
