"""Stream-load properties that a user may set, checked at construction (wire contract 5).

Properties travel as HTTP headers of every load. The sink refuses a property that it sets itself or that the server
silently ignores: otherwise a property without effect would look like one that works.
"""

import re
from collections.abc import Iterable, Mapping

from starrocks_txn_sink.errors import OptionError, did_you_mean
from starrocks_txn_sink.options.combinations import NOT_COMPACTED, Feature, Features
from starrocks_txn_sink.options.decoding import decoded_by
from starrocks_txn_sink.options.enums import COMPRESSIONS, Compression

_TEXT = r".*\S.*"
_WHOLE = r"-?\d+"
_SWITCH = "true|false"

RENAMING = frozenset(("columns", "jsonpaths", "json_root"))
"""Properties with which the keys of a JSON row are not the names of columns, but `columns` that decodes (`renames`)."""

ALLOWED: Mapping[str, tuple[str, str]] = {
    "columns": (_TEXT, "a list of columns"),
    "where": (_TEXT, "a condition"),
    "partitions": (_TEXT, "a list of partitions"),
    "temporary_partitions": (_TEXT, "a list of partitions"),
    "negative": (_SWITCH, "true or false"),
    "strict_mode": (_SWITCH, "true or false"),
    "timezone": (_TEXT, "a time zone"),
    "load_mem_limit": (_WHOLE, "a whole number of bytes"),
    "exec_mem_limit": (_WHOLE, "a whole number of bytes"),
    "jsonpaths": (_TEXT, "a JSON list of paths"),
    "partial_update": (_SWITCH, "true or false"),
    "partial_update_mode": ("row|auto|column", "row, auto or column"),
    "transmission_compression_type": (_TEXT, "a compression type"),
    "load_dop": (_WHOLE, "a whole number"),
    "enable_replicated_storage": (_SWITCH, "true or false"),
    "merge_condition": (_TEXT, "a column"),
    "log_rejected_record_num": (_WHOLE, "a whole number"),
    "compression": ("|".join(compression.value for compression in Compression), COMPRESSIONS),
    # Set by the sink. The sink's own value is accepted, so that a Flink connector's configuration works unchanged.
    "format": ("json", "json, which alone the sink writes"),
    "strip_outer_array": ("true", "true, because the sink sends each load as one JSON array"),
    "ignore_json_size": ("true", "true, because the loads of a transaction add up"),
}
"""Property → (pattern of its values, text of the allowed values)."""

_CSV = "the sink writes JSON"
_OURS = "the sink sets it itself"
_MERGE = "merge commit joins loads of different writers, so a load has no transaction of its own"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("column_separator", "row_delimiter", "skip_header", "trim_space", "enclose", "escape"), _CSV),
    **dict.fromkeys(("label", "table", "transaction_type", "authorization", "expect"), _OURS),
    **dict.fromkeys(("content-length", "transfer-encoding", "content-type", "host", "connection"), _OURS),
    **dict.fromkeys(("channel_id", "channel_num", "source_type"), "it would turn the load into another kind of load"),
    "db": "the whole StarRocks transaction lives in one database; set the option database",
    "database": "the whole StarRocks transaction lives in one database; set the option database",
    "content-encoding": "set the option compression; the server reads no Content-Encoding here",
    "timeout": "set the option timeout, which is also the lifetime of the StarRocks transaction",
    "warehouse": "set the option warehouse",
    "idle_transaction_timeout": "the server ignores it in multi-table transactions; set the option timeout",
    "prepared_timeout": "multi-table transactions are never prepared; set the option timeout",
    "max_filter_ratio": "the server would leave rows out of a commit that nobody keeps; set on_bad_rows to quarantine",
    "json_root": "the sink frames rows itself; extract the part that you want before the sink",
    "envelope": "the sink sends plain rows; unpack envelopes before the sink",
    "enable_merge_commit": _MERGE,
    "merge_commit": _MERGE,
}
"""Property → the reason why a user cannot set it."""


def check_properties(properties: Mapping[str, object], option: str) -> dict[str, str]:
    """`properties` with lower-case names; raises OptionError with the property and the allowed values."""
    checked: dict[str, str] = {}
    for property_name, value in properties.items():
        name = str(property_name).strip().lower()
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        _check_property(name, text, option)
        checked[name] = text
    return checked


def check_modes(properties: Mapping[str, str], option: str) -> None:
    """Raise OptionError for a property without effect; `properties` are one table's, merged with the common ones."""
    if "partial_update_mode" in properties and properties.get("partial_update") != "true":
        raise OptionError(
            f"{option}: partial_update_mode without partial_update has no effect.",
            hint="Set partial_update to true, or remove partial_update_mode.",
        )


_FEATURES: Mapping[str, Feature] = {
    "jsonpaths": Feature.JSONPATHS,
    "partial_update": Feature.PARTIAL_UPDATE,
    "merge_condition": Feature.MERGE_CONDITION,
    "where": Feature.WHERE,
}


def features(properties: Mapping[str, str], option: str) -> Features:
    """Features that the merged properties of one table use; errors say that `option` sets the properties."""
    features_used = {}
    for name, feature in _FEATURES.items():
        value = properties.get(name, "")
        if value not in ("", "false"):
            features_used[feature] = f"{option} sets {name}"
    if Feature.PARTIAL_UPDATE in features_used and "columns" not in properties:
        features_used[Feature.PARTIAL_UPDATE_UNNAMED] = f"{option} sets partial_update without columns"
    return features_used


_COMPUTED = re.compile(r"(?:^|,)\s*(`[^`]+`|\w+)\s*=(?!=)")


def why_not_compacted(properties: Mapping[str, str], key: Iterable[str]) -> str:
    """Why the sink sends all rows of a table with the primary key `key`, although `compact` is on; '' without a reason.

    The property `columns` is a reason if it computes a column of the key, or renames the field of such a column.
    """
    features_used = features(properties, "")
    reasons = [why for feature, why in NOT_COMPACTED.items() if feature in features_used]
    computed = {name.strip("`").lower() for name in _COMPUTED.findall(properties.get("columns", ""))}
    if any(name.lower() in computed for name in key):
        reasons.append("the server computes the key")
    return reasons[0] if reasons else ""


def renames(properties: Mapping[str, str]) -> bool:
    """Whether the keys of a JSON row are not the names of columns with these properties."""
    renaming = RENAMING & properties.keys()
    return bool(renaming) and not (renaming == {"columns"} and decoded_by(properties["columns"]))


def table_label(table: str) -> str:
    """The name of one table's properties in errors."""
    return f"tables[{table[:80]!r}]"


def _check_property(name: str, value: str, option: str) -> None:
    why = REFUSED.get(name) or (_MERGE if name.startswith("merge_commit") else None)
    if why is not None:
        raise OptionError(f"{option} sets {name}, which cannot be set: {why}.", hint=f"Remove {name} from {option}.")
    if name not in ALLOWED:
        advice = did_you_mean(name, ALLOWED, f"Known are: {', '.join(sorted(ALLOWED))}.")
        raise OptionError(f"{option} sets {name[:80]!r}, which is not a stream-load property for JSON.", hint=advice)
    pattern, allowed = ALLOWED[name]
    if re.search(r"[\r\n\x00]", value):
        raise OptionError(
            f"{option}: {name} contains a line break.", hint="A property is one HTTP header: write one line."
        )
    if re.fullmatch(pattern, value) is None:
        raise OptionError(f"{option}: {name} is {value[:80]!r}.", hint=f"Allowed is {allowed}.")
