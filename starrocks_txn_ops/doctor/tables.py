"""Tables: existence, model, and two faults of some releases.

A multi-table load cannot create partitions, and the order of changes of one key may be lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starrocks_txn_ops.doctor.libraries import version_numbers
from starrocks_txn_ops.doctor.target import Finding, Target, Topic
from starrocks_txn_sink.errors import QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.load_properties import why_not_compacted
from starrocks_txn_sink.options.sink_options import is_own_table
from starrocks_txn_sink.protocol.ledger import identifier
from starrocks_txn_sink.rows.partitions import OPEN_PARTITIONS, Partitioning, can_create_partitions, obstacle
from starrocks_txn_sink.sql.connection import Row, SqlConnection

_CONFIG = (
    "SELECT TABLE_NAME, TABLE_ENGINE, TABLE_MODEL, PRIMARY_KEY, DISTRIBUTE_TYPE FROM information_schema.tables_config "
    "WHERE TABLE_SCHEMA = %s"
)
_NAMES = "SELECT TABLE_NAME FROM information_schema.tables WHERE TABLE_SCHEMA = %s"

# The first release that keeps the order of one key's changes in shared-data tables (wire contract 4.10). No patch of
# the 4.0 line is known to have the repair, so the whole line counts as without it.
_FIRST_IN_ORDER = (4, 1, 4)

_PURPOSE = {
    "PRIMARY_KEYS": "PRIMARY KEY: upserts and deletes",
    "DUP_KEYS": "DUPLICATE KEY: rows are appended, deletes are refused",
}


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """One table: `engine`, `model` and `key` as in information_schema.tables_config, `create` from SHOW CREATE TABLE.

    `create` is '' if the statement was refused; `key` has the primary key's columns.
    """

    name: str
    model: str
    random_buckets: bool
    create: str = ""
    engine: str = "OLAP"
    key: Sequence[str] = ()

    @classmethod
    def of(cls, row: Row, create: str) -> TableDefinition:
        """The table of a row of information_schema.tables_config."""
        return cls(
            str(row["table_name"]),
            str(row["table_model"]),
            str(row.get("distribute_type")).upper().startswith("RANDOM"),
            create,
            str(row.get("table_engine")),
            tuple(name.strip().strip("`") for name in str(row.get("primary_key") or "").split(",")),
        )

    @property
    def shared_data(self) -> bool:
        """Whether object storage holds the table, as in a cluster with run_mode shared_data."""
        return self.engine.upper() == "CLOUD_NATIVE" or '"storage_volume"' in self.create

    @property
    def partitioning(self) -> Partitioning | None:
        """By what loads create partitions; None for RANGE, LIST, and no partitions."""
        return Partitioning.of(self.create)


def check_tables(target: Target) -> Iterator[Finding]:
    """Check the named tables, or all tables; sets `target.tables` for the checks of loads and privileges."""
    database, sql = target.require_database(), target.sql()
    configs = {str(row["table_name"]): row for row in sql.rows(_CONFIG, (database,))}
    names = {str(row["table_name"]) for row in sql.rows(_NAMES, (database,))}
    yield from judge_names(target.tables, names, set(configs), database)
    chosen_names = [name for name in target.tables or sorted(configs) if name in configs and not is_own_table(name)]
    if not chosen_names and not target.tables:
        yield Topic("table.missing").failure(
            f"{database} has no table that a job could write.",
            "A load into a missing table aborts the whole transaction.",
            "Create the job's tables, correct --database, or grant the user a privilege on them.",
        )
    target.tables = chosen_names
    for name in chosen_names:
        create = ""
        try:
            answer = sql.rows(f"SHOW CREATE TABLE {identifier(database, name)}")
            create = str(answer[0].get("create table", "")) if answer else ""
        except QueryRefused as error:
            yield Topic("table.partitions", name).skip(f"SHOW CREATE TABLE was refused: {error.message}")
        definition = TableDefinition.of(configs[name], create)
        yield judge_model(definition)
        partitions = _partitions(sql, definition, database)
        yield from judge_partitions(
            definition, target.version, partitions, None if partitions is None else _open_partitions(sql)
        )
        yield from judge_order(definition, target.version, target.options)


def judge_names(option_names: Sequence[str], names: set[str], loadable: set[str], database: str) -> Iterator[Finding]:
    """Failures for named tables that cannot be loaded; pure."""
    for name in option_names:
        if name not in names | loadable:
            yield Topic("table.missing", name).failure(
                f"The table {database}.{name} does not exist, or the user may not see it.",
                "A load into a missing table aborts the whole transaction.",
                "Create it, correct the name, or grant the user a privilege on it.",
            )
        elif name not in loadable:
            yield Topic("table.model", name).failure(
                f"{database}.{name} is a view or an external table.",
                "Only native tables accept loads; any other aborts the whole transaction.",
                "Load the table that the view reads.",
            )


def judge_model(definition: TableDefinition) -> Finding:
    """Finding for the table's model; pure."""
    if definition.model in _PURPOSE:
        return Topic("table.model", definition.name).good(_PURPOSE[definition.model])
    return Topic("table.model", definition.name).warning(
        f"The table's model is {definition.model}.",
        "Deletes are refused, and an aggregate counts a row again when at-least-once delivery repeats it.",
        "Use a PRIMARY KEY table for changes, or a DUPLICATE KEY table for events.",
    )


def judge_partitions(
    definition: TableDefinition, version: str, partitions: int | None = None, limit: int | None = None
) -> Iterator[Finding]:
    """Finding for partitions or buckets that loads would have to create; none if they create neither; pure.

    The table has so many `partitions`, and a load opens `limit` of them; None: not known.
    """
    partitioning, topic = definition.partitioning, Topic("table.partitions", definition.name)
    if partitioning is None and not definition.random_buckets:
        return
    version_text = version or "(version unknown)"
    if can_create_partitions(version):
        yield topic.good(f"creates partitions or buckets as rows arrive, which StarRocks {version} should support")
    elif definition.random_buckets:
        yield topic.warning(
            f"The table is distributed at random and creates buckets as rows arrive; StarRocks {version_text} does not "
            "support that in a multi-table load.",
            "The commit fails with 'No rows were imported from upstream' as soon as a row needs a new bucket.",
            "Use hash distribution, or upgrade to a patch after 4.0.14 or 4.1.4.",
        )
    elif partitioning is not None and (met := obstacle(partitioning, version, partitions, limit)) is not None:
        yield (topic.failure if met.takes_no_row else topic.warning)(met.what, met.why, met.advice)
    else:
        limit_text = (
            f"a load opens {limit}" if limit is not None else f"{OPEN_PARTITIONS} is not known: OPERATE ON SYSTEM"
        )
        count = "" if partitions is None else f"; the table has {partitions}, {limit_text}"
        yield topic.good(f"the sink makes the partitions that its rows need (ALTER on the table){count}")


def _partitions(sql: SqlConnection, definition: TableDefinition, database: str) -> int | None:
    """How many partitions a table has whose loads would create them; None if that is not known."""
    if definition.partitioning is None:
        return None
    with contextlib.suppress(QueryRefused):
        return len(sql.rows(f"SHOW PARTITIONS FROM {identifier(database, definition.name)}"))
    return None


def _open_partitions(sql: SqlConnection) -> int | None:
    with contextlib.suppress(QueryRefused):
        rows = sql.rows(f"ADMIN SHOW FRONTEND CONFIG LIKE '{OPEN_PARTITIONS}'")
        values = [str(row.get("value")) for row in rows if row.get("key") == OPEN_PARTITIONS]
        return int(values[0]) if values and values[0].lstrip("-").isdecimal() else None
    return None


def judge_order(definition: TableDefinition, version: str, options: SinkOptions) -> Iterator[Finding]:
    """Finding for a table whose changes of one key the server may swap in a transaction; none for any other; pure."""
    if not definition.shared_data or definition.model != "PRIMARY_KEYS" or version_numbers(version) >= _FIRST_IN_ORDER:
        return
    why = (
        why_not_compacted(options.properties_of(definition.name), definition.key)
        if options.compact
        else "compact is off"
    )
    version_text = version or "(version unknown)"
    if not why:
        text = f"a StarRocks transaction gets one row per key, so StarRocks {version_text} cannot swap changes of a key"
        yield Topic("table.order", definition.name).good(text)
        return
    yield Topic("table.order", definition.name).warning(
        f"All rows are sent ({why}), and StarRocks {version_text} may swap an upsert and a delete of one key.",
        "Before 4.1.4 a PRIMARY KEY table in shared-data mode does not keep their order inside one transaction: "
        "a deleted row can stay, and a row written again can be missing.",
        "Upgrade to StarRocks 4.1.4 or later, or let the sink send one row per key (compact, without that property).",
    )
