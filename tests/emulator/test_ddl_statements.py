"""DDL and SQL statements over the store: what they make, what they refuse, what the catalog then tells."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.settings import EmulatorError
from starrocks_emulator.sql import statements
from starrocks_emulator.sql.ddl import Dialect, require_extensible_sqlglot
from starrocks_emulator.sql.session import QuerySession, SqlError
from starrocks_emulator.tables.alterations import Alterations
from starrocks_emulator.tables.catalog import Table
from starrocks_emulator.tables.store import Store
from tests.support.store_setup import load, rows


def run(store: Store, sql: str) -> int:
    return statements.run(store, QuerySession(database="test"), sql).affected


def test_definitions_survive_reopening_and_json(store: Store, tmp_path: Path) -> None:
    before = store.registry.tables()
    assert [Table.from_json(table.to_json()) for table in before] == list(before)
    store.close()
    reopened = Store(tmp_path / "data")
    try:
        assert list(reopened.registry.tables()) == list(before)
    finally:
        reopened.close()


def test_names_that_differ_in_case_are_two_tables_and_two_databases(store: Store, tmp_path: Path) -> None:
    names = ("test.Two", "test.two", "test.TWO", "Test.two")
    run(store, "CREATE DATABASE Test")
    for value, name in enumerate(names):
        run(store, f"CREATE TABLE {name} (id INT NOT NULL, v INT) PRIMARY KEY(id)")
        run(store, f"INSERT INTO {name} VALUES (1, {value})")
    load(store, "two", [{"id": 2, "v": 9}])
    assert [rows(store, f"SELECT id, v FROM {name} ORDER BY id") for name in names] == [
        [(1, 0)],
        [(1, 1), (2, 9)],
        [(1, 2)],
        [(1, 3)],
    ]
    run(store, "ALTER TABLE Two MODIFY COLUMN v BIGINT")
    run(store, "DROP TABLE test.TWO")
    run(store, "DROP DATABASE Test")
    store.close()
    reopened = Store(tmp_path / "data")
    try:
        assert {table.name for table in reopened.registry.tables("test")} >= {"Two", "two"}
        assert rows(reopened, "SELECT v FROM test.Two") == [(0,)]
        assert rows(reopened, "SELECT count(*) FROM test.two") == [(2,)]
        with pytest.raises(SqlError, match=r"Unknown table 'test\.TWO'"):
            rows(reopened, "SELECT 1 FROM test.TWO")
    finally:
        reopened.close()


def test_show_create_table_makes_the_same_table_again(store: Store) -> None:
    ((_, statement),) = rows(store, "SHOW CREATE TABLE orders")
    run(store, "DROP TABLE orders")
    run(store, statement)
    ((_, again),) = rows(store, "SHOW CREATE TABLE orders")
    assert again == statement
    assert "PRIMARY KEY(`order_id`)" in again


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE IF NOT EXISTS orders (a INT) DUPLICATE KEY(a)",
        "CREATE TABLE u (a INT NOT NULL, b INT) UNIQUE KEY(a) COMMENT 'u' DISTRIBUTED BY HASH(a) BUCKETS 8",
        "CREATE TABLE r (a INT, b VARCHAR(5) DEFAULT 'x' COMMENT 'c') DISTRIBUTED BY RANDOM PROPERTIES('a'='b')",
        "CREATE TABLE p (a INT, d DATE) DUPLICATE KEY(a) PARTITION BY date_trunc('day', d) DISTRIBUTED BY HASH(a)",
        "CREATE TABLE g (a INT, d DATE) DUPLICATE KEY(a) PARTITION BY RANGE(d) (START ('2024-01-01') END ('2025-01-01')"
        " EVERY (INTERVAL 1 MONTH)) DISTRIBUTED BY HASH(a)",
        "CREATE TABLE c (a INT NOT NULL, t DATETIME DEFAULT CURRENT_TIMESTAMP) PRIMARY KEY(a) DISTRIBUTED BY HASH(a)",
        "CREATE TABLE n (a INT, m MAP<INT,STRING>, r ARRAY<INT>, s STRUCT<a INT, b STRING>, j JSON) DUPLICATE KEY(a)",
    ],
)
def test_accepted_tables(store: Store, ddl: str) -> None:
    run(store, ddl)


@pytest.mark.parametrize(
    ("ddl", "code", "message"),
    [
        ("CREATE TABLE x (a INT, b INT) AGGREGATE KEY(a)", 1064, "aggregate function"),
        ("CREATE TABLE x (a INT NOT NULL AUTO_INCREMENT) PRIMARY KEY(a)", 1064, "AUTO_INCREMENT"),
        ('CREATE TABLE x (a INT) PROPERTIES ("replication_num" = "2")', 1064, "replication num"),
        ("CREATE TABLE x (a HLL)", 1064, "hll"),
        ("CREATE TABLE x (a DECIMAL(39,2))", 1064, "DECIMAL precision"),
        ("CREATE TABLE x (a INT, A INT)", 1060, "Duplicate column"),
        ("CREATE TABLE x (a INT, a INT)", 1060, "Duplicate column"),
        ("CREATE TABLE x (a INT, b INT) PRIMARY KEY(b)", 1064, "first few columns of the schema and the order  of"),
        ("CREATE TABLE x (a INT) PRIMARY KEY(b)", 1064, "doesn't exist"),
        ("CREATE TABLE x (a INT, __op INT)", 1166, "__op"),
        ("CREATE TABLE orders (a INT)", 1050, "already exists"),
        ("CREATE TABLE nodb.x (a INT)", 5501, "Unknown database 'nodb'"),
        ("CREATE DATABASE test", 1007, "database exists"),
        ("CREATE VIEW v AS SELECT 1", 1064, "VIEW"),
        ("DROP TABLE nope", 5502, "Unknown table 'nope'"),
        ("DROP DATABASE nope", 5501, "Unknown database"),
        ("ALTER TABLE orders DROP COLUMN order_id", 1064, "Key column"),
        ("ALTER TABLE orders DROP COLUMN nope", 1054, "does not exist"),
        ("ALTER TABLE orders ADD COLUMN x INT NOT NULL", 1064, "doesnt have a default"),
        ("INSERT INTO orders VALUES (1)", 5604, "column count: 4"),
        ("INSERT INTO orders (order_id) VALUES (1)", 1064, "customer_id"),
        ("INSERT INTO orders VALUES (1, NULL, 1, 'x')", 1064, "filtered"),
        ("UPDATE orders SET order_id = 1 WHERE order_id = 2", 1064, "cannot be updated"),
        ("UPDATE orders SET customer_id = 1", 1064, "where"),
        ("DELETE FROM orders", 1064, "where"),
        ("SELECT nope FROM orders", 1064, "nope"),
        ("SELECT * FROM information_schema.nope", 5502, "nope"),
        ("SELECT FROM WHERE", 1064, "syntax"),
        ("SELECT 1 FROM orders ORDER BY row_number", 1064, "is {'('}"),
        ("SHOW NONSENSE", 1064, "SHOW"),
    ],
)
def test_refused_statements(store: Store, ddl: str, code: int, message: str) -> None:
    with pytest.raises(SqlError) as failure:
        run(store, ddl)
    assert failure.value.code == code
    assert message in failure.value.message


def test_a_counter_fills_rows_without_a_number_and_only_the_ddl_shows_it(store: Store) -> None:
    """EXTRA is empty on the server, as COLUMN_DEFAULT is for such a column."""
    ddl = "CREATE TABLE counted (id BIGINT NOT NULL, n BIGINT NOT NULL AUTO_INCREMENT) PRIMARY KEY(id)"
    run(store, ddl)
    load(store, "counted", [{"id": 1}, {"id": 2, "n": 77}, {"id": 3, "n": None}])
    numbers = [number for (number,) in rows(store, "SELECT n FROM counted ORDER BY id")]
    assert numbers[1] == 77
    assert len({*numbers}) == 3
    listed = "SELECT COLUMN_DEFAULT, EXTRA FROM information_schema.columns WHERE COLUMN_NAME = 'n'"
    assert rows(store, listed) == [(None, "")]
    (row,) = statements.run(store, QuerySession(database="test"), "SHOW CREATE TABLE counted").rows
    assert "`n` bigint(20) NOT NULL AUTO_INCREMENT COMMENT" in row[1]


def test_altered_columns_keep_the_rows(store: Store) -> None:
    load(store, "orders", [{"order_id": 1, "customer_id": 2, "total_amount": "1.5", "order_status": "new"}])
    run(store, 'ALTER TABLE orders ADD COLUMN region VARCHAR(8) DEFAULT "eu" AFTER customer_id')
    run(store, "ALTER TABLE orders MODIFY COLUMN total_amount DECIMAL(20,4)")
    run(store, "ALTER TABLE orders RENAME COLUMN order_status TO state")
    answer = statements.run(store, QuerySession(database="test"), "SELECT * FROM orders")
    assert [name for name, _ in answer.columns] == ["order_id", "customer_id", "region", "total_amount", "state"]
    assert list(answer.rows) == [(1, 2, "eu", Decimal("1.5000"), "new")]
    run(store, "CREATE TABLE spread (a INT, b INT) DUPLICATE KEY(a) DISTRIBUTED BY HASH(b)")
    with pytest.raises(SqlError, match=r"Can not modify distribution column\[b\]"):
        run(store, "ALTER TABLE spread MODIFY COLUMN b BIGINT")
    with pytest.raises(SqlError, match="stored values do not fit"):
        run(store, "ALTER TABLE orders MODIFY COLUMN state INT")
    run(store, "ALTER TABLE orders DROP COLUMN state")
    load(store, "orders", [{"order_id": 2, "customer_id": 2}])
    assert rows(store, "SELECT region FROM orders ORDER BY order_id") == [("eu",), (None,)]


def test_changes_by_sql_count_their_rows(store: Store) -> None:
    assert run(store, "INSERT INTO orders VALUES (1, 1, '1.5', 'a'), (2, 1, NULL, \"b\"), (1, 2, 3, 'c')") == 3
    assert run(store, "INSERT INTO orders (order_id, customer_id) SELECT order_id + 10, 5 FROM test.orders") == 2
    assert run(store, "UPDATE orders SET total_amount = total_amount + 1 WHERE order_id = 1") == 1
    assert run(store, "DELETE FROM orders WHERE order_id > 11") == 1
    rows_now = rows(store, "SELECT order_id, customer_id, total_amount, order_status FROM orders ORDER BY order_id")
    assert rows_now == [(1, 2, Decimal("4.00"), "c"), (2, 1, None, "b"), (11, 5, Decimal("0.00"), "")]
    run(store, "TRUNCATE TABLE orders")
    assert rows(store, "SELECT count(*) FROM orders") == [(0,)]


def test_information_schema(store: Store) -> None:
    run(store, "CREATE TABLE u (a INT NOT NULL, b INT) UNIQUE KEY(a)")
    columns = rows(
        store,
        "SELECT column_name, column_key, is_nullable, column_default, data_type, column_size, decimal_digits"
        " FROM information_schema.columns WHERE table_schema = 'test' AND table_name = 'orders'"
        " ORDER BY ordinal_position",
    )
    assert columns == [
        ("order_id", "PRI", "NO", None, "bigint", 19, None),
        ("customer_id", "", "NO", None, "bigint", 19, None),
        ("total_amount", "", "YES", "0", "decimal", 10, 2),
        ("order_status", "", "YES", "", "varchar", 32, None),
    ]
    models = rows(store, "SELECT table_name, table_model FROM information_schema.tables_config ORDER BY table_name")
    assert models == [
        ("order_events", "DUP_KEYS"),
        ("order_items", "PRIMARY_KEYS"),
        ("orders", "PRIMARY_KEYS"),
        ("u", "UNIQUE_KEYS"),
    ]
    tables = rows(store, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'test' ORDER BY 1")
    assert [name for (name,) in tables] == ["order_events", "order_items", "orders", "u"]


def test_a_virtual_table_is_asked_for_every_statement(store: Store) -> None:
    answers = iter([[], [{"LABEL": "l", "STATE": "FINISHED", "SINK_ROWS": 3}]])
    store.add_virtual_table("information_schema", "loads", lambda: next(answers))
    sql = "SELECT label, state, sink_rows, error_msg FROM information_schema.loads WHERE label LIKE 'l%'"
    assert rows(store, sql) == []
    assert rows(store, sql) == [("l", "FINISHED", 3, None)]


# --- changes in the background ---

_LATEST = "SHOW ALTER TABLE COLUMN FROM `test` WHERE TableName = 'orders' ORDER BY CreateTime DESC LIMIT 1"


def _state(store: Store) -> str:
    ((*_, state, _message, _progress, _timeout),) = rows(store, _LATEST)
    return str(state)


def test_a_change_in_the_background_shows_at_its_end_and_until_then_no_other_one_is_taken(store: Store) -> None:
    now = [0.0]
    store.alterations = Alterations(5.0, lambda: now[0])
    run(store, "ALTER TABLE orders ADD COLUMN late INT, MODIFY COLUMN total_amount DECIMAL(20,4)")
    assert _state(store) == "PENDING"
    now[0] = 2.5
    assert _state(store) == "RUNNING"
    with pytest.raises(SqlError, match="is in SCHEMA_CHANGE"):
        run(store, "ALTER TABLE orders ADD COLUMN later INT")
    assert "late" not in str(rows(store, "DESC orders"))
    now[0] = 5.0
    assert "late" in str(rows(store, "DESC orders"))
    assert _state(store) == "FINISHED"
    run(store, "ALTER TABLE orders ADD COLUMN later INT")
    assert _state(store) == "FINISHED"  # at once: no row is rewritten
    assert "later" in str(rows(store, "DESC orders"))
    assert len(rows(store, "SHOW ALTER TABLE COLUMN FROM test")) == 2


def test_a_change_in_the_background_that_does_not_fit_any_more_is_cancelled(store: Store) -> None:
    now = [0.0]
    store.alterations = Alterations(5.0, lambda: now[0])
    run(store, "ALTER TABLE orders MODIFY COLUMN total_amount DECIMAL(20,4)")
    run(store, "DROP TABLE orders")
    now[0] = 5.0
    assert _state(store) == "CANCELLED"


def test_a_compiled_sqlglot_is_refused_with_the_way_out() -> None:
    class Compiled(Dialect):
        def parser(self, **opts: Any) -> Any:
            del opts
            raise TypeError("interpreted classes cannot inherit from compiled")

    with pytest.raises(EmulatorError, match="Uninstall sqlglotc"):
        require_extensible_sqlglot(Compiled)
