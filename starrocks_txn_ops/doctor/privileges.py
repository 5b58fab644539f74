"""Privileges on tables: tested with harmless statements where possible, else read from SHOW GRANTS."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from starrocks_txn_ops.doctor.server import HELD
from starrocks_txn_ops.doctor.target import Finding, Target, Topic
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SchemaChanges
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, identifier
from starrocks_txn_sink.sql.connection import SqlConnection, count_alive

_SECONDS: Final = 5.0
"""The view answers in milliseconds, unless open loads hold all threads of a backend (wire contract 4.16)."""
_ADMIN_ROLES = ("root", "db_admin")
"""Built-in roles of StarRocks that hold every privilege the sink needs on tables."""


def check_privileges(target: Target) -> Iterator[Finding]:
    """Check every privilege that the sink needs besides the loads themselves."""
    database = target.require_database()
    yield _check_loads_view(target.sql())
    sql = target.sql()
    grants = _grants(sql)
    has_ledger = _ledger_exists(sql, database)
    if target.options.exactly_once:
        yield (
            _check_ledger(sql, database)
            if has_ledger
            else judge_ledger_create(is_granted("CREATE TABLE", database, None, grants), target.options.ledger_create)
        )
        if not has_ledger and target.options.ledger_create:
            yield from _judge_replicas(target)
    for table in (*target.tables, *((LEDGER_TABLE,) if has_ledger else ())):
        yield judge_insert(is_granted("INSERT", database, table, grants), table)
    if target.options.schema_changes is SchemaChanges.APPLY:
        for table in target.tables:
            yield judge_alter(is_granted("ALTER", database, table, grants), table)


def _check_loads_view(sql: SqlConnection) -> Finding:
    check = Topic("privilege.loads")
    try:
        sql.rows("SELECT LABEL FROM information_schema.loads LIMIT 1", seconds=_SECONDS)
    except QueryFailed:
        return check.warning(
            f"information_schema.loads has not answered within {_SECONDS:g} s.",
            HELD,
            "Look at backend.threads, and at SHOW PROC '/transactions/<database>/running'.",
        )
    except QueryRefused as error:
        return check.failure(
            f"information_schema.loads cannot be read: {error.message}",
            "A take-over lists unfinished labels there, to end the transactions that a dead writer left open.",
            "Let the user that loads read information_schema.",
        )
    return check.good("information_schema.loads can be read")


def _ledger_exists(sql: SqlConnection, database: str) -> bool:
    statement = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return bool(sql.rows(statement, (database, LEDGER_TABLE)))


def _check_ledger(sql: SqlConnection, database: str) -> Finding:
    check = Topic("privilege.ledger")
    try:
        sql.rows(f"SELECT count(*) FROM {identifier(database, LEDGER_TABLE)}")
    except QueryRefused as error:
        return check.failure(
            f"The ledger cannot be read: {error.message}",
            "Positions and owners are read before the first load.",
            f"Grant SELECT, INSERT ON TABLE {database}.{LEDGER_TABLE} to the user.",
        )
    return check.good(f"the ledger {LEDGER_TABLE} exists and can be read")


def judge_ledger_create(allowed: bool | None, is_wanted: bool) -> Finding:
    """Finding for a ledger table that does not exist yet; `allowed` None: SHOW GRANTS does not show it; pure."""
    check = Topic("privilege.ledger")
    if not is_wanted:
        return check.failure(
            f"The table {LEDGER_TABLE} does not exist, and ledger_create is off.",
            "Exactly-once stores its positions there.",
            "Create it by hand (docs/guides/exactly-once.md has its DDL), or set ledger_create=True.",
        )
    if allowed is None:
        return check.skip("SHOW GRANTS does not show whether the ledger's table can be created")
    if allowed:
        return check.good("the ledger's table does not exist yet and can be created")
    return check.failure(
        "SHOW GRANTS lists no CREATE TABLE on the database for the user.",
        "The sink creates its ledger's table when it starts.",
        "Grant CREATE TABLE ON DATABASE, or create it by hand (docs/guides/exactly-once.md) with ledger_create=False.",
    )


def _judge_replicas(target: Target) -> Iterator[Finding]:
    """Whether as many backends are alive as the ledger's table has replicas (wire contract 10.8)."""
    replicas = target.options.ledger_replication
    try:
        nodes = target.sql().rows("SHOW BACKENDS")
        default = target.sql().rows("ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'")
    except QueryRefused:
        return
    alive = count_alive(nodes)
    replicas = replicas or next((int(row["value"]) for row in default if str(row.get("value")).isdecimal()), 0)
    if not alive or alive >= replicas or (target.options.ledger_replication is None and alive == len(nodes)):
        return  # with a backend for each replica, or with one replica on each backend of a small cluster
    yield Topic("ledger.replicas").failure(
        f"The ledger's table would have {replicas} replicas, and {alive} of {len(nodes)} backends are alive.",
        "StarRocks creates no table with more replicas than backends.",
        f"Start more backends, or set ledger_replication={max(1, alive)}.",
    )


def judge_insert(allowed: bool | None, table: str) -> Finding:
    """Finding for INSERT on a table; `allowed` None: SHOW GRANTS does not show it; pure."""
    return _judge_privilege(
        "INSERT",
        allowed,
        table,
        "Present servers do not check it for multi-table transactions, later ones may; claims in the ledger need it.",
        "Grant INSERT ON TABLE to the user.",
    )


def judge_alter(allowed: bool | None, table: str) -> Finding:
    """Finding for ALTER on a table; `allowed` None: SHOW GRANTS does not show it; pure."""
    return _judge_privilege(
        "ALTER",
        allowed,
        table,
        "With schema_changes='apply' the sink adds and widens columns, and a refusal ends the query.",
        "Grant ALTER ON TABLE to the user, or set schema_changes='fail'.",
    )


def _judge_privilege(name: str, allowed: bool | None, table: str, why: str, advice: str) -> Finding:
    check = Topic(f"privilege.{name.lower()}", table)
    if allowed is None:
        return check.skip("SHOW GRANTS does not show it")
    if allowed:
        return check.good(f"{name} is granted")
    return check.warning(f"SHOW GRANTS lists no {name} on the table for the user.", why, advice)


def _grants(sql: SqlConnection) -> list[str] | None:
    """GRANT statements of the user and of its roles; None if SHOW GRANTS is refused."""
    try:
        grants = _statements(sql, "SHOW GRANTS")
        roles = {role for grant in grants for role in roles_granted_by(grant)}
        for role in sorted(roles - set(_ADMIN_ROLES) - {"public"}):
            grants += _statements(sql, f"SHOW GRANTS FOR ROLE '{role}'")
    except QueryRefused:
        return None
    return grants


def _statements(sql: SqlConnection, statement: str) -> list[str]:
    rows = sql.rows(statement)
    return [str(value) for row in rows for value in row.values() if str(value).upper().startswith("GRANT ")]


def roles_granted_by(grant: str) -> list[str]:
    """Roles in `GRANT 'reader', 'db_admin' TO …`; [] for a grant of privileges."""
    roles, to, _ = grant[len("GRANT ") :].partition(" TO ")
    names = [name.strip().strip("'`") for name in roles.split(",")]
    return names if to and all(re.fullmatch(r"\w+", name) for name in names) and " ON " not in grant else []


def is_granted(privilege: str, database: str, table: str | None, grants: Sequence[str] | None) -> bool | None:
    """Whether `grants` hold `privilege` on a table (`table` None: on the database); None if `grants` is None."""
    if grants is None:
        return None
    for grant in grants:
        if set(roles_granted_by(grant)) & set(_ADMIN_ROLES):
            return True
        parts = re.match(r"GRANT (?P<what>.+?) ON (?P<where>.+?) TO ", grant, re.IGNORECASE)
        if parts is None:
            continue
        listed = [name.strip().upper() for name in parts["what"].split(",")]
        where = re.sub("[`']", "", parts["where"])
        if {privilege, "ALL", "ALL PRIVILEGES"} & set(listed) and _covers(where, database, table):
            return True
    return False


def _covers(where: str, database: str, table: str | None) -> bool:
    """Whether the object of a GRANT includes the table, or the database if `table` is None; case counts in names."""
    place = " ".join(where.split())
    if re.search(r"\bALL DATABASES\b", place, re.IGNORECASE):
        return place.upper().startswith("ALL TABLES") is (table is not None)
    if table is None:
        return re.fullmatch(rf"(?i:DATABASE )(?:.*, ?)?{re.escape(database)}(?:,.*)?", place) is not None
    if re.fullmatch(rf"(?i:ALL TABLES IN DATABASE ){re.escape(database)}", place):
        return True
    table_names = re.sub(r"^TABLES? ", "", place, flags=re.IGNORECASE)
    return f"{database}.{table}" in [name.strip() for name in table_names.split(",")]
