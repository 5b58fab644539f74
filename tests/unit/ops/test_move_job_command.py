"""`starrocks-txn-sink ledger` against the emulator: a job moves whole, once, whatever breaks off on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_ops import cli, move_job
from starrocks_txn_ops.moving import close_job
from starrocks_txn_sink.errors import Fenced, JobMoved, ReplyLost
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.dead_letters import DEAD_LETTER_TABLE, create_table
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, row_id
from starrocks_txn_sink.rows.body import load_body
from starrocks_txn_sink.sink.session import Resumption, open_session
from starrocks_txn_sink.sql.connection import SqlLedger
from tests.support.depth import part
from tests.support.left_behind import PASSWORD, leave_open, options, write_a_position
from tests.support.micro_batch import lane_rows, write_micro_batch, write_under
from tests.support.query_port import query

pytestmark = [
    pytest.mark.emulator(
        "CREATE TABLE shop.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
        "CREATE DATABASE other",
        "CREATE TABLE other.items (id BIGINT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
        password=PASSWORD,
    ),
    pytest.mark.usefixtures("environment"),
]
Shown = pytest.CaptureFixture[str]


def command(server: Emulator, *words: str, job: str = "shop", database: str = "shop") -> int:
    place = ["--query-url", server.query_url, "--load-url", server.load_url, "--database", database, "--job", job]
    return cli.main(["ledger", *words, *place, "--password-environment", "SECRET"])


def positions(server: Emulator, job: str, database: str = "shop") -> list[tuple[Any, ...]]:
    sql = f"SELECT name, position, checkpoint, batch, label, row_count, digest FROM {database}.{LEDGER_TABLE}"
    return query(server, f"{sql} WHERE job = %s AND kind = 'position' ORDER BY name", job)


def in_database(sink_options: SinkOptions, database: str) -> SinkOptions:
    return SinkOptions(
        load_url=sink_options.load_url,
        query_url=sink_options.query_url,
        database=database,
        job=sink_options.job,
        password=PASSWORD,
    )


class _Crash(BaseException):
    """The command's process ends."""


def crash(*_: object) -> None:
    raise _Crash


def ids(server: Emulator, database: str = "shop") -> list[int]:
    return [row[0] for row in query(server, f"SELECT id FROM {database}.items ORDER BY id")]


# --- export and import ---


def test_an_export_ends_the_running_driver_and_every_later_one(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    session = write_a_position(server)
    leave_open(server, f"shop-{session.epoch}-0-6-2_0")
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    assert "Job shop of database shop is closed (move " in capsys.readouterr().out
    with pytest.raises(Fenced):
        write_under(options(server), session, lane_rows({43: '{"id":2}'}), 6)
    for resumption in (Resumption(0), Resumption(6)):
        with pytest.raises(JobMoved, match=r"The job shop was moved away \(move "):
            open_session(options(server), "run", "shop", "checkpoint-1", resumption=resumption)
    assert ids(server) == [1]
    unfinished = "SELECT count(*) FROM information_schema.loads WHERE STATE NOT IN ('FINISHED', 'CANCELLED')"
    assert query(server, unfinished) == [(0,)]
    head, line = map(json.loads, file.read_text().splitlines())
    assert (head["version"], head["job"], head["database"], head["positions"]) == (1, "shop", "shop", 1)
    assert (line["partition"], line["position"], line["batch"]) == ("p-0", 42, 5)


def test_an_imported_job_goes_on_where_the_old_one_was(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    write_a_position(server)
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    assert command(server, "import", "--file", str(file), job="moved", database="other") == 0
    assert "Job moved of database other is open, with the 1 positions that job shop of database shop had" in (
        capsys.readouterr().out
    )
    assert positions(server, "moved", "other") == positions(server, "shop")
    target_options = in_database(options(server, "moved"), "other")
    session = open_session(target_options, "run", "moved", "checkpoint-1", resumption=Resumption(6))
    write_under(target_options, session, lane_rows({42: '{"id":1}', 43: '{"id":2}'}), 6)
    assert ids(server, "other") == [2]  # position 42 came with the tables


def tokens(server: Emulator, job: str, database: str = "shop") -> list[tuple[Any, ...]]:
    sql = f"SELECT kind, name, token FROM {database}.{LEDGER_TABLE} WHERE kind IN ('snapshot', 'key') AND job = %s"
    return query(server, f"{sql} ORDER BY kind, name", job)


def put_token(server: Emulator, job: str, kind: str, name: str, token: str) -> None:
    values = (row_id(job, kind, name), job, kind, name, token)
    query(server, f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name, token) VALUES (%s, %s, %s, %s, %s)", *values)


def test_what_is_known_of_the_source_moves_along(server: Emulator, tmp_path: Path) -> None:
    """Its snapshot, and the keys of its tables; what the new job had of an older life goes."""
    write_a_position(server)
    key = '["shop","public.items",["id"]]'
    for kind, name, token in (
        ("snapshot", "shop:", "reading"),
        ("snapshot", "shop:public.a", "over"),
        ("key", key, ""),
    ):
        put_token(server, "shop", kind, name, token)
    assert command(server, "rename", "--to", "moved") == 0
    known = tokens(server, "shop")
    assert tokens(server, "moved") == known
    assert len(known) == 3
    put_token(server, "shop", "snapshot", "shop:public.b", "over")
    file = tmp_path / "moved.jsonl"
    assert command(server, "export", "--file", str(file), job="moved") == 0
    assert command(server, "import", "--file", str(file)) == 0
    assert tokens(server, "shop") == known
    assert command(server, "export", "--file", str(tmp_path / "again.jsonl")) == 0
    assert command(server, "import", "--file", str(tmp_path / "again.jsonl"), job="far", database="other") == 0
    assert tokens(server, "far", "other") == known


def test_the_same_command_again_changes_nothing(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    write_a_position(server)
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for file in files:
        assert command(server, "export", "--file", str(file), "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second == {"move": first["move"], "positions": {"p-0": 42}}
    assert command(server, "import", "--file", str(files[0]), job="moved", database="other") == 0
    session = open_session(in_database(options(server, "moved"), "other"), "run", "moved", "checkpoint-1")
    assert command(server, "import", "--file", str(files[1]), job="moved", database="other") == 0
    target_options = in_database(options(server, "moved"), "other")
    write_under(target_options, session, lane_rows({43: '{"id":2}'}), 6)  # the repetition did not fence the driver
    assert command(server, "import", "--file", str(files[1]), job="moved", database="other") == 1
    assert "was opened by this move already, and has gone on since" in capsys.readouterr().err
    assert [row[1] for row in positions(server, "moved", "other")] == [43]


def test_an_import_into_the_closed_job_takes_the_export_back(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    write_a_position(server)
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    assert command(server, "import", "--file", str(file)) == 0
    write_micro_batch(options(server), {42: '{"id":1}', 43: '{"id":2}'}, 6, checkpoint="checkpoint-1")
    assert ids(server) == [1, 2]
    assert command(server, "import", "--file", str(file), job="copy") == 1
    assert "has opened the job shop in this database already" in capsys.readouterr().err


def test_of_two_imports_at_the_same_moment_one_says_which_job_to_close(
    server: Emulator, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_a_position(server)
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0

    def after_another_import(rows: Any, **terms: Any) -> Any:
        """The first import has looked, and is about to write."""
        monkeypatch.setattr(move_job, "load_body", load_body)
        assert command(server, "import", "--file", str(file), job="second") == 0
        return load_body(rows, **terms)

    monkeypatch.setattr(move_job, "load_body", after_another_import)
    assert command(server, "import", "--file", str(file), job="first") == 1
    error = capsys.readouterr().err
    assert "has opened the job second in this database already" in error
    assert "This command has opened first, too: close it with `ledger export`." in error


# --- rename ---


def test_a_renamed_job_goes_on_and_may_be_renamed_back(server: Emulator, capsys: Shown) -> None:
    write_a_position(server)
    assert command(server, "rename", "--to", "store") == 0
    assert "Job shop is closed. Job store of database shop is open" in capsys.readouterr().out
    with pytest.raises(JobMoved, match="moved away to the job store"):
        open_session(options(server), "run", "shop", "checkpoint-1")
    write_micro_batch(options(server, "store"), {42: '{"id":1}', 43: '{"id":2}'}, 6, checkpoint="checkpoint-1")
    assert command(server, "rename", "--to", "shop", job="store") == 0
    write_micro_batch(options(server), {43: '{"id":2}', 44: '{"id":3}'}, 7, checkpoint="checkpoint-1")
    assert ids(server) == [1, 2, 3]
    with pytest.raises(JobMoved):
        open_session(options(server, "store"), "run", "store", "checkpoint-1")


def test_status_shows_that_a_job_is_closed(server: Emulator, capsys: Shown) -> None:
    write_a_position(server)
    assert command(server, "rename", "--to", "store") == 0
    capsys.readouterr()
    place = ["--query-url", server.query_url, "--database", "shop", "--password-environment", "SECRET"]
    assert cli.main(["status", *place]) == 0
    shop, store = capsys.readouterr().out.split("Job store")
    assert "closed: the job was moved to store at 20" in shop
    assert "closed" not in store


# --- what is refused ---


def test_progress_of_the_target_is_not_replaced_and_its_driver_works_on(
    server: Emulator, tmp_path: Path, capsys: Shown
) -> None:
    write_a_position(server)
    busy = write_a_position(server, "busy")
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    write_under(options(server, "busy"), busy, lane_rows({43: '{"id":2}'}), 6)
    before = positions(server, "busy")
    assert command(server, "import", "--file", str(file), job="busy") == 1
    assert "has 1 positions of its own in this database" in capsys.readouterr().err
    assert positions(server, "busy") == before
    write_under(options(server, "busy"), busy, lane_rows({44: '{"id":3}'}), 7)


def test_a_rename_to_a_job_with_progress_closes_nothing(server: Emulator, capsys: Shown) -> None:
    session = write_a_position(server)
    write_a_position(server, "busy")
    assert command(server, "rename", "--to", "busy") == 1
    assert "has 1 positions of its own in this database" in capsys.readouterr().err
    write_under(options(server), session, lane_rows({43: '{"id":2}'}), 6)  # it was neither fenced nor closed


def test_old_positions_never_come_back(server: Emulator, capsys: Shown) -> None:
    """A move that has opened a job, which went on and was moved again, opens it no second time."""
    write_a_position(server)
    assert command(server, "rename", "--to", "store") == 0
    write_micro_batch(options(server, "store"), {42: '{"id":1}', 43: '{"id":2}'}, 6, checkpoint="checkpoint-1")
    assert command(server, "rename", "--to", "third", job="store") == 0
    assert command(server, "rename", "--to", "store") == 1
    assert "has opened the job store before, and it was moved again" in capsys.readouterr().err
    assert is_closed(server, "store")
    assert [row[1] for row in positions(server, "store")] == [43]
    assert command(server, "rename", "--to", "store", job="third") == 0  # with its last positions it does


def test_a_move_that_opened_nothing_is_not_taken_back_with_foreign_positions(
    server: Emulator, tmp_path: Path, capsys: Shown
) -> None:
    write_a_position(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(move_job, "open_job", crash)  # the command ends between its steps
        with pytest.raises(_Crash):
            command(server, "rename", "--to", "store")
    write_a_position(server, "store")
    write_micro_batch(options(server, "store"), {43: '{"id":2}'}, 6, checkpoint="checkpoint-1")
    capsys.readouterr()
    assert command(server, "rename", "--to", "shop", job="store") == 1
    assert "Take shop back: starrocks-txn-sink ledger export --job shop" in capsys.readouterr().err
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    assert command(server, "import", "--file", str(file)) == 0
    assert [row[1] for row in positions(server, "shop")] == [42]
    open_session(options(server), "run", "shop", "checkpoint-1")


def test_a_driver_that_began_too_early_is_fenced_before_it_has_written(server: Emulator, tmp_path: Path) -> None:
    write_a_position(server)
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    early = open_session(options(server, "moved"), "run", "moved", "checkpoint-2")
    assert command(server, "import", "--file", str(file), job="moved") == 0
    with pytest.raises(Fenced):
        write_under(options(server, "moved"), early, lane_rows({42: '{"id":1}'}), 0)
    assert ids(server) == [1]


def cut(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "is not whole"),
        (lambda text: text.replace('"position": 42', '"position": 43'), "is not whole"),
        (lambda text: text.replace('"database": "shop"', '"database": "ship"'), "is not whole"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "has version 2, and this program reads version 1"),
        (lambda _: '{"a": 1}\n', "is no file of a ledger"),
        (lambda _: "nonsense\n", "Line 1 of"),
        (lambda _: "", "Line 1 of"),
    ],
)
def test_a_file_that_is_not_whole_opens_nothing(
    server: Emulator, tmp_path: Path, capsys: Shown, spoil: Callable[[str], str], message: str
) -> None:
    write_a_position(server)
    file = tmp_path / "shop.jsonl"
    assert command(server, "export", "--file", str(file)) == 0
    file.write_text(spoil(file.read_text()))
    assert command(server, "import", "--file", str(file), job="moved") == 1
    assert message in capsys.readouterr().err
    assert positions(server, "moved") == []


def test_dead_letters_are_not_left_behind(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    session = write_a_position(server)
    query(server, create_table("shop"))
    query(
        server,
        f"INSERT INTO shop.{DEAD_LETTER_TABLE} (id, job, source_partition, position, table_name, `row_number`) "
        "VALUES ('d', 'shop', 'p-0', 1, 'items', 0)",
    )
    assert command(server, "export", "--file", str(tmp_path / "f")) == 1
    assert "has 1 rows of dead letters" in capsys.readouterr().err
    write_under(options(server), session, lane_rows({43: '{"id":2}'}), 6)  # it was not fenced


def test_dead_letters_of_the_last_moment_leave_the_job_open(
    server: Emulator, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver writes them after the command has looked, and before it is fenced."""
    write_a_position(server)

    def after_the_driver_wrote(*arguments: Any) -> Any:
        query(server, create_table("shop"))
        query(
            server,
            f"INSERT INTO shop.{DEAD_LETTER_TABLE} (id, job, source_partition, position, table_name, `row_number`) "
            "VALUES ('d', 'shop', 'p-0', 1, 'items', 0)",
        )
        return close_job(*arguments)

    monkeypatch.setattr(move_job, "close_job", after_the_driver_wrote)
    assert command(server, "export", "--file", str(tmp_path / "f")) == 1
    assert "has 1 rows of dead letters" in capsys.readouterr().err
    assert not is_closed(server, "shop")
    open_session(options(server), "run", "shop", "checkpoint-1")


def test_wrong_words_are_said_before_anything_is_closed(server: Emulator, tmp_path: Path, capsys: Shown) -> None:
    session = write_a_position(server)
    existing_file = tmp_path / "there"
    existing_file.write_text("something else")
    for words, message in (
        (["export"], "export and import take --file"),
        (["rename", "--file", "x"], "rename takes --to"),
        (["rename", "--to", "shop"], "--to is the present name"),
        (["rename", "--to", "no spaces"], "job"),
        (["export", "--file", str(existing_file)], "exists already"),
        (["import", "--file", str(tmp_path / "nowhere")], "cannot be read"),
    ):
        assert command(server, *words) == 1
        assert message in capsys.readouterr().err
    assert command(server, "export", "--file", str(tmp_path / "f"), job="shopp") == 1
    assert "Its jobs are: shop." in capsys.readouterr().err
    write_under(options(server), session, lane_rows({43: '{"id":2}'}), 6)


# --- crashes ---


def breaking_after(monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]) -> list[int]:
    """Raise `error` after request `number` to the server; returns the counter of requests."""
    counter = [0]

    def wrap(method: Any) -> Any:
        def call(*args: Any) -> Any:
            answer = method(*args)
            counter[0] += 1
            if counter[0] == number:
                raise error("crash")
            return answer

        return call

    monkeypatch.setattr(SqlLedger, "execute", wrap(SqlLedger.execute))
    monkeypatch.setattr(HttpTransport, "send", wrap(HttpTransport.send))
    return counter


@pytest.mark.timeout(600)
@pytest.mark.parametrize("error", [pytest.param(_Crash, marks=pytest.mark.deep), ReplyLost])
def test_a_rename_that_breaks_off_anywhere_is_repeated_to_its_end(server: Emulator, error: type[BaseException]) -> None:
    """After each request to the server, or each third or ninth one; and at no moment both names can write."""
    for number in itertools.count(1, 2 * part() - 1):
        job, to = f"old{number}", f"new{number}"
        write_a_position(server, job)
        with pytest.MonkeyPatch.context() as patch:
            requests = breaking_after(patch, number, error)
            try:
                assert command(server, "rename", "--to", to, job=job) == 0
            except _Crash:
                assert is_closed(server, job) or not positions(server, to)
        assert command(server, "rename", "--to", to, job=job) == 0
        assert positions(server, to) == positions(server, job)
        with pytest.raises(JobMoved):
            open_session(options(server, job), "run", job, "checkpoint-1")
        session = open_session(options(server, to), "run", to, "checkpoint-1")
        assert [position.position for position in session.positions.values()] == [42]
        if requests[0] < number:  # nothing was left to break
            break
    assert number > 20


def is_closed(server: Emulator, job: str) -> bool:
    sql = f"SELECT count(*) FROM shop.{LEDGER_TABLE} WHERE job = %s AND token LIKE 'closed:%%'"
    return query(server, sql, job) == [(1,)]
