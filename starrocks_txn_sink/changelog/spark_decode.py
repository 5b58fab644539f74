"""`from_changelog`: change events with an operation code become rows with a row kind.

What needs no state is a projection in the JVM. A code that stands for several kinds of a flat record needs the key's
previous row, and an order by event time needs to wait for the watermark: those are state operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.changelog.keyed import DecodeKey
from starrocks_txn_sink.changelog.mapping import OpMapping, code_to_kinds
from starrocks_txn_sink.changelog.parameters import check_choice, check_flags, check_names, named
from starrocks_txn_sink.changelog.retention import Duration, Retention
from starrocks_txn_sink.changelog.spark_events import ChangeEvents, change_events
from starrocks_txn_sink.changelog.spark_keyed import Keeping, KeyedInput, in_event_time_order, metrics_name, run_rule
from starrocks_txn_sink.changelog.spark_refusals import InvalidOps, without_invalid_ops
from starrocks_txn_sink.changelog.spark_rows import (
    column,
    from_text,
    guarded,
    names,
    null_checks,
    place_of,
    require_kept,
    sortable,
    to_text,
)
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import InputError, OptionError

WATERMARK = "spark.watermarkDelayMs"


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
    """Rows with a row kind (`+I`, `-U`, `+U`, `-D` in the column `row_kind`) out of events with an operation code.

    `op` (string or boolean) holds codes that `op_mapping` translates: `{"c, r": "INSERT", "u": "UPDATE_BEFORE,
    UPDATE_AFTER", "d": "DELETE"}`; by default a kind's name is its code. An event is flat, or carries its row in the
    structs `before` and `after` (may be the same); then the result has their fields, and `passthrough` columns.

    `partition_by` names the key: columns of the event, or fields of its images. It is needed where state is kept per
    key: for a code that is an insert or an update, for an update without a before image (`state_ttl` given, or no
    `before`), for `compact`. State lives for `state_ttl` since its last access ("10 minutes", timedelta, seconds; 0 or
    None: for ever); an update that comes later is an insert. `sequence` (columns) orders the events of a key inside a
    micro-batch; without it they are taken as they arrive, which Spark promises only for a source read in order.

    `order_by` is an event-time column with a watermark: events wait until the watermark has passed, leave sorted, and
    are dropped and counted when they come at or below it. `compact` leaves the net effect per key of what leaves
    together. A batch frame is sorted, and nothing is late. `consume_full_deletes` declares that deletes carry whole
    rows; nothing is converted.

    `invalid_op_handling` for a code that is not mapped, or NULL: `FAIL`; `LOG` and `SKIP` drop the event and count it,
    `LOG` also logs some of their places. Counts are in `observedMetrics`, under `uid`. `clock` is for tests.

    Raises InputError or OptionError at once, naming the parameter; in the running query a bad code, a NULL key or a
    missing image fails with the event's place (sequence, offset, position), never its content.
    """
    check_names({"op": op, "row_kind": row_kind}, {"before": before, "after": after, "order_by": order_by, "uid": uid})
    check_flags(consume_full_deletes=consume_full_deletes, compact=compact)
    check_choice("invalid_op_handling", invalid_op_handling, get_args(InvalidOps))
    mapping = code_to_kinds(op_mapping)
    keys = named("partition_by", partition_by)
    order, passed = names(sequence, "sequence", df), names(passthrough, "passthrough", df)
    keeping, name = Keeping(Retention.of(state_ttl), clock or SystemClock()), metrics_name("from_changelog", uid)
    events = change_events(df, op, mapping, before, after, passed, keys, row_kind)
    stateful = events.needs_previous(state_asked_for=state_ttl is not None)
    _check_state_parameters(events, stateful, order_by, compact)
    sortable(df, order)
    place = place_of(df, (*order, *names(order_by, "order_by", df)))
    frame = without_invalid_ops(df, events, invalid_op_handling, place, name)
    ordering = (*order, *([order_by] if order_by else []))
    refusals = [
        *events.missing_image(before_from_state=stateful),
        *null_checks(events.key(), ordering, "from_changelog"),
    ]
    frame = guarded(frame, *refusals, place=place)
    if order_by is not None:
        _require_watermark(df, order_by)
        frame = in_event_time_order(frame, order_by, events.key(), order, name)
    if not stateful and not compact:
        return events.project(frame, row_kind, consume_full_deletes)
    rule = DecodeKey(stateful, compact, consume_full_deletes)
    return _by_key(frame, events, order, rule, keeping, row_kind, sorted_already=order_by is not None)


def _by_key(
    frame: DataFrame,
    events: ChangeEvents,
    order: tuple[str, ...],
    rule: DecodeKey,
    keeping: Keeping,
    row_kind: str,
    *,
    sorted_already: bool,
) -> DataFrame:
    """Decode with state. A flat event's sequence travels beside its row: a row from state shows the place of the change
    that brought it up."""
    beside = events.passthrough if events.nested else order
    inside = [field for field in events.fields if field.name not in beside]
    require_kept([*inside, *(frame.schema[name] for name in beside)])
    rows = replace(events, fields=tuple(inside))
    before = to_text(rows.row(F.lit(True))) if events.both_images else None
    given = KeyedInput(
        key=to_text(events.key()),
        kinds=events.kinds,
        row=to_text(rows.row(events.retracts_only)),
        sequence=() if sorted_already else order,
        before=None if before is None else F.when(column(str(events.before)).isNotNull(), before),
        extra=to_text(map(column, beside)) if beside else None,
    )
    done = run_rule(frame, given, rule, keeping)
    kind = F.col("kind").alias(row_kind, metadata=events.metadata(rule.full_deletes))
    parsed = [from_text(F.col("row"), inside).alias("__row")]
    if beside:
        parsed.append(from_text(F.col("extra"), [frame.schema[name] for name in beside]).alias("__extra"))
    shape = [*(field.name for field in events.fields), *events.passthrough]
    fields = [F.col("__extra" if name in beside else "__row").getField(name).alias(name) for name in shape]
    return done.select(kind, *parsed).select(column(row_kind), *fields)


def _check_state_parameters(events: ChangeEvents, stateful: bool, order_by: str | None, compact: bool) -> None:
    if compact and order_by is None:
        raise OptionError(
            "compact is set without order_by.", hint="Changes are compacted between two watermarks: give order_by too."
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
    if frame.isStreaming and WATERMARK not in field.metadata:
        raise OptionError(
            f"order_by names the column {order_by}, which has no watermark.",
            hint=f"Call withWatermark({order_by!r}, ...) on the events first.",
        )
