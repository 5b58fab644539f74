"""`from_changelog`: change events with an operation code become rows with a row kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

import pandas as pd
from pyspark.sql import Column, DataFrame, functions as F, types as T
from pyspark.sql.pandas.functions import pandas_udf

from starrocks_spark_stages.changelog import keyed_step, rows
from starrocks_spark_stages.changelog.events import ChangeEvents, change_events
from starrocks_spark_stages.changelog.rules.conversions import OpMapping, code_to_kinds
from starrocks_spark_stages.changelog.rules.keyed import DecodeKey, Duration, Retention
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.telemetry import get_logger

InvalidOps = Literal["FAIL", "LOG", "SKIP"]

LINES_A_BATCH: Final = 5  # log lines per Arrow batch (10 000 rows by default)

_log = get_logger("changelog")


def handle_invalid_ops(
    frame: DataFrame, events: ChangeEvents, handling: InvalidOps, place: Sequence[str], name: str
) -> DataFrame:
    """`frame` with valid codes only. An invalid one fails the query, or is dropped, counted and logged."""
    code = events.code
    unknown = ~code.isin(list(events.mapping))
    if handling == "FAIL":
        hint = "Correct op_mapping, or drop such events with invalid_op_handling."
        return rows.refuse_rows(
            frame,
            rows.Refusal(code.isNull(), f"from_changelog: the operation code ({events.op}) is NULL", hint),
            rows.Refusal(unknown, f"from_changelog: the operation code ({events.op}) is not in op_mapping", hint),
            place=place,
        )
    invalid = code.isNull() | unknown
    observed = frame.observe(name, F.count_if(invalid).alias("invalid_ops"))
    return observed.filter(_valid_or_logged(invalid, place) if handling == "LOG" else ~invalid)


def _valid_or_logged(invalid: Column, place: Sequence[str]) -> Column:
    """Whether the code is valid; logs the places of invalid ones."""
    where = F.when(invalid, F.concat(F.lit("an event"), *rows.place_text(place)))
    # Not deterministic, so that Spark moves no filter before it: each invalid event is logged.
    keep: Column = pandas_udf(_keep, "boolean").asNondeterministic()(where)  # type: ignore[call-overload]
    return keep


def _keep(invalid: pd.Series) -> pd.Series:
    places = invalid[invalid.notna()]
    for place in places.iloc[:LINES_A_BATCH]:
        _log.warning("change.skipped", place=place, why="its operation code is not in op_mapping")
    if len(places) > LINES_A_BATCH:
        _log.warning("changes.skipped", more=len(places) - LINES_A_BATCH)
    return invalid.isna()


@suggests_arguments
def from_changelog(
    df: DataFrame,
    *,
    op: str = "op",
    op_mapping: OpMapping | None = None,
    before: str | None = None,
    after: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    order_by: str | None = None,
    state_ttl: Duration | None = None,
    consume_full_deletes: bool = False,
    passthrough: str | Sequence[str] = (),
    invalid_op_handling: InvalidOps = "FAIL",
    uid: str | None = None,
    row_kind: str = "row_kind",
    sequence: str | Sequence[str] | None = None,
    compact: bool = False,
    clock: Clock | None = None,
) -> DataFrame:
    """Turn events with an operation code into rows with a row kind (`+I`, `-U`, `+U`, `-D`): Flink's FROM_CHANGELOG.

    An event is flat, or carries its row in the structs `before` and `after`, which may be one struct.

    Some rules keep state per key and require `partition_by`: a code for an insert or an update, an update without a
    before image (`state_ttl` given, or no `before`), and `compact`. An update after its key's state has expired is an
    insert.

    With `order_by` events wait until the watermark reaches them, and leave sorted; an event that arrives at or below
    the watermark is dropped and counted. A batch frame is sorted, and no event is late. Counts are in
    `observedMetrics`, under `uid`.

    A bad code, a NULL key or a missing image fails the running query. The error names the event's place (sequence,
    offset, position), never its content.

    Args:
        df: The events.
        op: The column with the operation code (string or boolean).
        op_mapping: The row kinds of each code, as in `{"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER", "d":
            "DELETE"}`; by default a kind's name is its code.
        before: The struct with the row before the change.
        after: The struct with the row after the change.
        partition_by: The key: columns of the event, or fields of its images.
        order_by: An event-time column with a watermark.
        state_ttl: The life of state since its last access: "10 minutes", a timedelta or seconds; 0 or None: forever.
        consume_full_deletes: Declares that deletes carry whole rows; it converts nothing.
        passthrough: Columns to keep in addition to the images.
        invalid_op_handling: `FAIL` fails the query at an unmapped or NULL code. `LOG` and `SKIP` drop and count the
            event; `LOG` also logs some of their places.
        uid: The name of the counts in `observedMetrics`; by default a generated one.
        row_kind: The name of the new column.
        sequence: The columns that order the events of a key inside a micro-batch. Without them the order of arrival
            counts, which Spark guarantees only for a source read in order.
        compact: Whether to reduce the events of a key that leave together to their net effect. It needs `order_by`.
        clock: The clock of `state_ttl`, for tests.

    Returns:
        Rows with the column `row_kind` and the event's columns; with images, their fields and the `passthrough`
        columns.

    Raises:
        InputError: A parameter, named in the message, does not fit the frame.
        OptionError: A parameter, named in the message, is invalid or missing.

    Example::

        from starrocks_txn_sink import from_changelog

        mapping = {"c, r": "INSERT", "u": "UPDATE_BEFORE, UPDATE_AFTER", "d": "DELETE"}
        changes = from_changelog(
            events, op_mapping=mapping, before="before", after="after", partition_by="id", sequence="lsn"
        )
    """
    optional = {"before": before, "after": after, "order_by": order_by, "uid": uid}
    rows.check_names({"op": op, "row_kind": row_kind}, optional)
    rows.check_flags(consume_full_deletes=consume_full_deletes, compact=compact)
    check_choice("invalid_op_handling", invalid_op_handling, get_args(InvalidOps))
    mapping = code_to_kinds(op_mapping)
    keys = rows.column_names("partition_by", partition_by)
    order, passed_columns = (
        rows.require_columns(sequence, "sequence", df),
        rows.require_columns(passthrough, "passthrough", df),
    )
    settings = keyed_step.StateSettings(Retention.of(state_ttl), clock or SystemClock())
    name = keyed_step.metrics_name("from_changelog", uid)
    events = change_events(df, op, mapping, before, after, passed_columns, keys, row_kind)
    stateful = events.needs_previous(uses_state=state_ttl is not None)
    _check_state_parameters(events, stateful, order_by, compact)
    rows.sort_columns(df, order)
    place = rows.place_columns(df, (*order, *rows.require_columns(order_by, "order_by", df)))
    frame = handle_invalid_ops(df, events, invalid_op_handling, place, name)
    ordering = (*order, *([order_by] if order_by else []))
    refusals = [
        *events.missing_image_refusals(before_from_state=stateful),
        *rows.null_checks(events.key(), ordering, "from_changelog"),
    ]
    frame = rows.refuse_rows(frame, *refusals, place=place)
    if order_by is not None:
        _require_watermark(df, order_by)
        frame = keyed_step.sort_by_event_time(frame, order_by, events.key(), order, name)
    if not stateful and not compact:
        return events.project(frame, row_kind, consume_full_deletes)
    rule = DecodeKey(stateful, compact, consume_full_deletes)
    return _decode_by_key(frame, events, order, rule, settings, row_kind, sorted_already=order_by is not None)


def _decode_by_key(
    frame: DataFrame,
    events: ChangeEvents,
    order: tuple[str, ...],
    rule: DecodeKey,
    settings: keyed_step.StateSettings,
    row_kind: str,
    *,
    sorted_already: bool,
) -> DataFrame:
    """Decode with state.

    The sequence of a flat event travels next to its row: a row that comes from state gets the sequence of the change
    that released it.
    """
    beside = events.passthrough if events.nested else order
    inside = replace(events, fields=tuple(field for field in events.fields if field.name not in beside))
    before = rows.to_text(inside.row(F.lit(True))) if events.both else None
    keyed_input = keyed_step.KeyedInput(
        key=events.key(),
        kinds=events.kinds,
        row=inside.row(events.retracts_only),
        fields=inside.fields,
        beside=[frame.schema[name] for name in beside],
        sequence=() if sorted_already else order,
        before=None if before is None else F.when(rows.column(str(events.before)).isNotNull(), before),
    )
    keyed_output = keyed_step.run_rule(frame, keyed_input, rule, settings)
    kind = F.col("kind").alias(row_kind, metadata=events.metadata(rule.full_deletes))
    return keyed_output.select(
        kind, *map(keyed_input.output, [*(field.name for field in events.fields), *events.passthrough])
    )


def _check_state_parameters(events: ChangeEvents, stateful: bool, order_by: str | None, compact: bool) -> None:
    if compact and order_by is None:
        raise OptionError(
            "compact is set without order_by.", hint="Changes are compacted between two watermarks: give order_by, too."
        )
    if (stateful or compact) and not events.keys:
        why = "compact works per key" if compact else "a code for several row kinds needs the key's previous row"
        raise OptionError(f"partition_by is not given, but {why}.", hint="Name the key's columns with partition_by.")


def _require_watermark(frame: DataFrame, order_by: str) -> None:
    field = frame.schema[order_by]
    if not isinstance(field.dataType, T.TimestampType):
        raise InputError(
            f"order_by names the column {order_by}, which is {field.dataType.simpleString()}, not timestamp.",
            hint="Order by the event time; to order events inside a micro-batch use sequence.",
        )
    if frame.isStreaming and keyed_step.WATERMARK not in field.metadata:
        raise OptionError(
            f"order_by names the column {order_by}, which has no watermark.",
            hint=f"Call withWatermark({order_by!r}, ...) on the events first.",
        )
