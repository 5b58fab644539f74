"""What the frontend forgets and when, and what it still refuses then (wire contract 3.3, 4.12, 4.13)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starrocks_emulator.settings import Generation, Limits
from starrocks_emulator.transactions.backend import LoadRefused
from tests.support.protocol_doubles import Stage

B, C = Generation.B, Generation.C


def test_too_many_tasks_purge_all_finished_ones(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(stream_load_task_keep_max_num=3))
    stage.begin("live")
    for number in range(3):
        stage.begin(f"done-{number}")
        stage.rollback(f"done-{number}")
    assert stage.begin("done-0")["Status"] == "LABEL_ALREADY_EXISTS"
    assert stage.begin("one-more")["Status"] == "OK"
    assert stage.begin("done-0")["Status"] == "OK"
    assert stage.begin("live")["Status"] == "LABEL_ALREADY_EXISTS"


def test_a_purged_cancelled_label_can_be_begun_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begin("l")
    stage.rollback("l")
    stage.memory.forget("^l$")
    assert stage.begin("l")["Status"] == "OK"


def test_a_purged_commit_is_still_refused_by_the_history(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.committed("l")
    stage.memory.tasks.clear()
    reply = stage.begin("l")
    assert reply["Status"] == "LABEL_ALREADY_EXISTS"
    assert reply["Message"] == "Label [l] has already been used."
    assert (reply["ExistingJobStatus"], reply["Db"]) == ("VISIBLE", "shop")
    assert stage.begin("l", db="other")["Status"] == "OK"


def test_after_task_and_history_are_gone_a_committed_label_can_be_begun_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.committed("l")
    stage.memory.forget("")
    assert stage.state("l") == "UNKNOWN"
    assert "does not exist" in stage.commit("l")["Message"]
    assert stage.begin("l")["Status"] == "OK"
    assert stage.store.forgotten == ["l"]


def test_forgetting_keeps_live_labels_and_others(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begin("job-live")
    stage.committed("job-done")
    stage.committed("other-done")
    stage.memory.forget("^job-")
    assert stage.load("job-live", "t")["Status"] == "OK"
    assert stage.state("job-done") == "UNKNOWN"
    assert stage.state("other-done") == "VISIBLE"


def test_a_busy_database_forgets_the_oldest_label(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(label_keep_max_num=2))
    for number in range(3):
        stage.committed(f"l{number}")
    assert [stage.state(f"l{number}") for number in range(3)] == ["UNKNOWN", "VISIBLE", "VISIBLE"]
    assert stage.store.forgotten == ["l0"]


def test_labels_are_forgotten_by_age(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limits=Limits(label_keep_max_second=60))
    stage.committed("old")
    stage.clock.sleep(61)
    stage.committed("new")
    assert (stage.state("old"), stage.state("new")) == ("UNKNOWN", "VISIBLE")


def test_finished_tasks_are_cleaned_by_age_at_the_cleaners_interval(tmp_path: Path) -> None:
    limits = Limits(stream_load_task_keep_max_second=10, label_clean_interval_second=100)
    stage = Stage(tmp_path, limits=limits)
    stage.begin("l")
    stage.rollback("l")
    stage.clock.sleep(50)
    assert stage.begin("l")["Status"] == "LABEL_ALREADY_EXISTS"
    stage.clock.sleep(51)
    assert stage.begin("l")["Status"] == "OK"


@pytest.mark.parametrize(("generation", "after"), [(B, 14_400), (C, 30)])
def test_idle_transactions_past_their_deadline_are_swept(tmp_path: Path, generation: Generation, after: float) -> None:
    """Wire contract 4.12: hours in B, half a minute in C."""
    stage = Stage(tmp_path, generation)
    stage.begin("l", timeout="5")
    stage.load("l", "t")
    stage.clock.sleep(after - 1)
    assert stage.begin("l")["ExistingJobStatus"] == "BEGIN"
    stage.clock.sleep(2)
    assert stage.begin("l")["ExistingJobStatus"] == "CANCELLED"
    assert list(tmp_path.iterdir()) == []


def test_without_a_timeout_header_a_transaction_lives_twenty_seconds(tmp_path: Path) -> None:
    """Wire contract 4.12: it ends at the next load that is planned, or at a commit of loads."""
    stage = Stage(tmp_path)
    for label in ("l", "loaded", "empty"):
        stage.begin(label)
    stage.clock.sleep(18.5)
    for label in ("l", "loaded"):
        assert stage.load(label, "t")["Status"] == "OK"
    stage.clock.sleep(2)
    with pytest.raises(LoadRefused, match="Transaction with label l not exists"):  # it has its plan, but no context
        stage.load("l", "t")
    assert "Load timeout. Increase the timeout and retry" in stage.load("l", "u")["Message"]
    assert stage.begin("l")["ExistingJobStatus"] == "CANCELLED"
    assert "Load timeout. Increase the timeout and retry" in stage.commit("loaded")["Message"]
    assert stage.commit("empty")["Status"] == "OK"


@pytest.mark.parametrize("timeout", ["1", "0", "-5"])
def test_a_timeout_of_less_than_two_seconds_is_over_at_once(tmp_path: Path, timeout: str) -> None:
    """Wire contract 4.12: whole seconds are left, or none."""
    stage = Stage(tmp_path)
    stage.begin("l", timeout=timeout)
    assert "Load timeout. Increase the timeout and retry" in stage.load("l", "t")["Message"]


def test_the_running_limit_is_met_at_the_first_load_in_c(tmp_path: Path) -> None:
    stage = Stage(tmp_path, C, Limits(max_running_txn_num_per_db=1))
    stage.begin("first")
    stage.begin("second")
    assert stage.load("first", "t")["Status"] == "OK"
    assert stage.load("first", "u")["Status"] == "OK"
    assert re.search(r"current running txns on db \d+ is 1, larger than limit 1", stage.load("second", "t")["Message"])
    assert stage.begin("second")["ExistingJobStatus"] == "CANCELLED"


def test_the_running_limit_is_met_at_commit_in_b(tmp_path: Path) -> None:
    """Wire contract 4.13."""
    stage = Stage(tmp_path, B, Limits(max_running_txn_num_per_db=0))
    stage.begin("l")
    stage.load("l", "t")
    refused = stage.commit("l")["Message"]
    assert refused.startswith("class com.starrocks.transaction.RunningTxnExceedException: current running txns on db ")
    assert stage.begin("l")["ExistingJobStatus"] == "CANCELLED"
    assert stage.state("l") == "UNKNOWN"
    assert stage.store.tables == {}
