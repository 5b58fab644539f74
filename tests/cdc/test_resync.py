"""`resync` and repairs of any size, on a real PostgreSQL and an emulator that a test fills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from starrocks_txn_ops.verify.held import Held
from starrocks_txn_sink.protocol.dead_letters import DeadLetterRow
from starrocks_txn_sink.protocol.verified import Verified
from tests.cdc.killed_repair import in_small_parts
from tests.cdc.postgres import Postgres
from tests.cdc.verifying import Verify
from tests.support.query_port import query
from tests.support.quick_start import ROOT
from tests.support.servers import Server
from tests.support.waiting import wait_until

POSTGRES = """
CREATE TABLE orders (id BIGINT PRIMARY KEY, note TEXT);
CREATE TABLE codes (code TEXT, n INT, PRIMARY KEY (code, n));
CREATE TABLE items (id INT, name TEXT, PRIMARY KEY (id));
"""
ORDERS = (
    "CREATE TABLE shop.orders (id BIGINT NOT NULL, note VARCHAR(100), tax INT)"
    " PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)
CODES = (
    "CREATE TABLE shop.codes (code VARCHAR(100) NOT NULL, n INT NOT NULL)"
    " PRIMARY KEY (code, n) DISTRIBUTED BY HASH (code)"
)
ITEMS = "CREATE TABLE shop.items (id INT, name VARCHAR(20)) DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)"


@pytest.mark.emulator(f"{ORDERS}; {CODES}")
def test_what_vanished_and_what_a_default_filled_are_written_and_other_tables_are_left(
    server: Server, postgres: Postgres, verify: Verify
) -> None:
    """A second first snapshot replaced the rows, and a column was added with a DEFAULT."""
    postgres.sql(
        "TRUNCATE orders, codes; INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 5) i;"
        "ALTER TABLE orders ADD COLUMN IF NOT EXISTS tax INT DEFAULT 7"
    )
    rows = ", ".join(f"({number}, 'n{number}', NULL)" for number in range(8))  # 0, 6 and 7 are gone at the source
    query(server, f"INSERT INTO shop.orders VALUES {rows}")
    query(server, "INSERT INTO shop.codes VALUES ('old', 1)")
    for words in ((), ("--dry-run",)):  # nobody has agreed
        code, tables, report = verify(postgres.url, "", "public.orders", *words, command="resync")
        assert (code, tables["public.orders"]["repair"]) == (1, None), report
    code, tables, report = verify(postgres.url, "", "public.orders", "--yes", command="resync")
    assert code == 0, json.dumps(report)
    assert [*tables] == ["public.orders"]
    mended = tables["public.orders"]["repair"]
    assert (mended["written"], mended["deleted"]) == (5, 3)
    found = [tuple(map(str, row)) for row in query(server, "SELECT id, tax FROM shop.orders ORDER BY id")]
    assert found == [(str(number), "7") for number in range(1, 6)]
    assert query(server, "SELECT count(*) FROM shop.codes")[0][0] in (1, "1")
    code, tables, report = verify(postgres.url, "", "orders", "public.codes", "--yes", command="resync")
    assert {name: table["status"] for name, table in tables.items()} == {
        "public.codes": "repaired",
        "public.orders": "equal",
    }, report
    assert code == 0


@pytest.mark.emulator(ORDERS)
def test_a_table_that_is_none_of_the_files_is_refused(postgres: Postgres, verify: Verify) -> None:
    for name, said in (("order", "Did you mean orders?"), ("sales.orders", "Did you mean orders or public.orders?")):
        code, _, report = verify(postgres.url, "", name, "--yes", command="resync")
        assert code == 2
        assert said in report["error"]
    code, _, report = verify(postgres.url, "", "orders", "--yes", command="resync", source='transactions = "none"\n')
    assert code == 2
    assert "counts Kafka's offsets" in report["error"]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_parts(monkeypatch.setattr)


def fill(server: Server, postgres: Postgres) -> None:
    """500 of 1,000 orders are lost or changed, 200 codes are lost in one range, 300 items are there twice."""
    postgres.sql(
        "TRUNCATE orders, codes, items; INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 1000) i;"
        "INSERT INTO codes SELECT 'c' || i, i FROM generate_series(1, 200) i;"
        "INSERT INTO items SELECT i, 'i' FROM generate_series(1, 300) i"
    )
    postgres.sql("ALTER TABLE orders DROP COLUMN IF EXISTS tax")
    orders = [f"({n}, '{'x' if n % 4 == 1 else 'n'}{n}', NULL)" for n in range(1, 1001) if n % 4 != 2]
    query(server, f"INSERT INTO shop.orders VALUES {', '.join(orders)}, (-1, 'gone', 1), (2000, 'gone', 1)")
    items = [f"({n}, 'i')" for n in [*range(1, 301)] * 2]
    query(server, f"INSERT INTO shop.items VALUES {', '.join(items)}")


@pytest.mark.usefixtures("in_parts")
@pytest.mark.timeout(300)
@pytest.mark.emulator(f"{ORDERS}; {CODES}; {ITEMS}")
def test_one_run_repairs_tables_of_any_size_in_parts(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, postgres)
    sizes = list[int]()
    counted(monkeypatch, sizes.append)
    code, tables, report = verify(postgres.url, "", "--repair", "--yes")
    assert code == 0, json.dumps(report)
    assert {table["status"] for table in tables.values()} == {"repaired"}
    orders = tables["public.orders"]
    assert (orders["missing"], orders["different"], orders["extra"], orders["uncounted"]) == (250, 250, 2, 0)
    assert (orders["repair"]["written"], orders["repair"]["deleted"]) == (500, 2)
    assert tables["public.codes"]["repair"]["written"] == 200
    assert tables["public.items"]["extra"] == 300
    assert max(sizes) <= 60
    assert len(sizes) >= 1002 / 60
    kept = query(server, "SELECT token FROM shop._starrocks_txn_sink_ledger WHERE name = 'verified'")
    assert Verified.of_token(str(kept[0][0])).equal == 3
    query(server, "DELETE FROM shop.codes WHERE n = 7")
    code, tables, report = verify(postgres.url, "", "--table", "codes|orders")
    assert query(server, "SELECT token FROM shop._starrocks_txn_sink_ledger WHERE name = 'verified'") == kept
    code, tables, report = verify(postgres.url, "")
    assert {name: table["status"] for name, table in tables.items()} == {
        "public.codes": "different",
        "public.items": "equal",
        "public.orders": "equal",
    }, json.dumps(report)
    kept = query(server, "SELECT token FROM shop._starrocks_txn_sink_ledger WHERE name = 'verified'")
    found = Verified.of_token(str(kept[0][0]))
    assert (found.equal, found.different, found.rows, found.position) == (2, 1, 1, report["position"])


@pytest.mark.usefixtures("in_parts")
@pytest.mark.emulator(ORDERS)
def test_a_row_that_is_left_is_counted_once(server: Server, postgres: Postgres, verify: Verify) -> None:
    """The repair goes on behind it, and meets it again."""
    postgres.sql(
        "TRUNCATE orders; INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 200) i;"
        "UPDATE orders SET note = repeat('x', 101) WHERE id = 3; ALTER TABLE orders DROP COLUMN IF EXISTS tax"
    )
    code, tables, report = verify(postgres.url, "", "orders", "--yes", command="resync")
    assert code == 1, json.dumps(report)
    orders = tables["public.orders"]
    assert ([*orders["repair"]["left"].values()], orders["repair"]["written"], orders["missing"]) == ([1], 199, 200)
    assert [str(row[0]) for row in query(server, "SELECT count(*) FROM shop.orders")] == ["199"]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.timeout(600)
@pytest.mark.emulator(f"{ORDERS}; {CODES}; {ITEMS}")
def test_a_repair_that_is_killed_between_its_parts_goes_on(
    server: Server, postgres: Postgres, verify: Verify, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By SIGKILL, in front of a part of keys that were looked at twice, and of later ones."""
    fill(server, postgres)
    words = ("--repair", "--yes")
    verify(postgres.url, "", "--sample", "0.1%")  # writes the file
    command = (str(tmp_path / "shop.toml"), "--wait", "0.1", *words)
    for site in ("write=1", "write=6"):
        before = wrong_rows(server)
        ended = killed(site, "verify", *command)
        assert ended.returncode == -9, ended.stderr
        assert wrong_rows(server) < before
    sizes = list[int]()
    counted(monkeypatch, sizes.append)
    code, tables, report = verify(postgres.url, "", *words)
    assert code == 0, json.dumps(report)
    assert 0 < sum(sizes) < 1_002 - 2 * 60  # what the killed ones have written is equal
    code, tables, report = verify(postgres.url, "")
    assert (code, {table["status"] for table in tables.values()}) == (0, {"equal"}), json.dumps(report)


@pytest.mark.emulator(f"{ORDERS}; {CODES}; {ITEMS}")
def test_a_verify_that_is_killed_between_its_ranges_is_repeated(
    server: Server, postgres: Postgres, verify: Verify, tmp_path: Path
) -> None:
    """It leaves nothing behind: no result in the ledger, no snapshot at the source, and the next run says the same."""
    fill(server, postgres)
    _, whole, report = verify(postgres.url, "")
    kept = "SELECT token FROM shop._starrocks_txn_sink_ledger WHERE name = 'verified'"
    before = query(server, kept)
    ended = killed("range=3", "verify", str(tmp_path / "shop.toml"), "--wait", "0.1")
    assert ended.returncode == -9, ended.stderr
    assert query(server, kept) == before
    open_ = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    wait_until(lambda: not postgres.sql(open_), 60, "a snapshot stays open")
    code, tables, report = verify(postgres.url, "")
    counts = ("status", "missing", "extra", "different")
    assert code == 1, json.dumps(report)
    assert {name: [table[count] for count in counts] for name, table in tables.items()} == {
        name: [table[count] for count in counts] for name, table in whole.items()
    }


def killed(site: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tests.cdc.killed_repair", site, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=300)


def wrong_rows(server: Server) -> int:
    """How many rows of `fill` are still to be written or deleted."""
    ask = (
        "SELECT abs(1000 - count(*)) + sum(note LIKE 'x%') + 2 * sum(id IN (-1, 2000)) FROM shop.orders",
        "SELECT 200 - count(*) FROM shop.codes",
        "SELECT count(*) - 300 FROM shop.items",
    )
    return sum(int(query(server, statement)[0][0]) for statement in ask)


def counted(patch: pytest.MonkeyPatch, hears: Callable[[int], None]) -> None:
    """Each write of a repair is heard, with its number of rows, before it is carried out."""
    write = Held.write

    def told(self: Held, rows: Sequence[DeadLetterRow]) -> str:
        hears(len(rows))
        return write(self, rows)

    patch.setattr(Held, "write", told)
