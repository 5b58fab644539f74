"""The end of a lane's rows: proof that none was cut off.

When the JVM dies in the middle of a task, the Arrow stream to Python just ends, and its reader takes that for the end
of the rows. So the projection adds one last row to each lane, which no user can write; a lane commits only after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.errors import StarRocksSinkError, Transient
from starrocks_txn_sink.lane.columns import END_POSITION, PAYLOAD


class RowsCutOff(StarRocksSinkError, Transient):
    """Spark stopped the task, or its JVM died."""

    code = "rows_cut_off"
    summary = "The rows of a lane ended before their last row, and nothing was committed."


class StageRepeated(StarRocksSinkError, Transient):
    """The lane's last row says so (`lane.attempt`): another task may own the lane."""

    code = "stage_repeated"
    summary = "Spark runs the stage of a lane again, and nothing was committed."


class RowsAfterEnd(StarRocksSinkError):
    """Found only where a lane's rows are not sorted."""

    code = "rows_after_end"
    summary = "Rows came after the last row of a lane, and nothing was committed."


def until_end(
    batches: Iterable[pa.RecordBatch], column: str, content: str = PAYLOAD, *, strict: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the lane's last row: END_POSITION in `column` and NULL in `content`.

    Raises RowsCutOff when it never came and, with `strict`, RowsAfterEnd when it was not the last.
    """
    ended = False
    for batch in batches:
        last = pc.and_kleene(pc.equal(batch.column(column), END_POSITION), batch.column(content).is_null())
        here = pc.any(last).as_py()
        if strict and batch.num_rows and (ended or (here and not last[-1].as_py())):
            raise RowsAfterEnd("Rows of the lane came after its last one.")
        ended = ended or bool(here)
        rows = batch.filter(pc.invert(last.fill_null(False))) if here else batch
        if rows.num_rows:
            yield rows
    if not ended:
        raise RowsCutOff("The rows of the lane were cut off before their end.")
