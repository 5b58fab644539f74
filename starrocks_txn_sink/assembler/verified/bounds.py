"""Which source transactions are behind a bound (`protocol.bound`), and are not released while it holds.

Released are those in front of the first one that the snapshot does not show, in the order of the commits. This is what
the snapshot shows, unless it shows a later one, too: PostgreSQL writes a commit into its log before others see it, and
two that are near may become visible in the other order. So the bound is *exact* only if no such one can come: one that
the snapshot does not show is behind the position that was read behind the snapshot, and until then there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from starrocks_txn_sink.assembler.rules.intake import Indexes, Mask
from starrocks_txn_sink.assembler.verified.gtids import by_server
from starrocks_txn_sink.assembler.verified.tally import Tally, TransactionClasses
from starrocks_txn_sink.protocol.bound import EXACT, NEAR, Bound
from starrocks_txn_sink.protocol.source_places import BINLOG, LSN

BOUND_REACHED: Final = "bound.reached"
"""Notice that there is something behind the bound, with its `source`; `how` is EXACT or NEAR."""
_NUMBERS: Final = 1 << 32
"""PostgreSQL's numbers of transactions in its log; those of a snapshot have an epoch in front."""


def cut(
    bound: Bound, counts: Tally, classes: TransactionClasses, settled: Sequence[str]
) -> tuple[TransactionClasses, str]:
    """The classes without what is behind the bound, and whether that is EXACT or NEAR; "" where nothing is behind it.

    What is cut off is as if its END had not come. One of the `settled` may be behind the bound, too: PostgreSQL shows a
    commit to nobody before its synchronous standby has it, but to a connector.
    """
    released = classes.released
    unseen, beyond = behind(bound, counts.ids.take(pa.array(released)), counts.position[released])
    if not unseen.any():
        return classes, ""
    first = int(unseen.argmax())
    before, _ = behind(bound, pa.array(settled, pa.string()), np.zeros(len(settled), dtype=np.int64))
    exact = bool(unseen[first:].all() and beyond[first:].any() and not before.any())
    upto = min(classes.upto, float(counts.commit[released[first]]))
    return replace(classes, released=released[:first], upto=upto), EXACT if exact else NEAR


def behind(bound: Bound, ids: pa.Array, positions: Indexes) -> tuple[Mask, Mask]:
    """Masks of the transactions that the snapshot does not show, and of those that are behind the position.

    `positions` are the source's own. Where a transaction has a GTID, and the bound has some, they decide: a place in a
    binlog is of one server's files.
    """
    if LSN in bound.numbers:
        return ~_shown(bound.snapshot, ids), positions > bound.numbers[LSN]
    beyond = positions >= bound.numbers[BINLOG] if BINLOG in bound.numbers else np.zeros(len(ids), dtype=bool)
    domains: dict[str, int] = {}
    for server, number in bound.numbers.items():
        if server != BINLOG:
            domains[_domain(server)] = max(number, domains.get(_domain(server), 0))
    for server, places, numbers in by_server(ids) if domains else ():
        beyond[places] = numbers > domains.get(_domain(server), 0)
    return beyond, beyond


def _domain(server: str) -> str:
    """The domain of a server of MariaDB: its numbers ascend, whichever of its servers gives them."""
    return server.partition("-")[0]


def _shown(snapshot: str, ids: pa.Array) -> Mask:
    """Mask of PostgreSQL's transactions that a snapshot (xmin:xmax:xip, …) shows."""
    first, end, running = snapshot.split(":")
    start, stop = int(first), int(end)
    numbers = np.array([int(txn_id) if txn_id.isdecimal() else stop for txn_id in ids.to_pylist()], dtype=np.int64)
    # The distance from the snapshot's first one that runs; half of the numbers are behind it, and half in front.
    after = (numbers - start) % _NUMBERS
    after[after >= _NUMBERS // 2] -= _NUMBERS
    in_progress = np.array([int(number) - start for number in running.split(",") if number], dtype=np.int64)
    mask: Mask = (after < stop - start) & ~np.isin(after, in_progress)
    return mask
