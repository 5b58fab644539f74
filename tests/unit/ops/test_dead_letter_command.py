"""`starrocks-txn-sink dead-letter` against the emulator: what it lists, what a replay writes and deletes."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import RowOrder
from starrocks_txn_ops import cli
from starrocks_txn_sink.protocol import dead_letters as letter_table, label as protocol, ledger
from starrocks_txn_sink.protocol.dead_letters import (
    COLUMNS,
    DEAD_LETTER_TABLE,
    DeadLetterSource,
    create_table,
    dead_letter_rows,
)
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from tests.support.query_port import query

pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, n INT) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    "CREATE TABLE shop.items (id BIGINT, b VARBINARY) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
    create_table("shop"),
)

ROOT = Path(__file__).parents[3]


def dead_letter(
    server: Emulator, position: int, job: str = "j", columns: str | None = None, **tables: list[str]
) -> None:
    place = DeadLetterSource("p-0", position, "NULL in a NOT NULL column", "label-1", 4, "2026-01-02 03:04:05")
    for table, rows in tables.items():
        binary = "`id`,`__hex_b`,`b`=to_binary(`__hex_b`, 'hex')" if table == "items" else ""
        loaded = binary if columns is None else columns
        letters = b"".join(dead_letter_rows(job, place, table, loaded, [row.encode() for row in rows]))
        for row in orjson.loads(b"[%b]" % letters[1:]):
            names = ", ".join(f"`{name}`" for name in row)
            marks = ", ".join(["%s"] * len(row))
            query(server, f"INSERT INTO shop.{DEAD_LETTER_TABLE} ({names}) VALUES ({marks})", *row.values())


def command(server: Emulator, *words: str) -> int:
    place = ["--query-url", server.query_url, "--load-url", server.load_url, "--database", "shop", "--job", "j"]
    return cli.main(["dead-letter", *words, *place])


def test_lists_source_transactions_with_counts_and_reason(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    dead_letter(server, 9, orders=['{"id":1}'], items=['{"id":1}', '{"id":2}'])
    dead_letter(server, 10, orders=['{"id":3}'])
    dead_letter(server, 9, job="other", orders=['{"id":4}'])
    assert command(server, "list") == 0
    output = capsys.readouterr().out
    assert "dead letters: 2, 4 rows" in output
    assert "p-0  9  2 of items, 1 of orders; micro-batch 4, at 2026-01-02 03:04:05" in output
    assert command(server, "list", "--json", "--position", "10") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["tables"] == {"orders": 1}


def test_a_replay_writes_the_rows_and_deletes_the_dead_letters_in_one_transaction(
    server: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letter(server, 9, orders=['{"id":1,"n":7}'], items=['{"id":5,"__hex_b":"00ff"}'])
    dead_letter(server, 10, orders=['{"id":1,"n":8}'])
    assert command(server, "replay") == 0
    assert "replayed: 2" in capsys.readouterr().out
    assert query(server, "SELECT id, n FROM shop.orders") == [(1, 8)]
    assert query(server, "SELECT id, b FROM shop.items") == [(5, b"\x00\xff")]
    assert query(server, f"SELECT count(*) FROM shop.{DEAD_LETTER_TABLE}") == [(0,)]
    labels = query(server, "SELECT LABEL FROM information_schema.loads WHERE TABLE_NAME = 'items'")
    assert labels == query(
        server,
        f"SELECT LABEL FROM information_schema.loads WHERE TABLE_NAME = '{DEAD_LETTER_TABLE}' ORDER BY LABEL LIMIT 1",
    )
    assert command(server, "replay") == 0
    assert "replayed: none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "reason"), [('"many"', "it is a text that is no number"), ("1.5", "it has a fraction, which is cut off")]
)
def test_what_does_not_fit_its_column_stays_and_stops_the_replay(
    server: Emulator, capsys: pytest.CaptureFixture[str], value: str, reason: str
) -> None:
    dead_letter(server, 9, orders=[f'{{"id":1,"n":{value}}}'])
    dead_letter(server, 10, orders=['{"id":2,"n":8}'])
    assert command(server, "replay") == 1
    output = capsys.readouterr().err
    assert f"A value does not fit column n of table orders: {reason}" in output
    assert "position=9" in output
    assert "UPDATE" in output
    assert query(server, "SELECT count(*) FROM shop.orders") == [(0,)]
    query(server, f'UPDATE shop.{DEAD_LETTER_TABLE} SET content = \'{{"id":1,"n":5}}\' WHERE position = 9')
    assert command(server, "replay") == 0
    assert query(server, "SELECT id, n FROM shop.orders ORDER BY id") == [(1, 5), (2, 8)]


@pytest.mark.emulator(
    *(f"CREATE TABLE shop.{table} (id BIGINT NOT NULL, n INT) PRIMARY KEY(id)" for table in ("orders", "renamed")),
    "CREATE TABLE shop.items (id BIGINT, n INT) DUPLICATE KEY(id) DISTRIBUTED BY HASH(id)",
    create_table("shop"),
    row_order=RowOrder.ARBITRARY,
    row_order_seed=3,
)
@pytest.mark.parametrize("compact", [True, False])
def test_of_the_rows_of_one_key_only_the_last_is_replayed(server: Emulator, compact: bool) -> None:
    """The server promises no order of one key's changes inside a StarRocks transaction."""
    changes = [f'{{"id":{7 if n % 2 else "7.0"},"n":{n}}}' for n in range(20)]
    deleted = ['{"id":8,"n":1}', '{"__op":1,"id":8}', '{"id":9,"n":1}']
    renamed = [f'{{"number":{n},"n":{n}}}' for n in range(3)]
    dead_letter(server, 9, orders=[*changes, *deleted])
    dead_letter(server, 10, items=changes[:2], columns="")
    dead_letter(server, 11, renamed=renamed, columns="`number`,`n`,`id`=`number`")
    assert command(server, "replay", "--option", f"compact={compact}") == 0
    rows = query(server, "SELECT id, n FROM shop.orders ORDER BY id")
    assert (rows == [(7, 19), (9, 1)]) == compact
    assert query(server, "SELECT count(*) FROM shop.items") == [(2,)]
    assert query(server, "SELECT id, n FROM shop.renamed ORDER BY id") == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, note VARCHAR(1000)) PRIMARY KEY(id)", create_table("shop")
)
def test_a_row_of_several_dead_letters_is_replayed_as_one(
    server: Emulator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_table, "MOST_ROW_BYTES", 100)
    note = "é" * 75
    dead_letter(server, 9, orders=[f'{{"id":1,"note":"{note}"}}', '{"id":2}'])
    assert query(server, f"SELECT count(*) FROM shop.{DEAD_LETTER_TABLE}") == [(3,)]
    assert command(server, "list") == 0
    assert "dead letters: 1, 2 rows" in capsys.readouterr().out
    assert command(server, "replay") == 0
    assert query(server, "SELECT id, note FROM shop.orders ORDER BY id") == [(1, note), (2, None)]
    assert query(server, f"SELECT count(*) FROM shop.{DEAD_LETTER_TABLE}") == [(0,)]


@pytest.mark.emulator(
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, n INT) PRIMARY KEY(id)",
    "CREATE TABLE shop.named (name VARCHAR(200) NOT NULL) PRIMARY KEY(name)",
    create_table("shop"),
)
@pytest.mark.parametrize(
    ("table", "row", "reason"),
    [
        ("orders", '{"id":1,"n":', "is not exactly one JSON object"),
        ("named", f'{{"name":"{"x" * 129}"}}', "has a primary key of 129 bytes (column name)"),
    ],
)
def test_what_the_sink_finds_bad_is_not_sent_again(
    server: Emulator, table: str, row: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letter(server, 9, orders=['{"__op":1,"id":5}'])
    bad: dict[str, Any] = {table: [row]}
    dead_letter(server, 10, **bad)
    assert command(server, "replay") == 1
    said = capsys.readouterr().err
    assert f"A row {reason}" in said
    assert "position 10" in said
    assert "UPDATE" in said
    assert query(server, f"SELECT position FROM shop.{DEAD_LETTER_TABLE}") == [(10,)]


def test_one_position_alone_can_be_replayed(server: Emulator) -> None:
    dead_letter(server, 9, orders=['{"id":1}'])
    dead_letter(server, 10, orders=['{"id":2}'])
    assert command(server, "replay", "--source-partition", "p-0", "--position", "10") == 0
    assert query(server, "SELECT id FROM shop.orders") == [(2,)]


@pytest.mark.parametrize("table", [LEDGER_TABLE, LEDGER_TABLE.upper()])
def test_a_letter_for_a_table_of_the_sinks_own_is_not_replayed(
    server: Emulator, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = '{"id":"x","job":"j","kind":"position","name":"p-0","position":99}'
    dead: dict[str, Any] = {"orders": ['{"id":1}'], table: [forged]}
    dead_letter(server, 9, **dead)
    assert command(server, "replay") == 1
    output = capsys.readouterr().err
    assert f"for the table {table}, which belongs to the sink" in output
    assert "position=9" in output
    assert query(server, "SELECT count(*) FROM shop.orders") == [(0,)]
    assert query(server, f"SELECT count(*) FROM shop.{LEDGER_TABLE} WHERE kind = 'position'") == [(0,)]


@pytest.mark.parametrize("step", ["check_owner", "commit"])
def test_a_replay_that_slept_writes_nothing_that_a_newer_one_has_written(
    server: Emulator, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its check of the owner, or between that and its commit, which may be carried out at any later time."""
    dead_letter(server, 9, items=['{"id":1}'])
    dead_letter(server, 10, items=['{"id":2}'])
    place = ledger if step == "check_owner" else protocol
    real = getattr(place, step)
    newer: list[int | None] = []

    def slept(*words: Any) -> Generator[Any, Any, Any]:
        if not newer:
            newer.append(None)
            newer[0] = command(server, "replay")
        return (yield from real(*words))

    monkeypatch.setattr(place, step, slept)
    assert command(server, "replay") == 1
    assert newer == [0]
    assert "replayed: 2" in capsys.readouterr().out
    assert query(server, "SELECT id FROM shop.items ORDER BY id") == [(1,), (2,)]


def test_a_replay_waits_until_what_a_killed_one_has_committed_is_visible(server: Emulator) -> None:
    dead_letter(server, 9, items=['{"id":1}'])
    server.faults.replace({"rules": [{"operation": "commit", "action": "hold_commit", "seconds": None, "times": 1}]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "confirm", killed)
        with pytest.raises(Killed):
            command(server, "replay")
    assert query(server, "SELECT count(*) FROM shop.items") == [(0,)]  # committed, but not visible yet
    timer = threading.Timer(0.3, server.release_held)
    timer.start()
    assert command(server, "replay") == 0
    timer.join(20)
    assert query(server, "SELECT id FROM shop.items") == [(1,)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_label_the_server_forgets_is_found_in_the_ledger_or_repeated(
    server: Emulator, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letter(server, 9, items=['{"id":1}'])
    fault = {"operation": "commit", "action": "forget_labels", "when": when, "times": 1}
    server.faults.replace({"rules": [fault]})
    assert command(server, "replay") == 0
    assert "replayed: 1" in capsys.readouterr().out
    assert query(server, "SELECT id FROM shop.items") == [(1,)]


def test_a_replay_whose_label_ends_before_its_commit_loads_again(server: Emulator) -> None:
    """A driver of the job that starts ends it, too."""
    dead_letter(server, 9, items=['{"id":1}'])
    server.faults.replace(
        {"rules": [{"operation": "commit", "action": "restart_frontend", "when": "before", "times": 1}]}
    )
    assert command(server, "replay") == 0
    assert query(server, "SELECT id FROM shop.items") == [(1,)]


class Killed(BaseException):
    """What nobody catches."""


def killed(*_: Any) -> Iterator[Any]:
    raise Killed


def test_the_page_has_the_tables_ddl() -> None:
    page = " ".join((ROOT / "docs" / "guides" / "dead-letters.md").read_text(encoding="utf-8").split())
    for name, kind in COLUMNS:
        assert f"`{name}` {kind}" in page


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("action", ["list", "replay"])
def test_a_misspelt_job_is_an_error_that_names_the_others(
    server: Emulator, capsys: pytest.CaptureFixture[str], action: str, has_table: bool
) -> None:
    if not has_table:  # it is made with the first dead letter
        query(server, f"DROP TABLE shop.{DEAD_LETTER_TABLE}")
    query(server, ledger.create_table("shop"))
    query(server, f"INSERT INTO shop.{LEDGER_TABLE} (id, job, kind, name) VALUES ('x', 'shop', 'position', 'p-0')")
    assert command(server, action) == 1
    assert "no rows of the job j. Its jobs are: shop." in capsys.readouterr().err
    assert query(server, f"SELECT count(*) FROM shop.{LEDGER_TABLE}") == [(1,)]  # nothing was claimed


def test_without_a_table_there_are_no_dead_letters(server: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    query(server, f"DROP TABLE shop.{DEAD_LETTER_TABLE}")
    assert command(server, "list") == 0
    output = capsys.readouterr()
    assert output.out == "dead letters: none\n"
    assert output.err == "The database shop has no ledger to look up the job j in.\n"
    assert command(server, "list", "--json") == 0
    assert capsys.readouterr().out == ""
    assert command(server, "replay") == 0
    assert "replayed: none" in capsys.readouterr().out
