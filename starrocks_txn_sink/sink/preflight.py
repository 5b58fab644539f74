"""Before the first load: is the server new enough, and what are its tables? Asked once, over the MySQL protocol."""

from __future__ import annotations

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.options.server_version import require_supported


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
