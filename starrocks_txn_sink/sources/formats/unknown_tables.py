"""Dead letters of rows whose table no rule knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.assembler.rules import model
from starrocks_txn_sink.assembler.verified import intake as v

_DELETE: Final = "d"
_NAMES: Final = (model.TXN_ID, v.TOTAL_ORDER, v.COLLECTION, model.POSITION, "reason", model.OP, "content")


def with_dead_letters(events: Mapping[str, pa.Array], unknown: pa.Array) -> dict[str, pa.Array]:
    """The columns op and row with a dead letter in place of each row of an unknown table."""
    if not unknown.true_count:
        return {}
    reason = pa.repeat(pa.scalar("unknown table"), len(unknown))
    columns = {**events, "content": events[model.ROW], "reason": reason}
    lost_rows = pa.table({name: columns[name] for name in _NAMES if name in columns}).filter(unknown).to_pylist()
    letters = [_letter(fields) for fields in lost_rows]
    deletes = pc.and_(unknown, pc.equal(events[model.OP], _DELETE))
    return {
        model.OP: pc.if_else(deletes, "c", events[model.OP]),  # the dead letter of a delete is itself an insert
        model.ROW: pc.replace_with_mask(events[model.ROW], unknown, pa.array(letters, pa.string())),
    }


def _letter(fields: Mapping[str, Any]) -> str:
    return orjson.dumps({name: value for name, value in fields.items() if value is not None}).decode()
