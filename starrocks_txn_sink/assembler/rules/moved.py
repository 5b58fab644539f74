"""Released updates that have moved a row to another key: a delete of the former row, and behind it the new one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.rules.intake import Mask, one_array
from starrocks_txn_sink.rows.columns import FORMER
from starrocks_txn_sink.rows.json_members import members

_MARK: Final = f'"{FORMER}":'
_DELETE: Final = "d"


def without_former(rows: pa.Table, partitions: pa.Array, tables: Collection[str]) -> tuple[pa.Table, pa.Array]:
    """The rows and their source partitions, in front of each row of `tables` with a FORMER one the delete of that.

    What rules have put in front of a row, such as its source's table, holds for its former one, too. The last row of a
    source transaction still ends it.
    """
    if not tables:
        return rows, partitions
    row = one_array(rows[model.ROW])
    of_tables = pc.is_in(one_array(rows[model.TABLE]), value_set=pa.array([*tables]))
    mask: Mask = np.zeros(len(row), dtype=bool)
    if of_tables.true_count:
        marked = pc.and_(of_tables, pc.match_substring(row, _MARK))
        mask = pc.fill_null(marked, False).to_numpy(zero_copy_only=False)
    if not mask.any():
        return rows, partitions
    at = np.flatnonzero(mask)
    pairs = [_parted(text) for text in row.take(pa.array(at)).to_pylist()]
    deletes = rows.take(pa.array(at))
    for name, column in (
        (model.ROW, pa.array([former for former, _ in pairs], row.type)),
        (model.OP, pa.array([_DELETE] * len(at), pa.string())),
        (model.TRANSACTION_END, pa.array([False] * len(at))),
    ):
        deletes = _with(deletes, name, column)
    texts = pa.array([text for _, text in pairs], row.type)
    rows = _with(rows, model.ROW, pc.replace_with_mask(row, pa.array(mask), texts))
    numbers = np.arange(rows.num_rows)
    order = np.argsort(np.concatenate([2 * numbers + 1, 2 * at]))
    all_rows = pa.concat_tables([rows, deletes]).take(pa.array(order))
    return all_rows, partitions.take(pa.array(np.concatenate([numbers, at])[order]))


def _parted(text: str) -> tuple[str, str]:
    """The former row, with the members in front of it, and the row itself."""
    start = text.index(_MARK)
    heads, former = text[:start], members(text)[FORMER][1]
    behind = text.index(former, start) + len(former) + 1
    return f"{heads}{former[1:]}", f"{heads}{text[behind:]}"


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    number = rows.schema.get_field_index(name)
    return rows.set_column(number, name, column)
