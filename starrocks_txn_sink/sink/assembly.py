"""`TransactionAssembly`: the rules by which lanes assemble raw events, and the columns that they read of a frame."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_txn_sink.assembler import spark
from starrocks_txn_sink.assembler.rules.model import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink import projection
from starrocks_txn_sink.sources.formats.raw_format import POSITION, SOURCE_PARTITION, VALUE, RawFormat
from starrocks_txn_sink.sources.messages import named_column


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAssembly:
    """Rules by which the lanes of a sink make whole source transactions of raw events.

    The rules are those of `assemble_transactions`. The events have the columns that it reads, or they are raw JSON in
    one column, as `lines` describes.

    `SinkOptions.shuffle` says how events come to their lane:

    - `"auto"`: with one lane, events come as they are, in one task; Spark sorts them first once a source partition's
      events turn out to be out of order. With more lanes Spark always sorts them, unless the lanes share one StarRocks
      transaction.
    - `True`: Spark always sorts them.
    - `False` (not with several lanes that have StarRocks transactions of their own): Spark never sorts them. Events out
      of order are an error, before anything is committed.

    Small micro-batches (100 000 events, 32 MB) may be in any order.

    Args:
        by: The column with the source partition (string or integer).
        interleaved: Whether a source partition has several open transactions, one per txn_id, or one.
        open_timeout: The longest time that a transaction may be open, in processing time: seconds, a timedelta or text
            like `10 min`; None sets no limit. The sink checks it when a micro-batch runs; Spark runs none while no
            event comes.
        on_open_timeout: `fail` the query at a transaction that is open for longer, or `drop` the transaction.
        missing_begin: `fail` the query at events whose BEGIN was never seen, or `drop` or `accept` them.
        lines: The columns of raw events (`TxnEventLines`); None for parsed events.
        state_dir: The folder in which open source transactions wait: a path or URI that driver and executors share. By
            default they wait in the query's checkpoint, so that a copy of the checkpoint has both.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import StarRocksSink, TransactionAssembly, TxnEventLines

        assembly = TransactionAssembly(lines=TxnEventLines(), open_timeout="10 min")
        sink = StarRocksSink(options, assemble=assembly)
        query = topic.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    by: str = "source_partition"
    interleaved: bool = False
    open_timeout: float | timedelta | str | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"
    lines: RawFormat | None = None
    state_dir: str | None = None

    def __post_init__(self) -> None:
        _ = self.policy
        if self.state_dir is not None and not re.match(r"([A-Za-z][\w+.-]*:)?/", self.state_dir):
            raise OptionError(
                f"state_dir is {self.state_dir!r}, which means another folder in each process.",
                hint="Give an absolute path, or a URI such as s3a://bucket/folder, that driver and executors share.",
                option="state_dir",
            )

    @property
    def reads_kafka(self) -> bool:
        """Whether the lanes read Kafka themselves, without Spark."""
        return self.lines is not None and self.lines.reader == "librdkafka"

    @property
    def policy(self) -> Policy:
        return Policy(self.interleaved, seconds(self.open_timeout), self.on_open_timeout, self.missing_begin)


def event_columns(frame: DataFrame, by: str) -> list[Column]:
    partition, *others = spark.event_columns(frame, by)
    return [partition.cast("string").alias(SOURCE_PARTITION), *others, *projection.event_time(frame)]


def raw_columns(frame: DataFrame, lines: RawFormat, *, topic_names: bool = False) -> list[Column]:
    """The columns of raw events; with `topic_names` source partitions are named by topic and partition.

    Raises InputError for a column that is missing, or has another type.
    """
    columns, topics = lines.columns, ("topic",) if topic_names else ()
    wanted = [*columns.values(), *topics]
    missing = [each for each in wanted if each not in frame.columns]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(frame.columns)}; name one of these, or None if the JSON itself has the value."
            + (" A query over several topics needs their column `topic`." if {*topics} & {*missing} else ""),
        )
    kind = frame.schema[columns[VALUE]].dataType
    if not isinstance(kind, (T.StringType, T.BinaryType)):
        raise InputError(
            f"The column {columns[VALUE]} is {kind.simpleString()}, not string or binary.",
            hint="Name the column that holds the JSON, or leave `lines` out for events that are parsed already.",
        )
    partition = _place(columns.get(SOURCE_PARTITION), "string")
    return [
        (F.concat_ws("-", F.col("topic"), partition) if topic_names else partition).alias(SOURCE_PARTITION),
        _place(columns.get(POSITION), "bigint").alias(POSITION),
        named_column(columns[VALUE]).alias(VALUE),
        *projection.event_time(frame),
    ]


def _place(name: str | None, kind: str) -> Column:
    return (named_column(name) if name else F.lit(None)).cast(kind)
