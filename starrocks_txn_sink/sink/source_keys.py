"""The driver's knowledge of the source tables' keys: rows under a new key are taken only if no row can be lost by it.

A lane says under which keys the rows of its messages came. The driver judges a new one before the label is committed,
by the rule that `sync` applies to tables that are there (`key_refusals`). The keys that it has taken are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from starrocks_txn_sink.errors import OptionError, SourceKeyChanged
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.table_rules import SOURCE_TABLE, RuleSet, RulesOfTable
from starrocks_txn_sink.protocol.source_keys import KnownKeys, SourceKey, key_row
from starrocks_txn_sink.sink.schema.source_plan import Refusal, key_by_rules, key_refusals
from starrocks_txn_sink.sink.typed.tables import PRIMARY_KEYS, Tables


@dataclass(slots=True)
class SourceKeys:
    """`known` are the keys under which rows of a source's table were taken. Those not in the ledger are `unwritten`.

    The first key of a source's table is taken as it is, unless the query is `strict`, as `sync` is: in a pipeline of
    the user's own, messages may have had any key from the beginning.
    """

    job: str = ""
    known: KnownKeys = field(default_factory=dict)
    strict: bool = False
    judge: Callable[[SourceKey], Refusal | None] = lambda _: None
    unwritten: list[SourceKey] = field(default_factory=list)

    def take(self, keys: Iterable[SourceKey]) -> None:
        """The lanes of a label have read rows under these `keys`; raises SourceKeyChanged for one that loses rows."""
        by_table: dict[tuple[str, str], list[SourceKey]] = {}
        for key in sorted(set(keys)):
            by_table.setdefault(key[:2], []).append(key)
        for place, keys_of_table in by_table.items():
            before = self.known.get(place, set())
            new = [key for key in keys_of_table if key[3] not in before]
            refusals = [(key, self.judge(key)) for key in new]
            sound_before = [names for names in sorted(before) if self.judge((*keys_of_table[0][:3], names)) is None]
            if sound_before or self.strict or (not before and None in [refusal for _, refusal in refusals]):
                for key, refusal in refusals:
                    if refusal is not None:
                        raise _changed(key, sound_before or [other[3] for other, of in refusals if of is None], refusal)
            self.known.setdefault(place, set()).update(key[3] for key in new)
            self.unwritten += new

    def rows(self, now_text: Callable[[], str]) -> list[memoryview]:
        """The keys that are new in the ledger with the commit of the label."""
        at = now_text()
        rows = [
            key_row(self.job, connector, collection, names, at) for connector, collection, _, names in self.unwritten
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
    target_columns = [column for column in tables.required.get(table, ()) if column.key]
    of_table = rules.of(table) or RulesOfTable(table)
    decided = of_table.only_history or options.options_of(table).keys
    if decided or tables.models.get(table) != PRIMARY_KEYS or not target_columns:
        return None
    apart = SOURCE_TABLE in [column.name for column in target_columns]
    try:
        key_in_table = key_by_rules(names, of_table, merged=apart)
    except OptionError as error:
        return Refusal(table, error.message.rstrip("."), error.advice)
    return next(iter(key_refusals(table, key_in_table, target_columns)), None)


def _changed(key: SourceKey, before: Sequence[tuple[str, ...]], refusal: Refusal) -> SourceKeyChanged:
    _, collection, table, names = key
    was = " or ".join(map(_text, before))
    return SourceKeyChanged(
        f"Rows of the source's table {collection} came under the key {_text(names)}"
        f"{f', and before under {was}' if was else ''}. Table {table}: {refusal.reason}.",
        hint=f"{refusal.ways} For a new table: give it the new key, name it for this source's table, and have the "
        "source snapshot the table again.",
        table=table,
    )


def _text(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "none"
