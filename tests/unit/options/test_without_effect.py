"""Options that change nothing on the path at hand are said, with the reason, and only if the user has set them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.options.without_effect import WITHOUT_EFFECT, Circumstance, circumstances_of_rows, warn_of
from starrocks_txn_sink.sink.lane_plan import LanePlan
from tests.support.log_records import records_of

ROWS = circumstances_of_rows(routed=False, positioned=True)
CHANGED: dict[str, Any] = {
    "check_values": False,
    "lanes": 3,
    "freshness": 5.0,
    "commit_interval": 5.0,
    "max_attempts": 9,
    "ledger_create": False,
    "ledger_replication": 2,
    "receipts_log_days": 3,
    "find_leader": False,
    "allow_unreleased_server": True,
    "check_replays": False,
    "max_quarantined": 7,
    "timestamp_zone": "Europe/Berlin",
    "compact": False,
    "shuffle": True,
    "query_tls": True,
    "metrics_host": "0.0.0.0",
    "metrics_port": 0,
}
"""Another value than the default for each option that may be without effect."""


def options(**changes: Any) -> SinkOptions:
    return SinkOptions(**{"load_url": "http://fe1:8030", "database": "shop", "delivery": "at-least-once", **changes})


def test_each_option_is_one_of_the_sinks_and_each_circumstance_is_used() -> None:
    assert {entry.option for entry in WITHOUT_EFFECT} == set(CHANGED) <= {name for name, _ in declarations(SinkOptions)}
    assert {circumstance for entry in WITHOUT_EFFECT for circumstance in entry.when} == set(Circumstance)


@pytest.mark.parametrize("entry", WITHOUT_EFFECT, ids=lambda entry: f"{entry.option}-{entry.when[-1].name}")
def test_an_option_is_named_where_all_its_circumstances_hold(entry: Any) -> None:
    sink_options = options(**{entry.option: CHANGED[entry.option]})
    assert entry.option in sink_options.without_effect(*entry.when)


def test_an_option_at_its_default_is_not_named() -> None:
    assert options().without_effect(*Circumstance) == {}
    assert options(load_url="https://fe1:8030").without_effect(*Circumstance) == {}  # query_tls follows it
    frames = replace(options(lanes=2), database="other").without_effect(Circumstance.DATA_SOURCE)
    assert frames == {"lanes": "the tasks of the frame are the lanes"}


def test_an_option_with_effect_is_not_named() -> None:
    everything = {
        **CHANGED,
        "query_url": "mysql://fe1:9030",
        "delivery": "exactly-once",
        "on_bad_rows": "quarantine",
        "receipts_log": True,
        "metrics_port": 0,
    }
    rows = circumstances_of_rows(routed=True, positioned=True)
    assert options(**everything).without_effect(*rows) == {}
    assert options(check_replays=False).without_effect(Circumstance.JSON_TEXTS) == {}  # raw events are compared
    for table in ({"on_bad_rows": "quarantine"}, {"receipts_log": True}, {"schema_changes": "apply"}):
        sink_options = options(query_url="mysql://fe1:9030", ledger_replication=2, **table)
        assert sink_options.without_effect(*ROWS) == {}, table


@pytest.mark.parametrize(
    ("plan", "option_names"),
    [
        (LanePlan(2), {"commit_interval"}),
        (LanePlan(2, shuffle=False, disordered=True), {"commit_interval"}),
        (LanePlan(2, shuffle=True), set()),
        (LanePlan(2, disordered=True), set()),
        (LanePlan(2, direct=True), set()),
    ],
)
def test_a_commit_interval_needs_lanes_that_stop_in_between(plan: LanePlan, option_names: set[str]) -> None:
    assert set(options(commit_interval=5.0).without_effect(*ROWS, *plan.circumstances)) == option_names


def test_the_nearer_reason_is_said() -> None:
    """Rows without positions are taken as they come, too."""
    rows = circumstances_of_rows(routed=True, positioned=False)
    idle = options(commit_interval=5.0).without_effect(*rows, *LanePlan(2).circumstances)
    assert "without positions" in idle["commit_interval"]


def test_a_run_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    idle = options(timestamp_zone="Europe/Berlin").without_effect(*ROWS)
    assert set(idle) == {"timestamp_zone"}
    for run in ("first", "first", "second", "", ""):
        warn_of(idle, run and f"run-of-this-test {run}")
    records = records_of(caplog, "option.without_effect")
    assert len(records) == 4
    assert {record.levelname for record in records} == {"WARNING"}
    assert all("option=timestamp_zone " in record.getMessage() for record in records)


def test_the_zone_of_json_texts_counts_where_values_are_judged() -> None:
    zone = {"timestamp_zone": "Europe/Berlin", "query_url": "mysql://fe:9030"}
    assert "timestamp_zone" not in options(**zone).without_effect(*ROWS)
    assert "timestamp_zone" in options(**zone, check_values=False).without_effect(*ROWS)
    assert "timestamp_zone" in options(**{**zone, "query_url": None}).without_effect(*ROWS)
