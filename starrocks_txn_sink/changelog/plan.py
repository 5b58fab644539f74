"""Marks on a column of row kinds, and what a frame's plan says: if a mark holds, non-deterministic functions."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from starrocks_txn_sink.spark_version import analyzed_plan, class_name, items

# Keys of the column's metadata, for the functions downstream.
FULL_DELETES: Final = "starrocks_txn_sink.full_deletes"
POSSIBLE_KINDS: Final = "starrocks_txn_sink.row_kinds"
KEY: Final = "starrocks_txn_sink.key"

# Deterministic to Spark, because a query takes the time once; but each run and each micro-batch has another.
_TIMES: Final = frozenset(
    ("CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentBatchTimestamp", "LocalTimestamp", "Now")
)


def is_hidden(frame: DataFrame) -> bool:
    """Whether the frame is of Spark Connect, where the plan is out of reach."""
    return not hasattr(frame, "_jdf")


def non_deterministic_functions(frame: DataFrame) -> list[str]:
    """The non-deterministic functions in the expressions that make the frame's columns, wherever in the plan.

    Conditions of filters and joins do not count. A column that Python code or a state operator has made is taken as it
    is. Empty on Spark Connect, where the plan is out of reach.
    """
    plan = analyzed_plan(frame)
    if plan is None:
        return []
    sources = dict(_sources(plan))
    waiting, seen, found = [_id(each) for each in items(plan.output())], set[int](), set[str]()
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        for expression in sources.get(number, ()):
            found.update(_culprits(expression))
            waiting += [_id(each) for each in items(expression.references().toSeq())]
    return sorted(found)


def is_unchanged_since(frame: DataFrame, marked: str, mark: str, names: Sequence[str]) -> bool:
    """Whether the columns `names` are those next to which the column `marked` got `mark` into its metadata.

    Only projections and filters may stand in between: a join keeps the metadata, and may repeat a row. False on Spark
    Connect, where the plan is out of reach.
    """
    plan = analyzed_plan(frame)
    if plan is None:
        return False
    now = _outputs(plan)
    number = now[marked]
    while class_name(plan) in _ROW_BY_ROW:
        made = [each for each in items(plan.expressions()) if class_name(each) == "Alias" and _id(each) == number]
        for alias in made:
            metadata = alias.explicitMetadata()
            if metadata.isDefined() and metadata.get().contains(mark):
                then = _outputs(plan)
                return all(name in then and then[name] == now.get(name) for name in names)
            if class_name(alias.child()) != "AttributeReference":
                return False
            number = _id(alias.child())
        plan = plan.children().apply(0)
    return False


_ROW_BY_ROW: Final = frozenset(("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "CollectMetrics"))


def _outputs(plan: Any) -> dict[str, int]:
    return {str(each.name()): _id(each) for each in items(plan.output())}


def _sources(plan: Any) -> Iterator[tuple[int, list[Any]]]:
    """The expressions of each column that a plan's nodes make, by the column's id."""
    for child in items(plan.children()):
        yield from _sources(child)
    if class_name(plan) == "Union":
        columns = zip(*(items(child.output()) for child in items(plan.children())), strict=True)
        yield from ((_id(made), [*of]) for made, of in zip(items(plan.output()), columns, strict=True))
    elif class_name(plan) == "Generate":
        yield from ((_id(made), [plan.generator()]) for made in items(plan.generatorOutput()))
    for expression in items(plan.expressions()):
        if class_name(expression) == "Alias":
            yield _id(expression), [expression.child()]


def _culprits(expression: Any) -> Iterator[str]:
    """The functions that make an expression non-deterministic: those whose arguments are deterministic."""
    children = [*items(expression.children())]
    if class_name(expression) in _TIMES or (
        not expression.deterministic() and all(child.deterministic() for child in children)
    ):
        yield str(expression.name() if "UDF" in class_name(expression) else expression.prettyName())
    for child in children:
        yield from _culprits(child)


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
