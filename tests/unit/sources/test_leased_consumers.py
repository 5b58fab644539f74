"""Consumers of a process: two readers never share one, and those that nobody uses wait for the next reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from starrocks_txn_sink.sources.kafka import ranges
from starrocks_txn_sink.sources.kafka.ranges import close_consumers, leased_consumer

ONE, OTHER, THIRD = ({"group.id": name} for name in ("one", "other", "third"))


class Fake:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.assigned, self.closed = config, list[Any](), False

    def assign(self, starts: Any) -> None:
        self.assigned.append(starts)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    close_consumers()
    monkeypatch.setattr(ranges, "open_consumer", Fake)
    yield
    close_consumers()


def lease(config: Mapping[str, Any]) -> Any:
    with leased_consumer(config) as consumer:
        return consumer


def test_a_consumer_waits_without_partitions_for_the_next_reader() -> None:
    first = lease(ONE)
    assert first.assigned == [{}]
    assert lease({**ONE}) is first


def test_two_readers_at_once_have_two() -> None:
    with leased_consumer(ONE) as first, leased_consumer(ONE) as second:
        assert first is not second
        other = threading.Thread(target=lease, args=(ONE,))
        other.start()
        other.join(60)
    assert {id(lease(ONE)), id(second)} <= {id(first), id(second)}


def test_the_one_that_was_used_last_of_each_configuration_is_kept_for_two_of_them() -> None:
    first, other, again = lease(ONE), lease(OTHER), lease(ONE)
    assert again is first
    third = lease(THIRD)
    assert (first.closed, other.closed, third.closed) == (False, True, False)


def test_a_reader_that_fails_leaves_its_consumer_to_the_next_one() -> None:
    with pytest.raises(ValueError, match="no"), leased_consumer(ONE) as consumer:
        raise ValueError("no")
    assert lease(ONE) is consumer


def test_all_that_nobody_uses_are_closed() -> None:
    with leased_consumer(ONE) as used:
        unused: Any = lease(OTHER)
        close_consumers()
        busy: Any = used
        assert (unused.closed, busy.closed) == (True, False)
