"""The rows of a lane are compared with their tables before a load: their names, the types of columns, and dates."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

import pyarrow as pa

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.compiled.findings import RowFindings, Shapes
from starrocks_txn_sink.coordinator.coordinator import join_missing
from starrocks_txn_sink.coordinator.model import ColumnNeeds, MissingColumns, Segment
from starrocks_txn_sink.errors import NarrowColumn, OptionError, QueryRefused, UnfitValue
from starrocks_txn_sink.options import SchemaChanges, SinkOptions, TableOptions
from starrocks_txn_sink.options.enums import declared_types
from starrocks_txn_sink.options.load_properties import renames
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import identifier, quote
from starrocks_txn_sink.rows.alterations import alteration
from starrocks_txn_sink.rows.bad_rows import BadRow, refused
from starrocks_txn_sink.rows.member_names import Filled, LackingColumns, MemberNames, TypesOf, never_filled, no_types
from starrocks_txn_sink.rows.row_check import RowCheck
from starrocks_txn_sink.rows.segments import CheckRows, FitRows, as_they_are
from starrocks_txn_sink.rows.target import (
    PLACES_SQL,
    TargetColumn,
    TargetType,
    may_count,
    parse_type,
    spelled,
    target_columns,
    with_counters,
    with_places,
)
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.rows.widening import changed_by_hand, holds, rounds, widened
from starrocks_txn_sink.sources.formats.bare_values import BareValues, ConnectorModes
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.writer.key_checks import KeyChecks, KnownKeyLimit
from starrocks_txn_sink.writer.partitions import KnownPartitions, PartitionCheck
from starrocks_txn_sink.writer.value_checks import ValueChecks, zone_of


class TablesLackColumns(Exception):
    """Rows of this lane need `columns` that their tables lack; no error, because the driver can add them."""

    def __init__(self, columns: MissingColumns) -> None:
        super().__init__()
        self.columns = columns


class KnownColumns:
    """The columns of a database's tables, from information_schema.

    One query reads all tables. A table that it does not have is asked for when a row needs it. What is older than
    _COLUMNS_SECONDS is asked again: a column that was dropped since takes its values along in silence, until this finds
    it `dropped`. One that was also added again in between is `replaced`: it has another place among the columns, unless
    it was the last one before, too.
    """

    def __init__(self, connection: LeaderConnection, database: str) -> None:
        self._connection, self._database = connection, database
        self._rows: dict[str, list[Sequence[object]]] = {}  # none for a table that is not seen
        self._columns: dict[str, tuple[TargetColumn, ...]] = {}  # of tables that were asked for
        self._dropped: dict[str, dict[str, float]] = defaultdict(dict)  # when each was last seen, on the clock
        self._replaced: dict[str, dict[str, float]] = defaultdict(dict)  # the same, of those that came again
        self._read_at = -math.inf
        self.key_limit = KnownKeyLimit(connection)

    def of(self, table: str, again: bool, deadline: Deadline) -> frozenset[str] | None:
        """The columns of `table`; None if the user may not see any. Raises QueryFailed.

        The case of names counts, of tables (`spelled`) and of columns (wire contract 5.4).
        """
        now = deadline.clock.monotonic()
        if now - self._read_at > _COLUMNS_SECONDS:
            before, self._rows, self._columns = self._rows, self._read("", (), deadline), {}
            for table_before, rows in before.items():
                self._compare(table_before, rows, self._read_at)
            self._read_at = now
        name = spelled(table, self._rows)
        if again or name not in self._rows:
            found, before_rows = self._read(_OF_TABLE, (table,), deadline), self._rows.get(name, [])
            self._rows[name] = found.get(spelled(table, found), [])
            self._compare(name, before_rows, self._read_at)
            self._columns.pop(name, None)
        return _names(self._rows[name]) or None

    def dropped(self, table: str, deadline: Deadline) -> dict[str, float]:
        """The columns that `table` had and has no more, and how many seconds ago each was seen last."""
        now = deadline.clock.monotonic()
        return {name: now - seen for name, seen in self._dropped.get(spelled(table, self._rows), {}).items()}

    def replaced(self, table: str, deadline: Deadline) -> dict[str, float]:
        """The columns of `table` that were dropped and added again, and how many seconds ago each was seen last before.

        They are told once.
        """
        now = deadline.clock.monotonic()
        return {name: now - seen for name, seen in self._replaced.pop(spelled(table, self._rows), {}).items()}

    def _compare(self, name: str, before: Sequence[Sequence[object]], seen: float) -> None:
        """Note which columns a table has lost since it was `seen`; a table that is gone takes no rows."""
        names = _names(self._rows.get(name, ()))
        if names and before:
            self._replaced[name] |= dict.fromkeys(_moved(before, self._rows[name]), seen)
            dropped = dict.fromkeys(_names(before), seen) | self._dropped[name]
            self._dropped[name] = {column: at for column, at in dropped.items() if column not in names}

    def columns(self, table: str, again: bool, deadline: Deadline) -> tuple[TargetColumn, ...]:
        """The columns of `table` with their types; none if the user may not see any. Raises QueryFailed.

        Which are `fixed` is known once the table is asked for `again`.
        """
        self.of(table, again, deadline)
        name = spelled(table, self._rows)
        if name not in self._columns:
            columns = target_columns(self._rows[name])
            if again and columns:
                with contextlib.suppress(QueryRefused):  # StarRocks then says itself which columns it does not change
                    columns = with_places(columns, self._connection.query(_PLACES, (self._database, table), deadline))
            self._columns[name] = next(iter(columns.values()), ())
        return self._columns[name]

    def with_counters(self, table: str, again: bool, deadline: Deadline) -> tuple[TargetColumn, ...]:
        """`columns`, of which those that are AUTO_INCREMENT are marked. Raises QueryFailed.

        Where the user may not see that, each column that may be one counts as one.
        """
        columns = self.columns(table, again, deadline)
        if not may_count(columns):
            return columns
        with contextlib.suppress(QueryRefused):
            sql = f"SHOW CREATE TABLE {identifier(self._database, table)}"
            return with_counters(columns, str(self._connection.query(sql, (), deadline)[0][1]))
        return tuple(replace(column, nullable=True) if may_count((column,)) else column for column in columns)

    def _read(self, condition: str, names: tuple[str, ...], deadline: Deadline) -> dict[str, list[Sequence[object]]]:
        tables = defaultdict[str, list[Sequence[object]]](list)
        with contextlib.suppress(QueryRefused):
            for row in self._connection.query(
                _COLUMN_NAMES + condition + _IN_ORDER, (self._database, *names), deadline
            ):
                tables[str(row[0])].append(row)
        return dict(tables)


def _names(rows: Sequence[Sequence[object]]) -> frozenset[str]:
    return frozenset(str(column) for _, column, *_ in rows)


def _moved(before: Sequence[Sequence[object]], now: Sequence[Sequence[object]]) -> set[str]:
    """The columns of both that have another place among them; of two that have changed places the one behind."""
    both = _names(before) & _names(now)
    was, names = ([str(column) for _, column, *_ in rows if column in both] for rows in (before, now))
    if was == names:
        return set()
    blocks = SequenceMatcher(None, names, was, autojunk=False).get_matching_blocks()
    return {*both} - {name for block in blocks for name in names[block.a : block.a + block.size]}


_COLUMNS_SECONDS: Final = 60.0  # rare enough for the server, soon enough for a change of a table
_COLUMN_NAMES: Final = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, COLUMN_KEY, GENERATION_EXPRESSION"
    " FROM information_schema.columns WHERE TABLE_SCHEMA = %s"
)
_PLACES: Final = PLACES_SQL.format("%s")
_OF_TABLE: Final = " AND TABLE_NAME = %s"
_IN_ORDER: Final = " ORDER BY TABLE_NAME, ORDINAL_POSITION"


NewTypes = Callable[[], Iterable[tuple[str, Mapping[str, str]]]]
"""Tables with the types of their columns, by the schemas of the source that were read since the last call."""

ColumnsOf = Callable[[str, bool], Sequence[TargetColumn]]
"""The columns of a table, none if nothing is known about it; with True the server is asked again."""


def _no_new_types() -> Iterable[tuple[str, Mapping[str, str]]]:
    return ()


Lacking = Callable[[str, Set[str]], Set[str]]
"""Those of the names that a table has no column for; none where the server names no columns."""


def _keep_no_types(_: Lacking) -> None: ...


@dataclass(slots=True)
class NarrowColumns:
    """Compares the types of new schemas with the columns of their tables; call it before each batch, and at the end.

    The server rounds or cuts some values in silence: a fraction too long for a DECIMAL, a fraction in a column of whole
    numbers, the time of a day in a DATE. Other values that do not fit it rejects.

    Columns that StarRocks can widen are in `wider_types`, with `widens`. Others that would change values are an error,
    but those whose type is `declared` for their table. Values for the rest are refused, if they do not fit:
    `statements` would help then, and `ways` say so, by table and column.
    """

    new_types: NewTypes
    columns_of: ColumnsOf
    declared: Callable[[str], Collection[str]]
    widens: bool
    wider_types: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    ways: dict[tuple[str, str], str] = field(default_factory=dict)

    def __call__(self) -> None:
        """Raises NarrowColumn for a column that would change values."""
        for table, types in self.new_types():
            narrow = self._narrow(table, types, False)
            if any(self._counts(column, target_type) for column, target_type in narrow):
                narrow = self._narrow(table, types, True)
            for column, target_type in narrow:
                self._judge(table, column, target_type)

    def missing(self) -> MissingColumns:
        """The types that columns are to hold."""
        return {
            table: {name: ColumnNeeds(types=tuple(types)) for name, types in columns.items()}
            for table, columns in self.wider_types.items()
        }

    def advice_for(self, table: str, column: str) -> str:
        """The end of the advice about a value that does not fit a column, if the source's column has another type."""
        return self.ways.get((table, column), "")

    def _narrow(self, table: str, types: Mapping[str, str], again: bool) -> list[tuple[TargetColumn, TargetType]]:
        declared = self.declared(table)
        return [
            (column, target_type)
            for column in self.columns_of(table, again)
            if (text := types.get(column.name)) and column.name not in declared
            if not holds(column.type, target_type := _parsed(text))
        ]

    def _counts(self, column: TargetColumn, target_type: TargetType) -> bool:
        """Whether the column is to be widened or refused, which old columns are no reason for."""
        return rounds(column.type, target_type) or (self.widens and widened(column, target_type) is not None)

    def _judge(self, table: str, column: TargetColumn, target_type: TargetType) -> None:
        wider, by_hand = widened(column, target_type), changed_by_hand(column, target_type)
        way = (
            f"Create the table anew with {target_type}, because StarRocks cannot change the column to it"
            if by_hand is None
            else f"Run {alteration(quote(table), {}, {column: by_hand})}"
            + (", with the DEFAULT of the column behind it" if column.defaulted else "")
        )
        if self.widens and wider is not None:
            self.wider_types.setdefault(table, {}).setdefault(column.name, []).append(str(target_type))
        elif rounds(column.type, target_type):
            later = "" if by_hand is None else _LATER
            apply = (
                "" if self.widens or wider is None else "; or set schema_changes='apply', with which the sink does so"
            )
            raise NarrowColumn(
                f"Column {column.name} of table {table} is {column.type}, and the source's is {target_type}: StarRocks "
                "would round or cut values in silence.",
                hint=f"{way}, and start the query again{later}{apply}. If all values fit, say so: "
                f"{declared_types(table, column.name, str(column.type))}.",
                table=table,
            )
        else:
            self.ways[table, column.name] = (
                f" The source's column is {target_type}, and the table's {column.type}. {way}."
            )
            if wider is not None:
                self.statements.append(alteration(quote(table), {}, {column: wider}))


_LATER = " when SHOW ALTER TABLE COLUMN says FINISHED (20 s and more)"
"""Until then the column is as it was, and StarRocks refuses another ALTER of the table (wire contract 10.15)."""


_parsed = lru_cache(maxsize=1024)(parse_type)


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """What the source's own schema says about columns, as far as the lane has read it, and the rules of their tables.

    It `completes` rows that leave unchanged values out, and with `encodes_bytes` texts for bytes are encodings of them.
    At the end it may `keep_types` of columns that tables lack, for rows that wait. Ready rows come without a schema.
    """

    types_of: TypesOf = no_types
    filled: Filled = never_filled
    new_types: NewTypes = _no_new_types
    options_of: Callable[[str], TableOptions] | None = None
    completes: bool = False
    keep_types: Callable[[Lacking], None] = _keep_no_types
    encodes_bytes: bool = False


def _with_others(bad_rows: list[BadRow], others: list[BadRow]) -> list[BadRow]:
    """The bad rows and those of `others` that are not among them, in the order of the rows."""
    if not others:
        return bad_rows
    numbers = {row.number for row in bad_rows}
    return sorted((*bad_rows, *(row for row in others if row.number not in numbers)), key=lambda row: row.number)


class TableChecks:
    """The checks of one lane: of its rows, batch by batch, and of the columns that they need.

    `compared` has the names in rows that the driver knows already, by table; None if it does not want to know any.
    Without `known_columns` the server names none. Rows are completed by `unchanged`. `bare_values` rewrites those that
    no schema explains, by the connector's `modes`; None without modes, and where the server names no columns.
    `partitions` makes those that rows need, once their text and names are right.

    Raises OptionError for modes that need the types of columns, without a server that names them.
    """

    def __init__(
        self,
        options: SinkOptions,
        source: SourceSchema,
        known_columns: KnownColumns | None,
        deadline: Deadline,
        compared: Mapping[str, Set[str]] | None = None,
        unchanged: UnchangedValues | None = None,
        modes: ConnectorModes | None = None,
        known_partitions: KnownPartitions | None = None,
    ) -> None:
        self._options, self._source, self._known, self._deadline = options, source, known_columns, deadline
        findings = RowFindings()
        self._texts = RowCheck(findings.doubtful)
        self.members = self._member_names(findings, compared, unchanged)
        self._keys: KeyChecks | None = None
        if known_columns is not None:
            self._keys = KeyChecks(self._columns_of, known_columns.key_limit, deadline, findings.numbers)
        self._encodes_bytes = source.encodes_bytes or modes is not None
        self._values: ValueChecks | None = None
        if known_columns is not None and options.check_values:
            self._values = self._value_checks(self._judged_columns, findings)
        self.narrow: NarrowColumns | None = None
        if known_columns is not None and source.new_types is not _no_new_types:
            types_of_table = source.options_of or options.options_of
            widens = options.schema_changes is SchemaChanges.APPLY
            self.narrow = NarrowColumns(
                source.new_types, self._columns_of, lambda table: types_of_table(table).types, widens
            )
        self.partitions: PartitionCheck | None = None
        if known_partitions is not None:
            self.partitions = PartitionCheck(known_partitions, self._columns_of, options.max_new_partitions, deadline)
        self.bare_values: BareValues | None = None
        if modes is not None and known_columns is not None:
            self.bare_values = BareValues(modes, self._unexplained)
        elif modes is not None and modes != ConnectorModes():
            raise OptionError(
                "time_precision_mode, decimal_handling_mode and binary_handling_mode need the types of the tables' "
                "columns.",
                hint="Set query_url.",
                option="query_url",
            )

    def _value_checks(self, columns_of: ColumnsOf, findings: RowFindings, counters_known: bool = False) -> ValueChecks:
        options, wall = self._options, self._deadline.clock.wall
        zone, shows_keys, decoded = zone_of(options.timestamp_zone), options.show_rejected_values, options.decoded
        return ValueChecks(columns_of, zone, self._encodes_bytes, decoded, wall, shows_keys, counters_known, findings)

    def explain(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows with a value that its column would not keep, without `check_values`, too; a `bad_rows.Judge`.

        For rows that the server has rejected and does not say why: that is not always what it found.
        """
        known = self._known
        if known is None:
            return []

        def columns_of(table: str, again: bool) -> Sequence[TargetColumn]:
            return known.with_counters(table, again, self._deadline) if self._names_columns(table) else ()

        return self._value_checks(columns_of, RowFindings(), counters_known=True).bad_rows(batch)

    def judge(self, batch: pa.RecordBatch) -> list[BadRow]:
        """The rows of a batch that the sink itself judges to be bad; a `bad_rows.Judge`."""
        torn = self._texts(batch)
        return torn if self._keys is None else _with_others(torn, self._keys(batch))

    def of_rows(self, *, judged: bool = False) -> CheckRows:
        """The checks of a batch: its rows one by one, unless they are `judged` before, then what is in them.

        The check raises RowsRejected for a bad row, and the errors of NarrowColumns and MemberNames.
        """
        names, narrow, partitions = self.members, self.narrow, self.partitions

        def check(batch: pa.RecordBatch) -> None:
            if narrow is not None:
                narrow()
            bad_rows = [] if judged else self.judge(batch)
            if bad_rows:
                raise refused(batch, bad_rows)
            if names is not None:
                names(batch)
            if partitions is not None:
                partitions(batch)

        return check

    def judge_all(self, batch: pa.RecordBatch) -> list[BadRow]:
        """Those of `judge`, and with `check_values` those with a value that its column would not keep."""
        bad_rows = self.judge(batch)
        if self._values is None or self._waits:
            return bad_rows
        return _with_others(bad_rows, self._values.bad_rows(batch))

    def fit(self) -> FitRows:
        """Writes the rows of a batch as their columns keep them, as far as these are known.

        Rows are not judged while a column is too narrow or missing: they come again when the driver has changed it.
        """
        values = self._values
        if values is None:
            return as_they_are

        def fit(batch: pa.RecordBatch) -> pa.RecordBatch:
            try:
                return batch if self._waits else values(batch)
            except UnfitValue as error:
                if self.narrow is not None:
                    error.advice += self.narrow.advice_for(str(error.context["table"]), str(error.context["column"]))
                raise

        return fit

    @property
    def _waits(self) -> bool:
        """Whether rows wait for columns of their tables."""
        lacking = self.members.lacking if self.members is not None else None
        return bool(lacking is not None and lacking.kinds) or bool(self.narrow is not None and self.narrow.wider_types)

    def until_columns_lack(self, segments: Iterator[Segment]) -> Iterator[Segment]:
        """The segments; once a row needs a column that its table lacks, or a wider one, none.

        The rest is read all the same, because it says which type the column needs. Raises TablesLackColumns at the end.
        """
        lacking = self.members.lacking if self.members is not None else None
        narrow = self.narrow
        for segment in segments:
            if not self._waits:
                yield segment
        if narrow is not None:
            narrow()  # also the schemas of rows that wait for the end of their transaction
        self._source.keep_types(self._lacking)
        missing = [] if lacking is None else [lacking.missing()]
        missing += [] if narrow is None else [narrow.missing()]
        if any(missing):
            raise TablesLackColumns(join_missing(missing))

    def _member_names(
        self, findings: RowFindings, compared: Mapping[str, Set[str]] | None, unchanged: UnchangedValues | None
    ) -> MemberNames | None:
        """The check of the names in rows; None if nobody would learn from it."""
        policy, known, types_of = self._options.schema_changes, self._known, self._source.types_of
        refuse = policy is not SchemaChanges.IGNORE and known is not None
        if unchanged is None and (known is None or not (refuse or compared is not None)):
            return None

        def columns_of(table: str, again: bool) -> frozenset[str] | None:
            return known.of(table, again, self._deadline) if known is not None else None

        def dropped(table: str) -> Mapping[str, float]:
            return known.dropped(table, self._deadline) if known is not None else {}

        def replaced(table: str) -> Mapping[str, float]:
            return known.replaced(table, self._deadline) if known is not None and refuse else {}

        def filled(table: str, name: str) -> bool:
            """A column that comes back is NULL in all rows, as one that the source has filled."""
            return self._source.filled(table, name) or name in dropped(table)

        adds = policy is SchemaChanges.APPLY and known is not None
        lacking = LackingColumns(types_of, filled) if adds else None
        findings.shapes = Shapes()
        return MemberNames(
            findings.new_rows,
            columns_of,
            self._names_columns,
            refuse,
            compared,
            lacking,
            types_of,
            unchanged,
            dropped,
            replaced,
        )

    def _lacking(self, table: str, names: Set[str]) -> Set[str]:
        if self._known is None or not self._names_columns(table):
            return frozenset()
        return names - (self._known.of(table, False, self._deadline) or frozenset())

    def _columns_of(self, table: str, again: bool) -> Sequence[TargetColumn]:
        assert self._known is not None
        return self._known.columns(table, again, self._deadline) if self._names_columns(table) else ()

    def _judged_columns(self, table: str, again: bool) -> Sequence[TargetColumn]:
        """The columns by which values are judged."""
        return self._columns_of(table, again) if self._options.judges_values(table) else ()

    def _unexplained(self, table: str) -> list[TargetColumn]:
        """The columns whose values no schema explains."""
        columns = self._columns_of(table, False)
        return [column for column in columns if not self._source.types_of(table, column.name)]

    def _names_columns(self, table: str) -> bool:
        """Whether names in the JSON rows of `table` are columns: no load property gives them another meaning.

        Rows of the sink's own tables are refused as such, whatever they name.
        """
        return not is_own_table(table) and not renames(self._options.load_headers(table))
