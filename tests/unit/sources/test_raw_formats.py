"""The seam for formats: a third one, in this file alone, goes through a lane like the formats of the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import EVENT_FIELDS, Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.errors import InputError
from starrocks_txn_sink.sources.formats.json_text import read_members
from starrocks_txn_sink.sources.formats.raw_format import (
    MALFORMED_HINT,
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    OnMalformed,
    ParsedMessages,
    RawFormat,
    Reader,
    is_placed,
    place_of,
    place_text,
)
from starrocks_txn_sink.sources.formats.tables import OWN_NAME, TableMapping
from starrocks_txn_sink.sources.formats.txn_events import TxnEventLines
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.memory_directory import MemoryDirectory

MEMBERS = pa.schema(
    [("tx", pa.struct([("id", pa.string()), ("step", pa.string())])), ("into", pa.string()), ("data", pa.string())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLines:
    """`{"tx": {"id": …, "step": "first" | "row" | "last"}, "into": table, "data": row}`, perhaps under `"body"`."""

    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = False
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"

    @property
    def columns(self) -> Mapping[str, str]:
        return {VALUE: "value", SOURCE_PARTITION: "partition", POSITION: "offset"}

    @property
    def events(self) -> pa.Schema:
        return pa.schema([(SOURCE_PARTITION, pa.string()), *EVENT_FIELDS])

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        read, valid = read_members(batch.column(VALUE), MEMBERS, "body")
        if not valid.all() and self.on_malformed == "fail":
            place = place_of(batch, int(valid.argmin()), (SOURCE_PARTITION, POSITION))
            raise InputError(f"A value is not a step{place_text(place)}.", hint=MALFORMED_HINT)
        batch = batch.filter(pa.array(valid))
        txn_id, step = read["tx"].combine_chunks().flatten()
        kinds = pc.index_in(step, value_set=pa.array(["first", "row", "last"]))
        nothing = pa.nulls(batch.num_rows, pa.string())
        events = [
            *(batch.column(name) for name in (SOURCE_PARTITION, POSITION)),
            pa.array(["BEGIN", "DATA", "END"]).take(kinds),
            *(txn_id, nothing, read["into"], nothing, read["data"]),
        ]
        table = pa.table(events, schema=self.events)
        for name in keep:
            table = table.append_column(name, batch.column(name))
        return ParsedMessages(table, len(valid) - read.num_rows)


def steps(*values: Any) -> pa.RecordBatch:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    columns = {SOURCE_PARTITION: pa.array(["0"] * len(texts)), POSITION: pa.array(range(7, 7 + len(texts)), pa.int64())}
    return pa.RecordBatch.from_pydict({**columns, VALUE: pa.array(texts)})


def step(kind: str, data: Any = None, transaction: str = "t1") -> dict[str, Any]:
    return {"tx": {"id": transaction, "step": kind}, "into": data and "items", "data": data}


def payloads(messages: RawFormat, *batches: pa.RecordBatch) -> tuple[list[str], int]:
    """The rows that go on from a lane, and how many messages were malformed."""
    spec = AssemblySpec(
        IncrementalAssembler, Policy(), PayloadEncoder("shop"), 0.0, MemoryDirectory(), "s", lines=messages
    )
    lane = spec.open(Attempt(0, 0, False))
    rows = [row for batch in lane(iter(batches)) for row in batch.column("payload").to_pylist()]
    malformed = lane.carry_over().malformed
    lane.close()
    return rows, malformed


def test_a_further_format_goes_through_a_lane() -> None:
    whole = [step("first"), {"schema": {}, "body": step("row", {"id": 1.10})}, step("row", {"id": 2}), step("last")]
    rows, malformed = payloads(StepLines(), steps(*whole, step("first", transaction="t2")))
    assert ([row.strip(",") for row in rows], malformed) == (['{"id": 1.1}', '{"id": 2}'], 0)


def test_its_malformed_messages_have_a_place_or_are_counted() -> None:
    cut_steps = steps(step("first"), "{", step("row", {"id": 1}), step("last"))
    with pytest.raises(InputError, match=r"not a step at source_partition=0 position=8\."):
        payloads(StepLines(), cut_steps)
    rows, malformed = payloads(StepLines(on_malformed="drop"), cut_steps)
    assert (len(rows), malformed) == (1, 1)


def test_messages_are_placed_by_columns_or_by_their_values() -> None:
    assert is_placed(StepLines())
    assert is_placed(TxnEventLines())
    assert not is_placed(TxnEventLines(position=None))


@pytest.mark.parametrize(
    ("rule", "tables"),
    [
        (r"public\.(\w+)", ["orders", None, None]),
        (OWN_NAME, ["orders", "ördér", None]),
        ({"public.orders": "o"}, ["o", None, None]),
    ],
)
def test_tables_go_by_the_whole_name(rule: Any, tables: list[str | None]) -> None:
    """`\\w` means ASCII."""
    collections = pa.array(["public.orders", "public.ördér", "public.orders.x"])
    tables_before, target = TableMapping(rule, "skip").tables_of(collections)
    assert tables_before.to_pylist() == target.to_pylist() == tables
