"""`starrocks-txn-sink rehearse` against the emulator: as expected, and with each difference planted."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Limits, Settings
from starrocks_emulator.transactions.backend import Backend
from starrocks_emulator.transactions.messages import Body
from starrocks_txn_ops import cli
from starrocks_txn_ops.rehearsal import cluster, command, findings, reading, rejections, transactions
from starrocks_txn_ops.rehearsal.findings import Check, Evidence, Verdict, as_expected, differs, harmless
from starrocks_txn_ops.rehearsal.stage import Stage, Terms, array
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.errors import HttpRefused, RowsRejected
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, create_table
from tests.support.query_port import query

PASSWORD = "secret-of-the-rehearsal"
QUICK = ("--seconds", "0.5", "--megabytes", "0.5")
TERMS = Terms(seconds=0.3, megabytes=0.2)
Start = Callable[..., Emulator]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("SECRET", PASSWORD)
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Emulator(tmp_path, Settings(password=PASSWORD, **settings)))


def words(server: Emulator, *more: str, load_url: str = "") -> list[str]:
    place = ["--load-url", load_url or server.load_url, "--query-url", server.query_url, "--database", "scratch"]
    return ["rehearse", *place, "--password-environment", "SECRET", *QUICK, *more]


def databases(server: Emulator) -> set[str]:
    return {name for (name,) in query(server, "SHOW DATABASES", password=PASSWORD)}


def looked_at(server: Emulator, *names: str, terms: Terms = TERMS, **changes: Any) -> dict[str, Evidence]:
    """The findings of the checks `names`, and of those that make what they need."""
    options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="scratch", password=PASSWORD, **changes
    )
    needed = ("privilege.create", "ledger.create", "load.two_tables", *names)
    checks = [check for check in command.CHECKS if check.name in needed]
    with contextlib.closing(Stage(options, terms)) as stage:
        results = command.collect(stage, lambda _: None, checks)
    assert databases(server) <= {"information_schema", "shop"}
    return {result.check.name: result.evidence for result in results}


@pytest.mark.parametrize("generation", [pytest.param(Generation.B, marks=pytest.mark.deep), Generation.C])
def test_the_emulator_does_what_the_contract_says(
    start: Start, capsys: pytest.CaptureFixture[str], generation: Generation
) -> None:
    followers = 1 if generation is Generation.B else 0
    server = start(generation=generation, followers=followers, backends=2)
    frontends = ",".join([*(f"http://127.0.0.1:{port}" for port in server.follower_ports), server.load_url])
    code = cli.main(words(server, "--json", load_url=frontends))
    output = capsys.readouterr()
    report = json.loads(output.out)
    checks = {check_["check"]: check_ for check_ in report["checks"]}
    exceptions = {name: check_["verdict"] for name, check_ in checks.items() if check_["verdict"] != "as expected"}
    stale = "differs, harmless" if followers else "left out"
    assert exceptions.pop("load.first", "as expected") in ("as expected", "differs, harmless")  # by chance
    if generation is Generation.B:
        assert exceptions.pop("load.partition") == "differs, harmless"
    assert exceptions == {"transaction.slow": "left out", "read.followers": stale}
    assert (code, report["exit_code"]) == (0, 0)
    assert (report["generation"], report["version"]) == (generation.value, generation.version)
    assert checks["read.torn"]["metrics"]["commits"] > 0
    assert checks["speed"]["metrics"]["bytes_per_second"] > 0
    assert databases(server) == {"information_schema"}
    assert PASSWORD not in output.out + output.err
    assert "127.0.0.1" not in output.out
    assert all(check_["expects"] and (check_["sections"] or name in UNSECTIONED) for name, check_ in checks.items())


def test_a_slow_backend_is_no_difference(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend may take the next load before it looks at half a body that came first."""
    load, lengths = Backend.load, {len(array(row)[0]) for row in HALF_BODIES}

    def late(backend: Backend, request: Any, body: Any, **faults: Any) -> Body:
        if body.length in lengths:
            time.sleep(0.5)
        return load(backend, request, body, **faults)

    monkeypatch.setattr(Backend, "load", late)
    evidence = looked_at(start(), "load.busy", "load.cut")
    assert [evidence[name].verdict for name in ("load.busy", "load.cut")] == [Verdict.AS_EXPECTED] * 2


def test_a_difference_is_not_looked_at_again_until_it_is_gone() -> None:
    findings = iter(
        [harmless("late", "it was slow"), differs("a row too many", "Send this report."), as_expected("fine")]
    )
    assert transactions._patiently(lambda *_: next(findings))(Stepless()).verdict is Verdict.DIFFERS  # type: ignore[arg-type]


class Stepless:
    """A stage that nobody asks."""


HALF_BODIES = ({"id": 100, "note": "first"}, {"id": 110, "note": "cut"})
UNSECTIONED = ("speed", "scratch.dropped")


def test_lines_come_one_by_one_and_end_in_a_sentence(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    assert cli.main(words(server, "--option", "ledger_replication=3")) == 1
    output = capsys.readouterr().out
    assert "as expected        load.delete: 1 deletes, 0 upserts\n" in output
    assert "differs            ledger.create: refused: " in output
    assert "    Expected: The ledger's DDL works with the replicas of the options.\n" in output
    assert "    Do: Set ledger_replication=1, or start more backends.\n" in output
    assert "\nSomething differs: do what the lines say. " in output


def test_a_database_with_a_ledger_is_left_alone(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    for statement in ("CREATE DATABASE scratch", create_table("scratch")):
        query(server, statement, password=PASSWORD)
    assert cli.main(words(server)) == 2
    assert "a rehearsal leaves it alone" in capsys.readouterr().err
    assert query(server, "SHOW TABLES FROM scratch", password=PASSWORD) == [(LEDGER_TABLE,)]


def test_a_database_of_the_user_stays_with_its_tables(start: Start) -> None:
    server = start()
    for statement in ("CREATE DATABASE scratch", "CREATE TABLE scratch.mine (id INT) PRIMARY KEY (id)"):
        query(server, statement, password=PASSWORD)
    with contextlib.closing(_stage(server)) as stage:
        command.collect(stage, lambda _: None, command.CHECKS[:5])
    assert query(server, "SHOW TABLES FROM scratch", password=PASSWORD) == [("mine",)]


def test_a_server_that_does_not_answer_could_not_be_seen(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    arguments = words(server)
    server.stop()
    assert cli.main(arguments) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_usage_is_code_2(start: Start) -> None:
    server = start()
    assert cli.main(words(server, "--option", "timeout=soon")) == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(words(server, "--seconds", "-1"))
    assert ended.value.code == 2


def _stage(server: Emulator) -> Stage:
    options = SinkOptions(load_url=server.load_url, query_url=server.query_url, database="scratch", password=PASSWORD)
    return Stage(options, TERMS)


def test_an_interruption_rolls_back_drops_and_says_the_rest_was_not_seen(start: Start) -> None:
    server = start()

    def interrupt(stage: Stage) -> Evidence:
        stage.must_load(stage.begin(), "upserts", [b'[{"id": 1}]'])
        raise KeyboardInterrupt

    checks = (*command.CHECKS[:5], Check("interrupted", "", (), interrupt), command.CHECKS[5])
    lines: list[str] = []
    with contextlib.closing(_stage(server)) as stage:
        results = command.collect(stage, lines.append, checks)
    verdicts = {result.check.name: result.evidence.verdict for result in results}
    assert verdicts["interrupted"] is verdicts[command.CHECKS[5].name] is Verdict.NOT_SEEN
    assert verdicts["scratch.dropped"] is Verdict.AS_EXPECTED
    assert findings.exit_code(results) == 3
    assert databases(server) == {"information_schema"}
    states = query(server, "SELECT STATE FROM information_schema.loads WHERE TYPE <> 'INSERT'", password=PASSWORD)
    assert states == [("CANCELLED",)]


def test_control_c_leaves_nothing(start: Start) -> None:
    server = start()
    command = [sys.executable, "-m", "starrocks_txn_sink", *words(server, "--seconds", "60")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "read.followers" in line:
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Interrupted" in output
    assert "as expected        scratch.dropped" in output
    assert databases(server) == {"information_schema"}


REFUSED = {"action": "answer", "status": 5203, "body": "Access denied; you need more privileges"}


def test_what_the_sink_makes_of_rejected_rows_counts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    names = ("reject.bad_row", "reject.alone", "reject.empty")
    evidence = looked_at(server, *names)
    assert [evidence[name].verdict for name in names] == [Verdict.AS_EXPECTED] * 3
    assert "1 row of job_filled" in evidence["reject.alone"].what
    assert evidence["reject.bad_row"].metrics["explain_seconds"] < 5.0
    away = {"operation": "query", "label": "FILTERED_ROWS|TRACKING_LOG|STREAM LOAD", "action": "answer", "status": 1064}
    server.faults.replace([{**away, "body": "Getting analyzing error. Detail message: no such view."}])
    alone = looked_at(server, "reject.alone")["reject.alone"]
    assert (alone.verdict, alone.what.split()[0]) == (Verdict.DIFFERS, "commit_failed")
    assert "waits until batch_deadline" in alone.advice
    server.faults.replace([])
    invented = RowsRejected("The server rejected rows: a reason of another kind (5).")
    monkeypatch.setattr(rejections, "refusal", lambda *_: (invented, 0.1))
    empty = looked_at(server, "reject.empty")["reject.empty"]
    assert (empty.verdict, "good source transactions" in " ".join(empty.advice.split())) == (Verdict.DIFFERS, True)


@pytest.mark.parametrize(
    ("generation", "verdict"), [(Generation.B, Verdict.HARMLESS), (Generation.C, Verdict.AS_EXPECTED)]
)
def test_a_partition_is_made_by_the_load_or_has_to_be_there(
    start: Start, generation: Generation, verdict: Verdict
) -> None:
    """Wire contract 4.17."""
    evidence = looked_at(start(generation=generation), "load.partition")["load.partition"]
    assert evidence.verdict is verdict, evidence
    assert ("automatic partitions" in " ".join(evidence.why.split())) is (verdict is Verdict.HARMLESS)


def test_the_room_for_open_loads_is_that_of_the_smallest_backend(start: Start) -> None:
    server = start(cores=2)

    def room(**terms: Any) -> Evidence:
        evidence = looked_at(server, "load.room", terms=replace(TERMS, **terms))["load.room"]
        assert evidence.metrics == {"open_loads": 14.0}
        return evidence

    assert (room().verdict, "a job with 0 tables needs 2" in room().what) == (Verdict.AS_EXPECTED, True)
    assert "a job with 12 tables needs 14; all jobs of the server share them (rehearse --jobs N" in room(tables=12).what
    for terms, text in (
        ({"tables": 13}, "needs 15 open loads; the"),
        ({"tables": 6, "jobs": 2}, ", 2 jobs at once 16;"),
    ):
        evidence = room(**terms)
        assert (evidence.verdict, text in evidence.what) == (Verdict.HARMLESS, True)
        assert "pipeline_connector_scan_thread_num_per_cpu" in evidence.why
    ddl = "(id INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
    query(server, "CREATE DATABASE shop", password=PASSWORD)
    for name in ("orders", "items", LEDGER_TABLE):
        query(server, f"CREATE TABLE shop.{name} {ddl}", password=PASSWORD)
    assert "a job with 2 tables needs 4" in room().what
    server.faults.replace({"rules": [asked("SHOW BACKENDS")]})
    assert looked_at(server, "load.room")["load.room"].verdict is Verdict.HARMLESS


def test_a_load_that_was_refused_can_be_repeated(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    assert "its repetition was" in looked_at(server, "load.busy")["load.busy"].what
    load = Stage.load

    def poisoned(stage: Stage, label: Any, name: str, body: Any, **headers: str) -> Any:
        if isinstance(body, list) and b'"id": 102' in body[0]:
            raise HttpRefused("HTTP 400 with an HTML page titled '400 Bad Request' came back.")
        return load(stage, label, name, body, **headers)

    monkeypatch.setattr(Stage, "load", poisoned)
    evidence = looked_at(server, "load.busy")["load.busy"]
    assert (evidence.verdict, "http_refused" in evidence.what) == (Verdict.DIFFERS, True)


def asked(pattern: str) -> dict[str, object]:
    return {"operation": "query", "label": pattern, **REFUSED}


@pytest.mark.parametrize(
    ("rule", "check", "verdict", "advice"),
    [
        (asked("^SHOW FRONTENDS"), "privilege.frontends", Verdict.DIFFERS, "find_leader=False"),
        (asked(r"FROM information_schema\.loads LIMIT 1"), "privilege.loads", Verdict.DIFFERS, "information_schema"),
        (asked("^CREATE TABLE .*_upserts"), "privilege.create", Verdict.DIFFERS, "Grant CREATE TABLE"),
        (asked("_sink_ledger.* PRIMARY KEY"), "ledger.create", Verdict.DIFFERS, "Grant CREATE TABLE"),
        (asked("^DELETE"), "privilege.delete", Verdict.HARMLESS, ""),
        ({"operation": "commit", "action": "publish_apart", "seconds": 0.1}, "read.torn", Verdict.DIFFERS, "lock_db"),
        (
            {"operation": "commit", "action": "publish_apart", "seconds": 0.1},
            "read.torn_locked",
            Verdict.AS_EXPECTED,
            "",
        ),
        ({"operation": "commit", "nth": 1, "action": "commit_ok_rolled_back"}, "load.two_tables", Verdict.NOT_SEEN, ""),
        ({"operation": "rollback", "action": "drop"}, "backend.redirect", Verdict.AS_EXPECTED, ""),
        (
            {"operation": "load_probe", "action": "answer", "status": 307, "headers": {"Location": "http://else:1/x"}},
            "backend.redirect",
            Verdict.DIFFERS,
            "redirect_hosts",
        ),
        (
            {"operation": "commit", "nth": 2, "action": "answer", "body": '{"Status": "FAILED", "Message": "?"}'},
            "commit.repeated",
            Verdict.HARMLESS,
            "",
        ),
        ({"operation": "query", "label": "LABEL LIKE", **REFUSED}, "label.listed", Verdict.NOT_SEEN, ""),
    ],
)
def test_each_difference_has_its_verdict(
    start: Start, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], check: str, verdict: Verdict, advice: str
) -> None:
    monkeypatch.setattr("starrocks_txn_ops.rehearsal.stage.UNREGISTERED_SECONDS", 0.2)
    server = start()
    server.faults.replace({"rules": [rule]})
    evidence = looked_at(server, check, *(("read.torn",) if check == "read.torn_locked" else ()))[check]
    assert evidence.verdict is verdict, evidence
    assert advice in evidence.advice
    assert bool(evidence.advice) is (verdict is Verdict.DIFFERS)


@pytest.mark.parametrize(("accepted", "verdict"), [(True, Verdict.AS_EXPECTED), (False, Verdict.DIFFERS)])
def test_a_build_without_a_release_number_needs_the_option(
    monkeypatch: pytest.MonkeyPatch, accepted: bool, verdict: Verdict
) -> None:
    options = SinkOptions(
        load_url="http://127.0.0.1:9",
        query_url="mysql://127.0.0.1:8",
        database="scratch",
        allow_unreleased_server=accepted,
    )
    with contextlib.closing(Stage(options, TERMS)) as stage:
        monkeypatch.setattr(stage, "rows", lambda _: [{"version": "main-d0b920c"}])
        assert cluster.check_version(stage).verdict is verdict


def test_few_reads_are_no_proof_that_nothing_is_torn(start: Start) -> None:
    terms = replace(TERMS, longer_seconds=0.2, enough_samples=1_000_000)
    evidence = looked_at(start(), "read.torn", "read.torn_locked", terms=terms)
    for check in ("read.torn", "read.torn_locked"):
        assert evidence[check].verdict is Verdict.NOT_SEEN
        assert "too few to say" in evidence[check].why


def test_a_slow_server_gets_longer_until_enough_was_read(start: Start) -> None:
    metrics = looked_at(start(), "read.torn", terms=replace(TERMS, enough_samples=200))["read.torn"].metrics
    assert metrics["samples"] >= 200


def test_a_user_that_may_not_create_a_database_reads_what_to_grant(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start()
    server.faults.replace({"rules": [asked("^CREATE DATABASE")]})
    assert cli.main(words(server)) == 3
    output = capsys.readouterr().err
    assert "Access denied; you need more privileges" in output
    page = (Path(__file__).parents[3] / "docs" / "operations" / "rehearsal.md").read_text()
    statements = re.findall(r"(?:CREATE DATABASE|GRANT) [^;]+;", output.replace("`", "").replace("'root'", "'sink'"))
    assert len(statements) == 3
    assert all(statement in page for statement in statements)


def test_loads_that_stay_preparing_are_harmless_and_said(start: Start) -> None:
    terms = replace(TERMS, settle_seconds=0.2)
    evidence = looked_at(start(loads_stay_preparing=True), "label.states", "takeover", terms=terms)
    assert (evidence["label.states"].verdict, evidence["takeover"].verdict) == (Verdict.HARMLESS, Verdict.AS_EXPECTED)
    assert "4.1.3" in evidence["label.states"].why


@pytest.mark.parametrize(("timeout", "verdict"), [(600, Verdict.DIFFERS), (300, Verdict.HARMLESS)])
def test_a_transaction_that_the_server_ends_early(start: Start, timeout: int, verdict: Verdict) -> None:
    """Generation B's second clock: with timeout 300 the sink commits before it."""
    server = start(limits=Limits(query_timeout=0.2), second_clock=True)
    options = SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="scratch", password=PASSWORD, timeout=timeout
    )
    terms = replace(TERMS, slow=True, slow_seconds=0.7)  # three times as long is its timeout: 2 s
    names = ("privilege.create", "transaction.slow")
    checks = [check for check in command.CHECKS if check.name in names]
    with contextlib.closing(Stage(options, terms)) as stage:
        evidence = command.collect(stage, lambda _: None, checks)[1].evidence
    assert evidence.verdict is verdict
    assert ("Set timeout=300" in evidence.advice) is (verdict is Verdict.DIFFERS)


def test_names_are_unique_and_in_the_page() -> None:
    names = [check.name for check in (*command.CHECKS, command.CLEARED)]
    assert len(set(names)) == len(names)
    page = (Path(__file__).parents[3] / "docs" / "operations" / "rehearsal.md").read_text()
    assert all(f"`{name}`" in page for name in names)


def test_a_ledger_that_a_job_uses_meanwhile_is_not_dropped(start: Start) -> None:
    server = start()

    def job_starts(_: Stage) -> Evidence:
        query(
            server,
            f"INSERT INTO scratch.{LEDGER_TABLE} (id, job, kind, name) VALUES ('1', 'j', 'position', 'p')",
            password=PASSWORD,
        )
        return Evidence(Verdict.AS_EXPECTED, "")

    with contextlib.closing(_stage(server)) as stage:
        results = command.collect(stage, lambda _: None, (*command.CHECKS[:5], Check("job", "", (), job_starts)))
    assert results[-1].evidence.advice == f"Drop {LEDGER_TABLE}."
    assert query(server, "SHOW TABLES FROM scratch", password=PASSWORD) == [(LEDGER_TABLE,)]


def test_a_follower_that_is_down_is_not_asked() -> None:
    rows = [
        {"ip": "fe1", "queryport": "9030", "role": "LEADER", "alive": "true"},
        {"ip": "fe2", "queryport": "9030", "role": "FOLLOWER", "alive": "true"},
        {"ip": "fe3", "queryport": "9030", "role": "FOLLOWER", "alive": "false"},
    ]
    stage: Any = Stage(SinkOptions(load_url="fe1", query_url=["fe1", "fe2", "fe3"], database="scratch"), TERMS)
    stage.rows_if_allowed = lambda _: rows
    assert [address.host for address in reading._followers(stage)] == ["fe2"]
