"""`starrocks-txn-sink doctor` against the emulator: well, and with each fault planted."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Limits
from starrocks_txn_ops import cli
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.wire import Operation, Request, Status
from tests.support.http_peer import unused_port
from tests.support.query_port import query

PASSWORD = "secret-of-the-doctor"
PAGE = (Path(__file__).parents[3] / "docs" / "operations" / "checklist.md").read_text()
TABLES = (
    "CREATE TABLE shop.orders (id BIGINT, note VARCHAR(20)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.events (id BIGINT, day DATE) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
)
pytestmark = [
    pytest.mark.emulator(*TABLES, password=PASSWORD, followers=1, backends=2),
    pytest.mark.usefixtures("environment", "jdk"),
]


def plant_java(home: Path, version: str) -> Path:
    """A JDK that says its version, and takes no time."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture(scope="module")
def quick_jdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_java(tmp_path_factory.mktemp("jdk"), "17.0.9")


@pytest.fixture
def jdk(quick_jdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(quick_jdk))


class Visit:
    """One run: the exit code, and the findings that are not good, by check."""

    def __init__(self, server: Emulator, capsys: pytest.CaptureFixture[str], *words: str, **changes: str) -> None:
        place = {"--load-url": server.load_url, "--query-url": server.query_url, "--database": "shop"} | changes
        arguments = [word for pair in place.items() if pair[1] for word in pair]
        self.code = cli.main(["doctor", *arguments, "--password-environment", "SECRET", "--no-spark", "--json", *words])
        output = capsys.readouterr()
        assert PASSWORD not in output.out + output.err
        self.document = json.loads(output.out)
        self.findings = self.document["findings"]
        sections = {finding["section"] for finding in self.findings}
        for check in {finding["check"] for finding in self.findings} - sections:
            assert f"`{check}`" in PAGE, "every check is in docs/operations/checklist.md"

    def bad(self, severity: str | None = None) -> dict[str, dict[str, Any]]:
        severities = (severity,) if severity else ("warning", "failure")
        findings = {finding["check"]: finding for finding in self.findings if finding["severity"] in severities}
        assert all(finding["why"] and finding["advice"] for finding in findings.values())
        return findings

    def skipped(self) -> set[str]:
        return {finding["check"] for finding in self.findings if finding["severity"] == "skipped"}


Shown = pytest.CaptureFixture[str]


def query_fault(
    sql: str, *, rows: list[list[object]] | None = None, columns: list[str] | None = None
) -> dict[str, Any]:
    """Answer statements with other rows, or refuse them for lack of a privilege."""
    rule = {"operation": "query", "label": sql, "action": "answer"}
    if rows is None:
        return {**rule, "status": 5203, "body": "Access denied; you need more privileges for this operation"}
    return {**rule, "body": json.dumps({"columns": columns, "rows": rows})}


def test_a_healthy_server_has_nothing_in_the_way(
    server: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME")  # with the JDK of this machine
    visit = Visit(server, capsys, **{"--load-url": f"http://127.0.0.1:{server.follower_ports[0]},{server.load_url}"})
    assert (visit.code, visit.bad()) == (0, {})
    checks = {finding["check"] for finding in visit.findings}
    assert {
        "port",
        "sql.login",
        "frontend.redirect",
        "frontend.leader",
        "backend.redirect",
        "server.version",
        "transaction.begin",
        "transaction.rollback",
        "privilege.loads",
        "privilege.ledger",
        "privilege.insert",
        "privilege.operate",
        "table.model",
        "label.retention",
        "transaction.headroom",
        "server.clock",
        "library.pandas",
        "library.pyarrow",
        "library.protobuf",
        "library.java",
        "library.pyspark",
    } <= checks
    assert visit.document["counts"]["failure"] == 0


def test_nothing_is_left_on_the_server(server: Emulator, capsys: Shown) -> None:
    Visit(server, capsys)
    assert {state for (state,) in query(server, "SELECT STATE FROM information_schema.loads")} <= {"CANCELLED"}
    assert [row[0] for row in query(server, "SHOW TABLES FROM shop")] == ["events", "orders"]


def test_people_get_lines(server: Emulator, capsys: Shown) -> None:
    words = ["--load-url", server.load_url, "--query-url", server.query_url, "--database", "shop"]
    assert cli.main(["doctor", *words, "--password-environment", "SECRET", "--no-spark"]) == 0
    output = capsys.readouterr().out
    assert "  ok   server.version: StarRocks 4.0.7-emulator" in output
    assert output.splitlines()[-1].startswith("All checks passed. 0 failed, 0 warned,")


def test_a_frontend_that_is_down(server: Emulator, capsys: Shown) -> None:
    visit = Visit(server, capsys, **{"--load-url": f"http://127.0.0.1:{unused_port()}"})
    assert visit.code == 3
    assert {"port", "frontend.answer", "frontend.leader"} <= set(visit.bad("failure"))
    assert "transaction" in visit.skipped()


def test_a_name_that_nobody_knows(server: Emulator, capsys: Shown) -> None:
    visit = Visit(server, capsys, **{"--load-url": f"{server.load_url},http://no-such-host.invalid:8030"})
    assert visit.code == 3
    assert "no-such-host.invalid" in visit.bad()["name.resolution"]["what"]


def test_a_query_port_that_is_down(server: Emulator, capsys: Shown) -> None:
    visit = Visit(server, capsys, **{"--query-url": f"mysql://127.0.0.1:{unused_port()}"})
    assert set(visit.bad()) == {"port"}
    assert {"server version", "tables", "privileges", "limits"} <= visit.skipped()


def test_a_query_url_that_names_the_http_port(server: Emulator, capsys: Shown) -> None:
    """By another name than `load_url`: the same one is refused with the options."""
    visit = Visit(
        server, capsys, "--option", "read_timeout=1", **{"--query-url": f"mysql://localhost:{server.fe_port}"}
    )
    assert "query_port" in visit.bad("failure")["sql.login"]["advice"]
    assert "says nothing, as a port of HTTP does" in visit.bad("failure")["sql.login"]["what"]


def test_a_wrong_password(server: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "not-the-one")
    visit = Visit(server, capsys)
    assert {"sql.login", "http.login", "frontend.leader"} == set(visit.bad("failure"))
    assert "not-the-one" not in json.dumps(visit.document)


USERS = (
    "CREATE USER sink IDENTIFIED BY 'secret-of-the-doctor'",
    "CREATE USER poor IDENTIFIED BY 'secret-of-the-doctor'",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN DATABASE shop TO USER 'sink'",
    "GRANT CREATE TABLE ON DATABASE shop TO USER 'sink'",
    "GRANT OPERATE ON SYSTEM TO USER 'sink'",
)


@pytest.mark.emulator(*TABLES, *USERS, password=PASSWORD, backends=3)
def test_the_grants_of_the_security_page_suffice(server: Emulator, capsys: Shown) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "security.md").read_text()
    assert all(grant in page for grant in USERS[2:])
    visit = Visit(server, capsys, "--username", "sink")
    assert (visit.code, visit.bad(), visit.skipped()) == (0, {}, {"executor"})


@pytest.mark.emulator(*TABLES, *USERS, password=PASSWORD, backends=3)
def test_a_user_without_grants_reads_the_servers_words_and_what_to_grant(server: Emulator, capsys: Shown) -> None:
    """Wire contract 7.8."""
    visit = Visit(server, capsys, "--username", "poor")
    failed = visit.bad("failure")
    assert "OPERATE OR NODE privilege(s) on SYSTEM" in failed["privilege.operate"]["what"]
    assert "(5203)" in failed["privilege.operate"]["what"]
    assert "Grant OPERATE ON SYSTEM" in failed["privilege.operate"]["advice"]
    assert "Grant CREATE TABLE ON DATABASE" in failed["privilege.ledger"]["advice"]
    assert "grant the user a privilege" in failed["table.missing"]["advice"]
    assert "server.limits" in visit.skipped()


def test_a_follower_that_redirects_to_a_host_that_is_not_allowed(server: Emulator, capsys: Shown) -> None:
    location = {"Location": "http://10.9.8.7:8030/api"}
    server.faults.replace([{"operation": "get_load_state", "action": "answer", "status": 307, "headers": location}])
    visit = Visit(server, capsys)
    assert "redirect_hosts=['10.9.8.7']" in visit.bad("failure")["frontend.redirect"]["advice"]


def test_a_load_that_is_redirected_where_nothing_listens(server: Emulator, capsys: Shown) -> None:
    port = unused_port()
    location = {"Location": f"http://127.0.0.1:{port}/api/transaction/load"}
    server.faults.replace([{"operation": "load_probe", "action": "answer", "status": 307, "headers": location}])
    visit = Visit(server, capsys)
    assert f"127.0.0.1:{port} (backend)" in visit.bad("failure")["port"]["what"]


def test_a_backend_behind_a_proxy_is_judged_after_the_rewriting(server: Emulator, capsys: Shown) -> None:
    location = {"Location": "http://10.9.8.7:8040/api/transaction/load"}
    fault = [{"operation": "load_probe", "action": "answer", "status": 307, "headers": location}]
    server.faults.replace(fault)
    visit = Visit(server, capsys)
    assert "redirect_hosts=['10.9.8.7']" in visit.bad("failure")["backend.redirect"]["advice"]
    server.faults.replace(fault)
    rewritten = Visit(server, capsys, "--option", f"redirect_map=10.9.8.7:8040=127.0.0.1:{server.be_port}")
    # The fault answers in the frontend's place, which never hears of the load: that warning is right.
    assert (rewritten.code, list(rewritten.bad())) == (1, ["transaction.listed"])
    server.faults.replace(fault)
    port = unused_port()
    nowhere = Visit(server, capsys, "--option", f"redirect_map=10.9.8.7:8040=127.0.0.1:{port}")
    assert (nowhere.code, list(nowhere.bad())) == (3, ["transaction.listed", "port"])
    assert f"127.0.0.1:{port} (backend)" in nowhere.bad()["port"]["what"]


def test_a_cluster_whose_leader_is_known_by_an_inner_name(server: Emulator, capsys: Shown) -> None:
    columns = ["Name", "IP", "QueryPort", "Role", "Alive", "Version"]
    rows = [["fe1", "fe1.inner.invalid", 9030, "LEADER", "true", "4.0.7"], ["fe2", "b", 9030, "FOLLOWER", "false", ""]]
    server.faults.replace([query_fault("SHOW FRONTENDS", rows=rows, columns=columns)])
    visit = Visit(server, capsys)
    assert "redirect_hosts=['fe1.inner.invalid']" in visit.bad("failure")["frontend.query_leader"]["advice"]
    assert "frontend.alive" in visit.bad("warning")
    visit = Visit(server, capsys, "--option", "redirect_hosts=*.inner.invalid")
    assert "frontend.query_leader" not in visit.bad()
    assert "fe1.inner.invalid" in visit.bad("failure")["name.resolution"]["what"]


def test_a_dead_backend_is_reported_and_not_probed(server: Emulator, capsys: Shown) -> None:
    alive = ["127.0.0.1", server.be_port, "true", "4.0.7", ""]
    rows = [["10.9.8.7", 8040, "false", "4.0.7", "Connection refused"], alive]
    columns = ["IP", "HttpPort", "Alive", "Version", "ErrMsg"]
    server.faults.replace([query_fault("SHOW BACKENDS", rows=rows, columns=columns)])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (1, ["backend.alive"])
    assert visit.bad()["backend.alive"]["what"] == "The backend 10.9.8.7 is not alive (Connection refused)."


@pytest.mark.parametrize("database", ["shop", ""])
def test_a_cluster_without_live_backends_is_named_once_and_the_frontend_is_examined(
    server: Emulator, capsys: Shown, database: str
) -> None:
    server.end_backends()
    visit = Visit(server, capsys, **{"--database": database})
    (failure,) = (finding for finding in visit.findings if finding["severity"] == "failure")
    assert (failure["check"], "backends is alive" in failure["what"] or "No backend is alive" in failure["what"]) == (
        "backend.alive",
        True,
    )
    assert "SHOW BACKENDS" in failure["advice"]
    good = {finding["check"] for finding in visit.findings if finding["severity"] == "good"}
    assert {"server.version", "frontend.members", "label.retention"} <= good
    assert ("transaction.begin" in good) is bool(database)
    assert sum(finding["check"] == "backend.alive" for finding in visit.findings) == 3  # and one for each of the two


def test_a_ledger_with_more_replicas_than_live_backends(server: Emulator, capsys: Shown) -> None:
    rows: list[list[object]] = [["127.0.0.1", "true"], ["127.0.0.1", "true"], ["127.0.0.1", "false"]]
    server.faults.replace([query_fault("SHOW BACKENDS", rows=rows, columns=["IP", "Alive"])])
    visit = Visit(server, capsys, "--option", "ledger_replication=3")
    assert "set ledger_replication=2" in visit.bad("failure")["ledger.replicas"]["advice"]
    assert "ledger.replicas" not in Visit(server, capsys, "--option", "ledger_replication=2").bad()


@pytest.mark.emulator(
    *TABLES, password=PASSWORD, loads_stay_preparing=True, limits=Limits(max_running_txn_num_per_db=4)
)
def test_committed_labels_that_are_listed_as_open_are_no_running_transactions(server: Emulator, capsys: Shown) -> None:
    """Wire contract 10.6."""
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="shop", password=PASSWORD)
    deadline = Deadline.after(60, SystemClock())
    with closing(HttpTransport(options)) as transport:
        for number in range(6):
            for operation in (Operation.BEGIN, Operation.LOAD, Operation.COMMIT):
                loads = operation is Operation.LOAD
                request = Request(
                    operation,
                    "shop",
                    f"l-{number}",
                    table="orders" if loads else None,
                    headers={"format": "json"} if loads else {},
                    body=[b'{"id": 1}'] if loads else None,
                )
                assert transport.send(request, deadline).status is Status.OK
    visit = Visit(server, capsys)
    assert "transaction.headroom" not in visit.bad()


def test_an_old_server(server: Emulator, capsys: Shown) -> None:
    server.faults.replace([query_fault("@@version_comment", rows=[["4.0.3-rc"]], columns=["version"])])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, ["server.version"])


def test_a_transaction_that_cannot_be_begun(server: Emulator, capsys: Shown) -> None:
    body = json.dumps({"Status": "FAILED", "Message": "current running txns on db 10005 is 1000, larger than limit"})
    server.faults.replace([{"operation": "begin", "action": "answer", "status": 200, "body": body}])
    visit = Visit(server, capsys)
    assert "max_running_txn_num_per_db" in visit.bad("failure")["transaction.begin"]["advice"]


def test_a_rollback_that_is_refused(server: Emulator, capsys: Shown) -> None:
    body = json.dumps({"Status": "FAILED", "Message": "not now"})
    server.faults.replace([{"operation": "rollback", "nth": 1, "action": "answer", "status": 200, "body": body}])
    assert "not now" in Visit(server, capsys).bad("failure")["transaction.rollback"]["what"]


def test_a_load_that_the_frontend_refuses_ends_its_label_and_the_next_table_gets_another(
    server: Emulator, capsys: Shown
) -> None:
    body = json.dumps({"Status": "FAILED", "Message": "no INSERT for you"})
    fault = {"operation": "load_probe", "table": "events", "action": "answer", "status": 200, "body": body}
    server.faults.replace([fault])
    visit = Visit(server, capsys)
    refused = visit.bad("failure")["table.load"]
    assert (refused["place"], list(visit.bad())) == ("events", ["table.load"])
    assert any(
        "table orders" in finding["what"] for finding in visit.findings if finding["check"] == "backend.redirect"
    )


@pytest.mark.parametrize(
    ("statement", "check", "advice"),
    [
        ("SHOW FRONTENDS", "privilege.operate", "find_leader=False"),
        (r"SELECT LABEL FROM information_schema\.loads", "privilege.loads", "information_schema"),
        ("SELECT count.* FROM .shop.*_starrocks_txn_sink_ledger", "privilege.ledger", "Grant SELECT, INSERT"),
    ],
)
def test_each_privilege_that_is_missing(
    server: Emulator, capsys: Shown, statement: str, check: str, advice: str
) -> None:
    query(server, "CREATE TABLE shop._starrocks_txn_sink_ledger (id BIGINT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)")
    server.faults.replace([query_fault(statement)])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, [check])
    assert advice in visit.bad()[check]["advice"]


def test_grants_of_the_user_and_of_its_roles_count(server: Emulator, capsys: Shown) -> None:
    columns = ["UserIdentity", "Catalog", "Grants"]
    own: list[list[object]] = [["'root'@'%'", None, "GRANT 'writer' TO 'root'@'%'"]]
    role: list[list[object]] = [["writer", "default_catalog", "GRANT INSERT ON TABLE shop.orders TO ROLE 'writer'"]]
    server.faults.replace(
        [
            query_fault("SHOW GRANTS FOR ROLE 'writer'", rows=role, columns=columns),
            query_fault("SHOW GRANTS$", rows=own, columns=columns),
        ]
    )
    visit = Visit(server, capsys, **{"--option": "schema_changes=apply"})
    assert (visit.code, set(visit.bad())) == (3, {"privilege.insert", "privilege.ledger", "privilege.alter"})
    assert visit.bad("warning")["privilege.insert"]["place"] == "events"


def test_without_find_leader_no_operate_privilege_is_needed(server: Emulator, capsys: Shown) -> None:
    server.faults.replace([query_fault("SHOW (FRONTENDS|BACKENDS)"), query_fault("ADMIN SHOW")])
    visit = Visit(server, capsys, "--option", "find_leader=false")
    assert (visit.code, visit.bad()) == (0, {})
    assert {"server.limits", "transaction.headroom"} <= visit.skipped()


def test_tables_that_loads_cannot_extend_on_this_version(server: Emulator, capsys: Shown) -> None:
    query(
        server,
        "CREATE TABLE shop.days (id BIGINT, day DATE) DUPLICATE KEY(id) PARTITION BY date_trunc('day', day) "
        "DISTRIBUTED BY HASH(id)",
    )
    query(server, "CREATE TABLE shop.log (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY RANDOM")
    visit = Visit(server, capsys)
    places = {finding["place"] for finding in visit.findings if finding["severity"] == "warning"}
    assert (visit.code, list(visit.bad()), places) == (1, ["table.partitions"], {"log"})
    query(server, "ADMIN SET FRONTEND CONFIG ('max_load_initial_open_partition_number' = '2')")
    query(server, "INSERT INTO shop.days VALUES (1, '2024-02-28'), (2, '2024-02-29')")
    limited = Visit(server, capsys)
    places = {finding["place"] for finding in limited.findings if finding["severity"] == "warning"}
    assert places == {"days", "log"}
    table_visit = Visit(server, capsys, "--tables", "orders,gone")
    assert list(table_visit.bad()) == ["table.missing"]


def test_a_shared_data_table_whose_changes_this_version_may_swap(server: Emulator, capsys: Shown) -> None:
    columns = ["TABLE_NAME", "TABLE_ENGINE", "TABLE_MODEL", "PRIMARY_KEY", "DISTRIBUTE_TYPE"]
    rows: list[list[object]] = [["orders", "CLOUD_NATIVE", "PRIMARY_KEYS", "`id`", "HASH"]]
    server.faults.replace([query_fault(r"information_schema\.tables_config", rows=rows, columns=columns)])
    assert Visit(server, capsys).bad() == {}
    visit = Visit(server, capsys, "--option", "compact=false")
    assert (visit.code, list(visit.bad())) == (1, ["table.order"])


@pytest.mark.emulator(limits=Limits(max_running_txn_num_per_db=0, label_keep_max_num=10, label_keep_max_second=3600))
def test_too_little_room_and_too_short_a_memory(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True)
    commit = checkpoint / "commits" / "7"
    commit.touch()
    os.utime(commit, (time.time() - 7200, time.time() - 7200))
    words = ["--option", "lanes=8", "--checkpoint", str(checkpoint)]
    place = ["--load-url", server.load_url, "--query-url", server.query_url, "--database", "shop"]
    assert cli.main(["doctor", *place, "--no-spark", "--json", *words]) == 3
    with_ledger = json.loads(capsys.readouterr().out)["findings"]
    cli.main(["doctor", *place, "--no-spark", "--json", *words, "--option", "delivery=at-least-once"])
    without = json.loads(capsys.readouterr().out)["findings"]
    severities = {finding["check"]: finding["severity"] for finding in with_ledger}
    assert (severities["transaction.headroom"], severities["label.retention"]) == ("failure", "warning")
    assert (
        severities["checkpoint.age"],
        {finding["check"]: finding["severity"] for finding in without}["checkpoint.age"],
    ) == (
        "good",
        "warning",
    )


def test_a_clock_that_is_wrong(server: Emulator, capsys: Shown) -> None:
    server.faults.replace([query_fault("utc_timestamp", rows=[["2001-02-03 04:05:06"]], columns=["t"])])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (1, ["server.clock"])


@pytest.mark.parametrize(
    ("name", "module", "version"),
    [
        ("pandas", "pandas", "3.0.1"),
        ("pyarrow", "pyarrow", "15.0.2"),
        ("protobuf", "google.protobuf", None),
        ("pyspark", "pyspark", "3.4.4"),
    ],
)
def test_each_library_that_does_not_work(
    server: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch, name: str, module: str, version: str | None
) -> None:
    really = metadata.version

    def installed(name_asked: str) -> str:
        if name_asked == name and version is None:
            raise metadata.PackageNotFoundError
        return version if name_asked == name and version else really(name_asked)

    monkeypatch.setattr(metadata, "version", installed)
    if version is None:
        monkeypatch.setitem(sys.modules, module, None)
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, [f"library.{name}"])


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", None])
def test_a_jdk_that_does_not_work(
    server: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None
) -> None:
    if version is not None:
        plant_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, ["library.java"])
    assert (version or "No JDK") in visit.bad()["library.java"]["what"]


def test_a_table_whose_model_takes_no_changes_and_a_view(server: Emulator, capsys: Shown) -> None:
    columns = ["TABLE_NAME", "TABLE_MODEL", "DISTRIBUTE_TYPE"]
    rows: list[list[object]] = [["orders", "AGG_KEYS", "HASH"], ["events", "DUP_KEYS", "HASH"]]
    planted = query_fault(r"information_schema\.tables_config", rows=rows, columns=columns)
    server.faults.replace([planted])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (1, ["table.model"])
    assert visit.bad()["table.model"]["place"] == "orders"
    server.faults.replace([{**planted, "body": json.dumps({"columns": columns, "rows": rows[1:]})}])
    viewed = Visit(server, capsys, "--tables", "orders,events")
    assert "is a view" in viewed.bad("failure")["table.model"]["what"]


def test_a_cluster_in_the_middle_of_an_upgrade(server: Emulator, capsys: Shown) -> None:
    columns = ["IP", "HttpPort", "Alive", "Version"]
    rows: list[list[object]] = [["127.0.0.1", server.be_port, "true", "3.5.2-old"]]
    server.faults.replace([query_fault("SHOW BACKENDS", rows=rows, columns=columns)])
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, ["server.version"])
    assert "The backend 127.0.0.1 runs StarRocks 3.5.2-old" in visit.bad()["server.version"]["what"]


def test_transactions_that_another_client_leaves_open_take_the_room(server: Emulator, capsys: Shown) -> None:
    rows: list[list[object]] = [["max_running_txn_num_per_db", "4"]]
    server.faults.replace([query_fault("ADMIN SHOW FRONTEND CONFIG", rows=rows, columns=["Key", "Value"])])
    options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="shop", password=PASSWORD, timeout=60
    )
    deadline = Deadline.after(30, SystemClock())
    with closing(HttpTransport(options)) as transport:
        for label in (f"left-{number}" for number in range(4)):
            begin = Request(Operation.BEGIN, "shop", label, headers={"timeout": "60"})
            rows_of = Request(
                Operation.LOAD, "shop", label, "orders", options.load_headers("orders"), body=[b'[{"id": 1}]']
            )
            assert transport.send(begin, deadline).status is Status.OK
            assert transport.send(rows_of, deadline).status is Status.OK
    visit = Visit(server, capsys)
    assert (visit.code, list(visit.bad())) == (3, ["transaction.headroom"])
    assert "No room: 4 of 4 running" in visit.bad()["transaction.headroom"]["what"]


def test_without_a_database_the_rest_is_examined(server: Emulator, capsys: Shown) -> None:
    visit = Visit(server, capsys, **{"--database": ""})
    assert (visit.code, visit.bad()) == (0, {})
    assert {"transaction", "tables", "privileges"} <= visit.skipped()


def test_a_reason_that_several_sections_have_is_said_once(capsys: Shown) -> None:
    place = ["--load-url", "http://127.0.0.1:1", "--query-url", "mysql://127.0.0.1:2", "--username", "root"]
    assert cli.main(["doctor", *place, "--database", "shop", "--no-spark"]) == 3
    output = capsys.readouterr().out
    assert output.count("no query port is usable") == 1
    assert "clock: not checked: see server version above" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--option", "password=x"], "can read a password on the command line"),
        (["--option", "PassWord=x"], "can read a password on the command line"),
        (["--option", "lanes=none"], "lanes"),
        (["--password-environment", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
    ],
)
def test_options_that_cannot_be_are_code_2(words: list[str], message: str, capsys: Shown) -> None:
    place = ["--load-url", "http://127.0.0.1:1", "--query-url", "mysql://127.0.0.1:2"]
    assert cli.main(["doctor", *place, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_database_without_tables_cannot_be_written(server: Emulator, capsys: Shown) -> None:
    query(server, "CREATE DATABASE empty")
    visit = Visit(server, capsys, **{"--database": "empty"})
    assert visit.code == 3
    assert "has no table that a job could write" in visit.bad("failure")["table.missing"]["what"]


def test_a_query_port_that_is_another_one_ends_in_seconds(server: Emulator, capsys: Shown) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        url = f"mysql://127.0.0.1:{silent.getsockname()[1]}"
        visit = Visit(server, capsys, **{"--query-url": url, "--option": "connect_timeout=0.5"})
        assert time.monotonic() - began < 18  # one login is waited for, 10 s
    assert visit.code == 3
    assert "query_port" in visit.bad("failure")["sql.login"]["advice"]
