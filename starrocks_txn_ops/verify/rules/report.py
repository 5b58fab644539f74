"""What `verify` has found, as lines and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_ops.verify.rules.core import DIFFERENT, EXTRA, MISSING, Key, Verdict
from starrocks_txn_sink.protocol.verified import Verified

EQUAL, UNEQUAL, UNSETTLED, NOT_COMPARED, SKIPPED = "equal", "different", "unsettled", "not compared", "skipped"
REPAIRED: Final = "repaired"
_LABELS: Final = 3
_KINDS: Final = (MISSING, EXTRA, DIFFERENT)


@dataclass(frozen=True, slots=True)
class Mended:
    """What a repair has done with a table's keys that were found different.

    They are equal now, but those that are `left`: of each reason how many. `labels` are the StarRocks transactions,
    `added` the columns that the table had lost.
    """

    written: int = 0
    deleted: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table's result. `reason` says why it was not compared, `lacks` has columns that StarRocks' table lacks.

    `mended`: what a repair has done with the rows that are different. `exact`: the job stood at the position meanwhile.
    """

    table: str
    sources: tuple[str, ...]
    key: tuple[str, ...] = ()
    rows: tuple[int, int] = (0, 0)
    verdict: Verdict = field(default_factory=lambda: Verdict(0))
    lacks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    skipped: bool = False
    mended: Mended | None = None
    exact: bool = False

    @property
    def rows_different(self) -> int:
        """How many keys are different now: all that were found, or those that a repair has left."""
        rest = self.verdict.different if self.mended is None else sum(self.mended.left.values())
        return rest + self.verdict.uncounted

    @property
    def status(self) -> str:
        """EQUAL, REPAIRED, UNEQUAL, UNSETTLED, NOT_COMPARED or SKIPPED; what is proven to differ outweighs all else."""
        if self.mended is not None and not (self.mended.left or self.lacks or self.verdict.uncounted):
            return UNSETTLED if self.verdict.unsettled else REPAIRED
        if self.verdict.different or self.lacks:
            return UNEQUAL
        if self.skipped:
            return SKIPPED
        if self.reason:
            return NOT_COMPARED
        return UNSETTLED if self.verdict.unsettled else EQUAL


@dataclass(frozen=True, slots=True)
class Report:
    """All tables at one position. `passed`: the job had passed it before they were compared; else `lacks` says why.

    Tables that runs before have found equal were so at positions from `since` on.
    """

    position: str
    passed: bool
    lacks: str
    tables: Sequence[TableReport]
    left_out: Mapping[str, str] = field(default_factory=dict)
    share: float = 1.0
    since: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether this run goes on behind another one."""
        return self.since not in ("", self.position)

    @property
    def exit_code(self) -> int:
        """0: all equal; 1: something is different; 2: something could not be compared, or settled."""
        statuses = {table.status for table in self.tables} - {REPAIRED}
        if UNEQUAL in statuses:
            return 1
        return 2 if statuses & {UNSETTLED, NOT_COMPARED} or statuses == {SKIPPED} or not self.tables else 0


def summary(report: Report, time: int) -> Verified:
    """The result of all tables at a time (seconds since 1970), as the ledger keeps it; a repaired table is equal."""
    tables = Counter(table.status for table in report.tables)
    return Verified(
        time,
        tables[EQUAL] + tables[REPAIRED],
        tables[UNEQUAL],
        tables[UNSETTLED] + tables[NOT_COMPARED],
        sum(table.rows_different for table in report.tables),
        report.since or report.position,
    )


def document(report: Report) -> dict[str, Any]:
    """The report for `--json`."""
    return {
        "position": report.position,
        "since": report.since or report.position,
        "passed": report.passed,
        "lacks": report.lacks or None,
        "sample": report.share,
        "exit_code": report.exit_code,
        "tables": [_table_document(table) for table in report.tables],
        "left_out": dict(report.left_out),
    }


def _table_document(table: TableReport) -> dict[str, Any]:
    verdict = table.verdict
    return {
        "table": table.table,
        "sources": [*table.sources],
        "status": table.status,
        "exact": table.exact,
        "reason": table.reason or None,
        "source_rows": table.rows[0],
        "target_rows": table.rows[1],
        **{kind: verdict.counts[kind] for kind in _KINDS},
        "unsettled": verdict.unsettled,
        "uncounted": verdict.uncounted,
        "columns_lacking": [*table.lacks],
        "key": [*table.key],
        "keys": {kind: [[*key] for key in keys] for kind, keys in verdict.keys.items()},
        "unsettled_keys": [[*key] for key in verdict.unsettled_keys],
        "notes": [*table.notes],
        "repair": None if table.mended is None else _mended_document(table.mended),
    }


def _mended_document(mended: Mended) -> dict[str, Any]:
    rest = {reason: count for reason, count in mended.left.items() if count}
    done = {"written": mended.written, "deleted": mended.deleted, "columns_added": [*mended.added]}
    return {**done, "left": rest, "labels": [*mended.labels]}


def lines(report: Report) -> Iterator[str]:
    """The report for a terminal: the position, each table, what was left out, and a sum."""
    sample = f", a sample of {report.share * 100:g} % of the keys" if report.share < 1.0 else ""
    since = f", going on behind a run at {report.since}" if report.goes_on else ""
    yield f"position {report.position}{since}{sample}"
    if not report.passed:
        yield f"  the job had not passed it: {report.lacks or 'the ledger has nothing of the source'}"
    for table in report.tables:
        yield from _table_lines(table)
    for name, why in report.left_out.items():
        yield f"left out: {name}, {why}"
    yield _summary(report)


def _table_lines(table: TableReport) -> Iterator[str]:
    verdict, title = table.verdict, f"{', '.join(table.sources)} -> {table.table}"
    if table.reason:
        yield f"{title}: {table.status}, {table.reason}"
    else:
        exact = ", exact" if table.exact else ""
        yield f"{title}: {table.status}, {table.rows[0]} rows at the source, {table.rows[1]} in StarRocks{exact}"
    counts = [f"{kind} {verdict.counts[kind]}" for kind in _KINDS if verdict.counts[kind]]
    if verdict.uncounted:
        counts.append(f"{verdict.uncounted} more look different, and were not looked at again")
    if counts:
        yield f"  {', '.join(counts)}"
    for kind in _KINDS:
        if verdict.keys.get(kind):
            yield f"  {kind}: {_keys(table.key, verdict.keys[kind], verdict.counts[kind])}"
    if table.mended is not None:
        yield from _mended_lines(table.mended)
    if table.lacks:
        yield f"  columns that the table lacks: {', '.join(table.lacks)}"
    if verdict.unsettled:
        keys = _keys(table.key, verdict.unsettled_keys, verdict.unsettled)
        yield f"  unsettled {verdict.unsettled}, which look different, and are not proven to be: {keys}"
    yield from (f"  {note}" for note in table.notes)


def _mended_lines(mended: Mended) -> Iterator[str]:
    if mended.added:
        yield f"  columns added: {', '.join(mended.added)}"
    if mended.written or mended.deleted:
        rest = f" and {len(mended.labels) - _LABELS} more" if len(mended.labels) > _LABELS else ""
        labels = f" (label {', '.join(mended.labels[:_LABELS])}{rest})" if mended.labels else ""
        yield f"  repaired: {mended.written} rows written, {mended.deleted} deleted{labels}"
    yield from (f"  not repaired: {count}, {reason}" for reason, count in mended.left.items())


def plan_of(table: TableReport, *, keyed: bool) -> str:
    """What a repair would do with a table, in one line; "" where there is nothing to do."""
    counts = table.verdict.counts
    if not table.verdict.different:
        return ""
    title, uncounted = f"{', '.join(table.sources)} -> {table.table}", table.verdict.uncounted
    rest = f"; then those of {uncounted} more that are different, too" if uncounted else ""
    if not keyed:
        number = table.verdict.different
        return (
            f"{title}: write the rows of {number} keys anew, in place of those there (no primary key: not atomic){rest}"
        )
    return f"{title}: write {counts[MISSING] + counts[DIFFERENT]} rows, delete {counts[EXTRA]}{rest}"


def _keys(names: Sequence[str], keys: Sequence[Key], count: int) -> str:
    shown = "; ".join(", ".join(f"{name}={part}" for name, part in zip(names, key, strict=True)) for key in keys)
    return f"{shown} and {count - len(keys)} more" if count > len(keys) else shown


def _summary(report: Report) -> str:
    counts = [(status, sum(table.status == status for table in report.tables)) for status in _ALL]
    words = ", ".join(f"{count} {status}" for status, count in counts if count)
    verdict = ("equal", "DIFFERENT", "NOT PROVEN")[report.exit_code]
    return f"{verdict} at {report.position}: {words or 'no table'}"


_ALL: Final = (EQUAL, REPAIRED, UNEQUAL, UNSETTLED, NOT_COMPARED, SKIPPED)
