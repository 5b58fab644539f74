"""The generated parts of pages in `docs/`: a page is written by hand, and holds tables between two marks.

<!-- made from the code: NAME -->
…
<!-- end -->
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import types as T

from starrocks_txn_ops.rehearsal.command import CHECKS, CLEARED
from starrocks_txn_ops.sync.sections import SECTIONS, Setting
from starrocks_txn_sink.metrics.catalogue import METRICS, PARTITIONS, PREFIX, TABLES, Metric
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.combinations import CONFLICTS, NOT_COMPACTED, OVER_SQL, Feature
from starrocks_txn_sink.options.connectors import (
    FLINK_OPTIONS,
    FLINK_PREFIXES,
    SPARK_OPTIONS,
    SPARK_PREFIXES,
    MapsTo,
    Refused,
    Rule,
    WithoutEffect,
)
from starrocks_txn_sink.options.declarations import declarations
from starrocks_txn_sink.rows.target import parse_type
from starrocks_txn_sink.rows.values.byte_texts import DECODED
from starrocks_txn_sink.rows.values.defaults import LEFT_OUT
from starrocks_txn_sink.rows.values.rules import TABLE, Rule as ValueRule
from starrocks_txn_sink.sink.assembly import FORMATS, Assembly
from starrocks_txn_sink.sink.typed.fit import Fit, fit
from starrocks_txn_sink.sources.formats.connect_types import column_of
from starrocks_txn_sink.spark_version import FEATURES, OLDEST
from tools import errors
from tools.tables import table

NO_EFFECT = "no effect"
_PART = re.compile(r"(<!-- made from the code: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_parts(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """A page's text with every generated part made again. Raises ValueError if its marks do not name just `parts`."""
    names = [match[2] for match in _PART.finditer(text)]
    if sorted(names) != sorted(parts):
        raise ValueError(f"The page marks the parts {sorted(names)}, and should mark {sorted(parts)}.")
    return _PART.sub(lambda match: f"{match[1]}\n{parts[match[2]]()}\n{match[3]}", text)


# --- docs/reference/metrics.md ---


def metrics() -> str:
    """Every metric of the catalogue, after what is true of all of them."""
    head = (
        f"All names begin with `{PREFIX}`. Labels are bounded: {TABLES} tables and {PARTITIONS} source partitions are "
        "told apart, the\nrest is `_other` or left out. A star * marks a metric that is there from the start, as 0.\n"
        "Timestamps count from the Unix epoch.\n"
    )
    return "\n".join((head, *map(_metric, METRICS))) + "\n"


def _metric(metric: Metric) -> str:
    star = "*" if metric.initial or not metric.labels else ""
    labels = f" by {', '.join(f'`{label}`' for label in metric.labels)}" if metric.labels else ""
    return f"- `{metric.name}`{star} ({metric.kind.value}{labels}): {metric.help}"


# --- docs/reference/options.md, docs/guides/migration.md ---


def options() -> str:
    """Every option of SinkOptions, from its declaration."""
    return "".join(
        f"- `{name}` ({', '.join(filter(None, (option.kind.name, option.kind.unit)))}; {option.default_text}): "
        f"{option.meaning}\n"
        for name, option in declarations(SinkOptions)
    )


def flink_options() -> str:
    """The outcome for the options of the Flink connector, those with the same one in a row."""
    properties = {
        "sink.properties.<name>": "`properties[<name>]`",
        "table.<table>.properties.<name>": "`tables[<table>][<name>]`",
    }
    return _connector("Flink", FLINK_OPTIONS, properties, FLINK_PREFIXES)


def spark_options() -> str:
    """The outcome for the options of the Spark connector, those with the same one in a row."""
    properties = {"starrocks.write.properties.<name>": "`properties[<name>]` (or `tables`, for one table)"}
    return _connector("Spark", SPARK_OPTIONS, properties, SPARK_PREFIXES)


def _connector(
    name: str, options: Mapping[str, Rule], properties: Mapping[str, str], prefixes: Mapping[str, Rule]
) -> str:
    outcomes = {
        **{option: _outcome(rule) for option, rule in options.items()},
        **properties,
        **{f"{prefix}…": _outcome(rule) for prefix, rule in prefixes.items()},
    }
    options_by_outcome: dict[str, list[str]] = {}
    for option, outcome in outcomes.items():
        options_by_outcome.setdefault(outcome, []).append(f"`{option}`")
    return table(
        f"{name} connector | here",
        ((", ".join(names), outcome) for outcome, names in options_by_outcome.items() if outcome != NO_EFFECT),
    )


def _outcome(rule: Rule) -> str:
    match rule:
        case MapsTo(option, _, note):
            return f"`{option}`" + (f" ({note})" if note else "")
        case WithoutEffect():
            return NO_EFFECT
        case Refused(reason, values):
            allowed = f"; accepted as {' or '.join(f'`{value}`' for value in values)}" if values else ""
            return f"refused: {reason}{allowed}"


# --- docs/reference/combinations.md ---

IMPLIED: Mapping[Feature, tuple[Feature, ...]] = {
    Feature.ASSEMBLE: (Feature.JSON_TEXTS,),
    Feature.DATA_SOURCE: (Feature.PLAIN_ROWS,),
    Feature.PARTIAL_UPDATE_UNNAMED: (Feature.PARTIAL_UPDATE,),
}
"""Feature → all features that it implies."""


def with_implied(feature: Feature) -> tuple[Feature, ...]:
    """`feature` and all that it implies."""
    return (feature, *IMPLIED.get(feature, ()))


def conflicts() -> str:
    """The reason and the advice of each refused pair, with the features that imply one of it."""
    rows = (
        (f"{_implying(conflict.first)} **and** {_implying(conflict.second)}", conflict.why, conflict.advice)
        for conflict in CONFLICTS
    )
    return table("pair | why | what to do", rows)


def _implying(feature: Feature) -> str:
    """The titles of all features that bring `feature` along."""
    return " or ".join(feature_.title for feature_ in Feature if feature in with_implied(feature_))


def needs_sql() -> str:
    """The options that need `query_url`, and the advice without it."""
    rows = ((f"`{option}`", why, advice) for option, (why, advice) in OVER_SQL.items())
    return table("option | why | or", rows)


def consequences() -> str:
    """The features with which `compact` does nothing."""
    rows = ((feature.title, why) for feature, why in NOT_COMPACTED.items())
    return table("feature | why", rows)


def formats(kinds: Iterable[type[Assembly]] | None = None) -> str:
    """What each format has, by the attributes and arguments of its class; by default those of the package."""
    own = kinds or [kind for kind in FORMATS.values() if kind.__module__ == Assembly.__module__]
    columns = {
        f"[{kind.format.title()}](../guides/{kind.format}.md)" if kind.follows_source else "TxnEvents": kind
        for kind in own
    }
    rows = (
        (name, *(words(kind, inspect.signature(kind).parameters) for kind in columns.values()))
        for name, words in _HAS.items()
    )
    return table(" | ".join(("", *columns)), rows)


def _has(condition: bool, otherwise: str = "no") -> str:
    return "yes" if condition else otherwise


_HAS: Mapping[str, Callable[[type[Assembly], Collection[str]], str]] = {
    "whole source transactions": lambda kind, _: kind.whole_by or "no: messages leave the ends out",
    'each change once (`transactions="none"`)': lambda kind, arguments: _has(
        "transactions" in arguments, "always" if kind.follows_source else "no: END releases rows"
    ),
    'types of new columns (`schema_changes="apply"`)': lambda kind, _: (
        f"{kind.types_by}, else from values" if kind.types_by else "from values"
    ),
    "`sync`, `init`": lambda kind, _: _has(kind.follows_source),
    "`assemble` of the data source": lambda kind, _: f"`{kind.format}`",
    "`plan`, tables created by `sync`, at its start and while it runs": lambda kind, _: (
        kind.types_by or ("no: no types" if kind.follows_source else "no")
    ),
    "state of the first snapshot": lambda kind, _: _has(kind.marks_snapshot),
    "schema registry": lambda kind, arguments: _has(
        "registry" in arguments or not kind.follows_source, "no: messages are JSON alone"
    ),
    "TRUNCATE": lambda _, arguments: "error, or told" if "on_truncate" in arguments else "is in no message",
    "stage of a query (`parse_…`)": lambda kind, _: _has(bool(kind.stage), "no: in the sink's lanes alone"),
}
"""What the page says of a format, by its class and the arguments of that."""


# --- docs/guides/types.md ---

SOURCES: tuple[T.DataType, ...] = (
    T.BooleanType(),
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.DecimalType(38, 0),
    T.DecimalType(10, 2),
    T.FloatType(),
    T.DoubleType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
    T.StringType(),
    T.BinaryType(),
    T.VariantType(),
    T.ArrayType(T.IntegerType()),
    T.MapType(T.StringType(), T.DoubleType()),
    T.StructType([T.StructField("a", T.IntegerType()), T.StructField("b", T.StringType())]),
)
"""One of each Spark type that goes somewhere."""

TARGETS = (
    *("boolean", "tinyint(4)", "smallint(6)", "int(11)", "bigint(20)", "bigint(20) unsigned", "float", "double"),
    *("decimal(10, 2)", "decimal(38, 18)", "date", "datetime", "char(10)", "varchar(20)", "varbinary(8)", "json"),
    *("bitmap", "hll", "array<int(11)>", "map<varchar(20),double>", "struct<a int(11), b varchar(20)>"),
)
"""`COLUMN_TYPE` of one column of each StarRocks type."""


def types() -> str:
    """Where each Spark type may go, and the checks of each row on the way; types with the same ones share a row."""
    sources: dict[tuple[str, ...], list[str]] = {}
    for source, *goes in map(_goes, SOURCES):
        sources.setdefault((*goes,), []).append(source)
    rows = ((", ".join(names), *goes) for goes, names in sources.items())
    return table("Spark | StarRocks column | checked in each row", rows)


def _goes(source: T.DataType) -> tuple[str, ...]:
    fits = {target: fit(source, target) for target in map(parse_type, TARGETS)}
    places = {target: result for target, result in fits.items() if isinstance(result, Fit)}
    targets = ", ".join(
        f"{target}{f' (`{result.function.name}`)' if result.function else ''}" for target, result in places.items()
    )
    checks = dict.fromkeys(fault.text for result in places.values() for fault in result.faults)
    return f"`{source.simpleString()}`", targets, "; ".join(checks) or "-"


# --- docs/reference/debezium-types.md ---

_CONNECT, _TIME, _DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."


def _field(kind: str, name: str = "", *, items: Any = None, **parameters: object) -> dict[str, Any]:
    """A field of Connect's schema; `of`, `length` and `scale` are those of `column.propagate.source.type`."""
    names = {"of": "type", "size": "length", "digits": "scale"}
    source = {f"__debezium.source.column.{names[key]}": str(value) for key, value in parameters.items() if key in names}
    own = {key.replace("_", "."): str(value) for key, value in parameters.items() if key not in names}
    return {"field": "", "type": kind, "name": name or None, "parameters": {**own, **source}, "items": items}


def _decimal(scale: int, precision: int | None = None) -> dict[str, Any]:
    more = {} if precision is None else {"connect_decimal_precision": precision}
    return _field("bytes", _CONNECT + "Decimal", scale=scale, **more)


SOURCE_FIELDS: Mapping[str, dict[str, Any]] = {
    "BOOLEAN": _field("boolean"),
    "SMALLINT, MySQL's TINYINT": _field("int16"),
    "INT": _field("int32"),
    "BIGINT": _field("int64"),
    "BIGINT UNSIGNED*": _field("int64", of="BIGINT UNSIGNED"),
    "BIGINT UNSIGNED, `precise`": _decimal(0),
    "REAL, FLOAT": _field("float"),
    "DOUBLE PRECISION": _field("double"),
    "NUMERIC(10,2)": _decimal(2, 10),
    "NUMERIC(10,2), `string`*": _field("string", of="NUMERIC", size=10, digits=2),
    "NUMERIC(20)": _decimal(0, 20),
    "NUMERIC(50)": _decimal(0, 50),
    "NUMERIC of an unknown precision, scale 4": _decimal(4),
    "NUMERIC without a scale": _field("struct", _DATA + "VariableScaleDecimal"),
    "VARCHAR(100), CHAR(100)*": _field("string", of="VARCHAR", size=100),
    "VARCHAR(300000)*": _field("string", of="VARCHAR", size=300_000),
    "all other texts, ENUM, UUID": _field("string"),
    "JSON": _field("string", _DATA + "Json"),
    "BYTEA, BLOB, BINARY": _field("bytes"),
    "BIT(8)": _field("bytes", _DATA + "Bits", length=8),
    "BIT(64)": _field("bytes", _DATA + "Bits", length=64),
    "BIT VARYING, BIT(65)": _field("bytes", _DATA + "Bits", length=65),
    "DATE": _field("int32", _TIME + "Date"),
    "TIMESTAMP, DATETIME": _field("int64", _TIME + "MicroTimestamp"),
    "TIMESTAMP WITH TIME ZONE": _field("string", _TIME + "ZonedTimestamp"),
    "DATETIME2(7), nanoseconds": _field("int64", _TIME + "NanoTimestamp"),
    "TIME": _field("int64", _TIME + "MicroTime"),
    "INT[]": _field("array", items=_field("int32")),
    "DATE[]": _field("array", items=_field("int32", _TIME + "Date")),
    "all dates and times, `structured`": _field("struct", _TIME + "StructuredTimestamp"),
    "POINT, geometry, structs, maps": _field("struct", _DATA + "geometry.Point"),
}
"""Fields as Debezium describes them, by the source's types; a star: with `column.propagate.source.type`."""


def source_types() -> str:
    """The type of a column for each kind of field, and of a column in a key."""
    rows = []
    for words, of in SOURCE_FIELDS.items():
        column, key = column_of(of), column_of(of, key=True)
        remark = column.refusal or column.note or key.refusal
        rows.append((words, column.new_type or "refused", key.type or "refused", remark))
    return table("the source's type | column | in the key | remark", iter(rows))


# --- docs/reference/values.md ---


def values() -> str:
    """What becomes of each kind of JSON value in each type of column."""
    types: dict[int, list[str]] = {}
    for name, rules_of_type in TABLE.items():
        types.setdefault(id(rules_of_type), []).append(name)
    rows = []
    for names in types.values():
        kinds: dict[ValueRule, list[str]] = {}
        for kind, rule in TABLE[names[0]].items():
            kinds.setdefault(rule, []).append(kind)
        for rule, of in kinds.items():
            rows.append((", ".join(names), ", ".join(of), rule.exact, rule.converted, rule.refused))
    return table("column | JSON | sent as it is | converted | refused", iter(rows))


def decoded() -> str:
    """What becomes of JSON in a VARBINARY column that the server decodes."""
    return table("JSON | sent as it is, and decoded | refused", iter(DECODED))


def left_out() -> str:
    """What becomes of a row that leaves a column out."""
    return table("a row leaves out | the sink writes | without it the server would keep", iter(LEFT_OUT))


# --- docs/reference/sync.md ---


def sync_settings() -> str:
    """The settings of the file that are its own, by section."""
    rows = (
        (f"`[{section}]`", f"`{name}`", setting.kind_name, _default_of(setting), setting.meaning)
        for section, settings in SECTIONS.items()
        for name, setting in settings.items()
    )
    return table("section | setting | type | default | meaning", rows)


def _default_of(setting: Setting) -> str:
    if setting.required:
        return "required"
    text = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
    return "" if text is None else f"`{text}`"


# --- docs/operations/rehearsal.md ---


def checks() -> str:
    """Every check of a rehearsal, with the sections of the wire contract; the command's lines say what each expects."""
    return f"{', '.join(f'`{check.name}`{_in_brackets(check.sections)}' for check in (*CHECKS, CLEARED))}\n"


def _in_brackets(sections: Sequence[str]) -> str:
    return f" ({', '.join(sections)})" if sections else ""


def spark_versions() -> str:
    """Every feature with the oldest version of Spark that has it."""
    rows = (
        (feature.name, ".".join(map(str, feature.least)), feature.instead * (feature.least > OLDEST))
        for feature in FEATURES
    )
    return table("feature | from Spark | before", rows)


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/reference/combinations.md": {
        "conflicts": conflicts,
        "needs-sql": needs_sql,
        "consequences": consequences,
        "formats": formats,
    },
    "docs/guides/deploy.md": {"spark-versions": spark_versions},
    "docs/reference/metrics.md": {"metrics": metrics},
    "docs/guides/migration.md": {"flink-options": flink_options, "spark-options": spark_options},
    "docs/reference/options.md": {"options": options},
    "docs/operations/rehearsal.md": {"checks": checks},
    "docs/operations/runbook.md": {"codes": errors.index},
    **errors.PAGES,
    "docs/guides/types.md": {"types": types},
    "docs/reference/debezium-types.md": {"source-types": source_types},
    "docs/reference/values.md": {"values": values, "bytes": decoded, "missing": left_out},
    "docs/reference/sync.md": {"sync-settings": sync_settings},
}
"""The generated parts of each page."""
