"""The highest event time that can be read in each partition, where Kafka itself does not tell.

Kafka tells the row with the highest event time of a whole log. If that row belongs to a Kafka transaction that is still
open, it tells a reader of committed rows nothing, although rows before the transaction can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starrocks_txn_sink.sources.balanced_plan import Place

Times = Mapping[Place, int]
TimesFrom = Callable[[Times], Mapping[Place, int | None]]
"""The event time of the first row that can be read and is not older than the given one; None where there is none."""


def newest_readable(low: Times, high: Times, times_from: TimesFrom) -> dict[Place, int]:
    """For the places of `high`, whose rows can be read up to `low` at least and up to `high` at most: by bisection, all
    places in one question. Where times do not ascend within a partition the result may be lower than the truth."""
    found, bound = dict(low), dict(high)
    while True:
        asked = {place: (found[place] + bound[place] + 1) // 2 for place in bound if found[place] < bound[place]}
        if not asked:
            return found
        for place, time in times_from(asked).items():
            if time is None:
                bound[place] = asked[place] - 1
            else:
                found[place] = min(time, bound[place])
