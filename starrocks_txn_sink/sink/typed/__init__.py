"""Typed columns: which Spark type fits which StarRocks column, how values become JSON in the JVM, what is refused."""

from starrocks_txn_sink.sink.typed.route import TypedRoute, fit_routes, with_columns
from starrocks_txn_sink.sink.typed.target import COLUMNS_SQL, TargetColumn, target_columns

__all__ = ["COLUMNS_SQL", "TargetColumn", "TypedRoute", "fit_routes", "target_columns", "with_columns"]
