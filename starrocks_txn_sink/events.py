"""Every event of the package: its name, a noun and a verb, and the level of its log line.

`telemetry.Event` accepts no other name. docs/operations/logs.md says what each one means and which logger writes it; a
test compares it with this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class EventKind:
    """An event: `level` of its log line, None for events that only listeners and metrics get.

    A warning or error that repeats is written once in `telemetry.REPEAT_SECONDS`, unless it is `unlimited`, because
    each one names another loss.
    """

    level: int | None
    name: str
    unlimited: bool = False


def _kinds(level: int | None, names: str, *, unlimited: bool = False) -> Iterable[EventKind]:
    return (EventKind(level, name, unlimited) for name in names.split())


_ALL: Final = (
    *_kinds(logging.ERROR, "batch.failed", unlimited=True),
    *_kinds(logging.ERROR, "integrity.violated"),
    *_kinds(
        logging.WARNING,
        """
        rows.dead_lettered transaction.abandoned transaction.without_begin transaction.timed_out transaction.waiting
        transaction.quarantined transaction.trusted source.repeated transaction.late truncate.ignored change.skipped
        changes.skipped option.without_effect
        """,
        unlimited=True,
    ),
    *_kinds(
        logging.WARNING,
        """
        step.failed outage.waiting schema.waiting audit.failed label.unlisted replay.skipping columns.unknown
        columns.gone columns.unfilled loops.missing deletes.unfilled rules.unmatched lanes.repeated rows.sorted
        source.slow source.uncommitted job.changed events.sorted events.malformed transaction.open query.stop_hangs
        kafka.waiting topics.unknown lineage.lost metrics.broken begins.unreached turns.unreachable turns.ended
        commit.waited partitions.closed snapshot.repeated freshness.missed
        """,
    ),
    *_kinds(
        logging.INFO,
        """
        session.opened batch.completed batch.stopped schema.changed schema.waited snapshot.progressed snapshot.ended
        outage.ended columns.waiting columns.unnamed compact.skipped round.ended assembler.planned query.restarting
        retractions.swallowed retractions.waiting freshness.met bound.reached job.held archive.started archive.ended
        """,
    ),
    *_kinds(
        logging.DEBUG,
        """
        sink.made batch.started batch.traceback receipt.collected lane.reported assembler.counted step.ended
        outage.met checkpoint.not_found proof.not_read proof.not_written
        """,
    ),
    *_kinds(
        None,
        """
        step.started step.completed request.started request.completed request.failed query.started query.progressed
        query.idle query.ended source.lagged source.unknown server.measured threads.measured tables.verified
        tablets.measured commits.paced
        """,
    ),
)

EVENTS: Final[Mapping[str, EventKind]] = {kind.name: kind for kind in _ALL}
"""Each event by its name."""
