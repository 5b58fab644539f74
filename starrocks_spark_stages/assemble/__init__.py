"""Whole source transactions as a stage of a query: the rules of `starrocks_txn_sink.assembler` in Spark's state."""
