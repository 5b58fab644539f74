"""Which columns make the primary keys: asked once a session, for `compact`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.lane.columns import PRIMARY_KEYS
from starrocks_txn_sink.ledger.access import LeaderConnection
from starrocks_txn_sink.ledger.ledger import LEDGER_TABLE
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.key_columns import KeyColumn

_COMPUTED: Final = re.compile(r"(?:^|,)\s*(`[^`]+`|\w+)\s*=(?!=)")


def primary_keys(
    connection: LeaderConnection, options: SinkOptions, models: Mapping[str, str], deadline: Deadline
) -> dict[str, tuple[KeyColumn, ...]]:
    """The key columns of the PRIMARY KEY tables among `models`.

    Raises OptionError when the server does not tell them, or when the property `columns` of a table computes one;
    QueryFailed or QueryRefused when the server cannot be asked.
    """
    rows = connection.query(
        "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, NUMERIC_SCALE FROM information_schema.columns"
        " WHERE TABLE_SCHEMA = %s AND COLUMN_KEY = 'PRI' ORDER BY TABLE_NAME, ORDINAL_POSITION",
        (options.database,),
        deadline,
    )
    keys: dict[str, tuple[KeyColumn, ...]] = {
        table: () for table, model in models.items() if model == PRIMARY_KEYS and table != LEDGER_TABLE
    }
    for table, name, kind, scale in rows:
        if table in keys:
            keys[table] += (KeyColumn.of(str(name), str(kind), None if scale is None else int(scale)),)
    unknown = sorted(table for table, columns in keys.items() if not columns)
    if unknown:
        raise OptionError(
            f"compact is set, but information_schema.columns names no key column of {', '.join(unknown)}.",
            hint="Let the user see the tables' columns, or turn compact off and choose the last row per key upstream "
            "(to_starrocks_ops).",
            option="compact",
        )
    for table, columns in keys.items():
        _refuse_computed(table, columns, options.load_headers(table).get("columns", ""))
    return keys


def _refuse_computed(table: str, columns: tuple[KeyColumn, ...], header: str) -> None:
    computed = {name.strip("`").lower() for name in _COMPUTED.findall(header)}
    found = [column.name for column in columns if column.name.lower() in computed]
    if found:
        raise OptionError(
            f"compact is set, but the property columns of {table} computes its key column {', '.join(found)}: two rows "
            "cannot be compared before the server has computed their keys.",
            hint="Compute the key before the sink, or turn compact off.",
            option="compact",
        )
