"""The projection in the JVM: checks the sink's input, makes the columns that lanes read, spreads the rows over lanes.

Rows with positions (*marked* rows) become the columns of `rows.segments`: source_partition, position, table,
transaction_end, payload. Other rows become the columns of `rows.unpositioned`: table, payload, hash. Metrics need the
further columns event_time and, if the input has `op`, deleted.

The JVM makes the JSON, so no Python runs per row: rows reach Python as Arrow, and the body of a load is a sequence of
slices of Arrow buffers. A payload starts with its separator, so that the first comma of a body can become the opening
bracket. The payload of a delete contains `__op` (wire contract 5.6).
"""

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as T

from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import Feature
from starrocks_txn_sink.rows import columns as names
from starrocks_txn_sink.sink.typed.route import TypedRoute
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.sources.formats.bare_values import ConnectorModes
from starrocks_txn_sink.sources.messages import place_columns

_KINDS: dict[str, tuple[type[T.DataType], ...]] = {
    names.PARTITION: (T.StringType, T.IntegralType),
    names.POSITION: (T.IntegralType,),
    names.SEQ: (T.IntegralType,),
    names.TRANSACTION_END: (T.BooleanType,),
    names.TABLE: (T.StringType,),
    names.ROW: (T.StringType,),
    names.DATABASE: (T.StringType,),
    names.OP: (T.StringType, T.IntegralType),
}


def lane_input(
    frame: DataFrame, terms: TableTerms, lanes: int, *, sort: bool = False, digest: bool = True
) -> DataFrame:
    """Project `frame` as `terms` say, with a Spark partition for each of at most `lanes` lanes.

    With `sort` Spark brings the rows of a source partition together in one lane, in order. Otherwise the lanes are the
    frame's own tasks. With `digest` unpositioned rows get a hash each, for the ledger.

    Raises InputError for missing columns or columns of a wrong type. A row of another database, a row with an unknown
    `op`, and a delete for a table without a primary key fail the job; the error names source partition and position.
    """
    marked = _check_input(frame, terms.routes)
    if not marked:
        terms.options.check_features(Feature.PLAIN_ROWS)
    row, table = _row_and_table(frame, terms)
    payload = _refuse_other_databases(frame, _payload(frame, row, table, terms), terms.options.database)
    columns = [table.alias(names.TABLE), payload.alias(names.PAYLOAD), *_deleted_column(frame)]
    if not marked:
        rows = frame.select(*columns)
        rows = rows.withColumn(names.HASH, F.xxhash64(names.TABLE, names.PAYLOAD)) if digest else rows
        return rows.coalesce(lanes)
    marks = [
        F.col(names.PARTITION).cast("string").alias(names.PARTITION),
        F.col(names.POSITION).cast("long").alias(names.POSITION),
        F.col(names.SEQ),
        F.col(names.TRANSACTION_END),
        *event_time(frame),
        *(F.col(name) for name in place_columns(frame)),
    ]
    rows = frame.select(*marks, *columns)
    if not sort:
        return rows.coalesce(lanes)
    order = [F.col(names.PARTITION).asc_nulls_last(), F.col(names.POSITION), F.col(names.SEQ)]
    return sorted_lanes(rows, lanes, order).drop(names.SEQ)


def event_time(frame: DataFrame) -> list[Column]:
    """For metrics: the time of each row's commit at the source, if the frame has a TIMESTAMP column `event_time`."""
    kinds = [field.dataType for field in frame.schema.fields if field.name == names.EVENT_TIME]
    return [F.unix_micros(names.EVENT_TIME).alias(names.EVENT_TIME)] if kinds == [T.TimestampType()] else []


def _deleted_column(frame: DataFrame) -> list[Column]:
    """For metrics: whether each row is a delete. `_payload` has the same condition, so the JVM evaluates it once."""
    return [(~_is_upsert(_op())).alias(names.DELETED)] if names.OP in frame.columns else []


UNFILLED_DELETES = (
    "Deletes carry only their key: without query_url the server rejects them from tables with NOT NULL columns. "
    "Set query_url, or give deletes their whole row."
)

# --- checks at call time ---


def modes_of(schema: T.StructType) -> ConnectorModes | None:
    """The modes of the connector whose rows a frame has; None for rows that are not Debezium's."""
    return ConnectorModes.of_metadata(schema[names.OP].metadata) if names.OP in schema.names else None


def is_marked(schema: T.StructType) -> bool:
    """Whether a frame has a column of positions or ends; checks names only."""
    return not set(names.TRANSACTION_COLUMNS).isdisjoint(schema.names)


def has_unfilled_deletes(schema: T.StructType, options: SinkOptions) -> bool:
    """Whether a frame says that deletes carry only their key, and the sink cannot fill NOT NULL columns."""
    fields = (field for field in schema.fields if field.name == names.OP)
    return options.query_url is None and any(field.metadata.get(names.KEY_DELETES) is True for field in fields)


def _check_input(frame: DataFrame, routes: Sequence[TypedRoute]) -> bool:
    """Whether the rows are marked with positions and ends; raises InputError for missing columns or wrong types."""
    frame_columns, marked = set(frame.columns), is_marked(frame.schema)
    needed_names = [*(names.TRANSACTION_COLUMNS if marked else ()), *_content_columns(routes)]
    missing = [name for name in dict.fromkeys(needed_names) if name not in frame_columns]
    if missing:
        raise InputError(
            f"The sink's input lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"it has {', '.join(frame.columns) or 'none'}.",
            hint="Give the sink the output of assemble_transactions, or routes=[TableRoute(table, columns)] for typed "
            "columns.",
        )
    _check_types(frame, _KINDS.keys() - ({names.ROW} if routes else set()))
    return marked


def _content_columns(routes: Sequence[TypedRoute]) -> list[str]:
    if not routes:
        return [names.TABLE, names.ROW]
    table_columns = [names.TABLE] if len(routes) > 1 else []
    return [*table_columns, *(field.source for route in routes for field in route.fields)]


def _check_types(frame: DataFrame, checked: set[str]) -> None:
    for field in frame.schema.fields:
        kinds = _KINDS.get(field.name) if field.name in checked else None
        if kinds is not None and not isinstance(field.dataType, kinds):
            allowed = " or ".join(kind.typeName() if kind is not T.IntegralType else "integer" for kind in kinds)
            raise InputError(
                f"Column {field.name} of the sink's input is {field.dataType.simpleString()}, not {allowed}.",
                hint="Cast it before the sink.",
            )


# --- content ---


def _row_and_table(frame: DataFrame, terms: TableTerms) -> tuple[Column, Column]:
    routes, guarded = terms.routes, not terms.options.quarantines
    if not routes:
        return F.col(names.ROW), F.col(names.TABLE)

    def refuse(text: str) -> Column:
        return _error(F.lit(text), frame=frame)

    deleted = ~_is_upsert(_op()) if names.OP in frame.columns else None

    def row_of(route: TypedRoute) -> Column:
        return route.row(refuse, guarded=guarded, deleted=deleted, placeholders=terms.placeholders.get(route.table, {}))

    if names.TABLE not in frame.columns:
        return row_of(routes[0]), F.lit(routes[0].table)
    table = F.col(names.TABLE)
    row = F.raise_error(
        F.concat(F.lit("No TableRoute names the table "), F.coalesce(table, F.lit("NULL")), F.lit(" of a row."))
    ).cast("string")
    for route in routes:
        row = F.when(table == route.table, row_of(route)).otherwise(row)
    return row, table


def _payload(frame: DataFrame, row: Column, table: Column, terms: TableTerms) -> Column:
    keyless, upsert = terms.keyless, F.concat(F.lit(SEPARATOR), row)
    if names.OP not in frame.columns:
        return upsert
    op = _op()
    delete = _filled_delete(row, table, terms.placeholders) if terms.placeholders else _delete(row, F.lit(""))
    if keyless:
        delete = F.when(table.isin(*keyless), _refusal(names.NO_PRIMARY_KEY, table, frame)).otherwise(delete)
    unknown = _refusal(names.UNKNOWN_OP, op, frame)
    return F.when(_is_upsert(op), upsert).when(op.isin(*names.DELETES), delete).otherwise(unknown)


def _delete(row: Column, fields: Column) -> Column:
    """The payload that deletes `row`; `fields` is text that adds fields to it, each with a comma in front."""
    tail = F.substr(F.ltrim(row), F.lit(2))
    comma = F.when(F.startswith(F.ltrim(tail), F.lit("}")), F.lit("")).otherwise(F.lit(","))
    return F.concat(F.lit(SEPARATOR), F.lit(names.DELETING), fields, comma, tail)


_PAIRS = "array<struct<pattern:string,text:string>>"


def _filled_delete(row: Column, table: Column, placeholders: names.Placeholders) -> Column:
    """`_delete` of a row, with its table's placeholders in place of NULL and missing fields."""
    spec = {
        name: {kind: [{"pattern": p, "text": t} for p, t in pairs(fields)] for kind, pairs in _FILLS.items()}
        for name, fields in placeholders.items()
    }
    # one JSON text for the placeholders of all tables keeps the plan small
    known_columns = F.from_json(F.lit(json.dumps(spec)), f"map<string,struct<nulls:{_PAIRS},missing:{_PAIRS}>>")
    own = F.try_element_at(known_columns, table)

    def fill(text: Column) -> Column:
        filled = F.aggregate(
            own["nulls"],
            text,
            lambda so_far, entry: F.regexp_replace(so_far, entry["pattern"], F.concat(F.lit("$1"), entry["text"])),
        )
        missing = F.filter(own["missing"], lambda entry: ~F.regexp_like(text, entry["pattern"]))
        return _delete(filled, F.array_join(F.transform(missing, lambda entry: entry["text"]), ""))

    # `transform` binds the row to a variable: Spark would evaluate an expression at each place where it stands.
    filled = F.transform(F.array(row), fill)[0]
    return F.when(own.isNull(), _delete(row, F.lit(""))).otherwise(filled)


_FILLS = {"nulls": names.null_fields, "missing": names.missing_fields}


def _op() -> Column:
    return F.lower(F.col(names.OP).cast("string"))


def _is_upsert(op: Column) -> Column:
    return op.isNull() | op.isin(*names.UPSERTS)


def _refuse_other_databases(frame: DataFrame, payload: Column, database: str) -> Column:
    """`payload`, or a failure for a row of another database (wire contract 4.2)."""
    if names.DATABASE not in frame.columns:
        return payload
    refusal = _refusal(names.other_database(database), F.col(names.DATABASE), frame)
    return F.when(F.col(names.DATABASE).isNull() | (F.col(names.DATABASE) == database), payload).otherwise(refusal)


def _refusal(texts: tuple[str, str], value: Column, frame: DataFrame) -> Column:
    head, tail = texts
    return _error(F.lit(head), value, F.lit(tail), frame=frame)


def _error(*parts: Column, frame: DataFrame) -> Column:
    """An expression that fails the job, with `parts` and the row's place, when Spark evaluates it."""
    place: list[Column] = []
    if names.PARTITION in frame.columns:
        for text, name in ((" at source partition ", names.PARTITION), (", position ", names.POSITION)):
            place += [F.lit(text), F.coalesce(F.col(name).cast("string"), F.lit("NULL"))]
        if place_columns(frame):  # as `rows.places` says it
            named = F.regexp_replace(names.TOPIC_PARTITION, r"^(.+)-(\d+)$", "topic $1, partition $2")
            named = F.regexp_replace(named, r"^(\d+)$", "partition $1")
            place.append(F.coalesce(F.concat(F.lit(", "), named, F.lit(", offset "), names.OFFSET), F.lit("")))
    message = F.concat(F.lit(names.REFUSED), *parts, *place, F.lit("."))
    return F.raise_error(message).cast("string")


def sorted_lanes(rows: DataFrame, lanes: int, order: list[Column]) -> DataFrame:
    """Bring `rows` of a source partition together in one of `lanes` Spark partitions, sorted by `order`."""
    keys = F.array(*(F.lit(key) for key in _hash_keys(rows.sparkSession, lanes)))
    lane = lane_of(F.col(names.PARTITION), lanes)
    return rows.repartition(lanes, F.element_at(keys, lane + 1)).sortWithinPartitions(*order)


_KEYS: dict[int, tuple[int, ...]] = {1: (0,)}


def _hash_keys(session: SparkSession, lanes: int) -> tuple[int, ...]:
    """For each lane a number that Spark's hash partitioning puts into the Spark partition with the lane's number.

    `repartitionById` takes the lane itself, but needs Spark 4.1.
    """
    if lanes not in _KEYS:
        number = F.col("id").cast("int")
        numbers = session.range(0, 32 * lanes, 1, 1).groupBy(F.pmod(F.hash(number), F.lit(lanes)).alias("lane"))
        keys = dict(map(tuple, numbers.agg(F.min(number)).collect()))
        _KEYS[lanes] = tuple(keys[lane] for lane in range(lanes))
    return _KEYS[lanes]


def lane_of(partition: Column, lanes: int) -> Column:
    """The lane of a source partition: its trailing number, or else its checksum, modulo `lanes`.

    So partitions 0…n spread evenly.
    """
    if lanes == 1:
        return F.lit(0)
    number = F.regexp_extract(partition, r"(\d{1,18})$", 1)
    spread = F.when(number != "", number.cast("long")).otherwise(F.crc32(partition))
    return F.coalesce(F.pmod(spread, F.lit(lanes)), F.lit(0)).cast("int")
