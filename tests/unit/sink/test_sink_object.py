"""The sink as an object: what travels, what is refused at once, what it shows of itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark import cloudpickle

from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute
from starrocks_txn_sink.errors import LoadFailed, OptionError, StarRocksSinkError
from starrocks_txn_sink.sink.session import Session

dumps: Callable[[object], bytes] = cloudpickle.dumps
OPTIONS = SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once", password="geheim")


def test_it_travels_to_another_process_without_its_session() -> None:
    sink = StarRocksSink(OPTIONS, routes=[TableRoute("orders", {"id": "key"})])
    sink._sessions["job"] = Session("key", "job", "epoch", "checkpoint", {})
    there = cloudpickle.loads(dumps(sink))
    assert there.options == OPTIONS
    assert there.routes == sink.routes
    assert there._sessions == {}  # whoever runs it takes the job over for itself


def test_it_shows_no_secret() -> None:
    assert "geheim" not in repr(StarRocksSink(OPTIONS))


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [("", ["id"], "has no table"), ("orders", [], "no columns"), ("orders", "id", "no columns")],
)
def test_routes_that_route_nothing_are_refused(table: str, columns: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TableRoute(table, columns)  # type: ignore[arg-type]


def test_errors_survive_pickling_and_end_in_advice() -> None:
    error = LoadFailed("The load failed: x", label="job-1", table="orders", hint="Do this.")
    there = cloudpickle.loads(dumps(error))
    assert isinstance(there, LoadFailed)
    assert isinstance(there, StarRocksSinkError)
    assert there.context == {"label": "job-1", "table": "orders"}
    assert str(there) == str(error) == "The load failed: x [label=job-1, table=orders] Do this."
    assert there.retryable
