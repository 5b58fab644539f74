"""Tables: existence, model, and partitions that this server version cannot create in a multi-table load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starrocks_txn_sink.errors import QueryRefused
from starrocks_txn_sink.operations.doctor.libraries import version_numbers
from starrocks_txn_sink.operations.doctor.target import Finding, Target, failure, good, skipped, warning
from starrocks_txn_sink.protocol.ledger import identifier

SINK_TABLE_PREFIX = "_starrocks_txn_sink_"
_CONFIG = (
    "SELECT TABLE_NAME, TABLE_MODEL, DISTRIBUTE_TYPE FROM information_schema.tables_config WHERE TABLE_SCHEMA = %s"
)
_NAMES = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s"

# The last releases without the repair of partitions created in a multi-table load (wire contract 4.15; the exact
# patch is not known, so later ones are believed).
_LAST_WITHOUT = ((4, 0, 14), (4, 1, 4))

_PURPOSE = {
    "PRIMARY_KEYS": "PRIMARY KEY: upserts and deletes",
    "DUP_KEYS": "DUPLICATE KEY: rows are appended, deletes are refused",
}


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """One table: `model` as in information_schema.tables_config, `create` from SHOW CREATE TABLE ('' if refused)."""

    name: str
    model: str
    random_buckets: bool
    create: str = ""

    @property
    def creates_partitions(self) -> bool:
        """Whether loads create partitions: PARTITION BY an expression or columns, not RANGE or LIST."""
        clause = re.search(r"\bPARTITION\s+BY\s+(\w*)", self.create, re.IGNORECASE)
        return clause is not None and clause[1].upper() not in ("RANGE", "LIST")


def check_tables(target: Target) -> Iterator[Finding]:
    """Check the named tables, or all of the database; sets `target.tables` for the checks of loads and privileges."""
    database, sql = target.require_database(), target.sql()
    found = {str(row["table_name"]): row for row in sql.rows(_CONFIG, (database,))}
    names = {str(row["table_name"]) for row in sql.rows(_NAMES, (database,))}
    yield from judge_names(target.tables, names, set(found), database)
    chosen = [
        name for name in target.tables or sorted(found) if name in found and not name.startswith(SINK_TABLE_PREFIX)
    ]
    target.tables = chosen
    if not chosen:
        yield skipped("table.model", f"{database} has no table to check")
    for name in chosen:
        row = found[name]
        create = ""
        try:
            answer = sql.rows(f"SHOW CREATE TABLE {identifier(database, name)}")
            create = str(answer[0].get("create table", "")) if answer else ""
        except QueryRefused as error:
            yield skipped("table.partitions", f"SHOW CREATE TABLE was refused: {error.message}", name)
        seen = TableDefinition(
            name, str(row["table_model"]), str(row.get("distribute_type")).upper().startswith("RANDOM"), create
        )
        yield judge_model(seen)
        yield from judge_partitions(seen, target.version)


def judge_names(named: Sequence[str], names: set[str], loadable: set[str], database: str) -> Iterator[Finding]:
    """Failures for named tables that cannot be loaded; pure."""
    for name in named:
        if name not in names | loadable:
            yield failure(
                "table.missing",
                f"The table {database}.{name} does not exist, or the user may not see it.",
                "A load into a missing table aborts the whole transaction.",
                "Create it, correct the name, or grant the user a privilege on it.",
                name,
            )
        elif name not in loadable:
            yield failure(
                "table.model",
                f"{database}.{name} is a view or an external table.",
                "Only native tables accept loads; any other aborts the whole transaction.",
                "Load the table that the view reads.",
                name,
            )


def judge_model(seen: TableDefinition) -> Finding:
    """Finding for the table's model; pure."""
    if seen.model in _PURPOSE:
        return good("table.model", _PURPOSE[seen.model], seen.name)
    return warning(
        "table.model",
        f"The table's model is {seen.model}.",
        "Deletes are refused, and an aggregate counts a row again when at-least-once delivery repeats it.",
        "Use a PRIMARY KEY table for changes, or a DUPLICATE KEY table for events.",
        seen.name,
    )


def judge_partitions(seen: TableDefinition, version: str) -> Iterator[Finding]:
    """Finding for partitions or buckets that loads would have to create; none if they create neither; pure."""
    reasons = []
    if seen.creates_partitions:
        reasons.append("creates partitions as rows arrive (PARTITION BY an expression or columns)")
    if seen.random_buckets:
        reasons.append("is distributed at random and creates buckets as rows arrive")
    if not reasons:
        return
    what = " and ".join(reasons)
    if can_create_partitions(version):
        yield good("table.partitions", f"{what}, which StarRocks {version} should support", seen.name)
        return
    yield warning(
        "table.partitions",
        f"The table {what}; StarRocks {version or '(version unknown)'} does not support that in a multi-table load.",
        "The commit fails with 'txn … not exist' as soon as a row needs a missing partition.",
        "Create partitions before their rows arrive (ALTER TABLE … ADD PARTITION), use hash distribution, or upgrade "
        "to a patch after 4.0.14 or 4.1.4.",
        seen.name,
    )


def can_create_partitions(version: str) -> bool:
    """Whether a multi-table load may create partitions on this version."""
    numbers = version_numbers(version)
    if len(numbers) < 3:
        return False
    for last in _LAST_WITHOUT:
        if numbers[:2] == last[:2]:
            return numbers > last
    return numbers > _LAST_WITHOUT[-1]
