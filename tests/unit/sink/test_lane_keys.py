"""The numbers that lead rows into their lanes by Spark's own hash; real Spark spreads them in `tests/spark`."""

from __future__ import annotations

from starrocks_txn_sink.sink.projection import _spark_hash, hash_keys


def test_the_hash_is_sparks() -> None:
    """`SELECT hash(0), hash(1), hash(2), hash(42)` in Spark."""
    assert [_spark_hash(number) for number in (0, 1, 2, 42)] == [933211791, -559580957, 1765031574, 29417773]


def test_every_lane_has_a_number_of_its_own() -> None:
    for lanes in (1, 2, 7, 64):
        assert [_spark_hash(key) % lanes for key in hash_keys(lanes)] == list(range(lanes))
