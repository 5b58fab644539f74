"""TxnEvent: one JSON object per BEGIN, DATA or END, as lines of files or as values of a Kafka topic.

    {"source_partition": "0", "position": 7, "type": "DATA", "txn_id": "t1",
     "database": "shop", "table": "orders", "op": "u", "row": "{\\"order_id\\": 1}"}

Files: `spark.readStream.schema(TXN_EVENT_SCHEMA).json(folder)`. Kafka: `parse_txn_events(topic)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from pyspark.sql import functions as F  # noqa: N812

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.sources.malformed import ADVICE, COMPLAINT, OnMalformed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TXN_EVENT_SCHEMA: Final = (
    "source_partition STRING, position BIGINT, type STRING, txn_id STRING, "
    "database STRING, table STRING, op STRING, row STRING"
)

_CORRUPT: Final = "_corrupt_record"
_PARSED: Final = "_txn_event"


def parse_txn_events(
    df: DataFrame,
    value: str = "value",
    *,
    source_partition: str | None = "partition",
    position: str | None = "offset",
    keep: tuple[str, ...] = (),
    on_malformed: OnMalformed = "fail",
    name: str = "parse_txn_events",
) -> DataFrame:
    """The events in the JSON of the column `value` (string or binary), parsed in the JVM.

    `source_partition` and `position` name the columns of `df` that give an event its place, Kafka's partition and
    offset unless told otherwise (several topics: make one column of topic and partition); None takes them from the
    JSON. A `row` may be a string or an object. The result has the columns of TXN_EVENT_SCHEMA, then `keep`; the source
    partition keeps the type of its column.

    A value that is NULL (a Kafka tombstone), not a JSON object, or has a field of another type, fails the query with an
    error that names its place and never its content; `drop` leaves it out, and then whoever chose that loses the event;
    how many were is in each progress of the query under `observedMetrics[name]["malformed"]`.
    """
    _check(df, (value, *(each for each in (source_partition, position) if each), *keep), on_malformed)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    taken = {"source_partition": source_partition, "position": position}
    fields = [field for field in TXN_EVENT_SCHEMA.split(", ") if not taken.get(field.split()[0])]
    parsed = F.from_json(_column(value).cast("string"), ", ".join([*fields, f"{_CORRUPT} STRING"]), options)
    frame = df.withColumn(_PARSED, parsed)
    event = F.col(_PARSED)
    malformed = event.isNull() | event[_CORRUPT].isNotNull()
    if on_malformed == "drop":
        frame = frame.observe(name, F.count_if(malformed).alias("malformed")).where(~malformed)
    columns = []
    for field in (field.split()[0] for field in TXN_EVENT_SCHEMA.split(", ")):
        own = taken.get(field)
        content = _column(own) if own else event[field]
        if field == "type" and on_malformed == "fail":
            content = F.when(malformed, F.raise_error(_complaint(taken))).otherwise(content)
        columns.append(content.alias(field))
    return frame.select(*columns, *map(_column, keep))


def _check(df: DataFrame, wanted: tuple[str, ...], on_malformed: str) -> None:
    if on_malformed not in get_args(OnMalformed):
        raise OptionError(f"on_malformed is {on_malformed!r}.", hint=f"Use {' or '.join(get_args(OnMalformed))}.")
    missing = [each for each in wanted if each not in df.columns]
    if missing:
        raise InputError(
            f"The frame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(df.columns)}; name others, or None where the JSON itself holds them.",
        )


def _complaint(taken: dict[str, str | None]) -> Column:
    """The error's text, with the place where the columns give one."""
    place: list[Column] = []
    for name, own in taken.items():
        if own:
            place += [F.lit(f" {name}="), F.coalesce(_column(own).cast("string"), F.lit("NULL"))]
    where = F.concat(F.lit(" at"), *place) if place else F.lit("")
    return F.concat(F.lit(COMPLAINT), where, F.lit(f". {ADVICE}"))


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
