"""Source formats and readers: TxnEvent, Debezium and Kafka, as the columns that the assembler reads.

The names are loaded on first use.
"""

from typing import TYPE_CHECKING

from starrocks_txn_sink.public_names import loaded_on_use

_MODULES = {
    "BalancedKafka": "starrocks_spark_stages.balanced.reader",
    "SchemaRegistry": "starrocks_txn_sink.http.registry",
    "TXN_EVENT_SCHEMA": "starrocks_spark_stages.parse.txn_event",
    "balanced_merge": "starrocks_spark_stages.balanced.rules.merge",
    "kafka_options": "starrocks_txn_sink.sources.kafka.spark_reader",
    "parse_debezium": "starrocks_spark_stages.parse.debezium",
    "parse_debezium_transactions": "starrocks_spark_stages.parse.debezium",
    "parse_txn_events": "starrocks_spark_stages.parse.txn_event",
    "skew_of": "starrocks_txn_sink.sources.kafka.skew",
}

if TYPE_CHECKING:
    from starrocks_spark_stages.balanced.reader import BalancedKafka as BalancedKafka
    from starrocks_spark_stages.balanced.rules.merge import balanced_merge as balanced_merge
    from starrocks_spark_stages.parse.debezium import (
        parse_debezium as parse_debezium,
        parse_debezium_transactions as parse_debezium_transactions,
    )
    from starrocks_spark_stages.parse.txn_event import (
        TXN_EVENT_SCHEMA as TXN_EVENT_SCHEMA,
        parse_txn_events as parse_txn_events,
    )
    from starrocks_txn_sink.http.registry import SchemaRegistry as SchemaRegistry
    from starrocks_txn_sink.sources.kafka.skew import skew_of as skew_of
    from starrocks_txn_sink.sources.kafka.spark_reader import kafka_options as kafka_options
else:
    __all__ = [*_MODULES]


__getattr__, __dir__ = loaded_on_use(__name__, _MODULES)
