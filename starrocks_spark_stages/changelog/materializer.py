"""`upsert_materializer`: turns interleaved changes of a sink key into changes that a table can apply in order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, get_args

from pyspark.sql import DataFrame, functions as F

from starrocks_spark_stages.changelog import rows
from starrocks_spark_stages.changelog.keyed_step import KeyedInput, StateSettings, metrics_name, run_rule
from starrocks_spark_stages.changelog.plan import (
    KEY,
    POSSIBLE_KINDS,
    deletes_are_by_key,
    is_unchanged_since,
    known_key,
    non_deterministic_functions,
)
from starrocks_spark_stages.changelog.rules.conversions import UPDATE_BEFORE, RowKind, needs_materializer
from starrocks_spark_stages.changelog.rules.keyed import Duration, MaterializeKey, Retention
from starrocks_txn_sink.clock import Clock, SystemClock
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.public_names import suggests_arguments

Mode = Literal["auto", "none", "force"]


class ChangelogWarning(UserWarning):
    """Warn of conditions, named in the message, under which rows are wrong or state grows forever."""


@suggests_arguments
def upsert_materializer(
    df: DataFrame,
    *,
    sink_key: str | Sequence[str],
    upsert_key: str | Sequence[str] | None = None,
    mode: Mode = "auto",
    sequence: str | Sequence[str] | None = None,
    state_ttl: Duration | None = None,
    row_kind: str = "row_kind",
    uid: str | None = None,
    clock: Clock | None = None,
) -> DataFrame:
    """Order the changes of several rows that claim the same key, for a table with this primary key.

    You need it if a join or a shuffle has mixed the order of a key's changes, or if different source rows share a sink
    key. Of all rows that claim a sink key, the result shows the last one added. The function swallows, logs and counts
    a retraction that finds no row (`swallowed` in `observedMetrics`, under `uid`).

    It warns (ChangelogWarning) if there is no upsert key, and the columns come from non-deterministic functions or the
    input has no -U. An unknown row kind or a NULL key fails the running query; the error names the row's place.

    Args:
        df: The changes, with a row kind.
        sink_key: The columns of the table's primary key.
        upsert_key: The columns that identify a source row, whose changes come in order. Without it rows are compared as
            a whole, except for the `sequence` columns.
        mode: As Flink's `table.exec.sink.upsert-materialize`: `auto` returns `df` unchanged if `upsert_key` is the sink
            key, or, without `upsert_key`, if rows of from_changelog know that their key is (as in to_changelog); `none`
            always does, `force` never does.
        sequence: The columns that order the changes of a key inside a micro-batch; without them the order of arrival
            counts.
        state_ttl: The life of state since the last change of a sink key's rows: "10 minutes", a timedelta or seconds; 0
            or None: forever.
        row_kind: The column with the row kind.
        uid: The name of the counts in `observedMetrics`; by default a generated one.
        clock: The clock of `state_ttl`, for tests.

    Returns:
        Changes with the same columns, and with the sequence of the change that caused them.

    Raises:
        InputError: A parameter, named in the message, does not fit the frame.
        OptionError: A parameter, named in the message, is invalid; or there is no upsert key for deletes that carry
            only their key, as from_changelog has said (`consume_full_deletes`).

    Example::

        from starrocks_txn_sink import to_starrocks_ops, upsert_materializer

        settled = upsert_materializer(joined, sink_key="id", sequence="lsn", state_ttl="36 h")
        operations = to_starrocks_ops(settled, sink_key="id", sequence="lsn")
    """
    rows.check_names({}, {"uid": uid})
    check_choice("mode", mode, get_args(Mode))
    rows.require_row_kind(df, row_kind)
    keys, order = rows.require_columns(sink_key, "sink_key", df), rows.require_columns(sequence, "sequence", df)
    identity = None if upsert_key is None else rows.require_columns(upsert_key, "upsert_key", df)
    _check_keys(keys, identity)
    rows.sort_columns(df, order)
    settings = StateSettings(Retention.of(state_ttl), clock or SystemClock(), metrics_name("upsert_materializer", uid))
    if not needs_materializer(mode, keys, identity or _own_key(df, row_kind)):
        return df
    if identity is None:
        _refuse_key_only_deletes(df, row_kind, (*keys, *order))
        _warn_about_whole_rows(df, row_kind)
    frame = rows.refuse_bad_changes(df, row_kind, keys, order, "upsert_materializer")
    keyed_input = KeyedInput.of_changes(frame, row_kind, keys, order, beside=order, upsert_key=identity or ())
    keyed_output = run_rule(frame, keyed_input, MaterializeKey(), settings)
    # A delete leaves with the row of the retraction that caused it, so deletes stay as whole as they came.
    possible = [str(kind) for kind in RowKind if kind is not UPDATE_BEFORE]
    metadata = {**df.schema[row_kind].metadata, POSSIBLE_KINDS: possible, KEY: list(keys)}
    kind = F.col("kind").alias(row_kind, metadata=metadata)
    return keyed_output.select(*(kind if name == row_kind else keyed_input.output(name) for name in df.columns))


def _check_keys(keys: tuple[str, ...], identity: tuple[str, ...] | None) -> None:
    if not keys:
        raise OptionError("sink_key is empty.", hint="Name the columns of the table's primary key.")
    if identity == ():
        raise OptionError("upsert_key is empty.", hint="Leave it out when no columns identify a source row.")


def _own_key(frame: DataFrame, row_kind: str) -> tuple[str, ...] | None:
    """The key of an upsert stream that the frame knows, and still has; None on Spark Connect, which hides the plan."""
    key = known_key(frame, row_kind)
    return key if key and is_unchanged_since(frame, row_kind, KEY, key) else None


def _refuse_key_only_deletes(frame: DataFrame, row_kind: str, known_columns: Sequence[str]) -> None:
    """OptionError for deletes that carry only the key: as whole rows they match nothing, and their rows stay forever.

    `known_columns` are those that every delete has; where there are no others, a key is a whole row.
    """
    if deletes_are_by_key(frame, row_kind, known_columns):
        raise OptionError(
            "upsert_materializer has no upsert_key, so a delete must carry its whole row, and the column "
            f"{row_kind} comes from a from_changelog whose deletes carry only the key (consume_full_deletes is False).",
            hint="Name the columns that identify a source row as upsert_key. If deletes carry whole rows, say "
            "consume_full_deletes=True in from_changelog; if they do not, complete them from state first: to_changelog "
            "with partition_by and state_ttl, then from_changelog with consume_full_deletes=True.",
        )


def _warn_about_whole_rows(frame: DataFrame, row_kind: str) -> None:
    """Warn of conditions that break the comparison of whole rows."""
    functions = non_deterministic_functions(frame)
    if functions:
        _emit_warning(
            f"There is no upsert_key, so a retraction has to match its row in every column, and its columns use "
            f"{', '.join(functions)}: such values differ each time, rows are never removed and state grows forever. "
            f"Leave those columns out, or name an upsert_key."
        )
    kinds = frame.schema[row_kind].metadata.get(POSSIBLE_KINDS)
    if kinds is not None and str(UPDATE_BEFORE) not in kinds:
        _emit_warning(
            "There is no upsert_key, and the changelog has no -U: an update leaves its old row behind, and a later "
            "delete shows that old row again. Map updates to UPDATE_BEFORE, UPDATE_AFTER, or name an upsert_key."
        )


def _emit_warning(message: str) -> None:
    warnings.warn(message, ChangelogWarning, stacklevel=4)
