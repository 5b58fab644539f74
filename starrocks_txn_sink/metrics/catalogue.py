"""Every metric, declared once: name, kind, labels, initial label values and help text.

The endpoint, docs/reference/metrics.md, the Grafana dashboard and the tests of the alert rules use them.
A label is bounded: never a StarRocks label, a transaction id, an offset or a message.
"""

from dataclasses import dataclass
from enum import Enum
from functools import partial

from starrocks_txn_sink import errors
from starrocks_txn_sink.protocol.wire import Operation, Status

PREFIX = "starrocks_txn_sink_"

TABLES = 200
"""Tables with series of their own; further tables share OTHER."""
PARTITIONS = 1000
"""Source partitions with series of their own."""
JOBS = 100
"""Jobs with series of their own; the one without events for the longest time is dropped."""
JOB = "sink_job"
"""The label of the sink's job: `job` is Prometheus' name of a group of targets."""
OTHER = "_other"


class MetricKind(Enum):
    """Prometheus' kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` has no prefix; the series of `initial` (label values) exist from the start, with the value 0."""

    kind: MetricKind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    initial: tuple[tuple[str, ...], ...] = ()

    @property
    def full_name(self) -> str:
        """The name that Prometheus sees, with PREFIX."""
        return PREFIX + self.name


SPARK = "spark"
"""Code of errors from outside the sink: Spark's own, a user's function, a stop."""

ERRORS: dict[str, type[errors.StarRocksSinkError]] = {
    kind.code: kind
    for kind in errors.error_classes()
    if kind.__module__ == errors.__name__ and kind not in errors.OF_COMMANDS
}
"""Every error of a query by its code."""

CODES = (*sorted(ERRORS), SPARK)
OPERATIONS = tuple(operation.value for operation in Operation)
OUTCOMES = ("committed", "aborted", "unknown")
SOURCE_OUTCOMES = ("committed", "dead_lettered", "replayed", "abandoned", "dropped", "empty")
REPEATS = ("same", "unknown", "late")
VIOLATIONS = ("torn", "source_changed", "unlisted")
PROOFS = ("equal", "different", "unproven")
PHASES = ("begin", "load", "check", "commit", "publish", "recover")
RETRIES = (
    ("begin", "too_many_transactions"),
    ("load", "busy"),
    ("load", "load_failed"),
    ("load", "loads_collided"),
    ("commit", "commit_failed"),
    ("commit", "outcome_unknown"),
    ("task", "failed"),
)
SPARK_PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def _each(*values: str) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


_counter, _gauge, _histogram = (partial(Metric, kind) for kind in MetricKind)

METRICS = (
    # right
    _counter(
        "integrity_violations_total",
        "Proofs that readers saw, or could see, wrong data. Above 0: stop the job and investigate.",
        ("kind",),
        _each(*VIOLATIONS),
    ),
    _gauge("in_doubt_transactions", "StarRocks transactions whose commit may or may not have taken effect.", (JOB,)),
    _counter(
        "source_transactions_total",
        "Source transactions: committed; dead_lettered; replayed (visible already); "
        "in the assembler abandoned, dropped by policy, or empty.",
        ("outcome",),
        _each(*SOURCE_OUTCOMES),
    ),
    _counter(
        "trusted_transactions_total",
        "Transactions of Debezium that a restart of the connector cut, released after open_timeout though no count "
        "proves that no row is missing.",
    ),
    _counter(
        "repeated_events_total",
        "Events that the assembler dropped because their position was read before: `same`, proved to be repeats, or "
        "`unknown`, not proved (yet); and `late`, of a transaction that was given up.",
        ("content",),
        _each(*REPEATS),
    ),
    _counter(
        "malformed_messages_total",
        'Raw messages that lanes left out because they are no event that can be read (`on_malformed="drop"`).',
    ),
    _gauge(
        "verified_timestamp_seconds",
        "Time of the last whole `verify`, read from the ledger each minute; no series without one.",
        (JOB,),
    ),
    _gauge(
        "verified_tables",
        "Tables of the last whole `verify` by result: `equal`, `different`, or `unproven`.",
        (JOB, "state"),
    ),
    _gauge("verified_different_rows", "Rows that the last whole `verify` has left as different.", (JOB,)),
    _gauge(
        "verified_info",
        "Always 1; the label holds the source's position of the last whole `verify`.",
        (JOB, "position"),
    ),
    # fresh
    _histogram(
        "end_to_end_latency_seconds",
        "Time from a source transaction's event time to its visibility in StarRocks. Needs the column event_time.",
    ),
    _gauge(
        "last_commit_timestamp_seconds",
        "Time at which the last StarRocks transaction was visible. 0 before the first.",
        (JOB,),
    ),
    _gauge("last_committed_batch_id", "Micro-batch of the last StarRocks transaction; -1 before the first.", (JOB,)),
    _gauge(
        "last_progress_timestamp_seconds",
        "Time of the last micro-batch that succeeded, of the end of its pause by freshness, or of the query's last "
        "report that it is idle. 0 before the first, and if the job is not expected to continue.",
        (JOB,),
    ),
    _gauge(
        "source_lag_rows",
        "Rows in each topic of Kafka that no ended micro-batch has read, asked every 5 seconds, also while one runs. "
        "No series while Kafka does not answer.",
        ("source",),
    ),
    _gauge(
        "source_lag_seconds",
        "Time for which the oldest of these rows has waited, counted from the driver's start at the earliest; "
        "0 if none waits.",
        ("source",),
    ),
    _gauge("freshness_goal_seconds", "The option freshness; no series without it.", (JOB,)),
    _gauge(
        "freshness_late_ratio",
        "Share of the newest rows that were visible later than freshness says, if they came evenly; above 0.01 it is "
        "missed.",
        (JOB,),
    ),
    _gauge("commit_pause_seconds", "Seconds for which the sink pauses behind the newest commit, by freshness.", (JOB,)),
    _gauge(
        "commit_interval_seconds",
        "Seconds from the newest micro-batch's start to the next one's, as freshness paces them.",
        (JOB,),
    ),
    _gauge(
        "database_running_transactions",
        "Running transactions of the database, of all loads but routine loads, asked about once a minute while "
        "micro-batches run. No series without the privilege OPERATE ON SYSTEM.",
        ("database",),
    ),
    _gauge(
        "database_transaction_limit",
        "The server's limit for them (max_running_txn_num_per_db): at it, begin and commit are refused.",
        ("database",),
    ),
    _gauge(
        "open_loads",
        "Loads that the StarRocks transactions of this driver's jobs have open at once, at most: one for each table of "
        "the largest, and the sink's own. Each holds a thread of a backend. No series as above.",
        ("database",),
    ),
    _gauge(
        "open_load_limit",
        "How many fit beside queries: beyond, micro-batches are split, and other writers of the server wait "
        "(pipeline_connector_scan_thread_num_per_cpu, less one for each core).",
        ("database",),
    ),
    _gauge(
        "tablet_rowsets",
        "The most rowsets that a tablet of the table has, asked every five minutes, with freshness each minute. No "
        "series as above.",
        ("table",),
    ),
    _gauge(
        "tablet_rowset_limit", "The backends' limit (tablet_max_versions): at it, loads are refused.", ("database",)
    ),
    # flow
    _counter("rows_total", "Rows that became visible, by table and operation (upsert, delete).", ("table", "op"), ()),
    _counter(
        "bytes_total",
        "Bytes of load bodies that the server accepted, as sent, by table and compression; includes StarRocks "
        "transactions that were rolled back later, and the ledger.",
        ("table", "encoding"),
    ),
    _histogram("transactions_per_commit", "Source transactions in one StarRocks transaction."),
    # anatomy
    _counter("commits_total", "StarRocks transactions by outcome.", ("outcome",), _each(*OUTCOMES)),
    _histogram(
        "commit_duration_seconds",
        "From the commit request until every row was visible (sum of commit, publish and recover).",
    ),
    _histogram(
        "phase_duration_seconds",
        "Time that a StarRocks transaction spent in each phase, over all attempts.",
        ("phase",),
        _each(*PHASES),
    ),
    _histogram("load_duration_seconds", "Duration of one accepted load.", ("table",)),
    _histogram("batch_duration_seconds", "Duration of a micro-batch in the sink."),
    # assembler
    _gauge(
        "open_source_transactions",
        "Source transactions without their END yet, in the source partitions with events in the last micro-batch.",
    ),
    _gauge(
        "oldest_open_transaction_timestamp_seconds",
        "Time at which the oldest open source transaction began, as seen by the driver; 0 if none is open.",
    ),
    _gauge("assembler_state_bytes", "Arrow bytes of the rows of open source transactions."),
    _gauge("open_source_rows", "Rows of open source transactions."),
    # saturation
    _gauge("inflight_loads", "Peak of concurrent loads in a lane of the last micro-batch."),
    _gauge("buffer_bytes", "Peak of bytes in the write buffer of a lane of the last micro-batch."),
    _gauge("buffer_limit_bytes", "Bound on buffer_bytes (the option buffer_bytes)."),
    _gauge(
        "open_starrocks_transactions",
        "StarRocks transactions that the running micro-batches have open: one a job.",
    ),
    _gauge(
        "transaction_age_ratio",
        "Highest age of a StarRocks transaction of the last micro-batch when it was visible, as a share of timeout.",
    ),
    _counter(
        "recycled_transactions_total",
        "StarRocks transactions committed early, because of their age: more of the micro-batch followed.",
    ),
    # errors
    _counter(
        "errors_total",
        "Errors by code, including those that a retry repaired. The runbook has a section for each code.",
        ("code",),
        _each(*CODES),
    ),
    _gauge(
        "outage_start_timestamp_seconds",
        "Time since which a micro-batch has waited for StarRocks. 0 if none waits.",
        (JOB,),
    ),
    _counter("failed_batches_total", "Failed micro-batches; Spark or its supervisor repeats them.", (JOB,)),
    _counter("query_restarts_total", "Further starts of the job's streaming query in this process.", (JOB,)),
    _gauge("query_start_timestamp_seconds", "Start of the job's streaming query.", (JOB,)),
    _counter("retries_total", "Retries by operation and reason.", ("operation", "reason"), RETRIES),
    _counter(
        "requests_total",
        "Requests of the lanes by operation and the reply's status, or the error's code if there was no reply.",
        ("operation", "status"),
        tuple((operation, Status.OK.value) for operation in OPERATIONS),
    ),
    _counter(
        "unknown_columns_total",
        "Names in JSON rows that are no columns of their table, so that the server drops their values.",
        ("table",),
    ),
    _counter(
        "schema_changes_total", "Statements that have altered or created a table (`schema_changes` apply).", ("table",)
    ),
    _gauge(
        "snapshot_tables",
        "Tables of the source's first snapshot by state: those that have begun, and those that are visible whole.",
        (JOB, "state"),
    ),
    _counter(
        "dead_letter_rows_total", "Rows written to the dead-letter table instead of their own.", ("table", "reason")
    ),
    # partitions
    _gauge("partition_position", "Last visible position of each source partition.", ("partition",)),
    _gauge(
        "event_time_skew_seconds",
        "Gap between the latest event times of the most and the least advanced source partition. Needs event_time.",
    ),
    _gauge(
        "source_partition_timestamp_seconds",
        "Highest event time in each partition of `balanced_kafka`, including unread rows.",
        ("partition",),
    ),
    _gauge(
        "source_read_until_timestamp_seconds",
        "Event time up to which `balanced_kafka` has read all partitions; 0 without one.",
    ),
    _gauge(
        "source_skew_seconds",
        "Gap between the highest event times of the most and the least advanced partition of `balanced_kafka`.",
    ),
    _gauge("source_held_back_rows", "Rows in Kafka that `balanced_kafka` has not read yet."),
    # Spark
    _counter("spark_input_rows_total", "Rows that Spark read from the sources, those of repeated attempts again."),
    _gauge(
        "spark_phase_duration_seconds",
        "Duration of each phase of Spark's last micro-batch.",
        ("phase",),
        _each(*SPARK_PHASES),
    ),
    _gauge("spark_state_rows", "Rows in Spark's state stores."),
    _gauge("spark_state_bytes", "Memory of Spark's state stores."),
    _gauge(
        "spark_watermark_timestamp_seconds",
        "Spark's event-time watermark; 0 without one. With `open_timeout` it is at most the time "
        "of the newest micro-batch with events.",
    ),
    _gauge("job_info", "Always 1; the labels hold the sink's job and its database.", (JOB, "database")),
    _gauge("build_info", "Always 1; the labels hold the versions.", ("version", "python", "spark")),
)

BY_NAME = {metric.name: metric for metric in METRICS}
