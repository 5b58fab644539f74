"""Functions in queries of the emulator give what the server's documentation says (wire contract 5.13)."""

from __future__ import annotations

import pytest

from tests.support.query_port import query
from tests.support.servers import Server


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("conv(8, 10, 2)", "1000"),
        ("conv('ff', 16, 10)", "255"),
        ("conv('0cc175b9c0f1b6a', 16, 10)", str(0x0CC175B9C0F1B6A)),
        ("conv('ffffffffffffffff', 16, 10)", str(2**64 - 1)),
        ("conv('10', 10, 16)", "A"),
        ("conv('7', 10, 1)", None),
        ("conv(NULL, 16, 10)", None),
        ("md5('abc')", "900150983cd24fb0d6963f7d28e17f72"),
        ("md5(NULL)", None),
        ("left(md5('abc'), 2)", "90"),
        ("hex('apple')", "6170706C65"),
        ("concat('a', NULL)", None),
        ("CAST(at AS VARCHAR)", "2024-02-29 12:34:56.100000"),
        ("CAST(whole AS VARCHAR)", "2024-02-29 12:34:56"),
        ("CAST(price AS VARCHAR)", "1.50"),
        ("CAST(CAST(small AS DOUBLE) AS VARCHAR)", "0.10000000149011612"),
        ("sum(CAST(conv('fffffffffffffff', 16, 10) AS LARGEINT) * 100)", (2**60 - 1) * 100),
    ],
)
@pytest.mark.emulator(
    "CREATE TABLE shop.t (id INT NOT NULL, at DATETIME, whole DATETIME, price DECIMAL(10,2),"
    " small FLOAT) PRIMARY KEY (id) DISTRIBUTED BY HASH (id)"
)
def test_a_function_gives_what_is_documented(server: Server, expression: str, value: object) -> None:
    query(
        server,
        "INSERT INTO shop.t VALUES (1, '2024-02-29 12:34:56.1', '2024-02-29 12:34:56', 1.5, 0.1)",
    )
    ((found,),) = query(server, f"SELECT {expression} FROM shop.t")
    assert (None if found is None else str(found)) == (None if value is None else str(value))
