"""The alert rules for Prometheus: `docker/prometheus/alerts.yml` is made of them; each has a section in the runbook.

A rule names metrics through `catalogue`, so that it cannot name one that does not exist.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starrocks_txn_sink.metrics.catalogue import BY_NAME, MetricKind

RUNBOOK = "docs/operations/runbook.md"
BASE_LABEL = "starrocks_runbook"
"""The external label of Prometheus that leads to another copy of the runbook."""


@cache
def repository() -> str:
    """The project's address, as pyproject.toml has it."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["urls"]["Repository"])


def page_url(path: str) -> str:
    """A link to a page in the project's repository."""
    return f"{repository()}/blob/main/{path}"


def runbook_url(anchor: str = "") -> str:
    """A link to the runbook."""
    return page_url(f"{RUNBOOK}{anchor}")


@dataclass(frozen=True, slots=True)
class Alert:
    """`lasting` is how long the expression must hold; `critical` means: act now, also at night."""

    name: str
    expression: str
    lasting: str
    critical: bool
    summary: str
    meaning: str

    @property
    def section(self) -> str:
        """The anchor of the runbook's section: `alert-in-doubt` for StarRocksSinkInDoubt."""
        words = re.findall("[A-Z][a-z]+", self.name.removeprefix("StarRocksSink"))
        return "-".join(["alert", *words]).lower()

    @property
    def runbook(self) -> str:
        """A template of the link to the runbook's section; `BASE_LABEL` replaces the repository's address."""
        base = f"{{{{ with $externalLabels.{BASE_LABEL} }}}}{{{{ . }}}}{{{{ else }}}}{runbook_url()}{{{{ end }}}}"
        return f"{base}#{self.section}"


def metric(name: str, suffix: str = "", **labels: str) -> str:
    """A selector of one of our metrics; raises KeyError for a name or a label that is not in the catalogue."""
    declaration = BY_NAME[name]
    if suffix and declaration.kind is not MetricKind.HISTOGRAM:
        raise KeyError(f"{name} is no histogram")
    if not labels.keys() <= set(declaration.labels):
        raise KeyError(f"{name} has no label {', '.join(labels.keys() - set(declaration.labels))}")
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return declaration.full_name + suffix + (f"{{{matchers}}}" if matchers else "")


def _since(name: str, window: str, **labels: str) -> str:
    """How much a counter has grown per driver, also when its series is new in the window."""
    by, counter = "sum by (instance, job)", metric(name, **labels)
    return f"{by} ({counter}) - ({by} ({counter} offset {window}) or {by} ({counter}) * 0)"


def _p99(name: str, window: str, **labels: str) -> str:
    rate = f"rate({metric(name, '_bucket', **labels)}[{window}])"
    return f"histogram_quantile(0.99, sum by (le, instance, job) ({rate}))"


ALERTS = (
    Alert(
        "StarRocksSinkIntegrityViolated",
        f"sum by (instance, job, kind) ({metric('integrity_violations_total')}) > 0",
        "0m",
        True,
        "A reader can see something wrong ({{ $labels.kind }}).",
        "A source transaction was seen in part, twice or not at all, or the source now has other content.",
    ),
    Alert(
        "StarRocksSinkInDoubt",
        f"{metric('in_doubt_transactions')} > 0",
        "1m",
        True,
        "{{ $labels.sink_job }}: {{ $value }} StarRocks transactions are in doubt.",
        "Nobody can say whether a commit took effect, and no run has taken the job over to settle it.",
    ),
    Alert(
        "StarRocksSinkEndpointDown",
        f"(up == 0 and on (instance, job) last_over_time({metric('build_info')}[1d])) or "
        f"absent({metric('build_info')})",
        "2m",
        True,
        "The driver {{ $labels.instance }} cannot be scraped.",
        "The driver has ended, its endpoint is off, or Prometheus cannot reach it.",
    ),
    Alert(
        "StarRocksSinkNoProgress",
        f"time() - ({metric('last_progress_timestamp_seconds')} > 0) > 300",
        "1m",
        True,
        "{{ $labels.sink_job }}: no micro-batch has ended for {{ $value | humanizeDuration }}.",
        "The query hangs, waits for a server, or its micro-batch is far too long.",
    ),
    Alert(
        "StarRocksSinkWaiting",
        f"time() - ({metric('outage_start_timestamp_seconds')} > 0) > 60",
        "0m",
        False,
        "{{ $labels.sink_job }} has waited for StarRocks for {{ $value | humanizeDuration }}.",
        "StarRocks does not answer, or refuses to begin, load or commit (errors_total by code says which); or a "
        "command (verify, resync) holds the job.",
    ),
    Alert(
        "StarRocksSinkNotCommitting",
        f"sum by (instance, job) (increase({metric('spark_input_rows_total')}[10m])) > 0 and "
        f"sum by (instance, job) (increase({metric('commits_total', outcome='committed')}[10m])) == 0",
        "5m",
        True,
        "Rows come in, and nothing is committed.",
        "Every commit fails, or no source transaction ever ends.",
    ),
    Alert(
        "StarRocksSinkBatchFailing",
        f"sum by (instance, job, sink_job) (increase({metric('failed_batches_total')}[15m])) > 2",
        "0m",
        True,
        "{{ $labels.sink_job }}: {{ $value | humanize }} micro-batches failed within 15 minutes.",
        "errors_total by code says why.",
    ),
    Alert(
        "StarRocksSinkFenced",
        f"{_since('errors_total', '15m', code='fenced')} > 0",
        "0m",
        True,
        "Another writer took the job or a lane over.",
        "Two drivers run under one job name, or an old one woke up.",
    ),
    Alert(
        "StarRocksSinkLatencyHigh",
        f"{_p99('end_to_end_latency_seconds', '10m')} > 60",
        "10m",
        False,
        "Source transactions take {{ $value | humanizeDuration }} to become visible (p99).",
        "The sink, Spark or the source is behind.",
    ),
    Alert(
        "StarRocksSinkLag",
        f"max by (instance, job, source) ({metric('source_lag_seconds')}) > 300",
        "5m",
        False,
        "The oldest unread row of {{ $labels.source }} has waited {{ $value | humanizeDuration }}.",
        "Rows arrive faster than they are written, or a micro-batch hangs.",
    ),
    Alert(
        "StarRocksSinkCommitSlow",
        f"{_p99('phase_duration_seconds', '10m', phase='publish')} > 10",
        "10m",
        False,
        "A commit takes {{ $value | humanizeDuration }} until its rows are visible (p99).",
        "StarRocks is slow to publish versions.",
    ),
    Alert(
        "StarRocksSinkTooManyTransactions",
        f"{_since('errors_total', '15m', code='too_many_transactions')} > 0",
        "0m",
        False,
        "StarRocks refuses new transactions: too many are running in the database.",
        "Attempts wait their turn; other loads of the database use up the limit as well.",
    ),
    Alert(
        "StarRocksSinkFewTransactionsLeft",
        f"{metric('database_running_transactions')} / ({metric('database_transaction_limit')} > 0) > 0.8",
        "3m",
        False,
        "{{ $value | humanizePercentage }} of the transactions that {{ $labels.database }} may have are running.",
        "At the limit the server refuses new ones; another writer may leave transactions open.",
    ),
    Alert(
        "StarRocksSinkManyRowsets",
        f"max by (instance, job, table) ({metric('tablet_rowsets')}) "
        f"/ on (instance, job) group_left min by (instance, job) ({metric('tablet_rowset_limit')} > 0) > 0.8",
        "5m",
        False,
        "A tablet of {{ $labels.table }} has {{ $value | humanizePercentage }} of the rowsets that it may have.",
        "At the limit StarRocks refuses loads: compaction does not keep up with the micro-batches.",
    ),
    Alert(
        "StarRocksSinkErrors",
        f"sum by (instance, job, code) (increase({metric('errors_total')}[15m])) > 5",
        "5m",
        False,
        "{{ $value | humanize }} errors {{ $labels.code }} within 15 minutes.",
        "Retries may have repaired them; the code says what is behind them.",
    ),
    Alert(
        "StarRocksSinkRetriesHigh",
        f"sum by (instance, job) (increase({metric('retries_total')}[10m])) > 20",
        "10m",
        False,
        "{{ $value | humanize }} repetitions within 10 minutes.",
        "The job goes on, but it costs time; retries_total says what is repeated and why.",
    ),
    Alert(
        "StarRocksSinkNearTimeout",
        f"{metric('transaction_age_ratio')} > 0.5",
        "5m",
        False,
        "StarRocks transactions live for {{ $value | humanizePercentage }} of their timeout.",
        "At 80 % they are committed early; a source transaction that outlives the timeout fails the job.",
    ),
    Alert(
        "StarRocksSinkBufferFull",
        f"{metric('buffer_bytes')} / ({metric('buffer_limit_bytes')} > 0) > 0.95",
        "10m",
        False,
        "A lane's buffer is {{ $value | humanizePercentage }} full.",
        "Loads are slower than the rows that come in.",
    ),
    Alert(
        "StarRocksSinkDeadLetters",
        f"{_since('dead_letter_rows_total', '15m')} > 0",
        "0m",
        False,
        "{{ $value }} rows were dead-lettered within 15 minutes.",
        "They are not in the tables; correct and replay them.",
    ),
    Alert(
        "StarRocksSinkNotEqual",
        f"max by (instance, job, sink_job) ({metric('verified_tables', state='different')}) > 0",
        "0m",
        False,
        "{{ $labels.sink_job }}: {{ $value }} tables were different from their source in the last `verify`.",
        "Rows were lost or changed on their way, or by hand; `verify` names them, and repairs them.",
    ),
    Alert(
        "StarRocksSinkUnknownColumns",
        f"{_since('unknown_columns_total', '15m')} > 0",
        "0m",
        False,
        "JSON rows have {{ $value }} names that are no columns of their table.",
        "The server drops those values, and a column that no row names is NULL.",
    ),
    Alert(
        "StarRocksSinkTransactionsDropped",
        f"{_since('source_transactions_total', '15m', outcome='dropped')} > 0",
        "0m",
        False,
        "{{ $value }} source transactions were dropped by policy.",
        "Their BEGIN was never seen, or they stayed open too long.",
    ),
    Alert(
        "StarRocksSinkTransactionsTrusted",
        f"{_since('trusted_transactions_total', '15m')} > 0",
        "0m",
        False,
        "{{ $value }} transactions that a restart of the connector cut were written, and no count proves them.",
        "A connector that loses rows at a restart would leave them incomplete.",
    ),
    Alert(
        "StarRocksSinkRepeatsUnproved",
        f"{_since('repeated_events_total', '15m', content='unknown')} > 0",
        "0m",
        False,
        "{{ $value }} events came below the last position, and nothing proves that they are repeats.",
        "They were dropped; another source's rows would be missing.",
    ),
    Alert(
        "StarRocksSinkEventsLate",
        f"{_since('repeated_events_total', '15m', content='late')} > 0",
        "0m",
        False,
        "{{ $value }} events came of transactions that were given up before.",
        "They are dead letters, or dropped; another source's rows would be missing.",
    ),
    Alert(
        "StarRocksSinkMessagesMalformed",
        f"{_since('malformed_messages_total', '15m')} > 0",
        "0m",
        False,
        "{{ $value }} messages were left out because they are no event that can be read.",
        "Their rows are in no table: on_malformed is drop.",
    ),
    Alert(
        "StarRocksSinkOpenTransactionOld",
        f"time() - ({metric('oldest_open_transaction_timestamp_seconds')} > 0) > 900",
        "5m",
        False,
        "A source transaction has been open for {{ $value | humanizeDuration }}.",
        "Its END does not come: the assembler holds its rows.",
    ),
    Alert(
        "StarRocksSinkSkew",
        f"{metric('event_time_skew_seconds')} > 600",
        "15m",
        False,
        "Source partitions are {{ $value | humanizeDuration }} apart.",
        "One partition is far behind the others, so readers see sources of different times.",
    ),
)


def rules() -> str:
    """The rules as YAML; strings are written as JSON, which YAML reads."""
    lines = [
        "# Made by `make docs`; a test keeps it up to date.",
        "groups:",
        "  - name: starrocks-txn-sink",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.lasting}",
            f"        labels: {{severity: {'critical' if alert.critical else 'warning'}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(alert.meaning)}",
            f"          runbook_url: {json.dumps(alert.runbook)}",
        ]
    return "\n".join(lines) + "\n"
