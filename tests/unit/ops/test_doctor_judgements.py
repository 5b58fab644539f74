"""What the doctor makes of what it saw: pure verdicts, each with what, why and what to do."""

from __future__ import annotations

import datetime
import json
import os
import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_ops.doctor import frontends, libraries, privileges, server, tables, target as reach
from starrocks_txn_ops.doctor.command import json_document, summary_line, text_lines
from starrocks_txn_ops.doctor.executors import judge_reports, judge_speculation
from starrocks_txn_ops.doctor.frontends import judge_members, judge_query_leader, judge_redirect, judge_refusal
from starrocks_txn_ops.doctor.libraries import installed_versions
from starrocks_txn_ops.doctor.tables import TableDefinition
from starrocks_txn_ops.doctor.target import Finding, Severity, Topic, exit_code
from starrocks_txn_sink import spark_version
from starrocks_txn_sink.errors import QueryRefused, SparkTooOld
from starrocks_txn_sink.http.connection import HttpResponse
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.options.redirects import RedirectRules
from starrocks_txn_sink.protocol.wire import Reply, Status
from starrocks_txn_sink.rows.partitions import can_create_partitions

GOOD, SKIPPED, WARNING, FAILURE = Severity.GOOD, Severity.SKIPPED, Severity.WARNING, Severity.FAILURE
RIGHT = {"python": "3.11.7", "pyspark": "4.3.0", "pandas": "2.3.3", "pyarrow": "18.0.0", "protobuf": "6.0"}
RIGHT |= {"starrocks-txn-sink": "0.1.0", "compiled loops": "yes"}


def complete(finding: Finding) -> Finding:
    """What is not good says why and what to do."""
    assert finding.what
    if finding.severity in (WARNING, FAILURE):
        assert finding.why
        assert finding.advice.rstrip(")}'").endswith(".")
    return finding


def severities(findings: Any) -> dict[str, Severity]:
    return {complete(finding).check: finding.severity for finding in findings}


# --- libraries ---


def test_the_libraries_of_this_environment_are_right() -> None:
    assert set(severities(libraries.judge_libraries(installed_versions(), "driver")).values()) == {GOOD}


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("python", "3.9.18"),
        ("pyspark", "3.4.4"),
        ("pyspark", "5.0.0"),
        ("pandas", "3.0.0"),
        ("pandas", "2.1.4"),
        ("pyarrow", "17.0.0"),
        ("protobuf", None),
        ("protobuf", "4.25.1"),
        ("starrocks-txn-sink", None),
    ],
)
def test_each_wrong_library_is_a_failure_of_its_own(name: str, version: str | None) -> None:
    by_check = severities(libraries.judge_libraries({**RIGHT, name: version}, "driver"))
    assert {check for check, severity in by_check.items() if severity is FAILURE} == {f"library.{name}"}


@pytest.mark.parametrize("place", ["driver", "an executor"])
def test_missing_loops_are_a_warning_with_the_way_to_have_them(place: str) -> None:
    findings = libraries.judge_libraries({**RIGHT, "compiled loops": None}, place)
    loops = [finding for finding in findings if finding.severity is not GOOD]
    assert [(finding.check, finding.severity) for finding in loops] == [("library.compiled", WARNING)]
    assert "C compiler" in loops[0].advice


def test_a_process_says_whether_it_has_the_loops(loop: str) -> None:
    assert installed_versions()["compiled loops"] == ("yes" if loop == "compiled" else None)


# Of Databricks 15.4 and 16.4: `make matrix` runs on the older ones.
PLATFORM = RIGHT | {"pyspark": "3.5.0", "pandas": "1.5.3", "pyarrow": "14.0.1", "protobuf": "4.24.1"}


def test_the_libraries_of_a_platform_with_spark_3_are_right() -> None:
    assert set(severities(libraries.judge_libraries(PLATFORM, "driver")).values()) == {GOOD}


def test_spark_3_has_no_state_that_needs_protobuf() -> None:
    by_check = severities(libraries.judge_libraries({**PLATFORM, "protobuf": None}, "driver"))
    assert {check for check, severity in by_check.items() if severity is not GOOD} == {"library.protobuf"}
    assert by_check["library.protobuf"] is SKIPPED


@pytest.mark.parametrize(
    ("spark", "wrong"),
    [("3.5.9", set()), ("4.0.1", {"pandas", "protobuf"}), ("4.1.0", {"pandas", "protobuf", "pyarrow"})],
)
def test_a_newer_spark_needs_newer_libraries(spark: str, wrong: set[str]) -> None:
    by_check = severities(libraries.judge_libraries({**PLATFORM, "pyspark": spark}, "driver"))
    assert {check for check, severity in by_check.items() if severity is FAILURE} == {
        f"library.{name}" for name in wrong
    }


def test_the_doctor_asks_for_no_more_than_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    least = dict(re.findall(r"^(\w+)>=([\d.]+)", "\n".join(requirements), re.MULTILINE))
    minimums = {need.name: ".".join(map(str, need.least)) for need in libraries.REQUIREMENTS if need.least}
    assert minimums == {name: least[name] for name in minimums}


@pytest.mark.parametrize(
    ("version", "severity"),
    [("17.0.15", GOOD), ("21", GOOD), ("1.8.0_392", FAILURE), ("11.0.2", FAILURE), (None, FAILURE), ("odd", FAILURE)],
)
def test_the_jdk_is_17_or_newer(version: str | None, severity: Severity) -> None:
    assert complete(libraries.judge_java(version, "driver")).severity is severity


def test_spark_3_takes_an_older_jdk() -> None:
    assert complete(libraries.judge_java("11.0.2", "driver", "3.5.9")).severity is GOOD
    assert complete(libraries.judge_java("1.7.0_80", "driver", "3.5.9")).severity is FAILURE


def test_every_feature_says_whether_this_spark_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.severity for finding in libraries.check_spark_features()} == {GOOD}
    monkeypatch.setattr(spark_version, "SPARK", (4, 0))
    complete_findings = [
        complete(finding) for finding in libraries.check_spark_features() if finding.severity is Severity.SKIPPED
    ]
    assert [finding.what for finding in complete_findings] == [
        f"{feature.name}: needs Spark {least}. {feature.instead}"
        for feature, least in (
            (spark_version.STREAMS_OF_DATA_SOURCE, "4.1"),
            (spark_version.BALANCED_READING, "4.2"),
        )
    ]
    with pytest.raises(SparkTooOld, match=r'readStream.*needs Spark 4\.2; this is .*readStream\.format\("kafka"\)\.'):
        spark_version.require(spark_version.BALANCED_READING)


def test_a_jdk_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert libraries.java_version(str(tmp_path)) is None


def test_executors_with_another_python_or_another_sink_are_failures() -> None:
    other_host = {**RIGHT, "python": "3.12.1", "starrocks-txn-sink": "0.2.0"}
    assert severities(libraries.judge_same_versions(RIGHT, other_host, "executor")) == {
        "library.python": FAILURE,
        "library.starrocks-txn-sink": FAILURE,
    }
    assert not list(libraries.judge_same_versions(RIGHT, {**RIGHT, "python": "3.11.9"}, "executor"))


# --- names and ports, redirects ---


def test_a_name_that_does_not_resolve_and_a_closed_port_are_different_findings() -> None:
    endpoint = reach.ServerPort("backend", "be1", 8040)
    unresolved = endpoint.judge((), "Name or service not known", 0.1, "driver")
    closed = endpoint.judge(("10.0.0.1",), "Connection refused", 0.1, "driver")
    opened = endpoint.judge(("10.0.0.1",), "", 0.1, "driver")
    assert [complete(finding).check for finding in (unresolved, closed, opened)] == ["name.resolution", "port", "port"]
    assert [finding.severity for finding in (unresolved, closed, opened)] == [FAILURE, FAILURE, GOOD]
    assert "redirect_map={'be1:8040'" in closed.advice


RULES = RedirectRules.of((Address("http", "fe1", 8030),), {"be2:8040": "proxy:18040"}, ("be1",))


@pytest.mark.parametrize(
    ("host", "severity", "message"),
    [
        ("be1", GOOD, "allowed"),
        ("fe1", GOOD, "allowed"),
        ("be2", GOOD, "rewritten to http://proxy:18040"),
        ("be3", FAILURE, "neither"),
    ],
)
def test_a_redirect_is_judged_as_the_sink_will(host: str, severity: Severity, message: str) -> None:
    finding = complete(judge_redirect("backend.redirect", Address("http", host, 8040), RULES, "the backend", "t"))
    assert finding.severity is severity
    assert message in finding.what
    assert severity is GOOD or "redirect_hosts=['be3']" in finding.advice


def test_show_frontends_refused_matters_only_when_require_leader_is_looked_up() -> None:
    assert "find_leader=False" in complete(judge_refusal(QueryRefused("denied"), True)).advice
    assert judge_refusal(QueryRefused("denied"), False).severity is GOOD


def test_a_dead_frontend_and_a_missing_leader_are_reported() -> None:
    alive = {"ip": "fe1", "queryport": "9030", "role": "LEADER", "alive": "true", "name": "a"}
    dead = {"ip": "fe2", "queryport": "9030", "role": "FOLLOWER", "alive": "false", "name": "b"}
    assert severities(judge_members([alive, dead]))["frontend.alive"] is WARNING
    assert severities(judge_members([dead]))["frontend.leader"] is FAILURE


def test_the_leaders_query_port_is_judged_as_the_sink_will() -> None:
    rules = RedirectRules.of((Address("http", "fe1", 8030),), {"fe3:9030": "proxy:19030"}, ("be1",))
    assert rules.query_target("FE3", 9030) == Address("mysql", "proxy", 19030)
    for host, allowed in {"fe1": True, "fe3": True, "be1": True, "evil": False}.items():
        finding = complete(judge_query_leader(rules.query_target(host, 9030), rules))
        assert finding.severity is (GOOD if allowed else FAILURE)
        assert allowed or "redirect_hosts=['evil']" in finding.advice


def test_a_server_of_an_old_release_among_new_ones_is_reported() -> None:
    rows = [{"ip": "be1", "version": "4.1.2-a"}, {"ip": "be2", "version": "3.5.1-b"}, {"ip": "be3", "version": ""}]
    assert [complete(finding).place for finding in server.judge_versions(rows, "backend")] == ["be2"]


# --- the server ---


@pytest.mark.parametrize(
    ("version", "named"), [("4.1.1-ad83983", True), ("4.1.2", True), ("4.1.3", False), ("4.0.9", False)]
)
def test_a_release_that_lists_committed_labels_is_told_how_commands_leave_them_out(version: str, named: bool) -> None:
    """Wire contract 4.15."""
    assert ("--load-url" in server.judge_version(version).what) is named


@pytest.mark.parametrize(
    ("version", "severity"),
    [("4.0.7", GOOD), ("4.1.2-ee", GOOD), ("4.0.6", FAILURE), ("4.1.0", FAILURE), ("3.5.3", FAILURE), ("x", FAILURE)],
)
def test_the_servers_version(version: str, severity: Severity) -> None:
    assert complete(server.judge_version(version)).severity is severity
    allowed = complete(server.judge_version(version, unreleased=True)).severity
    assert allowed is (GOOD if version == "x" else severity)


def test_the_clock_is_compared_with_what_the_question_took() -> None:
    assert server.judge_clock(4.0, 3.0, "it").severity is GOOD
    behind = complete(server.judge_clock(-60.0, 0.1, "it"))
    assert (behind.severity, "60 s behind" in behind.what) == (WARNING, True)


@given(st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2100, 1, 1)))
def test_a_servers_time_is_read_as_value_and_as_text(moment: datetime.datetime) -> None:
    expected = moment.replace(tzinfo=datetime.timezone.utc).timestamp()
    assert server.epoch_seconds(moment) == server.epoch_seconds(f"{moment}") == server.epoch_seconds(f"{moment}+00:00")
    assert server.epoch_seconds(moment) == expected


@pytest.mark.parametrize("text", [None, "later", 7])
def test_a_time_that_is_none_is_none(text: object) -> None:
    assert server.epoch_seconds(text) is None


@pytest.mark.parametrize(("running", "severity"), [(0, GOOD), (79, GOOD), (80, WARNING), (99, WARNING), (100, FAILURE)])
def test_head_room_for_running_transactions(running: int, severity: Severity) -> None:
    finding = server.judge_headroom(running, {"max_running_txn_num_per_db": "100"})
    assert complete(finding).severity is severity
    assert server.judge_headroom(running, {}).severity is SKIPPED


def test_retention_matters_to_an_old_checkpoint_without_a_ledger() -> None:
    config = {"label_keep_max_second": "259200", "label_keep_max_num": "1000"}

    def judged(days: float, exactly_once: bool) -> Severity:
        return severities(server.judge_retention(config, days * 86_400, exactly_once))["checkpoint.age"]

    assert (judged(1, False), judged(4, True), judged(4, False)) == (GOOD, GOOD, WARNING)
    few = severities(server.judge_retention({"label_keep_max_num": "10"}, None, True))
    assert few == {"label.retention": WARNING}


def test_a_checkpoints_age_is_that_of_its_newest_commit(tmp_path: Path) -> None:
    assert server.checkpoint_age(str(tmp_path), 1000.0) is None
    (tmp_path / "commits").mkdir()
    for name, at in (("0", 100), ("1", 400), (".1.crc", 900)):
        (tmp_path / "commits" / name).touch()
        os.utime(tmp_path / "commits" / name, (at, at))
    assert server.checkpoint_age(str(tmp_path), 1000.0) == 600.0
    assert server.checkpoint_age(f"file://{tmp_path}", 1000.0) == 600.0


def test_a_transaction_that_is_refused_says_what_the_server_said() -> None:
    limit = Reply(Status.FAILED, "current running txns on db 1 is 1000, larger than limit 1000")
    finding = complete(frontends.judge_begin(limit, "shop"))
    assert "larger than limit" in finding.what
    assert "max_running_txn_num_per_db" in finding.advice
    assert complete(frontends.judge_rollback(Reply(Status.FAILED, "no"))).severity is FAILURE


def test_a_label_that_a_take_over_would_not_find_is_a_warning() -> None:
    assert frontends.judge_listed(True).severity is GOOD
    finding = complete(frontends.judge_listed(False))
    assert finding.severity is WARNING
    assert "see its own loads" in finding.advice


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (HttpResponse(200, None, b'{"Status":"FAILED","Message":"no such table"}'), "no such table"),
        (
            HttpResponse(
                200,
                None,
                b'{"Status":"FAILED","Message":"STREAM_LOAD_TASK:7, label{L}, '
                b'error_msg{cancel stream task for exception: Column has no default value. column: n}"}',
            ),
            "refused the load into orders: Column has no default value. column: n.",
        ),
        (HttpResponse(200, None, b'{"Status":"OK","Message":""}'), "followed the redirect"),
        (HttpResponse(502, None, b"<html>"), "HTML"),
    ],
)
def test_a_load_that_is_not_redirected_is_a_failure(answer: HttpResponse, message: str) -> None:
    finding = complete(frontends.judge_refused_load("orders", answer))
    assert (finding.severity, finding.place) == (FAILURE, "orders")
    assert message in finding.what


# --- tables ---


@pytest.mark.parametrize(
    ("create", "creates"),
    [
        ("CREATE TABLE t (d date) PARTITION BY date_trunc('day', `d`) DISTRIBUTED BY HASH(d)", True),
        ("CREATE TABLE t (d date)\nPARTITION BY (`d`)\nDISTRIBUTED BY HASH(d)", True),
        ("CREATE TABLE t (d date) partition by `d`", True),
        ("CREATE TABLE t (d date)\nPARTITION BY RANGE(`d`)\n(PARTITION p1 VALUES LESS THAN ('2024-01-01'))", False),
        ("CREATE TABLE t (d date) PARTITION BY LIST(`d`)(PARTITION p1 VALUES IN ('a'))", False),
        ("CREATE TABLE t (d date) DISTRIBUTED BY HASH(d)", False),
    ],
)
def test_tables_whose_loads_create_partitions(create: str, creates: bool) -> None:
    assert (TableDefinition("t", "DUP_KEYS", False, create).partitioning is not None) is creates


@pytest.mark.parametrize(
    ("version", "can_create"),
    [
        ("4.0.7", False),
        ("4.0.14", False),
        ("4.0.15", True),
        ("4.1.4-ee", False),
        ("4.1.5", True),
        ("4.2.0", True),
        ("5.0.0", True),
        ("3.5.1", False),
        ("", False),
        ("main", False),
    ],
)
def test_versions_that_create_partitions_in_a_multi_table_load(version: str, can_create: bool) -> None:
    assert can_create_partitions(version) is can_create


def test_a_random_table_is_a_warning_on_an_old_server_and_fine_on_a_new_one() -> None:
    table = TableDefinition("t", "DUP_KEYS", True, "CREATE TABLE t (id int) DISTRIBUTED BY RANDOM")
    assert severities(tables.judge_partitions(table, "4.0.7")) == {"table.partitions": WARNING}
    assert severities(tables.judge_partitions(table, "4.1.9")) == {"table.partitions": GOOD}
    assert not list(tables.judge_partitions(TableDefinition("t", "DUP_KEYS", False), "4.0.7"))


@pytest.mark.parametrize(
    ("clause", "partitions", "limit", "severity", "said"),
    [
        ("date_trunc('day', d)", 31, 32, GOOD, "the table has 31, a load opens 32"),
        ("date_trunc('day', d)", 32, 32, WARNING, "has 32 partitions, and a load opens the newest 32"),
        ("date_trunc('day', d)", 500, None, GOOD, "is not known: OPERATE ON SYSTEM"),
        ("(`kind`)", 500, 0, GOOD, "a load opens 0"),
        ("time_slice(d, 7, 'day', 'floor')", 1, 32, WARNING, "no statement with which the sink could make them"),
        ("time_slice(d, 7, 'day', 'floor')", 0, 32, FAILURE, "no statement with which the sink could make them"),
        ("date_trunc('day', d), kind", 1, 32, FAILURE, "no statement with which the sink could make them"),
    ],
)
def test_automatic_partitions(clause: str, partitions: int, limit: int | None, severity: Severity, said: str) -> None:
    table = TableDefinition("t", "DUP_KEYS", False, f"CREATE TABLE `t` (\n) ENGINE=OLAP\nPARTITION BY {clause}\n")
    (finding,) = tables.judge_partitions(table, "4.1.1-ad83983", partitions, limit)
    assert finding.severity is severity
    assert said in finding.what
    if severity is WARNING and partitions >= 32:
        assert "('max_load_initial_open_partition_number' = '100')" in finding.advice


LAKE = TableDefinition("t", "PRIMARY_KEYS", False, engine="CLOUD_NATIVE", key=("id",))


def options_with(**settings: Any) -> SinkOptions:
    return SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop", **settings)


@pytest.mark.parametrize(
    ("version", "swaps"),
    [("4.0.7", True), ("4.0.20", True), ("4.1.3-ee", True), ("4.1.4", False), ("4.2.0", False), ("main", True)],
)
def test_versions_that_swap_changes_of_a_key_in_shared_data_tables(version: str, swaps: bool) -> None:
    by_check = severities(tables.judge_order(LAKE, version, options_with(compact=False)))
    assert by_check == ({"table.order": WARNING} if swaps else {})


@pytest.mark.parametrize(
    ("settings", "severity", "message"),
    [
        ({}, GOOD, "one row per key"),
        ({"compact": False}, WARNING, "compact is off"),
        ({"tables": {"t": TableOptions(properties={"where": "id > 1"})}}, WARNING, "filter the last row"),
        ({"tables": {"other": TableOptions(properties={"where": "id > 1"})}}, GOOD, "one row per key"),
        ({"properties": {"columns": "k, `ID` = k + 1"}}, WARNING, "the server computes the key"),
        ({"properties": {"columns": "id, note = upper(id)"}}, GOOD, "one row per key"),
    ],
)
def test_a_table_whose_changes_can_be_swapped_matters_only_if_all_rows_are_sent(
    settings: dict[str, Any], severity: Severity, message: str
) -> None:
    (finding,) = tables.judge_order(LAKE, "4.1.3", options_with(**settings))
    assert (complete(finding).severity, finding.place) == (severity, "t")
    assert message in finding.what


@pytest.mark.parametrize(
    "table",
    [
        TableDefinition("t", "PRIMARY_KEYS", False, "CREATE TABLE t (id int)"),
        TableDefinition("t", "DUP_KEYS", False, engine="CLOUD_NATIVE"),
    ],
)
def test_tables_on_local_disks_and_without_deletes_have_nothing_to_swap(table: TableDefinition) -> None:
    assert not list(tables.judge_order(table, "4.0.7", options_with(compact=False)))


def test_a_table_is_read_from_its_row_and_its_statement() -> None:
    row = {"table_name": "t", "table_engine": "OLAP", "table_model": "PRIMARY_KEYS", "primary_key": "`id`, `b`"}
    table = TableDefinition.of({**row, "distribute_type": "RANDOM"}, 'PROPERTIES ("storage_volume" = "builtin")')
    assert (table.key, table.random_buckets, table.shared_data) == (("id", "b"), True, True)
    assert not TableDefinition.of({**row, "distribute_type": "HASH"}, "").shared_data


@pytest.mark.parametrize(
    ("model", "severity"),
    [("PRIMARY_KEYS", GOOD), ("DUP_KEYS", GOOD), ("UNIQUE_KEYS", WARNING), ("AGG_KEYS", WARNING)],
)
def test_models(model: str, severity: Severity) -> None:
    assert complete(tables.judge_model(TableDefinition("t", model, False))).severity is severity


def test_tables_that_are_missing_or_no_tables() -> None:
    findings = tables.judge_names(["a", "v", "gone"], {"a", "v"}, {"a"}, "shop")
    assert {complete(finding).place: finding.check for finding in findings} == {
        "v": "table.model",
        "gone": "table.missing",
    }


# --- privileges ---

GRANTS = [
    "GRANT 'reader', 'writer' TO 'etl'@'%'",
    "GRANT SELECT, INSERT ON TABLE shop.orders, shop.items TO ROLE 'writer'",
    "GRANT CREATE TABLE ON DATABASE shop TO ROLE 'writer'",
    "GRANT INSERT ON ALL TABLES IN DATABASE lake TO USER 'etl'@'%'",
    "GRANT ALL ON TABLE bank.ledger TO USER 'etl'@'%'",
]


@pytest.mark.parametrize(
    ("privilege", "database", "table", "allowed"),
    [
        ("INSERT", "shop", "orders", True),
        ("INSERT", "shop", "items", True),
        ("INSERT", "shop", "events", False),
        ("INSERT", "shops", "orders", False),
        ("INSERT", "shop", "Orders", False),
        ("INSERT", "Lake", "anything", False),
        ("CREATE TABLE", "Shop", None, False),
        ("INSERT", "lake", "anything", True),
        ("INSERT", "bank", "ledger", True),
        ("DELETE", "shop", "orders", False),
        ("CREATE TABLE", "shop", None, True),
        ("CREATE TABLE", "lake", None, False),
    ],
)
def test_privileges_are_read_from_grants(privilege: str, database: str, table: str | None, allowed: bool) -> None:
    assert privileges.is_granted(privilege, database, table, GRANTS) is allowed


@pytest.mark.parametrize("grant", ["GRANT 'root' TO 'root'@'%'", "GRANT 'reader', 'db_admin' TO 'etl'@'%'"])
def test_the_servers_own_roles_may_do_everything(grant: str) -> None:
    assert privileges.is_granted("INSERT", "shop", "orders", [grant]) is True


@pytest.mark.parametrize("place", ["ALL TABLES IN ALL DATABASES", "ALL DATABASES"])
def test_grants_on_all_databases(place: str) -> None:
    grants = [f"GRANT INSERT ON {place} TO USER 'etl'@'%'", f"GRANT CREATE TABLE ON {place} TO USER 'etl'@'%'"]
    assert privileges.is_granted("INSERT", "shop", "orders", grants) is place.startswith("ALL TABLES")
    assert privileges.is_granted("CREATE TABLE", "shop", None, grants) is (place == "ALL DATABASES")
    everything = [f"GRANT ALL ON {place} TO USER 'etl'@'%'"]
    assert privileges.is_granted("CREATE TABLE", "shop", None, everything) is (place == "ALL DATABASES")


def test_grants_that_cannot_be_read_are_not_guessed() -> None:
    assert privileges.is_granted("INSERT", "shop", "orders", None) is None
    assert privileges.judge_insert(None, "orders").severity is SKIPPED
    assert complete(privileges.judge_insert(False, "orders")).severity is WARNING
    assert privileges.judge_alter(None, "orders").severity is SKIPPED
    assert privileges.judge_alter(True, "orders").severity is GOOD
    assert complete(privileges.judge_alter(False, "orders")).severity is WARNING


@pytest.mark.parametrize(
    ("allowed", "is_wanted", "severity"),
    [(True, True, GOOD), (False, True, FAILURE), (None, True, SKIPPED), (True, False, FAILURE)],
)
def test_a_ledger_that_is_not_there_must_be_creatable(
    allowed: bool | None, is_wanted: bool, severity: Severity
) -> None:
    assert complete(privileges.judge_ledger_create(allowed, is_wanted)).severity is severity


# --- executors ---


def report(host: str, clock: float = 100.0, **libraries: str) -> dict[str, Any]:
    place = f"executor on {host}"
    probe = reach.ServerPort("backend", "be1", 8040).judge((), "Name or service not known", 0.1, place)
    return {
        "host": host,
        "clock": clock,
        "libraries": {**installed_versions(), **libraries},
        "probes": [json.loads(json.dumps(asdict(probe)))],
    }


def test_each_executors_host_is_reported_once_with_its_place() -> None:
    findings = [complete(finding) for finding in judge_reports([report("a"), report("a"), report("b")], 99.0, 101.0)]
    assert [finding.place for finding in findings if finding.check == "name.resolution"] == [
        "executor on a",
        "executor on b",
    ]
    assert findings[-1] == Topic("executor.spark").good("3 task(s) ran on 2 host(s)")


def test_an_executors_clock_and_libraries_are_judged() -> None:
    by_check = severities(judge_reports([report("a", 160.0, pandas="3.0.1", python="3.12.0")], 99.0, 101.0))
    assert (by_check["executor.clock"], by_check["library.pandas"], by_check["library.python"]) == (
        WARNING,
        FAILURE,
        FAILURE,
    )
    assert severities(judge_reports([], 0.0, 1.0)) == {"executor.spark": FAILURE}


def test_another_versions_report_is_named_before_what_cannot_be_read_in_it() -> None:
    foreign = {**report("a", 100.0, **{"starrocks-txn-sink": "0.0.1"}), "probes": [{"endpoint": {}, "seconds": 0.1}]}
    findings = judge_reports([foreign], 99.0, 101.0)
    finding = next(finding for finding in findings if finding.severity is FAILURE)
    assert (finding.check, finding.place) == ("library.starrocks-txn-sink", "executor on a")


# --- what is shown ---

SOME = [
    Topic("a").good("fine"),
    Topic("b").skip("not looked at"),
    Topic("c", "be1").warning("Hm.", "Because.", "Do this."),
    Topic("d").failure("Broken.", "Because.", "Do that."),
]


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 0), (3, 1), (4, 3)])
def test_the_exit_code_is_that_of_the_worst(count: int, code: int) -> None:
    assert exit_code(SOME[:count]) == code
    assert json_document([("s", finding) for finding in SOME[:count]])["exit_code"] == code


def test_a_person_reads_what_why_and_what_to_do() -> None:
    text = "\n".join(line for finding in SOME for line in text_lines("section", finding, finding is SOME[0]))
    assert text.startswith("section\n  ok   a: fine")
    assert "  WARN c: Hm.  [be1]\n       Why: Because.\n       Do:  Do this." in text
    assert summary_line(SOME) == "A job would fail. 1 failed, 1 warned, 1 good, 1 not checked."


@pytest.mark.parametrize(("setting", "warned"), [("true", True), ("TRUE", True), ("false", False)])
def test_copies_of_slow_tasks_are_warned_of(setting: str, warned: bool) -> None:
    findings = [complete(finding) for finding in judge_speculation(setting)]
    assert [finding.severity for finding in findings] == ([Severity.WARNING] if warned else [])
