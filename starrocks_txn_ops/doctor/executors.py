"""Executors: a small Spark job reads their libraries and clocks, and probes all endpoints from them."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from starrocks_txn_ops.doctor import libraries
from starrocks_txn_ops.doctor.server import judge_clock
from starrocks_txn_ops.doctor.target import Finding, ServerPort, Severity, Target, Topic
from starrocks_txn_sink.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = pa.schema([pa.field("seen", pa.string())])
_WHY = "Lanes run as Python tasks on the executors."


@dataclass(frozen=True, slots=True)
class ExecutorProbe:
    """Function of each task: probes every endpoint, lists the libraries, reads the clock. Picklable."""

    endpoints: tuple[ServerPort, ...]
    timeout: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        host = socket.gethostname()
        report = {
            "host": host,
            "clock": SystemClock().wall(),
            "libraries": libraries.installed_versions(),
            "probes": [asdict(endpoint.probe(self.timeout, _on(host))) for endpoint in self.endpoints],
        }
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(report)])], schema=_SCHEMA)


def check_executors(target: Target) -> Iterator[Finding]:
    """Run the job with `target.executors` tasks and report each host once."""
    if target.executors is None:
        yield Topic("executor").skip("not checked (--no-spark)")
        return
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        yield Topic("executor").skip("pyspark is not installed here")
        return
    try:
        session, own_session = _session(SparkSession, target)
    except Exception as error:  # PySpark raises many kinds when no JVM starts
        yield judge_broken(error, "Spark does not start")
        return
    try:
        yield libraries.judge_java(_java_of(session), "Spark's driver", session.version)
        yield from judge_speculation(str(session.conf.get("spark.speculation", "false")))
        clock = SystemClock()
        start = clock.wall()
        task = ExecutorProbe(tuple(dict.fromkeys(target.endpoints)), target.options.connect_timeout)
        tasks = session.range(0, target.executors, 1, target.executors)
        rows = tasks.mapInArrow(task, "seen string").collect()
        yield from judge_reports([json.loads(row[0]) for row in rows], start, clock.wall())
    except Exception as error:  # a dying worker surfaces as many kinds of error
        yield judge_broken(error, "The Spark job failed")
    finally:
        if own_session:
            session.stop()


def judge_speculation(setting: str) -> Iterator[Finding]:
    """A warning if Spark starts copies of slow tasks; pure."""
    if setting.lower() == "true":
        yield Topic("executor.speculation").warning(
            "spark.speculation is on.",
            "A copy of a slow lane reads the lane's rows a second time and loads nothing, and each lane costs two more "
            "requests, so that Spark's copies exclude each other. Rows stay right.",
            "Set spark.speculation to false for this application.",
        )


def judge_broken(error: Exception, subject: str) -> Finding:
    """Finding for a Spark error, with the first line of its message; pure."""
    words = str(error).strip().splitlines()[:1]
    return Topic("executor.spark").failure(
        f"{subject}: {type(error).__name__}: {' '.join(words)[:200]}",
        _WHY,
        "Check JAVA_HOME, PYSPARK_PYTHON (its Python needs pandas, pyarrow, protobuf) and the cluster's own log.",
    )


def _on(host: str) -> str:
    return f"executor on {host}"


def judge_reports(reports: list[dict[str, Any]], start: float, end: float) -> Iterator[Finding]:
    """Findings for the tasks' reports, each host once; clocks must lie in [start, end]; pure."""
    driver, hosts = libraries.installed_versions(), set()
    for report in reports:
        place = _on(report["host"])  # every version's report has `host`; the next lines name a difference
        if place in hosts:
            continue
        hosts.add(place)
        yield from libraries.judge_libraries(report["libraries"], place)
        yield from libraries.judge_same_versions(driver, report["libraries"], place)
        lead = report["clock"] - min(max(report["clock"], start), end)  # 0 inside of [start, end]
        yield judge_clock(lead, 0.0, "the executor's clock", place)
        for finding in report["probes"]:
            yield Finding(**{**finding, "severity": Severity(finding["severity"])})
    if not reports:
        yield Topic("executor.spark").failure("The Spark job returned nothing.", _WHY, "Read the cluster's own log.")
    else:
        yield Topic("executor.spark").good(f"{len(reports)} task(s) ran on {len(hosts)} host(s)")


def _session(spark: type[SparkSession], target: Target) -> tuple[SparkSession, bool]:
    """The active session or a new one, and whether the session is new, so that the doctor has to stop it."""
    active = spark.getActiveSession()
    if active is not None:
        return active, False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = spark.builder.appName("starrocks-txn-sink doctor").config("spark.ui.showConsoleProgress", "false")
    if target.master is not None:
        builder = builder.master(target.master)
    elif "SPARK_CONNECT_MODE_ENABLED" not in os.environ and "SPARK_REMOTE" not in os.environ:
        builder = builder.config("spark.ui.enabled", "false")
    return builder.getOrCreate(), True


def _java_of(session: SparkSession) -> str | None:
    jvm = getattr(session, "_jvm", None)
    return str(jvm.java.lang.System.getProperty("java.version")) if jvm is not None else None
