"""Rows whose `_source_table` is no table of this source: another job's, or nobody's. They are deleted by name alone.

The job writes no such row, but a table of the name may come to the source at any time. So the DELETE belongs into a
hold of the job, in which the file still writes no table of the name.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from starrocks_txn_ops.verify.held import Held, Holder
from starrocks_txn_ops.verify.mapping import Comparison
from starrocks_txn_ops.verify.repair import LOST, NO_MARK, ROUNDS
from starrocks_txn_ops.verify.rules.core import EXTRA, Verdict
from starrocks_txn_ops.verify.rules.report import Mended, TableReport
from starrocks_txn_ops.verify.rules.statements import Statement
from starrocks_txn_ops.verify.sides import Ask
from starrocks_txn_sink.errors import Fenced, QueryRefused
from starrocks_txn_sink.options.table_rules import DELETED, SOURCE_TABLE
from starrocks_txn_sink.protocol.ledger import quote

NO_TABLE: Final = "no table of the source"
KEPT: Final = "perhaps another job's, and --delete-others does not name them"
AGAIN: Final = "they came again: somebody else writes them"
OURS: Final = "the source has a table of their name by now"
_HOW: Final = "They may be another job's. --repair --delete-others PATTERN deletes those whose name it matches."
_COLUMN: Final = quote(SOURCE_TABLE)
_NAMES: Final = 400  # in one statement
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Others:
    """How many rows a table has of each name that is none of the source's tables; None: of rows without a name.

    `relation` is the table, quoted. It gets the rows of `collections`; `part` compares one of them.
    """

    relation: str
    collections: Sequence[str]
    part: Comparison
    ask: Ask
    rows: Mapping[str | None, int]

    @classmethod
    def of(cls, relation: str, collections: Sequence[str], part: Comparison, ask: Ask) -> Others:
        """Those that are in the table now. Raises what `ask` raises."""
        sql = f"SELECT {_COLUMN}, count(*) FROM {relation} WHERE {_no_table(collections, part)} GROUP BY {_COLUMN}"
        rows = {None if name is None else str(name): int(count) for name, count in ask((sql, tuple(collections)))}
        return cls(relation, collections, part, ask, dict(sorted(rows.items(), key=lambda row: row[0] or "")))

    def report(self, shown: int) -> TableReport:
        """What is reported of them, with the first `shown` keys."""
        pairs, verdict, total = self.part.target.keys, Verdict(shown), sum(self.rows.values())
        verdict.counts[EXTRA] = total
        columns = ", ".join((_COLUMN, *(pair.target for pair in pairs)))
        where = _no_table(self.collections, self.part)
        sql = f"SELECT {columns} FROM {self.relation} WHERE {where} ORDER BY {_COLUMN} LIMIT {shown}"
        keys = self.ask((sql, tuple(self.collections))) if shown else []
        verdict.keys = {EXTRA: [tuple("NULL" if text is None else str(text) for text in key) for key in keys]}
        names = (SOURCE_TABLE, *(pair.name for pair in pairs))
        notes = (f"rows whose {SOURCE_TABLE} is {NO_TABLE}: {self._named([*self.rows])}", _HOW)
        return TableReport(self.part.table, (NO_TABLE,), names, (0, total), verdict, notes=notes)

    def plan(self, pattern: str | None) -> str:
        """What a repair would do with them, in one line."""
        chosen = self.chosen(pattern)
        what = "mark" if self.part.shape.marks else "delete"
        parts = [f"{what} the rows of {self._named(chosen)}"] if chosen else []
        if kept := [name for name in self.rows if name not in chosen]:
            parts.append(f"leave the rows of {self._named(kept)}, {KEPT}")
        return f"{NO_TABLE} -> {self.part.table}: {'; '.join(parts)}"

    def delete(self, pattern: str | None, holder: Holder, ours: Callable[[], Collection[str]]) -> Mended:
        """Delete the rows whose names `pattern` matches; `ours` says which names the source's tables have now.

        Raises StarRocksSinkError.
        """
        chosen, shape = self.chosen(pattern), self.part.shape
        due = NO_MARK if shape.marks and not shape.keyed else LOST
        reasons = {name: due if name in chosen else KEPT for name in self.rows}
        for _ in range(ROUNDS):
            if LOST in reasons.values():
                with contextlib.suppress(Fenced), holder.hold() as held:
                    self._delete(reasons, held, ours())
        rows = Others.of(self.relation, self.collections, self.part, self.ask).rows
        left = Counter[str]()
        for name, reason in reasons.items():
            left[reason] += rows.get(name, 0)
        return Mended(deleted=max(0, sum(self.rows.values()) - left.total()), left=+left)

    def _delete(self, reasons: dict[str | None, str], held: Held, ours: Collection[str]) -> None:
        """Delete the rows of the names whose reason is LOST; each gets the reason that counts if rows are left."""
        reasons |= {name: OURS for name, reason in reasons.items() if reason == LOST and name in ours}
        due = sorted(name for name, reason in reasons.items() if reason == LOST and name is not None)
        groups: list[Sequence[str | None]] = [due[start : start + _NAMES] for start in range(0, len(due), _NAMES)]
        for names in [*groups, *([None] for name, reason in reasons.items() if name is None and reason == LOST)]:
            try:
                held.delete(partial(self.ask, self._statement(names)))
            except QueryRefused as refused:
                reasons |= dict.fromkeys(names, refused.message)
            else:
                reasons |= dict.fromkeys(names, AGAIN)

    def _statement(self, names: Sequence[str | None]) -> Statement:
        """The statement that deletes or marks the rows of these names, or of [None]."""
        parameters = tuple(name for name in names if name is not None)
        which = f"{_COLUMN} IN ({', '.join(['%s'] * len(parameters))})" if parameters else f"{_COLUMN} IS NULL"
        if self.part.shape.marks:
            return f"UPDATE {self.relation} SET {quote(DELETED)} = TRUE WHERE {which}", parameters
        return f"DELETE FROM {self.relation} WHERE {which}", parameters

    def chosen(self, pattern: str | None) -> list[str | None]:
        """The names that the expression matches; rows without a name match as an empty one."""
        return [name for name in self.rows if pattern is not None and re.fullmatch(pattern, name or "", re.ASCII)]

    def _named(self, names: Sequence[str | None]) -> str:
        shown = ", ".join(f"{'NULL' if name is None else name} ({self.rows[name]})" for name in names[:_SHOWN])
        return f"{shown} and {len(names) - _SHOWN} more names" if len(names) > _SHOWN else shown


def _no_table(collections: Sequence[str], part: Comparison) -> str:
    """The condition for rows of none of the source's tables; those that are marked as deleted are none."""
    alive = f" AND coalesce({quote(DELETED)}, FALSE) = FALSE" if part.shape.marks else ""
    return f"({_COLUMN} NOT IN ({', '.join(['%s'] * len(collections))}) OR {_COLUMN} IS NULL){alive}"
