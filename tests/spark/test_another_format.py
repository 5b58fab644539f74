"""A format that only this file knows: it works wherever those of the package do, and nothing else is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from starrocks_txn_ops.sync.command import planned, text_lines
from starrocks_txn_ops.sync.init import Seen, file_lines
from starrocks_txn_ops.sync.settings import parse_sync
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sink.assembly import FORMATS, Look, MessageAssembly
from starrocks_txn_sink.sink.collected import CollectedStream
from starrocks_txn_sink.sources.formats.connect_types import SourceTable
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
from tests.support.servers import Server, place_of
from tools.pages import formats

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

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:  # noqa: ARG003
        table, space, _ = value.partition(b" {")
        return Look(f"shop.{table.decode()}") if space and not members else None

    @property
    def lines(self) -> Lines:
        return Lines(reader=self.reader, on_malformed=self.on_malformed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedLinesAssembly(LinesAssembly):
    """The same lines, whose values say the types of their columns."""

    format: ClassVar[str] = "typed_lines"
    types_by: ClassVar[str] = "by the values"

    @classmethod
    def look(cls, members: Mapping[str, Any], value: bytes, *, keyed: bool) -> Look | None:
        return None if keyed else LinesAssembly.look(members, value, keyed=keyed)

    @classmethod
    def described(cls, key: bytes | None, value: bytes) -> SourceTable | None:  # noqa: ARG003
        table, _, row = value.decode().partition(" ")
        types = {name: "int64" if isinstance(of, int) else "string" for name, of in json.loads(row).items()}
        fields = [{"field": name, "type": kind, "optional": True} for name, kind in types.items()]
        schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
        return SourceTable(f"shop.{table}", json.dumps(schema), ("part",))


OWN = {name: FORMATS.pop(name) for name in ("lines", "typed_lines")}
"""As their definition has entered them; here alone, so that no other test meets them."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in OWN.items():
        monkeypatch.setitem(FORMATS, name, kind)


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


MESSAGES = [(None, b'items {"part": "shop", "seq": 1}'), (None, b'orders {"part": "shop", "note": "x"}'), (None, None)]


@pytest.mark.emulator
def test_a_dry_run_shows_the_tables_of_its_messages(server: Server) -> None:
    """Where the messages say their types; where they do not, it shows the routes."""
    place = place_of(server)
    file = FILE.replace("http://fe:8030", place["load_url"]).replace("mysql://fe:9030", place["query_url"])
    sync = parse_sync(file.replace('"lines"', '"typed_lines"'))
    assert (type(sync.assembly), sync.create) == (TypedLinesAssembly, True)
    text = "\n".join(text_lines(sync, planned(sync, MESSAGES, 30)))
    assert "-- table: shop.items -> items" in text
    assert "`orders` (" in text
    assert "`seq` BIGINT" in text
    assert "-- table" not in "\n".join(text_lines(parse_sync(file), None))


@pytest.mark.parametrize("kind", [LinesAssembly, TypedLinesAssembly])
def test_init_writes_a_file_for_its_messages(kind: type[LinesAssembly], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FORMATS, "typed_lines" if kind is LinesAssembly else "lines")
    seen = Seen("shop", frozenset({"shop"}))
    for message in MESSAGES:
        seen.take(message)
    text = "\n".join(file_lines(seen, "b1:9092"))
    sync = parse_sync(text)
    assert (type(sync.assembly), sync.topics, sync.routes) == (kind, "shop", ((r"shop\.(.*)", "{1}"),))
    assert ("messages of shop.items, shop.orders have no types" in text) == (kind is LinesAssembly)
    assert ("# shop.items, key part: part VARCHAR" in text) == (kind is TypedLinesAssembly)


def test_the_page_of_formats_has_a_column_for_it() -> None:
    heading, _, *lines = formats([*FORMATS.values()]).splitlines()
    assert "[Lines](../guides/lines.md)" in heading
    (whole,) = (line for line in lines if line.startswith("| whole source transactions"))
    assert whole.count("no: messages leave the ends out") == 3  # Canal, and both of these


@pytest.mark.spark
def test_a_stream_of_the_data_source_names_it(debezium: DebeziumShop) -> None:
    schema = debezium.topics().schema
    texts = {**place_of(debezium.server), "job": "lines", "assemble": "lines"}
    assert isinstance(CollectedStream.of(schema, texts).assembly, LinesAssembly)
    with pytest.raises(OptionError, match=r"Give one of transactions, .*lines|Did you mean"):
        CollectedStream.of(schema, {**texts, "assemble": "nothing"})
