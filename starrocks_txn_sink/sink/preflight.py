"""Before the first load: is the server new enough, and what are its tables? Asked once, over the MySQL protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from starrocks_txn_sink.errors import StarRocksSinkError, Transient
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.server_version import require_supported


class QueryFailed(StarRocksSinkError, Transient):
    """StarRocks could not be asked over the MySQL protocol."""

    code = "query_failed"
    hint = "Check query_url (query_port, 9030 by default), username and password."


@contextmanager
def connect(options: SinkOptions) -> Iterator[Any]:
    """Yield a PyMySQL cursor on the first frontend of `query_url` that answers; raises QueryFailed when none does."""
    failure: Exception | None = None
    for address in options.query_addresses:
        try:
            connection = pymysql.connect(
                host=address.host,
                port=address.port,
                user=options.username,
                password=options.read_password(),
                connect_timeout=max(1, round(options.connect_timeout)),
                read_timeout=options.read_timeout,
                write_timeout=options.read_timeout,
                autocommit=True,
            )
        except pymysql.MySQLError as error:
            failure = error
            continue
        with connection, connection.cursor() as cursor:
            yield cursor
            return
    reason = f"{type(failure).__name__} {failure.args[0] if failure and failure.args else ''}".strip()
    raise QueryFailed(f"No address of query_url could be connected to ({reason}).") from failure


def table_models(options: SinkOptions) -> dict[str, str]:
    """Check the server's version and return the database's tables with their models (PRIMARY_KEYS, DUP_KEYS, …).

    Raises OptionError for a server that is too old, QueryFailed when it cannot be asked. Empty without `query_url`.
    """
    if not options.query_addresses:
        return {}
    try:
        with connect(options) as cursor:
            cursor.execute("SELECT current_version()")
            require_supported(str(cursor.fetchone()[0]))
            cursor.execute(
                "SELECT TABLE_NAME, TABLE_MODEL FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s",
                (options.database,),
            )
            return {str(name): str(model) for name, model in cursor.fetchall()}
    except pymysql.MySQLError as error:
        raise QueryFailed(f"The server could not be asked for its version and tables ({error.args[0]}).") from error
