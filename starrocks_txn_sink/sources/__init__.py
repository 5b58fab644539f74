"""Event formats: what a source delivers, made into the columns that `assemble_transactions` reads."""

from starrocks_txn_sink.sources.txn_event import TXN_EVENT_SCHEMA, parse_txn_events

__all__ = ["TXN_EVENT_SCHEMA", "parse_txn_events"]
