"""Marks in the metadata of a row-kind column, and questions to a frame's plan.

Does a mark still hold? Which functions are non-deterministic?
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from starrocks_spark_stages.changelog.rules.conversions import DELETE, UPDATE_BEFORE
from starrocks_txn_sink.spark_version import analyzed_plan, class_name, items

# Keys of the column's metadata, for the functions downstream.
FULL_DELETES: Final = "starrocks_txn_sink.full_deletes"
POSSIBLE_KINDS: Final = "starrocks_txn_sink.row_kinds"
KEY: Final = "starrocks_txn_sink.key"

# Deterministic to Spark, because a query takes the time once; but each run and each micro-batch has another.
_TIMES: Final = frozenset(
    ("CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentBatchTimestamp", "LocalTimestamp", "Now")
)


def deletes_are_by_key(frame: DataFrame, row_kind: str, known_columns: Collection[str]) -> bool:
    """Whether a from_changelog has said that deletes carry only their key, and the frame has other columns.

    `known_columns` are those that every delete has.
    """
    metadata = frame.schema[row_kind].metadata
    possible = str(DELETE) in metadata.get(POSSIBLE_KINDS, ())
    return possible and metadata.get(FULL_DELETES) is False and not {*frame.columns} <= {row_kind, *known_columns}


def known_key(frame: DataFrame, row_kind: str) -> tuple[str, ...]:
    """The key of an upsert stream, if the frame knows it; a -U in the stream may be of another key than its +U.

    Only the plan says whether it still holds: `is_hidden`.
    """
    metadata = frame.schema[row_kind].metadata
    if str(UPDATE_BEFORE) in metadata.get(POSSIBLE_KINDS, (str(UPDATE_BEFORE),)):
        return ()
    return tuple(metadata.get(KEY, ()))


def is_hidden(frame: DataFrame) -> bool:
    """Whether the frame is of Spark Connect, which hides the plan."""
    return not hasattr(frame, "_jdf")


def non_deterministic_functions(frame: DataFrame) -> list[str]:
    """The non-deterministic functions in the expressions that make the frame's columns, anywhere in the plan.

    Ignores conditions of filters and joins, and what is inside Python code and state operators. Empty on Spark Connect,
    which hides the plan.
    """
    plan = analyzed_plan(frame)
    if plan is None:
        return []
    expressions_of = dict(_expressions_by_id(plan))
    waiting, columns_seen, names = [_id(attribute) for attribute in items(plan.output())], set[int](), set[str]()
    while waiting:
        column = waiting.pop()
        if column in columns_seen:
            continue
        columns_seen.add(column)
        for expression in expressions_of.get(column, ()):
            names.update(_culprits(expression))
            waiting += [_id(attribute) for attribute in items(expression.references().toSeq())]
    return sorted(names)


def is_unchanged_since(frame: DataFrame, marked: str, mark: str, names: Sequence[str]) -> bool:
    """Whether the columns `names` have not changed since the column `marked` got `mark` into its metadata.

    Walks down the plan to the projection that made the mark. Only projections and filters may follow it: a join keeps
    the metadata, but may repeat a row. False on Spark Connect, which hides the plan.
    """
    plan = analyzed_plan(frame)
    if plan is None:
        return False
    now = _output_ids(plan)
    marked_id = now[marked]
    while class_name(plan) in _ROW_BY_ROW:
        aliases = [
            expression
            for expression in items(plan.expressions())
            if class_name(expression) == "Alias" and _id(expression) == marked_id
        ]
        for alias in aliases:
            metadata = alias.explicitMetadata()
            if metadata.isDefined() and metadata.get().contains(mark):
                then = _output_ids(plan)
                return all(name in then and then[name] == now.get(name) for name in names)
            if class_name(alias.child()) != "AttributeReference":
                return False
            marked_id = _id(alias.child())
        plan = plan.children().apply(0)
    return False


_ROW_BY_ROW: Final = frozenset(("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "CollectMetrics"))


def _output_ids(plan: Any) -> dict[str, int]:
    return {str(attribute.name()): _id(attribute) for attribute in items(plan.output())}


def _expressions_by_id(plan: Any) -> Iterator[tuple[int, list[Any]]]:
    """The id and the expressions of each column that the nodes of a plan make."""
    for child in items(plan.children()):
        yield from _expressions_by_id(child)
    if class_name(plan) == "Union":
        columns = zip(*(items(child.output()) for child in items(plan.children())), strict=True)
        yield from (
            (_id(attribute), [*expressions])
            for attribute, expressions in zip(items(plan.output()), columns, strict=True)
        )
    elif class_name(plan) == "Generate":
        yield from ((_id(attribute), [plan.generator()]) for attribute in items(plan.generatorOutput()))
    for expression in items(plan.expressions()):
        if class_name(expression) == "Alias":
            yield _id(expression), [expression.child()]


def _culprits(expression: Any) -> Iterator[str]:
    """The innermost functions that make an expression non-deterministic: all of their arguments are deterministic."""
    children = [*items(expression.children())]
    if class_name(expression) in _TIMES or (
        not expression.deterministic() and all(child.deterministic() for child in children)
    ):
        yield str(expression.name() if "UDF" in class_name(expression) else expression.prettyName())
    for child in children:
        yield from _culprits(child)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
