"""The rules of lanes that assemble: a class for each format of messages, and `TransactionAssembly`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, get_args

from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import MissingBegin, OnOpenTimeout, Policy, seconds
from starrocks_txn_sink.assembler.rules.release import Assembler
from starrocks_txn_sink.assembler.rules.single_events import SingleEvents
from starrocks_txn_sink.assembler.verified.intake import SNAPSHOT
from starrocks_txn_sink.assembler.verified.lane import VerifiedLane
from starrocks_txn_sink.assembler.verified.rules import OnOpenTimeout as OnIncomplete, VerifiedPolicy
from starrocks_txn_sink.assembler.verified.sources import checked
from starrocks_txn_sink.errors import InputError, OptionError, did_you_mean
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.options.table_rules import COMMIT_TIME, SOURCE_TABLE, RuleSet, TableRules, check_rules
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sources.formats.bare_values import BinaryMode, ConnectorModes, DecimalMode, TimeMode
from starrocks_txn_sink.sources.formats.canal import CanalMessages
from starrocks_txn_sink.sources.formats.canal_types import canal_table, is_canal
from starrocks_txn_sink.sources.formats.connect_types import SourceTable, document_of, table_of_message
from starrocks_txn_sink.sources.formats.debezium import DebeziumChanges, DebeziumMarkers, DeletedRow
from starrocks_txn_sink.sources.formats.debezium_messages import DebeziumMessages
from starrocks_txn_sink.sources.formats.debezium_other import LOGICAL
from starrocks_txn_sink.sources.formats.maxwell import MaxwellMessages, is_maxwell
from starrocks_txn_sink.sources.formats.placeholders import spellings_of_unavailable
from starrocks_txn_sink.sources.formats.raw_format import (
    KEY,
    SOURCE_PARTITION,
    OnMalformed,
    OnTruncate,
    RawFormat,
    Reader,
)
from starrocks_txn_sink.sources.formats.registered import Schemas, with_registry
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, OnUnknownTable, TableMapping, TableRule
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines

if TYPE_CHECKING:
    from typing_extensions import Self

_Kind = TypeVar("_Kind", bound="Assembly")
_TXN_EVENTS: Final = ("BEGIN", "DATA", "END")

FORMATS: Final = dict[str, type["Assembly"]]()
"""The classes of formats by their names, as a file of `sync` and an option of the data source have them."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one message shows to `init`, which knows of its topic nothing but the name.

    `collection` is the table of a change of a row, "" of another message. `whole`: whether the message has what whole
    source transactions need; None: it does not say. `keyed_delete`: a delete whose row is its key alone.
    """

    collection: str = ""
    whole: bool | None = None
    keyed_delete: bool = False


class Assembly(ABC):
    """Rules by which lanes take the events of a frame. A format has one class; its attributes say what it can do."""

    __slots__ = ()

    format: ClassVar[str] = ""
    """Its name in a file of `sync` and in an option of the data source."""
    stage: ClassVar[str] = ""
    """The stage of a query that parses its messages; "": the sink's lanes alone do."""
    whole_by: ClassVar[str] = ""
    """By what source transactions are proved whole; "": the messages do not say where one ends."""
    types_by: ClassVar[str] = ""
    """By what the messages say the types of columns; "": they do not, so no table is created of them."""
    follows_source: ClassVar[bool] = False
    """Whether the events say the source's tables and keys, with which those before are compared."""
    marks_snapshot: ClassVar[bool] = False
    """Whether the messages say of the source's first snapshot which tables it has, and where it ends."""
    shares_topics: ClassVar[bool] = False
    """Whether many tables share a topic, so that its newest messages may all be those of one."""
    state_dir: str | None

    def __init_subclass__(cls) -> None:
        if cls.format:
            FORMATS[cls.format] = cls

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        """What a message shows; None for one that is not of the format.

        Args:
            members: The members of its JSON; none without JSON.
            value: Its value.
            keyed: Whether it has a key.
        """
        return None

    @classmethod
    def described(cls, key: bytes | None, value: bytes) -> SourceTable | None:  # noqa: ARG003
        """The table that a message describes; None for one that is no change of a row of this format.

        Args:
            key: The message's key.
            value: Its value, as JSON where a registry has its schema.

        Raises:
            InputError: A change does not say its types, or the value is not one JSON object.
        """
        return None

    @classmethod
    @abstractmethod
    def of_words(cls, words: dict[str, Any], registry: Schemas | None) -> Self:
        """The rules that options of a stream describe, whose frame Spark reads.

        Args:
            words: The arguments by their names, texts for the most part.
            registry: The schema registry, if the stream has one.

        Raises:
            OptionError: A value cannot work.
        """

    @property
    @abstractmethod
    def lines(self) -> RawFormat | None:
        """The format of the raw events; None: they are parsed already."""

    @property
    @abstractmethod
    def assembler(self) -> type[Assembler]:
        """The rules of the lanes."""

    @property
    @abstractmethod
    def policy(self) -> Policy | VerifiedPolicy | None:
        """The options of these rules; None where there are none."""

    @property
    @abstractmethod
    def needs_state(self) -> bool:
        """Whether a query that has run before must have a state."""

    @property
    @abstractmethod
    def rule_set(self) -> RuleSet:
        """What becomes of columns, by table."""

    @property
    def encoding(self) -> Encoding | None:
        """How texts of messages stand for bytes; None where they do not, or in a way that no server knows."""
        return None

    @property
    def modes(self) -> ConnectorModes | None:
        """The modes of the connector, as far as they are declared; None for a source without them."""
        return None

    @property
    def registry(self) -> Schemas | None:
        """The schema registry whose schemas the messages have."""
        return None

    @property
    def tables(self) -> TableRule:
        """The StarRocks tables of the source's tables; the events may name them themselves."""
        return ()

    def table_of(self, source_table: str) -> str | None:
        """The StarRocks table of a table of the source; None without one."""
        return TableMapping(self.tables, "skip").table_of(source_table)

    @property
    def source_partition(self) -> str:
        """The column of parsed events with their source partition."""
        return SOURCE_PARTITION

    @property
    def reads_kafka(self) -> bool:
        """Whether the lanes read Kafka themselves, without Spark."""
        return self.lines is not None and self.lines.reader == "librdkafka"


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionAssembly(Assembly):
    """Rules by which the lanes of a sink make whole source transactions of raw events.

    The rules are those of `assemble_transactions`. The events have the columns that it reads, or they are raw JSON in
    one column, as `lines` describes.

    `SinkOptions.shuffle` says how events come to their lane:

    - `"auto"`: events come as they are; Spark sorts them first once a source partition's events turn out to be out of
      order.
    - `True`: Spark always sorts them.
    - `False`: Spark never sorts them. Events out of order are an error, before anything is committed.

    Small micro-batches (100 000 events, 32 MB) may be in any order.

    Args:
        by: The column with the source partition (string or integer).
        interleaved: Whether a source partition has several open transactions, one per txn_id, or one.
        open_timeout: The longest time that a transaction may be open, in processing time: seconds, a timedelta or text
            like `10 min`; None sets no limit. The time that the query is down does not count. The sink checks it when a
            micro-batch has read Kafka to its end; Spark runs none while no event comes.
        on_open_timeout: `fail` the query at a transaction that is open for longer, or `drop` the transaction.
        missing_begin: `fail` the query at events whose BEGIN was never seen, or `drop` or `accept` them.
        lines: The columns of raw events (`TxnEventLines`); None for parsed events.
        rules: What becomes of columns, by table (`TableRules`).
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

    format: ClassVar[str] = "transactions"
    stage: ClassVar[str] = "parse_txn_events"
    whole_by: ClassVar[str] = "by BEGIN and END"
    by: str = "source_partition"
    interleaved: bool = False
    open_timeout: float | timedelta | str | None = None
    on_open_timeout: OnOpenTimeout = "fail"
    missing_begin: MissingBegin = "fail"
    lines: RawFormat | None = None
    rules: Sequence[TableRules] = ()
    state_dir: str | None = None

    def __post_init__(self) -> None:
        _ = self.policy
        check_rules(self.rules)
        if any(SOURCE_TABLE in rule.metadata for rule in self.rules):
            raise OptionError(
                f"The events name no table of the source, so rules cannot give rows a column {SOURCE_TABLE}.",
                hint="Take _source_partition, or DebeziumAssembly.",
                option="rules",
            )
        check_state_dir(self.state_dir)

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        return Look(whole=True) if members.get("type") in _TXN_EVENTS and "txn_id" in members else None

    @classmethod
    def of_words(cls, words: dict[str, Any], registry: Schemas | None) -> Self:
        words, on_malformed = dict(words), words.get("on_malformed", "fail")
        words.pop("on_malformed", None)
        if "interleaved" in words:
            words["interleaved"] = words["interleaved"].lower() == "true"
        return cls(lines=TxnEventLines(registry=registry, on_malformed=on_malformed), **words)

    @property
    def source_partition(self) -> str:
        return self.by

    @property
    def rule_set(self) -> RuleSet:
        return RuleSet(tuple(self.rules))

    @property
    def assembler(self) -> type[Assembler]:
        return IncrementalAssembler

    @property
    def policy(self) -> Policy:
        return Policy(self.interleaved, seconds(self.open_timeout), self.on_open_timeout, self.missing_begin)

    @property
    def needs_state(self) -> bool:
        """Whether a query that has run before must have a state: without one a part of a transaction may be taken."""
        return self.missing_begin != "fail"


Transactions = Literal["whole", "none"]
BinlogMissingBegin = Literal["fail", "drop"]
_BOOTSTRAP: Final = "bootstrap-insert"
_TYPES_OF_MYSQL: Final = "Create them by hand; init --source mysql://… lists MySQL's types."


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAssembly(Assembly):
    """What the rules for messages of changes have in common: `DebeziumAssembly` and those of other formats."""

    follows_source: ClassVar[bool] = True
    types_in: ClassVar[str] = "types"
    """The member of a message with the types of the columns."""
    without_types: ClassVar[Sequence[str]] = ("Create them by hand; init --source lists the source's types.",)
    """What to do about tables whose messages lack their types."""
    whole_needs: ClassVar[str] = ""
    """The settings of the connector whose messages show their source transactions."""
    topic_of_table: ClassVar[bool] = False
    """Whether each table has a topic, whose name ends with those of the table and its schema or database."""
    tables: TableRule = OWN_NAME
    dead_letter_table: str | None = None
    on_unknown_table: OnUnknownTable = "fail"
    on_malformed: OnMalformed = "fail"
    reader: Reader = "librdkafka"
    rules: Sequence[TableRules] = ()
    state_dir: str | None = None

    @classmethod
    def of_words(cls, words: dict[str, Any], registry: Schemas | None) -> Self:
        schemas = {"registry": registry} if registry is not None else {}
        return cls(**{**words, **schemas, "reader": "spark"})

    @classmethod
    def shown(cls, whole: int, single: int, *, marked: bool) -> str | None:  # noqa: ARG003
        """The setting `transactions` that messages show; None: they do not show it.

        Args:
            whole: The number of messages with what whole source transactions need.
            single: The number of those that lack it.
            marked: Whether there is a topic with the ends of transactions.
        """
        return "whole" if whole and not single else "none"

    def check_shared(self) -> None:
        """Raise OptionError for a value that cannot work."""
        check_choice("on_malformed", self.on_malformed, get_args(OnMalformed))
        check_choice("reader", self.reader, get_args(Reader))
        check_rules(self.rules)
        if self.on_unknown_table == "dead_letter" and any(rule.mask or rule.drop for rule in self.rules):
            raise OptionError(
                'With on_unknown_table="dead_letter" rows of unknown tables become dead letters as they are: no rule '
                "is for them.",
                hint='Use on_unknown_table="fail" or "skip".',
                option="on_unknown_table",
            )
        check_state_dir(self.state_dir)

    @property
    @abstractmethod
    def lines(self) -> RawFormat:
        """The format of the messages."""

    @property
    def assembler(self) -> type[Assembler]:
        """Each message by itself, unless a format has other rules."""
        return SingleEvents

    @property
    def policy(self) -> Policy | VerifiedPolicy | None:
        return None

    @property
    def needs_state(self) -> bool:
        return False

    @property
    def marker_topic(self) -> str | None:
        """The last part of the name of the topic with the ends of transactions; None: the rules need no such topic."""
        return None

    def lenient(self) -> Self:
        """The same rules without an opinion about single messages, for a look at them."""
        return replace(self, on_unknown_table="skip", on_malformed="drop")

    @property
    def rule_set(self) -> RuleSet:
        return RuleSet(tuple(self.rules), self.dead_letter_table)

    @property
    def needs_commit_time(self) -> bool:
        """Whether a rule gives rows the time of their commit."""
        return any(COMMIT_TIME in rule.metadata or rule.history for rule in self.rules)


@suggests_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumAssembly(MessageAssembly):
    """Rules by which the lanes of a sink take Debezium's messages: as whole source transactions, or change by change.

    The frame is Spark's Kafka source, as it is. It subscribes to the topics of all captured tables and to the
    transaction topic of one connector, or of several ones. The rules are those of `assemble_debezium`: a transaction
    is written once its rows match every count of its END.

    One lane reads and assembles all messages. It judges a micro-batch when it has read all of it, so set
    `maxOffsetsPerTrigger`.

    With `transactions="none"` nothing is assembled: a connector without `provide.transaction.metadata` will do, and
    there are as many lanes as cores. Each change is written once, those of a key in their order, and a micro-batch is
    one StarRocks transaction over all tables; but a source transaction may be split over two of them. The source
    partition is the topic with its partition, and the position is the offset.

    Args:
        tables: The StarRocks table of each source table (`schema.table` in PostgreSQL, `database.table` in MySQL): a
            mapping, in which an empty name leaves a table out, or a regular expression with one group. By default the
            table has the source table's own name.
        dead_letter_table: The table for the rows of quarantined transactions, and of unknown tables under
            `on_unknown_table="dead_letter"`.
        on_unknown_table: `fail` the query at rows of a table outside the rule, `skip` them, or send them to
            `dead_letter_table` (`dead_letter`). They count for their transaction in all cases.
        on_malformed: `fail` the query at a malformed message, or `drop` the message and count it.
        reader: `librdkafka`: the lane itself reads the offsets that Spark's Kafka source has planned; or `spark` reads
            the frame (docs/guides/assembling.md, "Lanes that read Kafka").
        rules: What becomes of columns, by table (`TableRules`).
        state_dir: The folder in which incomplete transactions wait, as in TransactionAssembly.
        transactions: `whole` source transactions, by Debezium's transaction metadata; or `none`: each change by itself,
            also where a message has such metadata. The transaction topic is then left out.
        open_timeout: The longest wait for the counts of a transaction to match, from its first event on, in processing
            time: seconds, a timedelta or text like `10 min`. None sets no limit, and later commits wait too. The time
            that the query is down does not count. The sink checks it when a micro-batch has read Kafka to its end;
            Spark runs none while no message comes.
        on_open_timeout: `quarantine` a transaction after this time, or `fail` the query.
        deleted_row: The row of a delete: Debezium's `before`, or the message's `key`.
        unavailable_value: The connector's placeholder for values that did not change. The columns keep their values in
            tables whose key the sink knows; None, or an empty text, writes the placeholder as a value.
        on_truncate: `fail` the query where the source has emptied a table with TRUNCATE, or `ignore` this: the table
            keeps its rows, and the log names the table.
        transaction_topic: The last part of the transaction topic's name.
        time_precision_mode: The connector's `time.precision.mode`, for messages without schema: their numbers in
            columns of dates are converted where the mode leaves one meaning, and refused by name where it leaves more
            (docs/reference/debezium-types.md, "Without the schema"). None refuses them all. Of Protobuf also with a
            registry.
        decimal_handling_mode: The connector's `decimal.handling.mode`, likewise: `precise` converts decimals of a
            variable scale, and refuses other bytes in columns of numbers.
        binary_handling_mode: The connector's `binary.handling.mode`, for texts in VARBINARY columns: `hex`, or base64
            with `bytes`, `base64` and None.
        registry: The schema registry (SchemaRegistry) whose schemas values and keys have; None for JSON without it.
        new_sources: Sources that follow others under their names, each with the time of its first message in Kafka: a
            database that was restored, a log that was reset. The error `source_changed` says what to write; keep those
            of before. Whole transactions only.

    Raises:
        OptionError: A value cannot work.

    Example::

        from starrocks_txn_sink import DebeziumAssembly, StarRocksSink

        assembly = DebeziumAssembly(tables={"public.orders": "orders"}, open_timeout="10 min")
        sink = StarRocksSink(options, assemble=assembly)
        query = topics.writeStream.foreachBatch(sink).option("checkpointLocation", "/data/checkpoint").start()
    """

    format: ClassVar[str] = "debezium"
    stage: ClassVar[str] = "parse_debezium"
    marks_snapshot: ClassVar[bool] = True
    whole_by: ClassVar[str] = "by counts"
    whole_needs: ClassVar[str] = "provide.transaction.metadata=true"
    types_by: ClassVar[str] = "by the schema"
    types_in: ClassVar[str] = "schema"
    without_types: ClassVar[Sequence[str]] = (
        "Set schemas.enable=true for both converters; or create them by hand: create = false in [tables].",
        "Else decimal.handling.mode must be string, time.precision.mode isostring or one in [assembly].",
    )
    topic_of_table: ClassVar[bool] = True
    transactions: Transactions = "whole"
    open_timeout: float | timedelta | str | None = None
    on_open_timeout: OnIncomplete = "quarantine"
    deleted_row: DeletedRow = "before"
    unavailable_value: str | None = "__debezium_unavailable_value"
    on_truncate: OnTruncate = "fail"
    transaction_topic: str = "transaction"
    time_precision_mode: TimeMode | None = None
    decimal_handling_mode: DecimalMode | None = None
    binary_handling_mode: BinaryMode | None = None
    registry: Schemas | None = None
    new_sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_choice("transactions", self.transactions, get_args(Transactions))
        if self.transactions == "none" and (self.open_timeout is not None or self.on_open_timeout != "quarantine"):
            raise OptionError(
                'open_timeout and on_open_timeout have no meaning with transactions="none": no change waits.',
                hint="Leave them out.",
                option="open_timeout",
            )
        if self.transactions == "none" and self.new_sources:
            raise OptionError(
                'new_sources has no meaning with transactions="none": a change is known by its offset.',
                hint="Leave it out.",
                option="new_sources",
            )
        check_choice("deleted_row", self.deleted_row, get_args(DeletedRow))
        check_choice("on_truncate", self.on_truncate, get_args(OnTruncate))
        self.check_shared()
        _ = self.policy, self.lines, self.modes

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        source, operation = members.get("source"), members.get("op")
        if "op" not in members:
            return Look(whole=True) if "status" in members and "id" in members else None
        if not isinstance(source, dict):
            return None
        owner = source.get("schema") or source.get("db")
        collection = ".".join(str(part) for part in (owner, source.get("table")) if part)
        single = None if operation in (SNAPSHOT, LOGICAL) else False
        keyed_delete = operation == "d" and members.get("before") is None and keyed
        return Look(collection, True if members.get("transaction") is not None else single, keyed_delete)

    @classmethod
    def described(cls, key: bytes | None, value: bytes) -> SourceTable | None:
        return table_of_message(key, value)

    @classmethod
    def shown(cls, whole: int, single: int, *, marked: bool) -> str | None:
        if whole or marked:  # a snapshot shows neither
            return None if single and not whole else "whole"
        return "none" if single else None

    @property
    def modes(self) -> ConnectorModes:
        """The modes of the connector, as far as they are declared."""
        declared = self.time_precision_mode, self.decimal_handling_mode, self.binary_handling_mode
        return ConnectorModes.declared(*declared, self.registry)

    @property
    def encoding(self) -> Encoding | None:
        """That of the connector's mode."""
        return self.modes.encoding

    @property
    def assembler(self) -> type[Assembler]:
        return SingleEvents if self.transactions == "none" else VerifiedLane

    @property
    def marker_topic(self) -> str | None:
        """That of whole source transactions."""
        return None if self.transactions == "none" else self.transaction_topic

    def lenient(self) -> Self:
        """See MessageAssembly.lenient."""
        lenient = super(DebeziumAssembly, self).lenient()
        return replace(lenient, on_truncate="ignore", unavailable_value=None)

    @property
    def policy(self) -> VerifiedPolicy | None:
        """The rules of whole source transactions; None: each change by itself."""
        if self.transactions == "none":
            return None
        sources = checked(self.new_sources)
        return VerifiedPolicy(seconds(self.open_timeout), self.on_open_timeout, self.dead_letter_table, sources)

    @property
    def needs_state(self) -> bool:
        """Whether a query that has run before must have a state: it may have rows that do not come again."""
        return self.transactions == "whole"

    @property
    def lines(self) -> RawFormat:
        """The format of the messages."""
        single = self.transactions == "none"
        letters = self.dead_letter_table if single or self.on_unknown_table == "dead_letter" else None
        unavailable = spellings_of_unavailable(self.unavailable_value) if self.unavailable_value else None
        changes = DebeziumChanges(
            key=KEY if self.deleted_row == "key" else None,
            message_key=KEY,
            tables=TableMapping(self.tables, self.on_unknown_table, letters),
            unavailable=unavailable,
            keeps_unchanged=True,
            on_malformed=self.on_malformed,
            on_truncate=self.on_truncate,
            reader=self.reader,
            placed=single,
            source_time=self.needs_commit_time,
        )
        markers = None if single else DebeziumMarkers(on_malformed=self.on_malformed)
        return with_registry(DebeziumMessages(changes, markers, self.transaction_topic), self.registry)


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
            table out, or a regular expression with one group. By default the table has the source table's own name.
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
    whole_needs: ClassVar[str] = "output_xoffset=true"
    without_types: ClassVar[Sequence[str]] = (_TYPES_OF_MYSQL,)
    transactions: Transactions = "whole"
    missing_begin: BinlogMissingBegin = "fail"

    def __post_init__(self) -> None:
        check_choice("transactions", self.transactions, get_args(Transactions))
        check_choice("missing_begin", self.missing_begin, get_args(BinlogMissingBegin))
        if self.transactions == "none" and self.missing_begin != "fail":
            raise OptionError(
                'missing_begin has no meaning with transactions="none": each change is a unit.',
                hint="Leave it out.",
                option="missing_begin",
            )
        self.check_shared()
        _ = self.lines

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        if not is_maxwell(members):
            return None
        numbered = "xoffset" in members
        is_vague = members["type"] == _BOOTSTRAP or (members.get("commit") and not numbered)
        return Look(f"{members['database']}.{members['table']}", None if is_vague else numbered)

    @classmethod
    def described(cls, key: bytes | None, value: bytes) -> SourceTable | None:  # noqa: ARG003
        document = document_of(value, "A value")
        if is_maxwell(document):
            raise InputError(
                f"The messages of {document['database']}.{document['table']} are Maxwell's, which do not say the "
                "columns' types.",
                hint="Create the tables by hand (init --source mysql://… lists MySQL's types), then write them with "
                'sync (format = "maxwell") or MaxwellAssembly.',
            )
        return None

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
    types_in: ClassVar[str] = "mysqlType"
    without_types: ClassVar[Sequence[str]] = (_TYPES_OF_MYSQL,)
    shares_topics: ClassVar[bool] = True
    on_truncate: OnTruncate = "fail"

    def __post_init__(self) -> None:
        check_choice("on_truncate", self.on_truncate, get_args(OnTruncate))
        self.check_shared()
        _ = self.lines

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        return Look(f"{members['database']}.{members['table']}") if is_canal(members) else None

    @classmethod
    def described(cls, key: bytes | None, value: bytes) -> SourceTable | None:  # noqa: ARG003
        return canal_table(value)

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


def message_formats() -> dict[str, type[MessageAssembly]]:
    """The formats with messages of changes, by their names; the first one is the default."""
    return {name: kind for name, kind in FORMATS.items() if issubclass(kind, MessageAssembly)}


def format_named(name: str, option: str, formats: Mapping[str, type[_Kind]]) -> type[_Kind]:
    """The class of a format; raises OptionError, which names those that the `option` takes."""
    if name in formats:
        return formats[name]
    names = [*formats]
    hint = did_you_mean(name, names, f"Give one of {', '.join(names)}.")
    raise OptionError(f"{option} is {name!r}.", hint=hint, option=option)


def check_state_dir(folder: str | None) -> None:
    """Raise OptionError for a folder that is not the same one in all processes."""
    if folder is not None and not re.match(r"([A-Za-z][\w+.-]*:)?/", folder):
        raise OptionError(
            f"state_dir is {folder!r}, which means another folder in each process.",
            hint="Give an absolute path, or a URI such as s3a://bucket/folder, that driver and executors share.",
            option="state_dir",
        )
