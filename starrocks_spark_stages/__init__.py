"""Stages of a Spark query before the sink: parsed messages, whole source transactions, changelogs, balanced reading.

Their public names are those of `starrocks_txn_sink`, `starrocks_txn_sink.sources` and `starrocks_txn_sink.changelog`.
The sink imports nothing from here.
"""
