"""The demo's command without Spark: options, folders, signals, displays, summary, exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from starrocks_demo import command
from starrocks_demo.command import DemoOptions, Interrupted, Interruption, add_arguments, interruption
from starrocks_demo.display import (
    Deliveries,
    Display,
    Status,
    Summary,
    line,
    median_seconds,
    own_copy,
    picture,
    save_picture,
)
from starrocks_demo.pipeline import Workspace
from starrocks_demo.verdict import TableVerdict, Verdict
from starrocks_txn_ops import cli
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.telemetry import Event
from tests.support.product_files import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


def parsed(*words: str) -> DemoOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return DemoOptions.of(parser.parse_args(words))


def summary(**changes: Any) -> Summary:
    tables = tuple(
        TableVerdict(name, rows=rows) for name, rows in (("orders", 3), ("order_items", 5), ("order_events", 8))
    )
    right = {"written": 4, "visible": 4, "lost": 0, "duplicated": 0, "tables": tables, "samples": 9, "torn": 0}
    return Summary(Verdict(**{**right, **changes}), 2, 1, 6, 0.51234, 1.5, 12.3456)


# --- options ---------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_options() -> None:
    assert parsed() == DemoOptions()


def test_every_option_can_be_given() -> None:
    words = (
        "--partitions 2 --rate 100 --seconds 3 --seed 9 --lanes 4 --generation C --interval 0.5 --patience 7 "
        "--data-dir d --keep --json --quiet --picture p.svg --assemble stage --warm-up 9"
    )
    assert parsed(*words.split()) == DemoOptions(
        partitions=2,
        rate=100.0,
        seconds=3.0,
        warm_up=9,
        seed=9,
        lanes=4,
        assemble="stage",
        generation="C",
        interval=0.5,
        patience=7.0,
        data_dir=Path("d"),
        keep=True,
        json=True,
        quiet=True,
        picture=Path("p.svg"),
    )


@pytest.mark.parametrize(
    "words", ["--partitions 0", "--rate 0", "--rate inf", "--seconds -1", "--generation A", "--interval nan"]
)
def test_refuses_what_makes_no_sense(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*words.split())
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--partitions none", "--partitions: 'none' is not a whole number"),
        ("--metrics-port x", "--metrics-port: 'x' is not a whole number"),
        ("--metrics-port 65536", "--metrics-port: 65536 is not at least 0 and at most 65535"),
        ("--rate 0", "--rate: 0 is not above 0"),
        ("--seconds soon", "--seconds: 'soon' is not a number"),
    ],
)
def test_says_what_is_wrong_with_a_word_that_is_no_number(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*words.split())
    assert message in capsys.readouterr().err


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_temporary_folder_goes_and_a_kept_one_stays() -> None:
    for keep in (False, True):
        space = Workspace.open(None, keep=keep)
        assert space.events.is_dir()
        space.close()
        assert space.root.exists() == keep
        space.lasting = False
        space.close()


def test_a_named_folder_stays_and_must_be_empty(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    Workspace.open(folder, keep=False).close()
    assert (folder / "events").is_dir()
    with pytest.raises(OptionError, match="not an empty folder"):
        Workspace.open(folder, keep=False)


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_block_once_and_handlers_come_back(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    folders = []

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # an impatient second one
            folders.append(True)

    with pytest.raises(Interrupted) as ended, interruption():
        work()
    assert ended.value.exit_code == code
    assert folders == [True]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_is_held_back_while_something_starts() -> None:
    reached = []

    def start(signals: Interruption) -> None:
        with signals.held_back():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a library does that takes the signal for itself
            signal.raise_signal(signal.SIGTERM)
            reached.append("started")
        reached.append("not reached")

    with pytest.raises(Interrupted), interruption() as signals:
        start(signals)
    assert reached == ["started"]


def test_signals_are_ours_again_after_a_library_took_them() -> None:
    def start(signals: Interruption) -> None:
        with signals.held_back():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted), interruption() as signals:
        start(signals)


# --- what the sink emitted -------------------------------------------------------------------------------------------


def test_deliveries_add_up_receipts() -> None:
    deliveries = Deliveries()
    receipt = SimpleNamespace(attempts=3, loads=4, bytes=2000, phase_seconds={"commit": 0.5})
    for event in (Event("receipt.collected", {"receipt": receipt}), Event("batch.completed"), Event("step.completed")):
        deliveries(event)
        deliveries(event)
    assert (deliveries.committed, deliveries.aborted, deliveries.loads, deliveries.batches) == (2, 4, 8, 2)
    assert deliveries.bytes == 4000
    assert deliveries.laps == {"commit": [0.5, 0.5]}


# --- what a person sees ----------------------------------------------------------------------------------------------

STATUS = Status(
    "writing", 12.3, 20.0, None, 2511, 2400, 61512, 60, {"orders": 12}, 98, 0, 20, 20, 0, 61, 12.3, (0.9, None)
)


def test_the_line_has_the_figures() -> None:
    assert line(STATUS) == (
        "writing, 12 s of 20 s            2,400 of 2,511 transactions visible; 0 torn in 98 looks; commits 20; "
        "visible after 0.90 s"
    )


def test_the_line_and_the_panel_know_the_end_of_the_warm_up() -> None:
    warming = replace(STATUS, phase="warming up", planned=0.0, batch=(3, 6))
    assert "warming up, micro-batch 3 of 6  " in line(warming)  # the next number stands apart
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(picture(warming))
    assert "micro-batch 3 of 6" in captured.get()


def test_lines_come_with_a_phase_or_after_a_while() -> None:
    stream = io.StringIO()
    lines = Display(stream, quiet=False)
    for phase, elapsed in (("writing", 0.0), ("writing", 1.0), ("writing", 2.1), ("draining", 2.2), ("draining", 2.4)):
        lines.show(Status(phase, elapsed, 20.0))
    assert [text.split(" 0 of")[0].split() for text in stream.getvalue().splitlines()] == [
        ["writing,", "0", "s", "of", "20", "s"],
        ["writing,", "2", "s", "of", "20", "s"],
        ["draining,", "2", "s", "of", "20", "s"],
    ]


def test_a_terminal_gets_the_panel_and_sentences_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = Display(stream, quiet=False)
    with display.waiting("Starting [something].", str):
        pass
    display.show(STATUS)
    text = stream.getvalue()
    assert "Starting [something]." in text
    assert "2,511 transactions" in text
    assert "emulator, not on StarRocks" in text


def test_a_panel_is_drawn_over_the_last_one_and_never_empties_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = Display(stream, quiet=False)
    display.show(STATUS)
    height = stream.getvalue().count("\n")
    before = len(stream.getvalue())
    display.show(STATUS)
    again = stream.getvalue()[before:]
    assert again.startswith(f"\x1b[{height}F")
    assert again.count("\n") == height
    assert not re.search(r"\x1b\[\d*[JK]", again)


def test_a_pipe_hears_that_something_slow_goes_on() -> None:
    stream = io.StringIO()
    with Display(stream, quiet=False).waiting("Starting.", lambda: "step 1 of 2", 0.01):
        wait_until(lambda: "  step 1 of 2, 0.02 s\n" in stream.getvalue(), 20)
    assert stream.getvalue().startswith("Starting.\n")


def test_lines_are_seen_while_the_output_of_children_goes_to_a_log(tmp_path: Path) -> None:
    with (tmp_path / "pipe").open("w") as pipe:
        log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
        with own_copy(pipe) as copy:
            os.dup2(log, pipe.fileno())
            Display(copy, quiet=False).say("still seen")
        os.close(log)
    assert (tmp_path / "pipe").read_text() == "still seen\n"
    stream = io.StringIO()
    with own_copy(stream) as copy:
        assert copy is stream


def test_a_pipe_gets_lines_and_sentences_as_they_are_and_quiet_nothing() -> None:
    stream = io.StringIO()
    display = Display(stream, quiet=False)
    sentence = f"The file [b] :bike: {'is here ' * 30}"
    display.say(sentence)
    display.show(STATUS)
    assert stream.getvalue() == f"{sentence}\n{line(STATUS)}\n"
    display = Display(stream, quiet=True)
    display.say("x")
    display.show(STATUS)
    assert stream.getvalue() == f"{sentence}\n{line(STATUS)}\n"


def test_the_pictures_are_whole_light_and_dark_and_ask_nothing_of_the_network(tmp_path: Path) -> None:
    save_picture(STATUS, tmp_path / "images" / "demo.svg")
    light, dark = ((tmp_path / "images" / name).read_text() for name in ("demo.svg", "demo-dark.svg"))
    for text in (light, dark):
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "2,511" in text.replace("&#160;", " ")
        assert "url(http" not in text
        assert "@font-face" not in text
    grounds = [re.findall(r'<rect fill="(#\w+)" stroke="(\S+)"', text) for text in (light, dark)]
    assert grounds == [[("#ffffff", "rgba(0,0,0,0.35)")], [("#0c0c0c", "rgba(255,255,255,0.35)")]]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_the_json_object() -> None:
    assert json.loads(summary().as_json()) == {
        "source_transactions": {"written": 4, "visible": 4, "lost": 0, "duplicated": 0},
        "rows": {"orders": 3, "order_items": 5, "order_events": 8},
        "reader": {"samples": 9, "torn": 0},
        "starrocks_transactions": {"committed": 2, "aborted": 1},
        "loads": 6,
        "freshness_seconds": {"p50": 0.512, "p99": 1.5},
        "micro_batch_seconds": {},
        "wall_seconds": 12.346,
    }
    assert "\n" not in summary().as_json()


def test_the_lines_say_right_or_what_is_wrong() -> None:
    assert summary().as_lines()[-1].startswith("RIGHT")
    wrong = summary(torn=1, lost=2, evidence=("sample 4: partial = 1",), problems=("The query ended: x",)).as_lines()
    place = wrong.index("WRONG:")
    assert [text.strip() for text in wrong[place + 1 :]] == [
        "The query ended: x",
        "1 of 9 samples saw a torn state.",
        "2 source transactions are lost.",
        "sample 4: partial = 1",
    ]


class Played:
    """What `DemoRun` is to the command, with an outcome that the test chooses."""

    outcome: Summary | BaseException

    def __init__(self, _options: DemoOptions, space: Workspace, _display: Any, _clock: Any) -> None:
        self.space, self.last_writing = space, STATUS

    def play(self, _: Interruption) -> Summary:
        Path(os.environ["TOLD"]).write_text(str(self.space.root))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Summary | BaseException, *words: str
) -> tuple[int, Path]:
    Played.outcome = outcome
    monkeypatch.setitem(sys.modules, "starrocks_demo.run", SimpleNamespace(DemoRun=Played))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    try:
        return command.run(parser.parse_args(words)), Path((tmp_path / "told").read_text())
    except Exception:
        return -1, Path((tmp_path / "told").read_text())


def test_right_is_0_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = run(monkeypatch, tmp_path, summary())
    assert (code, folder.exists()) == (0, False)
    verdict, next_step = capsys.readouterr().out.split("\nNext, ")
    assert verdict.splitlines()[-1].startswith("RIGHT")
    page = re.search(r"docs/\S+\.md", next_step)
    assert page is not None
    assert (ROOT / page[0]).is_file()
    for words_of_one in re.findall(r"starrocks-txn-sink (.*?)(?:    .*)?$", next_step, re.MULTILINE):
        name, *words = words_of_one.split()
        with pytest.raises(SystemExit) as left:
            cli.main([name, "--help"])
        known = capsys.readouterr().out
        assert left.value.code == 0
        assert all(word in known for word in words if word.startswith("--"))


@pytest.mark.parametrize("words", [("--quiet",), ("--json",)])
def test_who_asks_for_less_hears_nothing_of_what_is_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run(monkeypatch, tmp_path, summary(), *words)
    captured = capsys.readouterr()
    assert "Next, " not in captured.out + captured.err


@pytest.mark.parametrize(
    "wrong", [{"torn": 1}, {"lost": 1}, {"duplicated": 1}, {"tables": (TableVerdict("orders", rows=3, wrong=1),)}]
)
def test_anything_wrong_is_1_and_the_data_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any]
) -> None:
    code, folder = run(monkeypatch, tmp_path, summary(**wrong))
    assert (code, folder.exists()) == (1, True)
    out = capsys.readouterr().out
    assert "WRONG:" in out
    assert str(folder) in out


def test_json_is_the_last_line_and_all_there_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run(monkeypatch, tmp_path, summary(lost=1), "--json")
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out == summary(lost=1).as_json() + "\n"
    assert "WRONG:" in captured.err


def test_ctrl_c_is_130_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = run(monkeypatch, tmp_path, Interrupted(signal.SIGINT))
    assert (code, folder.exists()) == (130, False)
    assert "SIGINT" in capsys.readouterr().err


def test_a_crash_leaves_the_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, folder = run(monkeypatch, tmp_path, RuntimeError("half way"))
    assert (code, folder.exists()) == (-1, True)
    assert str(folder) in capsys.readouterr().out


def test_the_picture_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path, summary(), "--picture", str(tmp_path / "demo.svg"))
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("demo.svg", "demo-dark.svg"))


def test_the_phases_of_micro_batches_with_rows_are_shown_by_their_median() -> None:
    durations = {"triggerExecution": 300, "latestOffset": 20, "walCommit": 10, "queryPlanning": 4, "addBatch": 200}
    progress = [
        SimpleNamespace(numInputRows=rows, durationMs={**durations, "commitOffsets": commit})
        for rows, commit in ((0, 900), (5, 10), (5, 30), (5, 20))
    ]
    medians = median_seconds(progress, {"commit": [0.1, 0.3, 0.2]})
    assert (medians["commit log"], medians["micro-batch"], medians["lane: commit"]) == (0.02, 0.3, 0.2)
    assert median_seconds([], {}) == {}
