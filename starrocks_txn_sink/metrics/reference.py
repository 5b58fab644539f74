"""docs/metrics.md, made from the catalogue and the alert rules."""

# ruff: noqa: E501 - a row of a table is one line
from __future__ import annotations

from starrocks_txn_sink.metrics.alerts import ALERTS
from starrocks_txn_sink.metrics.catalogue import METRICS, PARTITIONS, PREFIX, TABLES, Kind
from starrocks_txn_sink.metrics.figures import bounds

_HEAD = f"""\
# Metrics

A driver serves its metrics, and a page for people, over HTTP:

```python
from starrocks_txn_sink import MetricsServer, SinkOptions, StarRocksSink

options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
sink = StarRocksSink(options, metrics=MetricsServer(port=9464))
```

or, without an object, `SinkOptions(..., metrics_port=9464)`. It needs the extra `metrics`
(`pip install 'starrocks-txn-sink[metrics]'`). The demo shows it: `make demo ARGS="--metrics-port 0"` prints the address.

| path | what it is |
|---|---|
| `/` | a page with the state in one sentence, the figures of the last hour and the recent StarRocks transactions; works offline |
| `/metrics` | the metrics below, for Prometheus |
| `/healthz` | 200 while the driver answers |
| `/readyz` | 200 while every job's last progress is younger than `ready_seconds` (60) and nothing is in doubt, else 503 with the reason. A source with nothing new is progress |
| `/api/state` | what the page shows, as JSON; `?seconds=300`, `900` or `3600` chooses the range. No stable interface |
| `/runbook` | the runbook |

[operations.md](operations.md#the-page) has a picture of the page and says how to read it.

It listens on loopback (`MetricsServer(host=…)`, `metrics_host`) and has no authentication. There it answers only requests
that name the machine `localhost` or by a loopback address. Several sinks and queries of a driver may share one endpoint;
its figures are then added up. `close()` ends it; the process's end does too.

Metrics come from the sink's own events on the driver and from what the lanes send with their receipts, or in their error
when they fail. A task that fails and that Spark runs again is counted once, with `retries_total{{operation="task"}}`.
What the lanes of a failed micro-batch had committed comes again as `replayed`, because their receipts went with it.
Spark's own progress is added where the query was started in the process's usual session. With Spark Connect the sink, and
so the endpoint, lives in the server's process, and Spark's own progress is missing.

For freshness (`end_to_end_latency_seconds`, `event_time_skew_seconds`) give the sink's input a TIMESTAMP column
`event_time`: when the source committed the row. `assemble_transactions(..., passthrough=["event_time"])` keeps it.

All of it costs 0.4 % of a micro-batch's CPU time: measured with `python -m benchmarks.metrics --spark --rows 300000`, which is
300,000 rows of 150 bytes from Parquet through Spark into a lane whose server answers at once, 1.5 CPU seconds on two cores that
had other work too. The driver's part is 0.1 ms a micro-batch, a scrape takes 2 ms.

All names begin with `{PREFIX}`. Labels are bounded: {TABLES} tables and {PARTITIONS} source partitions are told apart, the
rest is `_other` or left out. What is marked * is there from the start, with 0.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """The page as Markdown."""
    lines = []
    for metric in METRICS:
        star = "*" if metric.initial or not metric.labels else ""
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}`{star} | {metric.kind.value} | {labels} | {metric.help} |\n")
    return _HEAD + "".join(lines) + _buckets() + _alerts()


def _buckets() -> str:
    head = "\n## Buckets\n\n| histogram | upper bounds |\n|---|---|\n"
    return head + "".join(
        f"| `{metric.name}` | {', '.join(f'{bound:g}' for bound in bounds(metric.name))} |\n"
        for metric in METRICS
        if metric.kind is Kind.HISTOGRAM
    )


def _alerts() -> str:
    head = (
        "\n## Alerts\n\n`docker/prometheus/alerts.yml` has these rules, "
        "`docker/grafana/dashboards/starrocks-txn-sink.json` a dashboard;\n`make monitoring` makes both, and this page, "
        "from the code.\n\n| alert | severity | for | when |\n|---|---|---|---|\n"
    )
    return head + "".join(
        f"| [{alert.name}](operations.md#{alert.section}) | {'critical' if alert.critical else 'warning'} | "
        f"{alert.lasting} | {alert.meaning} `{alert.expression.replace('|', chr(92) + '|')}` |\n"
        for alert in ALERTS
    )
