"""A small body is judged while its transaction is open; the commit that finds it so does the same as any other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from starrocks_emulator.tables import staging, store as tables_store
from starrocks_emulator.tables.engine import ASIDE
from starrocks_emulator.tables.plan import Plan
from starrocks_emulator.tables.staging import Ahead
from starrocks_emulator.tables.store import CommitRejected, Store
from tests.support.store_setup import JSON_ARRAY, body, rows
from tests.support.waiting import wait_until

CSV = {"format": "csv", "column_separator": ","}


@pytest.fixture
def judged_late(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Path]]:
    """The bodies that a commit had to judge itself."""
    late: list[Sequence[Path]] = []
    stage = staging.stage

    def noted(cursor: Any, plan: Plan, paths: Sequence[Path], *further: Any, **named: Any) -> Any:
        late.append(paths)
        return stage(cursor, plan, paths, *further, **named)

    monkeypatch.setattr(tables_store, "stage", noted)
    return late


def order(key: int, **more: Any) -> dict[str, Any]:
    return {"order_id": key, "customer_id": 1, **more}


def plan(store: Store, headers: dict[str, str] = JSON_ARRAY) -> Plan:
    return store.plan("test", "orders", headers)


def aside(store: Store) -> int:
    with store.engine.cursor() as cursor:
        count = cursor.execute(f"SELECT count(*) FROM duckdb_tables() WHERE database_name = '{ASIDE}'").fetchone()
    return count[0] if count else 0


def emptied(store: Store) -> bool:
    """Nothing stays aside: a body that is still being judged when it is dropped goes a moment later."""
    wait_until(lambda: not aside(store), 20)
    return True


def test_one_body_is_judged_ahead_and_committed(store: Store, judged_late: list[Sequence[Path]]) -> None:
    orders, path = plan(store), body(store, [order(1), order(2, total_amount="x"), order(1, order_status="new")])
    store.judge_ahead(orders, path)
    counts = store.commit("test", 1, "l", [(orders, [path])])["orders"]
    assert not judged_late
    assert (counts.loaded, counts.filtered, counts.bytes) == (3, 0, path.stat().st_size)
    assert rows(store, "SELECT order_id, order_status FROM orders ORDER BY 1") == [(1, "new"), (2, None)]
    store.drop_bodies([path])
    assert aside(store) == 0
    assert not path.exists()


def test_bodies_of_one_stream_are_judged_together(store: Store, judged_late: list[Sequence[Path]]) -> None:
    orders = plan(store, CSV)
    paths = [body(store, "1,1,1.50,ne"), body(store, "w\n2,1,2.50,old\n")]
    store.judge_ahead(orders, paths[0])
    store.commit("test", 1, "l", [(orders, paths)])
    assert judged_late == [paths]
    assert rows(store, "SELECT order_id, order_status FROM orders ORDER BY 1") == [(1, "new"), (2, "old")]
    store.drop_bodies(paths)
    assert emptied(store)


@pytest.mark.parametrize("content", ["[{", "[1, 2]", [], [{"customer_id": 1}]])
def test_what_is_wrong_is_reported_by_the_commit_as_ever(store: Store, content: Any) -> None:
    orders = plan(store)
    causes = []
    judges: tuple[Callable[[Path], object], ...] = (lambda _: None, lambda path: store.judge_ahead(orders, path))
    for judge in judges:
        path = body(store, content)
        judge(path)
        with pytest.raises(CommitRejected) as rejected:
            store.commit("test", 1, "l", [(orders, [path])])
        causes.append((rejected.value.cause, rejected.value.loaded, rejected.value.filtered, rejected.value.reasons))
        store.drop_bodies([path])
    assert causes[0] == causes[1]
    assert aside(store) == 0


def test_nothing_stays_of_a_transaction_that_never_commits(store: Store) -> None:
    orders, paths = plan(store), [body(store, [order(key)]) for key in range(20)]
    judging = Ahead(store.engine, store.spool_dir)
    for path in paths:
        judging.begin(orders, path)
    judging.drop(paths)
    judging.close()  # waits for what was being judged
    assert aside(store) == 0


def test_a_large_body_waits_for_its_commit(
    store: Store, judged_late: list[Sequence[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SMALL", 10)
    orders, path = plan(store), body(store, [order(1)])
    store.judge_ahead(orders, path)
    store.commit("test", 1, "l", [(orders, [path])])
    assert judged_late == [[path]]
    assert aside(store) == 0


def test_a_table_altered_after_the_judgement_rejects_the_commit(store: Store) -> None:
    orders, path = plan(store), body(store, [order(1)])
    store.judge_ahead(orders, path)
    rows(store, "ALTER TABLE orders DROP COLUMN order_status")
    with pytest.raises(CommitRejected, match="altered"):
        store.commit("test", 1, "l", [(orders, [path])])


def test_a_column_added_after_the_judgement_does_not(store: Store) -> None:
    orders, path = plan(store), body(store, [order(1)])
    store.judge_ahead(orders, path)
    rows(store, "ALTER TABLE orders ADD COLUMN extra INT DEFAULT '7'")
    store.commit("test", 1, "l", [(orders, [path])])
    assert rows(store, "SELECT extra FROM orders") == [(7,)]


def taken(judging: Ahead, orders: Plan, path: Path) -> bool:
    try:
        judging.begin(orders, path)
    except RuntimeError:
        return False
    return True


def test_closing_waits_only_for_what_is_being_judged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    started_paths: list[Path] = []
    go_on = threading.Event()

    def slow(cursor: Any, orders: Plan, paths: Sequence[Path], name: str, spool: Path, *, kind: str) -> Any:
        started_paths.extend(paths)
        assert go_on.wait(30)
        return stage(cursor, orders, paths, name, spool, kind=kind)

    stage = staging.stage
    monkeypatch.setattr(staging, "stage", slow)
    orders, judging = plan(store), Ahead(store.engine, store.spool_dir)
    for key in range(20):
        judging.begin(orders, body(store, [order(key)]))
    closing = threading.Thread(target=judging.close)
    closing.start()
    first = body(store, [order(1)])
    while taken(judging, orders, first):  # once none is taken, none waits any more
        pass
    go_on.set()
    closing.join()
    assert len(started_paths) <= 2
