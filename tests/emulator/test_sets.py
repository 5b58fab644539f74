"""BITMAP and HLL columns and AGGREGATE KEY tables: what a load may put into them, and what queries count."""

from __future__ import annotations

from typing import Any

import pytest

from starrocks_emulator.sql.session import QuerySession, SqlError
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.plan import PlanRejected
from starrocks_emulator.tables.store import CommitRejected, Store
from tests.support.store_setup import JSON_ARRAY, load, rows

VISITS = """CREATE TABLE test.visits (page INT NOT NULL, users BITMAP BITMAP_UNION NOT NULL, devices HLL HLL_UNION,
hits BIGINT SUM DEFAULT '0', newest INT REPLACE, most INT MAX) AGGREGATE KEY(page) DISTRIBUTED BY HASH(page)"""
TAGS = (
    "CREATE TABLE test.tags (id INT NOT NULL, users BITMAP, `text` VARCHAR(9)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
)
HEADERS = {**JSON_ARRAY, "columns": "page,u,d,hits,newest,most,users=to_bitmap(u),devices=hll_hash(d)"}


@pytest.fixture
def store(store: Store) -> Store:
    run(store, QuerySession(), f"{VISITS}; {TAGS}")
    return store


def visit(page: int, user: Any, device: str | None, hits: int = 1, newest: int | None = None) -> dict[str, Any]:
    return {"page": page, "u": user, "d": device, "hits": hits, "newest": newest, "most": hits}


def test_an_aggregate_table_joins_the_values_of_a_key(store: Store) -> None:
    load(
        store,
        "visits",
        [visit(1, 13, "a", 2, 7), visit(1, "23", "b", 5, 8), visit(2, 2**64 - 1, None)],
        headers=HEADERS,
    )
    load(store, "visits", [visit(1, 13, "a", 3), visit(1, 33, "c", 1)], headers=HEADERS, label="second")
    sql = "SELECT page, bitmap_to_string(users), hll_cardinality(devices), hits, newest, most FROM visits ORDER BY page"
    assert rows(store, sql) == [(1, "13,23,33", 3, 11, None, 5), (2, str(2**64 - 1), 0, 1, None, 1)]
    counts = "SELECT COUNT(DISTINCT users), COUNT(DISTINCT devices), bitmap_union_count(users), hll_union_agg(devices)"
    assert rows(store, f"{counts} FROM visits") == [(4, 3, 4, 3)]
    assert rows(store, "SELECT bitmap_count(bitmap_union(users)) FROM visits WHERE page = 1") == [(3,)]
    assert rows(store, "SELECT users, page FROM visits ORDER BY page") == [(None, 1), (None, 2)]


@pytest.mark.parametrize(
    ("text", "number"),
    [("hello", 1321743225), ("", 3329588566), ("a", 1086686554), ("abc", 3409700625), ("äöü€", 1294649994)],
)
def test_bitmap_hash_gives_the_servers_numbers(store: Store, text: str, number: int) -> None:
    """The first is an example of StarRocks' documentation; the others are of another implementation of the hash."""
    headers = {**JSON_ARRAY, "columns": "id,raw,users=bitmap_hash(raw)"}
    load(store, "tags", [{"id": 1, "raw": text}, {"id": 2, "raw": None}], headers=headers)
    assert rows(store, "SELECT bitmap_to_string(users), bitmap_count(users) FROM tags ORDER BY id") == [
        (str(number), 1),
        ("", 0),
    ]


def test_what_is_no_number_makes_no_bitmap(store: Store) -> None:
    headers = {**JSON_ARRAY, "columns": "id,raw,users=to_bitmap(raw)", "strict_mode": "true"}
    values = ["-1", "1.5", "x", "", None, str(2**64)]
    load(store, "tags", [{"id": number, "raw": raw} for number, raw in enumerate(values)], headers=headers)
    assert rows(store, "SELECT count(*), count(users), sum(bitmap_count(users)) FROM tags") == [(6, 0, 0)]
    with pytest.raises(CommitRejected, match="No rows were imported") as failure:
        load(store, "visits", [visit(1, -1, "a")], headers=HEADERS)
    assert "users" in failure.value.reasons[0]


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ("tags", "id,users", "BITMAP column must use to_bitmap function"),
        ("tags", "id,raw,users=upper(raw)", "BITMAP column must use to_bitmap function"),
        ("tags", "id,raw,users=bitmap_hash64(raw)", "BITMAP column must use to_bitmap function"),
        (
            "visits",
            "page,u,devices,users=to_bitmap(u)",
            r"HLL column must use hll_hash function, like devices=hll_hash",
        ),
        ("visits", "page,u,d,users=hll_hash(u),devices=hll_hash(d)", "BITMAP column must use"),
    ],
)
def test_a_set_that_no_function_makes_is_refused(store: Store, table: str, columns: str, message: str) -> None:
    with pytest.raises(PlanRejected, match=message):
        load(store, table, [], headers={**JSON_ARRAY, "columns": columns})


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("CREATE TABLE x (a INT, h HLL) PRIMARY KEY(a)", "hll in a PRIMARY KEY table"),
        ("CREATE TABLE x (a INT, b BITMAP) DUPLICATE KEY(a)", "bitmap in a DUPLICATE KEY table"),
        ("CREATE TABLE x (b BITMAP) PRIMARY KEY(b)", "cannot be a key"),
        ("CREATE TABLE x (a INT, b BITMAP SUM) AGGREGATE KEY(a)", "needs BITMAP_UNION"),
        ("CREATE TABLE x (a INT, b INT) AGGREGATE KEY(a)", "aggregate function"),
        ("CREATE TABLE x (a INT, b INT SUM) PRIMARY KEY(a)", "aggregate function"),
        ("CREATE TABLE x (a INT SUM, b INT SUM) AGGREGATE KEY(a)", "aggregate function"),
        ("CREATE TABLE x (a PERCENTILE)", "PERCENTILE"),
        ("ALTER TABLE visits ADD COLUMN n INT", "aggregate function"),
    ],
)
def test_tables_that_make_no_sense_are_refused(store: Store, ddl: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        run(store, QuerySession(database="test"), ddl)


def test_such_tables_can_be_shown_made_again_and_altered(store: Store) -> None:
    ((_, ddl),) = rows(store, "SHOW CREATE TABLE visits")
    assert "`users` bitmap BITMAP_UNION NOT NULL" in ddl
    assert "AGGREGATE KEY(page)" in ddl.replace("`", "")
    run(store, QuerySession(database="test"), ddl.replace("`visits`", "`again`", 1))
    assert store.registry.table("test", "again").columns == store.registry.table("test", "visits").columns
    run(store, QuerySession(database="test"), "ALTER TABLE again ADD COLUMN n INT SUM")
    run(store, QuerySession(database="test"), "ALTER TABLE tags ADD COLUMN more BITMAP")
    run(store, QuerySession(database="test"), "INSERT INTO tags VALUES (1, to_bitmap(5), 'x', bitmap_hash('hello'))")
    assert rows(store, "SELECT bitmap_to_string(users), bitmap_to_string(more) FROM tags") == [("5", "1321743225")]
