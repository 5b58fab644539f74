"""Tables, and the user's privileges on them.

Tables: existence, model, and the faults of this server's version: partitions that a multi-table load cannot create, and
the order of changes of one key. Privileges: tried out where a statement is harmless, else read from SHOW GRANTS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starrocks_txn_sink.errors import QueryRefused
from starrocks_txn_sink.operations.doctor.libraries import version_numbers
from starrocks_txn_sink.operations.doctor.target import Check, Finding, Target
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.load_properties import why_not_compacted
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE, identifier
from starrocks_txn_sink.sql.connection import Row, SqlConnection, count_alive

_CONFIG = (
    "SELECT TABLE_NAME, TABLE_ENGINE, TABLE_MODEL, PRIMARY_KEY, DISTRIBUTE_TYPE FROM information_schema.tables_config "
    "WHERE TABLE_SCHEMA = %s"
)
_NAMES = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s"

# The last releases without the repair of partitions created in a multi-table load (wire contract 4.15; the exact
# patch is not known, so later ones are believed).
_LAST_WITHOUT = ((4, 0, 14), (4, 1, 4))

# The first release that keeps the order of one key's changes in shared-data tables (wire contract 4.10). No patch of
# the 4.0 line is known to have the repair, so all of them count as without it.
_FIRST_IN_ORDER = (4, 1, 4)

_PURPOSE = {
    "PRIMARY_KEYS": "PRIMARY KEY: upserts and deletes",
    "DUP_KEYS": "DUPLICATE KEY: rows are appended, deletes are refused",
}


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """One table: `engine`, `model` and `key` as in information_schema.tables_config, `create` from SHOW CREATE TABLE.

    `create` is '' if the statement was refused; `key` has the primary key's columns.
    """

    name: str
    model: str
    random_buckets: bool
    create: str = ""
    engine: str = "OLAP"
    key: Sequence[str] = ()

    @classmethod
    def of(cls, row: Row, create: str) -> TableDefinition:
        """The table of a row of information_schema.tables_config."""
        return cls(
            str(row["table_name"]),
            str(row["table_model"]),
            str(row.get("distribute_type")).upper().startswith("RANDOM"),
            create,
            str(row.get("table_engine")),
            tuple(name.strip().strip("`") for name in str(row.get("primary_key") or "").split(",")),
        )

    @property
    def shared_data(self) -> bool:
        """Whether object storage holds the table, as in a cluster with run_mode shared_data."""
        return self.engine.upper() == "CLOUD_NATIVE" or '"storage_volume"' in self.create

    @property
    def creates_partitions(self) -> bool:
        """Whether loads create partitions: PARTITION BY an expression or columns, not RANGE or LIST."""
        clause = re.search(r"\bPARTITION\s+BY\s+(\w*)", self.create, re.IGNORECASE)
        return clause is not None and clause[1].upper() not in ("RANGE", "LIST")


def check_tables(target: Target) -> Iterator[Finding]:
    """Check the named tables, or all of the database; sets `target.tables` for the checks of loads and privileges."""
    database, sql = target.require_database(), target.sql()
    found = {str(row["table_name"]): row for row in sql.rows(_CONFIG, (database,))}
    names = {str(row["table_name"]) for row in sql.rows(_NAMES, (database,))}
    yield from judge_names(target.tables, names, set(found), database)
    chosen = [name for name in target.tables or sorted(found) if name in found and not is_own_table(name)]
    if not chosen and not target.tables:
        yield Check("table.missing").failure(
            f"{database} has no table that a job could write.",
            "A load into a missing table aborts the whole transaction.",
            "Create the job's tables, correct --database, or grant the user a privilege on them.",
        )
    target.tables = chosen
    for name in chosen:
        create = ""
        try:
            answer = sql.rows(f"SHOW CREATE TABLE {identifier(database, name)}")
            create = str(answer[0].get("create table", "")) if answer else ""
        except QueryRefused as error:
            yield Check("table.partitions", name).skipped(f"SHOW CREATE TABLE was refused: {error.message}")
        seen = TableDefinition.of(found[name], create)
        yield judge_model(seen)
        yield from judge_partitions(seen, target.version)
        yield from judge_order(seen, target.version, target.options)


def judge_names(named: Sequence[str], names: set[str], loadable: set[str], database: str) -> Iterator[Finding]:
    """Failures for named tables that cannot be loaded; pure."""
    for name in named:
        if name not in names | loadable:
            yield Check("table.missing", name).failure(
                f"The table {database}.{name} does not exist, or the user may not see it.",
                "A load into a missing table aborts the whole transaction.",
                "Create it, correct the name, or grant the user a privilege on it.",
            )
        elif name not in loadable:
            yield Check("table.model", name).failure(
                f"{database}.{name} is a view or an external table.",
                "Only native tables accept loads; any other aborts the whole transaction.",
                "Load the table that the view reads.",
            )


def judge_model(seen: TableDefinition) -> Finding:
    """Finding for the table's model; pure."""
    if seen.model in _PURPOSE:
        return Check("table.model", seen.name).good(_PURPOSE[seen.model])
    return Check("table.model", seen.name).warning(
        f"The table's model is {seen.model}.",
        "Deletes are refused, and an aggregate counts a row again when at-least-once delivery repeats it.",
        "Use a PRIMARY KEY table for changes, or a DUPLICATE KEY table for events.",
    )


def judge_partitions(seen: TableDefinition, version: str) -> Iterator[Finding]:
    """Finding for partitions or buckets that loads would have to create; none if they create neither; pure."""
    reasons = []
    if seen.creates_partitions:
        reasons.append("creates partitions as rows arrive (PARTITION BY an expression or columns)")
    if seen.random_buckets:
        reasons.append("is distributed at random and creates buckets as rows arrive")
    if not reasons:
        return
    what = " and ".join(reasons)
    if can_create_partitions(version):
        yield Check("table.partitions", seen.name).good(f"{what}, which StarRocks {version} should support")
        return
    yield Check("table.partitions", seen.name).warning(
        f"The table {what}; StarRocks {version or '(version unknown)'} does not support that in a multi-table load.",
        "The commit fails with 'txn … not exist' as soon as a row needs a missing partition.",
        "Create partitions before their rows arrive (ALTER TABLE … ADD PARTITION), use hash distribution, or upgrade "
        "to a patch after 4.0.14 or 4.1.4.",
    )


def can_create_partitions(version: str) -> bool:
    """Whether a multi-table load may create partitions on this version."""
    numbers = version_numbers(version)
    last = next((last for last in _LAST_WITHOUT if numbers[:2] == last[:2]), _LAST_WITHOUT[-1])
    return len(numbers) >= 3 and numbers > last


def judge_order(seen: TableDefinition, version: str, options: SinkOptions) -> Iterator[Finding]:
    """Finding for a table whose changes of one key the server may swap in a transaction; none for any other; pure."""
    if not seen.shared_data or seen.model != "PRIMARY_KEYS" or version_numbers(version) >= _FIRST_IN_ORDER:
        return
    why = why_not_compacted(options.properties_of(seen.name), seen.key) if options.compact else "compact is off"
    said = version or "(version unknown)"
    if not why:
        what = f"a StarRocks transaction gets one row per key, so StarRocks {said} cannot swap changes of a key"
        yield Check("table.order", seen.name).good(what)
        return
    yield Check("table.order", seen.name).warning(
        f"All rows are sent ({why}), and StarRocks {said} may swap an upsert and a delete of one key.",
        "Before 4.1.4 a PRIMARY KEY table in shared-data mode does not keep their order inside one transaction: "
        "a deleted row can stay, and a row written again can be missing.",
        "Upgrade to StarRocks 4.1.4 or later, or let the sink send one row per key (compact, without that property).",
    )


# --- privileges ---

_ADMIN_ROLES = ("root", "db_admin")
"""Built-in roles of StarRocks that hold every privilege the sink needs on tables."""


def check_privileges(target: Target) -> Iterator[Finding]:
    """Check every privilege that the sink needs besides the loads themselves."""
    database, sql = target.require_database(), target.sql()
    yield _check_loads_view(sql)
    grants = _grants(sql)
    there = _ledger_exists(sql, database)
    if target.options.exactly_once:
        yield (
            _check_ledger(sql, database)
            if there
            else judge_ledger_create(is_granted("CREATE TABLE", database, None, grants), target.options.ledger_create)
        )
        if not there and target.options.ledger_create:
            yield from _judge_replicas(target)
    for table in (*target.tables, *((LEDGER_TABLE,) if there else ())):
        yield judge_insert(is_granted("INSERT", database, table, grants), table)


def _check_loads_view(sql: SqlConnection) -> Finding:
    check = Check("privilege.loads")
    try:
        sql.rows("SELECT LABEL FROM information_schema.loads LIMIT 1")
    except QueryRefused as error:
        return check.failure(
            f"information_schema.loads cannot be read: {error.message}",
            "A take-over lists unfinished labels there, to end the transactions that a dead writer left open.",
            "Let the user that loads read information_schema; loads of other users may be hidden from it.",
        )
    return check.good("information_schema.loads can be read")


def _ledger_exists(sql: SqlConnection, database: str) -> bool:
    statement = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return bool(sql.rows(statement, (database, LEDGER_TABLE)))


def _check_ledger(sql: SqlConnection, database: str) -> Finding:
    check = Check("privilege.ledger")
    try:
        sql.rows(f"SELECT count(*) FROM {identifier(database, LEDGER_TABLE)}")
    except QueryRefused as error:
        return check.failure(
            f"The ledger cannot be read: {error.message}",
            "Positions and owners are read before the first load.",
            f"Grant SELECT, INSERT ON TABLE {database}.{LEDGER_TABLE} to the user.",
        )
    return check.good(f"the ledger {LEDGER_TABLE} exists and can be read")


def judge_ledger_create(allowed: bool | None, wanted: bool) -> Finding:
    """Finding for a ledger table that does not exist yet; `allowed` None: SHOW GRANTS does not show it; pure."""
    check = Check("privilege.ledger")
    if not wanted:
        return check.failure(
            f"The table {LEDGER_TABLE} does not exist, and ledger_create is off.",
            "Exactly-once stores its positions there.",
            "Create it by hand (docs/guides/exactly-once.md has its DDL), or set ledger_create=True.",
        )
    if allowed is None:
        return check.skipped("SHOW GRANTS does not show whether the ledger's table can be created")
    if allowed:
        return check.good("the ledger's table does not exist yet and can be created")
    return check.failure(
        "SHOW GRANTS lists no CREATE TABLE on the database for the user.",
        "The sink creates its ledger's table when it starts.",
        "Grant CREATE TABLE ON DATABASE, or create it by hand (docs/guides/exactly-once.md) with ledger_create=False.",
    )


def _judge_replicas(target: Target) -> Iterator[Finding]:
    """Whether as many backends are alive as the ledger's table has replicas (wire contract 10.8)."""
    wanted = target.options.ledger_replication
    try:
        nodes = target.sql().rows("SHOW BACKENDS")
        default = target.sql().rows("ADMIN SHOW FRONTEND CONFIG LIKE 'default_replication_num'")
    except QueryRefused:
        return
    alive = count_alive(nodes)
    wanted = wanted or next((int(row["value"]) for row in default if str(row.get("value")).isdecimal()), 0)
    if not alive or alive >= wanted or (target.options.ledger_replication is None and alive == len(nodes)):
        return  # with a backend for each replica, or with one replica on each backend of a small cluster
    yield Check("ledger.replicas").failure(
        f"The ledger's table would have {wanted} replicas, and {alive} of {len(nodes)} backends are alive.",
        "StarRocks creates no table with more replicas than backends.",
        f"Start more backends, or set ledger_replication={max(1, alive)}.",
    )


def judge_insert(allowed: bool | None, table: str) -> Finding:
    """Finding for INSERT on a table; `allowed` None: SHOW GRANTS does not show it; pure."""
    check = Check("privilege.insert", table)
    if allowed is None:
        return check.skipped("SHOW GRANTS does not show it")
    if allowed:
        return check.good("INSERT is granted")
    return check.warning(
        "SHOW GRANTS lists no INSERT on the table for the user.",
        "Present servers do not check it for multi-table transactions, later ones may; claims in the ledger need it.",
        "Grant INSERT ON TABLE to the user.",
    )


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
        found = re.match(r"GRANT (?P<what>.+?) ON (?P<where>.+?) TO ", grant, re.IGNORECASE)
        if found is None:
            continue
        listed = [name.strip().upper() for name in found["what"].split(",")]
        where = re.sub("[`']", "", found["where"])
        if {privilege, "ALL", "ALL PRIVILEGES"} & set(listed) and _covers(where, database, table):
            return True
    return False


def _covers(where: str, database: str, table: str | None) -> bool:
    """Whether the object of a GRANT includes the table, or the database if `table` is None."""
    place = " ".join(where.split())
    if re.search(r"\bALL DATABASES\b", place, re.IGNORECASE):
        return table is None or place.upper().startswith("ALL TABLES")
    if table is None:
        return re.fullmatch(rf"DATABASE (?:.*, ?)?{re.escape(database)}(?:,.*)?", place, re.IGNORECASE) is not None
    if re.fullmatch(rf"ALL TABLES IN DATABASE {re.escape(database)}", place, re.IGNORECASE):
        return True
    named = re.sub(r"^TABLES? ", "", place, flags=re.IGNORECASE)
    return f"{database}.{table}".lower() in [name.strip().lower() for name in named.split(",")]
