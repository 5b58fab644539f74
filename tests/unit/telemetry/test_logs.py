"""Log lines: one a step, bounded, without secrets or rows, where the application wants them."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from starrocks_emulator.server import Emulator
from starrocks_txn_sink import configure_logging, telemetry
from starrocks_txn_sink.coordinator.model import Receipt
from starrocks_txn_sink.errors import OptionError, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.sink.batch_events import BatchOrigin, SinkEvents
from starrocks_txn_sink.sink.spark_jobs import end_progress_bar
from starrocks_txn_sink.telemetry import Event, EventLogger, Repeats, get_logger, ignore_event, shares_stderr
from starrocks_txn_sink.writer.task import LaneTask
from tests.support.log_records import records_of
from tests.support.micro_batch import write_micro_batch
from tests.support.terminal import Terminal

PASSWORD = "canary-of-the-password"
pytestmark = pytest.mark.emulator(
    "CREATE TABLE shop.items (id BIGINT NOT NULL, note VARCHAR(99)) PRIMARY KEY(id) DISTRIBUTED BY HASH(id)",
    password=PASSWORD,
)
ROW = "canary-of-the-row"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Logging is the process's own: put back what a test changes."""
    telemetry.REPEATS.clear()
    logger = logging.getLogger(telemetry.ROOT)
    before = list(logger.handlers), logger.level, logger.propagate, telemetry._executor_settings
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])
    telemetry._executor_settings = before[3]


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    """All lines but those about an open source transaction: no test here has one, an earlier test's query may."""
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["event"] != "transaction.open"]


# --- where lines go ---


def test_nothing_is_configured_unasked() -> None:
    logger = logging.getLogger(telemetry.ROOT)
    assert logger.handlers == []
    assert logger.propagate
    assert telemetry.executor_log_settings() is None


def test_the_applications_handlers_get_a_readable_line_and_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=telemetry.ROOT)
    get_logger("lane", job="shop").info("step.ended", table="orders", seconds=0.25, why="100 % of it", none=None)
    (record,) = records_of(caplog, "step.ended")
    assert record.name == "starrocks_txn_sink.lane"
    assert record.getMessage() == "step.ended job=shop table=orders seconds=0.25 why='100 % of it'"


def test_json_lines_elsewhere_and_a_persons_line_on_a_terminal() -> None:
    plain, terminal = io.StringIO(), Terminal()
    configure_logging(stream=plain)
    get_logger("sink", job="shop").warning("audit.failed", code="query_failed")
    (line,) = written(plain)
    assert (line["event"], line["level"], line["job"], line["code"]) == (
        "audit.failed",
        "warning",
        "shop",
        "query_failed",
    )
    assert line["at"].endswith("Z")
    configure_logging(stream=terminal)
    get_logger("sink", job="shop").warning("audit.failed", code="query_failed")
    assert len(written(plain)) == 1  # configured again, not twice
    content = terminal.getvalue()
    assert "audit.failed" in content
    assert "\x1b[" in content


def test_levels_and_exceptions() -> None:
    stream = io.StringIO()
    configure_logging("warning", stream=stream)
    log = get_logger("sink")
    log.info("unseen")
    try:
        raise ValueError("the reason")
    except ValueError:
        log.exception("seen")
    (line,) = written(stream)
    assert line["event"] == "seen"
    assert "the reason" in line["exception"]


@pytest.mark.parametrize("settings", [{"level": "loud"}, {"form": "xml"}])
def test_what_cannot_be_configured_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="cannot be configured"):
        configure_logging(**settings)  # type: ignore[arg-type]


def test_lanes_follow_the_driver_that_asked(capsys: pytest.CaptureFixture[str]) -> None:
    options = SinkOptions(load_url="fe", database="d", delivery="at-least-once")
    assert LaneTask(options, "job", "e", "c", 1).logging is None
    configure_logging("DEBUG", form="json", stream=io.StringIO())
    task = pickle.loads(pickle.dumps(LaneTask(options, "job", "e", "c", 1)))
    configure_logging(executors=False, stream=io.StringIO())
    assert LaneTask(options, "job", "e", "c", 1).logging is None
    telemetry.apply_log_settings(task.logging)  # as another process, which was configured by nothing else
    get_logger("lane").debug("step.ended")
    (line,) = written(io.StringIO(capsys.readouterr().err))
    assert line["event"] == "step.ended"


# --- what a line holds ---


@given(
    st.dictionaries(st.sampled_from(["a", "batch_id", "label", "at", "level"]), st.integers() | st.text() | st.none())
)
def test_any_event_makes_one_line_that_can_be_read(fields: dict[str, Any]) -> None:
    stream = io.StringIO()
    configure_logging("DEBUG", form="json", stream=stream)
    EventLogger("sink")(Event("batch.started", fields))
    (line,) = written(stream)
    assert line["event"] == "batch.started"
    assert all(len(value) <= 201 for value in line.values() if isinstance(value, str))
    if fields.get("batch_id") is not None:
        assert "batch" in line


def test_what_is_no_scalar_is_not_shown() -> None:
    stream = io.StringIO()
    configure_logging("DEBUG", form="json", stream=stream)
    get_logger("sink").info("seen", rows=[ROW], error=StarRocksSinkError(ROW))
    EventLogger("sink")(Event("batch.started", {"rows": (ROW,), "evidence": {"row": ROW}}))
    assert ROW not in stream.getvalue()
    assert written(stream)[0]["rows"] == "list"


@pytest.mark.parametrize("form", ["human", "json"])
def test_no_name_of_the_source_moves_the_terminal(form: str) -> None:
    stream = io.StringIO()
    configure_logging("DEBUG", form=form, stream=stream)
    get_logger("sink").info("seen", partition="a\x1b[2J\x9b\u202eb\nforged line")
    try:
        raise ValueError("\x1b]0;title\x07")
    except ValueError:
        get_logger("sink").error("failed", exc_info=True)
    content = stream.getvalue()
    assert not set(content) & set("\x1b\x07\x9b\u202e")
    assert "\nforged" not in content


# --- a whole lane ---


def write(server: Emulator, row: str) -> None:
    """One micro-batch of one row, without Spark."""
    sink_options = SinkOptions(
        load_url=server.load_url,
        query_url=server.query_url,
        database="shop",
        job="shop",
        password=PASSWORD,
        max_attempts=2,
        properties={"strict_mode": "true"},
    )
    write_micro_batch(sink_options, {1: row}, 7)


def test_each_step_of_a_commit_is_one_line_with_its_place(server: Emulator) -> None:
    stream = io.StringIO()
    configure_logging("DEBUG", form="json", stream=stream)
    write(server, f'{{"id": 1, "note": "{ROW}"}}')
    lines = [line for line in written(stream) if line["event"] == "step.ended"]
    steps = sorted((line["step"], line.get("table", "")) for line in lines if line["event"] == "step.ended")
    assert steps == [
        ("begin", ""),
        ("check", ""),
        ("commit", ""),
        ("load", "_starrocks_txn_sink_ledger"),
        ("load", "items"),
    ]
    assert {(line["job"], line["batch"]) for line in lines} == {("shop", 7)}
    assert [line["lane"] for line in lines if "lane" in line] == [0]  # the rows' load; the driver does the rest
    (label,) = {line["label"] for line in lines}
    assert label.startswith("shop-")
    assert all(line["seconds"] >= 0 for line in lines)
    assert [line["result"] for line in lines if line["step"] == "commit"] == ["committed"]


FAULTS: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"operation": "commit", "action": "drop", "when": "after", "nth": 1}],
    [{"operation": "load", "action": "drop", "when": "before", "nth": 1}],
    [{"operation": "begin", "action": "answer", "body": f'{{"Status":"FAILED","Message":"{ROW}"}}', "nth": 1}],
    [{"operation": "commit", "action": "answer", "body": f'{{"Status":"FAILED","Message":"{ROW} is bad"}}'}],
    [{"operation": "load", "action": "answer", "status": 500, "body": f"<html><title>{ROW}</title>"}],
    [{"operation": "query", "label": "SELECT kind", "action": "answer", "status": 1064, "body": ROW, "times": 2}],
)


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("row", [f'{{"id": 1, "note": "{ROW}"}}', f'{{"id": "{ROW}", "note": 1}}', f'{{"id": {ROW}}}'])
def test_no_secret_and_no_row_whatever_goes_wrong(server: Emulator, faults: list[dict[str, Any]], row: str) -> None:
    """Rows that are written, rejected or no JSON; replies that repeat them: nothing of it is in a line."""
    stream = io.StringIO()
    configure_logging("DEBUG", form="json", stream=stream)
    server.faults.replace(faults)
    with suppress(StarRocksSinkError):
        write(server, row)
    assert ROW not in stream.getvalue()
    assert PASSWORD not in stream.getvalue()
    begin_lines = [line for line in written(stream) if line.get("step") == "begin"]
    assert begin_lines or any(fault["operation"] == "query" for fault in faults)


def test_a_failed_step_says_which_code(server: Emulator) -> None:
    """A refused commit has the server's reason, and then the ledger says that nothing is visible."""
    stream = io.StringIO()
    configure_logging("DEBUG", form="json", stream=stream)
    with pytest.raises(StarRocksSinkError):
        write(server, '{"id": null}')
    failed = [line for line in written(stream) if line["event"] == "step.failed"]
    assert [(line["step"], line["result"], line["code"]) for line in failed] == [
        ("commit", "unknown", "rows_rejected"),
        ("recover", "aborted", "commit_failed"),
    ]


def test_a_micro_batch_that_succeeds_is_one_line_at_info(server: Emulator) -> None:
    stream = io.StringIO()
    configure_logging(form="json", stream=stream)
    write(server, f'{{"id": 2, "note": "{ROW}"}}')
    assert written(stream) == []
    receipts = [Receipt(f"l-{n}", n, "shop", 1, (), (), 1, 1, 0, False, {}, 1.0) for n in (1, 2, 3)]
    events = SinkEvents(
        SinkOptions(load_url="http://fe:8030", database="shop", delivery="at-least-once"), ignore_event, None
    )
    origin = BatchOrigin(1, "shop", "q", "r", streaming=True)
    with events.follow_batch(None, origin) as collector:
        collector.collect(receipts)
    (line,) = written(stream)
    assert (line["event"], line["receipts"], line["source_transactions"]) == ("batch.completed", 3, 0)


def test_a_repeated_warning_is_one_line_that_counts_the_others() -> None:
    now = [100.0]
    repeats = Repeats(lambda: now[0])
    fields = {"job": "shop", "code": "begin_failed", "label": "l-1"}
    assert repeats.due("step.failed", fields) == {}
    for number in range(20):
        assert repeats.due("step.failed", {**fields, "label": f"l-{number}"}) is None
    assert repeats.due("step.failed", {**fields, "code": "load_failed"}) == {}, "another kind"
    now[0] += 30
    assert repeats.due("step.failed", fields) == {"left_out": 20}
    now[0] += 30
    assert repeats.due("step.failed", fields) == {}


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("columns.unfilled", "columns"),
        ("columns.unknown", "unknown"),
        ("columns.gone", "gone"),
        ("snapshot.repeated", "source"),
    ],
)
def test_what_is_told_once_of_other_columns_or_sources_is_no_repetition(event: str, name: str) -> None:
    repeats = Repeats(lambda: 0.0)
    fields = {"job": "shop", "table": "orders", name: "a"}
    assert repeats.due(event, fields) == {}
    assert repeats.due(event, fields) is None
    assert repeats.due(event, {**fields, name: "b"}) == {}


def test_the_kinds_of_warnings_that_are_remembered_are_bounded() -> None:
    repeats = Repeats(lambda: 0.0)
    for number in range(1500):
        repeats.due("step.failed", {"table": f"t{number}"})
    assert repeats.due("step.failed", {"table": "t1499"}) is None
    assert repeats.due("step.failed", {"table": "t0"}) == {}


def test_events_that_repeat_are_left_out_of_the_log_but_no_failed_micro_batch_is() -> None:
    stream = io.StringIO()
    configure_logging(form="json", stream=stream)
    log = EventLogger("sink")
    for batch in range(5):
        log(Event("batch.failed", {"job": "shop", "batch_id": batch, "code": "spark"}))
        log(Event("outage.waiting", {"job": "shop", "batch_id": batch, "code": "begin_failed"}))
    assert [line["event"] for line in written(stream)].count("batch.failed") == 5
    assert [line["event"] for line in written(stream)].count("outage.waiting") == 1


def test_sparks_progress_bar_ends_where_json_goes_to_the_same_stream() -> None:
    configure_logging(form="json")
    assert shares_stderr()
    configure_logging(form="human")
    assert not shares_stderr()
    configure_logging(form="json", stream=io.StringIO())
    assert not shares_stderr()
    calls: list[str] = []
    bar = SimpleNamespace(finishAll=lambda: calls.append("cleared"), stop=lambda: calls.append("stopped"))
    option = SimpleNamespace(isDefined=lambda: True, get=lambda: bar)
    context = SimpleNamespace(sc=lambda: SimpleNamespace(progressBar=lambda: option))
    session: Any = SimpleNamespace(_sc=SimpleNamespace(_jsc=context))
    end_progress_bar(session)
    assert calls == ["cleared", "stopped"]
    end_progress_bar(None)
