"""`compact`: of a lane's rows only the last one per table and primary key is sent; chosen in the JVM.

The server promises no order between rows of one key inside one StarRocks transaction. A row that another one replaces
keeps its place in the lane with an empty payload, so that source transactions stay whole, positions advance and counts
add up. A row and its replacement must become visible together, so a lane makes exactly one StarRocks transaction of a
micro-batch (`writer.task.limits`).

Fingerprints are made of the complete rows, before any is left out: the choice depends on the bounds of the micro-batch,
and a replay may have other bounds. For the same reason rows that are visible by the ledger take no part: the lane skips
them, so they must not replace a row that is still to be sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as T  # noqa: N812

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.ledger import LEDGER_TABLE
from starrocks_txn_sink.rows.columns import DELETED, FINGERPRINT, PARTITION, PAYLOAD, POSITION, PRIMARY_KEYS, TABLE
from starrocks_txn_sink.sink.typed.route import TypedRoute
from starrocks_txn_sink.sink.typed.target import parse_type
from starrocks_txn_sink.sql.leader import LeaderConnection

# Understood alike by the JVM and by Python, in which a test says the rule once more (`tests/support/key_forms.py`).
NUMBER = r"^[ \t]*([+-]?)0*([0-9]*?)(?:\.([0-9]*?)0*)?[ \t]*$"
A_DIGIT = r"[0-9]"
DAY = r"^[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})[ \t]*$"
MOMENT = r"^[ \t]*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})[ \t]*$"
TIME = (
    r"^[ \t]*([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?)?[ \t]*$"
)
TRUTHS = {"true": "1", "false": "0"}


class KeyType(Enum):
    """Groups of column types with one rule of comparison; the text completes an error."""

    BOOLEAN = "true, false, 1 or 0"
    INTEGER = "a whole number without exponent"
    DECIMAL = "a number without exponent and with no more digits behind the point than the column has"
    DATE = "a date like 2026-01-31"
    DATETIME = "a time like 2026-01-31 12:00:00, with up to six digits of a second"
    TEXT = "text"
    OTHER = "a type that can be compared"


_KEY_TYPES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT"), KeyType.INTEGER),
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), KeyType.TEXT),
    **{kind.name: kind for kind in (KeyType.BOOLEAN, KeyType.DECIMAL, KeyType.DATE, KeyType.DATETIME)},
}


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a primary key; `scale` counts the digits behind a decimal's point (None: not known).

    `field` is the column's key in a JSON row where it is spelled in another way than the column.
    """

    name: str
    key_type: KeyType
    scale: int | None = None
    field: str = ""

    @classmethod
    def of(cls, name: str, column_type: str, scale: int | None) -> KeyColumn:
        """From information_schema.columns: `column_type` as in `bigint(20) unsigned` or `decimal(10, 2)`."""
        key_type = _KEY_TYPES.get(parse_type(column_type).name, KeyType.OTHER)
        return cls(name, key_type, scale if key_type is KeyType.DECIMAL else None)

    @property
    def json_key(self) -> str:
        return self.field or self.name

    @property
    def digits_behind_point(self) -> int | None:
        """The digits that the column keeps; None if unknown."""
        return self.scale if self.key_type is KeyType.DECIMAL else 0


_KEY, _FIELDS, _LANE, _ALONE = "__key", "__fields", "__lane", "__alone"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rule of one micro-batch: `keys` by table, tables without a primary key (`keyless`), and by source partition
    the position up to which rows are visible already (`visible`)."""

    keys: Mapping[str, Sequence[KeyColumn]]
    keyless: Sequence[str] = ()
    visible: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        keys: Mapping[str, Sequence[KeyColumn]],
        models: Iterable[str],
        visible: Mapping[str, int],
        routes: Iterable[TypedRoute],
    ) -> Compaction:
        """The compaction of a micro-batch whose rows `routes` write, if there are any; `models` names all tables."""
        keyless = [table for table in models if table not in keys]
        return cls({**keys, **dict(_as_written(keys, routes))}, keyless, visible)

    def mark_replaced(self, rows: DataFrame, lane: Column, seq: str) -> DataFrame:
        """`rows` (PARTITION, POSITION, `seq`, TABLE, PAYLOAD, …) with FINGERPRINT, and the payload of replaced rows
        empty; such a row is no delete any more. `lane` says which lane a row goes to.

        A row whose key is NULL or missing is sent as it is. A key that cannot be compared, and a table that did
        not exist when the query started, fail the job with the row's place.
        """
        whole = rows.withColumn(FINGERPRINT, F.xxhash64(TABLE, PAYLOAD))
        keyed = self._keyed(whole)
        spread = keyed.withColumn(_LANE, lane).withColumn(
            _ALONE, F.when(F.col(_KEY).isNull(), F.xxhash64(PARTITION, POSITION, seq))
        )
        newest = Window.partitionBy(_LANE, TABLE, _KEY, _ALONE).orderBy(
            F.col(PARTITION).desc(), F.col(POSITION).desc(), F.col(seq).desc()
        )
        replaced = F.col(_KEY).isNotNull() & (F.row_number().over(newest) > 1)
        payload = F.when(replaced, F.lit("")).otherwise(F.col(PAYLOAD))
        sent = {PAYLOAD: payload}
        if DELETED in rows.columns:
            sent[DELETED] = F.col(DELETED) & ~replaced
        return spread.withColumns(sent).select(*whole.columns)

    def _keyed(self, rows: DataFrame) -> DataFrame:
        names = dict.fromkeys(column.json_key for columns in self.keys.values() for column in columns)
        if not names:
            return rows.withColumn(_KEY, self._key().cast("array<string>"))
        shape = T.StructType([T.StructField(name, T.StringType()) for name in names])
        fields = F.from_json(F.substr(F.col(PAYLOAD), F.lit(2)), shape)
        return rows.withColumn(_FIELDS, fields).withColumn(_KEY, self._key())

    def _key(self) -> Column:
        """The row's key as an array of texts; NULL for a row that no other can replace."""
        known = F.col(TABLE).isNull() | F.col(TABLE).isin(*self.keyless, *self.keys)
        key = F.when(~known, _refusal(F.lit("did not exist when the query started: restart the query")))
        for table, columns in self.keys.items():
            texts = [F.col(_FIELDS).getField(column.json_key) for column in columns]
            forms = [_comparable_text(column, text) for column, text in zip(columns, texts, strict=True)]
            missing = reduce(Column.__or__, (text.isNull() for text in texts))
            key = F.when(F.col(TABLE) == table, F.when(~missing, F.array(*forms))).otherwise(key)
        return F.when(~self._visible(), key) if self.visible else key

    def _visible(self) -> Column:
        pairs = [F.lit(part) for pair in sorted(self.visible.items()) for part in pair]
        last = F.try_element_at(F.create_map(*pairs), F.col(PARTITION))
        return F.coalesce(F.col(POSITION) <= last, F.lit(False))


def _as_written(
    keys: Mapping[str, Sequence[KeyColumn]], routes: Iterable[TypedRoute]
) -> Iterator[tuple[str, tuple[KeyColumn, ...]]]:
    """The keys of the tables of `routes`, read from where a route writes them; names may differ in case."""
    for route in routes:
        written = {field.name.lower(): field.key for field in route.fields}
        columns = keys.get(route.table, ())
        if columns:
            yield route.table, tuple(replace(each, field=written.get(each.name.lower(), "")) for each in columns)


def _refusal(why: Column) -> Column:
    parts = [F.lit("StarRocks sink: compact: the table "), F.col(TABLE), F.lit(" "), why]
    place = [F.lit("; met at source partition "), F.col(PARTITION), F.lit(", position "), F.col(POSITION)]
    return F.raise_error(F.concat(*parts, *place, F.lit("."))).cast("array<string>")


def _comparable_text(column: KeyColumn, text: Column) -> Column:
    """One text for all texts that the server takes for the same value; a text outside the type's form fails the job."""
    why = f"has a key that cannot be compared: its column {column.name} needs {column.key_type.value}"
    return F.coalesce(_normal_form(column, text), _refusal(F.lit(why))[0])


def _normal_form(column: KeyColumn, text: Column) -> Column:
    match column.key_type:
        case KeyType.TEXT:
            return text
        case KeyType.INTEGER | KeyType.DECIMAL:
            return _number(column, text)
        case KeyType.BOOLEAN:
            number = _number(column, F.lower(text))
            return F.when(number == "0", F.lit("0")).when(number.isNotNull(), F.lit("1"))
        case KeyType.DATE | KeyType.DATETIME:
            return _time(column, text)
        case KeyType.OTHER:
            return F.lit(None).cast("string")


def _number(column: KeyColumn, text: Column) -> Column:
    sign, whole, fraction = (F.regexp_extract(text, NUMBER, group) for group in (1, 2, 3))
    digits = F.concat(
        F.when(whole == "", F.lit("0")).otherwise(whole),
        F.when(fraction == "", F.lit("")).otherwise(F.concat(F.lit("."), fraction)),
    )
    signed = F.when((sign == "-") & (digits != "0"), F.concat(F.lit("-"), digits)).otherwise(digits)
    fits = text.rlike(NUMBER) & text.rlike(A_DIGIT)
    if column.digits_behind_point is not None:
        fits &= F.length(fraction) <= F.lit(column.digits_behind_point)
    number = F.when(fits, signed)
    if column.key_type is KeyType.DECIMAL:
        return number
    for word, digit in TRUTHS.items():
        number = F.when(text == word, F.lit(digit)).otherwise(number)
    return number


def _time(column: KeyColumn, text: Column) -> Column:
    day = F.regexp_replace(text, DAY, "$1-$2-$3")
    plain = F.regexp_replace(day, MOMENT, "$1-$2-$3 $4:$5:$6")
    year, *rest = (F.regexp_extract(plain, TIME, group) for group in range(1, 7))
    padded = [F.lpad(part, 2, "0") for part in rest]
    form = F.concat_ws("-", year, *padded[:2])
    if column.key_type is KeyType.DATETIME:
        second = F.rpad(F.regexp_extract(plain, TIME, 7), 6, "0")
        form = F.concat(form, F.lit(" "), F.concat_ws(":", *padded[2:]), F.lit("."), second)
    return F.when(plain.rlike(TIME), form)


_COMPUTED: Final = re.compile(r"(?:^|,)\s*(`[^`]+`|\w+)\s*=(?!=)")


def primary_keys(
    connection: LeaderConnection, options: SinkOptions, models: Mapping[str, str], deadline: Deadline
) -> dict[str, tuple[KeyColumn, ...]]:
    """The key columns of the PRIMARY KEY tables among `models`.

    Raises OptionError when the server does not show them, or when the property `columns` of a table computes one;
    QueryFailed or QueryRefused when the query fails.
    """
    rows = connection.query(
        "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, NUMERIC_SCALE FROM information_schema.columns"
        " WHERE TABLE_SCHEMA = %s AND COLUMN_KEY = 'PRI' ORDER BY TABLE_NAME, ORDINAL_POSITION",
        (options.database,),
        deadline,
    )
    keys: dict[str, tuple[KeyColumn, ...]] = {
        table: () for table, model in models.items() if model == PRIMARY_KEYS and table != LEDGER_TABLE
    }
    for table, name, kind, scale in rows:
        if table in keys:
            keys[table] += (KeyColumn.of(str(name), str(kind), None if scale is None else int(scale)),)
    unknown = sorted(table for table, columns in keys.items() if not columns)
    if unknown:
        raise OptionError(
            f"compact is set, but information_schema.columns names no key column of {', '.join(unknown)}.",
            hint="Let the user see the tables' columns, or turn compact off and choose the last row per key upstream "
            "(to_starrocks_ops).",
            option="compact",
        )
    for table, columns in keys.items():
        _refuse_computed(table, columns, options.load_headers(table).get("columns", ""))
    return keys


def _refuse_computed(table: str, columns: tuple[KeyColumn, ...], header: str) -> None:
    computed = {name.strip("`").lower() for name in _COMPUTED.findall(header)}
    found = [column.name for column in columns if column.name.lower() in computed]
    if found:
        raise OptionError(
            f"compact is set, but the property columns of {table} computes its key column {', '.join(found)}: two rows "
            "cannot be compared before the server has computed their keys.",
            hint="Compute the key before the sink, or turn compact off.",
            option="compact",
        )
