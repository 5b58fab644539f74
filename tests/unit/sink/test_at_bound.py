"""What the driver says of a job that stands at a bound: by its lanes, and by what the ledger has."""

from __future__ import annotations

import pytest

from starrocks_txn_sink.assembler.rules.spill import CarriedState
from starrocks_txn_sink.assembler.verified.bounds import BOUND_REACHED
from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.protocol.bound import EXACT, NEAR
from starrocks_txn_sink.protocol.ledger import Position
from starrocks_txn_sink.sink.events_writer import at_bound
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import CarryOver


@pytest.mark.parametrize(
    ("last", "snapshots", "visible", "expected"),
    [
        (40, 1, 40, EXACT),
        (40, 1, None, EXACT),
        (40, 1, 50, NEAR),  # another driver wrote it, before the bound was known, and published nothing
        (None, 2, 2, EXACT),  # units of a snapshot, in front of all transactions
        (None, 2, 50, NEAR),
    ],
)
def test_what_is_visible_behind_the_bound_is_not_the_snapshots(
    last: int | None, snapshots: int, visible: int | None, expected: str
) -> None:
    state = VerifiedState(last_position=last, snapshots=snapshots)
    notices = (Event("truncate.ignored", {}), Event(BOUND_REACHED, {"source": "shop", "how": EXACT}))
    carried = CarryOver({"shop": CarriedState(state)}, notices=notices)
    positions = {} if visible is None else {"shop": Position("shop", visible, "c", 1, "l", 1, "")}
    notice = at_bound(carried, positions)
    assert notice is not None
    assert notice.fields == {"source": "shop", "how": expected}


def test_without_the_lanes_notice_the_job_does_not_stand() -> None:
    assert at_bound(CarryOver({"shop": CarriedState(VerifiedState())}), {}) is None
