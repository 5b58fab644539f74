"""Policy and error text for values that are no TxnEvent, shared by the parser in the JVM and the one in the lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, get_args

from pyspark.sql import functions as F  # noqa: N812

from starrocks_txn_sink.errors import InputError, OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


OnMalformed = Literal["fail", "drop"]

MALFORMED_MESSAGE: Final = "A value is not a TxnEvent (malformed JSON, NULL, or a field of another type)"
MALFORMED_HINT: Final = 'Correct the source, or pass on_malformed="drop" to lose such values.'


TXN_EVENT_SCHEMA: Final = (
    "source_partition STRING, position BIGINT, type STRING, txn_id STRING, "
    "database STRING, table STRING, op STRING, row STRING"
)

CORRUPT: Final = "_corrupt_record"
PARSING: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
"""Options of from_json: a malformed value has its text in CORRUPT."""
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
    """TxnEvents from the JSON in the column `value` (string or binary), parsed in the JVM.

    `source_partition` and `position` name columns of `df`, by default Kafka's partition and offset; with several topics
    make one column of topic and partition. None takes the field from the JSON. A `row` may be a string or an object.
    The result has the columns of TXN_EVENT_SCHEMA, then `keep`; the source partition keeps the type of its column.

    A malformed value (NULL such as a Kafka tombstone, no JSON object, a field of another type) fails the query; the
    error names source partition and position, never the content. `on_malformed="drop"` loses such events and counts
    them in each progress under `observedMetrics[name]["malformed"]`. Raises OptionError for an unknown `on_malformed`,
    InputError for a missing column.
    """
    needed = (value, *(each for each in (source_partition, position) if each), *keep)
    check_input(df, needed, on_malformed, advice=", or None to take the field from the JSON")
    column_of = {"source_partition": source_partition, "position": position}
    fields = [field for field in TXN_EVENT_SCHEMA.split(", ") if not column_of.get(field.split()[0])]
    parsed = F.from_json(named_column(value).cast("string"), ", ".join([*fields, f"{CORRUPT} STRING"]), PARSING)
    frame = df.withColumn(_PARSED, parsed)
    event = F.col(_PARSED)
    malformed = event.isNull() | event[CORRUPT].isNotNull()
    if on_malformed == "drop":
        frame = frame.observe(name, F.count_if(malformed).alias("malformed")).where(~malformed)
    columns = []
    for field in (field.split()[0] for field in TXN_EVENT_SCHEMA.split(", ")):
        own = column_of.get(field)
        content = named_column(own) if own else event[field]
        if field == "type" and on_malformed == "fail":
            text = F.concat(F.lit(MALFORMED_MESSAGE), *place_text(column_of), F.lit(f". {MALFORMED_HINT}"))
            content = F.when(malformed, F.raise_error(text)).otherwise(content)
        columns.append(content.alias(field))
    return frame.select(*columns, *map(named_column, keep))


def check_policy(on_malformed: str) -> None:
    """Raise OptionError for an unknown `on_malformed`."""
    if on_malformed not in get_args(OnMalformed):
        raise OptionError(f"on_malformed is {on_malformed!r}.", hint=f"Use {' or '.join(get_args(OnMalformed))}.")


def check_input(df: DataFrame, needed: tuple[str, ...], on_malformed: str, advice: str = "") -> None:
    """Raise OptionError for an unknown `on_malformed`, InputError, with `advice`, for a missing column."""
    check_policy(on_malformed)
    missing = [each for each in needed if each not in df.columns]
    if missing:
        raise InputError(
            f"The DataFrame lacks the column {', '.join(missing)}.",
            hint=f"It has {', '.join(df.columns)}; name other columns{advice}.",
        )


def place_text(columns: Mapping[str, str | None]) -> list[Column]:
    """The end of an error's text: the row's values in `columns`, by name; empty without any."""
    parts: list[Column] = []
    for name, own in columns.items():
        if own:
            parts += [F.lit(f" {name}="), F.coalesce(named_column(own).cast("string"), F.lit("NULL"))]
    return [F.lit(" at"), *parts] if parts else []


def quoted(name: str) -> str:
    """A column's name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def named_column(name: str) -> Column:
    return F.col(quoted(name))
