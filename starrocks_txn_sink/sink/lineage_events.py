"""The events of OpenLineage's client for what a sink has written; the only module that imports the client."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset as statistics,
    schema_dataset,
)
from openlineage.client.uuid import generate_new_uuid

PRODUCER: Final = "https://pypi.org/project/starrocks-txn-sink"
_FACETS: Final = f"{PRODUCER}#lineage"


@attr.define
class ReadPositionsFacet(InputDatasetFacet):
    """First and last position (offset) of each source partition that was written since the last event."""

    positions: list[dict[str, Any]] = attr.field(factory=list)

    @staticmethod
    def _get_schema() -> str:
        return _FACETS


@attr.define
class StarRocksTransactionsFacet(RunFacet):
    """The StarRocks transactions since the last event: their number, the newest labels, and micro-batches.

    `positions` are those of source partitions that no input is known of.
    """

    transactions: int = 0
    labels: list[str] = attr.field(factory=list)
    firstBatch: int | None = None  # noqa: N815 - as OpenLineage spells members
    lastBatch: int | None = None  # noqa: N815
    positions: list[dict[str, Any]] = attr.field(factory=list)

    @staticmethod
    def _get_schema() -> str:
        return _FACETS


@dataclass(frozen=True, slots=True)
class Place:
    """Where the datasets are, and of which job the run is."""

    namespace: str
    job: str
    source: str
    target: str
    streaming: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What was written since the last event: positions by input, rows and bytes by table, the columns of the tables."""

    inputs: Mapping[str, Sequence[Mapping[str, Any]]]
    others: Sequence[Mapping[str, Any]]
    outputs: Mapping[str, tuple[int, int]]
    columns: Mapping[str, Sequence[tuple[str, str]]]
    transactions: int
    labels: Sequence[str]
    batches: tuple[int, int] | None


def new_run() -> str:
    """The id of a run."""
    return str(generate_new_uuid())


def run_event(state: str, run: str, place: Place, facts: Written, now: float, error: str = "") -> RunEvent:
    """A run event: `state` is START, RUNNING, COMPLETE or FAIL, `now` in seconds since the Unix epoch."""
    first, last = facts.batches or (None, None)
    unnamed_inputs = [dict(position) for position in facts.others]
    own = StarRocksTransactionsFacet(facts.transactions, list(facts.labels), first, last, unnamed_inputs)
    facets: dict[str, Any] = {"starrocks_txn_sink": own}
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="PYTHON")
    kind = job_type_job.JobTypeJobFacet("STREAMING" if place.streaming else "BATCH", "STARROCKS_TXN_SINK", "JOB")
    return RunEvent(
        eventType=RunState[state],
        eventTime=datetime.datetime.fromtimestamp(now, datetime.timezone.utc).isoformat(),
        run=Run(run, facets=facets),
        job=Job(place.namespace, place.job, facets={"jobType": kind}),
        inputs=[_input(place, name, positions) for name, positions in facts.inputs.items()],
        outputs=[_output(place, name, counts, facts.columns.get(name, ())) for name, counts in facts.outputs.items()],
        producer=PRODUCER,
    )


def _input(place: Place, name: str, positions: Sequence[Mapping[str, Any]]) -> InputDataset:
    own = ReadPositionsFacet([dict(position) for position in positions])
    facets: dict[str, Any] = {"starrocks_txn_sink": own} if positions else {}
    return InputDataset(place.source, name, inputFacets=facets)


def _output(place: Place, name: str, counts: tuple[int, int], columns: Sequence[tuple[str, str]]) -> OutputDataset:
    fields: list[Any] = [schema_dataset.SchemaDatasetFacetFields(name=column, type=kind) for column, kind in columns]
    return OutputDataset(
        place.target,
        name,
        facets={"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {},
        outputFacets={"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(*counts)},
    )


def client() -> Any:
    """OpenLineage's client, as its own configuration says (openlineage.yml, OPENLINEAGE_URL)."""
    return OpenLineageClient()
