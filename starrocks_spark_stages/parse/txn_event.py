"""TxnEvents as a DataFrame: their columns, and `parse_txn_events`, which makes them of raw JSON."""

from typing import Final

from pyspark.sql import DataFrame

from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.formats.raw_format import OnMalformed
from starrocks_txn_sink.sources.formats.registered import Schemas
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.sources.kafka.spark_reader import refuse_several_topics
from starrocks_txn_sink.sources.messages import parse_messages

TXN_EVENT_SCHEMA: Final = (
    "source_partition STRING, position BIGINT, type STRING, txn_id STRING, "
    "database STRING, table STRING, op STRING, row STRING"
)
"""The columns of parsed events. Not for Spark's own JSON reader, which loses text (docs/guides/sources.md)."""


@suggests_arguments
def parse_txn_events(
    df: DataFrame,
    value: str = "value",
    *,
    source_partition: str | None = "partition",
    position: str | None = "offset",
    keep: tuple[str, ...] = (),
    on_malformed: OnMalformed = "fail",
    registry: Schemas | None = None,
    name: str = "parse_txn_events",
) -> DataFrame:
    """Parse TxnEvents from JSON, by the rules of `TxnEventLines`.

    A `row` may be a string or an object, which keeps its text. A value is malformed if it is NULL (a Kafka tombstone),
    is more or less than one JSON object, or has a field of another type.

    Args:
        df: The raw events.
        value: The column with the JSON (string or binary).
        source_partition: The column with the source partition, by default Kafka's; None takes the field from the JSON.
            With several topics make one column of topic and partition.
        position: The column with the position, by default Kafka's offset; None takes the field from the JSON.
        keep: Further columns of `df` to keep.
        on_malformed: `fail` the query at a malformed value, or `drop` the value and count it in each progress under
            `observedMetrics[name]["malformed"]`.
        registry: The schema registry (SchemaRegistry) whose schemas the messages have; None for JSON without it.
        name: The key of the count.

    Returns:
        The columns of TXN_EVENT_SCHEMA, then `keep`. Source partition and position keep the types of their columns.
        With Kafka's partition and offset in `df` kafka_offset and kafka_partition follow, the place of the message.

    Raises:
        InputError: A column is missing (at once), or a value is malformed (in the running query). The error names
            source partition and position, never the content.
        OptionError: `on_malformed` is unknown, or `source_partition` is Kafka's partition and the stream reads several
            topics (a pattern is not seen).

    Example::

        from starrocks_txn_sink.sources import kafka_options, parse_txn_events

        reader = spark.readStream.format("kafka").options(**kafka_options("broker:9092", subscribe="events"))
        events = parse_txn_events(reader.load())
    """
    lines = TxnEventLines(
        value=value,
        source_partition=source_partition,
        position=position,
        on_malformed=on_malformed,
        registry=registry,
    )
    if source_partition == "partition" and ("partition", "int") in df.dtypes:  # Kafka's own
        refuse_several_topics(df)
    return parse_messages(df, lines, keep, name)
