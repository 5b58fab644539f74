"""Source formats and readers: TxnEvent, Debezium and Kafka, as the columns that the assembler reads."""

from starrocks_txn_sink.sources.balanced.merge import balanced_merge
from starrocks_txn_sink.sources.debezium import parse_debezium, parse_debezium_transactions
from starrocks_txn_sink.sources.kafka.spark_reader import kafka_options
from starrocks_txn_sink.sources.txn_event import TXN_EVENT_SCHEMA, parse_txn_events

__all__ = [
    "TXN_EVENT_SCHEMA",
    "balanced_merge",
    "kafka_options",
    "parse_debezium",
    "parse_debezium_transactions",
    "parse_txn_events",
]
