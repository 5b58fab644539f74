"""`invalid_op_handling`: what happens to events whose code is not mapped, or NULL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.functions import pandas_udf

from starrocks_txn_sink.changelog.spark_events import ChangeEvents
from starrocks_txn_sink.changelog.spark_rows import Refusal, guarded, shown
from starrocks_txn_sink.logs import get_logger

InvalidOps = Literal["FAIL", "LOG", "SKIP"]

LINES_A_BATCH: Final = 5  # log lines per Arrow batch (10 000 rows by default)

_log = get_logger("changelog")


def without_invalid_ops(
    frame: DataFrame, events: ChangeEvents, handling: InvalidOps, place: Sequence[str], name: str
) -> DataFrame:
    """`frame` with valid codes only: the others fail the query, or are dropped, counted as `invalid_ops` and logged."""
    code = events.code
    unknown = ~code.isin(list(events.mapping))
    if handling == "FAIL":
        hint = "Correct op_mapping, or drop such events with invalid_op_handling."
        return guarded(
            frame,
            Refusal(code.isNull(), f"from_changelog: the operation code ({events.op}) is NULL", hint),
            Refusal(unknown, f"from_changelog: the operation code ({events.op}) is not in op_mapping", hint),
            place=place,
        )
    invalid = code.isNull() | unknown
    counted = frame.observe(name, F.count_if(invalid).alias("invalid_ops"))
    return counted.filter(_logged(invalid, place) if handling == "LOG" else ~invalid)


def _logged(invalid: Column, place: Sequence[str]) -> Column:
    """Whether to keep the row; says where the others are. Not deterministic, so that no filter is moved before it."""
    where = F.when(invalid, F.concat(F.lit("an event"), *shown(place)))
    keep: Column = pandas_udf(_keep, "boolean").asNondeterministic()(where)  # type: ignore[call-overload]
    return keep


def _keep(invalid: pd.Series) -> pd.Series:
    places = invalid[invalid.notna()]
    for place in places.iloc[:LINES_A_BATCH]:
        _log.warning("change.skipped", place=place, why="its operation code is not in op_mapping")
    if len(places) > LINES_A_BATCH:
        _log.warning("changes.skipped", more=len(places) - LINES_A_BATCH)
    return invalid.isna()
