"""`starrocks-txn-sink sync FILE`: a whole database from the topics of a connector, described by a file.

The command makes the objects that a pipeline in Python has, creates the tables, and runs the query until it is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from starrocks_txn_ops import command_line
from starrocks_txn_ops.sync.settings import LEFT_OUT, Sync, read_sync
from starrocks_txn_ops.sync.talk import Talk, count_of, quiet_children
from starrocks_txn_ops.sync.transactions import judge_transactions, needs_transactions
from starrocks_txn_sink.clock import SystemClock, parse_duration
from starrocks_txn_sink.errors import InputError, PartitionClosed
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.sink.schema.source_tables import KeyedMessage, TablePlan, sources_of
from starrocks_txn_sink.sources.formats.tables import route_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from starrocks_txn_ops.doctor.target import Finding

_KAFKA: Final = "kafka."
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, whose JVM has its archives already
_MASTER: Final = re.compile(r"^[ \t]*spark\.master(?:[ \t]*[=:][ \t]*|[ \t]+)(\S+)", re.MULTILINE)
_PROGRESS_BAR: Final = "spark.ui.showConsoleProgress"
_ARCHIVES: Final = ("spark.jars", "spark.jars.packages")
_NEEDS: Final = ("backend.threads", "table.partitions")
"""Findings that a job meets only once it has many tables, or old rows."""
_LISTS: Final = {
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
    "spark.jars.excludes": ",",
}
"""By their separators. What FILE has comes after the recommended ones: the JVM takes the later of two options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file, which has all but the command's own options."""
    parser.add_argument("file", metavar="FILE", help="the settings, in TOML")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the DDL, the routes, the options and the doctor's verdict, and end",
    )
    command_line.add_shared_arguments(
        parser, deadline={"default": 600.0, "help": "seconds for the tables (default %(default)g)"}
    )


def run(args: argparse.Namespace) -> int:
    """Print what the file describes, or run it; raises StarRocksSinkError for a file or a table that cannot work."""
    from starrocks_txn_sink.spark_version import require_java

    sync = read_sync(args.file)
    if not args.dry_run and _SUBMITTED not in os.environ:
        require_java()  # before a table is created
    judges = args.dry_run and needs_transactions(sync)
    messages = [*newest(sync, args.deadline)] if sync.create or judges else []
    plan = planned(sync, messages, args.deadline) if sync.create else None
    fit = True
    if args.dry_run:
        command_line.print_lines(text_lines(sync, plan))
        fit, lines = verdict(sync, plan, judge_transactions(sync, messages) if judges else None)
        command_line.print_lines(lines)
    if plan is not None and plan.refusals:
        for refusal in plan.refusals:
            sys.stderr.write(f"{refusal}\n")
        return 1
    if args.dry_run:
        return 0 if fit else 1
    if plan is not None:
        plan.alters = _alters(sync)
        plan.apply(lambda statement: command_line.print_lines([f"{statement};"]), args.deadline)
        for line in lacks(sync.options, tuple(plan.written)):
            sys.stderr.write(f"{line}\n")
    return start(sync, () if plan is None else tuple(plan.written))


def newest(sync: Sync, seconds: float) -> Iterator[KeyedMessage]:
    """The newest messages of the topics."""
    from starrocks_txn_sink.sources.kafka.newest import newest_messages  # the extra kafka
    from starrocks_txn_sink.sources.kafka.options import client_config

    own = {name.removeprefix(_KAFKA): value for name, value in sync.kafka.items() if name.startswith(_KAFKA)}
    config = {**client_config(own), "group.id": "starrocks-txn-sink"}  # required; no offset is committed
    return newest_messages(config, seconds, pattern=sync.topics, shared=sync.assembly.shares_topics)


def planned(sync: Sync, messages: Iterable[KeyedMessage], seconds: float) -> TablePlan:
    """The plan for the tables of the messages, with the layouts of their routes.

    Raises InputError without a table: nothing would be written.
    """
    assembly = sync.describing
    sources, left_out = sources_of(messages, sync.routes, [type(assembly)], assembly.registry)
    if not sources:
        hint = "Correct routes, include or exclude."
        raise InputError(f"No table of the source has a route: {', '.join(left_out)}.", hint=hint)
    layouts = {table: sync.layout_of(of[0].collection) for table, of in sources.items()}
    plan = TablePlan(sync.options, sources, left_out, layouts.__getitem__, rules=sync.assembly.rule_set)
    plan.make(seconds)
    return plan


def session(sync: Sync) -> SparkSession:
    """Spark's session: that of spark-submit, or a local one with Spark's Kafka source."""
    from pyspark.sql import SparkSession

    from starrocks_txn_ops.sync import own_jars
    from starrocks_txn_sink.writer.worker import settle_process

    local = _SUBMITTED not in os.environ and master_of(sync).startswith("local")
    if local:
        # Spark would take the python3 of PATH, which has no sink where nobody has activated the environment.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settle_process()  # as a worker does: a small micro-batch's lane runs in this process
    settings = session_settings(sync, local=local)
    packages = settings.get(own_jars.PACKAGES)
    jars = own_jars.kept(settings) if packages else ""
    known = {name: value for name, value in settings.items() if name != own_jars.PACKAGES} | {own_jars.JARS: jars}
    spark = SparkSession.builder.config(map=known if jars else settings).getOrCreate()
    if packages and not jars:
        own_jars.keep(settings, spark.conf.get(own_jars.JARS, "") or "")
    return spark


def session_settings(sync: Sync, *, local: bool) -> dict[str, bool | float | int | str | None]:
    """The session's settings: the recommended ones, with those of a `local` JVM of our own, under those of FILE."""
    import pyspark

    from starrocks_txn_ops.sync.own_jvm import own_settings
    from starrocks_txn_sink.spark_version import recommended_conf

    recommended, own = {**recommended_conf(preload=local), _PROGRESS_BAR: "false"}, dict(sync.spark)
    for given in (own_settings(own, sync.checkpoint) if local else {}, own):  # an empty text is a list without defaults
        for name, value in given.items():
            mark = _LISTS.get(name)
            recommended[name] = f"{recommended[name]}{mark}{value}" if mark and value else value
    if _SUBMITTED not in os.environ and not any(name in own for name in _ARCHIVES):
        scala = "2.12" if pyspark.__version__.startswith("3.") else "2.13"
        recommended["spark.jars.packages"] = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"
    return {**recommended}  # dict is invariant


def master_of(sync: Sync) -> str:
    """Spark's master: of FILE, else of Spark's own file of defaults, else this machine."""
    from starrocks_txn_sink.class_archive import conf_folder

    if "spark.master" in sync.spark:
        return str(sync.spark["spark.master"])
    with suppress(FileNotFoundError):
        named = _MASTER.search((conf_folder() / "spark-defaults.conf").read_text("utf-8"))
        return named[1] if named else "local"
    return "local"


def start(sync: Sync, tables: Sequence[str]) -> int:
    """Run the query until it ends or is stopped, and say how it does; returns the exit code of `run_forever`."""
    from starrocks_txn_sink.metrics.source_lag import LagWatch
    from starrocks_txn_sink.metrics.spark_progress import ProgressWatch
    from starrocks_txn_sink.sink.schema.plan import TableLayout
    from starrocks_txn_sink.sink.sink import StarRocksSink
    from starrocks_txn_sink.sink.supervisor import run_forever

    talk = Talk()
    spark = started(sync, talk)

    class SyncSink(StarRocksSink):
        def _layout_of(self, collection: str) -> TableLayout:
            return sync.layout_of(collection)

    sink = SyncSink(sync.options, assemble=sync.assembly, listener=talk)
    messages = spark.readStream.format("kafka").options(**sync.kafka).load()
    query = messages.writeStream.foreachBatch(sink).option("checkpointLocation", sync.checkpoint)
    if sync.trigger is not None:
        seconds = parse_duration(sync.trigger) or 0.0
        query = query.trigger(processingTime=f"{round(seconds * 1000)} milliseconds")
    if sync.until_end:
        query = query.trigger(availableNow=True)
    lag = LagWatch(spark, talk, SystemClock(), lambda _: True, talk.is_paused)  # Spark tells it once a micro-batch ends
    page = sink.metrics.url if sink.metrics is not None else ""  # it listens since the sink was made
    running = ", ".join(("running", *running_parts(sync, tables, page)))
    with closing(ProgressWatch(spark, talk)), closing(lag), talk.running(running):
        return run_forever(query.start)


def started(sync: Sync, talk: Talk) -> SparkSession:
    """Spark's session. On a terminal it starts quietly, if it starts here."""
    if not talk.on_terminal or _SUBMITTED in os.environ:
        return session(sync)
    with quiet_children(sync.options.job or sync.options.database, talk.say):
        return session(sync)


def running_parts(sync: Sync, tables: Sequence[str], page: str) -> Iterator[str]:
    """What a user wants to know of a query that starts: its tables, and the address of its page, if it has one."""
    if tables:
        yield count_of(len(tables), "table")
    yield f"into database {sync.options.database}"
    if page:
        yield f"page at {page}"
    yield "until all messages of the start are written" if sync.until_end else "Ctrl-C ends it"


def text_lines(sync: Sync, plan: TablePlan | None) -> Iterator[str]:
    """What the command would do: DDL as SQL, all else as comments in it."""
    yield f"-- topics: {sync.topics} of {sync.kafka['kafka.bootstrap.servers']}"
    for pattern, template in sync.routes:
        yield f"-- route: {pattern} -> {'left out' if template == LEFT_OUT else template}"
    for name, value in options_given(sync).items():
        yield f"-- target: {name} = {_as_in_the_file(value)}"
    policy = getattr(sync.assembly, "policy", None)
    if policy is not None and policy.open_timeout is not None:
        yield f"-- assembly: open_timeout = {policy.open_timeout:g} seconds"
    if plan is None:
        return
    for table, sources in plan.written.items():
        yield f"-- table: {', '.join(source.collection for source in sources)} -> {table}"
    yield from left_out_lines(sync, plan)
    for table, notes in plan.notes.items():
        yield from (f"-- {table}.{note}" for note in notes)
    yield from (f"-- {limit}" for limit in plan.limits)
    for rule in plan.tableless:
        yield f"-- rule: {rule.reason} yet"
    for change, statement in zip(plan.plan.changes, plan.statements, strict=True):
        comment = "" if change.creates or _alters(sync) else "-- not run, as schema_changes says: "
        yield f"{comment}{statement};"


def _alters(sync: Sync) -> bool:
    """Whether tables that are there are changed at the start, as they are while the query runs."""
    return sync.options.schema_changes is SchemaChanges.APPLY


def verdict(sync: Sync, plan: TablePlan | None, of_source: Finding | None = None) -> tuple[bool, list[str]]:
    """Whether a job would run, as `doctor` sees it without Spark, and its problems as comments in SQL.

    The finding `of_source` counts too, and has a line also where the check was skipped.
    """
    from starrocks_txn_ops.doctor import command as doctor
    from starrocks_txn_ops.doctor.target import Severity, Target, exit_code

    tables = tuple(plan.written) if plan is not None else ()
    findings = [] if of_source is None else [of_source]
    lines: list[str] = []
    if of_source is not None and of_source.severity is not Severity.GOOD:
        lines += doctor.text_lines("source", of_source, first=False)
    port = judge_port(sync.options)
    if port is not None:
        findings.append(port)
        lines += doctor.text_lines("target", port, first=False)
    place = sync.options.database, tables, sync.checkpoint, None, None
    with closing(Target(sync.options, *place, written=len(tables))) as target:
        for section, check in doctor.SECTIONS:
            for finding in doctor.examine(target, section, check):
                if finding.check == "table.missing" and finding.place in tables:
                    continue  # the plan creates it, or says why not
                findings.append(finding)
                if finding.severity in (Severity.WARNING, Severity.FAILURE):
                    lines += doctor.text_lines(section, finding, first=False)
    summary = doctor.summary_line(findings)
    return exit_code(findings) < 3, [f"-- doctor: {summary}", *(f"-- {line.strip()}" for line in lines)]


def judge_port(options: SinkOptions) -> Finding | None:
    """A warning if the port of the metrics cannot be listened at here; None without one, and if it can."""
    from starrocks_txn_ops.doctor.target import Topic

    if not options.metrics_port:
        return None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            options.metrics_host, options.metrics_port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
    except OSError as error:
        return Topic("metrics.port", str(options.metrics_port)).warning(
            f"Nothing can listen at {options.metrics_host}:{options.metrics_port} ({error.strerror}).",
            "The query would not start. If this very job runs here now, the port is its own.",
            "Set another metrics_port, one for each job of a machine.",
        )
    return None


def left_out_lines(sync: Sync, plan: TablePlan) -> Iterator[str]:
    """The source's tables that the file leaves out, and what becomes of those that it does not know."""
    unknown = [name for name in plan.left_out if route_of(sync.routes, name) is None]
    if left_out := [name for name in plan.left_out if name not in unknown]:
        yield f"-- left out: {', '.join(left_out)}"
    if unknown:
        assembly = sync.assembly
        fates = {
            "fail": "A row of such a table stops the query: add [[routes]] for it, or name it in exclude of [tables].",
            "skip": 'Their rows are skipped, by on_unknown_table = "skip".',
            "dead_letter": f"Their rows go into {assembly.dead_letter_table}.",
        }
        yield f"-- NO ROUTE: {', '.join(unknown)}. {fates[assembly.on_unknown_table]}"


def lacks(options: SinkOptions, tables: Sequence[str]) -> Iterator[str]:
    """Lines of what loads into these tables need of the server and it lacks: threads, and partitions that they open.

    Raises PartitionClosed for a table that could take no row.
    """
    from starrocks_txn_ops.doctor import command as doctor
    from starrocks_txn_ops.doctor.server import check_threads, check_version
    from starrocks_txn_ops.doctor.tables import check_tables
    from starrocks_txn_ops.doctor.target import Severity, Target

    with closing(Target(options, options.database, tables, written=len(tables))) as target:
        for name, section in (("version", check_version), ("tables", check_tables), ("limits", check_threads)):
            for finding in doctor.examine(target, name, section):
                if finding.check == "table.partitions" and finding.severity is Severity.FAILURE:
                    raise PartitionClosed(f"{finding.place}: {finding.what}", hint=finding.advice, table=finding.place)
                if finding.check in _NEEDS and finding.severity is Severity.WARNING:
                    yield from doctor.text_lines(name, finding, first=False)


def _as_in_the_file(value: Any) -> str:
    """A value of an option as a file of sync writes it; those that only a program can give as Python shows them."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    return json.dumps(value, default=repr)


def options_given(sync: Sync) -> Mapping[str, Any]:
    """The sink's options that differ from their defaults, without secrets."""
    options = sync.options
    values = {name: (getattr(options, name), of.default_for(options)) for name, of in declarations(type(options))}
    return {name: value for name, (value, default) in values.items() if value != default and name != "password"}
