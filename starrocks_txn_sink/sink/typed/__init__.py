"""Typed columns: which Spark type fits which StarRocks column, how values become JSON in the JVM, what is refused."""

from starrocks_txn_sink.sink.typed.route import TypedRoute, delete_placeholders, fit_routes, with_columns
from starrocks_txn_sink.sink.typed.target import COLUMNS_SQL, NOT_NULL_SQL, TargetColumn, target_columns

__all__ = [
    "COLUMNS_SQL",
    "NOT_NULL_SQL",
    "TargetColumn",
    "TypedRoute",
    "delete_placeholders",
    "fit_routes",
    "target_columns",
    "with_columns",
]
