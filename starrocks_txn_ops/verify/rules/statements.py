"""The SQL of a comparison, the same questions for both databases: sums of ranges, marks of keys, rows of keys. Pure.

A *mark* is the MD5 of a row's key and values; a *bucket* has the rows whose key's MD5 begins with some digits; a
bucket's *sum* adds the first 60 bits of its rows' marks, so a doubled row counts, and the order does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_ops.verify.rules.core import Key, KeyRange
from starrocks_txn_ops.verify.rules.pairs import MYSQL, POSTGRESQL, Pair
from starrocks_txn_ops.verify.rules.sameness import exactly

STARROCKS: Final = "starrocks"
Statement = tuple[str, tuple[Any, ...]]
_AT_SOURCE: Final = "\n"  # begins statements that StarRocks never gets
_BUCKET: Final = 5  # digits of a key's MD5 by which a sample is chosen
_DIGITS: Final = 15  # hexadecimal, so 60 bits: a server's conv and bigint have 64 with a sign


@dataclass(frozen=True, slots=True)
class Branch:
    """A table, quoted, and the part of it that is compared (`where`, SQL); its pairs in the order of the others.

    `raw` are the key's columns themselves, quoted: by them an index finds rows.
    """

    table: str
    raw: tuple[str, ...]
    keys: tuple[Pair, ...]
    values: tuple[Pair, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Questions:
    """The statements for one side (POSTGRESQL, MYSQL, STARROCKS) of a comparison; several branches are one table.

    `share` below 1 asks for that part of the keys, the same part on both sides. `whole` shows long texts, not digests.
    """

    dialect: str
    branches: tuple[Branch, ...]
    share: float = 1.0
    whole: bool = False
    _relation: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_relation", self._from())

    @property
    def keys(self) -> tuple[Pair, ...]:
        """The columns of the key in the first branch; the others have theirs at the same places."""
        return self.branches[0].keys

    @property
    def values(self) -> tuple[Pair, ...]:
        """The columns of values in the first branch; the others have theirs at the same places."""
        return self.branches[0].values

    def count(self) -> Statement:
        """How many rows there are."""
        return f"SELECT count(*) FROM {self._relation}", ()

    def count_of(self, span: KeyRange) -> Statement:
        """How many rows a range has."""
        where, parameters = self._span(span)
        return f"SELECT count(*) FROM {self._relation} WHERE {where}", parameters

    def boundary(self, low: str | None, rows: int) -> Statement:
        """The first key column of the row that is `rows` rows behind `low`, in order; no row where there are fewer."""
        where, parameters = self._span(KeyRange(low, None))
        return (
            f"{_AT_SOURCE}SELECT k0 FROM {self._relation} WHERE {where} ORDER BY x0 LIMIT 1 OFFSET {rows}",
            parameters,
        )

    def after(self, low: str) -> Statement:
        """The next value of the first key column behind `low`."""
        relation = self._relation
        sql = f"{_AT_SOURCE}SELECT k0 FROM {relation} WHERE x0 > %s ORDER BY x0 LIMIT 1"
        return sql, (self._parameter(self.keys[0], low),)

    def sums(self, span: KeyRange, digits: int) -> Statement:
        """Of each bucket: its digits, how many rows it has, and its sum."""
        where, parameters = self._span(span)
        head = self._md5_60(self._mark())
        sql = f"SELECT {self._bucket(digits)} AS b, count(*), sum({head}) FROM {self._relation} WHERE {where} GROUP BY "
        return sql + ("1" if self.dialect != MYSQL else "b"), parameters

    def marks(self, span: KeyRange, digits: int, buckets: Sequence[str]) -> Statement:
        """Key and mark of each row of some buckets."""
        where, parameters = self._span(span)
        names = ", ".join(f"k{number}" for number in range(len(self.keys)))
        inside = ", ".join(f"'{int(bucket, 16):0{digits}x}'" for bucket in buckets) if digits else ""
        which = f" AND {self._bucket(digits)} IN ({inside})" if digits else ""
        return f"SELECT {names}, {self._mark()} FROM {self._relation} WHERE {where}{which}", parameters

    def rows(self, keys: Sequence[Key]) -> Statement:
        """The rows of some keys: the texts of key and values."""
        parameters = [self._parameter(*part) for key in keys for part in zip(self.keys, key, strict=True)]
        where = self._is_one_of(len(keys))
        return f"SELECT {self._texts()} FROM {self._relation} WHERE {where}", tuple(parameters)

    def all_rows(self, span: KeyRange, most: int) -> Statement:
        """The rows of a range, at most so many: the texts of key and values."""
        where, parameters = self._span(span)
        return f"SELECT {self._texts()} FROM {self._relation} WHERE {where} LIMIT {most}", parameters

    def deletes(self, keys: Sequence[Key]) -> list[Statement]:
        """The deletes of all rows of some keys, for StarRocks, whose DELETE takes no other form for several columns."""
        (branch,) = self.branches
        condition = f" AND {branch.where}" if branch.where else ""
        parameters = [tuple(map(self._parameter, self.keys, key)) for key in keys]
        if len(self.keys) == 1:
            where = f"{branch.raw[0]} IN ({', '.join(['%s'] * len(keys))})"
            return [(f"DELETE FROM {branch.table} WHERE {where}{condition}", tuple(value for (value,) in parameters))]
        where = " AND ".join(f"{column} = %s" for column in branch.raw)
        return [(f"DELETE FROM {branch.table} WHERE {where}{condition}", values) for values in parameters]

    # --- parts ---

    def _texts(self) -> str:
        keys, values = range(len(self.keys)), range(len(self.values))
        return ", ".join([*(f"k{number}" for number in keys), *(f"v{number}" for number in values)])

    def _is_one_of(self, count: int) -> str:
        """That the key is one of so many."""
        columns = [f"x{number}" for number in range(len(self.keys))]
        if len(columns) == 1:
            return f"x0 IN ({', '.join(['%s'] * count)})"
        if self.dialect == STARROCKS:  # whose IN takes one column
            one = " AND ".join(f"{column} = %s" for column in columns)
            return f"({' OR '.join([f'({one})'] * count)})"
        row = f"({', '.join(['%s'] * len(columns))})"
        return f"({', '.join(columns)}) IN ({', '.join([row] * count)})"

    def _parameter(self, pair: Pair, text: str) -> Any:
        if pair.number:
            return int(text)
        return text if self.dialect == STARROCKS else pair.parameter(text)

    def _span(self, span: KeyRange) -> tuple[str, tuple[Any, ...]]:
        parts, parameters = [], list[Any]()
        if span.low is not None:
            parts.append("x0 >= %s")
            parameters.append(self._parameter(self.keys[0], span.low))
        if span.high is not None:
            # The lowest range has the rows without a value, too.
            parts.append("x0 < %s" if span.low is not None else "(x0 < %s OR x0 IS NULL)")
            parameters.append(self._parameter(self.keys[0], span.high))
        if self.share < 1.0:
            parts.append(f"{self._bucket(_BUCKET)} < '{round(self.share * 16**_BUCKET):0{_BUCKET}x}'")
        return " AND ".join(parts) or "1 = 1", tuple(parameters)

    def _from(self) -> str:
        selects = []
        for branch in self.branches:
            parts = [f"{column} AS x{number}" for number, column in enumerate(branch.raw)]
            parts += [f"{self._text(pair)} AS k{number}" for number, pair in enumerate(branch.keys)]
            parts += [f"{self._shown(pair)} AS v{number}" for number, pair in enumerate(branch.values)]
            where = f" WHERE {branch.where}" if branch.where else ""
            selects.append(f"SELECT {', '.join(parts)} FROM {branch.table}{where}")
        return f"({' UNION ALL '.join(selects)}) AS t"

    def _text(self, pair: Pair) -> str:
        return pair.target if self.dialect == STARROCKS else pair.source

    def _shown(self, pair: Pair) -> str:
        """What is fetched of a value: of a long text that needs no judge the MD5."""
        text = self._text(pair)
        return self._md5(text) if _digested(pair) and not self.whole else text

    def _mark(self) -> str:
        parts = [f"coalesce(k{number}, '-')" for number in range(len(self.keys))]
        for number, pair in enumerate(self.values):
            if pair.summed:
                text = f"v{number}"
                text = self._md5(text) if pair.long and not _digested(pair) else text
                parts.append(f"coalesce({text}, '-')")
        return self._md5(self._joined(parts))

    def _bucket(self, digits: int) -> str:
        key = self._md5(self._joined([f"coalesce(k{number}, '-')" for number in range(len(self.keys))]))
        return f"left({key}, {digits})"

    def _joined(self, parts: Sequence[str]) -> str:
        if self.dialect == POSTGRESQL:
            return " || ',' || ".join(parts)
        texts = ", ',', ".join(parts)
        return f"concat({texts})"

    def _md5(self, text: str) -> str:
        return f"md5({text})"

    def _md5_60(self, mark: str) -> str:
        if self.dialect == POSTGRESQL:
            return f"('x' || left({mark}, {_DIGITS}))::bit(60)::bigint"
        number = f"conv(left({mark}, {_DIGITS}), 16, 10)"
        return f"CAST({number} AS {'UNSIGNED' if self.dialect == MYSQL else 'LARGEINT'})"


def _digested(pair: Pair) -> bool:
    return pair.long and pair.summed and pair.same is exactly
