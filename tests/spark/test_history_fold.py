"""A table is the fold of its history, at any position: with deletes, changed keys, unchanged values and TRUNCATE."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from starrocks_txn_sink import TableRules
from starrocks_txn_sink.compiled.library import PURE
from tests.support.debezium_shop import DebeziumShop, end, insert

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

COLUMNS = "part VARCHAR(40) NOT NULL, position BIGINT NOT NULL, seq INT NOT NULL, note VARCHAR(40), big VARCHAR(99)"
TABLE = "CREATE TABLE shop.soft ({}) PRIMARY KEY (part, position, seq) DISTRIBUTED BY HASH(part)"
LOG = (
    "CREATE TABLE shop.log (_source_partition VARCHAR(99), _position BIGINT, _seq BIGINT, _txn_id VARCHAR(99), "
    "_commit_time DATETIME, _op VARCHAR(16), part VARCHAR(40), position BIGINT, seq INT, note VARCHAR(40), "
    "big VARCHAR(99), _unchanged JSON) "
    "DUPLICATE KEY (_source_partition, _position, _seq) DISTRIBUTED BY HASH(_position)"
)
LARGE = "__debezium_unavailable_value"
TRUNCATE = "t"

Rows = dict[int, tuple[str, str]]
"""Values by key."""
Change = dict[str, Any]


class Source:
    """A table that changes at random; `states` has its rows after each source transaction, by position."""

    def __init__(self, seed: int) -> None:
        self.rng, self.rows, self.txn = Random(seed), Rows(), 0
        self.last: Rows = {}  # of each key that there was, also of deleted ones
        self.states: dict[int, tuple[Rows, Rows]] = {}

    def transaction(self) -> list[Change]:
        self.txn += 1
        changes: list[Change] = []
        for _ in range(self.rng.randint(1, 5)):
            changes += self._change(len(changes) + 1)
        self.states[1000 * self.txn + 999] = (dict(self.rows), dict(self.last))
        return [*changes, end(self.txn, len(changes))]

    def _change(self, order: int) -> list[Change]:
        key, values = self.rng.randint(1, 6), (f"n{self.txn}-{order}", f"b{self.txn}-{order}")
        if key not in self.rows:
            return [self._write(order, "c", key, values)]
        kind = self.rng.choice(("update", "unchanged", "delete", "key", "truncate"))
        if kind == "update":
            return [self._write(order, "u", key, values)]
        if kind == "unchanged":
            return [self._write(order, "u", key, (values[0], self.rows[key][1]), big=LARGE)]
        if kind == "truncate":
            return [insert(self.txn, order) | {"op": TRUNCATE, "after": None}]
        deleted = self._delete(order, key)
        return [deleted] if kind == "delete" else [deleted, self._write(order + 1, "c", self.rng.randint(7, 9), values)]

    def _write(self, order: int, op: str, key: int, values: tuple[str, str], **fields: str) -> Change:
        self.rows[key] = self.last[key] = values
        row = {"position": key, "seq": 1, "note": values[0], "big": values[1], **fields}
        return insert(self.txn, order, **row) | {"op": op}

    def _delete(self, order: int, key: int) -> Change:
        del self.rows[key]
        row = {"part": "shop", "position": key, "seq": 1, "note": None, "big": None}
        return insert(self.txn, order) | {"op": "d", "before": row, "after": None}


def fold(history: list[tuple[Any, ...]], upto: int) -> tuple[Rows, Rows]:
    """The rows, and the last values of each key, that a history gives up to a position."""
    rows, last = Rows(), Rows()
    for position, _, op, key, note, big, unchanged in history:
        if position > upto:
            continue
        if op == "d":
            rows.pop(key, None)
        else:
            unchanged_columns = json.loads(unchanged) if unchanged else []
            rows[key] = last[key] = (note, last[key][1] if "big" in unchanged_columns else big)
    return rows, last


@pytest.mark.parametrize(
    "deletes", [*(pytest.param(name, marks=pytest.mark.deep) for name in ("apply", "ignore")), "mark"]
)
def test_a_table_is_the_fold_of_its_history(
    debezium: DebeziumShop, deletes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other run is without the compiled loops: what one has written the next one reads again."""
    debezium.ask(TABLE.format(COLUMNS + (", _deleted BOOLEAN" if deletes == "mark" else "")))
    debezium.ask(LOG)
    rules = [TableRules(tables="soft", deletes=deletes, history="log")]
    source = Source(len(deletes))
    settings: dict[str, Any] = {"tables": {"public.items": "soft"}, "rules": rules, "on_truncate": "ignore"}
    for part in range(3):
        monkeypatch.setitem(debezium.spark.sparkContext.environment, PURE, "01"[part % 2])
        for _ in range(3):
            debezium.put(*(change for _ in range(6) for change in source.transaction()))
        debezium.go(**settings)
        debezium.forget_commit(3 * part + 2)  # the driver ended after StarRocks' commit
        select = "SELECT _position, _seq, _op, position, note, big, _unchanged FROM shop.log ORDER BY 1, 2"
        history = [(*row[:6], None if row[6] is None else str(row[6])) for row in debezium.ask(select)]
        assert len({row[:2] for row in history}) == len(history)
        for position, (rows, last) in source.states.items():
            assert fold(history, position) == (rows, last), position
        select = "position, note, big" + (", _deleted" if deletes == "mark" else "")
        table = debezium.ask(f"SELECT {select} FROM shop.soft ORDER BY 1")
        rows, last = fold(history, 1 << 62)
        rows_shown = rows if deletes == "apply" else last
        assert table == [
            (key, *values, *((key not in rows,) if deletes == "mark" else ()))
            for key, values in sorted(rows_shown.items())
        ]
