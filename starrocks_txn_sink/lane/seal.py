"""The seal of a lane's rows: proof that they come as they were laid out, all of them and in their lane.

Where the sink runs the lanes itself nothing can come between layout and lane. A data source is given a frame that may
have been filtered, cut or spread anew since, and it would write what is left without noticing. So the layout numbers
its rows: lane in the upper bits, then the row's place in it, as `monotonically_increasing_id` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.lane.columns import PLACE, ROW_BITS


def unsealed(batches: Iterable[pa.RecordBatch], lane: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the task that writes `lane`, without PLACE; raises InputError for a row out of its place.

    What follows the last row is told by the lane's end (`lane.ending`), not here.
    """
    at = lane << ROW_BITS
    for batch in batches:
        places = batch.column(PLACE)
        found = places.to_numpy(zero_copy_only=False)
        if places.null_count or not np.array_equal(found, np.arange(at, at + batch.num_rows, dtype=np.int64)):
            raise InputError(
                f"The rows of lane {lane} are not the ones, or not in the order, that lane_partitioned laid out: the "
                "frame was filtered, limited, joined, coalesced or spread anew after it.",
                hint="Make lane_partitioned the last step before the write.",
            )
        at += batch.num_rows
        yield batch.drop_columns([PLACE])
