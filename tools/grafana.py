"""The Grafana dashboard, made from code.

Its rows are those of the page, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.alerts import metric

_WINDOW = "$__rate_interval"
_COLUMNS = 24
_SOURCE = "source"
_HEIGHT = 7


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are pairs of expression and legend; `red_above` colours a figure that is above it."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    figure: bool = False
    red_above: float | None = None


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


_AGE = f"time() - max({metric('last_commit_timestamp_seconds')} > 0)"
_OLDEST = f"time() - min({metric('oldest_open_transaction_timestamp_seconds')} > 0)"
_COMPANY = f"{_mean('transactions_per_commit', 'instance')}"

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Is it right?",
        (
            Panel(
                "Integrity violations",
                [(f"sum by (kind) ({metric('integrity_violations_total')})", "{{kind}}")],
                figure=True,
                red_above=0,
            ),
            Panel("In doubt", [(f"sum({metric('in_doubt_transactions')})", "")], figure=True, red_above=0),
            Panel(
                "Source transactions by outcome",
                [(f"sum by (outcome) ({metric('source_transactions_total')})", "{{outcome}}")],
                figure=True,
            ),
        ),
    ),
    (
        "Is it fresh?",
        (
            Panel("Source to visible", _both("end_to_end_latency_seconds"), "s"),
            Panel("Rows waiting in the source", [(f"sum by (source) ({metric('source_lag_rows')})", "{{source}}")]),
            Panel("Oldest waiting row", [(f"max by (source) ({metric('source_lag_seconds')})", "{{source}}")], "s"),
            Panel("Since the last commit", [(_AGE, "seconds")], "s"),
            Panel("Micro-batch in the sink", _both("batch_duration_seconds"), "s"),
            Panel("Last micro-batch", [(f"max({metric('last_committed_batch_id')})", "")], figure=True),
        ),
    ),
    (
        "Flow",
        (
            Panel("Source transactions", [(_rate("source_transactions_total", "outcome"), "{{outcome}}")], "ops"),
            Panel("Rows by table", [(_rate("rows_total", "table, op"), "{{table}} {{op}}")], "ops"),
            Panel("Bytes by table", [(_rate("bytes_total", "table"), "{{table}}")], "Bps"),
            Panel("Source transactions in one commit", [(_COMPANY, "N:1")]),
        ),
    ),
    (
        "Anatomy of a commit",
        (
            Panel("Mean time by phase", [(_mean("phase_duration_seconds", "phase"), "{{phase}}")], "s"),
            Panel("Commit to visible", _both("commit_duration_seconds"), "s"),
            Panel("Commits by outcome", [(_rate("commits_total", "outcome"), "{{outcome}}")], "ops"),
            Panel("Load p99 by table", [(_quantile(0.99, "load_duration_seconds", "table"), "{{table}}")], "s"),
        ),
    ),
    (
        "Assembler",
        (
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
        "Saturation",
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
            Panel("Errors by code", [(f"{_rate('errors_total', 'code')} > 0", "{{code}}")], "ops"),
            Panel(
                "Retries", [(f"{_rate('retries_total', 'operation, reason')} > 0", "{{operation}}: {{reason}}")], "ops"
            ),
            Panel("Requests", [(_rate("requests_total", "operation, status"), "{{operation}} {{status}}")], "ops"),
            Panel("Failed micro-batches", [(_rate("failed_batches_total", "instance"), "failed")], "ops"),
            Panel("Dead letters", [(_rate("dead_letter_rows_total", "table, reason"), "{{table}}: {{reason}}")], "ops"),
            Panel("Unknown columns", [(f"sum by (table) ({metric('unknown_columns_total')})", "{{table}}")]),
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


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it, or finds it in a folder; a list on it chooses which Prometheus to read."""
    source = {"name": _SOURCE, "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "templating": {"list": [{**source, "hide": 0, "includeAll": False, "multi": False, "refresh": 1}]},
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
    source = {"type": "prometheus", "uid": f"${{{_SOURCE}}}"}
    return {
        "id": number,
        "type": "stat" if panel.figure else "timeseries",
        "title": panel.title,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
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
