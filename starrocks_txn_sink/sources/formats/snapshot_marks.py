"""The marks of Debezium's first snapshot in a batch of change events: `source.snapshot` of rows with the op `r`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.verified.intake import SNAPSHOT
from starrocks_txn_sink.protocol.snapshots import MORE, ONE, OVER, READING, SPREAD, Marks, whole

_FIRST: Final = "first"  # of all tables
_LAST: Final = "last"
_MARKS: Final = pa.array([_FIRST, "first_in_data_collection", "true", "last_in_data_collection", _LAST])
"""Not `incremental`: such a snapshot runs beside changes, chunk by chunk, and has no last row."""


def marks_of(
    operation: pa.Array,
    snapshot: pa.Array,
    connector: pa.Array,
    collection: pa.Array,
    table: pa.Array,
    partition: pa.Array | None = None,
) -> Marks:
    """The marks; a row without a StarRocks `table` counts only as the first or the last one of all.

    A row of another `partition` of Kafka than 0 shows that the topic has several; one that is no number says nothing.
    """
    snapshots = pc.fill_null(pc.equal(operation, SNAPSHOT), False)
    if not snapshots.true_count:
        return {}
    snapshots = pc.and_(snapshots, pc.is_in(snapshot, value_set=_MARKS))
    spread = pa.nulls(len(operation), pa.bool_())
    if partition is not None and pa.types.is_integer(partition.type):
        spread = pc.greater(partition, 0)
    names = pc.binary_join_element_wise(connector, collection, ":")
    groups = (
        pa.table(
            {"connector": connector, "name": names, "mark": snapshot, "written": table.is_valid(), "spread": spread}
        )
        .filter(snapshots)
        .group_by(["connector", "name", "mark", "written", "spread"], use_threads=False)
        .aggregate([([], "count_all")])
    )
    counts: dict[str, dict[str, int]] = {}
    marks: dict[str, str] = {}
    spread_names = {row["name"] for row in groups.to_pylist() if row["spread"] and row["written"]}
    for row in groups.to_pylist():
        if row["connector"] is None:
            continue
        if row["written"]:
            of_table = counts.setdefault(row["name"], {})
            of_table[row["mark"]] = of_table.get(row["mark"], 0) + row["count_all"]
        if row["mark"] in (_FIRST, _LAST):
            everything = whole(row["connector"])
            marks[everything] = OVER if marks.get(everything) == OVER or row["mark"] == _LAST else READING
    return marks | {name: SPREAD if name in spread_names else _mark(of_table) for name, of_table in counts.items()}


def _mark(counts: dict[str, int]) -> str:
    """The mark of a table, from its rows in the batch by `source.snapshot`."""
    if any(mark.startswith(_LAST) for mark in counts):
        return OVER
    if not any(mark.startswith(_FIRST) for mark in counts):
        return MORE
    return ONE if counts == {_FIRST: 1} else READING
