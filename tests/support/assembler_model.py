"""The assembler's rules once more, as the plainest serial program: one event after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from starrocks_txn_sink.assembler.rules import model

SCHEMA = pa.schema([*model.EVENT_FIELDS, ("source_ts", pa.int64())])


@dataclass(frozen=True, order=True)
class Ev:
    """One event; `row` doubles as the content that is followed through."""

    position: int
    kind: str
    txn: str | None = "t"
    row: str | None = None

    def as_row(self) -> dict[str, Any]:
        data = self.kind.upper().endswith("DATA")
        return {
            "position": self.position,
            "type": self.kind,
            "txn_id": self.txn,
            "database": "shop" if data and self.position % 3 else None,
            "table": f"t{self.position % 2}" if data else None,
            "op": "d" if data and self.position % 5 == 0 else None,
            "row": self.row if self.row is not None or not data else f'{{"k": {self.position}, "s": "ü\\u0000"}}',
            "source_ts": self.position * 10,
        }


def table(events: list[Ev]) -> pa.Table:
    return pa.Table.from_pylist([event.as_row() for event in events], schema=SCHEMA)


@dataclass
class Model:
    """Serial replay. `refused` is set instead of raising; `open` maps a key to its rows, None for a dropped one."""

    interleaved: bool = False
    missing_begin: str = "fail"
    out: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str | None, tuple[str | None, list[Ev] | None]] = field(default_factory=dict)
    last: int | None = None
    refused: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, **more: int) -> None:
        for name, n in more.items():
            self.counts[name] = self.counts.get(name, 0) + n

    def feed(self, events: list[Ev]) -> None:
        for event in sorted(events, key=lambda e: e.position):
            if not self.refused:
                self.one(event)

    def one(self, event: Ev) -> None:
        kind = event.kind.upper().removeprefix("TXN_")
        self.count(events=1, data=kind == "DATA")
        if self.last is not None and event.position <= self.last:
            self.count(repeats=1, repeated_rows=kind == "DATA")
            return
        self.last = event.position
        key = event.txn if self.interleaved else None
        if kind == "BEGIN":
            self.begin(key, event)
        elif key not in self.open and self.missing_begin == "fail":
            self.refused = True
        else:
            self.go_on(key, kind, event)

    def begin(self, key: str | None, event: Ev) -> None:
        _, rows = self.open.get(key, (None, None))
        if rows is not None:
            self.count(abandoned=1, abandoned_rows=len(rows))
        self.open[key] = (event.txn, [])

    def go_on(self, key: str | None, kind: str, event: Ev) -> None:
        if key not in self.open:
            self.count(dropped=self.missing_begin == "drop")
            self.open[key] = (event.txn, None if self.missing_begin == "drop" else [])
        owner, rows = self.open[key]
        if owner is not None and event.txn is not None and owner != event.txn:
            self.refused = True
            return
        if kind != "DATA":
            del self.open[key]
            self.end(event, owner, rows)
        elif rows is None:
            self.count(dropped_rows=1)
        else:
            rows.append(event)

    def end(self, event: Ev, owner: str | None, rows: list[Ev] | None) -> None:
        if rows is None:
            return
        if not rows:
            self.count(empty=1)
            return
        self.count(released=1, rows=len(rows))
        for seq, row in enumerate(rows):
            source = row.as_row()
            self.out.append(
                {
                    "position": event.position,
                    "seq": seq,
                    "database": source["database"],
                    "table": source["table"],
                    "op": source["op"],
                    "row": source["row"],
                    "transaction_end": seq == len(rows) - 1,
                    "txn_id": owner,
                    "source_ts": source["source_ts"],
                }
            )
