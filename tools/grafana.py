"""The Grafana dashboard, made from code.

Its rows are those of the page, in the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.metrics.catalogue import BY_NAME, JOB, PREFIX
from tools import alerts, errors
from tools.alerts import page_url, runbook_url

_WINDOW = "$__rate_interval"
_COLUMNS = 24
_SOURCE = "source"
_HEIGHT = 7


_INSTANCE, _JOB = 'instance=~"$instance"', f'{JOB}=~"${JOB}"'


def metric(name: str, suffix: str = "", **labels: str) -> str:
    """A selector of the instances that are chosen on the dashboard, and of its jobs where a metric knows them."""
    selector = alerts.metric(name, suffix, **labels)
    matchers = ",".join([_INSTANCE, _JOB] if JOB in BY_NAME[name].labels else [_INSTANCE])
    return f"{selector[:-1]},{matchers}}}" if selector.endswith("}") else f"{selector}{{{matchers}}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are pairs of expression and legend; `red_above` colours a figure that is above it.

    `leads_to` is a link of each series: its title and its address.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    figure: bool = False
    red_above: float | None = None
    leads_to: tuple[str, str] | None = None

    @property
    def description(self) -> str:
        """What the panel's metrics count, in the words of the catalogue."""
        names = [name for expression, _ in self.queries for name in re.findall(rf"{PREFIX}(\w+)", expression)]
        bare = (re.sub(r"_(bucket|sum|count)$", "", name) for name in names)
        return " ".join(dict.fromkeys(BY_NAME[name].help for name in bare))


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric(name)}[{_WINDOW}]))"


def _quantile(share: float, name: str, by: str = "") -> str:
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({metric(name, suffix='_bucket')}[{_WINDOW}])))"


def _mean(name: str, by: str) -> str:
    total, count = (f"sum by ({by}) (rate({metric(name, suffix=part)}[{_WINDOW}]))" for part in ("_sum", "_count"))
    return f"{total} / {count}"


def _both(name: str) -> list[tuple[str, str]]:
    return [(_quantile(0.5, name), "p50"), (_quantile(0.99, name), "p99")]


_AGE = f"time() - max by ({JOB}) ({metric('last_commit_timestamp_seconds')} > 0)"
_OLDEST = f"time() - min({metric('oldest_open_transaction_timestamp_seconds')} > 0)"
_COMPANY = f"{_mean('transactions_per_commit', 'instance')}"

_ERROR_PAGE = ("What ${__field.labels.code} means", page_url(errors.path("${__field.labels.code}")))

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Correctness",
        (
            Panel(
                "Integrity violations",
                [(f"sum by (kind) ({metric('integrity_violations_total')})", "{{kind}}")],
                figure=True,
                red_above=0,
            ),
            Panel("In doubt", [(f"sum({metric('in_doubt_transactions')}) or vector(0)", "")], figure=True, red_above=0),
            Panel(
                "Source transactions by outcome",
                [(f"sum by (outcome) ({metric('source_transactions_total')})", "{{outcome}}")],
                figure=True,
            ),
            Panel(
                "Repeated and malformed events",
                [
                    (f"sum by (content) ({metric('repeated_events_total')})", "{{content}}"),
                    (f"sum({metric('malformed_messages_total')})", "malformed"),
                ],
                figure=True,
            ),
        ),
    ),
    (
        "Freshness",
        (
            Panel("Source to visible", _both("end_to_end_latency_seconds"), "s"),
            Panel("Rows waiting in the source", [(f"sum by (source) ({metric('source_lag_rows')})", "{{source}}")]),
            Panel("Oldest waiting row", [(f"max by (source) ({metric('source_lag_seconds')})", "{{source}}")], "s"),
            Panel(
                "Pace of commits",
                [
                    (f"max by ({JOB}) ({metric('freshness_goal_seconds')})", "{{sink_job}} freshness"),
                    (f"max by ({JOB}) ({metric('commit_interval_seconds')})", "{{sink_job}} interval"),
                    (f"max by ({JOB}) ({metric('commit_pause_seconds')})", "{{sink_job}} pause"),
                ],
                "s",
            ),
            Panel(
                "Rows later than freshness",
                [(f"max by ({JOB}) ({metric('freshness_late_ratio')})", "{{sink_job}}")],
                "percentunit",
                leads_to=("freshness.md", page_url("docs/guides/freshness.md")),
            ),
            Panel("Since the last commit", [(_AGE, "{{sink_job}}")], "s"),
            Panel("Micro-batch in the sink", _both("batch_duration_seconds"), "s"),
            Panel(
                "Last micro-batch",
                [(f"max by ({JOB}) ({metric('last_committed_batch_id')})", "{{sink_job}}")],
                figure=True,
            ),
        ),
    ),
    (
        "Throughput",
        (
            Panel("Source transactions", [(_rate("source_transactions_total", "outcome"), "{{outcome}}")], "ops"),
            Panel("Rows by table", [(_rate("rows_total", "table, op"), "{{table}} {{op}}")], "ops"),
            Panel("Bytes by table", [(_rate("bytes_total", "table"), "{{table}}")], "Bps"),
            Panel("Source transactions in one commit", [(_COMPANY, "N:1")]),
        ),
    ),
    (
        "Commits",
        (
            Panel("Mean time by phase", [(_mean("phase_duration_seconds", "phase"), "{{phase}}")], "s"),
            Panel("Commit to visible", _both("commit_duration_seconds"), "s"),
            Panel("Commits by outcome", [(_rate("commits_total", "outcome"), "{{outcome}}")], "ops"),
            Panel("Load p99 by table", [(_quantile(0.99, "load_duration_seconds", "table"), "{{table}}")], "s"),
        ),
    ),
    (
        "Open source transactions",
        (
            Panel(
                "Open loads, and how many fit",
                [(f"max({metric(name)})", text) for name, text in (("open_loads", "open"), ("open_load_limit", "fit"))],
            ),
            Panel("Open source transactions", [(f"sum({metric('open_source_transactions')})", "open")]),
            Panel("Age of the oldest", [(_OLDEST, "seconds")], "s"),
            Panel(
                "Rows held",
                [
                    (f"sum({metric('open_source_rows')})", "assembler"),
                    (f"sum({metric('spark_state_rows')})", "Spark's stores"),
                ],
            ),
            Panel(
                "State",
                [
                    (f"sum({metric('assembler_state_bytes')})", "assembler"),
                    (f"sum({metric('spark_state_bytes')})", "Spark's stores"),
                ],
                "bytes",
            ),
        ),
    ),
    (
        "Capacity",
        (
            Panel(
                "Most bytes a lane held",
                [
                    (f"max({metric('buffer_bytes')})", "held"),
                    (f"max({metric('buffer_limit_bytes')})", "limit"),
                ],
                "bytes",
            ),
            Panel("Most loads at once", [(f"max({metric('inflight_loads')})", "loads")]),
            Panel("Open StarRocks transactions", [(f"sum({metric('open_starrocks_transactions')})", "open")]),
            Panel("Age of timeout", [(f"max({metric('transaction_age_ratio')})", "age")], "percentunit"),
            Panel(
                "Spark's phases",
                [(f"max by (phase) ({metric('spark_phase_duration_seconds')})", "{{phase}}")],
                "s",
            ),
            Panel("Recycled", [(_rate("recycled_transactions_total", "instance"), "recycled")], "ops"),
        ),
    ),
    (
        "Errors and dead letters",
        (
            Panel(
                "Errors by code", [(f"{_rate('errors_total', 'code')} > 0", "{{code}}")], "ops", leads_to=_ERROR_PAGE
            ),
            Panel(
                "Retries", [(f"{_rate('retries_total', 'operation, reason')} > 0", "{{operation}}: {{reason}}")], "ops"
            ),
            Panel("Requests", [(_rate("requests_total", "operation, status"), "{{operation}} {{status}}")], "ops"),
            Panel("Failed micro-batches", [(_rate("failed_batches_total", JOB), "{{sink_job}}")], "ops"),
            Panel("Restarts of the query", [(_rate("query_restarts_total", JOB), "{{sink_job}}")], "ops"),
            Panel(
                "Waiting for StarRocks",
                [(f"time() - ({metric('outage_start_timestamp_seconds')} > 0)", "{{sink_job}}")],
                "s",
            ),
            Panel("Dead letters", [(_rate("dead_letter_rows_total", "table, reason"), "{{table}}: {{reason}}")], "ops"),
            Panel("Unknown columns", [(f"sum by (table) ({metric('unknown_columns_total')})", "{{table}}")]),
            Panel("Schema changes", [(f"sum by (table) ({metric('schema_changes_total')})", "{{table}}")]),
            Panel(
                "Last proof: tables and different rows",
                [
                    (f"max by (sink_job, state) ({metric('verified_tables')})", "{{sink_job}}: {{state}}"),
                    (f"max by (sink_job) ({metric('verified_different_rows')})", "{{sink_job}}: rows"),
                ],
            ),
            Panel(
                "Since the last proof",
                [
                    (
                        f"(time() - max by (sink_job) ({metric('verified_timestamp_seconds')})) * on (sink_job) "
                        f"group_right () max by (sink_job, position) ({metric('verified_info')})",
                        "{{sink_job}} at {{position}}",
                    )
                ],
                "s",
            ),
            Panel("First snapshot", [(f"max by (job, state) ({metric('snapshot_tables')})", "{{job}}: {{state}}")]),
        ),
    ),
    (
        "Source partitions",
        (
            Panel("Event-time skew", [(f"max({metric('event_time_skew_seconds')})", "skew")], "s"),
            Panel("Position", [(f"max by (partition) ({metric('partition_position')})", "{{partition}}")]),
            Panel("Balanced source: skew", [(f"max({metric('source_skew_seconds')})", "skew")], "s"),
            Panel("Balanced source: rows held back", [(f"sum({metric('source_held_back_rows')})", "rows")]),
            Panel(
                "Balanced source: read until",
                [(f"time() - max({metric('source_read_until_timestamp_seconds')} > 0)", "seconds ago")],
                "s",
            ),
            Panel(
                "Balanced source: newest event",
                [(f"time() - max by (partition) ({metric('source_partition_timestamp_seconds')})", "{{partition}}")],
                "s",
            ),
            Panel("Rows read by Spark", [(_rate("spark_input_rows_total", "instance"), "rows")], "ops"),
            Panel(
                "Behind Spark's watermark",
                [(f"time() - max({metric('spark_watermark_timestamp_seconds')} > 0)", "seconds")],
                "s",
            ),
        ),
    ),
)


def _variables() -> Iterator[dict[str, Any]]:
    """What the dashboard asks for: Prometheus, and databases, jobs of the sink and instances, each by those before."""
    source = {"name": _SOURCE, "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    yield {**source, "hide": 0, "includeAll": False, "multi": False}
    info = alerts.metric("job_info")
    variables = {
        "database": ("Database", ""),
        JOB: ("Job", 'database=~"$database"'),
        "instance": ("Instance", f'database=~"$database",{_JOB}'),
    }
    for label, (title, matchers) in variables.items():
        query = f"label_values({info}{{{matchers}}}, {label})"
        every = {"hide": 0, "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2, "sort": 1}
        listed = {"query": query, "refId": label}
        yield {
            "name": label,
            "label": title,
            "type": "query",
            "datasource": _PROMETHEUS,
            "definition": query,
            "query": listed,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            **every,
        }


_PROMETHEUS = {"type": "prometheus", "uid": f"${{{_SOURCE}}}"}


def _annotations() -> list[dict[str, Any]]:
    """Marks in the graphs: starts of queries, and micro-batches that failed."""
    started, failed = metric("query_start_timestamp_seconds"), metric("failed_batches_total")
    marks = (
        ("Query starts", f"{started} * 1000", "blue", "{{sink_job}} starts", True),
        ("Failed micro-batches", f"increase({failed}[$__rate_interval]) > 0", "red", "{{sink_job}}: failed", False),
    )
    return [
        {
            "name": name,
            "datasource": _PROMETHEUS,
            "enable": True,
            "expr": expression,
            "iconColor": colour,
            "titleFormat": title,
            "textFormat": "{{instance}}",
            "useValueForTime": at_value,
        }
        for name, expression, colour, title, at_value in marks
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it, or finds it in a folder; lists on it choose what it shows."""
    return {
        "templating": {"list": list(_variables())},
        "annotations": {"list": _annotations()},
        "links": [{"title": "Runbook", "type": "link", "url": runbook_url(), "targetBlank": True, "icon": "doc"}],
        "uid": "starrocks-txn-sink",
        "title": "StarRocks transaction sink",
        "tags": ["starrocks", "spark"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "panels": list(_panels()),
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    for title, panels in ROWS:
        number += 1
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        top += 1
        width = _COLUMNS // min(4, len(panels))
        for index, panel in enumerate(panels):
            number += 1
            line, column = divmod(index, _COLUMNS // width)
            place = {"x": column * width, "y": top + line * _HEIGHT, "w": width, "h": _HEIGHT}
            yield _panel(panel, number, place)
        top += _HEIGHT * (1 + (len(panels) - 1) // (_COLUMNS // width))


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above + 1e-9})
    source = _PROMETHEUS
    links: dict[str, Any] = {}
    if panel.leads_to is not None:
        title, url = panel.leads_to
        links["links"] = [{"title": title, "url": url, "targetBlank": True}]
    return {
        "id": number,
        "type": "stat" if panel.figure else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}, **links},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.figure else {"tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def dashboard_json() -> str:
    """The dashboard's file."""
    return json.dumps(dashboard(), indent=2) + "\n"
