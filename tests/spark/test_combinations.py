"""Every pair of features through its real way in: what the table refuses is refused, all else is taken."""

from __future__ import annotations

from enum import Enum
from functools import partial
from itertools import combinations, permutations, product
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession, types as T

from starrocks_txn_sink import SinkOptions, StarRocksSink, TableRoute, TransactionAssembly, TxnEventLines
from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.options.combinations import CONFLICTS, Conflict, Feature, default_phrases, find_conflict
from starrocks_txn_sink.sink import plain_frames, session, sink
from starrocks_txn_sink.sink.projection import lane_input
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.terms import TableTerms
from starrocks_txn_sink.telemetry import Event
from tools.pages import IMPLIED, with_implied


class Free(Enum):
    """Features that go with every other one, so that the product's table has none of them."""

    SHUFFLE = "shuffle true"
    NO_SHUFFLE = "shuffle false"
    SCHEMA_IGNORE = "schema_changes ignore"
    SCHEMA_APPLY = "schema_changes apply"
    RECEIPTS_LOG = "receipts_log"
    METRICS_PORT = "metrics_port"
    KAFKA_READER = "reader librdkafka"
    BATCH_FRAME = "a batch frame"
    SCHEMA_PREVIEW = "a call of schema_changes"


Either = Feature | Free
OPTIONS: dict[Either, dict[str, Any]] = {
    Feature.EXACTLY_ONCE: {"delivery": "exactly-once"},
    Free.SHUFFLE: {"shuffle": True},
    Free.NO_SHUFFLE: {"shuffle": False},
    Feature.QUARANTINE: {"on_bad_rows": "quarantine"},
    Free.SCHEMA_IGNORE: {"schema_changes": "ignore"},
    Free.SCHEMA_APPLY: {"schema_changes": "apply"},
    Free.RECEIPTS_LOG: {"receipts_log": True},
    Free.METRICS_PORT: {"metrics_port": 0},
    Free.BATCH_FRAME: {"job": "frames"},
}
PROPERTIES: dict[Either, dict[str, str]] = {
    Feature.JSONPATHS: {"jsonpaths": '["$.id"]'},
    Feature.PARTIAL_UPDATE: {"partial_update": "true", "columns": "id"},
    Feature.PARTIAL_UPDATE_UNNAMED: {"partial_update": "true"},
    Feature.MERGE_CONDITION: {"merge_condition": "version"},
    Feature.WHERE: {"where": "id > 1"},
}
ROUTES = (TableRoute("orders", ["id", "amount"]),)
NEEDS_ROUTES: set[Either] = {Feature.ROUTES, Feature.PARTIAL_UPDATE_UNNAMED}
EVENTS: set[Either] = {Feature.ASSEMBLE, Free.KAFKA_READER}
TEXTS: set[Either] = {Feature.JSON_TEXTS, *EVENTS}

Pair = tuple[Either, Either]
Conflicting = tuple[Feature, Feature]


ALTERNATIVES = (
    frozenset((Feature.ROUTES, Feature.JSON_TEXTS)),
    frozenset((Feature.ASSEMBLE, Feature.PLAIN_ROWS)),
)
"""Pairs of alternatives, and so all features that imply them: a user can choose only one."""


def find_conflict_between(feature: Feature, other_feature: Feature) -> Conflict | None:
    """The conflict between `feature` and `other_feature`, implied features included; None if they go together."""
    return find_conflict(default_phrases(*with_implied(feature), *with_implied(other_feature)))


def are_alternatives(feature: Feature, other_feature: Feature) -> bool:
    """Whether a user cannot choose both."""
    return any(frozenset(pair) in ALTERNATIVES for pair in product(with_implied(feature), with_implied(other_feature)))


def of_table(pair: Pair) -> Conflicting | None:
    """`pair` as features of the product's table; None if one of them is free and brings no such feature along."""
    implied = [Feature.ASSEMBLE if feature is Free.KAFKA_READER else feature for feature in pair]
    first, second = implied
    return (first, second) if isinstance(first, Feature) and isinstance(second, Feature) else None


def conflict_of(pair: Pair) -> Conflict | None:
    place = of_table(pair)
    return None if place is None else find_conflict_between(*place)


def possible(pair: Pair) -> bool:
    """Whether a user can ask for both at all."""
    if {*pair} in ALTERNATIVES_OF_TESTS:
        return False
    place = of_table(pair)
    if place is None:
        return True
    if place[0] is place[1] or any(second in IMPLIED.get(first, ()) for first, second in permutations(place)):
        return False
    return find_conflict_between(*place) is not None or not are_alternatives(*place)


ALTERNATIVES_OF_TESTS: list[set[Either]] = [
    {Free.SHUFFLE, Free.NO_SHUFFLE},
    {Free.SCHEMA_IGNORE, Free.SCHEMA_APPLY},
    *({Feature.DATA_SOURCE, way} for way in (Free.BATCH_FRAME, Free.SCHEMA_PREVIEW)),  # other ways in
]
PAIRS: list[Pair] = [pair for pair in combinations((*Feature, *Free), 2) if possible(pair)]
OF_ROWS = [pair for pair in PAIRS if Feature.PLAIN_ROWS in pair]
ELSEWHERE = [pair for pair in PAIRS if Feature.PLAIN_ROWS not in pair]


def named(pair: Pair) -> str:
    return "-".join(feature.name.lower() for feature in pair)


def asked_for(pair: Pair) -> tuple[dict[str, Any], dict[str, str]]:
    """Options and stream-load properties."""
    settings: dict[str, Any] = {"load_url": "http://fe:8030", "query_url": "mysql://fe:9030", "database": "shop"}
    properties: dict[str, str] = {}
    for feature in pair:
        settings |= OPTIONS.get(feature, {})
        properties |= PROPERTIES.get(feature, {})
    return settings, properties


def options(pair: Pair) -> SinkOptions:
    settings, properties = asked_for(pair)
    return SinkOptions(**settings, properties=properties)


def routes(pair: Pair) -> tuple[TableRoute, ...]:
    is_routed = Feature.ROUTES in pair or (NEEDS_ROUTES.intersection(pair) and not TEXTS.intersection(pair))
    return ROUTES if is_routed else ()


class Reached(Exception):
    """Everything was taken, and the work begins."""


class Untouched:
    """A frame that may not be looked at before the checks are over."""

    def __getattr__(self, name: str) -> Any:
        raise Reached(name)


class Silent:
    """A metrics endpoint that serves nothing."""

    url = ""

    def __call__(self, event: Event) -> None: ...

    def start(self) -> object: ...

    def watch(self, session: Any) -> None: ...


def through_the_data_source(pair: Pair) -> None:
    """The way of a batch frame into the data source, up to the first look at the server; its options are texts."""
    settings, properties = asked_for(pair)
    texts = {name: str(value).lower() for name, value in settings.items() if value is not None}
    texts |= {f"sink.properties.{name}": value for name, value in properties.items()}
    schema = T.StructType().add("table", "string").add("row", "string")
    if routes(pair) or Free.SCHEMA_APPLY in pair:  # of which the data source alters the table
        texts["table"], schema = "orders", T.StructType().add("id", "long").add("amount", "long")
    writer = partial(plain_frames.StarRocksDataSource(texts).writer, schema, overwrite=False)
    with mock.patch.object(plain_frames, "open_session", side_effect=Reached), pytest.raises(Reached):
        writer()


def go_in(pair: Pair) -> None:
    if Feature.DATA_SOURCE in pair:
        through_the_data_source(pair)
        return
    lines = TxnEventLines(reader="librdkafka") if Free.KAFKA_READER in pair else None
    assemble = TransactionAssembly(lines=lines) if EVENTS.intersection(pair) else None
    new_sink = StarRocksSink(options(pair), routes=routes(pair), assemble=assemble, metrics=Silent())
    if Free.BATCH_FRAME in pair:
        with mock.patch.object(session, "open_session", side_effect=Reached), pytest.raises(Reached):
            new_sink.write(Untouched(), batch_id=1)  # type: ignore[arg-type]
    if Free.SCHEMA_PREVIEW in pair:
        with mock.patch.object(sink, "read_planned_changes", side_effect=Reached), pytest.raises(Reached):
            new_sink.schema_changes(Untouched())  # type: ignore[arg-type]


def says(error: Exception, conflict: Conflict) -> None:
    assert conflict.why in str(error)
    assert str(error).endswith(conflict.advice)
    assert f"[option={conflict.option}]" in str(error)


@pytest.mark.parametrize("pair", ELSEWHERE, ids=named)
def test_a_pair_is_refused_with_its_reason_or_taken(pair: Pair) -> None:
    conflict = conflict_of(pair)
    if conflict is None:
        go_in(pair)
        return
    with pytest.raises(InputError if conflict.first is Feature.PLAIN_ROWS else OptionError) as failure:
        go_in(pair)
    says(failure.value, conflict)


@pytest.mark.spark
@pytest.mark.parametrize("pair", OF_ROWS, ids=named)
def test_rows_without_positions_are_refused_or_projected(pair: Pair, spark: SparkSession) -> None:
    sink_options, table_routes = options(pair), routes(pair)
    frame = spark.createDataFrame([("orders", "{}", 1, 2)], "table string, row string, id long, amount long")
    terms = TableTerms.of(table_routes, frame.schema, "UTC", sink_options, Tables())

    def project() -> None:
        lane_input(
            frame,
            terms,
            sink_options.lanes or 1,
            digest=sink_options.exactly_once,
            sort=sink_options.shuffle is not False,
        )

    conflict = conflict_of(pair)
    if conflict is None:
        project()
        return
    with pytest.raises(InputError) as failure:
        project()
    says(failure.value, conflict)


def test_each_conflict_is_one_pair_that_a_user_can_ask_for() -> None:
    pairs = [frozenset((conflict.first, conflict.second)) for conflict in CONFLICTS]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 and pair not in ALTERNATIVES for pair in pairs)
