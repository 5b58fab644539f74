"""One comparison of a job's tables with its source: snapshot, position, wait, tables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from starrocks_txn_ops.ledger_reader import LedgerReader
from starrocks_txn_ops.sync.catalog import read_catalog
from starrocks_txn_ops.sync.settings import Sync
from starrocks_txn_ops.sync.source_database import SourceDatabase
from starrocks_txn_ops.sync.transactions import needs_transactions
from starrocks_txn_ops.verify import mapping
from starrocks_txn_ops.verify.held import Holder
from starrocks_txn_ops.verify.kept import Equal, Kept
from starrocks_txn_ops.verify.lost_columns import LostColumns
from starrocks_txn_ops.verify.mapping import Comparison, Mapped, Unmatched
from starrocks_txn_ops.verify.others import Others
from starrocks_txn_ops.verify.passage import Passage
from starrocks_txn_ops.verify.progress import Pace, Progress
from starrocks_txn_ops.verify.repair import Repair, Work, works_of
from starrocks_txn_ops.verify.rules import core
from starrocks_txn_ops.verify.rules.core import Key, KeyRange, Look, Verdict
from starrocks_txn_ops.verify.rules.pairs import MYSQL, POSTGRESQL
from starrocks_txn_ops.verify.rules.report import EQUAL, Report, TableReport, plan_of, summary
from starrocks_txn_ops.verify.rules.statements import Statement
from starrocks_txn_ops.verify.sides import Ask, Side, Source, open_source
from starrocks_txn_ops.verify.standstill import Standstill, standing
from starrocks_txn_sink.clock import Clock, Deadline, parse_duration
from starrocks_txn_sink.errors import InputError, OptionError, StarRocksSinkError
from starrocks_txn_sink.protocol.ledger import WriteMarker, identifier
from starrocks_txn_sink.protocol.verified import VERIFIED
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.sink.typed.tables import table_columns
from starrocks_txn_sink.sink.typed.terms import with_decoding
from starrocks_txn_sink.sql.connection import LeaderConnection, SqlLedger

Chosen = Callable[[Sequence[Mapped], Mapping[str, str]], Sequence[Mapped]]
"""Takes tables out of those that are mapped; sees also those of the source that are left out, with the reason."""

_STATEMENT_SECONDS: Final = 3_600.0
_UTC: Final = (None, "UTC", "Etc/UTC", "Z", "+00:00")
_PAUSE: Final = 0.5  # seconds before a look again, times its number
_KEEP_SECONDS: Final = 10.0
_NO_ORDER: Final = (
    "The job's ledger counts Kafka's offsets, and has no position of the source (whole transactions of Debezium alone "
    "have one). So it is not known whether a row of the source is older or newer than the job's."
)
_SNAPSHOT: Final = (
    "Have the connector snapshot the table again (Debezium's signal execute-snapshot); rows that the source deleted "
    "stay."
)
_NO_PLACE: Final = (
    'Write database = "postgresql://USER@HOST:5432/DATABASE" (or mysql://…) in [source], and '
    "database_password_environment or database_password_file."
)


@dataclass(frozen=True, slots=True)
class Limits:
    """`share` of the keys; at most `rows_a_second` of the source (0: any number); `shown` keys of each kind.

    `seconds` is the longest wait for the job to pass a position.
    """

    share: float = 1.0
    rows_a_second: int = 0
    shown: int = 10
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Mending:
    """A repair of what is different, if `agreed` says so to the plan; each hold of the job ends after `seconds`.

    `others` matches the names of the rows of no table of the source (`Others`) that are deleted, too.
    """

    seconds: int
    agreed: Callable[[Sequence[str]], bool]
    others: str | None = None


def verify(
    sync: Sync,
    chosen_by: Chosen,
    limits: Limits,
    clock: Clock,
    progress: Progress,
    mending: Mending | None = None,
    kept: Kept | None = None,
    exact: int = 0,
) -> Report:
    """Compare the tables of a file that `chosen_by` takes. With `mending` what is different is repaired.

    What is `kept` of a run that did not end is not compared again. The job stands at the snapshot's position for at
    most `exact` seconds; 0: it goes on.

    Raises OptionError for a file without its source, InputError where there is nothing to compare, and the errors of
    both databases.
    """
    place, password = source_of(sync)
    job = sync.options.job
    if job is None:
        raise OptionError(
            "The file names no job, whose ledger says how far it is.", hint='Write job = "…" in [target].'
        )
    numbered = needs_transactions(sync)
    if exact and not numbered:
        raise OptionError(_NO_ORDER, hint="Without --exact the tables are compared while the job goes on.")
    if mending is not None and not numbered:
        raise OptionError(_NO_ORDER, hint=_SNAPSHOT)
    tables, left_out = mapping.mapped(read_catalog(place, password, 60.0), sync.routes, sync.topics)
    chosen = chosen_by(tables, left_out)
    options = replace(sync.options, read_timeout=max(sync.options.read_timeout, _STATEMENT_SECONDS))
    with contextlib.closing(LeaderConnection(options)) as leader, contextlib.ExitStack() as ends:
        reader = LedgerReader(leader, options.database, Deadline.after(60.0, clock))
        reader.require_job(str(job))
        connector = mapping.connector_of(sync.topics)
        seconds = limits.seconds if numbered else 0.0  # a ledger of offsets never says it
        passage = Passage(reader, str(job), connector, seconds, clock, numbered)
        own_pace = parse_duration(sync.trigger) or parse_duration(options.freshness) or 0.0
        passage.rest_seconds = max(passage.rest_seconds, 2 * own_pace)
        snapshot, still = partial(open_source, place, password), None
        if exact:
            holder = Holder(options, leader, exact, clock)
            source, still = ends.enter_context(standing(snapshot, passage, holder, progress))
        else:
            source = ends.enter_context(snapshot())
        passage.place_now = source.place
        run = _Run(sync, place.postgresql, source, leader, passage, limits, clock, progress, kept, still)
        began = int(clock.wall())
        if kept is not None:
            kept.open(began, source.position[0])
            began = kept.began
        report = run.report(chosen, left_out)
        run.go_on()
        report = report if mending is None else run.mended(report, mending)
        if len(chosen) == len(tables) and limits.share == 1.0:
            _keep(report, began, str(job), SqlLedger(leader, options.database), clock, progress)
        if kept is not None:
            kept.end()
        return report


def _keep(report: Report, time: int, job: str, ledger: SqlLedger, clock: Clock, progress: Progress) -> None:
    """Write the result of a whole run into the ledger, for the page, the metrics and `status`."""
    marker = WriteMarker(job, VERIFIED, summary(report, time).token)
    try:
        ledger.execute(marker, Deadline.after(_KEEP_SECONDS, clock))
    except StarRocksSinkError as error:  # a user who may only read verifies all the same
        progress.says(f"The result is not kept for the page and the metrics: {error.message}")


def matching(pattern: str | None) -> Chosen:
    """Takes the tables of which a whole name, the source's or StarRocks', matches; raises InputError for none."""

    def chosen(tables: Sequence[Mapped], _: Mapping[str, str]) -> list[Mapped]:
        found = [table for table in tables if pattern is None or _matches(pattern, table)]
        if not found:
            hint = "Correct --table, or the file's routes and topics."
            raise InputError("No table of the source is written by the file and named by --table.", hint=hint)
        return found

    return chosen


def source_of(sync: Sync) -> tuple[SourceDatabase, str]:
    """The source's place and password by the file; raises OptionError without them."""
    if sync.database is None:
        raise OptionError("The file does not say where the source is.", hint=_NO_PLACE)
    return sync.database.place, sync.database.password()


def _matches(pattern: str, table: Mapped) -> bool:
    return any(re.fullmatch(pattern, name, re.ASCII) for name in table.names)


@dataclass(slots=True)
class _Run:
    sync: Sync
    postgresql: bool
    source: Source
    leader: LeaderConnection
    passage: Passage
    limits: Limits
    clock: Clock
    progress: Progress
    kept: Kept | None = None
    still: Standstill | None = None
    pace: Pace = field(init=False)
    comparisons: dict[int, tuple[Mapped, Comparison]] = field(default_factory=dict)  # by the number of their report
    others: dict[int, Others] = field(default_factory=dict)  # the same

    def __post_init__(self) -> None:
        self.pace = Pace(self.limits.rows_a_second, self.clock)

    def go_on(self) -> None:
        """Have the job go on, if it stands."""
        if self.still is not None:
            self.still.free()
        self.still = None

    def _passed(self) -> tuple[bool, str]:
        """Wait until the job has passed the snapshot's position; whether it has, or what it lacks."""
        if self.still is not None:
            return True, ""
        if not self.passage.in_vain:
            self.progress.says(
                f"The snapshot of the source is at {self.source.position[0]}; waiting until the job has passed it, at "
                f"most {self.passage.seconds:g} s (at a source at rest a commit to a table of the job brings it there)."
            )
        if self.passage.passed(self.source.position):
            return True, ""
        lacks = self.passage.last.lacks
        self.progress.says(f"The job has not passed it: {lacks or 'its ledger has nothing of the source'}.")
        return False, lacks

    def report(self, tables: Sequence[Mapped], left_out: dict[str, str]) -> Report:
        position = self.source.position[0]
        passed, lacks = self._passed()
        plans = [(table, self._plan(table, self.limits.share)) for table in tables]
        counts: dict[int, int] = {}
        for _, plan in plans:
            for comparison in plan if isinstance(plan, list) else ():
                counts[id(comparison)] = self._count(comparison)
        self.progress.start(len(plans), sum(counts.values()))
        found = list[TableReport]()
        for table, plan in plans:
            self.progress.begin(table.name)
            if isinstance(plan, TableReport):
                found.append(plan)
                continue
            for comparison in plan:
                self.comparisons[len(found)] = table, comparison
                found.append(self._compared(comparison, counts[id(comparison)]))
            if plan[0].part and (others := self._others(table, plan[0])).rows:
                self.others[len(found)] = others
                found.append(others.report(self.limits.shown))
        self.progress.end()
        since = position if self.kept is None else self.kept.position
        return Report(position, passed, lacks, found, left_out, self.limits.share, since)

    def _kept(self, comparison: Comparison) -> Equal | None:
        return None if self.kept is None else self.kept.equal.get(_title(comparison))

    def mended(self, report: Report, mending: Mending) -> Report:
        """The report after a repair, if it is agreed to; the snapshot of the source ends before somebody is asked."""
        self.source.end_snapshot()
        tables, lacks = [*report.tables], dict[str, list[str]]()
        for _, its in self.comparisons.values():
            if its.lacks:
                lacks.setdefault(its.table, []).extend(its.lacks)
        lost = LostColumns(self.sync, self.leader, self.clock, self.progress)
        lost.plan(lacks)
        plans = [*lost.lines()]
        for number, (_, its) in self.comparisons.items():
            if tables[number].verdict.different and lost.mends(its):
                plans.append(plan_of(tables[number], keyed=its.shape.keyed))
        if plans or any(others.chosen(mending.others) for others in self.others.values()):
            plans += [others.plan(mending.others) for others in self.others.values()]
            if mending.agreed(plans):
                self._mend(tables, lost, mending)
        for number, (_, its) in self.comparisons.items():
            if tables[number].lacks and its.table in lost.left:
                notes = (*tables[number].notes, f"not added: {lost.left[its.table]}")
                tables[number] = replace(tables[number], notes=notes)
        return replace(report, tables=tables)

    def _mend(self, tables: list[TableReport], lost: LostColumns, mending: Mending) -> None:
        """Add columns, write rows and delete rows; what was done is in the `tables` afterwards."""
        lost.add()
        different = list[tuple[int, Comparison, TableReport]]()
        for number, (mapped, its) in self.comparisons.items():
            table = tables[number]
            if its.table in lost.changes:
                its, table = self._with_columns(mapped, its, table)
            if (table.verdict.different or table.verdict.uncounted) and lost.mends(its):
                different.append((number, its, table))
        options = with_decoding(self.sync.options, self.sync.assembly.encoding)
        works = [
            *works_of(
                ((its.judge, its.shape, its.source, its.target, table.verdict.found) for _, its, table in different),
                options,
                self.source.now,
                self._ask_target,
            )
        ]
        holder = Holder(options, self.leader, mending.seconds, self.clock)
        total = sum(table.verdict.different + table.verdict.uncounted for _, _, table in different)
        repair = Repair(works, self.source, self.passage, holder, self.progress, self.clock, total)
        repair.run()
        more = [table for _, _, table in different if table.verdict.uncounted]
        self.progress.start(len(more), sum(max(table.rows) for table in more))
        for work, (number, its, table) in zip(works, different, strict=True):
            if table.verdict.uncounted:
                self._mend_rest(repair, work, its, table)
            tables[number] = replace(table, mended=replace(work.mended, added=lost.added(its.table)))
        self.progress.end()
        for number, others in self.others.items():
            mended = others.delete(mending.others, holder, partial(self._collections, others.part.table))
            tables[number] = replace(tables[number], mended=mended, notes=tables[number].notes[:1])

    def _with_columns(self, mapped: Mapped, its: Comparison, table: TableReport) -> tuple[Comparison, TableReport]:
        """The comparison of a table that has got columns, and its report, in which no key has been looked at yet."""
        plan = self._plan(mapped, 1.0)
        if isinstance(plan, list):
            its = next(again for again in plan if again.collections == its.collections)
        verdict = Verdict(self.limits.shown, uncounted=max(table.rows))
        return its, replace(table, verdict=verdict, lacks=its.lacks)

    def _collections(self, table: str) -> set[str]:
        """The source's tables whose rows a table gets, by the source's catalog as it is now."""
        place, password = source_of(self.sync)
        mapped, _ = mapping.mapped(read_catalog(place, password, 60.0), self.sync.routes, self.sync.topics)
        return {source.collection for its in mapped if its.name == table for source in its.sources}

    def _mend_rest(self, repair: Repair, work: Work, comparison: Comparison, table: TableReport) -> None:
        """Find and repair what else differs, from the first range on that was not looked at again.

        The source's rows are those of now, and no snapshot stays open: what looks different is proven as before.
        """
        verdict = table.verdict
        known, verdict.uncounted = frozenset(verdict.looked), 0
        verdict.take()

        def taken() -> bool:
            return repair.mend([(work, key) for key in verdict.take()])

        self.progress.begin(table.table)
        self._walk(comparison, self.source.now, table.rows, verdict, verdict.rest, taken, known)
        taken()

    def _plan(self, table: Mapped, share: float) -> list[Comparison] | TableReport:
        """The comparisons for a table and a share of its keys, or a report that says why there is none."""
        rules, options = self.sync.assembly.rule_set, self.sync.options
        names = tuple(source.collection for source in table.sources)
        deadline = Deadline.after(60.0, self.clock)
        of_table = rules.of(table.name)
        only_history = of_table is not None and of_table.only_history
        columns: Sequence[TargetColumn] = ()
        if not only_history:
            columns = table_columns(self.leader, options.database, [table.name], deadline).get(table.name, ())
            if not columns:
                return TableReport(table.name, names, reason=f"StarRocks has no table {table.name}")
        declared = options.tables[table.name].keys if table.name in options.tables else ()
        hexadecimal = getattr(self.sync.assembly, "binary_handling_mode", None) == "hex"
        kind = POSTGRESQL if self.postgresql else MYSQL
        try:
            return mapping.comparisons(
                table,
                rules,
                columns,
                options.database,
                kind,
                tuple(declared if isinstance(declared, Sequence) else ()),
                hexadecimal=hexadecimal,
                in_utc=options.timestamp_zone in _UTC,
                share=share,
            )
        except Unmatched as reason:
            return TableReport(table.name, names, reason=str(reason), skipped=only_history)

    def _count(self, comparison: Comparison) -> int:
        """The source's rows that are to be compared."""
        return 0 if self._kept(comparison) else Side(comparison.source, self.source.snapshot).count()

    def _compared(self, comparison: Comparison, rows: int) -> TableReport:
        equal = self._kept(comparison)
        if equal is not None:
            note = f"found equal at {equal.position}, by a run that did not end, and not compared again"
            return TableReport(comparison.table, comparison.collections, rows=equal.rows, notes=(note,))
        exact = self.still is not None
        while True:  # a second time if the job has gone on meanwhile
            sizes = (rows, Side(comparison.target, self._ask_target).count())
            verdict = Verdict(self.limits.shown)
            self._walk(comparison, self.source.snapshot, sizes, verdict)
            if self.still is None or self.still.stands():
                break
            exact = False
            self.go_on()
            self.progress.says("The job has gone on: this table and those behind it are compared without a hold.")
            self.passage.passed(self.source.position)
        history = mapping.history_note(self.sync.assembly.rule_set, comparison.table)
        notes = (*comparison.notes, *((history,) if history else ()))
        key = tuple(pair.name for pair in comparison.source.keys)
        report = TableReport(
            comparison.table, comparison.collections, key, sizes, verdict, comparison.lacks, notes, exact=exact
        )
        if self.kept is not None and report.status == EQUAL:
            self.kept.keep(_title(comparison), Equal(self.source.position[0], sizes))
        return report

    def _walk(
        self,
        comparison: Comparison,
        ask: Ask,
        sizes: tuple[int, int],
        verdict: Verdict,
        low: str | None = None,
        is_taken: Callable[[], bool] = lambda: False,
        known_keys: Collection[Key] = (),
    ) -> None:
        """Compare all keys from `low` on with what `ask` sees of the source; `sizes` are the rows of both sides."""
        source, now = Side(comparison.source, ask), Side(comparison.source, self.source.now)
        target = Side(comparison.target, self._ask_target)

        def look(keys: Sequence[Key], waits: bool) -> Look:
            if self.still is not None:  # nothing moves: the look is the snapshot's, and what differs is different
                rows = _in_batches(source, keys)
                return Look(rows, _in_batches(target, keys), rows, True)
            before = _in_batches(now, keys)
            if not waits:
                return Look(before, _in_batches(target, keys), before, False)
            passed = self.passage.passed(self.source.place())
            there = _in_batches(target, keys)
            return Look(before, there, _in_batches(now, keys), passed)

        def told(span: KeyRange, suspects: int) -> None:
            self.progress.done(span.rows, suspects)
            self.pace.rest(span.rows)

        ranges: Iterator[KeyRange] = iter([KeyRange(low, rows=max(sizes))])
        judge = comparison.judge
        of_range = core.EACH_ROWS if judge.each else core.RANGE_ROWS
        if comparison.walks and sizes[0] > of_range:
            ranges = core.spans(source.boundary, source.after, source.count_of, of_range, low=low)

        def pause(number: int) -> None:
            if self.still is None:
                self.clock.sleep(_PAUSE * number)

        core.compare(source, target, ranges, look, judge, verdict, told, pause, is_taken, known_keys)

    def _others(self, table: Mapped, part: Comparison) -> Others:
        """Rows whose _source_table is none of the source's: nobody will ever change or delete them."""
        relation = identifier(self.sync.options.database, table.name)
        return Others.of(relation, [source.collection for source in table.sources], part, self._ask_target)

    def _ask_target(self, statement: Statement) -> list[tuple[Any, ...]]:
        return self.leader.query(*statement, Deadline.after(_STATEMENT_SECONDS, self.clock))


def _title(comparison: Comparison) -> str:
    return f"{', '.join(comparison.collections)} -> {comparison.table}"


def _in_batches(side: Side, keys: Sequence[Key]) -> dict[Key, Sequence[core.Row]]:
    found: dict[Key, Sequence[core.Row]] = {}
    for some in core.batches(keys, core.KEYS):
        found |= side.rows(some)
    return found
