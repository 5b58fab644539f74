"""Debezium's change events and transaction markers as columns, and the StarRocks table of each source table."""

from typing import Final, get_args

from pyspark.sql import DataFrame, functions as F, types as T

from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import KEY_DELETES
from starrocks_txn_sink.sources.formats.bare_values import BinaryMode, ConnectorModes, DecimalMode, TimeMode
from starrocks_txn_sink.sources.formats.debezium import PLACE, DebeziumChanges, DebeziumMarkers, DeletedRow
from starrocks_txn_sink.sources.formats.placeholders import spellings_of_unavailable
from starrocks_txn_sink.sources.formats.raw_format import OnMalformed, OnTruncate
from starrocks_txn_sink.sources.formats.registered import Schemas, with_registry
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, OnUnknownTable, TableMapping, TableRule
from starrocks_txn_sink.sources.messages import check_input, parse_messages

_TIMESTAMP: Final = "timestamp"


@suggests_arguments
def parse_debezium(
    df: DataFrame,
    tables: TableRule = OWN_NAME,
    *,
    value: str = "value",
    key: str = "key",
    on_unknown_table: OnUnknownTable = "fail",
    dead_letter_table: str | None = None,
    deleted_row: DeletedRow = "before",
    unavailable_value: str | None = "__debezium_unavailable_value",
    on_malformed: OnMalformed = "fail",
    on_truncate: OnTruncate = "fail",
    time_precision_mode: TimeMode | None = None,
    decimal_handling_mode: DecimalMode | None = None,
    binary_handling_mode: BinaryMode | None = None,
    registry: Schemas | None = None,
    name: str = "parse_debezium",
) -> DataFrame:
    """Parse the rows of Debezium's change events.

    Tombstones are left out, and so are heartbeats, schema changes, signals, notifications and logical messages. A value
    is malformed if it is not exactly one JSON object, has a field of another type, or is an operation without a row, or
    a row without Debezium's envelope. An error never shows its content.

    A row with a placeholder for a value that Debezium did not get (PostgreSQL's unchanged TOAST values) fails the
    query, because it would overwrite the true value.

    Args:
        df: Messages of the topics of all tables. Errors name Kafka's topic, partition and offset if `df` has these
            columns. `timestamp` joins a transaction that a restart of the connector cut.
        tables: The StarRocks table of each source table (`schema.table` in PostgreSQL, `database.table` in MySQL): a
            mapping, in which an empty name leaves a table out, or a regular expression with one group (TableMapping).
            By default the table has the source table's own name.
        value: The column with the change event (string or binary).
        key: The column with the message's key, read with `deleted_row="key"` only.
        on_unknown_table: `fail` the query at rows of a table outside the rule, `skip` them, or send them to
            `dead_letter_table` (`dead_letter`). They count for their transaction in all cases.
        dead_letter_table: The table for these rows, with `on_unknown_table="dead_letter"` only.
        deleted_row: The row of a delete: Debezium's `before`, or the message's `key`.
        unavailable_value: The placeholder, if the connector's `unavailable.value.placeholder` sets another one. None,
            or an empty text, hands placeholders on as values, for tables that keep each change.
        on_malformed: `fail` the query at a malformed value, or `drop` the value and count it in each progress under
            `observedMetrics[name]["malformed"]`. The transaction of a dropped value never adds up.
        on_truncate: `fail` the query where the source has emptied a table with TRUNCATE, or `ignore` this, and count it
            under `observedMetrics[name]["truncates"]`: it counts for its transaction, and the table keeps its rows.
        time_precision_mode: The connector's `time.precision.mode`, for messages without schema, as in
            DebeziumAssembly. The sink applies it, and finds it in the metadata of the column `op`.
        decimal_handling_mode: The connector's `decimal.handling.mode`, likewise.
        binary_handling_mode: The connector's `binary.handling.mode`, as in DebeziumAssembly.
        registry: The schema registry (SchemaRegistry) whose schemas values and keys have; None for JSON without it.
        name: The key of the count.

    Returns:
        One row for each change, for `assemble_debezium`. The columns are

        - source_partition (the connector's topic.prefix);
        - txn_id (NULL for a snapshot's row), total_order, collection, position;
        - database (NULL), and table (NULL: counted, then left out);
        - op (c, u, d, r), and row (JSON, in Debezium's own spelling; dates, times, decimals and bits that the
          converter's schema explains as texts and numbers that StarRocks reads);
        - timestamp (Kafka's, in milliseconds; NULL if `df` has no such column).

    Raises:
        InputError: A column is missing.
        OptionError: An option is invalid, or options conflict.

    Example::

        from starrocks_txn_sink.sources import kafka_options, parse_debezium

        options = kafka_options("broker:9092", subscribePattern="shop[.]public[.].*")
        changes = spark.readStream.format("kafka").options(**options).load()
        rows = parse_debezium(changes, tables={"public.orders": "orders", "public.items": "order_items"})
    """
    rule = TableMapping(tables, on_unknown_table, dead_letter_table)
    modes = ConnectorModes.declared(time_precision_mode, decimal_handling_mode, binary_handling_mode, registry)
    check_choice("deleted_row", deleted_row, get_args(DeletedRow))
    check_choice("on_malformed", on_malformed, get_args(OnMalformed))
    check_choice("on_truncate", on_truncate, get_args(OnTruncate))
    check_input(df, (value, *((key,) if deleted_row == "key" else ())))
    changes = DebeziumChanges(
        value=value,
        key=key if deleted_row == "key" else None,
        places=_places(df),
        tables=rule,
        unavailable=spellings_of_unavailable(unavailable_value) if unavailable_value else None,
        on_malformed=on_malformed,
        on_truncate=on_truncate,
    )
    counts = ("truncates",) if on_truncate == "ignore" else ()
    events = parse_messages(_with_milliseconds(df), with_registry(changes, registry), (), name, counts)
    key_deletes = {KEY_DELETES: True} if deleted_row == "key" else {}
    return events.withMetadata("op", key_deletes | modes.metadata)


@suggests_arguments
def parse_debezium_transactions(
    df: DataFrame,
    *,
    value: str = "value",
    source: str | None = None,
    on_malformed: OnMalformed = "fail",
    registry: Schemas | None = None,
    name: str = "parse_debezium_transactions",
) -> DataFrame:
    """Parse the markers of Debezium's transaction topic.

    The topic must have one partition, because only one partition keeps the order of commits. A marker in another
    partition fails the query.

    Args:
        df: Messages with the columns `value`, topic, partition and offset. With `source` the topic may be missing.
        value: The column with the marker (string or binary).
        source: The source partition; by default the topic without its last part (`shop.transaction` → `shop`).
        on_malformed: `fail` the query at a malformed value, or `drop` the value and count it, as in `parse_debezium`.
        registry: The schema registry (SchemaRegistry) whose schemas values and keys have; None for JSON without it.
        name: The key of the count.

    Returns:
        One row for each marker, for `assemble_debezium`. The columns are

        - source_partition, txn_id, status (BEGIN, END);
        - event_count, data_collections;
        - sequence (the offset), and position (NULL where the id does not hold it);
        - timestamp, as in `parse_debezium`.

    Raises:
        InputError: A column is missing.
        OptionError: `on_malformed` is unknown.
    """
    check_choice("on_malformed", on_malformed, get_args(OnMalformed))
    check_input(df, (value, "partition", "offset", *(() if source else ("topic",))))
    markers = DebeziumMarkers(value=value, source=source, places=_places(df), on_malformed=on_malformed)
    return parse_messages(_with_milliseconds(df), with_registry(markers, registry), (), name)


def _with_milliseconds(df: DataFrame) -> DataFrame:
    """`df` with Kafka's timestamp in milliseconds; NULL if `df` lacks Kafka's column."""
    timed = _TIMESTAMP in df.columns and isinstance(df.schema[_TIMESTAMP].dataType, T.TimestampType)
    return df.withColumn(_TIMESTAMP, F.unix_millis(_TIMESTAMP) if timed else F.lit(None).cast("bigint"))


def _places(df: DataFrame) -> tuple[str, ...]:
    return tuple(name for name in PLACE if name in df.columns)
