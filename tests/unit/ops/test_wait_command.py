"""`starrocks-txn-sink wait` and `wait_for_position` against the emulator: what the ledger says, and what it lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli
from starrocks_txn_ops.positions import parse
from starrocks_txn_sink import wait_for_position
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.errors import (
    JobLedgerMissing,
    JobMoved,
    OptionError,
    PositionDeadLettered,
    PositionNotReached,
    PositionOfOtherSource,
    QueryFailed,
    StarRocksSinkError,
    UnknownJob,
)
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, create_table
from starrocks_txn_sink.protocol.gate import Gate
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.protocol.source_places import GIVEN_UP, LSN
from starrocks_txn_sink.sql.connection import LeaderConnection
from tests.support.left_behind import PASSWORD, options, write_a_position
from tests.support.query_port import query
from tests.support.quick_start import blocks

pytestmark = [
    pytest.mark.emulator(
        "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)", password=PASSWORD
    ),
    pytest.mark.usefixtures("environment"),
]
Shown = pytest.CaptureFixture[str]


def put(
    server: Emulator, kind: str, name: str, position: int | None = None, token: str = "", job: str = "shop"
) -> None:
    """A row of the ledger, in place of the one of its kind and name."""
    query(
        server,
        f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name, position, token, label, updated_at) "
        "VALUES (%s, %s, %s, %s, %s, %s, 'l-7', '2026-11-29 03:04:05')",
        *(f"{job}{kind}{name}"[-32:], job, kind, name, position, token),
    )


def put_place(server: Emulator, number: int, partition: str = "pg", log: str = LSN) -> None:
    put(server, "position", partition, number)
    put(server, "place", f"{partition} {log}", number)


@pytest.fixture
def ledger(server: Emulator) -> Emulator:
    """A ledger with a job that reads a PostgreSQL as far as 0/100, and an own source partition p-0 as far as 42."""
    write_a_position(server)
    put_place(server, 0x100)
    return server


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Does things in place of the pauses between two looks, one after the other; returns the pauses."""

    def does(*actions: Callable[[], Any]) -> list[float]:
        left, pauses = list(actions), list[float]()

        def sleep(_: SystemClock, seconds: float) -> None:
            pauses.append(seconds)
            if left:
                left.pop(0)()

        monkeypatch.setattr(SystemClock, "sleep", sleep)
        return pauses

    return does


def command(server: Emulator, *words: str, job: str = "shop") -> int:
    place = ["--query-url", server.query_url, "--database", "shop", "--password-environment", "SECRET", "--job", job]
    return cli.main(["wait", *place, *words])


def test_a_position_that_is_passed_is_answered_at_once(ledger: Emulator, capsys: Shown) -> None:
    assert command(ledger, "--position", "0/FF") == 0
    assert capsys.readouterr().out == "0/FF: visible; pg is at 256 since 2026-11-29 03:04:05 UTC (label l-7).\n"
    assert command(ledger, "--position", "0/100", "--timeout", "0", "--json") == 0
    place = {"partition": "pg", "position": 256, "label": "l-7", "since": "2026-11-29 03:04:05", "given_up": 0}
    assert json.loads(capsys.readouterr().out) == {"position": "0/100", "ledger": place}
    assert command(ledger, "--position", "42", "--partition", "p-0") == 0


def test_it_waits_until_the_ledger_has_passed_it(ledger: Emulator, meanwhile: Callable[..., list[float]]) -> None:
    pauses = meanwhile(lambda: None, lambda: put_place(ledger, 0x101), lambda: put_place(ledger, 0x102))
    assert wait_for_position(options(ledger), "0/102").position == 0x102
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


def test_a_gtid_of_a_transaction_without_a_row_is_passed_with_a_later_one(ledger: Emulator) -> None:
    put(ledger, "position", "my", 5)
    put(ledger, "place", "my 0-1", 9)
    assert wait_for_position(options(ledger), "0-1-8").partition == "my"
    with pytest.raises(PositionNotReached, match="it is at 0-1-9"):
        wait_for_position(options(ledger), "0-1-10", timeout=0)


def test_the_time_limit_says_what_is_known_and_has_an_exit_code(ledger: Emulator, capsys: Shown) -> None:
    assert command(ledger, "--position", "0/101", "--timeout", "0") == 1
    error = capsys.readouterr().err
    assert error.startswith("starrocks-txn-sink: 0/101 of pg is not visible yet: it is at 0/100. The job's last commit")
    owner = query(ledger, f"SELECT epoch FROM shop.{LEDGER_TABLE} WHERE kind = 'driver'")[0][0]
    assert f"; run {owner} owns it since 20" in error
    query(ledger, f"DELETE FROM shop.{LEDGER_TABLE} WHERE kind = 'driver'")
    with pytest.raises(TimeoutError, match="; nothing owns it"):
        wait_for_position(options(ledger), "0/101", timeout=0.01)


@pytest.mark.parametrize(
    ("position", "error", "message"),
    [
        ("now", OptionError, "has no known form"),
        ("42", OptionError, "may be of several source partitions: p-0, pg"),
        ("0-1-5", PositionOfOtherSource, "is a GTID of MariaDB. The job has read: pg at 0/100"),
    ],
)
def test_a_wrong_question_is_an_error(
    ledger: Emulator, capsys: Shown, position: str, error: type[StarRocksSinkError], message: str
) -> None:
    assert command(ledger, "--position", position) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(error, match=re.escape(message)):
        wait_for_position(options(ledger), position)


def test_a_time_limit_is_a_duration_and_the_job_is_named(ledger: Emulator) -> None:
    for wrong in (-1, "soon"):
        with pytest.raises(OptionError, match="timeout is"):
            wait_for_position(options(ledger), "0/1", timeout=wrong)
    with pytest.raises(OptionError, match="job is not set"):
        wait_for_position(replace(options(ledger), job=None), "0/1")


def test_an_unknown_job_is_an_error_that_names_the_others(ledger: Emulator, capsys: Shown) -> None:
    assert command(ledger, "--position", "0/1", job="shpo") == 2
    assert "no rows of the job shpo. Its jobs are: shop." in capsys.readouterr().err
    with pytest.raises(UnknownJob):
        wait_for_position(options(ledger, "shpo"), "0/1")
    query(ledger, f"DROP TABLE shop.{LEDGER_TABLE}")
    with pytest.raises(JobLedgerMissing):
        wait_for_position(options(ledger), "0/1")


def test_a_job_that_was_moved_away_is_an_error(ledger: Emulator) -> None:
    put(ledger, "marker", "gate", token=Gate(closed=True, move="m", to="other").token)
    with pytest.raises(JobMoved, match="moved away to the job other"):
        wait_for_position(options(ledger), "0/1")


@pytest.mark.parametrize("missing", ["--query-url", "--database", "--job"])
def test_the_server_has_to_be_named_where_no_file_is(server: Emulator, capsys: Shown, missing: str) -> None:
    words = {"--query-url": server.query_url, "--database": "shop", "--job": "shop"}
    given = [word for name, value in words.items() if name != missing for word in (name, value)]
    assert cli.main(["wait", "--position", "0/1", *given]) == 2
    assert f"{missing} is missing" in capsys.readouterr().err


def test_another_source_that_follows_meanwhile_ends_the_wait(
    ledger: Emulator, meanwhile: Callable[..., list[float]]
) -> None:
    follower = "pg@2026-11-29T01:02:03.456Z"
    meanwhile(lambda: put_place(ledger, 0x500, follower))
    with pytest.raises(PositionOfOtherSource, match=f"{follower} has followed pg"):
        wait_for_position(options(ledger), "0/200")
    assert wait_for_position(options(ledger), "0/200").partition == follower


def test_the_statement_of_the_guide_says_what_is_passed(ledger: Emulator) -> None:
    (statement,) = blocks("docs/guides/read-your-writes.md", "sql")
    assert parse("0/16B3748").numbers == {LSN: 23803720}
    for number, passed in ((23803719, 0), (23803720, 1)):
        put_place(ledger, number, "shop")
        assert query(ledger, statement) == [(passed,)]


# --- passed, but not visible ---


def letter(server: Emulator, position: int, partition: str = "pg") -> None:
    query(server, create_table("shop"))
    query(
        server,
        f"INSERT INTO shop.{DEAD_LETTER_TABLE} (id, job, source_partition, position, table_name, `row_number`, "
        f"set_aside_at) VALUES ('d{position}', 'shop', '{partition}', {position}, 'items', 0, '2026-11-29 03:00:00')",
    )


def test_dead_letters_up_to_the_position_are_not_visible(ledger: Emulator, capsys: Shown) -> None:
    for position, partition in ((0x80, "pg"), (0x90, "pg"), (0x100, "pg"), (7, "p-0")):
        letter(ledger, position, partition)
    assert wait_for_position(options(ledger), "0/7F").partition == "pg"
    assert command(ledger, "--position", "0/95") == 3
    error = capsys.readouterr().err
    assert (
        "passed 0/95 of pg, but 2 source transaction(s) up to it are dead letters: the newest at position 144" in error
    )
    query(ledger, f"DELETE FROM shop.{DEAD_LETTER_TABLE} WHERE position < 256")
    assert wait_for_position(options(ledger), "0/95").partition == "pg"  # they were replayed


def test_any_dead_letter_may_be_that_of_a_gtid(ledger: Emulator) -> None:
    put(ledger, "position", "my", 500)
    put(ledger, "place", "my 0-1", 9)
    assert wait_for_position(options(ledger), "0-1-1").position == 500
    letter(ledger, 500, "my")
    with pytest.raises(PositionDeadLettered):
        wait_for_position(options(ledger), "0-1-1")


def test_what_was_given_up_meanwhile_may_be_what_was_asked_for(
    ledger: Emulator, meanwhile: Callable[..., list[float]]
) -> None:
    put(ledger, "place", f"pg {GIVEN_UP}", 1)
    assert wait_for_position(options(ledger), "0/100").given_up == 1

    def give_up() -> None:
        put(ledger, "place", f"pg {GIVEN_UP}", 2)
        put_place(ledger, 0x200)

    meanwhile(give_up)
    with pytest.raises(
        PositionDeadLettered, match=r"1 source transaction\(s\) that did not become whole were given up"
    ):
        wait_for_position(options(ledger), "0/200")


# --- trouble ---


def test_an_outage_is_waited_out_up_to_the_time_limit(
    ledger: Emulator, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[..., list[float]]
) -> None:
    asking, looks = LeaderConnection.query, list[int]()

    def query_with_outages(connection: LeaderConnection, *words: Any) -> Any:
        looks.append(1)
        if len(looks) < 3:
            raise QueryFailed("No answer.")
        return asking(connection, *words)

    monkeypatch.setattr(LeaderConnection, "query", query_with_outages)
    with pytest.raises(QueryFailed):
        wait_for_position(options(ledger), "0/100", timeout=0)
    pauses = meanwhile()
    assert wait_for_position(options(ledger), "0/100", timeout="5s").position == 256
    assert len(pauses) == 1


# --- a file of sync ---


def file_of(server: Emulator, folder: Path, job: str = "", more: str = "") -> str:
    path = folder / "shop.toml"
    path.write_text(f"""
[source]
brokers = "b1:9092"
topics = 'shop\\..*'
{more}
[target]
load_url = "{server.load_url}"
query_url = "{server.query_url}"
database = "shop"
password_environment = "SECRET"
{job}

[query]
checkpoint = "{folder / "checkpoint"}"
""")
    return str(path)


def test_a_file_of_sync_has_server_database_and_job(ledger: Emulator, tmp_path: Path, capsys: Shown) -> None:
    file = file_of(ledger, tmp_path, 'job = "shop"')
    assert cli.main(["wait", file, "--position", "0/100"]) == 0
    assert cli.main(["wait", file, "--position", "0/100", "--job", "shpo"]) == 2
    assert "no rows of the job shpo" in capsys.readouterr().err
    assert cli.main(["wait", file, "--position", "0/100", "--database", "shop"]) == 2
    assert "Leave --query-url and --database out" in capsys.readouterr().err


def test_a_job_without_a_name_is_found_by_its_checkpoint(ledger: Emulator, tmp_path: Path, capsys: Shown) -> None:
    file = file_of(ledger, tmp_path)
    assert cli.main(["wait", file, "--position", "0/100"]) == 2
    assert "The file names no job, and its checkpoint is not here, or new." in capsys.readouterr().err
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/metadata").write_text('{"id":"3f-7"}')
    put(ledger, "position", "pg", 0x100, job="query-3f-7")
    put(ledger, "place", "pg lsn", 0x100, job="query-3f-7")
    assert cli.main(["wait", file, "--position", "0/100"]) == 0


def test_a_file_that_takes_changes_by_themselves_knows_offsets_alone(
    ledger: Emulator, tmp_path: Path, capsys: Shown
) -> None:
    file = file_of(ledger, tmp_path, 'job = "shop"', 'transactions = "none"')
    assert cli.main(["wait", file, "--position", "0/100"]) == 2
    assert "its ledger counts Kafka's offsets" in capsys.readouterr().err
    assert cli.main(["wait", file, "--position", "42", "--partition", "p-0"]) == 0
