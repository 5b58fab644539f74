"""How far a source's own log is released, for applications that ask whether their commit is visible."""

from __future__ import annotations

from starrocks_txn_sink.assembler.verified.intake import VerifiedState
from starrocks_txn_sink.protocol.source_places import BINLOG, GIVEN_UP, LSN, Places


def places(state: VerifiedState) -> Places:
    """The numbers by log up to which a source's transactions are released or given up; none before the first one.

    The ids of transactions say of which log the positions are. Positions of a source with GTIDs say nothing: another
    primary has files of its own, and the released positions go on where those go back.
    """
    given_up = {GIVEN_UP: len(state.quarantined)} if state.quarantined else {}
    return {**_logs(state), **given_up}


def _logs(state: VerifiedState) -> Places:
    numbers = state.past.gtids.numbers
    if numbers:
        return {server: ranges[-1][1] for server, ranges in numbers.items()}
    if state.last_position is None or not state.settled.ids:
        return {}
    newest = state.settled.ids[-1]
    if newest.isdecimal():  # PostgreSQL's number of the transaction
        return {LSN: state.last_position}
    return {BINLOG: state.last_position} if "pos=" in newest else {}
