"""States of running jobs, as the release before the common codec wrote them: they are read, and written the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import orjson
import pytest

from starrocks_txn_sink.assembler.rules import history
from starrocks_txn_sink.assembler.rules.history import Run
from starrocks_txn_sink.assembler.rules.model import AssemblerState, OpenTransaction, SourceState
from starrocks_txn_sink.assembler.verified.gtids import SeenGtids
from starrocks_txn_sink.assembler.verified.intake import HeldBlob, VerifiedState

FOLDER: Final = Path(__file__).parent / "recordings"
SERVER: Final = "5a1f0c3e-0000-4000-8000-00000000000a"


def recorded(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text()


@pytest.mark.parametrize("kind", [AssemblerState, VerifiedState])
def test_a_recorded_state_is_written_as_it_was_read(kind: type[SourceState]) -> None:
    text = recorded("assembler_state" if kind is AssemblerState else "verified_state")
    written = orjson.loads(kind.from_json(text).to_json())
    if kind is VerifiedState:
        assert (written["settled"].pop("time"), written["settled"].pop("ahead")) == (None, {})  # of later releases
    assert written == orjson.loads(text)


def test_the_assemblers_recorded_state_is_read_whole() -> None:
    state = AssemblerState.from_json(recorded("assembler_state"))
    assert (state.last_position, state.next_blob, state.run) == (6, 1, Run(5, 6, 2, proved=True))
    assert state.open == (OpenTransaction("t", 5, 0.0, rows=1, bytes=55, blobs=(0,)),)
    assert (history.knows_all(state.history), history.last_place(state.history)) == (True, 6)


def test_the_recorded_state_of_verified_transactions_is_read_whole() -> None:
    state = VerifiedState.from_json(recorded("verified_state"))
    assert (state.last_position, state.blobs, state.quarantined) == (5020, (HeldBlob(0, 1, 196),), ())
    assert state.settled.ids == (f"{SERVER}:13", f"{SERVER}:14", "9")
    assert len(state.settled.places) == 12
    assert {log: history.last_place(known) for log, known in state.past.histories.items()} == {SERVER: 14, "": 5020}
    assert (state.past.runs, state.past.gtids) == (
        {SERVER: Run(14, 14, 1, proved=True)},
        SeenGtids({SERVER: ((13, 14),)}),
    )


def test_ids_of_a_release_without_their_places_have_none() -> None:
    fields = orjson.loads(recorded("verified_state")) | {"settled": ["7", "8"]}
    settled = VerifiedState.from_json(orjson.dumps(fields).decode()).settled
    assert (settled.ids, settled.places) == (("7", "8"), bytes(8))
