"""An outage of StarRocks is a pause: the driver waits and writes the micro-batch again, until `batch_deadline`.

A lane repeats a StarRocks transaction from memory, `max_attempts` times within seconds; then it fails its task. Leader
elections, rolling upgrades and full backends take minutes. So the driver opens a new session and runs the lanes again,
as a restart of the query would: the take-over and the ledger keep repeated rows out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from starrocks_txn_sink.clock import Clock, Deadline, SystemClock
from starrocks_txn_sink.errors import Outage, StarRocksSinkError
from starrocks_txn_sink.protocol.label import Backoff
from starrocks_txn_sink.sink.failures import is_outage_code, text_of
from starrocks_txn_sink.telemetry.events import Event, Listener
from starrocks_txn_sink.writer.messages import LaneReport, read_envelope

Result = TypeVar("Result")

LOG_SECONDS: Final = 30.0
_BACKOFF: Final = Backoff(first=0.5, longest=10.0)
_SLICE: Final = 1.0  # seconds between two looks at the query: a stop must not wait for the backoff


def outage_of(error: BaseException) -> tuple[str, LaneReport | None] | None:
    """Code of an error that a later try may not meet, and the failed lane's report if there is one; None for others.

    Spark gives the driver only the text of a lane's error, so its code comes from the report in that text.
    """
    if isinstance(error, StarRocksSinkError):
        return (error.code, read_envelope(text_of(error))) if isinstance(error, Outage) else None
    report = read_envelope(text_of(error))
    return (report.error, report) if report is not None and is_outage_code(report.error) else None


def wait_out(
    write: Callable[[], Result],
    place: Mapping[str, Any],
    seconds: float,
    emit: Listener,
    stopped: Callable[[], bool],
    clock: Clock | None = None,
) -> Result:
    """Call `write` until it meets no outage; its last error after `seconds`, or once the query is `stopped`.

    Emits `outage.met` for each failed try, `outage.waiting` at the first one and then about every LOG_SECONDS, and
    `outage.ended`, all with `place`, the `code` and the `seconds` since the first failure.
    """
    clock = clock or SystemClock()
    deadline, rng = Deadline.after(seconds, clock), random.Random()
    began, next_line = math.inf, 0.0
    tries = 0
    while True:
        try:
            result = write()
        except Exception as error:
            met = outage_of(error)
            if met is None or deadline.expired() or stopped():
                raise
            code, report = met
            began = min(began, clock.monotonic())
            fields = {**place, "code": code, "seconds": clock.monotonic() - began}
            emit(Event("outage.met", {**fields, "report": report}))
            if fields["seconds"] >= next_line:
                emit(Event("outage.waiting", fields))
                next_line = fields["seconds"] + LOG_SECONDS
            pause = Deadline.after(_BACKOFF.seconds(tries, rng), clock)
            while not pause.expired():
                clock.sleep(min(_SLICE, pause.remaining()))
                if stopped():
                    raise
            tries += 1
        else:
            if tries:
                emit(Event("outage.ended", {**place, "seconds": clock.monotonic() - began}))
            return result
