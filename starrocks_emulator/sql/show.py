"""SHOW, DESC and ADMIN, recognised by their words: their forms differ too much between dialects to be parsed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from starrocks_emulator.settings import SettingError
from starrocks_emulator.sql.information_schema import relation
from starrocks_emulator.sql.session import (
    FIRST_BACKEND,
    HIDDEN_VARIABLES,
    NO_DATABASE,
    Answer,
    QuerySession,
    SqlError,
    analyzing_error,
    text_answer,
)
from starrocks_emulator.tables.catalog import CatalogError, Column, Table

if TYPE_CHECKING:
    from starrocks_emulator.tables.store import Store

NAME = r"(?:`[^`]+`|[\w$-]+)"
TABLE = rf"(?P<table>{NAME}(?:\s*\.\s*{NAME}){{0,2}})"
_FROM = rf"(?:\s+(?:FROM|IN)\s+(?P<database>{NAME}))?"
_LIKE = r"(?:\s+LIKE\s+(?P<quote>['\"])(?P<like>.*?)(?P=quote))?"
_COLUMNS = ["Field", "Type", "Null", "Key", "Default", "Extra"]
_FULL_COLUMNS = ["Field", "Type", "Collation", "Null", "Key", "Default", "Extra", "Privileges", "Comment"]
_DESCRIBED = re.compile(r"\s*(SHOW|DESC|DESCRIBE|ADMIN\s+(?:SHOW|SET))\b", re.IGNORECASE)

Handler = Callable[["Store", QuerySession, "re.Match[str]"], Answer]


def is_show(sql: str) -> bool:
    """Whether the statement is one of ours."""
    return _DESCRIBED.match(sql) is not None


def show(store: Store, session: QuerySession, sql: str) -> Answer:
    """Answer a SHOW or DESC statement; raises SqlError or CatalogError."""
    text = sql.strip().rstrip(";").strip()
    for pattern, handler in _HANDLERS:
        match = pattern.fullmatch(text)
        if match:
            return handler(store, session, match)
    raise SqlError("Getting syntax error: this SHOW statement cannot be served by the emulator.")


def _bare(name: str) -> str:
    return name.strip().strip("`")


def _matches(name: str, like: str | None) -> bool:
    if like is None:
        return True
    pattern = "".join(".*" if letter == "%" else "." if letter == "_" else re.escape(letter) for letter in like)
    return re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) is not None


def _database(session: QuerySession, match: re.Match[str]) -> str:
    database = _bare(match["database"] or "") or session.database
    if not database:
        raise SqlError("No database selected", NO_DATABASE)
    return database


def named_table(store: Store, session: QuerySession, match: re.Match[str]) -> Table:
    """The table that a statement names, by default of the current database; raises SqlError and CatalogError."""
    return store.registry.table(*_named(session, match))


def _named(session: QuerySession, match: re.Match[str]) -> tuple[str, str]:
    """The database and the table that a statement names."""
    parts = [_bare(part) for part in match["table"].split(".")]
    groups = match.groupdict()
    database = parts[-2] if len(parts) > 1 else _bare(groups.get("database") or "") or session.database
    if not database:
        raise SqlError("No database selected", NO_DATABASE)
    return database, parts[-1]


def _databases(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    databases = [name for name in store.registry.databases if session.rights.sees(name)]
    names = sorted((*databases, "information_schema"))
    return text_answer(["Database"], [(name,) for name in names if _matches(name, match["like"])])


def _tables(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    database = _database(session, match)
    store.registry.check_database(database)
    is_visible = session.rights.sees
    listed = [table.name for table in store.registry.tables(database) if is_visible(database, table.name)]
    names = [name for name in listed if _matches(name, match["like"])]
    if match["full"]:
        return text_answer([f"Tables_in_{database}", "Table_type"], [(name, "BASE TABLE") for name in names])
    return text_answer([f"Tables_in_{database}"], [(name,) for name in names])


def _columns(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    database, name = _named(session, match)
    view = relation(store, name.lower(), session.rights) if database.lower() == "information_schema" else None
    if view is not None:
        return text_answer(_COLUMNS, [_view_column(field) for field in view.schema])
    table, groups = store.registry.table(database, name), match.groupdict()
    columns = [column for column in table.columns if _matches(column.name, groups.get("like"))]
    if groups.get("full"):
        return text_answer(_FULL_COLUMNS, [_full_column(table, column) for column in columns])
    return text_answer(_COLUMNS, [_short_column(table, column) for column in columns])


def _short_column(table: Table, column: Column) -> tuple[str | None, ...]:
    key = "true" if table.is_key(column) else "false"
    default = column.default.text if column.default and not column.default.counts else None
    return column.name, column.type.text, "YES" if column.nullable else "NO", key, default, ""


def _view_column(field: pa.Field) -> tuple[str | None, ...]:
    return field.name, "bigint" if pa.types.is_integer(field.type) else "varchar(2048)", "YES", "false", None, ""


def _full_column(table: Table, column: Column) -> tuple[str | None, ...]:
    name, kind, null, _, default, extra = _short_column(table, column)
    key = table.model.column_key if table.is_key(column) else ""
    return name, kind, None, null, key, default, extra, "", column.comment


def create_statement(table: Table) -> str:
    """The CREATE TABLE statement that makes such a table, in the server's form (wire contract 10.8)."""
    lines = ",\n".join("  " + column_clause(column) for column in table.columns)
    keys = ", ".join(f"`{key}`" for key in table.keys)
    parts = [f"CREATE TABLE `{table.name}` (\n{lines}\n) ENGINE=OLAP ", f"{table.model.clause}({keys})"]
    if table.comment:
        parts.append(f'COMMENT "{table.comment}"')
    parts += [clause for clause in (table.partition_by, _distribution(table.distributed_by)) if clause]
    listed = ",\n".join(f'"{name}" = "{value}"' for name, value in sorted(table.properties.items()))
    parts.append(f"PROPERTIES (\n{listed}\n)")
    return "\n".join(parts) + ";"


def _distribution(clause: str) -> str:
    """`HASH(`; with a blank after the number of buckets, if one is given."""
    text = re.sub(r"(?i)\bHASH \(", "HASH(", clause)
    text = re.sub(r"(?<=\()[^)]*(?=\))", lambda match: ", ".join(map(_quoted, match[0].split(","))), text)
    return text + " " if re.search(r"(?i)\bBUCKETS\b", text) else text


def _quoted(name: str) -> str:
    return f"`{_bare(name)}`"


def column_clause(column: Column) -> str:
    """One column as SHOW CREATE TABLE writes it."""
    kind = f"{column.type.ddl} {column.aggregate}".strip()
    clause = f"`{column.name}` {kind} {'NULL' if column.nullable else 'NOT NULL'}"
    if column.default and column.default.counts:
        clause += f" {column.default.text}"
    elif column.default:
        clause += f" DEFAULT {column.default.text}" if column.default.function else f' DEFAULT "{column.default.text}"'
    return f'{clause} COMMENT "{column.comment}"'


def _create_table(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    try:
        table = named_table(store, session, match)
    except CatalogError as error:
        raise SqlError(analyzing_error(error.as_target)) from error
    if not session.rights.sees(table.database, table.name):
        session.rights.require_table("ANY", table.database, table.name)
    return text_answer(["Table", "Create Table"], [(table.name, create_statement(table))])


def _create_database(store: Store, _session: QuerySession, match: re.Match[str]) -> Answer:
    name = _bare(match["table"])
    store.registry.check_database(name)
    return text_answer(["Database", "Create Database"], [(name, f"CREATE DATABASE `{name}`")])


def _variables(_store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    variables = {name: value for name, value in session.variables.items() if name not in HIDDEN_VARIABLES}
    rows = [(name, value) for name, value in sorted(variables.items()) if _matches(name, match["like"])]
    return text_answer(["Variable_name", "Value"], rows)


_FRONTEND_COLUMNS = (
    *("Id", "Name", "IP", "EditLogPort", "HttpPort", "QueryPort", "RpcPort", "Role", "ClusterId", "Join", "Alive"),
    *("ReplayedJournalId", "LastHeartbeat", "IsHelper", "ErrMsg", "StartTime", "Version"),
)
_BACKEND_COLUMNS = (
    *("BackendId", "IP", "HeartbeatPort", "BePort", "HttpPort", "BrpcPort", "LastStartTime", "LastHeartbeat", "Alive"),
    *("SystemDecommissioned", "ClusterDecommissioned", "TabletNum", "DataUsedCapacity", "AvailCapacity"),
    *("TotalCapacity", "UsedPct", "MaxDiskUsedPct", "ErrMsg", "Version", "Status", "DataTotalCapacity", "DataUsedPct"),
    *("CpuCores", "MemLimit", "NumRunningQueries", "MemUsedPct", "CpuUsedPct", "DataCacheMetrics", "Location"),
    "StatusCode",
)


_COMPUTE_NODE_COLUMNS = (
    *("ComputeNodeId", "IP", "HeartbeatPort", "BePort", "HttpPort", "BrpcPort", "LastStartTime", "LastHeartbeat"),
    *("Alive", "SystemDecommissioned", "ClusterDecommissioned", "ErrMsg", "Version", "CpuCores", "MemLimit"),
    *("NumRunningQueries", "MemUsedPct", "CpuUsedPct", "DataCacheMetrics", "HasStoragePath", "StatusCode"),
)


def _time_of_heartbeat() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _frontends(_store: Store, session: QuerySession, _match: re.Match[str]) -> Answer:
    session.rights.require_system("OPERATE", "NODE")
    front, now = session.frontend, _time_of_heartbeat()
    rows = []
    for number, frontend in enumerate(sorted((front, *front.peers), key=lambda frontend: frontend.query_port), 1):
        ports = (9010, frontend.http_port, frontend.query_port, 9020)
        role = "LEADER" if frontend.leader else "FOLLOWER"
        alive = ("true", "true", 1, now, "true", "", now)
        rows.append((number, f"fe{number}", frontend.host, *ports, role, 1, *alive, session.version))
    return text_answer(_FRONTEND_COLUMNS, rows)


def _backends(store: Store, session: QuerySession, _match: re.Match[str]) -> Answer:
    session.rights.require_system("OPERATE", "NODE")
    front, now = session.frontend, _time_of_heartbeat()
    space = ("0.000B", "1.000 GB", "1.000 GB", "0.00 %", "0.00 %")
    use = ("1.000 GB", "0.00 %", front.cores, "1.000GB", 0, "0.00 %", "0.0 %", "N/A", "", "OK")
    error = "" if front.backends_alive else "java.net.ConnectException: Connection refused"
    alive = (now, now, "false" if error else "true", "false", "false", len(store.registry.tables()))
    rows = [
        (number, front.host, 9050, 9060, port, 8060, *alive, *space, error, session.version, "{}", *use)
        for number, port in enumerate(front.be_http_ports, FIRST_BACKEND)
    ]
    return text_answer(_BACKEND_COLUMNS, rows)


def _compute_nodes(_store: Store, session: QuerySession, _match: re.Match[str]) -> Answer:
    """None: it is no cluster of compute nodes."""
    session.rights.require_system("OPERATE", "NODE")
    return text_answer(_COMPUTE_NODE_COLUMNS, [])


def _grants(_store: Store, session: QuerySession, _match: re.Match[str]) -> Answer:
    """Those of the user who asks; the first one may do everything."""
    user = f"'{session.user}'@'%'"
    grants = session.users.grants(session.user)
    rows: list[tuple[str, str | None, str]] = [(user, None, f"GRANT 'root' TO {user}")]
    if grants is not None:
        listed = ((", ".join(sorted(privileges)), where) for where, privileges in grants.items())
        rows = [
            (user, "default_catalog", f"GRANT {privileges} ON {where} TO USER {user}") for privileges, where in listed
        ]
    return text_answer(["UserIdentity", "Catalog", "Grants"], rows)


def _config(_store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    session.rights.require_system("OPERATE")
    names = ["Key", "AliasNames", "Value", "Type", "IsMutable", "Comment"]
    rows = [
        (key, "[]", value, kind, "true" if mutable else "false", "")
        for key, (value, kind, mutable) in sorted(session.frontend.config.shown.items())
        if _matches(key, match["like"])
    ]
    return text_answer(names, rows)


_STREAM_LOAD_COLUMNS = (
    *("Label", "Id", "LoadId", "TxnId", "DbName", "TableName", "State", "ErrorMsg", "TrackingURL", "ChannelNum"),
    *("PreparedChannelNum", "NumRowsNormal", "NumRowsAbNormal", "NumRowsUnselected", "NumLoadBytes", "TimeoutSecond"),
    *("CreateTimeMs", "BeforeLoadTimeMs", "StartLoadingTimeMs", "StartPreparingTimeMs", "FinishPreparingTimeMs"),
    *("EndTimeMs", "ChannelState", "Type", "TrackingSQL"),
)


def _stream_loads(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    """SHOW ALL STREAM LOAD: a row for each label and table, also of what has ended.

    It waits while a commit of the label waits (wire contract 4.16). A table is shown to users with a privilege on it; a
    label without a row is an error (6.5).
    """
    database, label = _database(session, match), _bare(match["label"] or "")
    store.registry.check_database(database)
    with session.limited():
        session.scans.lock(database, label, session.query_seconds)
    rows = [
        tuple(row[name] for name in _STREAM_LOAD_COLUMNS)
        for row in store.virtual_tables.get(("proc", "stream_loads"), tuple)()
        if row["DbName"] == database and label in ("", row["Label"]) and session.rights.sees(database, row["TableName"])
    ]
    if label and not rows:
        raise SqlError(f"There is no label named {label} in db {database}. Include history? true")
    return text_answer(_STREAM_LOAD_COLUMNS, rows)


def _set_config(_store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    session.rights.require_system("OPERATE")
    try:
        session.frontend.config.change(match["name"], match["value"])
    except SettingError as error:
        raise SqlError(str(error)) from error
    return Answer()


def _transaction(store: Store, _session: QuerySession, match: re.Match[str]) -> Answer:
    records = [record for record in store.transactions() if record.txn_id == int(match["id"])]
    if not records:
        raise SqlError(analyzing_error(f"transaction with id {match['id']} does not exist"))
    names = ["TransactionId", "Label", "TransactionStatus", "FinishTime"]
    return text_answer(names, [(record.txn_id, record.label, record.state, record.finished_at) for record in records])


_PROC_COLUMNS = (
    *("TransactionId", "Label", "Coordinator", "TransactionStatus", "LoadJobSourceType", "PrepareTime", "PreparedTime"),
    *("CommitTime", "PublishTime", "FinishTime", "Reason", "ErrorReplicasCount", "ListenerId", "TimeoutMs"),
    *("PreparedTimeoutMs", "ErrMsg"),
)
_PROC_ROWS = 2_000


def _proc_transactions(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    """SHOW PROC '/transactions/<database>/finished' and `running`, the newest first (wire contract 6.5)."""
    session.rights.require_system("OPERATE")
    database = _bare(match["database"])
    store.registry.check_database(database)
    finished = match["kind"].lower() == "finished"
    rows = [
        tuple(row[name] for name in _PROC_COLUMNS)
        for row in store.virtual_tables.get(("proc", "transactions"), tuple)()
        if row["database"] == database and (row["TransactionStatus"] in ("VISIBLE", "ABORTED")) is finished
    ]
    return text_answer(_PROC_COLUMNS, rows[:_PROC_ROWS])


def _nothing(_store: Store, _session: QuerySession, _match: re.Match[str]) -> Answer:
    return text_answer(["Level", "Code", "Message"], [])


_ALTERED = (
    *("JobId", "TableName", "CreateTime", "FinishTime", "IndexName", "IndexId", "OriginIndexId", "SchemaVersion"),
    *("TransactionId", "State", "Msg", "Progress", "Timeout"),
)


def _alterations(store: Store, session: QuerySession, match: re.Match[str]) -> Answer:
    database = _database(session, match)
    store.registry.check_database(database)
    jobs = store.alterations.jobs(database, match["altered"])
    jobs = jobs[::-1] if match["latest"] else jobs
    jobs = jobs[: int(match["limit"])] if match["limit"] else jobs
    rows = [
        (
            *(job.number, job.table, _time(job.created), _time(job.finished), job.table, job.number + 1),
            *(job.number - 1, "1:0", 1, job.state, job.message, None, 86_400),
        )
        for job in jobs
    ]
    return text_answer(list(_ALTERED), rows)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


_HANDLERS: list[tuple[re.Pattern[str], Handler]] = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), handler)
    for pattern, handler in (
        (rf"SHOW\s+(?:DATABASES|SCHEMAS){_LIKE}", _databases),
        (rf"SHOW\s+(?P<full>FULL\s+)?TABLES{_FROM}{_LIKE}", _tables),
        (rf"SHOW\s+CREATE\s+TABLE\s+{TABLE}", _create_table),
        (rf"SHOW\s+CREATE\s+(?:DATABASE|SCHEMA)\s+{TABLE}", _create_database),
        (rf"SHOW\s+(?P<full>FULL\s+)?(?:COLUMNS|FIELDS)\s+(?:FROM|IN)\s+{TABLE}{_FROM}{_LIKE}", _columns),
        (rf"(?:DESC|DESCRIBE)\s+(?:TABLE\s+)?{TABLE}(?:\s+ALL)?", _columns),
        (rf"SHOW\s+(?:GLOBAL\s+|SESSION\s+)?VARIABLES{_LIKE}", _variables),
        (r"SHOW\s+FRONTENDS", _frontends),
        (r"SHOW\s+BACKENDS", _backends),
        (r"SHOW\s+COMPUTE\s+NODES", _compute_nodes),
        (r"SHOW\s+GRANTS(?:\s+FOR\s+.+)?", _grants),
        (rf"ADMIN\s+SHOW\s+FRONTEND\s+CONFIG{_LIKE}", _config),
        (
            r"ADMIN\s+SET\s+FRONTEND\s+CONFIG\s*\(\s*(?P<quote>['\"])(?P<name>\w+)(?P=quote)\s*=\s*"
            r"(?P<mark>['\"])(?P<value>[^'\"]*)(?P=mark)\s*\)",
            _set_config,
        ),
        (
            rf"SHOW\s+PROC\s+['\"]/transactions/(?P<database>{NAME})/(?P<kind>finished|running)['\"]",
            _proc_transactions,
        ),
        (rf"SHOW\s+ALL\s+STREAM\s+LOAD(?:\s+FOR\s+(?P<label>{NAME}))?{_FROM}", _stream_loads),
        (rf"SHOW\s+TRANSACTION{_FROM}\s+WHERE\s+ID\s*=\s*(?P<id>\d+)", _transaction),
        (
            rf"SHOW\s+ALTER\s+TABLE\s+COLUMN{_FROM}"
            r"(?:\s+WHERE\s+TableName\s*=\s*(?P<quote>['\"])(?P<altered>.*?)(?P=quote))?"
            r"(?:\s+ORDER\s+BY\s+CreateTime(?P<latest>\s+DESC)?)?(?:\s+LIMIT\s+(?P<limit>\d+))?",
            _alterations,
        ),
        (r"SHOW\s+(?:WARNINGS|ERRORS|(?:GLOBAL\s+|SESSION\s+)?STATUS)\b.*", _nothing),
    )
]
