"""The catalogue of events is whole: the product emits each of them, and no other; each metric is moved by one."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import Audit, Receipt, SinkOptions, telemetry
from starrocks_txn_sink.assembler.rules.model import Counters
from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.coordinator.model import PositionSpan, RegionCount
from starrocks_txn_sink.errors import CommitFailed, LoadFailed, NotSent
from starrocks_txn_sink.events import EVENTS
from starrocks_txn_sink.metrics.catalogue import METRICS
from starrocks_txn_sink.metrics.model import Model
from starrocks_txn_sink.metrics.source_lag import SourceLag
from starrocks_txn_sink.metrics.spark_progress import ProgressWatch, progress_events
from starrocks_txn_sink.protocol.verified import Verified
from starrocks_txn_sink.rows.columns import EVENT_TIME
from starrocks_txn_sink.sink.batch_events import BatchOrigin, SinkEvents
from starrocks_txn_sink.sink.failures import wait_out
from starrocks_txn_sink.sink.schema.changes import changed
from starrocks_txn_sink.sink.schema.plan import SchemaChange
from starrocks_txn_sink.sink.typed.tables import compare_columns, named_by_rows
from starrocks_txn_sink.sql.audit import Auditor
from starrocks_txn_sink.sql.connection import Answer
from starrocks_txn_sink.sql.server_limits import LoadRoom, TabletRoom, TransactionRoom
from starrocks_txn_sink.telemetry import Event
from starrocks_txn_sink.writer.messages import LaneReport, LaneTrouble, LaneWork, attach_report
from tests.support.log_records import records_of
from tests.support.manual_clock import ManualClock
from tests.support.micro_batch import lane_rows, write_rows
from tests.support.product_files import python_files

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT NOT NULL, note VARCHAR(9)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)"
)


# --- what the source says ---


def trees() -> Iterator[ast.Module]:
    for path in python_files():
        if path.name not in ("events.py", "telemetry.py"):
            yield ast.parse(path.read_text(encoding="utf-8"))


def named_logger(tree: ast.Module, variable: str) -> str:
    """The name that a module's variable gave to `get_logger`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == variable:
            assert isinstance(node.value, ast.Call)
            assert isinstance(node.value.args[0], ast.Constant)
            return str(node.value.args[0].value)
    raise AssertionError(f"{variable} is no logger of the module")


def constants(node: ast.AST) -> list[str]:
    values = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return [value for value in values if isinstance(value, str)]


def emitted() -> Iterator[str]:
    """Names in calls that emit: of events, of spans, of notices, and of log lines, whose logger and level are right."""
    for tree in trees():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            target = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if target in ("Event", "_notice", "_log_failure") and call.args:
                yield from constants(call.args[0])
            elif target == "Span":
                yield from (f"{constants(call.args[2])[0]}.{end}" for end in ("started", "completed", "failed"))
            elif isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "").startswith("_log"):
                assert isinstance(call.func.value, ast.Name)
                for name in constants(call.args[0]):
                    kind = EVENTS[name]
                    assert kind.level == LEVELS[target], name
                    assert named_logger(tree, call.func.value.id) in documented()[name][1], name
                    yield name


def mentioned() -> set[str]:
    """All strings of the product: names that reach `Event` through a table or a variable are among them."""
    return {text for tree in trees() for text in constants(tree)}


THROUGH_A_VARIABLE = {
    "bound.reached",
    "step.ended",
    "step.failed",
    "transaction.abandoned",
    "transaction.without_begin",
}
"""Given to `Event` by `writer.runner.log_steps` and the assembler's notices; tests of both look at the names."""


def test_each_event_is_emitted_by_something_and_nothing_else_is() -> None:
    names = set(emitted())
    assert names <= EVENTS.keys()
    assert EVENTS.keys() - names <= THROUGH_A_VARIABLE
    assert mentioned() >= THROUGH_A_VARIABLE


def test_a_handler_that_is_found_by_name_is_an_events() -> None:
    handlers = {name.removeprefix("_on_") for name in dir(Model) if name.startswith("_on_")}
    assert handlers <= {name.replace(".", "_") for name in EVENTS}


def test_a_name_that_code_compares_with_is_an_events() -> None:
    compared = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and ast.unparse(node.left) == "event.name":
                compared |= {text for right in node.comparators for text in constants(right)}
            if isinstance(node, ast.Match) and ast.unparse(node.subject) == "event.name":
                compared |= {text for part in node.cases for text in patterns(part.pattern)}
    assert len(compared) >= 5
    assert compared <= EVENTS.keys()


def patterns(pattern: ast.pattern) -> list[str]:
    return [text for part in ast.walk(pattern) if isinstance(part, ast.MatchValue) for text in constants(part.value)]


def test_an_event_that_nobody_declared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no event 'rows\.dead_letterd': declare it"):
        Event("rows.dead_letterd")


@cache
def documented() -> dict[str, tuple[str, list[str]]]:
    """The level and the loggers of each event on the page."""
    page = Path("docs/operations/logs.md").read_text(encoding="utf-8").partition("## Events")[2]
    kinds: dict[str, tuple[str, list[str]]] = {}
    for level, entries in re.findall(r"\*\*([A-Z]+)\*\*\n\n((?:- .+\n)+)", page):
        for name, loggers in re.findall(r"^- `(.+?)`(?: \((`.+?`)\))?: ", entries, re.MULTILINE):
            kinds[name] = level, re.findall(r"`(\w+)`", loggers or "`sink`")
    (silent,) = re.findall(r"\*\*Without a line\*\*: (.+)", page)
    return kinds | {name: ("", []) for name in re.findall(r"`(.+?)`", silent)}


def test_the_page_has_each_event_under_its_level_and_names_are_a_noun_and_a_verb() -> None:
    levels = {name: logging.getLevelName(kind.level) if kind.level else "" for name, kind in EVENTS.items()}
    assert {name: level for name, (level, _) in documented().items()} == levels
    assert [name for name in EVENTS if name.count(".") != 1] == []


# --- what the product does ---


def rows_of(notes: Mapping[int, str | None]) -> pa.RecordBatch:
    texts = {at: f'{{"id":{at}' + ("}" if note is None else f',"note":"{note}"}}') for at, note in notes.items()}
    return lane_rows(texts)


def write_lane(options: SinkOptions, rows: pa.RecordBatch) -> tuple[list[Receipt], list[LaneReport]]:
    """A micro-batch of one lane on the emulator, without Spark."""
    outcome = write_rows(options, rows, 1)
    return outcome.receipts, outcome.reports


@pytest.fixture
def options(server: Emulator) -> SinkOptions:
    return SinkOptions(
        load_url=server.load_url,
        query_url=f"mysql://127.0.0.1:{server.query_port}",
        database="shop",
        job="shop",
        on_bad_rows="quarantine",
        check_values=False,  # the server rejects what is too long, and the sink searches
    )


def follow(events: SinkEvents, receipts: list[Receipt], error: Exception | None = None) -> None:
    origin = BatchOrigin(1, "shop", "q", "run", streaming=True)
    with events.follow_batch(None, origin) as collector:
        collector.collect(receipts)
        if error is not None:
            raise error


TOO_LONG = "a note of more than nine letters"


def test_dead_letters_are_a_warning_of_the_driver_and_no_success(
    options: SinkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    receipts, _ = write_lane(options, rows_of({1: "a", 2: TOO_LONG, 3: TOO_LONG, 4: "d"}))
    assert sum(receipt.source_transactions for receipt in receipts) == 2
    caplog.set_level(logging.DEBUG, logger=telemetry.ROOT)
    caplog.clear()
    model = Model(ManualClock())
    events = SinkEvents(options, model.record, None)
    for _ in range(2):  # a second micro-batch has a line of its own, however soon it comes
        follow(events, receipts)
    warnings = records_of(caplog, "rows.dead_lettered")
    assert [record.levelname for record in warnings] == ["WARNING", "WARNING"]
    fields = "job=shop table=items reason=rejected rows=2 source_transactions=2 place='p-0 2 to 2; p-0 3 to 3' batch=1"
    assert warnings[0].getMessage() == f"rows.dead_lettered {fields}"
    ended = records_of(caplog, "batch.completed")[0].getMessage()
    assert " rows=2 source_transactions=2 dead_lettered_rows=2 dead_lettered_transactions=2 " in ended
    lines = [record.getMessage() for record in records_of(caplog, "receipt.collected")]
    assert sum("dead_lettered_transactions=1" in line for line in lines) == 2 * 2
    assert model.metrics.value("source_transactions_total", "committed") == 4
    assert model.metrics.value("source_transactions_total", "dead_lettered") == 4
    assert model.metrics.value("dead_letter_rows_total", "items", "rejected") == 4


def test_dead_letters_of_several_receipts_are_one_warning_a_table() -> None:
    dead = ([("0", "a", 2), ("0", "b", 1)], [("0", "a", 5)], [("1", "a", 1)])
    receipts = [
        Receipt(
            *(f"l-{number}", None, "shop", 1, (), (), 1, 1, 0, False),
            dead_lettered=tuple(RegionCount(name, table, rows, 9) for name, table, rows in regions),
            dead_lettered_positions=(PositionSpan(regions[0][0], number, number, 1),),
        )
        for number, regions in enumerate(dead)
    ]
    events: list[Event] = []
    follow(
        SinkEvents(SinkOptions(load_url="fe", database="d", delivery="at-least-once"), events.append, None), receipts
    )
    fields = [event.fields for event in events if event.name == "rows.dead_lettered"]
    assert [(entry["table"], entry["rows"], entry["source_transactions"], entry["place"]) for entry in fields] == [
        ("a", 8, 3, "0 0 to 0; 0 1 to 1; 1 2 to 2"),
        ("b", 1, 1, "0 0 to 0"),
    ]


NOT_OF_THAT_DAY = {
    "build_info",  # text
    "recycled_transactions_total",  # a lane's transaction at 80 % of its timeout
}


def test_a_day_of_events_moves_every_metric(options: SinkOptions) -> None:
    clock = ManualClock()
    clock.advance(100)
    model = Model(clock)
    before = {metric.name: shown(model, metric.name) for metric in METRICS}
    moved_names: set[str] = set()

    def record(event: Event) -> None:
        model.record(event)
        moved_names.update(name for name, value in before.items() if shown(model, name) != value)

    events = SinkEvents(options, record, None)
    rows = rows_of({1: "a", 2: TOO_LONG, 3: "c"})
    rows = rows.set_column(0, "source_partition", pa.array(["p-0", "p-0", "p-1"]))
    rows = rows.append_column(EVENT_TIME, pa.array([1_000_000, 2_000_000, 5_000_000]))
    receipts, reports = write_lane(options, rows)
    for report in reports:
        events.emit(Event("lane.reported", {"report": report}))
    follow(events, receipts)
    unknown = LaneReport("shop", 0, 1, LaneWork(members={"items": ("id", "nota")}))
    for event in compare_columns(options, named_by_rows([unknown], {})) or ():
        events.emit(event)
    with pytest.raises(LoadFailed):
        follow(events, [], LoadFailed("no"))
    failed = LaneReport("shop", 0, 1, trouble=LaneTrouble(unsettled=1)).fail(CommitFailed("no"))
    with pytest.raises(LoadFailed):
        follow(events, [], with_report(LoadFailed("no"), failed))
    place = {"job": "shop", "batch_id": 1}
    wait_out(NotSent("no"), lambda: None, place, Deadline.after(60, clock).expired, events.emit, lambda: False, clock)
    Auditor(Audit("SELECT 1"), lambda *_: Answer(("a",), [(1,)], 1), clock, events.emit).take_sample()
    events.emit(changed("shop", SchemaChange("items", "ALTER TABLE shop.items ADD COLUMN nota VARCHAR(65533) NULL")))
    of_spark(record)
    lags = {"orders": SourceLag(7, 3.0)}
    record(Event("source.lagged", {"query": "q", "lags": lags, "partitions": {"0": 7}}))
    record(Event("server.measured", {"database": "shop", "room": TransactionRoom(3, 1000)}))
    record(Event("threads.measured", {"database": "shop", "room": LoadRoom(9, 14)}))
    record(Event("tablets.measured", {"database": "shop", "room": TabletRoom({"items": 40}, 1000)}))
    record(Event("tables.verified", {"database": "shop", "found": {"shop": Verified(1, 2, 1, 1, 5, "0/1")}}))
    paced = {"job": "shop", "freshness": 1.0, "late": 0.02, "reason": "slow", "pause": 0.5, "interval": 0.75}
    record(Event("commits.paced", paced))
    record(Event("assembler.counted", {"query": "q", "name": "q/lane", "counts": {"malformed": 1}}))
    snapshot = {"tables": 2, "over": 1, "text": "1 of 2 tables", "tables_over": ["public.items"]}
    record(Event("snapshot.progressed", {"job": "shop", **snapshot}))
    assert {metric.name for metric in METRICS} - moved_names == NOT_OF_THAT_DAY


def with_report(error: LoadFailed, report: LaneReport) -> LoadFailed:
    attach_report(error, report)
    return error


def of_spark(record: telemetry.Listener) -> None:
    """What Spark's listener makes of a query's start and of a progress report with a balanced source and a stage."""
    watch = ProgressWatch(SimpleNamespace(streams=SimpleNamespace(addListener=lambda _: None)), record)
    watch.onQueryStarted(SimpleNamespace(id="q"))  # type: ignore[arg-type]
    progress: dict[str, Any] = {
        "id": "q",
        "durationMs": {"addBatch": 250},
        "eventTime": {"watermark": "1970-01-01T00:01:00.000Z"},
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}],
        "sources": [
            {
                "numInputRows": 7,
                "endOffset": {"a": {"0": 5, "1": 7}, "@time": 2500},
                "latestOffset": {"a": {"0": 9, "1": 7}, "@time": -1, "@newest": {"a": {"0": 9000, "1": 2500}}},
            }
        ],
    }
    counts = dict.fromkeys(Counters.names(), 1)
    for event in progress_events(progress, {"stage": counts}):
        record(event)


def shown(model: Model, name: str) -> object:
    """All series of a metric; a histogram's counts."""
    numbers = dict(model.metrics.values(name)) if name in model.metrics._numbers else {}
    return {labels: value for labels, value in numbers.items() if value}, [
        (labels, durations.count) for labels, durations in model.metrics.histograms(name) if durations.count
    ] if name in model.metrics._histograms else []
