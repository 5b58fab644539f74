"""The document behind the page: `/api/state`. Pure; takes the model's lock."""

from collections.abc import Mapping
from typing import Any

from starrocks_txn_sink.metrics.catalogue import ERRORS, PHASES
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.series import HistorySlot, MetricValues
from starrocks_txn_sink.metrics.verdict import health_status, lights, readiness
from starrocks_txn_sink.writer.messages import Durations

RUNBOOK = "runbook"
"""Path of docs/operations/runbook.md on the endpoint."""

RANGES = (300, 900, 3600)
"""Selectable time ranges of the page, in seconds."""

_RATE_SECONDS = 60.0
_PARTITIONS_SHOWN = 200
_ITEMS_SHOWN = 200


def dashboard_state(model: Model, now: float, limit: float, seconds: int | None = None) -> dict[str, Any]:
    """Document of the page; `seconds` is one of RANGES, by default the smallest that covers the run so far."""
    uptime = now - model.history.started
    range_seconds = (
        seconds if seconds in RANGES else next((length for length in RANGES if uptime <= length), RANGES[-1])
    )
    with model.lock:
        verdict, ready = health_status(model, now, limit), readiness(model, now, limit)
        recent = model.history.since(now - range_seconds)
        return _bounded(
            {
                "now": now,
                "started": model.history.started,
                "verdict": {"light": verdict.light.value, "text": verdict.text},
                "ready": {"ready": ready.ready, "reason": ready.reason},
                "lights": {name: light.value for name, light in lights(model, now, limit).items()},
                "build": model.build,
                "jobs": [_job(job) for job in model.jobs],
                "range": range_seconds,
                "right": _right(model),
                "fresh": _fresh(model, recent, now),
                "flow": _flow(model, now),
                "anatomy": _anatomy(model, recent),
                "assembler": _assembler(model),
                "saturation": _saturation(model, now),
                "errors": _errors(model),
                "partitions": _partitions(model),
                "series": _series(model, now, range_seconds),
                "schema_changes": list(reversed(model.schema_changes)),
                "transactions": list(reversed(model.recent)),
            }
        )


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with at most _ITEMS_SHOWN items a list, except in the series; `left_out` counts the remaining ones."""
    left_out: dict[str, int] = {}

    def shorten(name: str, value: Any) -> Any:
        if isinstance(value, list) and len(value) > _ITEMS_SHOWN:
            left_out[name] = len(value) - _ITEMS_SHOWN
            return value[:_ITEMS_SHOWN]
        return value

    for part, content in document.items():
        if part == "series":
            continue
        if isinstance(content, dict):
            document[part] = {name: shorten(f"{part}.{name}", value) for name, value in content.items()}
        else:
            document[part] = shorten(part, content)
    return document | {"left_out": left_out}


def _job(job: Any) -> dict[str, Any]:
    names = ("name", "last_commit", "last_progress", "last_batch_id", "idle", "running_since", "failed_at", "ended_at")
    return {name: getattr(job, name) for name in (*names, "failed_code", "ended_code", "in_doubt", "failures")}


def _by_label(metrics: MetricValues, name: str) -> dict[str, float]:
    """The values of a metric with one label."""
    return {label: value for (label,), value in metrics.values(name).items()}


def _right(model: Model) -> dict[str, Any]:
    metrics = model.metrics
    return {
        "violations": _by_label(metrics, "integrity_violations_total"),
        "in_doubt": model.jobs.in_doubt,
        "outcomes": _by_label(metrics, "source_transactions_total"),
        "dead_letter_rows": metrics.total("dead_letter_rows_total"),
        "verified": [f"{name}: {verdict.text}." for name, verdict in model.verified.items()],
    }


def _fresh(model: Model, recent: HistorySlot, now: float) -> dict[str, Any]:
    commits = [job.last_commit for job in model.jobs if job.last_commit]
    return {
        "last_commit": max(commits, default=0.0),
        "age": now - max(commits) if commits else None,
        "batch_id": max((job.last_batch_id for job in model.jobs), default=-1),
        **_percentiles(recent.latency, "p50", "p99"),
        **_lag(model, now),
        **_pace(model),
    }


def _pace(model: Model) -> dict[str, Any]:
    """The pace of the newest job with `freshness`: its goal, seconds between two commits, what decides about them."""
    pace = next((job.pace for job in reversed(list(model.jobs)) if job.pace is not None), None)
    if pace is None:
        return {"goal": None, "interval": None, "paced_by": None}
    return {"goal": pace.freshness, "interval": pace.interval, "paced_by": pace.reason}


def _lag(model: Model, now: float) -> dict[str, float | None]:
    """Rows and seconds behind the sources. Without `source.lagged` the rows of Spark's report, while it is fresh."""
    waiting = [lag for lags in model.source_lags.values() for lag in lags.values()]
    if waiting:
        return {"lag": sum(lag.rows for lag in waiting), "lag_seconds": max(lag.seconds for lag in waiting)}
    fresh = model.lags and not any(job.slow(now) for job in model.jobs)
    return {"lag": sum(model.lags.values()) if fresh else None, "lag_seconds": None}


def _percentiles(durations: Durations, half: str, highest: str) -> dict[str, float | None]:
    return {half: durations.percentile(0.5), highest: durations.percentile(0.99)}


def _flow(model: Model, now: float) -> dict[str, Any]:
    seconds = max(2.0, min(_RATE_SECONDS, now - model.history.started))
    counts = model.history.since(now - seconds).counts
    rows = model.metrics.values("rows_total")
    tables: dict[str, dict[str, float]] = {}
    for (table, op), total in rows.items():
        tables.setdefault(table, {})[op] = total
    return {
        "seconds": seconds,
        "transactions": counts["transactions"] / seconds,
        "rows": counts["rows"] / seconds,
        "bytes": counts["bytes"] / seconds,
        "n_to_1": counts["transactions"] / counts["commits"] if counts["commits"] else None,
        "rows_total": sum(rows.values()),
        "transactions_total": model.metrics.value("source_transactions_total", "committed"),
        "commits_total": model.metrics.value("commits_total", "committed"),
        "tables": [
            {"table": table, "rate": counts[f"rows {table}"] / seconds, "upsert": 0, "delete": 0, **ops}
            for table, ops in sorted(tables.items(), key=lambda item: -sum(item[1].values()))
        ],
    }


def _anatomy(model: Model, recent: HistorySlot) -> dict[str, Any]:
    commits = recent.counts["commits"]
    metrics = model.metrics
    return {
        "phases": {phase: recent.counts[f"ms {phase}"] / 1000 / commits if commits else None for phase in PHASES},
        **_percentiles(recent.commit, "commit_p50", "commit_p99"),
        "outcomes": _by_label(metrics, "commits_total"),
        "loads_per_commit": recent.counts["loads"] / commits if commits else None,
        "loads": [
            {"table": labels[0], "loads": histogram.count, **_percentiles(histogram, "p50", "p99")}
            for labels, histogram in sorted(metrics.histograms("load_duration_seconds"))
        ],
        "spark": _by_label(metrics, "spark_phase_duration_seconds"),
    }


def _assembler(model: Model) -> dict[str, Any]:
    metrics = model.metrics
    outcomes = _by_label(metrics, "source_transactions_total")
    return {
        "open": metrics.value("open_source_transactions"),
        "rows": metrics.value("open_source_rows"),
        "oldest": metrics.value("oldest_open_transaction_timestamp_seconds"),
        "bytes": metrics.value("assembler_state_bytes"),
        "spark_rows": metrics.value("spark_state_rows"),
        "spark_bytes": metrics.value("spark_state_bytes"),
        "lost": {outcome: outcomes.get(outcome, 0.0) for outcome in ("abandoned", "dropped", "empty")},
        "open_transactions": [
            {**transaction, "stage": _stage(model, transaction["stage"])}
            for transaction in model.assembly.open_transactions()
        ],
    }


def _stage(model: Model, name: str) -> str:
    """Display name of an assembling stage, with its job if there are several."""
    query, _, stage = name.rpartition("/")
    job = model.jobs.for_query(query)
    return f"{job.name}: {stage}" if job is not None and len(model.jobs) > 1 else stage


def _saturation(model: Model, now: float) -> dict[str, Any]:
    metrics = model.metrics
    running = [job.running_since for job in model.jobs if job.running_since]
    return {
        "buffer": metrics.value("buffer_bytes"),
        "buffer_limit": metrics.value("buffer_limit_bytes"),
        "inflight": metrics.value("inflight_loads"),
        "open": metrics.value("open_starrocks_transactions"),
        "age": metrics.value("transaction_age_ratio"),
        "timeout": model.timeout,
        "running": now - min(running) if running else None,
        "recycled": metrics.value("recycled_transactions_total"),
    }


def _errors(model: Model) -> dict[str, Any]:
    metrics = model.metrics
    code_counts = {code: count for code, count in _by_label(metrics, "errors_total").items() if count}
    return {
        "codes": [
            {"code": code, "count": count, "last": model.last_errors.get(code, 0.0), **_error_texts(code)}
            for code, count in sorted(code_counts.items(), key=lambda item: -model.last_errors.get(item[0], 0.0))
        ],
        "retries": [[*labels, count] for labels, count in metrics.values("retries_total").items() if count],
        "requests": [[*labels, count] for labels, count in metrics.values("requests_total").items() if count],
        "dead_letters": [[*labels, count] for labels, count in metrics.values("dead_letter_rows_total").items()],
        "failed_batches": metrics.total("failed_batches_total"),
    }


def _error_texts(code: str) -> dict[str, str]:
    kind = ERRORS.get(code)
    return {
        "meaning": kind.summary if kind else "An error of Spark or of the application; see the driver's log.",
        "advice": kind.hint if kind else "",
        "runbook": f"{RUNBOOK}#error-{code}",
    }


def _partitions(model: Model) -> dict[str, Any]:
    times, newest = model.event_times, max(model.event_times.values(), default=0.0)
    positions = sorted(_by_label(model.metrics, "partition_position").items(), key=lambda item: _natural(item[0]))
    return {
        "count": len(positions),
        "skew": model.metrics.value("event_time_skew_seconds") if len(times) > 1 else None,
        "shown": [
            {
                "partition": partition,
                "position": position,
                "event_time": times.get(partition),
                "behind": newest - times[partition] if partition in times else None,
                "lag": _partition_lag(model.lags, partition),
            }
            for partition, position in positions[:_PARTITIONS_SHOWN]
        ],
    }


def _partition_lag(lags: Mapping[str, int], partition: str) -> int | None:
    """Lag of a source partition, which a job names `0` or `orders-0`.

    Spark's progress names it `0` with one topic, `orders/0` with several.
    """
    topic, dash, number = partition.rpartition("-")
    names = (partition, f"{topic}/{number}", number) if dash else (partition,)
    return next((lags[name] for name in names if name in lags), None)


def _natural(name: str) -> tuple[bool, int, str]:
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)


def _series(model: Model, now: float, seconds: int) -> dict[str, Any]:
    start, step, windows = model.history.series(now, seconds)
    first = model.history.started - step

    def flow(name: str) -> list[float | None]:
        return [round(window.counts[name] / step, 3) if window.at >= first else None for window in windows]

    names = ("transactions", "rows", "bytes", "commits", "aborted", "failed", "errors", "retries", "violations")
    levels = ("open", "state_bytes", "buffer_bytes", "batch_seconds", "lag_rows", "lag_seconds")
    return {
        "start": start,
        "step": step,
        **{name: flow(name) for name in names},
        "latency_p50": [window.latency.percentile(0.5) for window in windows],
        "latency_p99": [window.latency.percentile(0.99) for window in windows],
        "commit_p50": [window.commit.percentile(0.5) for window in windows],
        "commit_p99": [window.commit.percentile(0.99) for window in windows],
        **{name: [window.levels.get(name) for window in windows] for name in levels},
    }
