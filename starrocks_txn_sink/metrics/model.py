"""The model behind the endpoint: adds up events into metrics. Pure except for a lock; the clock is an argument.

Events of the sink on the driver, and their fields:

    sink.made           buffer_bytes, timeout, version     session.opened   job, exactly_once
    batch.started       job, batch_id, query, database           lane.reported    report (LaneReport)
    receipt.collected   receipt (Receipt)                  batch.completed  job, batch_id, seconds, receipts
    batch.failed        job, batch_id, seconds, code, report or None     batch.stopped    job, batch_id, seconds
    outage.met          the same; the driver waits and writes again    outage.ended   job, batch_id, seconds
    integrity.violated  kind (torn, source_changed, unlisted)
    label.unlisted      job                                columns.unknown  job, table, count
    rows.dead_lettered  job, table, reason, rows           schema.changed   job, table, statement
    schema.waiting      job, table, seconds, alter and state if StarRocks lists the change
    schema.waited      job, table, seconds; the wait has ended
    step.started        job, step: one that the driver takes       step.completed, step.failed    the same
    query.started, query.progressed, query.idle, query.ended, assembler.counted: see `metrics.spark_progress`
    source.lagged       query, lags (by topic), partitions (rows)    source.unknown  query; see `metrics.source_lag`
    server.measured     database, room (TransactionRoom or None)
    commits.paced       job, freshness, pause, interval, late, reason; the pause begins
    threads.measured    database, room (LoadRoom or None)
    tablets.measured    database, room (TabletRoom or None)
    tables.verified     database, found (Verified by job)

Reports come before the receipts of the same micro-batch. Other events of `events.EVENTS` change no metric.

Metrics live on the driver, because executors are short-lived and no Prometheus scrapes them: a lane sends one report
with its receipts, or in its error. So each count arrives once, even if Spark repeats a task.
"""

import platform
import threading
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from starrocks_txn_sink.clock import Clock
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import JobHeld
from starrocks_txn_sink.metrics.catalogue import JOBS, PARTITIONS, PROOFS, SPARK, TABLES, VIOLATIONS
from starrocks_txn_sink.metrics.jobs import (
    REMEMBERED,
    AlterWait,
    AssemblerLevels,
    CommitPace,
    DriverStep,
    JobState,
    JobStatuses,
    committed_entry,
)
from starrocks_txn_sink.metrics.series import History, HistorySlot, MetricValues
from starrocks_txn_sink.metrics.source_lag import SourceLag
from starrocks_txn_sink.metrics.spark_progress import QueryProgress
from starrocks_txn_sink.protocol.verified import Verified
from starrocks_txn_sink.sql.server_limits import LoadRoom, TabletRoom, TransactionRoom
from starrocks_txn_sink.telemetry import Event, LatestValues
from starrocks_txn_sink.writer.messages import LaneCost, LaneReport, LaneWork


class Model:
    """`record` is thread-safe. Hold `lock` to read more than one field."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.metrics = MetricValues()
        self.history = History(clock.wall())
        self.recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.schema_changes: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.jobs = JobStatuses()
        self.assembly = AssemblerLevels()
        self.event_times: LatestValues[str, float] = LatestValues(PARTITIONS)
        self.lags: LatestValues[str, int] = LatestValues(PARTITIONS)
        self.source_lags: LatestValues[str, Mapping[str, SourceLag]] = LatestValues(JOBS)  # by query
        self.silent_sources: LatestValues[str, float] = LatestValues(JOBS)  # by query: since when, after answers
        self.rooms: LatestValues[str, tuple[TransactionRoom | None, float]] = LatestValues(
            JOBS
        )  # by database, and when
        self.load_rooms: LatestValues[str, LoadRoom] = LatestValues(JOBS)  # by database
        self.tablet_rooms: LatestValues[str, TabletRoom] = LatestValues(JOBS)  # by database
        self.verified: LatestValues[str, Verified] = LatestValues(JOBS)  # by job
        self.last_errors: dict[str, float] = {}
        self.last_violation = 0.0
        self._deletes: Counter[str] = Counter()  # deletes by table in reports whose receipts have not arrived yet
        self.timeout = 0.0
        self._new_batch = False  # whether a micro-batch has begun and no lane has reported yet
        self.build = {"version": "", "python": platform.python_version(), "spark": ""}

    def record(self, event: Event) -> None:
        """Add one event; the method `_on_batch_started` takes the event `batch.started`."""
        handler = getattr(self, f"_on_{event.name.replace('.', '_')}", None)
        if handler is not None:
            with self.lock:
                handler(event.fields, self.clock.wall())
                if "job" in event.fields or "query" in event.fields:  # so not for each receipt: its batch's end follows
                    self._set_job_gauges()

    def has_query(self, query: str) -> bool:
        """Whether a streaming query uses the sink."""
        with self.lock:
            return self.jobs.for_query(query) is not None

    def is_paused(self, query: str) -> bool:
        """Whether the sink pauses behind a commit of a streaming query."""
        with self.lock:
            job = self.jobs.for_query(query)
            return job is not None and self.clock.wall() < job.paused_until

    # --- the sink ---

    def _on_sink_made(self, fields: Mapping[str, Any], _: float) -> None:
        self.timeout = float(fields["timeout"])
        self.metrics.set("buffer_limit_bytes", fields["buffer_bytes"])
        for name in ("version", "spark"):
            self.build[name] = str(fields.get(name, ""))

    def _on_session_opened(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.ended_at, job.ended_code = 0.0, ""
        if fields["exactly_once"]:  # the take-over has settled all commits in doubt: the ledger has their outcome
            job.in_doubt, job.doubt_since = 0, 0.0

    def _on_batch_started(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.running_since, job.idle = now, False
        job.ended_at, job.ended_code = 0.0, ""
        job.query, job.database = fields["query"] or "", fields.get("database", "")
        job.started_at = job.started_at or now
        self._new_batch = True

    def _on_batch_completed(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.end_batch()
        job.last_progress = now
        job.failed_at, job.failures, job.failed_code = 0.0, 0, ""
        job.in_doubt, job.doubt_since = 0, 0.0
        self.metrics.histogram("batch_duration_seconds").add(fields["seconds"])
        self.history.slot(now).level("batch_seconds", fields["seconds"])
        job.batch_seconds.append(fields["seconds"])

    def _on_batch_failed(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.end_batch()
        job.failed_at, job.failed_code, job.failures = now, fields["code"], job.failures + 1
        self.history.slot(now).counts["failed"] += 1
        job.failed_batches += 1
        self._add_failure(job, fields, now)
        if fields["code"] == "source_changed":
            self._on_integrity_violated({"kind": "source_changed"}, now)

    def _on_batch_stopped(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.end_batch()

    def _on_commits_paced(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.pace = CommitPace(**{name: fields[name] for name in ("freshness", "interval", "late", "reason")})
        job.paused_until = now + fields["pause"]
        self.metrics.set("freshness_goal_seconds", fields["freshness"], job.name)
        self.metrics.set("freshness_late_ratio", fields["late"], job.name)
        self.metrics.set("commit_pause_seconds", fields["pause"], job.name)
        self.metrics.set("commit_interval_seconds", fields["interval"], job.name)

    def _on_freshness_missed(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).late_because = fields["advice"]

    def _on_freshness_met(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).late_because = ""

    def _on_outage_met(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.touch(fields["job"], now)
        job.outage_since, job.outage_code = job.outage_since or now, fields["code"]
        job.alters.clear()
        self._add_failure(job, fields, now)

    def _on_outage_ended(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).outage_since = 0.0

    def _add_failure(self, job: JobState, fields: Mapping[str, Any], now: float) -> None:
        """Add the counts of a failed try at a micro-batch: the lane's report, or the code of the driver's error.

        One that a command's hold has ended has not failed.
        """
        report, held = fields.get("report"), fields["code"] == JobHeld.code
        if not held:
            self.recent.append(
                {
                    "outcome": "failed",
                    "at": now,
                    "job": job.name,
                    "batch_id": fields["batch_id"],
                    "code": fields["code"],
                    "open_seconds": fields["seconds"],
                    "attempts": report.trouble.aborted if report is not None else 0,
                }
            )
        if report is None:
            if not held:
                self._add_errors(fields["code"], 1, now)
            return
        self._add_report(report, now)
        if unsettled := report.trouble.unsettled:
            job.in_doubt += unsettled
            job.doubt_since = job.doubt_since or now
            self.metrics.add("commits_total", unsettled, "unknown")

    def _on_receipt_collected(self, fields: Mapping[str, Any], now: float) -> None:
        receipt: Receipt = fields["receipt"]
        job, slot, metrics = self.jobs.touch(receipt.job, now), self.history.slot(now), self.metrics
        job.last_commit, job.last_batch_id = max(job.last_commit, receipt.committed_at), receipt.batch_id
        metrics.add("commits_total", 1, "committed")
        metrics.add("source_transactions_total", receipt.source_transactions, "committed")
        metrics.add("source_transactions_total", receipt.dead_lettered_transactions, "dead_lettered")
        metrics.add("recycled_transactions_total", int(receipt.recycled))
        metrics.histogram("transactions_per_commit").add(receipt.source_transactions)
        for table, rows in receipt.tables.items():
            name = metrics.table(table)
            deleted = min(rows, self._deletes[name])
            self._deletes[name] -= deleted
            metrics.add("rows_total", rows - deleted, name, "upsert")
            metrics.add("rows_total", deleted, name, "delete")
            slot.counts[f"rows {name}"] += rows
        self._add_phases(receipt, slot)
        for span in receipt.positions:
            metrics.set("partition_position", float(span.last), span.partition)
        slot.counts.update(commits=1, transactions=receipt.source_transactions, rows=receipt.rows, bytes=receipt.bytes)
        if self.timeout:
            ratio = max(metrics.value("transaction_age_ratio"), receipt.open_seconds / self.timeout)
            metrics.set("transaction_age_ratio", ratio)
        self.recent.append(committed_entry(receipt))

    def _add_phases(self, receipt: Receipt, slot: HistorySlot) -> None:
        for phase, seconds in receipt.phase_seconds.items():
            self.metrics.histogram("phase_duration_seconds", phase).add(seconds)
            slot.counts[f"ms {phase}"] += round(seconds * 1000)
        whole = sum(receipt.phase_seconds.get(phase, 0.0) for phase in ("commit", "publish", "recover"))
        self.metrics.histogram("commit_duration_seconds").add(whole)
        slot.commit.add(whole)

    def _on_lane_reported(self, fields: Mapping[str, Any], now: float) -> None:
        report: LaneReport = fields["report"]
        self._add_report(report, now)
        for table, rows in report.work.deletes.items():
            self._deletes[self.metrics.table(table)] += rows

    def _add_report(self, report: LaneReport, now: float) -> None:
        """Add a lane's report, from a success or from a failure."""
        if self._new_batch:  # gauges keep the last micro-batch's values until the first report of the new one
            self._new_batch = False
            for name in ("buffer_bytes", "inflight_loads", "transaction_age_ratio"):
                self.metrics.set(name, 0.0)
        slot = self.history.slot(now)
        self._add_work(report.work, slot)
        self._add_cost(report.cost, slot)
        for code, count in report.trouble.errors.items():
            self._add_errors(code, count, now)
        self.metrics.add("commits_total", report.trouble.aborted, "aborted")
        slot.counts["aborted"] += report.trouble.aborted

    def _add_work(self, work: LaneWork, slot: HistorySlot) -> None:
        for name, load in work.loads.items():
            table = self.metrics.table(name)
            self.metrics.add("bytes_total", load.bytes, table, load.encoding)
            self.metrics.histogram("load_duration_seconds", table).merge(load.times)
            slot.counts["loads"] += load.times.count
        self.metrics.add("source_transactions_total", work.replayed_transactions, "replayed")
        self.metrics.histogram("end_to_end_latency_seconds").merge(work.latency)
        slot.latency.merge(work.latency)
        for partition, time in work.event_times.items():
            self.event_times[partition] = time
        if work.event_times:
            times = self.event_times.values()
            self.metrics.set("event_time_skew_seconds", max(times) - min(times))

    def _add_cost(self, cost: LaneCost, slot: HistorySlot) -> None:
        for operation, statuses in cost.requests.items():
            for status, count in statuses.items():
                self.metrics.add("requests_total", count, operation, status)
        for operation, reasons in cost.retries.items():
            for reason, count in reasons.items():
                self.metrics.add("retries_total", count, operation, reason)
            slot.counts["retries"] += sum(reasons.values())
        for name, peak in (("buffer_bytes", cost.buffer_peak), ("inflight_loads", cost.inflight_peak)):
            self.metrics.set(name, max(self.metrics.value(name), peak))
            slot.level(name, peak)

    def _add_errors(self, code: str, count: int, now: float) -> None:
        self.metrics.add("errors_total", count, code)
        self.history.slot(now).counts["errors"] += count
        self.last_errors[code] = now

    # --- violations, dead letters, queries ---

    def _on_integrity_violated(self, fields: Mapping[str, Any], now: float) -> None:
        kind = fields["kind"] if fields["kind"] in VIOLATIONS else "torn"
        self.metrics.add("integrity_violations_total", 1, kind)
        self.history.slot(now).counts["violations"] += 1
        self.last_violation = now

    def _on_label_unlisted(self, _: Mapping[str, Any], now: float) -> None:
        self._on_integrity_violated({"kind": "unlisted"}, now)

    def _on_columns_unknown(self, fields: Mapping[str, Any], _: float) -> None:
        self.metrics.add("unknown_columns_total", fields["count"], self.metrics.table(fields["table"]))

    def _on_columns_gone(self, fields: Mapping[str, Any], now: float) -> None:
        sentence = f"rows do not name {fields['gone']} any more: NULL there, and the table keeps the columns"
        self.schema_changes.append({"at": now, "job": fields["job"], "table": fields["table"], "statement": sentence})

    def _on_schema_changed(self, fields: Mapping[str, Any], now: float) -> None:
        self.metrics.add("schema_changes_total", 1, self.metrics.table(fields["table"]))
        self.schema_changes.append({"at": now, **{name: fields[name] for name in ("job", "table", "statement")}})

    def _on_schema_waiting(self, fields: Mapping[str, Any], now: float) -> None:
        table, since = fields["table"], now - fields["seconds"]
        self.jobs.touch(fields["job"], now).alters[table] = AlterWait(table, since, fields.get("state", ""))

    def _on_schema_waited(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).alters.pop(fields["table"], None)

    def _on_step_started(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).step = DriverStep(fields["step"], now)

    def _on_step_completed(self, fields: Mapping[str, Any], now: float) -> None:
        self.jobs.touch(fields["job"], now).step = None

    _on_step_failed = _on_step_completed

    def _on_snapshot_progressed(self, fields: Mapping[str, Any], now: float) -> None:
        for state, name in (("begun", "tables"), ("over", "over")):
            self.metrics.set("snapshot_tables", fields[name], fields["job"], state)
        for table in fields["tables_over"]:
            self._note_snapshot(fields["job"], table, f"the snapshot of the table is over ({fields['text']})", now)

    def _on_snapshot_ended(self, fields: Mapping[str, Any], now: float) -> None:
        self._note_snapshot(fields["job"], "", f"the snapshot is over: {fields['tables']} tables", now)

    def _note_snapshot(self, job: str, table: str, text: str, now: float) -> None:
        """Show `text` among the changes of tables."""
        entry = {"job": job, "table": table, "statement": text}
        if not any(
            entry == {name: change[name] for name in entry} for change in self.schema_changes
        ):  # told at each start
            self.schema_changes.append({"at": now, **entry})

    def _on_rows_dead_lettered(self, fields: Mapping[str, Any], now: float) -> None:
        table = self.metrics.table(fields["table"])
        self.metrics.add("dead_letter_rows_total", fields["rows"], table, fields["reason"])
        self.history.slot(now).counts["dead_letters"] += fields["rows"]

    def _on_query_progressed(self, fields: Mapping[str, Any], _: float) -> None:
        if self.jobs.for_query(fields["query"]) is None:
            return  # the query does not use the sink
        progress: QueryProgress = fields["progress"]
        metrics = self.metrics
        metrics.add("spark_input_rows_total", progress.input_rows)
        for phase, seconds in progress.phases.items():
            metrics.set("spark_phase_duration_seconds", seconds, phase)
        metrics.set("spark_state_rows", progress.state_rows)
        metrics.set("spark_state_bytes", progress.state_bytes)
        metrics.set("spark_watermark_timestamp_seconds", progress.watermark)
        if fields["query"] not in self.source_lags:  # otherwise `source.lagged` has set newer lags
            for partition, lag in progress.lags.items():
                self.lags[partition] = lag
        self._set_skew(progress)

    def _set_skew(self, progress: QueryProgress) -> None:
        if not progress.skews:
            return
        times = {place: time for skew in progress.skews for place, time in skew.newest.items()}
        for place, time in times.items():
            self.metrics.set("source_partition_timestamp_seconds", time, place)
        read = [skew.read_until for skew in progress.skews if skew.read_until is not None]
        self.metrics.set("source_read_until_timestamp_seconds", min(read, default=0.0))
        self.metrics.set("source_skew_seconds", max(times.values()) - min(times.values()) if times else 0.0)
        self.metrics.set("source_held_back_rows", sum(skew.held_back_rows for skew in progress.skews))

    def _on_source_lagged(self, fields: Mapping[str, Any], now: float) -> None:
        if self.jobs.for_query(fields["query"]) is None:
            return
        self.source_lags[fields["query"]] = fields["lags"]
        self.silent_sources.pop(fields["query"], None)
        for partition, rows in fields["partitions"].items():
            self.lags[partition] = rows
        self._set_source_lags()
        slot = self.history.slot(now)
        slot.level("lag_rows", sum(lag.rows for lags in self.source_lags.values() for lag in lags.values()))
        slot.level("lag_seconds", max(lag.seconds for lags in self.source_lags.values() for lag in lags.values()))

    def _on_source_unknown(self, fields: Mapping[str, Any], now: float) -> None:
        if self.source_lags.pop(fields["query"], None) is not None:
            self.silent_sources[fields["query"]] = now
            self.lags.clear()
            self._set_source_lags()

    def _on_server_measured(self, fields: Mapping[str, Any], now: float) -> None:
        self.rooms[fields["database"]] = fields["room"], now
        rooms = {name: room for name, (room, _) in self.rooms.items() if room is not None}
        self.metrics.replace(
            "database_running_transactions", {name: float(room.running) for name, room in rooms.items()}
        )
        self.metrics.replace("database_transaction_limit", {name: float(own.limit) for name, own in rooms.items()})

    def _on_threads_measured(self, fields: Mapping[str, Any], _: float) -> None:
        self.load_rooms.pop(fields["database"], None)
        if fields["room"] is not None:
            self.load_rooms[fields["database"]] = fields["room"]
        self.metrics.replace("open_loads", {name: float(room.loads) for name, room in self.load_rooms.items()})
        self.metrics.replace("open_load_limit", {name: float(room.limit) for name, room in self.load_rooms.items()})

    def _on_tablets_measured(self, fields: Mapping[str, Any], _: float) -> None:
        room = fields["room"]
        if room is None:
            self.tablet_rooms.pop(fields["database"], None)
        else:
            self.tablet_rooms[fields["database"]] = room
        rooms = self.tablet_rooms
        rowsets: dict[str, float] = {}
        for record in rooms.values():
            largest = sorted(record.rowsets.items(), key=lambda pair: -pair[1])[:TABLES]
            rowsets.update({table: max(float(count), rowsets.get(table, 0.0)) for table, count in largest})
        self.metrics.replace("tablet_rowsets", rowsets)
        self.metrics.replace("tablet_rowset_limit", {name: float(room.limit) for name, room in rooms.items()})

    def _on_tables_verified(self, fields: Mapping[str, Any], _: float) -> None:
        own_jobs = {job.name for job in self.jobs}  # the other jobs of the database have pages of their own
        for job, verdict in fields["found"].items():
            if job in own_jobs:
                self.verified[job] = verdict
                self.metrics.set("verified_timestamp_seconds", verdict.at, job)
                self.metrics.set("verified_different_rows", verdict.rows, job)
                self.metrics.tell("verified_info", job, verdict.position)
                for state in PROOFS:
                    self.metrics.set("verified_tables", getattr(verdict, state), job, state)

    def _set_source_lags(self) -> None:
        """Set the gauges of the sources; two queries that read one topic share its series, with the larger value."""
        for name in ("rows", "seconds"):
            values: dict[str, float] = {}
            for lags in self.source_lags.values():
                for source, lag in lags.items():
                    values[source] = max(values.get(source, 0.0), float(getattr(lag, name)))
            self.metrics.replace(f"source_lag_{name}", values)

    def _on_assembler_counted(self, fields: Mapping[str, Any], now: float) -> None:
        if self.jobs.for_query(fields["query"]) is None:
            return
        flows = self.assembly.add_counts(fields["name"], fields["counts"], now, fields.get("oldest", ()))
        for outcome, count in flows.items():
            self.metrics.add("source_transactions_total", count, outcome)
        self.metrics.add("trusted_transactions_total", fields["counts"].get("trusted", 0))
        unknown = fields["counts"].get("unknown_repeats", 0)
        self.metrics.add("repeated_events_total", unknown, "unknown")
        self.metrics.add("repeated_events_total", fields["counts"].get("repeats", 0) - unknown, "same")
        self.metrics.add("repeated_events_total", fields["counts"].get("late", 0), "late")
        self.metrics.add("malformed_messages_total", fields["counts"].get("malformed", 0))
        level = self.assembly.level()
        self.metrics.set("open_source_transactions", level.open)
        self.metrics.set("open_source_rows", level.rows)
        self.metrics.set("assembler_state_bytes", level.bytes)
        self.metrics.set("oldest_open_transaction_timestamp_seconds", level.oldest)
        slot = self.history.slot(now)
        slot.level("open", level.open)
        slot.level("state_bytes", level.bytes)

    def _on_query_started(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.for_query(fields["query"])
        if job is not None:  # so this is a restart: before its first micro-batch a query has no job
            job.started_at, job.restarts = now, job.restarts + 1

    def _on_query_idle(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.for_query(fields["query"])
        if job is not None:
            job.idle, job.last_progress = True, now

    def _on_query_ended(self, fields: Mapping[str, Any], now: float) -> None:
        job = self.jobs.for_query(fields["query"])
        self._on_source_unknown(fields, now)
        self.silent_sources.pop(fields["query"], None)
        if job is not None:
            job.ended_at, job.running_since = now, 0.0
            job.ended_code = (job.failed_code or SPARK) if fields["failed"] else ""
            if not fields["failed"]:
                job.failed_at = 0.0  # stopping a query fails its running micro-batch; that is no failure of the job

    def _set_job_gauges(self) -> None:
        """Set the metrics of each job."""
        set_value = self.metrics.set
        for job in self.jobs:
            set_value("in_doubt_transactions", job.in_doubt, job.name)
            set_value("outage_start_timestamp_seconds", job.outage_since, job.name)
            set_value("last_commit_timestamp_seconds", job.last_commit, job.name)
            set_value("last_committed_batch_id", job.last_batch_id, job.name)
            progress = max(job.last_progress, job.paused_until) if job.should_progress else 0.0
            set_value("last_progress_timestamp_seconds", progress, job.name)
            set_value("failed_batches_total", job.failed_batches, job.name)
            set_value("query_restarts_total", job.restarts, job.name)
            set_value("query_start_timestamp_seconds", job.started_at, job.name)
            set_value("job_info", 1.0, job.name, job.database)
        set_value("open_starrocks_transactions", sum(job.running_since > 0 for job in self.jobs))
