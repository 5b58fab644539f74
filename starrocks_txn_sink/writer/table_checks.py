"""The rows of a lane are compared with their tables before a load: their names, the types of columns, and dates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.compiled.findings import RowFindings, Shapes
from starrocks_txn_sink.coordinator.coordinator import join_missing
from starrocks_txn_sink.coordinator.model import ColumnNeeds, MissingColumns, Receipt, Segment
from starrocks_txn_sink.errors import NarrowColumn, OptionError, UnfitValue
from starrocks_txn_sink.options import SchemaChanges, SinkOptions
from starrocks_txn_sink.options.enums import declared_types
from starrocks_txn_sink.options.load_properties import renames
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import quote
from starrocks_txn_sink.rows.alterations import alteration
from starrocks_txn_sink.rows.bad_rows import BadRow, refused
from starrocks_txn_sink.rows.columns import PAYLOAD, TABLE
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.member_names import LackingColumns, MemberNames
from starrocks_txn_sink.rows.row_check import RowCheck
from starrocks_txn_sink.rows.segments import CheckRows, FitRows, as_they_are
from starrocks_txn_sink.rows.target import TargetColumn, TargetType, parse_type
from starrocks_txn_sink.rows.unchanged import UnchangedValues
from starrocks_txn_sink.rows.widening import changed_by_hand, holds, rounds, widened
from starrocks_txn_sink.sources.formats.bare_values import BareValues, ConnectorModes
from starrocks_txn_sink.writer.known_columns import KnownColumns
from starrocks_txn_sink.writer.messages import LaneReport
from starrocks_txn_sink.writer.partitions import KnownPartitions, PartitionCheck
from starrocks_txn_sink.writer.pipe import PipeStage, SourceSchema
from starrocks_txn_sink.writer.value_checks import KeyChecks, ValueChecks, zone_of


class TablesLackColumns(Exception):
    """Rows of this lane need `columns` that their tables lack; no error, because the driver can add them."""

    def __init__(self, columns: MissingColumns) -> None:
        super().__init__()
        self.columns = columns


ColumnsOf = Callable[[str, bool], Sequence[TargetColumn]]
"""The columns of a table, none if nothing is known about it; with True the server is asked again."""


@dataclass(slots=True)
class NarrowColumns:
    """Compares the types of new schemas with the columns of their tables; call it before each batch, and at the end.

    The server rounds or cuts some values in silence: a fraction too long for a DECIMAL, a fraction in a column of whole
    numbers, the time of a day in a DATE. Other values that do not fit it rejects.

    Columns that StarRocks can widen are in `wider_types`, with `widens`. Others that would change values are an error,
    but those whose type is `declared` for their table. Values for the rest are refused, if they do not fit:
    `statements` would help then, and `ways` say so, by table and column.
    """

    new_types: Callable[[], Iterable[tuple[str, Mapping[str, str]]]]
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


def _with_others(bad_rows: list[BadRow], further_rows: list[BadRow]) -> list[BadRow]:
    """The bad rows and those of `further_rows` that are not among them, in the order of the rows."""
    if not further_rows:
        return bad_rows
    numbers = {row.number for row in bad_rows}
    return sorted((*bad_rows, *(row for row in further_rows if row.number not in numbers)), key=lambda row: row.number)


class TableChecks(PipeStage):
    """The checks of one lane: of its rows, batch by batch, and of the columns that they need.

    As a stage it lets segments pass until a column lacks.

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
        if known_columns is not None and source.describes:
            widens = options.schema_changes is SchemaChanges.APPLY
            self.narrow = NarrowColumns(
                source.new_types, self._columns_of, lambda table: source.options_of(table, options).types, widens
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
        """The rows that no partition takes, or with a value that its column would not keep; a `bad_rows.Judge`.

        For rows that the server has rejected and does not say why: that is not always what it found.
        """
        known_columns = self._known
        if known_columns is None:
            return []

        def columns_of(table: str, again: bool) -> Sequence[TargetColumn]:
            return known_columns.with_counters(table, again, self._deadline) if self._names_columns(table) else ()

        values = self._value_checks(columns_of, RowFindings(), counters_known=True).bad_rows(batch)
        return _with_others(values, [*self._out_of_ranges(batch, known_columns)])

    def _out_of_ranges(self, batch: pa.RecordBatch, known_columns: KnownColumns) -> Iterator[BadRow]:
        """The rows that no partition of their tables takes."""
        tables, payload = batch.column(TABLE), batch.column(PAYLOAD)
        for table in filter(self._names_columns, tables.unique().drop_null().to_pylist()):
            ranges = known_columns.ranges(table, self._deadline)
            columns = known_columns.columns(table, False, self._deadline) if ranges is not None else ()
            kind = next((column.type for column in columns if ranges and column.name == ranges.column), None)
            if ranges is None or kind is None:
                continue
            for number in np.flatnonzero(pc.equal(tables, table).to_numpy(zero_copy_only=False)).tolist():
                with contextlib.suppress(ValueError, IndexError):  # no JSON object
                    value, _ = members(payload[number].as_py()[1:]).get(ranges.column, (None, ""))  # behind the comma
                    if ranges.leave_out(value, kind):
                        yield BadRow(number, f"has a value of {ranges.column} that no partition of its table takes")

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

    def __call__(self, segments: Iterable[Segment]) -> Iterator[Segment]:
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

    def count(self, report: LaneReport, receipts: Sequence[Receipt]) -> None:  # noqa: ARG002
        if self.narrow is not None:
            report.work.wider = tuple(self.narrow.statements)
        if self.members is not None and not report.code:
            report.work.members = self.members.news()

    def _member_names(
        self, findings: RowFindings, compared: Mapping[str, Set[str]] | None, unchanged: UnchangedValues | None
    ) -> MemberNames | None:
        """The check of the names in rows; None if nobody would learn from it."""
        policy, known_columns, types_of = self._options.schema_changes, self._known, self._source.types_of
        refuse = policy is not SchemaChanges.IGNORE and known_columns is not None
        if unchanged is None and (known_columns is None or not (refuse or compared is not None)):
            return None

        def columns_of(table: str, again: bool) -> frozenset[str] | None:
            return known_columns.of(table, again, self._deadline) if known_columns is not None else None

        def dropped(table: str) -> Mapping[str, float]:
            return known_columns.dropped(table, self._deadline) if known_columns is not None else {}

        def replaced(table: str) -> Mapping[str, float]:
            return known_columns.replaced(table, self._deadline) if known_columns is not None and refuse else {}

        def filled(table: str, name: str) -> bool:
            """A column that comes back is NULL in all rows, as one that the source has filled."""
            return self._source.filled(table, name) or name in dropped(table)

        adds = policy is SchemaChanges.APPLY and known_columns is not None
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
