"""The statement that changes the columns of a table: the sink runs it, and errors advise it."""

from __future__ import annotations

from collections.abc import Mapping

from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.rows.target import TargetColumn, TargetType

Types = Mapping[TargetColumn, TargetType]


def alteration(table: str, added: Mapping[str, str], modified: Types | None = None) -> str:
    """All changes of a table's columns at once, because each ALTER of a type rewrites the table (wire contract 10.15).

    `table` is an identifier; `added` has the types of new columns by name, `modified` other types of columns that are
    there. A column that must have a value stays one that must. Names are quoted, and not checked (`identifier`).
    """
    clauses = [f"ADD COLUMN {quote(name)} {type_} NULL" for name, type_ in added.items()]
    for column, type_ in (modified or {}).items():
        clauses.append(f"MODIFY COLUMN {quote(column.name)} {type_} {'NULL' if column.nullable else 'NOT NULL'}")
    return f"ALTER TABLE {table} {', '.join(clauses)}"
