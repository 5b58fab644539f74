"""The shop that is captured: tables in PostgreSQL and in StarRocks, and what writers do to them.

Every transaction that moves stock keeps the sum over stock_a and stock_b, and every order's total is that of its items:
a reader who sees part of a transaction sees stock appear or vanish.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

DATABASE = "shop"
PLACES, UNITS = 20, 100  # each of the two tables has so many places, with so many units each at the beginning
STOCK = 2 * PLACES * UNITS

POSTGRES = f"""
CREATE TABLE orders (order_id BIGINT PRIMARY KEY, status VARCHAR(20) NOT NULL, total NUMERIC(12,2) NOT NULL);
CREATE TABLE order_items (item_id BIGINT PRIMARY KEY, order_id BIGINT NOT NULL, price NUMERIC(12,2) NOT NULL,
  note TEXT);
CREATE TABLE stock_a (id INT PRIMARY KEY, n INT NOT NULL);
CREATE TABLE stock_b (id INT PRIMARY KEY, n INT NOT NULL);
INSERT INTO stock_a SELECT i, {UNITS} FROM generate_series(1, {PLACES}) i;
INSERT INTO stock_b SELECT i, {UNITS} FROM generate_series(1, {PLACES}) i;
"""

STARROCKS = (
    f"CREATE DATABASE {DATABASE}",
    f"CREATE TABLE {DATABASE}.orders (order_id BIGINT NOT NULL, status VARCHAR(20) NOT NULL,"
    " total DECIMAL(12,2) NOT NULL) PRIMARY KEY(order_id) DISTRIBUTED BY HASH(order_id)",
    f"CREATE TABLE {DATABASE}.order_items (item_id BIGINT NOT NULL, order_id BIGINT NOT NULL,"
    " price DECIMAL(12,2) NOT NULL, note STRING) PRIMARY KEY(item_id) DISTRIBUTED BY HASH(item_id)",
    *(
        f"CREATE TABLE {DATABASE}.{table} (id INT NOT NULL, n INT NOT NULL) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
        for table in ("stock_a", "stock_b")
    ),
)

# One statement is one snapshot.
LOOK = (
    f"SELECT (SELECT SUM(n) FROM {DATABASE}.stock_a) + (SELECT SUM(n) FROM {DATABASE}.stock_b),"
    f" (SELECT COUNT(*) FROM {DATABASE}.order_items),"
    f" (SELECT SUM(total) FROM {DATABASE}.orders), (SELECT SUM(price) FROM {DATABASE}.order_items)"
)

CONTENT = {
    "orders": "SELECT order_id, status, total FROM {}orders ORDER BY order_id",
    "order_items": "SELECT item_id, order_id, price, note FROM {}order_items ORDER BY item_id",
    "stock_a": "SELECT id, n FROM {}stock_a ORDER BY id",
    "stock_b": "SELECT id, n FROM {}stock_b ORDER BY id",
}


def writer(number: int, transactions: int, seconds: float) -> str:
    """The SQL of one writer: moved stock, orders with items, changed keys, deletes; some of it rolled back. It pauses
    in between, so that all of it takes about `seconds`."""
    pause = f"SELECT pg_sleep({seconds / transactions});"
    return "\n".join(f"{transaction} {pause}" for transaction in _transactions(number, transactions, Random(number)))


def _transactions(number: int, count: int, random: Random) -> Iterator[str]:
    base = number * 10_000_000
    for index in range(1, count + 1):
        order = base + index
        end = "ROLLBACK" if random.random() < 0.05 else "COMMIT"
        yield f"BEGIN; {_move(random)} {_order(order, random)} {end};"
        if index % 5 == 0:
            yield f"BEGIN; {_move(random)} {_rename(order, base + 5_000_000 + index)} COMMIT;"
        if index % 7 == 0:
            yield f"BEGIN; {_cancel(order - 3)} {_move(random)} COMMIT;"


def _move(random: Random) -> str:
    """Stock from one table to the other; always stock_a first, so that writers never lock each other out."""
    units = random.randint(-5, 5) or 1
    source_place, target_place = random.randint(1, PLACES), random.randint(1, PLACES)
    return (
        f"UPDATE stock_a SET n = n - ({units}) WHERE id = {source_place};"
        f" UPDATE stock_b SET n = n + ({units}) WHERE id = {target_place};"
    )


def _order(order: int, random: Random) -> str:
    items = random.randint(1, 4)
    values = ", ".join(f"({order * 10 + n}, {order}, {n}.25, 'größe \"{n}\"')" for n in range(items))
    return (
        f"INSERT INTO orders VALUES ({order}, 'new', 0); INSERT INTO order_items VALUES {values};"
        f" UPDATE orders SET status = 'open', total = (SELECT SUM(price) FROM order_items WHERE order_id = {order})"
        f" WHERE order_id = {order};"
    )


def _rename(order: int, new: int) -> str:
    """The key of an order changes, and its items follow."""
    return (
        f"UPDATE orders SET order_id = {new} WHERE order_id = {order};"
        f" UPDATE order_items SET order_id = {new} WHERE order_id = {order};"
    )


def _cancel(order: int) -> str:
    return f"DELETE FROM order_items WHERE order_id = {order}; DELETE FROM orders WHERE order_id = {order};"


def huge(rows: int) -> str:
    """One transaction of `rows` rows and a few more."""
    return (
        "BEGIN; UPDATE stock_a SET n = n - 50 WHERE id = 1;"
        f" INSERT INTO order_items SELECT 900000000000 + i, 9, 0.5, NULL FROM generate_series(1, {rows}) i;"
        f" INSERT INTO orders VALUES (9, 'huge', {rows} * 0.5);"
        " UPDATE stock_b SET n = n + 50 WHERE id = 1; COMMIT;"
    )
