"""The result of `verify` in the ledger: what is written is read, and a sentence says it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from starrocks_txn_sink.protocol.verified import Verified

NUMBERS = st.integers(0, 10**9)
POSITIONS = st.text("0123456789ABCDEF/-:,mysqlbin.", max_size=200)


@given(st.builds(Verified, st.integers(0, 10**10), NUMBERS, NUMBERS, NUMBERS, NUMBERS, POSITIONS))
def test_what_is_written_is_read(result: Verified) -> None:
    token = result.token
    assert len(token) <= 128
    read = Verified.of_token(token)
    assert result.position.startswith(read.position)
    assert read.token == token
    assert (read.at, read.equal, read.different, read.unproven, read.rows) == (
        result.at,
        result.equal,
        result.different,
        result.unproven,
        result.rows,
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Verified(0, 50, 0, 0, 0, "0/1D"), "equal to the source at 1970-01-01 00:00 UTC, position 0/1D: 50 tables"),
        (
            Verified(0, 48, 0, 2, 0, "b.1:4"),
            "equal to the source at 1970-01-01 00:00 UTC, position b.1:4: 48 tables, 2 not proven",
        ),
        (
            Verified(60, 47, 2, 1, 9, "g"),
            "not equal to the source at 1970-01-01 00:01 UTC, position g: 2 tables different (9 rows), 47 equal, "
            "1 not proven",
        ),
        (Verified(0, 0, 0, 3, 0, "g"), "not compared to the source at 1970-01-01 00:00 UTC, position g, 3 not proven"),
    ],
)
def test_a_sentence_says_it(result: Verified, text: str) -> None:
    assert result.text == text
