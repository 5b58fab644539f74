"""Every pair of features through its real way in: what the table refuses is refused, all else is taken."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from pyspark.sql import SparkSession, types as T

from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute, TransactionAssembly
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.combinations import CONFLICTS, Conflict, Feature, always_sorted
from starrocks_txn_sink.rows.columns import PAYLOAD
from starrocks_txn_sink.sink.lane_layout import LaneTerms, lane_partitioned
from starrocks_txn_sink.sink.projection import lane_input
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.telemetry import Event
from tools.pages import ALTERNATIVES, IMPLIED, find_conflict_between

OPTIONS: dict[Feature, dict[str, Any]] = {
    Feature.NO_QUERY_URL: {"query_url": None, "delivery": "at-least-once"},
    Feature.EXACTLY_ONCE: {"delivery": "exactly-once"},
    Feature.SEVERAL_LANES: {"lanes": 2, "transactions": "lane"},
    Feature.SHARED_LABEL: {"lanes": 2, "transactions": "batch"},
    Feature.NO_SHUFFLE: {"shuffle": False},
    Feature.QUARANTINE: {"on_bad_rows": "quarantine"},
    Feature.SCHEMA_IGNORE: {"schema_changes": "ignore"},
    Feature.SCHEMA_APPLY: {"schema_changes": "apply"},
    Feature.RECEIPTS_LOG: {"receipts_log": True},
    Feature.METRICS_PORT: {"metrics_port": 0},
}
PROPERTIES = {
    Feature.CSV: {"format": "csv"},
    Feature.JSONPATHS: {"jsonpaths": '["$.id"]'},
    Feature.PARTIAL_UPDATE: {"partial_update": "true", "columns": "id"},
    Feature.PARTIAL_UPDATE_UNNAMED: {"partial_update": "true"},
    Feature.MERGE_CONDITION: {"merge_condition": "version"},
    Feature.WHERE: {"where": "id > 1"},
    Feature.MAX_FILTER_RATIO: {"max_filter_ratio": "0.1"},
}
ROUTES = (TableRoute("orders", ["id", "amount"]),)
NEEDS_ROUTES = {Feature.ROUTES, Feature.CSV, Feature.PARTIAL_UPDATE_UNNAMED}
TEXTS = {Feature.JSON_TEXTS, Feature.ASSEMBLE}

Pair = tuple[Feature, Feature]


def possible(pair: Pair) -> bool:
    """Whether a user can ask for both at all."""
    return frozenset(pair) not in ALTERNATIVES and not any(IMPLIED.get(one) in pair for one in pair)


PAIRS = [pair for pair in combinations(Feature, 2) if possible(pair)]
OF_ROWS = [pair for pair in PAIRS if Feature.PLAIN_ROWS in pair]
ELSEWHERE = [pair for pair in PAIRS if Feature.PLAIN_ROWS not in pair]


def named(pair: Pair) -> str:
    return "-".join(one.name.lower() for one in pair)


def options(pair: Pair) -> SinkOptions:
    given: dict[str, Any] = {"load_url": "http://fe:8030", "query_url": "mysql://fe:9030", "database": "shop"}
    properties: dict[str, str] = {}
    for feature in pair:
        given |= OPTIONS.get(feature, {})
        properties |= PROPERTIES.get(feature, {})
    return SinkOptions(**given, properties=properties, roll_back_on_sigterm=False)


def routes(pair: Pair) -> tuple[TableRoute, ...]:
    wanted = Feature.ROUTES in pair or (NEEDS_ROUTES.intersection(pair) and not TEXTS.intersection(pair))
    return ROUTES if wanted else ()


class Reached(Exception):
    """Everything was taken, and the work begins."""


class Untouched:
    """A frame that may not be looked at before the checks are over."""

    def __getattr__(self, name: str) -> Any:
        raise Reached(name)


class Silent:
    """A metrics endpoint that serves nothing."""

    def __call__(self, event: Event) -> None: ...

    def start(self) -> object: ...

    def watch(self, session: Any) -> None: ...


def through_the_data_source(pair: Pair) -> None:
    """Both of its ways in: laying a frame out, and making a writer for it."""
    asked = options(pair)
    assert "assemble" not in inspect.signature(lane_partitioned).parameters
    if Feature.ASSEMBLE in pair:
        asked.check_features(Feature.ASSEMBLE, Feature.DATA_SOURCE)
    with pytest.raises(Reached):
        lane_partitioned(Untouched(), asked, routes=routes(pair))  # type: ignore[arg-type]
    terms = LaneTerms.of(TableTerms(asked, {}), marked=True, epoch="e1", logging=None)
    arrived = LaneTerms.within(T.StructType().add(PAYLOAD, "string", metadata=terms.metadata))
    assert arrived.sink_options({"roll_back_on_sigterm": "false"}) == replace(asked, lanes=asked.lane_count)


def go_in(pair: Pair) -> None:
    if Feature.DATA_SOURCE in pair:
        through_the_data_source(pair)
        return
    assemble = TransactionAssembly() if Feature.ASSEMBLE in pair else None
    StarRocksSink(options(pair), routes=routes(pair), assemble=assemble, metrics=Silent())


def says(error: Exception, found: Conflict) -> None:
    assert found.why in str(error)
    assert str(error).endswith(found.advice)
    assert f"[option={found.option}]" in str(error)


@pytest.mark.parametrize("pair", ELSEWHERE, ids=named)
def test_a_pair_is_refused_with_its_reason_or_taken(pair: Pair) -> None:
    found = find_conflict_between(*pair)
    if found is None:
        go_in(pair)
        return
    with pytest.raises(OptionError) as caught:
        go_in(pair)
    says(caught.value, found)


def test_what_the_data_source_refuses_it_refuses_at_both_ways_in() -> None:
    for pair in (
        each for each in ELSEWHERE if Feature.DATA_SOURCE in each and find_conflict_between(*each) is not None
    ):
        if Feature.ASSEMBLE in pair or IMPLIED.keys() & set(pair):
            continue
        asked = options(pair)
        with pytest.raises(OptionError):
            lane_partitioned(Untouched(), asked, routes=routes(pair))  # type: ignore[arg-type]
        terms = LaneTerms.of(TableTerms(asked, {}), marked=True, epoch="e1", logging=None)
        with pytest.raises(OptionError):
            terms.sink_options({})


@pytest.mark.spark
@pytest.mark.parametrize("pair", OF_ROWS, ids=named)
def test_rows_without_positions_are_refused_or_projected(pair: Pair, spark: SparkSession) -> None:
    asked, given = options(pair), routes(pair)
    frame = spark.createDataFrame([("orders", "{}", 1, 2)], "table string, row string, id long, amount long")
    terms = TableTerms.of(given, frame.schema, "UTC", asked, Tables())

    def project() -> None:
        lane_input(frame, terms, name_task=asked.exactly_once, sort=asked.shuffle is not False)

    found = find_conflict_between(*pair)
    if found is None:
        project()
        return
    with pytest.raises(InputError) as caught:
        project()
    says(caught.value, found)


def test_each_conflict_is_one_pair_that_a_user_can_ask_for() -> None:
    pairs = [frozenset((each.one, each.other)) for each in CONFLICTS]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 and pair not in ALTERNATIVES for pair in pairs)


def test_properties_of_different_tables_do_not_meet() -> None:
    tables = {"a": {"format": "csv"}, "b": {"jsonpaths": '["$.id"]'}}
    assert SinkOptions(load_url="fe", database="shop", delivery="at-least-once", tables=tables)


def test_shuffle_is_decided_alike_for_rows_and_events_but_for_a_quarantine() -> None:
    lanes, quarantine = (
        options((Feature.SEVERAL_LANES, Feature.JSON_TEXTS)),
        options((Feature.QUARANTINE, Feature.WHERE)),
    )
    assert [always_sorted(lanes.features, assembled=events) for events in (False, True)] == [True, True]
    assert [always_sorted(quarantine.features, assembled=events) for events in (False, True)] == [True, False]
