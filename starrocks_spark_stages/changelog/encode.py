"""`to_changelog`: rows with a row kind become change events with an operation code, flat or with images.

Flat events, and images of the present row alone, are projections in the JVM. Two conversions need the key's previous
row from state: the before image of an update, and a full delete from a delete by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, functions as F, types as T

from starrocks_spark_stages.changelog import keyed_step, rows
from starrocks_spark_stages.changelog.keyed_step import KeyedInput, StateSettings, run_rule
from starrocks_spark_stages.changelog.plan import (
    FULL_DELETES,
    KEY,
    deletes_are_by_key,
    is_hidden,
    is_unchanged_since,
    known_key,
)
from starrocks_spark_stages.changelog.rules import conversions
from starrocks_spark_stages.changelog.rules.conversions import DELETE, UPDATE_AFTER, UPDATE_BEFORE, OpMapping
from starrocks_spark_stages.changelog.rules.keyed import DecodeKey, Duration, EncodeKey, NormalizeKey, Retention
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.rows.columns import KEY_DELETES


@suggests_arguments
def to_changelog(
    df: DataFrame,
    *,
    op: str = "op",
    op_mapping: OpMapping | None = None,
    before: str | None = None,
    after: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    state_ttl: Duration | None = None,
    produces_full_deletes: bool | None = None,
    passthrough: str | Sequence[str] = (),
    uid: str | None = None,
    row_kind: str = "row_kind",
    sequence: str | Sequence[str] | None = None,
    compact: bool = False,
    clock: Clock | None = None,
) -> DataFrame:
    """Turn rows with a row kind into change events with an operation code: Flink's TO_CHANGELOG.

    Events are flat, or carry the row in the structs `before` and `after`, which may be one struct, with the
    `passthrough` columns next to them. Kinds without a code are dropped.

    With two images an update shows its before image: from its -U if both kinds share a code (the -U then waits for its
    +U), else from the key's previous row. An update whose previous row is unknown, or older than `state_ttl`, leaves as
    an INSERT. This needs `partition_by`; without it only a -U and the +U right after it are paired, in one task. Rows
    of from_changelog or upsert_materializer without -U know their key, so `partition_by` may be left out, as long as
    only projections and filters that leave the key alone stand in between.

    An unknown row kind or a NULL key fails the running query. The error names the row's place, never its content.

    Args:
        df: The changes, with a row kind.
        op: The name of the column with the code, the first column of the result.
        op_mapping: The code of each kind, as in `{"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u", "DELETE": "d"}`;
            by default a kind's name is its code, and -U has none. With True and False as codes `op` is a boolean
            column: a deletion flag.
        before: The name of the struct for the row before the change.
        after: The name of the struct for the row after the change.
        partition_by: The columns of the key.
        state_ttl: The life of state since its last access: "10 minutes", a timedelta or seconds; 0 or None: forever.
            With `partition_by` and full deletes, a `state_ttl` also completes deletes by key from state, drops repeated
            rows, and makes the first change of a key an INSERT.
        produces_full_deletes: False keeps only the key (`partition_by`) and the `sequence` in deletes. True promises
            whole rows: from state (`state_ttl`, or two images of a known key), else as the source has them; a source
            that says otherwise (`consume_full_deletes`) is refused. None completes them in the same way, and promises
            nothing.
        passthrough: Columns to keep in addition to the images.
        uid: The name of the counts in `observedMetrics`; by default a generated one.
        row_kind: The column with the row kind.
        sequence: The columns that order the changes of a key inside a micro-batch, as in from_changelog.
        compact: Whether to reduce the changes of a key (`partition_by`) to their net effect between two watermarks.
            They wait until the watermark of the frame's event time reaches them; late ones are dropped and counted,
            under `uid`. A batch frame is compacted as a whole.
        clock: The clock of `state_ttl`, for tests.

    Returns:
        Change events with the code in the column `op`.

    Raises:
        InputError: A parameter, named in the message, does not fit the frame.
        OptionError: A parameter, named in the message, is invalid or missing.

    Example::

        from starrocks_txn_sink import to_changelog

        mapping = {"INSERT": "c", "UPDATE_BEFORE, UPDATE_AFTER": "u", "DELETE": "d"}
        events = to_changelog(changes, before="before", after="after", op_mapping=mapping, partition_by="id")
    """
    rows.check_names({"op": op}, {"before": before, "after": after, "uid": uid})
    rows.check_flags(compact=compact)
    if produces_full_deletes is not None:
        rows.check_flags(produces_full_deletes=produces_full_deletes)
    rows.require_row_kind(df, row_kind)
    flags = conversions.codes_are_flags(op_mapping)
    codes, paired = conversions.kinds_to_code(op_mapping), conversions.pairs_updates(op_mapping)
    keys, order = rows.require_columns(partition_by, "partition_by", df), rows.require_columns(sequence, "sequence", df)
    if partition_by is None:
        keys = _known_key(df, row_kind, is_needed=state_ttl is not None or None not in (before, after))
    name = keyed_step.metrics_name("to_changelog", uid)
    settings = StateSettings(Retention.of(state_ttl), clock or SystemClock())
    passed_columns = rows.require_columns(passthrough, "passthrough", df)
    beside = passed_columns if rows.Images(before, after).nested else ()
    fields = [field for field in df.schema.fields if field.name not in (row_kind, *beside)]
    encoder = conversions.ImageEncoder(codes, paired, bool(keys))
    partial = (*keys, *order) if produces_full_deletes is False else ()
    normalizes = state_ttl is not None and produces_full_deletes is not False
    encoding = _Encoding(
        before, after, fields, row_kind, op, beside, keys, order, encoder, settings, partial, normalizes, name
    )
    encoding.check()
    if produces_full_deletes and DELETE in codes and not encoding.completes_deletes:
        _refuse_key_only_deletes(df, row_kind, (*keys, *order))
    if produces_full_deletes is False and not keys:
        raise OptionError(
            "produces_full_deletes is False, but partition_by is not given.",
            hint="Name the key's columns with partition_by: deletes keep only them and the sequence.",
        )
    if compact and not keys:
        raise OptionError(
            "compact is set, but partition_by is not given.", hint="Changes are compacted per key: name its columns."
        )
    frame = rows.refuse_bad_changes(df, row_kind, keys, order, "to_changelog")
    if compact:
        frame = _compact(frame, row_kind, keys, order, settings, name)
    events = encoding.events(frame)
    events = events.withColumn(op, rows.column(op) == "true") if flags else events
    return events.withMetadata(op, {KEY_DELETES: True}) if partial and DELETE in codes else events


def _refuse_key_only_deletes(frame: DataFrame, row_kind: str, known_columns: Sequence[str]) -> None:
    if deletes_are_by_key(frame, row_kind, known_columns):
        raise OptionError(
            f"produces_full_deletes is True, but the column {row_kind} comes from a from_changelog whose deletes carry "
            "only the key (consume_full_deletes is False), and no state completes them: they would have NULLs.",
            hint="Complete them from state: give partition_by and state_ttl (0 keeps state forever). If the deletes "
            "carry whole rows, say consume_full_deletes=True in from_changelog. If consumers need only the key, leave "
            "produces_full_deletes out.",
        )


def _known_key(frame: DataFrame, row_kind: str, *, is_needed: bool) -> tuple[str, ...]:
    """The key of an upsert stream, if the frame knows it.

    Raises OptionError if the key is `is_needed`, and only the plan could say whether it still holds, which is hidden.
    """
    keys = known_key(frame, row_kind)
    if keys and is_needed and is_hidden(frame):
        raise OptionError(
            "partition_by is not given, and Spark Connect hides the plan, which says whether the frame still has the "
            f"key of from_changelog ({', '.join(keys)}).",
            hint="Name the key's columns with partition_by.",
        )
    return keys if keys and is_unchanged_since(frame, row_kind, KEY, keys) else ()


def _compact(
    frame: DataFrame, row_kind: str, keys: Sequence[str], order: Sequence[str], settings: StateSettings, name: str
) -> DataFrame:
    """The net effect per key of the changes that the watermark releases together; of all changes of a batch frame."""
    given_kind = frame.schema[row_kind]
    if frame.isStreaming:
        times = [field.name for field in frame.schema.fields if keyed_step.WATERMARK in field.metadata]
        if len(times) != 1:
            raise OptionError(
                f"compact is set, and {len(times)} columns have a watermark.",
                hint="Changes are compacted between two watermarks: call withWatermark on the changes' event time.",
            )
        frame = keyed_step.sort_by_event_time(frame, times[0], [rows.column(key) for key in keys], order, name)
    sequence = () if frame.isStreaming else order
    keyed_input = KeyedInput.of_changes(frame, row_kind, keys, sequence, beside=order)
    rule = DecodeKey(keeps_rows=False, compact=True, full_deletes=given_kind.metadata.get(FULL_DELETES) is True)
    keyed_output = run_rule(frame, keyed_input, rule, settings)
    kind = F.col("kind").alias(row_kind, metadata=given_kind.metadata)
    return keyed_output.select(*(kind if name == row_kind else keyed_input.output(name) for name in frame.columns))


@dataclass(frozen=True, slots=True)
class _Encoding(rows.Images):
    """The conversion of a frame of changes into events."""

    fields: Sequence[T.StructField]  # of the row, without the passthrough columns
    row_kind: str
    op: str
    passthrough: Sequence[str]  # of nested events
    keys: Sequence[str]
    order: Sequence[str]
    encoder: conversions.ImageEncoder
    settings: StateSettings
    partial: Sequence[str]  # the columns that deletes keep; empty: all
    normalizes: bool  # flat events of a key are completed from state
    name: str  # of the counts

    def check(self) -> None:
        """OptionError for two columns of one name, and for a kind with a code whose image is not given."""
        names = [field.name for field in self.fields]
        rows.refuse_clash([self.op], self.passthrough if self.nested else names, "op")
        images = {name for name in (self.before, self.after) if name is not None}
        rows.refuse_clash(images, [self.op, *self.passthrough], "before or after")
        imageless = [kind for kind in self.encoder.codes if (self.after if kind.adds else self.before) is None]
        if imageless and self.nested:
            side = "before" if self.before is None else "after"
            raise OptionError(
                f"op_mapping puts out {', '.join(kind.name for kind in imageless)}, whose rows go to the {side} image, "
                f"but {side} is not given.",
                hint=f"Give {side}=; one column may hold both images.",
            )

    @property
    def _pairs_images(self) -> bool:
        """Whether events with images need the key's previous row."""
        codes = self.encoder.codes
        # An update must show its previous row although -U has no code.
        shows_previous = self.both and UPDATE_AFTER in codes and UPDATE_BEFORE not in codes
        return self.nested and (self.encoder.paired or shows_previous)

    @property
    def completes_deletes(self) -> bool:
        """Whether a delete gets its row from state."""
        return bool(self.keys) and (self._pairs_images if self.nested else self.normalizes)

    def events(self, frame: DataFrame) -> DataFrame:
        codes = self.encoder.codes
        if self._pairs_images:
            return self._with_images(frame)
        if not self.nested and self.completes_deletes:
            # The sequence travels next to the row: two rows that differ only in it are the same row.
            keyed_input = KeyedInput.of_changes(frame, self.row_kind, self.keys, self.order, beside=self.order)
            keyed_output = run_rule(frame, keyed_input, NormalizeKey(codes), self.settings)
            return keyed_output.select(
                F.col("kind").alias(self.op), *(keyed_input.output(field.name) for field in self.fields)
            )
        return self._without_state(frame)

    def _without_state(self, frame: DataFrame) -> DataFrame:
        codes = dict(self.encoder.codes)
        if self.encoder.paired:
            codes.pop(UPDATE_BEFORE, None)
        row_kind = rows.column(self.row_kind)
        changes = frame.filter(row_kind.isin([str(kind) for kind in codes]))
        code = F.coalesce(*(F.when(row_kind == str(kind), F.lit(text)) for kind, text in codes.items()))
        columns = [self._value(field.name) for field in self.fields]
        if not self.nested:
            return changes.select(code.alias(self.op), *columns)
        image, retracts = F.struct(*columns), row_kind.isin(str(UPDATE_BEFORE), str(DELETE))
        beside = map(rows.column, self.passthrough)
        return changes.select(*self._event_columns(code, F.when(retracts, image), F.when(~retracts, image), beside))

    def _value(self, name: str) -> Column:
        """A column of the row; NULL in a delete that does not keep it."""
        if not self.partial or name in self.partial:
            return rows.column(name).alias(name)
        return F.when(rows.column(self.row_kind) != str(DELETE), rows.column(name)).alias(name)

    def _event_columns(self, code: Column, before: Column, after: Column, beside: Iterable[Column]) -> list[Column]:
        """The event's columns, in order; one column for both images if they share a name."""
        if self.before == self.after:
            return [code.alias(self.op), *beside, F.coalesce(after, before).alias(str(self.after))]
        images = [(self.before, before), (self.after, after)]
        return [code.alias(self.op), *beside, *(image.alias(name) for name, image in images if name is not None)]

    def _with_images(self, frame: DataFrame) -> DataFrame:
        if not self.keys and not self.encoder.paired:
            raise OptionError(
                "partition_by is not given, but the before image of an update is the key's previous row.",
                hint="Name the key's columns with partition_by, or give UPDATE_BEFORE and UPDATE_AFTER one code.",
            )
        keyed_input = KeyedInput.of_changes(frame, self.row_kind, self.keys, self.order, beside=self.passthrough)
        settings = (
            replace(self.settings, observation=self.name, counts=("waiting",)) if self.encoder.paired else self.settings
        )
        keyed_output = run_rule(frame, keyed_input, EncodeKey(self.encoder), settings)
        before = F.col("before")
        if self.partial:
            is_delete = F.col("kind") == self.encoder.codes.get(DELETE, "")
            before = F.when(is_delete, self._key_only(before)).otherwise(before)
        beside = map(keyed_input.output, self.passthrough)
        return keyed_output.select(*self._event_columns(F.col("kind"), before, F.col("row"), beside))

    def _key_only(self, image: Column) -> Column:
        fields = []
        for field in self.fields:
            value = image.getField(field.name) if field.name in self.partial else F.lit(None).cast(field.dataType)
            fields.append(value.alias(field.name))
        return F.struct(*fields)
