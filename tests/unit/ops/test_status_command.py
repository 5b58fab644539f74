"""`starrocks-txn-sink status` against the emulator: each job as the server sees it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli, status
from starrocks_txn_ops.status import KafkaPartition, lags_of, why_unknown
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.protocol.bound import Bound, WriteBound
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, create_table
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.protocol.verified import VERIFIED, Verified
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger
from tests.support.left_behind import PASSWORD, leave_open, options, write_a_position
from tests.support.query_port import query

pytestmark = [
    pytest.mark.emulator(
        "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)", password=PASSWORD
    ),
    pytest.mark.usefixtures("environment"),
]
Shown = pytest.CaptureFixture[str]


def command(server: Emulator, *words: str) -> int:
    place = ["--query-url", server.query_url, "--database", "shop", "--password-environment", "SECRET"]
    return cli.main(["status", *place, *words])


@pytest.fixture
def jobs(server: Emulator) -> Emulator:
    """Two jobs; one has an open label and a dead letter, and a second source partition."""
    session = write_a_position(server, "first")
    write_a_position(server, "second")
    leave_open(server, f"first-{session.epoch}-0-6-1_0")
    leave_open(server, "foreign-label-of-another")
    query(
        server,
        f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name, position, batch, label, updated_at) VALUES "
        "('x', 'first', 'position', 'p-1', 58, 3, 'l', '2026-01-02 03:04:05')",
    )
    query(server, create_table("shop"))
    query(
        server,
        f"INSERT INTO shop.{DEAD_LETTER_TABLE} (id, job, source_partition, position, table_name, `row_number`) "
        "VALUES ('d', 'first', 'p-0', 1, 'items', 0)",
    )
    return server


def test_every_job_of_a_database(jobs: Emulator, capsys: Shown) -> None:
    assert command(jobs, "--json") == 0
    output = json.loads(capsys.readouterr().out)
    first, second = output["jobs"]
    assert (first["job"], second["job"]) == ("first", "second")
    assert (first["partition_count"], first["positions"], first["last_batch"]) == (2, 100, 5)
    assert [partition["partition"] for partition in first["partitions"]] == ["p-1", "p-0"]  # the oldest commit first
    assert first["last_commit"] > "2026-01-02 03:04:05"
    assert (first["open_labels"], len(first["listed_labels"])) == (None, 1)
    assert (first["dead_letter_rows"], first["lag"]) == (1, None)
    assert (second["partition_count"], second["open_labels"], second["dead_letter_rows"]) == (1, [], 0)
    assert first["owner"]
    assert first["owner_since"]


@pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
    password=PASSWORD,
    loads_stay_preparing=True,
)
def test_committed_labels_that_the_server_lists_are_no_open_ones(jobs: Emulator, capsys: Shown) -> None:
    """Wire contract 10.6."""
    assert command(jobs, "--job", "first", "--json", "--load-url", jobs.load_url) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (len(job["open_labels"]), len(job["listed_labels"])) == (1, 2)
    assert set(job["open_labels"]) < set(job["listed_labels"])
    assert command(jobs, "--job", "first") == 0
    assert "open labels: not known; 2 are listed, open or committed\n" in (output := capsys.readouterr().out)
    assert "--load-url asks for the state of each" in output
    assert not any(label in output for label in job["listed_labels"])


def test_a_database_that_is_not_there_is_said(server: Emulator, capsys: Shown) -> None:
    assert command(server, "--database", "nowhere") == 1
    assert "There is no database nowhere that the user may see." in capsys.readouterr().err


def test_a_person_reads_the_same(jobs: Emulator, capsys: Shown) -> None:
    assert command(jobs, "--top", "1", "--load-url", jobs.load_url) == 0
    output = capsys.readouterr().out
    assert "Job first, database shop (now " in output
    assert "  open labels: 1\n    first-" in output
    assert "  dead letters: 1 rows" in output
    assert (
        "  source partitions: 2, sum of positions 100\n    p-1  58  at 2026-01-02 03:04:05 UTC\n    … and 1 more"
        in output
    )
    assert "Job second" in output


def test_a_hold_is_said(jobs: Emulator, capsys: Shown) -> None:
    query(
        jobs,
        f"UPDATE shop.{LEDGER_TABLE} SET epoch = 'hold', batch = 30 WHERE job = 'first' AND kind = 'driver'",
    )
    assert command(jobs, "--job", "first") == 0
    assert (
        "  owner: a command (verify --repair or --exact, resync), which holds or held the job since "
        in capsys.readouterr().out
    )


def test_a_bound_is_said_while_it_lasts(jobs: Emulator, capsys: Shown) -> None:
    bound = Bound("token", "shop", {"lsn": 9}, seconds=30, text="0/9")
    with closing(LeaderConnection(options(jobs))) as connection:
        ledger = SqlLedger(connection, "shop")
        for seconds, lines in ((30, 1), (0, 0)):
            ledger.execute(WriteBound("first", replace(bound, seconds=seconds)), Deadline.after(30, SystemClock()))
            assert command(jobs) == 0
            said = "  held: verify --exact has the job wait at the source's position 0/9, for at most "
            assert capsys.readouterr().out.count(said) == lines


def test_transactions_that_were_given_up_are_said(jobs: Emulator, capsys: Shown) -> None:
    for name, number in (("shop given-up", 2), ("shop lsn", 99), ("crm given-up", 1)):
        query(
            jobs,
            f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name, position) "
            f"VALUES ('{name}', 'first', 'place', '{name}', {number})",
        )
    assert command(jobs) == 0
    assert capsys.readouterr().out.count("  given up: 3 source transactions, incomplete for open_timeout") == 1
    assert command(jobs, "--json") == 0
    assert [job["given_up"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [3, 0]


def test_the_last_proof_is_said(jobs: Emulator, capsys: Shown) -> None:
    """Another marker beside that of a move."""
    result = Verified(1_790_000_000, 50, 0, 0, 0, "0/1D4C3A8")
    query(
        jobs,
        f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name, token) VALUES "
        f"('v', 'first', 'marker', '{VERIFIED}', '{result.token}')",
    )
    assert command(jobs, "--job", "first") == 0
    assert f"  verify: {result.text}\n" in (output := capsys.readouterr().out)
    assert "closed" not in output


def test_one_job(jobs: Emulator, capsys: Shown) -> None:
    assert command(jobs, "--job", "second", "--json") == 0
    assert [job["job"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["second"]


def test_an_unknown_job_is_an_error_that_names_the_others(jobs: Emulator, capsys: Shown) -> None:
    assert command(jobs, "--job", "frist") == 1
    assert "no rows of the job frist. Its jobs are: first, second." in capsys.readouterr().err


def test_a_database_that_no_job_has_written(server: Emulator, capsys: Shown) -> None:
    assert command(server) == 0
    assert "No job has written exactly-once into shop" in capsys.readouterr().out
    assert command(server, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []


def test_it_looks_again_until_it_is_stopped(jobs: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    this_thread = threading.get_ident()

    def sleep(clock: SystemClock, seconds: float) -> None:
        if threading.get_ident() != this_thread:  # a session of an earlier test may still roll back its labels
            sleeping(clock, seconds)
            return
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    sleeping = SystemClock.sleep

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    assert command(jobs, "--watch", "2.5", "--json") == 0
    assert pauses == [2.5] * 3
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(("error", "looks"), [(QueryFailed("No answer."), 2), (QueryRefused("No."), 1)])
def test_a_watch_outlasts_an_outage_and_ends_with_any_other_error(
    jobs: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch, error: StarRocksSinkError, looks: int
) -> None:
    look_numbers: list[int] = []

    def look(*_: Any) -> list[Any]:
        look_numbers.append(1)
        if len(look_numbers) == 1:
            raise error
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "job_statuses", look)
    assert command(jobs, "--watch", "0.001") == (0 if looks == 2 else 1)
    assert len(look_numbers) == looks
    assert ("Looking again in 0.001 s." in capsys.readouterr().err) == (looks == 2)


@pytest.mark.parametrize("words", [["--watch", "0"], ["--top", "-1"]])
def test_numbers_that_cannot_be(server: Emulator, capsys: Shown, words: list[str]) -> None:
    assert command(server, *words) == 1
    assert "--watch must be above zero" in capsys.readouterr().err


def ends(questions: list[Sequence[KafkaPartition]], **ends_by_name: int) -> status.Ends:
    def answer(partitions: Sequence[KafkaPartition]) -> dict[KafkaPartition, int]:
        questions.append(partitions)
        return {(name.rpartition("_")[0], int(name.rpartition("_")[2])): end for name, end in ends_by_name.items()}

    return answer


def test_the_lag_is_the_distance_to_the_ends() -> None:
    questions: list[Sequence[KafkaPartition]] = []
    positions = {"orders-0": 41, "orders/1": 99, "7": 5, "shop": 3, "gone-0": 1}
    lags = lags_of(positions, None, ends(questions, orders_0=50, orders_1=100))
    assert lags == {"orders-0": 8, "orders/1": 0}
    assert questions == [[("gone", 0), ("orders", 0), ("orders", 1)]]
    assert lags_of({"7": 5}, "orders", ends(questions, orders_7=10)) == {"7": 4}
    assert lags_of({"shop": 5}, None, ends(questions)) == {}
    assert len(questions) == 2


def test_a_lag_that_is_not_known_says_why() -> None:
    assert why_unknown([], None) == ""
    told = why_unknown(["7", "shop", "gone-0", *(f"old-{number}" for number in range(4))], None)
    assert told.split("; ") == [
        "7: it has no topic: name it with --topic",
        "gone-0, old-0, old-1 and 2 more: the brokers know no such partition",
        "shop: no partition of a topic has such a name",
    ]
    assert why_unknown(["7"], "orders") == "7: the brokers know no such partition"


def test_the_partitions_that_are_furthest_behind_come_first(
    jobs: Emulator, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"p_1": 60}

    def admin(config: dict[str, Any], *_: object) -> SimpleNamespace:
        assert config["bootstrap.servers"] == "b1:9092"
        return SimpleNamespace(end_offsets=ends([], p_0=1000, **known))

    monkeypatch.setattr("starrocks_txn_sink.sources.kafka.admin.KafkaAdmin", admin)
    assert command(jobs, "--job", "first", "--kafka", "b1:9092") == 0
    output = capsys.readouterr().out
    assert "sum of positions 100, 958 rows behind" in output
    assert output.index("p-0  42  957 behind") < output.index("p-1  58  1 behind")
    assert "lag not known" not in output
    known.clear()
    assert command(jobs, "--job", "first", "--kafka", "b1:9092") == 0
    assert "    lag not known of p-1: the brokers know no such partition\n" in capsys.readouterr().out
