"""Expressions of the dashboard and the alert rules name metrics that exist, and each alert fires when it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from starrocks_txn_sink.metrics.catalogue import BY_NAME, CODES, ERRORS, METRICS, PREFIX, MetricKind
from starrocks_txn_sink.metrics.server import read_asset
from tools.__main__ import generate
from tools.alerts import ALERTS, metric, rules
from tools.grafana import dashboard

ROOT = Path(__file__).parents[3]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian's package prometheus) is not installed.")

NAMES = {
    metric.full_name + suffix
    for metric in METRICS
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",))
}

# For each alert, series (in promtool's notation, a sample a minute) that must set it off, and after how many minutes.
FIRES = {
    "StarRocksSinkIntegrityViolated": ({'integrity_violations_total{kind="torn"}': "0 0 1 1"}, 3),
    "StarRocksSinkInDoubt": ({"in_doubt_transactions": "0 1 1 1 1"}, 4),
    "StarRocksSinkEndpointDown": ({"buffer_bytes": "1x10"}, 6),
    "StarRocksSinkNoProgress": ({"last_progress_timestamp_seconds": "1x20"}, 10),
    "StarRocksSinkWaiting": ({"outage_start_timestamp_seconds": "0 1x20"}, 10),
    "StarRocksSinkNotCommitting": (
        {"spark_input_rows_total": "0+100x30", 'commits_total{outcome="committed"}': "5x30"},
        25,
    ),
    "StarRocksSinkBatchFailing": ({"failed_batches_total": "0+1x15"}, 12),
    "StarRocksSinkFenced": ({'errors_total{code="fenced"}': "0 0 0 1 1 1"}, 5),
    "StarRocksSinkLatencyHigh": (
        {
            'end_to_end_latency_seconds_bucket{le="60"}': "0+1x40",
            'end_to_end_latency_seconds_bucket{le="300"}': "0+100x40",
            'end_to_end_latency_seconds_bucket{le="+Inf"}': "0+100x40",
        },
        30,
    ),
    "StarRocksSinkLag": ({'source_lag_seconds{source="orders"}': "0+60x40"}, 25),
    "StarRocksSinkCommitSlow": (
        {
            'phase_duration_seconds_bucket{phase="publish",le="10"}': "0+1x40",
            'phase_duration_seconds_bucket{phase="publish",le="60"}': "0+10x40",
            'phase_duration_seconds_bucket{phase="publish",le="+Inf"}': "0+10x40",
        },
        30,
    ),
    "StarRocksSinkFewTransactionsLeft": (
        {
            'database_running_transactions{database="shop"}': "810 810 810 810 810 810",
            'database_transaction_limit{database="shop"}': "1000 1000 1000 1000 1000 1000",
        },
        5,
    ),
    "StarRocksSinkManyRowsets": (
        {'tablet_rowsets{table="orders"}': "850x20", 'tablet_rowset_limit{database="shop"}': "1000x20"},
        10,
    ),
    "StarRocksSinkTooManyTransactions": ({'errors_total{code="too_many_transactions"}': "0 0 0 3 3 3"}, 5),
    "StarRocksSinkErrors": ({'errors_total{code="load_failed"}': "0+2x30"}, 25),
    "StarRocksSinkRetriesHigh": ({'retries_total{operation="load",reason="busy"}': "0+10x40"}, 30),
    "StarRocksSinkNearTimeout": ({"transaction_age_ratio": "0.7x20"}, 10),
    "StarRocksSinkBufferFull": ({"buffer_bytes": "99x30", "buffer_limit_bytes": "100x30"}, 20),
    "StarRocksSinkDeadLetters": ({'dead_letter_rows_total{table="t",reason="rejected"}': "0 0 4 4 4"}, 4),
    "StarRocksSinkNotEqual": ({'verified_tables{sink_job="shop",state="different"}': "0 0 1 1"}, 3),
    "StarRocksSinkUnknownColumns": ({'unknown_columns_total{table="t"}': "0 0 1 1 1"}, 4),
    "StarRocksSinkTransactionsDropped": ({'source_transactions_total{outcome="dropped"}': "0 0 2 2"}, 3),
    "StarRocksSinkTransactionsTrusted": ({"trusted_transactions_total": "0 0 1 1"}, 3),
    "StarRocksSinkRepeatsUnproved": ({'repeated_events_total{content="unknown"}': "0 0 2 2"}, 3),
    "StarRocksSinkEventsLate": ({'repeated_events_total{content="late"}': "0 0 2 2"}, 3),
    "StarRocksSinkMessagesMalformed": ({"malformed_messages_total": "0 0 2 2"}, 3),
    "StarRocksSinkOpenTransactionOld": ({"oldest_open_transaction_timestamp_seconds": "1x40"}, 30),
    "StarRocksSinkSkew": ({"event_time_skew_seconds": "700x30"}, 20),
}

# A driver that is well: every counter that must not grow stands still, commits and rows go on.
WELL = {
    'integrity_violations_total{kind="torn"}': "0x40",
    "in_doubt_transactions": "0x40",
    'build_info{version="1"}': "1x40",
    "last_progress_timestamp_seconds": "0+60x40",
    "spark_input_rows_total": "0+100x40",
    'commits_total{outcome="committed"}': "0+5x40",
    "failed_batches_total": "1x40",
    'errors_total{code="fenced"}': "1x40",
    'errors_total{code="too_many_transactions"}': "3x40",
    'errors_total{code="load_failed"}': "0 0 0 1 1 2x35",
    'end_to_end_latency_seconds_bucket{le="1"}': "0+100x40",
    'end_to_end_latency_seconds_bucket{le="+Inf"}': "0+100x40",
    'phase_duration_seconds_bucket{phase="publish",le="1"}': "0+10x40",
    'phase_duration_seconds_bucket{phase="publish",le="+Inf"}': "0+10x40",
    'retries_total{operation="load",reason="busy"}': "0+1x40",
    "transaction_age_ratio": "0.01x40",
    "buffer_bytes": "10x40",
    "buffer_limit_bytes": "100x40",
    'dead_letter_rows_total{table="t",reason="rejected"}': "4x40",
    'unknown_columns_total{table="t"}': "1x40",
    'source_transactions_total{outcome="dropped"}': "2x40",
    "oldest_open_transaction_timestamp_seconds": "0+60x40",
    "event_time_skew_seconds": "3x40",
    'source_lag_seconds{source="orders"}': "4x40",
}


@pytest.mark.parametrize(
    ("service", "file"),
    [("prometheus", "prometheus/alerts.yml"), ("grafana", "grafana/dashboards/starrocks-txn-sink.json")],
)
def test_the_containers_read_what_is_generated(service: str, file: str) -> None:
    mounts = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"][service]["volumes"]
    folders = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert f"docker/{file}" in generate()
    assert f"./{Path(file).parent}" in folders


def expressions() -> list[str]:
    document = dashboard()
    panels = [target["expr"] for panel in document["panels"] for target in panel.get("targets", ())]
    marks = [mark["expr"] for mark in document["annotations"]["list"]]
    return [*panels, *marks, *(alert.expression for alert in ALERTS)]


def test_every_expression_names_metrics_that_exist() -> None:
    assert len(expressions()) > 40
    for expression in expressions():
        names = re.findall(rf"{PREFIX}\w+", expression)
        assert names, expression
        assert set(names) <= NAMES, expression


def test_the_dashboard_shows_every_metric() -> None:
    text = " ".join(expressions())
    unshown = {metric.name for metric in METRICS if metric.full_name not in text}
    assert unshown <= {"build_info", "job_info", "last_progress_timestamp_seconds"}


def test_a_selector_of_a_metric_or_label_that_does_not_exist_cannot_be_written() -> None:
    wrongs: tuple[Callable[[], str], ...] = (
        lambda: metric("rows"),
        lambda: metric("rows_total", kind="a"),
        lambda: metric("rows_total", "_sum"),
    )
    for wrong in wrongs:
        with pytest.raises(KeyError):
            wrong()
    assert metric("errors_total", code="input") == 'starrocks_txn_sink_errors_total{code="input"}'


def test_every_panel_reads_the_prometheus_that_is_chosen_on_the_dashboard() -> None:
    document = dashboard()
    datasource, *variables = document["templating"]["list"]
    assert [variable["datasource"]["uid"] for variable in variables] == [f"${{{datasource['name']}}}"] * 3
    assert (datasource["type"], datasource["query"]) == ("datasource", "prometheus")
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    sources = [part["datasource"] for panel in panels for part in (panel, *panel["targets"])]
    assert {source["uid"] for source in sources} == {f"${{{datasource['name']}}}"}
    assert "__inputs" not in document  # a dashboard that is found in a folder is not asked for its inputs


def test_the_dashboard_can_be_narrowed_to_databases_jobs_and_instances() -> None:
    document = dashboard()
    variables = {variable["name"]: variable for variable in document["templating"]["list"][1:]}
    assert list(variables) == ["database", "sink_job", "instance"]
    jobs = variables["sink_job"]["definition"]
    assert jobs == 'label_values(starrocks_txn_sink_job_info{database=~"$database"}, sink_job)'
    for expression in (target["expr"] for panel in document["panels"] for target in panel.get("targets", ())):
        for name, selector in re.findall(rf"{PREFIX}(\w+)(\{{[^}}]*\}})?", expression):
            assert 'instance=~"$instance"' in selector, expression
            declaration = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|sum|count)$", "", name)]
            assert ('sink_job=~"$sink_job"' in selector) == ("sink_job" in declaration.labels), expression


def test_each_panel_has_a_description_and_restarts_and_failures_are_marked() -> None:
    document = dashboard()
    assert [panel["title"] for panel in document["panels"] if panel["type"] != "row" and not panel["description"]] == []
    marks = {mark["name"]: mark["expr"] for mark in document["annotations"]["list"]}
    assert "query_start_timestamp_seconds" in marks["Query starts"]
    assert "failed_batches_total" in marks["Failed micro-batches"]
    assert document["links"][0]["url"].startswith("https://")


def test_the_panel_of_errors_leads_to_the_page_of_a_code() -> None:
    (panel,) = (panel for panel in dashboard()["panels"] if panel["title"] == "Errors by code")
    (link,) = panel["fieldConfig"]["defaults"]["links"]
    path = link["url"].replace("${__field.labels.code}", CODES[0]).partition("/blob/main/")[2]
    assert (Path(__file__).parents[3] / path).is_file()


def test_no_metric_has_a_label_that_prometheus_sets_itself() -> None:
    reserved = {"job", "instance"}
    assert [metric.name for metric in METRICS if reserved & set(metric.labels)] == []


def test_an_alert_links_to_the_runbook_wherever_it_is() -> None:
    for alert in ALERTS:
        assert alert.runbook.endswith(f"#{alert.section}")
        assert "https://github.com/" in alert.runbook
        assert "$externalLabels.starrocks_runbook" in alert.runbook


def test_grafanas_panels_lie_side_by_side() -> None:
    cells_taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & cells_taken
        assert all(x < 24 for x, _ in cells)
        cells_taken |= cells


def test_every_alert_and_every_error_has_a_section_in_the_runbook() -> None:
    anchors = set(re.findall(r'<h\d id="([^"]+)"', read_asset("operations.html").decode()))
    anchors_needed = {alert.section for alert in ALERTS} | {f"error-{code}" for code in CODES}
    assert anchors_needed <= anchors, sorted(anchors_needed - anchors)


def test_every_error_is_a_code_with_a_meaning() -> None:
    assert len(ERRORS) > 20
    assert set(BY_NAME["errors_total"].initial) == {(code,) for code in CODES}


def promtool(folder: Path, *words: str) -> str:
    process = subprocess.run(
        [str(PROMTOOL), *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def series(inputs: dict[str, str]) -> list[dict[str, str]]:
    parts = ((name.partition("{"), values) for name, values in inputs.items())
    return [
        {"series": f'{PREFIX}{name}{{instance="i",job="j"{"," + tail if tail else "}"}', "values": values}
        for (name, _, tail), values in parts
    ]


def run_rules(folder: Path, tests: list[dict[str, object]]) -> None:
    """promtool reads YAML, and JSON is YAML."""
    (folder / "alerts.yml").write_text(rules())
    document = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(json.dumps(document))
    promtool(folder, "test", "rules", "test.yml")


@needs_promtool
def test_the_rules_are_valid(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(rules())
    assert f"{len(ALERTS)} rules found" in promtool(tmp_path, "check", "rules", "alerts.yml")


@needs_promtool
def test_every_expression_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    """As rules, because promtool reads no dashboards; Grafana puts the interval in."""
    read = [expression.replace("$__rate_interval", "1m") for expression in expressions()]
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(read)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"{len(read)} rules found" in promtool(tmp_path, "check", "rules", "--lint=none", "panels.yml")


@needs_promtool
def test_every_alert_fires(tmp_path: Path) -> None:
    """promtool names an alert that does not, and takes as long for all of them as for one."""
    tests: list[dict[str, object]] = []
    for alert in ALERTS:
        inputs, minutes = FIRES[alert.name]
        firing = {
            "expr": f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        tests.append({"interval": "1m", "input_series": series(inputs), "promql_expr_test": [firing]})
    run_rules(tmp_path, tests)


@needs_promtool
def test_every_alert_stays_silent_while_all_is_well(tmp_path: Path) -> None:
    silent = [
        {"eval_time": f"{minutes}m", "alertname": alert.name, "exp_alerts": []}
        for alert in ALERTS
        for minutes in (20, 35)
    ]
    run_rules(tmp_path, [{"interval": "1m", "input_series": series(WELL), "alert_rule_test": silent}])
