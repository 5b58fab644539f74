"""Source formats and readers: TxnEvent, Debezium and Kafka, as the columns that the assembler reads.

The names are loaded on first use.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

_MODULES = {
    "BalancedKafka": "starrocks_txn_sink.sources.kafka.reader",
    "SchemaRegistry": "starrocks_txn_sink.http.registry",
    "TXN_EVENT_SCHEMA": "starrocks_txn_sink.sources.txn_event",
    "balanced_merge": "starrocks_txn_sink.sources.balanced.merge",
    "kafka_options": "starrocks_txn_sink.sources.kafka.spark_reader",
    "parse_debezium": "starrocks_txn_sink.sources.debezium",
    "parse_debezium_transactions": "starrocks_txn_sink.sources.debezium",
    "parse_txn_events": "starrocks_txn_sink.sources.txn_event",
    "skew_of": "starrocks_txn_sink.sources.balanced.plan",
}

if TYPE_CHECKING:
    from starrocks_txn_sink.http.registry import SchemaRegistry as SchemaRegistry
    from starrocks_txn_sink.sources.balanced.merge import balanced_merge as balanced_merge
    from starrocks_txn_sink.sources.balanced.plan import skew_of as skew_of
    from starrocks_txn_sink.sources.debezium import (
        parse_debezium as parse_debezium,
        parse_debezium_transactions as parse_debezium_transactions,
    )
    from starrocks_txn_sink.sources.kafka.reader import BalancedKafka as BalancedKafka
    from starrocks_txn_sink.sources.kafka.spark_reader import kafka_options as kafka_options
    from starrocks_txn_sink.sources.txn_event import (
        TXN_EVENT_SCHEMA as TXN_EVENT_SCHEMA,
        parse_txn_events as parse_txn_events,
    )
else:
    __all__ = [*_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
