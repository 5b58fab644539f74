"""Debezium's change events and transaction markers as columns, and the StarRocks table of each source table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final, Literal, get_args

from pyspark.sql import Column, DataFrame, functions as F

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import KEY_DELETES
from starrocks_txn_sink.sources.debezium_values import (
    CHANGE,
    KEY,
    MARKER,
    PLACE,
    TIMESTAMP,
    read_values,
    spellings_of_unavailable,
)
from starrocks_txn_sink.sources.txn_event import check_input
from starrocks_txn_sink.sources.txn_lines import OnMalformed

OnUnknownTable = Literal["fail", "skip", "dead_letter"]
TableRule = str | Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TableMapping:
    """Maps a collection, Debezium's name for a source's table (`public.orders`), to a StarRocks table.

    `rule` is a mapping, or a regular expression (Java's, matched against the whole name) whose one group is the table's
    name. `on_unknown` decides about rows of a collection outside the rule: `fail` the query, `skip` them, or send them
    to `dead_letter_table`. In all cases they count for their transaction. Raises OptionError for a bad combination.
    """

    rule: TableRule
    on_unknown: OnUnknownTable = "fail"
    dead_letter_table: str | None = None

    def __post_init__(self) -> None:
        check_choice("on_unknown_table", self.on_unknown, get_args(OnUnknownTable))
        if (self.on_unknown == "dead_letter") != (self.dead_letter_table is not None):
            raise OptionError(
                "on_unknown_table and dead_letter_table do not fit together.",
                hint='Give both on_unknown_table="dead_letter" and dead_letter_table, or neither.',
            )
        if isinstance(self.rule, str):
            _check_pattern(self.rule)
        elif not self.rule:
            raise OptionError("tables is empty.", hint="Name at least one table, or give a regular expression.")

    def table_by_rule(self, collection: Column) -> Column:
        """The table of `collection` by the rule alone; NULL for an unknown collection."""
        if isinstance(self.rule, str):
            whole = f"^(?:{self.rule})$"
            found = F.regexp_extract(collection, whole, 1)
            return F.when(collection.rlike(whole) & (found != ""), found)
        return F.coalesce(*(F.when(collection == name, F.lit(target)) for name, target in self.rule.items()))

    def target(self, collection: Column) -> Column:
        """The table of `collection` by rule and `on_unknown`; NULL means that its rows are left out."""
        known = self.table_by_rule(collection)
        if self.on_unknown == "skip":
            return known
        if self.on_unknown == "dead_letter":
            return F.coalesce(known, F.lit(self.dead_letter_table))
        message = F.concat(
            F.lit("The table rule does not know "),
            F.coalesce(collection, F.lit("NULL")),
            F.lit('. Add it to tables, or pass on_unknown_table="skip" or "dead_letter".'),
        )
        return F.coalesce(known, F.raise_error(message).cast("string"))


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise OptionError(f"tables is no regular expression: {error}.", hint="Correct the pattern.") from None
    if groups != 1:
        raise OptionError(
            f"tables has {groups} groups.", hint=r"Put the table's name into the one group, as in public\.(\w+)."
        )


DeletedRow = Literal["before", "key"]

_BINLOG_FILE: Final = 1 << 32  # a binlog file has at most 4 GiB, so file number × this + offset ascends
_DELETE, _SNAPSHOT = "d", "r"
_ROW_OPS: Final = ("c", "u", _SNAPSHOT)


@suggests_arguments
def parse_debezium(
    df: DataFrame,
    tables: TableRule = r"(?:.+\.)?([^.]+)",
    *,
    value: str = "value",
    key: str = "key",
    on_unknown_table: OnUnknownTable = "fail",
    dead_letter_table: str | None = None,
    deleted_row: DeletedRow = "before",
    unavailable_value: str | None = "__debezium_unavailable_value",
    on_malformed: OnMalformed = "fail",
    name: str = "parse_debezium",
) -> DataFrame:
    """Parse the rows of Debezium's change events.

    Tombstones are left out. A value is malformed if it is not exactly one JSON object, has a field of another type, or
    is an operation without a row (truncate, message). An error never shows its content.

    A row with a placeholder for a value that Debezium did not get (PostgreSQL's unchanged TOAST values) fails the
    query, because it would overwrite the true value.

    Args:
        df: Messages of the topics of all tables. Errors name Kafka's topic, partition and offset if `df` has these
            columns. `timestamp` joins a transaction that a restart of the connector cut.
        tables: The StarRocks table of each source table (`schema.table` in PostgreSQL, `database.table` in MySQL): a
            mapping, or a regular expression with one group (TableMapping). By default the table has the last part of
            the name.
        value: The column with the change event (string or binary).
        key: The column with the message's key, read with `deleted_row="key"` only.
        on_unknown_table: `fail` the query at rows of a table outside the rule, `skip` them, or send them to
            `dead_letter_table` (`dead_letter`). They count for their transaction in all cases.
        dead_letter_table: The table for these rows, with `on_unknown_table="dead_letter"` only.
        deleted_row: The row of a delete: Debezium's `before`, or the message's `key`.
        unavailable_value: The placeholder, if the connector's `unavailable.value.placeholder` sets another one. None
            hands placeholders on as values, for tables that keep each change.
        on_malformed: `fail` the query at a malformed value, or `drop` the value and count it in each progress under
            `observedMetrics[name]["malformed"]`. The transaction of a dropped value never adds up.
        name: The key of the count.

    Returns:
        One row for each change, for `assemble_debezium`. The columns are

        - source_partition (the connector's topic.prefix);
        - txn_id (NULL for a snapshot's row), total_order, collection, position;
        - database (NULL), and table (NULL: counted, then left out);
        - op (c, u, d, r), and row (JSON, in Debezium's own spelling);
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
    check_choice("deleted_row", deleted_row, get_args(DeletedRow))
    check_choice("on_malformed", on_malformed, get_args(OnMalformed))
    check_input(df, (value, *((key,) if deleted_row == "key" else ())))
    event = F.col("_event")
    parsed = read_values(df, value, CHANGE, key if deleted_row == "key" else None)
    deleted = event[KEY] if deleted_row == "key" else event["before"]
    row = F.when(event["op"] == _DELETE, deleted).otherwise(event["after"])
    good = event["op"].isin(_DELETE, *_ROW_OPS) & event["source"].isNotNull() & row.isNotNull()
    frame = _handle_malformed(parsed, good, "change event", on_malformed, name)
    collection = _collection(event["source"])
    table = rule.target(collection)
    op = event["op"]
    if unavailable_value is not None:
        known = rule.table_by_rule(collection)
        row = _refuse_unavailable(row, op, collection, known, event["source"], unavailable_value, frame.columns)
    if dead_letter_table is not None:
        unknown = rule.table_by_rule(collection).isNull()
        row = F.when(unknown, _dead_letter(event, collection, row)).otherwise(row)
        # The dead letter of a delete is itself an insert.
        op = F.when(unknown & (op == _DELETE), F.lit("c")).otherwise(op)
    return frame.select(
        event["source"]["name"].alias("source_partition"),
        _stable_txn_id(event["transaction"]["id"]).alias("txn_id"),
        event["transaction"]["total_order"].alias("total_order"),
        collection.alias("collection"),
        _row_position(event["source"]).alias("position"),
        F.lit(None).cast("string").alias("database"),
        table.alias("table"),
        op.alias("op", metadata={KEY_DELETES: True} if deleted_row == "key" else {}),
        row.alias("row"),
        TIMESTAMP,
    )


@suggests_arguments
def parse_debezium_transactions(
    df: DataFrame,
    *,
    value: str = "value",
    source: str | None = None,
    on_malformed: OnMalformed = "fail",
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
    event = F.col("_event")
    parsed = read_values(df, value, MARKER)
    good = event["status"].isin("BEGIN", "END") & event["id"].isNotNull()
    frame = _handle_malformed(parsed, good, "transaction marker", on_malformed, name)
    source_name = F.lit(source) if source else F.regexp_replace(F.col("topic"), r"\.[^.]*$", "")
    several = F.raise_error(
        "The transaction topic has more than one partition and so loses the order of commits. Create it with one."
    ).cast("string")
    return frame.select(
        source_name.alias("source_partition"),
        _stable_txn_id(event["id"]).alias("txn_id"),
        F.when(F.col("partition") == 0, event["status"]).otherwise(several).alias("status"),
        event["event_count"].alias("event_count"),
        event["data_collections"].alias("data_collections"),
        F.col("offset").alias("sequence"),
        _marker_position(event["id"]).alias("position"),
        TIMESTAMP,
    )


def _handle_malformed(frame: DataFrame, good: Column, what: str, on_malformed: OnMalformed, name: str) -> DataFrame:
    """Drop and count the malformed values, or fail the query at the first; `good` adds a rule for the fields."""
    bad = F.col("_bad") | ~F.coalesce(good, F.lit(False))
    if on_malformed == "drop":
        return frame.observe(name, F.count_if(bad).alias("malformed")).where(~bad)
    message = F.concat(
        F.lit(
            f"A value is not a Debezium {what} (not exactly one JSON object, a field of another type, or an "
            "unknown operation)"
        ),
        *_place_text([name for name in PLACE if name in frame.columns]),
        F.lit('. Correct the source, or pass on_malformed="drop" to lose such values.'),
    )
    return frame.where(F.when(bad, F.raise_error(message).cast("boolean")).otherwise(F.lit(True)))


def _refuse_unavailable(
    row: Column, op: Column, collection: Column, table: Column, source: Column, placeholder: str, columns: list[str]
) -> Column:
    """`row`; fails the query at a placeholder in a row that is written. A delete counts by its key alone."""
    spellings = spellings_of_unavailable(placeholder)

    def holds(text: Column) -> Column:
        return reduce(or_, (text.contains(spelling) for spelling in spellings.in_row))

    members = F.from_json(row, "map<string,string>")
    unavailable = F.map_filter(members, lambda _, text: holds(text) | text.isin(*spellings.alone))
    message = F.concat(
        F.lit("Debezium sent a placeholder for a value that did not change, and it would overwrite the true value, at"),
        F.lit(" table="),
        F.coalesce(table, F.lit("NULL")),
        F.lit(" columns="),
        F.coalesce(F.array_join(F.map_keys(unavailable), ","), F.lit("?")),
        F.lit(" position="),
        F.coalesce(_row_position(source).cast("string"), F.lit("NULL")),
        *_place_text([name for name in PLACE if name in columns])[1:],
        F.lit(". PostgreSQL: ALTER TABLE "),
        collection,
        F.lit(
            " REPLICA IDENTITY FULL, or leave the column out (column.exclude.list). For messages that the topic has "
            'already see docs/guides/debezium.md, "Values that did not change".'
        ),
    )
    bad = (op != _DELETE) & table.isNotNull() & holds(row)
    return F.when(bad, F.raise_error(message).cast("string")).otherwise(row)


def _place_text(columns: Iterable[str]) -> list[Column]:
    """The end of an error's text: the row's values in `columns`; empty without any."""
    parts: list[Column] = []
    for name in columns:
        parts += [F.lit(f" {name}="), F.coalesce(F.col(name).cast("string"), F.lit("NULL"))]
    return [F.lit(" at"), *parts] if parts else []


def _collection(source: Column) -> Column:
    """The table's name as in END's data_collections: PostgreSQL `schema.table`, MySQL `database.table`."""
    return F.concat_ws(".", F.coalesce(source["schema"], source["db"]), source["table"])


def _stable_txn_id(txn_id: Column) -> Column:
    # PostgreSQL's id is `number:LSN`, and the LSN differs between BEGIN and END: only the number joins them.
    return F.when(txn_id.rlike(r"^\d+:\d+$"), F.substring_index(txn_id, ":", 1)).otherwise(txn_id)


def _row_position(source: Column) -> Column:
    return F.coalesce(source["lsn"], _binlog(source["file"], source["pos"]))


def _marker_position(txn_id: Column) -> Column:
    lsn = F.when(txn_id.rlike(r"^\d+:\d+$"), F.substring_index(txn_id, ":", -1).cast("bigint"))
    file = F.regexp_extract(txn_id, r"file=([^,]+)", 1)
    pos = F.regexp_extract(txn_id, r"pos=(\d+)", 1)
    return F.coalesce(lsn, F.when(pos != "", _binlog(file, pos.cast("bigint"))))


def _binlog(file: Column, pos: Column) -> Column:
    number = F.regexp_extract(file, r"\.(\d+)$", 1)
    return F.when(number != "", number.cast("bigint") * F.lit(_BINLOG_FILE) + pos)


def _dead_letter(event: Column, collection: Column, row: Column) -> Column:
    fields = {
        "txn_id": _stable_txn_id(event["transaction"]["id"]),
        "total_order": event["transaction"]["total_order"],
        "collection": collection,
        "position": _row_position(event["source"]),
        "reason": F.lit("unknown table"),
        "op": event["op"],
        "content": row,
    }
    return F.to_json(F.struct(*(value.alias(name) for name, value in fields.items())))
