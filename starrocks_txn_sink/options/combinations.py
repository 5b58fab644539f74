"""Pairs of features that exclude each other, and what needs `query_url`, as data: each with its reason and advice.

`SinkOptions`, the sink, the data source and the projection call `refuse_conflicts`; the tables of
docs/reference/combinations.md are generated from the same data. Every other pair works, and a test tries it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from starrocks_txn_sink.errors import InputError, OptionError


class Feature(Enum):
    """A feature in use, or a property of the input: title on the page, clause in errors (`phrase`), and its option.

    A feature that goes with every other one is not here.
    """

    EXACTLY_ONCE = "`delivery` exactly-once", "delivery is exactly-once", "delivery"
    QUARANTINE = "`on_bad_rows` quarantine", "on_bad_rows is quarantine", "on_bad_rows"
    JSONPATHS = "property `jsonpaths`", "jsonpaths is set", "properties"
    PARTIAL_UPDATE = "property `partial_update`", "partial_update is set", "properties"
    PARTIAL_UPDATE_UNNAMED = (
        "`partial_update` without `columns`",
        "partial_update is set without columns",
        "properties",
    )
    MERGE_CONDITION = "property `merge_condition`", "merge_condition is set", "properties"
    WHERE = "property `where`", "where is set", "properties"
    ROUTES = "typed columns (`routes`)", "routes are given", ""
    JSON_TEXTS = "rows as JSON texts (no `routes`)", "rows come as JSON texts", ""
    ASSEMBLE = "raw events (`assemble`)", "assemble is given", "assemble"
    PLAIN_ROWS = "rows without positions", "the rows have no positions", ""
    DATA_SOURCE = "the data source", "rows go through the data source", ""

    def __init__(self, title: str, phrase: str, option: str) -> None:
        self.title = title
        self.phrase = phrase
        self.option = option


Features = Mapping[Feature, str]
"""The features in use, each with its clause for errors."""

OVER_SQL: Final[Mapping[str, tuple[str, str]]] = {
    "delivery": (
        "exactly-once keeps a ledger of positions and reads it over SQL",
        "choose delivery='at-least-once', with which a replay after a failure may write rows a second time",
    ),
    "receipts_log": ("the sink creates the log's table over SQL", "turn receipts_log off"),
    "on_bad_rows": ("the sink creates and reads the dead-letter table over SQL", "set on_bad_rows='fail'"),
    "schema_changes": ("the sink reads the tables' columns, and alters them, over SQL", "set schema_changes='fail'"),
}
"""The options that need `query_url` with other values than delivery='at-least-once', false and 'fail'; the reason, and
the advice."""

_PAIRS: Final[Mapping[tuple[Feature, Feature], tuple[str, str]]] = {
    (Feature.JSON_TEXTS, Feature.PARTIAL_UPDATE_UNNAMED): (
        "partial_update needs a list of columns, and JSON texts have none",
        "List the key columns and the updated columns in columns, or give the sink a TableRoute.",
    ),
    (Feature.ASSEMBLE, Feature.ROUTES): (
        "events carry their rows as JSON",
        "Create the column `row` with to_json, or use assemble_transactions and routes.",
    ),
    (Feature.EXACTLY_ONCE, Feature.DATA_SOURCE): (
        "its rows have no positions, so a write that is called again writes its rows again",
        "Leave delivery out: the call itself writes all rows once, or none. Or use StarRocksSink.write(frame, "
        "batch_id=…).",
    ),
    (Feature.PLAIN_ROWS, Feature.QUARANTINE): (
        "there are no source transactions to dead-letter",
        "Give the sink source_partition, position, seq and transaction_end, or set on_bad_rows='fail'.",
    ),
}


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two features that exclude each other: the reason and the advice."""

    first: Feature
    second: Feature
    why: str
    advice: str

    @property
    def option(self) -> str:
        """The option to change first."""
        return self.first.option or self.second.option


CONFLICTS: Final = tuple(Conflict(*pair, *texts) for pair, texts in _PAIRS.items())
"""Every refused pair; `find_conflict` returns the first one in this order."""

NOT_COMPACTED: Final[Features] = {
    Feature.JSONPATHS: "the property may change the place of a row's key",
    Feature.PARTIAL_UPDATE: "several rows of a key may update different columns",
    Feature.MERGE_CONDITION: "an earlier row of a key may win",
    Feature.WHERE: "the property may filter the last row of a key out and keep an earlier one",
}
"""Properties with which the sink sends all rows of a table, although `compact` is on, and the reason."""


def default_phrases(*features: Feature) -> dict[Feature, str]:
    """`features` with their default clauses."""
    return {feature: feature.phrase for feature in features}


def find_conflict(features: Features) -> Conflict | None:
    """The first conflict among `features`; None if all of them go together."""
    return next(
        (conflict for conflict in CONFLICTS if conflict.first in features and conflict.second in features), None
    )


def refuse_conflicts(features: Features) -> None:
    """Raise an error for the first conflict among `features`: InputError if rows lack positions, else OptionError."""
    conflict = find_conflict(features)
    if conflict is not None:
        error = InputError if conflict.first is Feature.PLAIN_ROWS else OptionError
        sentence = f"{features[conflict.first]}, and {features[conflict.second]}: {conflict.why}."
        raise error(sentence, hint=conflict.advice, option=conflict.option)


def refuse_without_sql(option: str, phrase: str) -> None:
    """Raise OptionError: `option` needs `query_url`, because of what `phrase` says."""
    why, instead = OVER_SQL[option]
    hint = f"Set query_url='mysql://<frontend>:9030', or {instead}."
    raise OptionError(f"{phrase}, and there is no query_url: {why}.", hint=hint, option=option)
