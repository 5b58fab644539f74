"""What the driver knows of a source beside its positions; new knowledge is committed with the rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starrocks_txn_sink.coordinator.model import LaneShare
from starrocks_txn_sink.errors import InputError, OptionError, SourceKeyChanged
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.table_rules import METADATA, SOURCE_TABLE, RuleSet, RulesOfTable
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import retry_until_answered
from starrocks_txn_sink.protocol.snapshots import (
    MORE,
    ONE,
    OVER,
    READING,
    SPREAD,
    Marks,
    Progress,
    ReadMarks,
    joined,
    mark_row,
    then,
    whole,
)
from starrocks_txn_sink.protocol.source_keys import KnownKeys, ReadKeys, SourceKey, key_row
from starrocks_txn_sink.protocol.source_places import place_row
from starrocks_txn_sink.rows.target import TargetColumn
from starrocks_txn_sink.sink.assembly import Assembly
from starrocks_txn_sink.sink.schema.source_plan import Refusal, key_by_rules, key_refusals, sharing_faults
from starrocks_txn_sink.sink.session import Session, run_once
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS, Tables
from starrocks_txn_sink.sources.formats.connect_types import SourceTable
from starrocks_txn_sink.sources.formats.tables import DeclaredKeys
from starrocks_txn_sink.telemetry import Event, Listener, ignore_event
from starrocks_txn_sink.writer.messages import CarryOver, Message, of_kind

Partitions = Callable[[], Collection[tuple[str, int]]]
"""The topics and partitions that a micro-batch's query reads; none if they are hidden."""

# --- the first snapshot ---

_REPEATED = (
    "Rows that were deleted at the source in between stay, until `starrocks-txn-sink verify --repair` deletes them, or "
    "`starrocks-txn-sink resync` for single tables."
)


@dataclass(slots=True)
class SnapshotProgress:
    """`marks` are those in the ledger. Marks of rows that wait for a commit are in `waiting`."""

    job: str = ""
    marks: Marks = field(default_factory=dict)
    listener: Listener = ignore_event
    waiting: Marks = field(default_factory=dict)
    _taken: Marks = field(default_factory=dict)

    def take(self, messages: Sequence[Message], partitions: Partitions = tuple, *, whole: bool = True) -> None:
        """The lanes of a label have read rows of `partitions` with these marks; those of a label before are void.

        Unless they load the rows `whole`, as in a quarantine, none of the marks counts: the lanes read all rows, and
        the quarantine ends with a label for whatever is left.
        """
        if not whole:
            self._taken = self.waiting
            return
        marks = self._without_early_ends(joined(carried.marks for carried in _loaded(messages)), partitions)
        self._taken = then(self.waiting, marks)

    def _without_early_ends(self, marks: dict[str, str], partitions: Partitions) -> dict[str, str]:
        """SPREAD in place of an end that other partitions of the table's topic may not have reached.

        The topic has Debezium's name for the table; behind a rule with other names any topic may be it.
        """
        ends = [name for name, mark in marks.items() if mark in (ONE, OVER) and name != whole(name.partition(":")[0])]
        if not ends:
            return marks
        counts = Counter(topic for topic, _ in partitions())
        limit = max(counts.values(), default=1)
        return marks | {name: SPREAD for name in ends if counts.get(name.replace(":", ".", 1), limit) > 1}

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """The marks that are new in the ledger with the commit of the label."""
        marks = self._after()
        changed = [name for name, mark in marks.items() if self.marks.get(name) != mark]
        return [mark_row(self.job, name, marks[name], now_text()) for name in changed]

    def resume(self, marks: Marks) -> None:
        """See SourceProgress."""
        self.waiting = marks

    def keep(self) -> None:
        """The label had no row, so its marks wait for the next commit."""
        self.waiting, self._taken = self._taken, {}

    def commit(self) -> None:
        """The rows of the label are visible; says what that means."""
        earlier, later = self.marks, self._after()
        repeats = [name.partition(":")[0] for name in self._taken if name.endswith(":") and earlier.get(name) == OVER]
        self.marks, self.waiting, self._taken = later, {}, {}
        for source in repeats:
            self.listener(Event("snapshot.repeated", {"job": self.job, "source": source, "advice": _REPEATED}))
        if later != earlier:
            tables = [name.partition(":")[2] for name, mark in later.items() if mark == OVER != earlier.get(name)]
            self.say([table for table in tables if table])

    def say(self, ends_told: Sequence[str] = ()) -> None:
        """Tell listeners and the log; `ends_told` are tables whose last row has just become visible."""
        progress = Progress.of(self.marks)
        fields = {"job": self.job, "tables": progress.tables, "over": progress.over, "text": progress.text}
        if progress.tables:
            counts = {"unknown": progress.unknown, "tables_over": list(ends_told)}
            self.listener(Event("snapshot.progressed", {**fields, **counts}))
        if progress.ended:
            self.listener(Event("snapshot.ended", {"job": self.job, "tables": progress.tables}))

    def _after(self) -> dict[str, str]:
        marks = then(self.marks, self._taken)
        return {name: READING if mark == MORE else mark for name, mark in marks.items()}


# --- keys of the source's tables ---


@dataclass(slots=True)
class SourceKeys:
    """`known` are the keys under which rows of a source's table were taken. Those not in the ledger are `unwritten`.

    `judge` says why rows under a key would be lost, the first key of a table included, and one that an earlier release
    has taken. Messages without a key say nothing where the first ones of the table had none. A table gets rows of a
    further source only if `judge_sources` has nothing against it: `table_of` gives the table of a source's one that is
    known.
    """

    job: str = ""
    known: KnownKeys = field(default_factory=dict)
    judge: Callable[[SourceKey], Refusal | None] = lambda _: None
    table_of: Callable[[str], str | None] = lambda _: None
    judge_sources: Callable[[str, Sequence[SourceTable]], Refusal | None] = lambda *_: None
    unwritten: list[SourceKey] = field(default_factory=list)

    def take(self, keys: Iterable[SourceKey]) -> None:
        """The lanes of a label have read rows under these `keys`; raises SourceKeyChanged for one that loses rows."""
        by_table: dict[tuple[str, str], list[SourceKey]] = {}
        for key in sorted(set(keys)):
            by_table.setdefault(key[:2], []).append(key)
        for place, keys_of_table in by_table.items():
            earlier = self.known.get(place, set())
            self._check_keys(keys_of_table, earlier)
            if not earlier:
                self._check_sources(keys_of_table[0][2], place)
            new = [key for key in keys_of_table if key[3] not in earlier]
            self.known.setdefault(place, set()).update(key[3] for key in new)
            self.unwritten += new

    def _check_keys(self, keys: Sequence[SourceKey], earlier: Collection[tuple[str, ...]]) -> None:
        """Raise SourceKeyChanged for the first of a table's `keys` that loses rows."""
        if () in earlier or not any((*earlier, *(names for *_, names in keys))):
            keys = [key for key in keys if key[3]]
        refusals = [(key, self.judge(key)) for key in keys]
        for key, refusal in refusals:
            if refusal is not None:
                rest = [(*key[:3], names) for names in sorted(earlier)] or [other for other, _ in refusals]
                raise _changed(key, [other[3] for other in rest if self.judge(other) is None], refusal)

    def _check_sources(self, table: str, new: tuple[str, str]) -> None:
        """Raise InputError if rows of the `new` connector and collection replace those of others in their table."""
        places = [place for place in self.known if self.table_of(place[1]) == table]
        refusal = self.judge_sources(
            table, [SourceTable(name, "", (), connector) for connector, name in (*places, new)]
        )
        if places and refusal is not None:
            raise InputError(f"Table {table}: {refusal.reason}.", hint=refusal.ways, table=table)

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """The keys that are new in the ledger with the commit of the label."""
        time = now_text()
        rows = [
            key_row(self.job, connector, collection, names, time) for connector, collection, _, names in self.unwritten
        ]
        return [row for row in rows if row is not None]

    def commit(self) -> None:
        """The rows of the label are visible."""
        self.unwritten = []


def judge_key(options: SinkOptions, rules: RuleSet, tables: Tables, key: SourceKey) -> Refusal | None:
    """Why rows that come under a key would be lost in their table; None if they are not, and where nothing is known.

    The user's own `keys` of a table win, as in a plan.
    """
    _, _, table, names = key
    of_table = rules.of(table) or RulesOfTable(table)
    target_columns = _key_to_keep(options, of_table, tables)
    if not target_columns:
        return None
    by_source = SOURCE_TABLE in [column.name for column in target_columns]
    try:
        key_in_table = key_by_rules(names, of_table, merged=by_source)
    except OptionError as error:
        return Refusal(table, error.message.rstrip("."), error.advice)
    return next(iter(key_refusals(table, key_in_table, target_columns)), None)


def judge_sources(
    options: SinkOptions, rules: RuleSet, tables: Tables, table: str, sources: Sequence[SourceTable]
) -> Refusal | None:
    """Why rows of these sources would replace one another in their table; None if they do not, as in `judge_key`."""
    target_columns = _key_to_keep(options, rules.of(table) or RulesOfTable(table), tables)
    names = [column.name for column in target_columns]
    return next(sharing_faults(table, sources, names), None) if names else None


def keys_that_move(options: SinkOptions, rules: RuleSet, tables: Tables) -> DeclaredKeys:
    """The keys of tables for which the user has decided, in the source's names: updates may change them.

    The table's own key counts, where it is known. Columns about the source never change for a row. Rows whose deletes
    are ignored stay where they are.
    """
    keys: dict[str, tuple[str, ...]] = {}
    for table in options.tables:
        of_table, declared = rules.of(table) or RulesOfTable(table), options.options_of(table).keys
        if not declared or of_table.only_history or of_table.deletes == "ignore":
            continue
        if tables.models.get(table, PRIMARY_KEYS) == PRIMARY_KEYS:
            own = [column.name for column in tables.required.get(table, ()) if column.key]
            sources = {target: source for source, target in of_table.rename.items()}
            names = [name for name in own or declared if name not in METADATA]
            keys[table] = tuple(sources.get(name, name) for name in names)
    return keys


def _key_to_keep(options: SinkOptions, of_table: RulesOfTable, tables: Tables) -> list[TargetColumn]:
    """The primary key of a table; empty where it has none, and where the user has decided."""
    decided = of_table.only_history or options.options_of(of_table.table).keys
    if decided or tables.models.get(of_table.table) != PRIMARY_KEYS:
        return []
    return [column for column in tables.required.get(of_table.table, ()) if column.key]


def _changed(key: SourceKey, earlier: Sequence[tuple[str, ...]], refusal: Refusal) -> SourceKeyChanged:
    _, collection, table, names = key
    was = " or ".join(map(_text, earlier))
    return SourceKeyChanged(
        f"Rows of the source's table {collection} came under the key {_text(names)}"
        f"{f', and before under {was}' if was else ''}. Table {table}: {refusal.reason}.",
        hint=f"{refusal.ways} For a new table: give it the new key, name it for this source's table, and have the "
        "source snapshot the table again.",
        table=table,
    )


def _text(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "none"


# --- places in the source's own log ---


LogPlaces = dict[tuple[str, str], int]
"""Numbers by source partition and log."""


@dataclass(slots=True)
class SourcePlaces:
    """How far the source's logs are visible; `written` are those in the ledger, `waiting` those of no label yet.

    Only labels of this run count: after a restart the first one writes all of them again.
    """

    job: str = ""
    written: LogPlaces = field(default_factory=dict)
    waiting: LogPlaces = field(default_factory=dict)
    _taken: LogPlaces = field(default_factory=dict)

    def take(self, messages: Sequence[Message], *, whole: bool) -> None:
        """The lanes of a label have loaded all rows that are released, or a part of them; those of one before are void.

        Of a part the source's logs are not known: the lanes hand on what they have read.
        """
        self._taken = dict(self.waiting)
        for share in _loaded(messages) if whole else ():
            for name, carried in share.partitions.items():
                self._taken |= {(name, log): number for log, number in carried.state.places().items()}

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """The places that are new in the ledger with the commit of the label."""
        new = {place: number for place, number in self._taken.items() if self.written.get(place) != number}
        return [place_row(self.job, *place, number, now_text()) for place, number in new.items()]

    def keep(self) -> None:
        """The label had no row, because all that is released is visible: the places wait for the next commit."""
        self.waiting, self._taken = self._taken, {}

    def commit(self) -> None:
        """The rows of the label are visible."""
        self.written |= self._taken
        self.waiting, self._taken = {}, {}


def _loaded(messages: Sequence[Message]) -> list[CarryOver]:
    """What those lanes hand on that have loaded all rows which they have read and released."""
    goes_on = any(share.stopped for share in of_kind(messages, LaneShare))  # a lane with `reached` reads on
    return [carried for carried in of_kind(messages, CarryOver) if carried.reached is not None or not goes_on]


# --- all of it ---


@dataclass(slots=True)
class SourceProgress:
    """How far the source's snapshot is, the keys of its tables, and how far its own log is visible."""

    snapshot: SnapshotProgress = field(default_factory=SnapshotProgress)
    keys: SourceKeys = field(default_factory=SourceKeys)
    places: SourcePlaces = field(default_factory=SourcePlaces)

    @classmethod
    def open(cls, assembly: Assembly, options: SinkOptions, session: Session, listener: Listener) -> SourceProgress:
        """What the ledger of a session knows of the source; tells `listener` of the source's snapshot."""

        def ask(request: LedgerRequest) -> Any:
            reading = retry_until_answered(request, random.Random())
            return run_once(options, reading, options.batch_deadline) if session.token else {}

        # The session's tables change while it goes on.
        keys = SourceKeys(
            session.job,
            ask(ReadKeys(session.job)),
            lambda key: judge_key(options, assembly.rule_set, session.tables, key),
            assembly.table_of,
            lambda table, sources: judge_sources(options, assembly.rule_set, session.tables, table, sources),
        )
        snapshot = SnapshotProgress(session.job, ask(ReadMarks(session.job)), listener)
        snapshot.say()
        return cls(snapshot, keys, SourcePlaces(session.job))

    def resume(self, marks: Marks) -> None:
        """Go on with the `marks` of rows that wait for a commit, those of the query's state."""
        self.snapshot.resume(marks)

    def take(self, messages: Sequence[Message], partitions: Partitions = tuple, *, whole: bool = True) -> None:
        """The lanes of a label have sent `messages`, and loaded the `whole` of their rows or a part of them.

        Raises SourceKeyChanged, before anything is committed.
        """
        self.keys.take(key for carried in of_kind(messages, CarryOver) for key in carried.keys)
        self.snapshot.take(messages, partitions, whole=whole)
        self.places.take(messages, whole=whole)

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """What is new in the ledger with the commit of the label."""
        return [*self.snapshot.rows(now_text), *self.keys.rows(now_text), *self.places.rows(now_text)]

    def keep(self) -> None:
        """The label had no row, so what is new waits for the next commit."""
        self.snapshot.keep()
        self.places.keep()

    def commit(self) -> None:
        """The rows of the label are visible."""
        self.keys.commit()
        self.snapshot.commit()
        self.places.commit()
