"""The figures of all benchmarks that matter most, a line each, in a fixed order: pace, cost, memory, start.

The figures are those that the programs print as lines of JSON. What they are compared with stands in one place,
docs/inside/performance.md, whose section each line names: Flink does not run here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Figures = Mapping[str, Any]
PAGE: Final = "docs/inside/performance.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the summary: what it is called, its unit, what it was measured on, and how it is compared.

    `benchmark` is the title of the line of JSON that has it, `path` the names under which it stands there; `section` is
    the one of the page with the figure beside it.
    """

    name: str
    unit: str
    measured_on: str
    benchmark: str
    path: tuple[str, str]
    section: str

    def read(self, figures: Figures) -> float:
        variant, name = self.path
        return float(figures[variant][name])


_LOW: Final = "1 partitions, lanes"
_EMULATOR, _NULL = "emulator", "a server that discards bodies"
_FLINK, _DEBEZIUM, _START = "compared-with-flink-and-freshness-from-kafka", "debeziums-messages", "a-cold-start"
_STEADY, _BACKLOG = "what-a-steady-rate-costs", "memory-at-full-speed"
_BY_LIBRDKAFKA, _BY_SPARK = "lanes, librdkafka", "lanes, Spark's source"
_RATE: Final = "steady rate"
_KAFKA: Final = "events in Kafka"
_WHOLE: Final = "Debezium, the lane, librdkafka"
_MESSAGES: Final = "Debezium's messages in Kafka"

FIGURES: Final = (
    Figure("10 k rows/s: half of the rows are visible after", "s", _EMULATOR, "freshness", (_LOW, "p50"), _FLINK),
    Figure("10 k rows/s: 99 % of the rows are visible after", "s", _EMULATOR, "freshness", (_LOW, "p99"), _FLINK),
    Figure("10 k rows/s, freshness 1 s: cores", "", _EMULATOR, _RATE, ("sync", "cores"), _STEADY),
    Figure("10 k rows/s, freshness 1 s: memory of all processes", "MB", _EMULATOR, _RATE, ("sync", "pss_mb"), _STEADY),
    Figure("Kafka, librdkafka: rows a second", "", _NULL, _KAFKA, (_BY_LIBRDKAFKA, "rows_per_second"), _FLINK),
    Figure("one micro-batch from Kafka: memory of all processes", "MB", _NULL, "backlog", ("sync", "pss_mb"), _BACKLOG),
    Figure("Debezium, whole: rows a second", "", _NULL, _MESSAGES, (_WHOLE, "rows_per_second"), _DEBEZIUM),
    Figure("Debezium, whole: rows a CPU second / TxnEvents'", "", _NULL, _MESSAGES, (_WHOLE, "cpu_ratio"), _DEBEZIUM),
    Figure("Kafka, Spark's source: rows a second", "", _NULL, _KAFKA, (_BY_SPARK, "rows_per_second"), _FLINK),
    Figure("Kafka, Spark's source: rows a CPU second", "", _NULL, _KAFKA, (_BY_SPARK, "rows_per_cpu_second"), _FLINK),
    Figure("first start: first rows after", "s", _NULL, "start", ("first start", "written"), _START),
    Figure("later starts: first rows after", "s", _NULL, "start", ("later starts", "written"), _START),
)  # fmt: skip


def benchmark_lines(output: Iterable[str]) -> Iterator[Figures]:
    """The lines of JSON in what a benchmark prints."""
    for text in output:
        if text.startswith('{"benchmark": '):
            yield json.loads(text)


def summary(found: Iterable[Figures]) -> Iterator[str]:
    """A line for each figure; one that was not measured says so, because its program failed."""
    by_title = {figures["benchmark"]: figures for figures in found}
    for figure in FIGURES:
        of = by_title.get(figure.benchmark)
        value = "not measured" if of is None else f"{figure.read(of):,.6g} {figure.unit}".strip()
        yield f"{figure.name:52}{value:>14}  on {figure.measured_on}; to compare: {PAGE}#{figure.section}"
