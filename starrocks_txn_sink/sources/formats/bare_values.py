"""Values of messages without the converter's schema, in columns of dates, times, numbers and documents.

What a number counts, and how many decimals bytes have, says only the schema, or the mode of the connector. The server
would read the digits as a date (1711010101010 as 1711-01-01) or as a number ("1234" of base64), or reject the row.
With a declared mode each row is rewritten where mode and column leave one meaning, and refused where they leave more.
Without one the first rows of each table are looked at: a column of such values has them in each row, and all rows cost
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from starrocks_txn_sink.compiled.layout import ConversionKind as Kind
from starrocks_txn_sink.coordinator.model import SEPARATOR
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.checks import check_choice
from starrocks_txn_sink.options.decoding import Encoding
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.rows.json_members import members
from starrocks_txn_sink.rows.metadata import numbers_by_table
from starrocks_txn_sink.rows.places import place_of
from starrocks_txn_sink.rows.target import BITS, TargetColumn
from starrocks_txn_sink.rows.value_kinds import ValueKind, kind_of, members_of
from starrocks_txn_sink.sources.formats.connect_values import Conversion, Plan, convert_row, convert_rows, is_base64

TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "microseconds", "nanoseconds", "isostring"]
DecimalMode = Literal["precise", "double", "string"]
BinaryMode = Literal["bytes", "base64", "hex"]
ColumnsOf = Callable[[str], Iterable[TargetColumn]]
"""The columns of a table whose values no schema explains."""

MODES: Final = "starrocks_txn_sink.connector_modes"
"""In the metadata of a frame's `op`: the ConnectorModes of its rows."""

_DECIMALS: Final[Mapping[str, int]] = {"connect": 3, "microseconds": 6, "nanoseconds": 9}
"""The decimals of a second of all numbers for dates with times; the other modes choose them column by column."""
_DATES: Final = ("DATE", "DATETIME")
_NUMBERS: Final = (*BITS, "FLOAT", "DOUBLE", "DECIMAL")
_NO_NUMBERS: Final = (
    ValueKind.TRUTH,
    ValueKind.TEXT,
    ValueKind.OVERSIZE,
    ValueKind.DOCUMENT,
    None,
)
_VARIABLE: Final = {"scale", "value"}
_LOOKED_AT: Final = 100  # rows of a table: a millisecond at most, and a column is NULL in all of them rarely


@dataclass(frozen=True, slots=True)
class ConnectorModes:
    """`time.precision.mode`, `decimal.handling.mode` and `binary.handling.mode` of a connector.

    None is for the first two where messages have a schema, and for the last one Debezium's own.
    """

    time: TimeMode | None = None
    decimal: DecimalMode | None = None
    binary: BinaryMode | None = None

    def __post_init__(self) -> None:
        for name, mode, modes in (
            ("time_precision_mode", self.time, get_args(TimeMode)),
            ("decimal_handling_mode", self.decimal, get_args(DecimalMode)),
            ("binary_handling_mode", self.binary, get_args(BinaryMode)),
        ):
            if mode is not None:
                check_choice(name, mode, modes)

    @classmethod
    def declared(
        cls, time: TimeMode | None, decimal: DecimalMode | None, binary: BinaryMode | None, registry: object
    ) -> ConnectorModes:
        """The modes by a user's arguments.

        Raises OptionError for another mode, and for one of decimals with a registry, whose schemas explain them all.
        """
        modes = cls(time, decimal, binary)
        if registry is not None and decimal is not None:
            raise OptionError(
                "With a registry the schema explains every decimal, whatever the connector's mode is.",
                hint="Leave decimal_handling_mode out.",
                option="decimal_handling_mode",
            )
        return modes

    @property
    def encoding(self) -> Encoding:
        """How texts stand for bytes: a converter writes `bytes` in base64, too."""
        return Encoding.HEX if self.binary == "hex" else Encoding.BASE64

    @property
    def metadata(self) -> dict[str, Any]:
        """The modes as metadata of a column of Spark's."""
        return {MODES: {name: mode for name, mode in asdict(self).items() if mode is not None}}

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> ConnectorModes | None:
        """The modes in the metadata of a column; None for rows that are not Debezium's."""
        modes = metadata.get(MODES)
        return None if modes is None else cls(**modes)


def plan_of(columns_of_table: Iterable[TargetColumn], modes: ConnectorModes) -> Plan:
    """What is done to the values of a table's columns under the declared modes, and to documents."""
    plan: dict[str, Conversion] = {}
    for column in columns_of_table:
        name, array = _element(column)
        if name in _DATES and modes.time is not None:
            kind = Kind.DATE if name == "DATE" else Kind.TIMESTAMP
            number = _DECIMALS.get(modes.time, -1 if kind is Kind.TIMESTAMP or modes.time == "isostring" else 0)
            plan[column.name] = Conversion(kind, number, array, bare=True)
        elif name in _NUMBERS and modes.decimal == "precise":
            plan[column.name] = Conversion(Kind.VARIABLE_DECIMAL, 0, array, bare=True)
        elif name == "JSON":  # the connector writes documents as texts, whatever its modes are
            plan[column.name] = Conversion(Kind.DOCUMENT, array=array)
    return plan


def _element(column: TargetColumn) -> tuple[str, bool]:
    """The name of a column's type, or of its elements' type, and whether it is an array."""
    array = column.type.name == "ARRAY" and bool(column.type.items)
    return (column.type.items[0][1] if array else column.type).name, array


@dataclass(slots=True)
class BareValues:
    """Rewrites or refuses the values of a lane's rows that no schema explains; call it for each batch."""

    modes: ConnectorModes
    columns_of: ColumnsOf
    _plans: dict[str, Plan] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)  # rows to look at, by table
    _unknown: dict[str, dict[str, TargetColumn]] = field(default_factory=dict)  # columns that were NULL so far

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its values rewritten. Raises InputError with table, column and place, without a value."""
        names, of_row = numbers_by_table(batch.column(columns.TABLE))
        plans = [self._plan_of(name) for name in names]
        for number, table in enumerate(names):
            if self._left[table]:
                self._look_at(batch, table, np.flatnonzero(of_row == number))
        return self._converted(batch, names, plans, of_row) if any(plans) else batch

    def _plan_of(self, table: str) -> Plan:
        if table not in self._plans:
            columns = [*self.columns_of(table)]
            self._plans[table] = plan = plan_of(columns, self.modes)
            unknown = {column.name: column for column in columns if column.name not in plan}
            self._unknown[table] = {name: column for name, column in unknown.items() if self._looks_at(column)}
            self._left[table] = _LOOKED_AT if self._unknown[table] else 0
        return self._plans[table]

    def _looks_at(self, column: TargetColumn) -> bool:
        name, _ = _element(column)
        return name in _DATES or name in _NUMBERS

    def _converted(self, batch: pa.RecordBatch, names: list[str], plans: list[Plan], of_row: Any) -> pa.RecordBatch:
        plan_of_table = np.array([*(number if plan else -1 for number, plan in enumerate(plans)), -1], dtype=np.int32)
        payload = batch.column(columns.PAYLOAD)
        rewritten, fits = convert_rows(payload, plans, plan_of_table[of_row])
        if not fits.all():
            for number in np.flatnonzero(~fits).tolist():
                self._refuse(batch, number, names[of_row[number]], payload[number].as_py())
            rewritten = pc.if_else(pa.array(fits), rewritten.cast(payload.type), payload)  # no JSON: the server says so
        index = batch.schema.get_field_index(columns.PAYLOAD)
        return batch.set_column(index, columns.PAYLOAD, rewritten.cast(payload.type))

    def _refuse(self, batch: pa.RecordBatch, number: int, table: str, row: str) -> None:
        """Raise InputError for the first value of a row that does not fit; a row that is no JSON object passes."""
        try:
            texts = {name: text for name, (_, text) in members(row.removeprefix(SEPARATOR)).items()}
        except (ValueError, IndexError):
            return
        plan = self._plans[table]
        for column in self.columns_of(table):
            if column.name in plan and column.name in texts:
                try:
                    convert_row(f'{{"x":{texts[column.name]}}}', {"x": plan[column.name]})
                except (ValueError, IndexError):
                    raise self._refusal(batch, number, table, column) from None

    def _look_at(self, batch: pa.RecordBatch, table: str, rows: np.ndarray[Any, Any]) -> None:
        unknown = self._unknown[table]
        for row in rows[: self._left[table]].tolist():
            text = batch.column(columns.PAYLOAD)[row].as_py() or ""  # of NULL the lane says so
            values = members_of(text[len(SEPARATOR) :].encode()) or {}
            for name in sorted(unknown.keys() & values.keys()):
                if _is_unexplained(unknown[name], values[name]):
                    raise self._refusal(batch, row, table, unknown[name])
                if values[name] is not None:
                    del unknown[name]
            self._left[table] = self._left[table] - 1 if unknown else 0
            if not unknown:
                return

    def _refusal(self, batch: pa.RecordBatch, number: int, table: str, column: TargetColumn) -> InputError:
        place, about = place_of(batch, number), f"column {column.name} of table {table}"
        if _element(column)[0] in _DATES:
            who = "the message" if self.modes.time is None else f"time_precision_mode={self.modes.time!r}"
            text = f"A row has a number for {about}, which has dates{place}; what it counts, {who} does not say."
            hint = (
                "Set schemas.enable=true for value.converter, with any time.precision.mode; or time.precision.mode at "
                "the connector to isostring, or to connect, microseconds or nanoseconds with time_precision_mode here; "
                "or give the column the type BIGINT to keep the numbers."
            )
        else:
            text = (
                f"A row has bytes for {about}, which has numbers{place}; which number they are, the message does not "
                "say."
            )
            hint = "Set schemas.enable=true for value.converter, or decimal.handling.mode=string at the connector."
        return InputError(text, hint=hint, table=table)


def _is_unexplained(column: TargetColumn, value: Any) -> bool:
    """Whether a value of `members_of` means something that only a schema or a mode says."""
    name, array = _element(column)
    if array and isinstance(value, list):
        scalar = replace(column, type=column.type.items[0][1])
        return any(_is_unexplained(scalar, element) for element in value)
    if name in _DATES:
        return kind_of(value) not in _NO_NUMBERS
    if isinstance(value, dict):
        return value.keys() == _VARIABLE
    return is_base64(value) and not _is_number(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
