"""Users and privileges as clients meet them; texts and numbers are those of a real frontend of 4.1.1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import requests

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Settings
from tests.support import query_port

DENIED = (
    "Access denied; you need (at least one of) the {} for this operation. Please ask the admin to grant permission(s) "
    "or try activating existing roles using <set [default] role>. Current role(s): NONE. Inactivated role(s): NONE."
)
TABLE = "CREATE TABLE shop.orders (k INT NOT NULL, v INT) PRIMARY KEY(k) DISTRIBUTED BY HASH(k)"
MINE = "CREATE TABLE shop.mine (k INT NOT NULL) PRIMARY KEY(k) DISTRIBUTED BY HASH(k)"
GRANTS = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN DATABASE shop TO USER 'sink'",
    "GRANT CREATE TABLE ON DATABASE shop TO USER 'sink'",
    "GRANT OPERATE ON SYSTEM TO USER 'sink'",
)


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path, Settings(backends=3)) as running:
        for sql in (
            *("CREATE DATABASE shop", "CREATE DATABASE other", TABLE, TABLE.replace("shop", "other")),
            *(f"CREATE USER IF NOT EXISTS '{name}' IDENTIFIED BY 'pw'" for name in ("sink", "poor")),
            *GRANTS,
        ):
            ask(running, sql, "root", "")
        yield running


def ask(emulator: Emulator, sql: str, user: str, password: str = "pw", **more: Any) -> tuple[Any, ...]:
    with (
        query_port.connect(emulator.query_port, user=user, password=password, **more) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)
        return tuple(cursor.fetchall())


def refusal(emulator: Emulator, sql: str, user: str, password: str = "pw", **more: Any) -> tuple[int, str]:
    with pytest.raises(pymysql.err.Error) as refused:
        ask(emulator, sql, user, password, **more)
    return refused.value.args[0], refused.value.args[1]


@pytest.mark.parametrize(
    ("sql", "missing"),
    [
        ("SHOW FRONTENDS", "OPERATE OR NODE privilege(s) on SYSTEM"),
        ("SHOW BACKENDS", "OPERATE OR NODE privilege(s) on SYSTEM"),
        ("SHOW COMPUTE NODES", "OPERATE OR NODE privilege(s) on SYSTEM"),
        ("ADMIN SHOW FRONTEND CONFIG LIKE 'default%'", "OPERATE privilege(s) on SYSTEM"),
        (MINE, "CREATE TABLE privilege(s) on DATABASE shop"),
        ("CREATE DATABASE nn", "CREATE DATABASE privilege(s) on CATALOG default_catalog"),
        ("SELECT count(*) FROM shop.orders", "SELECT privilege(s) on TABLE orders"),
        ("INSERT INTO shop.orders VALUES (1, 1)", "INSERT privilege(s) on TABLE orders"),
        ("DROP TABLE shop.orders", "DROP privilege(s) on TABLE orders"),
    ],
)
def test_a_user_without_grants_is_denied(emulator: Emulator, sql: str, missing: str) -> None:
    assert refusal(emulator, sql, "poor") == (5203, DENIED.format(missing))


def test_a_user_without_grants_sees_no_tables_and_the_labels_of_all(emulator: Emulator) -> None:
    """Wire contract 6.5."""
    begin_and_load(emulator, "of-root", ("root", ""))
    assert ask(emulator, "SHOW DATABASES", "poor") == (("information_schema",),)
    assert ask(emulator, "SELECT TABLE_NAME FROM information_schema.tables_config", "poor") == ()
    assert ask(emulator, "SELECT LABEL FROM information_schema.loads", "poor") == (("of-root",),)
    assert ask(emulator, "SHOW GRANTS", "poor") == ()


def test_the_grants_of_the_sink_suffice_for_its_statements(emulator: Emulator) -> None:
    for sql in (MINE, "INSERT INTO shop.mine VALUES (1)", "SHOW FRONTENDS", "SHOW BACKENDS", "SHOW COMPUTE NODES"):
        ask(emulator, sql, "sink")
    assert ask(emulator, "SELECT k FROM shop.mine", "sink") == ((1,),)
    assert ask(emulator, "ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'", "sink") == (
        ("default_replication_num", "[]", "3", "short", "true", ""),
    )
    assert ask(emulator, "SHOW DATABASES", "sink") == (("information_schema",), ("shop",))
    user = "'sink'@'%'"
    assert ask(emulator, "SHOW GRANTS", "sink") == (
        (
            user,
            "default_catalog",
            f"GRANT DELETE, INSERT, SELECT, UPDATE ON ALL TABLES IN DATABASE shop TO USER {user}",
        ),
        (user, "default_catalog", f"GRANT CREATE TABLE ON DATABASE shop TO USER {user}"),
        (user, "default_catalog", f"GRANT OPERATE ON SYSTEM TO USER {user}"),
    )


def test_a_grant_ends_where_it_was_given_and_when_it_is_taken_back(emulator: Emulator) -> None:
    denied = DENIED.format("SELECT privilege(s) on TABLE orders")
    assert refusal(emulator, "SELECT * FROM other.orders", "sink") == (5203, denied)
    ask(emulator, "REVOKE SELECT ON ALL TABLES IN DATABASE shop FROM USER 'sink'", "root", "")
    assert refusal(emulator, "SELECT * FROM shop.orders", "sink") == (5203, denied)
    ask(emulator, "DROP USER sink", "root", "")
    assert refusal(emulator, "SELECT 1", "sink")[0] == 1045
    assert "cannot find user 'sink'" in refusal(emulator, GRANTS[0], "root", "")[1]


@pytest.mark.parametrize(("user", "password"), [("poor", "bad"), ("nobody", "pw")])
def test_a_wrong_login_is_denied(emulator: Emulator, user: str, password: str) -> None:
    assert refusal(emulator, "SELECT 1", user, password) == (
        1045,
        f"Access denied for user '{user}' (using password: YES)",
    )


def test_a_login_to_an_unknown_database_is_refused(emulator: Emulator) -> None:
    assert refusal(emulator, "SELECT 1", "poor", database="nodb") == (5501, "Unknown database 'nodb'")
    assert ask(emulator, "SELECT database()", "sink", database="shop") == (("shop",),)


def begin_and_load(emulator: Emulator, label: str, user: tuple[str, str]) -> None:
    for operation, method in (("begin", "POST"), ("load", "PUT")):
        answer = send(emulator, operation, label, user, method)
    assert answer.status_code == 307


def send(
    emulator: Emulator, operation: str, label: str, user: tuple[str, str], method: str = "POST"
) -> requests.Response:
    return requests.request(
        method,
        f"{emulator.load_url}/api/transaction/{operation}",
        headers={"db": "shop", "label": label, "table": "orders", "transaction_type": "multi", "format": "json"},
        auth=user,
        allow_redirects=False,
        timeout=20,
    )


def test_every_user_may_load_and_roll_back_the_label_of_another(emulator: Emulator) -> None:
    """Wire contract 7.3."""
    begin_and_load(emulator, "of-poor", ("poor", "pw"))
    begin_and_load(emulator, "of-root", ("root", ""))
    assert send(emulator, "rollback", "of-root", ("poor", "pw")).json() == {
        "Status": "OK",
        "Message": "stream load of-root abort",
    }
    refused = send(emulator, "commit", "of-root", ("root", "")).json()
    assert refused["Message"].startswith("Can not commit CANCELLED transaction ")
    assert send(emulator, "begin", "x", ("poor", "bad")).status_code == 401
