"""`invalid_op_handling`: fail, log or skip events whose code is NULL or not in op_mapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.functions import pandas_udf

from starrocks_txn_sink.changelog.spark_events import ChangeEvents
from starrocks_txn_sink.changelog.spark_rows import Refusal, place_text, refuse_rows
from starrocks_txn_sink.logs import get_logger

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
        return refuse_rows(
            frame,
            Refusal(code.isNull(), f"from_changelog: the operation code ({events.op}) is NULL", hint),
            Refusal(unknown, f"from_changelog: the operation code ({events.op}) is not in op_mapping", hint),
            place=place,
        )
    invalid = code.isNull() | unknown
    counted = frame.observe(name, F.count_if(invalid).alias("invalid_ops"))
    return counted.filter(_valid_or_logged(invalid, place) if handling == "LOG" else ~invalid)


def _valid_or_logged(invalid: Column, place: Sequence[str]) -> Column:
    """Whether the code is valid; logs the places of invalid ones."""
    where = F.when(invalid, F.concat(F.lit("an event"), *place_text(place)))
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
