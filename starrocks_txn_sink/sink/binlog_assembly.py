"""`MaxwellAssembly`, `CanalAssembly`: the rules of lanes that take messages of MySQL's binlog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from starrocks_txn_sink.assembler.rules.base import Assembler
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.single_events import SingleEvents
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink.assembly import MessageAssembly, Transactions
from starrocks_txn_sink.sources.formats.canal import CanalMessages
from starrocks_txn_sink.sources.formats.maxwell import MaxwellMessages
from starrocks_txn_sink.sources.formats.raw_format import OnTruncate, RawFormat
from starrocks_txn_sink.sources.formats.tables import TableMapping

MissingBegin = Literal["fail", "drop"]


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxwellAssembly(MessageAssembly):
    """Rules by which the lanes of a sink take Maxwell's messages: as whole source transactions, or change by change.

    The frame is Spark's Kafka source, as it is. `whole` source transactions need all rows of a transaction in one
    Kafka partition, with `output_xoffset=true`: one topic, and a partition for each database (Maxwell's default). Row
    numbers that do not follow are an error. The source partition is Kafka's partition, behind the topic's name if a
    query reads several topics or does not show them, and the position is the offset of the row with the commit.

    With `transactions="none"` each change is written once, those of a partition in their order, and a micro-batch is
    one StarRocks transaction over all tables; but a source transaction may be split over two of them. It is the way
    for a topic for each table, and for partitions by table or primary key.

    Messages that Maxwell sends again after a crash are written again.

    Args:
        tables: The StarRocks table of each source table (`database.table`): a mapping, in which an empty name leaves a
            table out, or a regular expression with one group. By default the table has the last part of the name.
        dead_letter_table: The table for the rows of unknown tables under `on_unknown_table="dead_letter"`.
        on_unknown_table: `fail` the query at rows of a table outside the rule, `skip` them, or send them to
            `dead_letter_table` (`dead_letter`).
        on_malformed: `fail` the query at a malformed message, or `drop` the message and count it.
        reader: `librdkafka`: the lanes themselves read the offsets that Spark's Kafka source has planned; or `spark`
            reads the frame (docs/guides/assembling.md, "Lanes that read Kafka").
        rules: What becomes of columns, by table (`TableRules`).
        state_dir: The folder in which open transactions wait, as in TransactionAssembly.
        transactions: `whole` source transactions, or `none`: each change by itself.
        missing_begin: `fail` the query at a transaction whose first rows were never read, or `drop` it.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import MaxwellAssembly, StarRocksSink

        assembly = MaxwellAssembly(tables={"shop.orders": "orders", "shop.items": "order_items"})
        sink = StarRocksSink(options, assemble=assembly)
        query = topic.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    format: ClassVar[str] = "maxwell"
    whole_by: ClassVar[str] = "by row numbers, in one partition"
    transactions: Transactions = "whole"
    missing_begin: MissingBegin = "fail"

    def __post_init__(self) -> None:
        check_choice("transactions", self.transactions, get_args(Transactions))
        check_choice("missing_begin", self.missing_begin, get_args(MissingBegin))
        if self.transactions == "none" and self.missing_begin != "fail":
            raise OptionError(
                'missing_begin has no meaning with transactions="none": each change is a unit.',
                hint="Leave it out.",
                option="missing_begin",
            )
        self.check_shared()
        _ = self.lines

    @property
    def encoding(self) -> Encoding:
        """That of Maxwell's bytes."""
        return Encoding.BASE64

    @property
    def assembler(self) -> type[Assembler]:
        return SingleEvents if self.transactions == "none" else IncrementalAssembler

    @property
    def policy(self) -> Policy | None:
        """The rules of whole source transactions; None: each change by itself."""
        return None if self.transactions == "none" else Policy(missing_begin=self.missing_begin)

    @property
    def needs_state(self) -> bool:
        """Whether a query that has run before must have a state: the last row of a transaction looks like a whole."""
        return self.transactions == "whole"

    @property
    def lines(self) -> RawFormat:
        """The format of the messages."""
        return MaxwellMessages(
            tables=TableMapping(self.tables, self.on_unknown_table, self.dead_letter_table),
            whole=self.transactions == "whole",
            on_malformed=self.on_malformed,
            reader=self.reader,
            source_time=self.needs_commit_time,
        )


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class CanalAssembly(MessageAssembly):
    """Rules by which the lanes of a sink take Canal's flat messages: each by itself.

    The frame is Spark's Kafka source, as it is. Flat messages do not say where a transaction ends, so none can be
    proved whole. Each message is written once, its rows together, those of a partition in their order, and a
    micro-batch is one StarRocks transaction over all tables; but a source transaction may be split over two of them.
    The source partition is the topic with its partition, and the position is the offset.

    Messages that Canal sends again after a crash are written again.

    Args:
        tables: The StarRocks table of each source table (`database.table`), as in MaxwellAssembly.
        dead_letter_table: The table for the rows of unknown tables under `on_unknown_table="dead_letter"`.
        on_unknown_table: `fail` the query at rows of a table outside the rule, `skip` them, or send them to
            `dead_letter_table` (`dead_letter`).
        on_malformed: `fail` the query at a malformed message, or `drop` the message and count it.
        reader: `librdkafka`: the lanes themselves read the offsets that Spark's Kafka source has planned; or `spark`
            reads the frame (docs/guides/assembling.md, "Lanes that read Kafka").
        rules: What becomes of columns, by table (`TableRules`).
        state_dir: The folder of the query's state, as in TransactionAssembly.
        on_truncate: `fail` the query where the source has emptied a table with TRUNCATE, or `ignore` this: the table
            keeps its rows, and the log names the table.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import CanalAssembly, StarRocksSink

        sink = StarRocksSink(options, assemble=CanalAssembly(tables={"shop.orders": "orders"}))
        query = topic.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    format: ClassVar[str] = "canal"
    types_by: ClassVar[str] = "by `mysqlType`"
    shares_topics: ClassVar[bool] = True
    on_truncate: OnTruncate = "fail"

    def __post_init__(self) -> None:
        check_choice("on_truncate", self.on_truncate, get_args(OnTruncate))
        self.check_shared()
        _ = self.lines

    @property
    def lines(self) -> RawFormat:
        """The format of the messages."""
        return CanalMessages(
            tables=TableMapping(self.tables, self.on_unknown_table, self.dead_letter_table),
            on_malformed=self.on_malformed,
            on_truncate=self.on_truncate,
            reader=self.reader,
            source_time=self.needs_commit_time,
        )
