"""Before the first load: is the server new enough, and what are its tables? Asked once, over the MySQL protocol."""

from __future__ import annotations

from collections.abc import Iterable

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.options.addresses import require_supported
from starrocks_txn_sink.sink.typed import COLUMNS_SQL, TargetColumn, target_columns


def table_models(connection: LeaderConnection, database: str, deadline: Deadline) -> dict[str, str]:
    """Check the server's version and return the database's tables with their models (PRIMARY_KEYS, DUP_KEYS, …).

    Raises OptionError for a server that is too old, QueryFailed or QueryRefused when it cannot be asked.
    """
    require_supported(str(connection.query("SELECT current_version()", (), deadline)[0][0]))
    rows = connection.query(
        "SELECT TABLE_NAME, TABLE_MODEL FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
        (database,),
        deadline,
    )
    return {str(name): str(model) for name, model in rows}


def table_columns(
    connection: LeaderConnection, database: str, tables: Iterable[str], deadline: Deadline
) -> dict[str, tuple[TargetColumn, ...]]:
    """The columns of `tables`, by table in their order; a table that is not there is left out.

    Raises QueryFailed or QueryRefused when the server cannot be asked.
    """
    names = tuple(tables)
    if not names:
        return {}
    sql = COLUMNS_SQL.format(", ".join(["%s"] * len(names)))
    return target_columns(connection.query(sql, (database, *names), deadline))
