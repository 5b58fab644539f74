"""New events made ready for the rules: checked, BEGINs and what belongs to settled transactions taken out."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.verified import schema as v
from starrocks_txn_sink.assembler.verified.counters import VerifiedCounters
from starrocks_txn_sink.assembler.verified.state import VerifiedState, remembered
from starrocks_txn_sink.errors import InputError


@dataclass(frozen=True, slots=True)
class VerifiedIntake:
    """Rows and ENDs that count; `late` are rows and ENDs of transactions that were given up before."""

    events: pa.Table
    late: pa.Table
    settled: tuple[str, ...]
    counters: VerifiedCounters


def take_in(state: VerifiedState, events: pa.Table, source: str) -> VerifiedIntake:
    """Check `events` (schema.EVENTS); InputError names what is missing and where, never a row's content."""
    _check(events, source)
    marker = events[v.STATUS].is_valid()
    data, snapshots = (
        _rows(events),
        int(pc.sum(pc.and_(pc.invert(marker), events[schema.TXN_ID].is_null())).as_py() or 0),
    )
    fresh = events.filter(pc.fill_null(pc.not_equal(events[v.STATUS], v.BEGIN), True))
    again = fresh.filter(_repeated_end(fresh, state.last_position))[schema.TXN_ID].to_pylist()
    settled = remembered(state.settled, again)
    known = pc.is_in(fresh[schema.TXN_ID], value_set=pa.array(settled, pa.string()), skip_nulls=True)
    given_up = pc.is_in(fresh[schema.TXN_ID], value_set=pa.array(state.quarantined, pa.string()), skip_nulls=True)
    given_up = pc.and_(given_up, pc.invert(known))
    late, repeats = fresh.filter(given_up), fresh.filter(known)
    counters = VerifiedCounters(
        events=events.num_rows,
        data=data - snapshots,
        snapshot_rows=snapshots,
        repeats=repeats.num_rows,
        repeated_rows=_rows(repeats),
        late=late.num_rows,
        late_rows=_rows(late),
    )
    return VerifiedIntake(fresh.filter(pc.invert(pc.or_(known, given_up))), late, settled, counters)


def _rows(events: pa.Table) -> int:
    return int(events[v.STATUS].null_count)


def _repeated_end(events: pa.Table, last_position: int | None) -> pa.ChunkedArray:
    """ENDs at or below the last position handed on."""
    if last_position is None:
        return pa.chunked_array([pa.repeat(False, events.num_rows)])
    below = pc.fill_null(pc.less_equal(events[schema.POSITION], last_position), False)
    return pc.and_(events[v.STATUS].is_valid(), below)


def _check(events: pa.Table, source: str) -> None:
    marker, alone = events[v.STATUS].is_valid(), events[schema.TXN_ID].is_null()
    row = pc.invert(marker)
    read = pc.fill_null(pc.equal(events[schema.OP], v.SNAPSHOT), False)
    strange = pc.and_(marker, pc.invert(pc.is_in(events[v.STATUS], value_set=pa.array([v.BEGIN, v.END]))))
    metadata = "Set provide.transaction.metadata=true at the connector, and give the transaction topic whole."
    for wrong, what, hint in (
        (pc.and_(row, pc.and_(alone, pc.invert(read))), "A change has no transaction", metadata),
        (pc.and_(marker, alone), "A transaction marker has no id", metadata),
        (strange, "A transaction marker is neither BEGIN nor END", metadata),
        (pc.and_(row, _missing(events, v.TOTAL_ORDER, alone)), "A change has no total_order", metadata),
        (pc.and_(row, _missing(events, v.COLLECTION, alone)), "A change does not name its table", metadata),
        (pc.and_(marker, events[v.SEQUENCE].is_null()), "A transaction marker has no sequence", "Give its offset."),
        (
            pc.and_(row, _missing(events, schema.POSITION, alone)),
            "A change has no position",
            "Only the connectors for PostgreSQL (source.lsn), MySQL and MariaDB (source.file, source.pos) are known.",
        ),
    ):
        at = pc.index(wrong, True).as_py()
        if at >= 0:
            raise InputError(
                f"{what}.",
                hint=hint,
                source=source,
                txn_id=events[schema.TXN_ID][at].as_py(),
                collection=events[v.COLLECTION][at].as_py(),
                position=events[schema.POSITION][at].as_py(),
            )


def _missing(events: pa.Table, column: str, alone: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.and_(events[column].is_null(), pc.invert(alone))
