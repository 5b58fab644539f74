"""Pairs of features that exclude each other, as data: each with its reason and advice.

`SinkOptions`, the sink, the data source and the projection call `refuse_conflicts`; docs/combinations.md is generated
from the same data. Every other pair works, and a test tries it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from starrocks_txn_sink.errors import InputError, OptionError


class Feature(Enum):
    """A feature in use, or a property of the input: its title on the page, its clause in errors (`phrase`)."""

    NO_QUERY_URL = "no `query_url`", "there is no query_url"
    EXACTLY_ONCE = "`delivery` exactly-once", "delivery is exactly-once"
    SEVERAL_LANES = "`lanes` above 1", "there are several lanes"
    NO_SHUFFLE = "`shuffle` false", "shuffle is false"
    COMPACT = "`compact`", "compact is on"
    QUARANTINE = "`on_bad_rows` quarantine", "on_bad_rows is quarantine"
    SCHEMA_IGNORE = "`schema_changes` ignore", "schema_changes is ignore"
    SCHEMA_APPLY = "`schema_changes` apply", "schema_changes is apply"
    RECEIPTS_LOG = "`receipts_log`", "receipts_log is on"
    METRICS_PORT = "`metrics_port`", "metrics_port is set"
    CSV = "property `format` csv", "format is csv"
    JSONPATHS = "property `jsonpaths`", "jsonpaths is set"
    PARTIAL_UPDATE = "property `partial_update`", "partial_update is set"
    PARTIAL_UPDATE_UNNAMED = "`partial_update` without `columns`", "partial_update is set without columns"
    MERGE_CONDITION = "property `merge_condition`", "merge_condition is set"
    WHERE = "property `where`", "where is set"
    MAX_FILTER_RATIO = "property `max_filter_ratio`", "max_filter_ratio is above 0"
    ROUTES = "typed columns (`routes`)", "routes are given"
    JSON_TEXTS = "rows as JSON texts (no `routes`)", "rows come as JSON texts"
    ASSEMBLE = "raw events (`assemble`)", "assemble is given"
    PLAIN_ROWS = "rows without positions", "the rows have no positions"
    DATA_SOURCE = "the data source", "rows go through the data source"

    def __init__(self, title: str, phrase: str) -> None:
        self.title = title
        self.phrase = phrase


Features = Mapping[Feature, str]
"""The features in use, each with its clause for errors."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two features that exclude each other: the reason, the advice, and the option to change first."""

    one: Feature
    other: Feature
    why: str
    advice: str
    option: str


def _needs_query_url(feature: Feature, option: str, why: str, instead: str) -> Conflict:
    advice = f"Set query_url='mysql://<frontend>:9030', or {instead}."
    return Conflict(feature, Feature.NO_QUERY_URL, why, advice, option)


def _not_with_compact(feature: Feature, name: str, why: str) -> Conflict:
    advice = f"Remove {name}, turn compact off, or give such tables a sink of their own."
    return Conflict(Feature.COMPACT, feature, why, advice, "compact")


def _not_with_data_source(feature: Feature, option: str, why: str) -> Conflict:
    return Conflict(feature, Feature.DATA_SOURCE, why, f"Leave {option} out, or use StarRocksSink.", option)


CONFLICTS: Final = (
    _needs_query_url(
        Feature.EXACTLY_ONCE,
        "delivery",
        "exactly-once keeps a ledger of positions and reads it over SQL",
        "choose delivery='at-least-once', with which a replay after a failure may write rows a second time",
    ),
    _needs_query_url(
        Feature.RECEIPTS_LOG, "receipts_log", "the sink creates the log's table over SQL", "turn receipts_log off"
    ),
    _needs_query_url(
        Feature.QUARANTINE,
        "on_bad_rows",
        "the sink creates and reads the dead-letter table over SQL",
        "set on_bad_rows='fail'",
    ),
    _needs_query_url(
        Feature.SCHEMA_IGNORE,
        "schema_changes",
        "the sink reads the tables' columns over SQL",
        "set schema_changes='fail'",
    ),
    _needs_query_url(
        Feature.SCHEMA_APPLY, "schema_changes", "the sink alters tables over SQL", "set schema_changes='fail'"
    ),
    _needs_query_url(Feature.COMPACT, "compact", "the sink reads the key columns over SQL", "turn compact off"),
    Conflict(
        Feature.NO_SHUFFLE,
        Feature.SEVERAL_LANES,
        "rows of one source partition could reach two lanes; a commit of the second lane would then hide rows that the "
        "first lane has not written yet",
        'Set lanes=1, or leave shuffle at "auto".',
        "shuffle",
    ),
    Conflict(
        Feature.NO_SHUFFLE,
        Feature.COMPACT,
        "the last row of a key is found by a shuffle",
        'Turn compact off, or leave shuffle at "auto".',
        "shuffle",
    ),
    Conflict(
        Feature.QUARANTINE,
        Feature.COMPACT,
        "later rows may replace rows of a source transaction, so it cannot be dead-lettered on its own",
        "Turn one of them off.",
        "on_bad_rows",
    ),
    Conflict(
        Feature.QUARANTINE,
        Feature.CSV,
        "dead letters keep their rows as JSON",
        "Remove format, or set on_bad_rows='fail'.",
        "on_bad_rows",
    ),
    Conflict(
        Feature.COMPACT,
        Feature.CSV,
        "the last row of a key is found by its JSON",
        "Remove format, or turn compact off.",
        "compact",
    ),
    _not_with_compact(Feature.JSONPATHS, "jsonpaths", "it changes the place of a row's key"),
    _not_with_compact(Feature.PARTIAL_UPDATE, "partial_update", "several rows of a key update different columns"),
    _not_with_compact(Feature.MERGE_CONDITION, "merge_condition", "an earlier row of a key may win"),
    _not_with_compact(Feature.WHERE, "where", "it may filter the last row of a key out and keep an earlier one"),
    _not_with_compact(
        Feature.MAX_FILTER_RATIO,
        "max_filter_ratio",
        "the server may leave out the last row of a key and keep an earlier one",
    ),
    Conflict(Feature.CSV, Feature.JSONPATHS, "jsonpaths belongs to JSON", "Remove one of them.", "properties"),
    Conflict(
        Feature.JSON_TEXTS,
        Feature.CSV,
        "the sink sends JSON texts unchanged",
        "Remove format, or give the sink typed columns and a TableRoute.",
        "properties",
    ),
    Conflict(
        Feature.JSON_TEXTS,
        Feature.PARTIAL_UPDATE_UNNAMED,
        "partial_update needs a list of columns, and JSON texts have none",
        "List the key columns and the updated columns in columns, or give the sink a TableRoute.",
        "properties",
    ),
    Conflict(
        Feature.ASSEMBLE,
        Feature.ROUTES,
        "events carry their rows as JSON",
        "Create the column `row` with to_json, or use assemble_transactions and routes.",
        "assemble",
    ),
    Conflict(
        Feature.ASSEMBLE,
        Feature.COMPACT,
        "compact drops rows before the lanes, where no source transaction is whole yet",
        "Use assemble_transactions with compact, or turn compact off.",
        "compact",
    ),
    Conflict(
        Feature.ASSEMBLE,
        Feature.DATA_SOURCE,
        "its driver part keeps no state between micro-batches, so open source transactions would be lost",
        "Use assemble_transactions before it, or StarRocksSink.",
        "assemble",
    ),
    _not_with_data_source(Feature.COMPACT, "compact", "it would have to read the tables' keys before each micro-batch"),
    _not_with_data_source(Feature.NO_SHUFFLE, "shuffle", "rows are laid out before the sink can check their order"),
    _not_with_data_source(Feature.METRICS_PORT, "metrics_port", "none of its processes outlives a write"),
    _not_with_data_source(Feature.SCHEMA_APPLY, "schema_changes", "its frame is created before the first write"),
    Conflict(
        Feature.PLAIN_ROWS,
        Feature.QUARANTINE,
        "there are no source transactions to dead-letter",
        "Give the sink source_partition, position, seq and transaction_end, or set on_bad_rows='fail'.",
        "on_bad_rows",
    ),
    Conflict(
        Feature.PLAIN_ROWS,
        Feature.COMPACT,
        "without position and seq the last row of a key is not known",
        "Give the sink the output of assemble_transactions, or turn compact off and choose the last row upstream "
        "(to_starrocks_ops).",
        "compact",
    ),
)
"""Every refused pair; `find_conflict` returns the first one in this order."""

IMPLIED: Final[Mapping[Feature, Feature]] = {
    Feature.ASSEMBLE: Feature.JSON_TEXTS,
    Feature.PARTIAL_UPDATE_UNNAMED: Feature.PARTIAL_UPDATE,
}
"""Feature → the feature that it implies."""

ALTERNATIVES: Final = (
    frozenset((Feature.ROUTES, Feature.JSON_TEXTS)),
    frozenset((Feature.SCHEMA_IGNORE, Feature.SCHEMA_APPLY)),
    frozenset((Feature.ASSEMBLE, Feature.PLAIN_ROWS)),
)
"""Pairs of alternatives: a user can choose only one."""

ALWAYS_SORTED: Final[Mapping[Feature, str]] = {
    Feature.SEVERAL_LANES: "the rows of a source partition must reach the lane that owns it",
    Feature.COMPACT: "the last row of a key is found by a shuffle",
    Feature.QUARANTINE: "a lane commits unsorted rows only at its end, but a quarantine may have to commit earlier; "
    "does not apply to assembled events",
}
"""Features with which `shuffle` "auto" always sorts rows before their lanes, and the reason."""

COMMITTED_AT_END: Final[Mapping[Feature, str]] = {
    Feature.COMPACT: "a dropped row and its replacement must become visible together, or a reader could see the "
    "dropped row's source transaction without it",
}
"""Features with which a lane makes exactly one StarRocks transaction per micro-batch, and the reason."""


def default_phrases(*features: Feature) -> dict[Feature, str]:
    """`features` with their default clauses."""
    return {feature: feature.phrase for feature in features}


def find_conflict(features: Features) -> Conflict | None:
    """The first conflict among `features`; None if all of them go together."""
    return next((each for each in CONFLICTS if each.one in features and each.other in features), None)


def refuse_conflicts(features: Features) -> None:
    """Raise an error for the first conflict among `features`: InputError if rows lack positions, else OptionError."""
    found = find_conflict(features)
    if found is not None:
        error = InputError if found.one is Feature.PLAIN_ROWS else OptionError
        said = f"{features[found.one]}, and {features[found.other]}: {found.why}."
        raise error(said, hint=found.advice, option=found.option)


def always_sorted(features: Features, *, assembled: bool = False) -> bool:
    """Whether `shuffle` "auto" sorts rows (with `assembled`: events) before the lanes, independent of their size."""
    not_counted = {Feature.QUARANTINE} if assembled else set()
    return not (features.keys() - not_counted).isdisjoint(ALWAYS_SORTED)


def committed_at_end(features: Features) -> bool:
    """Whether a lane makes exactly one StarRocks transaction per micro-batch."""
    return not features.keys().isdisjoint(COMMITTED_AT_END)


# --- the page ---


def find_conflict_between(one: Feature, other: Feature) -> Conflict | None:
    """The conflict between `one` and `other`, implied features included; None if they go together."""
    with_implied = [each for feature in (one, other) for each in (feature, IMPLIED.get(feature, feature))]
    return find_conflict(default_phrases(*with_implied))


def render_combinations() -> str:
    """The Markdown page docs/combinations.md."""
    return "\n".join([*_matrix(), *_reasons(), *_consequences()]) + "\n"


def _matrix() -> Iterator[str]:
    yield "# Which features go together"
    yield ""
    yield "This page is generated from `options/combinations.py`, which the sink uses too; a test keeps it up to date."
    yield "A number marks a refused pair, with the reason below; `–` marks alternatives: choose one of them."
    yield "All other pairs work; a test tries every pair."
    yield ""
    numbers = {feature: number for number, feature in enumerate(Feature, 1)}
    yield f"| | feature | {' | '.join(_letter(number) for number in numbers.values())} |"
    yield f"|---|---|{'---|' * len(numbers)}"
    for one, number in numbers.items():
        cells = (_cell(one, other) for other in numbers)
        yield f"| {_letter(number)} | {one.title} | {' | '.join(cells)} |"


def _letter(number: int) -> str:
    return chr(ord("A") + number - 1)


def _cell(one: Feature, other: Feature) -> str:
    if one is other:
        return ""
    if (found := find_conflict_between(one, other)) is not None:
        return str(CONFLICTS.index(found) + 1)
    return "–" if frozenset((one, other)) in ALTERNATIVES else ""


def _reasons() -> Iterator[str]:
    yield ""
    yield "## Why a pair is refused, and what to do"
    yield ""
    yield "| | pair | why | what to do |"
    yield "|---|---|---|---|"
    for number, each in enumerate(CONFLICTS, 1):
        yield f"| {number} | {each.one.title} and {each.other.title} | {each.why} | {each.advice} |"


def _consequences() -> Iterator[str]:
    yield ""
    yield "## What a feature decides"
    yield ""
    yield "| feature | what happens | why |"
    yield "|---|---|---|"
    for feature, why in ALWAYS_SORTED.items():
        yield f'| {feature.title} | `shuffle` "auto" always sorts rows before their lanes | {why} |'
    for feature, why in COMMITTED_AT_END.items():
        yield f"| {feature.title} | a lane makes exactly one StarRocks transaction of a micro-batch | {why} |"
