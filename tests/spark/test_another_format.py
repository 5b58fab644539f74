"""A format that only this file knows: it works wherever those of the package do, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from starrocks_txn_ops.sync.settings import parse_sync
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sink.assembly import FORMATS, MessageAssembly
from starrocks_txn_sink.sink.collected import CollectedStream
from starrocks_txn_sink.sources.formats.raw_format import (
    POSITION,
    SOURCE_PARTITION,
    VALUE,
    OnMalformed,
    ParsedMessages,
    Reader,
)
from starrocks_txn_sink.sources.formats.row_changes import events_schema
from tests.support.debezium_shop import DebeziumShop
from tests.support.servers import place_of

FILE = """
[source]
brokers = "b:9092"
topics = 'shop\\..*'
format = "lines"
transactions = "none"
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
[query]
checkpoint = "/data/checkpoint"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Messages `TABLE ROW`: the row of an insert as JSON."""

    keeps_unchanged: ClassVar[bool] = False
    encodes_bytes: ClassVar[bool] = False
    columns: ClassVar[Mapping[str, str]] = {VALUE: "value", SOURCE_PARTITION: "partition", POSITION: "offset"}
    events: ClassVar[pa.Schema] = events_schema(source_time=False)
    on_malformed: OnMalformed = "fail"
    reader: Reader = "spark"

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        texts, nothing = batch.column(VALUE).cast(pa.string()), pa.nulls(batch.num_rows, pa.string())
        parts = pc.extract_regex(texts, r"(?P<table>\w+) (?P<row>.*)")
        columns = dict.fromkeys(self.events.names, nothing)
        columns |= {SOURCE_PARTITION: batch.column(SOURCE_PARTITION), POSITION: batch.column(POSITION)}
        columns |= {"seq": pa.array([0] * batch.num_rows), "op": pa.array(["c"] * batch.num_rows)}
        columns |= {"table": parts.field("table"), "row": parts.field("row")}
        columns |= {name: batch.column(name) for name in keep}
        return ParsedMessages(pa.table({name: columns[name] for name in (*self.events.names, *keep)}), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesAssembly(MessageAssembly):
    """Each line by itself."""

    format: ClassVar[str] = "lines"

    @property
    def lines(self) -> Lines:
        return Lines(reader=self.reader, on_malformed=self.on_malformed)


def put(shop: DebeziumShop, position: int) -> None:
    text = f'items {{"part": "shop", "position": {position}, "seq": 1, "note": "x"}}'
    shop.put_texts("lines", (None, text))


@pytest.mark.spark
def test_lanes_write_it_once_over_replays(debezium: DebeziumShop) -> None:
    debezium.assembly = LinesAssembly
    put(debezium, 1)
    put(debezium, 2)
    assert [receipt.rows for receipt in debezium.go()] == [1, 1]
    debezium.forget_commit(1)
    assert debezium.go() == []
    assert debezium.rows() == [(1, 1), (2, 1)]


def test_a_file_of_sync_names_it_and_is_refused_what_it_cannot_do() -> None:
    sync = parse_sync(FILE)
    assert (type(sync.assembly), sync.create) == (LinesAssembly, False)
    with pytest.raises(OptionError, match="Messages of the format lines do not say where a source transaction ends"):
        parse_sync(FILE.replace('transactions = "none"\n', ""))
    with pytest.raises(OptionError, match="format lines, which do not say the columns' types"):
        parse_sync(FILE + "[tables]\ncreate = true\n")
    with pytest.raises(OptionError, match="Messages of the format lines do not say the columns' types"):
        _ = sync.describing
    with pytest.raises(OptionError, match=r"format is 'linse'.*Did you mean lines"):
        parse_sync(FILE.replace('"lines"', '"linse"'))


@pytest.mark.spark
def test_a_stream_of_the_data_source_names_it(debezium: DebeziumShop) -> None:
    schema = debezium.topics().schema
    texts = {**place_of(debezium.server), "job": "lines", "assemble": "lines"}
    assert isinstance(CollectedStream.of(schema, texts).assembly, LinesAssembly)
    with pytest.raises(OptionError, match=r"Give one of transactions, .*lines|Did you mean"):
        CollectedStream.of(schema, {**texts, "assemble": "nothing"})


def test_it_is_among_the_formats_of_the_package() -> None:
    assert {"debezium", "maxwell", "canal", "lines"} <= set(FORMATS)
