"""What becomes of each segment: released, left open, abandoned or skipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from starrocks_txn_sink.assembler.intake import Indexes
from starrocks_txn_sink.assembler.policy import MissingBegin
from starrocks_txn_sink.assembler.segments import Closer, Opener, Segments

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fates:
    """One mask per fate over the segments of a micro-batch; every segment with rows or an END has exactly one of them.

    `orphan` marks segments whose BEGIN was never seen; by policy they are also among the skipped or the live ones.
    """

    orphan: Mask
    released: Mask  # whole, with rows: its END came
    empty: Mask  # whole, without rows
    abandoned: Mask  # unfinished when the next BEGIN came
    open: Mask  # unfinished when the micro-batch ended
    skipped: Mask  # belongs to a transaction that was dropped
    waiting: Mask  # skipped, and its END has not come yet


def judge(segments: Segments, held: Indexes, missing_begin: MissingBegin) -> Fates:
    """Judge every segment; `held` are the rows that its transaction already had when the micro-batch began."""
    ended, tail = segments.closer == Closer.END, segments.closer == Closer.TAIL
    orphan = (segments.opener == Opener.NOTHING) & (ended | (segments.rows > 0))
    live, skipped = segments.opener == Opener.LIVE, segments.opener == Opener.DROPPED
    if missing_begin == "accept":
        live = live | orphan
    else:
        skipped = skipped | orphan
    full = segments.rows + held > 0
    return Fates(
        orphan=orphan,
        released=live & ended & full,
        empty=live & ended & ~full,
        abandoned=live & (segments.closer == Closer.BEGIN),
        open=live & tail,
        skipped=skipped,
        waiting=skipped & tail,
    )
