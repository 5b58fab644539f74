"""The faults that `benchmarks.proof` plants, and what must be found of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.proof_world import Run, World
from tests.cdc.verified_job import CASES, change_each_column
from tests.support.waiting import wait_until

Keys = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Fault:
    """What is done to StarRocks or the source, and by source table what the report must say: keys by kind, or their
    number. `lacks` are columns that it must name."""

    name: str
    plant: Callable[[World], object]
    finds: Mapping[str, Mapping[str, Keys | int]]
    lacks: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _keys(*numbers: int) -> Keys:
    return [(str(number),) for number in numbers]


def _ask(*statements: str) -> Callable[[World], object]:
    return lambda world: [world.warehouse.ask(statement) for statement in statements]


def _commit_unseen(world: World, *statements: str) -> None:
    """A transaction that the connector loses in a restart: it is committed while the connector is down.

    PostgreSQL's slot is moved past it; MariaDB does not write it into the binlog. The traffic pauses: all that it has
    committed must have arrived, or it would be lost as well.
    """
    db, left = world.db, max(1.0, world.left)
    with world.traffic.committing:
        wait_until(lambda: world.shown(len(world.traffic.sent)), left, "the traffic does not arrive")
        world.connect.stop()
        if db.kind == "postgres":
            slot = "SELECT 1 FROM pg_replication_slots WHERE active"
            wait_until(lambda: not db.server.sql(slot), left, "the slot stays active")
            db.commit(*statements)
            db.server.sql("SELECT pg_replication_slot_advance('shop', pg_current_wal_lsn())")
        else:
            db.server.sql("USE shop", "SET SESSION sql_log_bin = 0", "BEGIN", *statements, "COMMIT")
        world.connect.start()
        wait_until(db._streams, left, world.connect.messages, alive=lambda: world.connect.running)


def faults(world: World) -> Iterator[list[Fault]]:
    """The faults in rounds; those of a round are planted together."""
    rows, schema, cases = world.rows, world.db.schema, CASES[world.db.kind]
    one, other, emptied, blank = world.tables[0], world.tables[4], "t02", "t03"
    yield [
        Fault(
            "rows lost",
            _ask(f"DELETE FROM shop.{one} WHERE id IN (1, 51, {rows - 1 + rows % 2})"),
            {one: {"missing": _keys(1, 51, rows - 1 + rows % 2)}},
        ),
        Fault(
            "row doubled (DUPLICATE KEY)",
            _ask("INSERT INTO shop.items VALUES (2, 'b')"),
            {"items": {"extra": _keys(2)}},
        ),
        Fault(
            f"one column changed of each of {len(cases)} types",
            lambda world: change_each_column(world.warehouse, cases),
            {"types": {"different": _keys(*range(len(cases)))}},
        ),
        Fault(
            "delete lost",
            _ask(f"INSERT INTO shop.{one} (id, name, price) VALUES (-1, 'gone', 1), (-2, 'gone', 1)"),
            {one: {"extra": _keys(-1, -2)}},
        ),
        Fault(
            "transaction lost in a restart of the connector",
            lambda world: _commit_unseen(
                world,
                f"UPDATE {one} SET name = 'unseen' WHERE id = 7",
                f"INSERT INTO {other} VALUES (-5, 'unseen', 1, NULL, NULL)",
                f"DELETE FROM {other} WHERE id = 9",
            ),
            {one: {"different": _keys(7)}, other: {"missing": _keys(-5), "extra": _keys(9)}},
        ),
        Fault("table truncated", _ask(f"TRUNCATE TABLE shop.{emptied}"), {emptied: {"missing": rows}}),
        Fault(
            "a column's values lost",
            _ask(f"UPDATE shop.{blank} SET born = NULL WHERE id > 0"),
            {blank: {"different": rows}},
        ),
        Fault(
            "rows of another shard",
            _ask(f"INSERT INTO shop.parts VALUES ('{schema}.part_1', 7, 7), ('{schema}.part_1', 8, 8)"),
            {"part_1": {"extra": _keys(7, 8)}},
        ),
    ]
    yield [
        Fault(
            "column dropped in StarRocks",
            _ask(f"ALTER TABLE shop.{blank} DROP COLUMN born"),
            {},
            lacks={blank: ("born",)},
        ),
        Fault(
            "rows of a shard that is none of this source",
            _ask("INSERT INTO shop.parts VALUES ('elsewhere.part_1', 1, 1)"),
            {"no table of the source": {"extra": 1}},
        ),
    ]


KINDS = ("missing", "extra", "different")


def found(fault: Fault, run: Run) -> bool:
    """Whether the report has all of the fault, by name."""
    for table, kinds in fault.finds.items():
        report = run.tables.get(table, {})
        for kind, keys in kinds.items():
            if isinstance(keys, int):
                if report.get(kind) != keys:
                    return False
            elif not {*keys} <= {tuple(key) for key in report.get("keys", {}).get(kind, ())}:
                return False
    return all(set(columns) <= {*run.tables[table]["columns_lacking"]} for table, columns in fault.lacks.items())


def false_reports(planted: Sequence[Fault], run: Run) -> list[str]:
    """What the report says that none of the faults has planted, and tables that it could not judge."""
    wrong = []
    for name, report in run.tables.items():
        if report["status"] in ("unsettled", "not compared", "skipped") or report["unsettled"] or report["uncounted"]:
            wrong.append(
                f"{name}: {report['status']}, {report['unsettled']} unsettled, {report['uncounted']} uncounted"
            )
        for kind in KINDS:
            expected = [fault.finds[name][kind] for fault in planted if kind in fault.finds.get(name, {})]
            number = sum(keys if isinstance(keys, int) else len(keys) for keys in expected)
            if report[kind] != number:
                wrong.append(f"{name}: {report[kind]} {kind}, {number} were planted")
        lacking = {column for fault in planted for column in fault.lacks.get(name, ())}
        wrong += [f"{name}: lacks {column}" for column in {*report["columns_lacking"]} - lacking]
    return wrong
