"""The query port as a MySQL client sees it."""

from __future__ import annotations

import gc
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from starrocks_emulator.server import Emulator
from starrocks_emulator.sql.mysql import QueryListener
from starrocks_emulator.tables.store import Store
from tests.support import query_port
from tests.support.store_setup import load, with_tables


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[QueryListener]:
    store = with_tables(Store(tmp_path / "data"))
    listening = QueryListener(
        store, user="root", password="pw", version="4.1.5-emulator", leader=lambda: False, be_http_ports=lambda: (1, 2)
    )
    listening.start()
    yield listening
    listening.stop()
    store.close()


def connect(listener: QueryListener, **more: Any) -> pymysql.Connection[Any]:
    return query_port.connect(listener.port, **{"password": "pw", **more})


def test_no_statement_reads_a_file_of_this_machine(listener: QueryListener, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    for sql in (
        f"SELECT content FROM read_text('{secret}')",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM glob('{tmp_path}/*')",
        "SELECT content FROM read_text('/etc/passwd')",
    ):
        with pytest.raises(pymysql.err.Error) as failure:
            ask_listener(listener, sql)
        assert "SECRET" not in str(failure.value)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert modes["store.duckdb"] == 0o600
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert modes["spool"] == 0o700


def test_an_embedded_emulators_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    """DuckDB makes its log with the modes that the process allows."""
    with Emulator(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def ask_listener(listener: QueryListener, sql: str, **more: Any) -> Any:
    with connect(listener, **more) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def test_values_of_all_types_come_back(listener: QueryListener) -> None:
    with connect(listener, database="test") as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (a BIGINT NOT NULL, b DECIMAL(10,2), c DATETIME, d DATE, e BOOLEAN, f VARBINARY, g JSON,"
            " h DOUBLE, i LARGEINT, j VARCHAR(20), k INT) PRIMARY KEY(a)"
        )
        values = (1, "1.50", "2024-01-01 01:02:03.5", "2024-01-01", True, "x", '{"a":1}', 1.5, 2**80, "é'\"%", None)
        assert cursor.execute("INSERT INTO t VALUES (" + ",".join(["%s"] * 11) + ")", values) == 1
        cursor.execute("SELECT * FROM t")
        assert cursor.fetchall() == (
            (
                1,
                Decimal("1.50"),
                datetime(2024, 1, 1, 1, 2, 3, 500000),
                date(2024, 1, 1),
                1,
                b"x",
                '{"a": 1}',
                1.5,
                str(2**80),
                "é'\"%",
                None,
            ),
        )


def test_columns_are_named_as_they_were_written(listener: QueryListener) -> None:
    with connect(listener, database="test") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), o.order_id, max(customer_id) AS top FROM orders o GROUP BY o.order_id")
        assert [column[0] for column in cursor.description] == ["count(*)", "order_id", "top"]


def test_who_answers(listener: QueryListener) -> None:
    ((version, comment),) = ask_listener(listener, "SELECT current_version(), @@version_comment")
    assert (version, comment) == ("4.1.5-emulator", "4.1.5-emulator")
    (frontend,) = ask_listener(listener, "SHOW FRONTENDS")
    assert "FOLLOWER" in frontend
    assert ask_listener(listener, "SELECT database()", database="test") == (("test",),)


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT * FROM nope", 5502),
        ("SELECT * FROM nodb.orders", 5501),
        ("SELECT (", 1064),
        ("USE nodb", 5501),
        ("INSERT INTO orders VALUES (1)", 5604),
    ],
)
def test_errors_carry_mysql_codes(listener: QueryListener, sql: str, code: int) -> None:
    with connect(listener, database="test") as connection, connection.cursor() as cursor:
        with pytest.raises(pymysql.err.Error) as failure:
            cursor.execute(sql)
        assert failure.value.args[0] == code
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == ((1,),)


def test_without_a_database_a_bare_table_has_none(listener: QueryListener) -> None:
    with connect(listener) as connection, connection.cursor() as cursor:
        with pytest.raises(pymysql.err.Error) as failure:
            cursor.execute("SELECT * FROM orders")
        assert failure.value.args[0] == 1046


@pytest.mark.parametrize("login", [{"password": "bad"}, {"password": ""}, {"user": "other"}])
def test_the_password_is_asked_for(listener: QueryListener, login: dict[str, str]) -> None:
    with pytest.raises(pymysql.err.OperationalError):
        connect(listener, **login)


def test_a_statement_asked_again_is_answered_again(listener: QueryListener) -> None:
    with connect(listener, database="test") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE other")
        for name, value in (("test", 1), ("other", 2)):
            cursor.execute(f"CREATE TABLE {name}.same (a INT NOT NULL) PRIMARY KEY(a)")
            cursor.execute(f"INSERT INTO {name}.same VALUES ({value})")
        cursor.execute("SELECT a, database() FROM same")
        assert cursor.fetchall() == ((1, "test"),)
        assert ask_listener(listener, "SELECT a, database() FROM same", database="other") == ((2, "other"),)
        cursor.execute("INSERT INTO same VALUES (3)")
        cursor.execute("SELECT a, database() FROM same")
        assert sorted(cursor.fetchall()) == [(1, "test"), (3, "test")]
        cursor.execute("DROP TABLE same")
        with pytest.raises(pymysql.Error, match="Unknown table"):
            cursor.execute("SELECT a, database() FROM same")


def test_show_statements(listener: QueryListener) -> None:
    assert ask_listener(listener, "SHOW TABLES FROM test LIKE 'order_i%'") == (("order_items",),)
    assert ("test",) in ask_listener(listener, "SHOW DATABASES")
    assert ask_listener(listener, "DESC test.order_events")[0] == ("event_id", "bigint", "NO", "true", None, "")
    described = ask_listener(listener, "DESC information_schema.load_tracking_logs")
    assert [row[0] for row in described] == [
        "ID",
        "LABEL",
        "DATABASE_NAME",
        "TABLE_NAME",
        "TYPE",
        "TRACKING_LOG",
        "JOB_ID",
    ]
    assert described[-1] == ("JOB_ID", "bigint", "YES", "false", None, "")
    full = ask_listener(listener, "SHOW FULL COLUMNS FROM `orders` FROM `test`")
    assert full[2][:6] == ("total_amount", "decimal(10, 2)", None, "YES", "", "0")
    assert ask_listener(listener, "SHOW VARIABLES LIKE 'version_comment'") == (("version_comment", "4.1.5-emulator"),)
    assert len(ask_listener(listener, "SHOW BACKENDS")) == 2
    assert ask_listener(listener, "SHOW VARIABLES LIKE 'cbo%'") == ()


def test_a_slow_statement_does_not_hold_up_others(listener: QueryListener) -> None:
    """While a statement waits for an invisible commit, another connection is answered."""
    store = listener.store
    assert isinstance(store, Store)
    txn_id, _ = load(store, "orders", [{"order_id": 1, "customer_id": 1}], visible=False)
    finish = threading.Event()

    def change() -> None:
        ask_listener(listener, "INSERT INTO test.orders VALUES (1, 2, 3, 'x')")
        finish.set()

    writer = threading.Thread(target=change)
    writer.start()
    assert ask_listener(listener, "SELECT count(*) FROM test.orders") == ((0,),)
    assert not finish.is_set()
    store.publish(txn_id)
    writer.join(30)
    assert ask_listener(listener, "SELECT customer_id FROM test.orders") == ((2,),)


def test_a_stop_leaves_no_socket_behind_of_a_client_that_has_just_come(listener: QueryListener) -> None:
    unclosed: list[str] = []
    gc.collect()  # what earlier tests left
    gc.freeze()  # the rest, so that collections are quick
    for _ in range(30):
        clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(10)]
        listener.stop()
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always")
            gc.collect()
        texts = [str(warning.message) for warning in recorded if issubclass(warning.category, ResourceWarning)]
        unclosed += [text for text in texts if "transport" in text or str(listener.port) in text]  # no other thread's
        for client in clients:
            client.close()
        listener.start()
    assert unclosed == []


def test_it_stops_with_clients_connected_and_starts_again_on_its_port(listener: QueryListener) -> None:
    connection = connect(listener)
    port, began = listener.port, time.monotonic()
    listener.stop()
    assert time.monotonic() - began < 4.5  # an idle client is not waited for, which would take 5 s
    with pytest.raises(pymysql.err.Error):
        connection.ping(reconnect=False)
    connection.close()
    listener.start()
    assert listener.port == port
    assert ask_listener(listener, "SELECT 1") == ((1,),)


@pytest.mark.emulator
def test_an_insert_is_a_load_without_database_and_table(server: Emulator) -> None:
    """As a real server lists it (wire contract 6.5)."""
    query_port.query(server, "CREATE TABLE shop.kept (id INT NOT NULL) DUPLICATE KEY(id)")
    query_port.query(server, "INSERT INTO shop.kept VALUES (1), (2)")
    columns = "DB_NAME, TABLE_NAME, WAREHOUSE, STATE, PROGRESS, TYPE, PRIORITY, FILTERED_ROWS, SINK_ROWS, ERROR_MSG"
    (row,) = query_port.query(server, f"SELECT {columns} FROM information_schema.loads WHERE LABEL LIKE 'insert\\_%'")
    assert row == ("", "", "", "FINISHED", "ETL:100%; LOAD:100%", "INSERT", "NORMAL", 0, 2, None)
    assert query_port.query(server, "SELECT count(*) FROM information_schema.loads WHERE DB_NAME = 'shop'") == [(0,)]
