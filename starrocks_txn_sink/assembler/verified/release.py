"""Rows of settled transactions as Arrow tables: verified ones in commit order, given up ones as dead letters."""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler import schema
from starrocks_txn_sink.assembler.segments import spread
from starrocks_txn_sink.assembler.verified import schema as v
from starrocks_txn_sink.assembler.verified.tally import Ints, Tally


def released(events: pa.Table, found: Tally, transactions: Ints, before: Ints) -> pa.Table:
    """The rows of verified `transactions`, in that order; a snapshot's rows `before` in front of the first."""
    lengths = found.count[transactions]
    lengths[:1] += len(before)
    places = np.concatenate([before, found.rows[spread(found.first[transactions], found.count[transactions])]])
    return units(events, places, lengths, found.position[transactions], found.ids.take(pa.array(transactions)))


def units(events: pa.Table, places: Ints, lengths: Ints, positions: Ints, ids: pa.Array) -> pa.Table:
    """The rows at `places` as whole units (schema.RELEASED), rows without a table left out.

    Unit i has the next `lengths[i]` places, `positions[i]` and `ids[i]`.
    """
    kept = events[schema.TABLE].is_valid().to_numpy()[places]
    unit = np.repeat(np.arange(len(lengths)), lengths)[kept]
    rows = events.select(list(schema.PAYLOAD)).take(pa.array(places[kept]))
    return _marked(rows, unit, positions, ids)


def _marked(rows: pa.Table, unit: Ints, positions: Ints, ids: pa.Array) -> pa.Table:
    starts = np.flatnonzero(np.diff(unit, prepend=-1))
    lengths = np.diff(np.append(starts, len(unit)))
    end = np.zeros(len(unit), dtype=bool)
    end[starts + lengths - 1] = True
    marks = {
        schema.POSITION: pa.array(positions[unit]),
        schema.SEQ: pa.array(np.arange(len(unit), dtype=np.int64) - np.repeat(starts, lengths)),
        schema.TRANSACTION_END: pa.array(end),
        schema.TXN_ID: ids.take(pa.array(unit)),
    }
    return pa.table({name: marks[name] if name in marks else rows[name] for name in v.RELEASED.names})


def dead_letters(events: pa.Table, unit: int, txn_id: str, why: str, table: str) -> pa.Table:
    """The rows of `events` as one unit for the dead-letter table, one JSON object a row."""
    listed = events.select([v.TOTAL_ORDER, v.COLLECTION, schema.POSITION, schema.OP, schema.ROW]).to_pylist()
    content = [
        orjson.dumps(
            {
                "txn_id": txn_id,
                "total_order": each[v.TOTAL_ORDER],
                "collection": each[v.COLLECTION],
                "position": each[schema.POSITION],
                "reason": why,
                "op": each[schema.OP],
                "content": each[schema.ROW],
            }
        ).decode()
        for each in listed
    ]
    count = len(content)
    columns = {
        schema.POSITION: pa.repeat(pa.scalar(unit, pa.int64()), count),
        schema.SEQ: pa.array(range(count), pa.int64()),
        schema.DATABASE: pa.nulls(count, pa.string()),
        schema.TABLE: pa.repeat(pa.scalar(table), count),
        schema.OP: pa.nulls(count, pa.string()),
        schema.ROW: pa.array(content, pa.string()),
        schema.TRANSACTION_END: pa.array([place == count - 1 for place in range(count)]),
        schema.TXN_ID: pa.repeat(pa.scalar(txn_id), count),
    }
    return pa.table([columns[name] for name in v.RELEASED.names], v.RELEASED)
