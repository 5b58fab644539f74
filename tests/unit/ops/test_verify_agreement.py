"""`verify --repair` shows its plan, and writes nothing that nobody has agreed to."""

from __future__ import annotations

import io
import signal
import sys

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_ops.verify import command
from starrocks_txn_ops.verify.command import _agreed
from starrocks_txn_ops.verify.progress import Progress
from starrocks_txn_ops.verify.rules.core import DIFFERENT, EXTRA, MISSING, Verdict
from starrocks_txn_ops.verify.rules.report import Mended, Report, TableReport, lines, plan_of
from tests.support.manual_clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "terminal", "word", "agreed"),
    [
        ("y\n", True, "", True),
        ("YES\n", True, "", True),
        ("\n", True, "", False),
        ("n\n", True, "", False),
        ("", True, "", False),
        ("y\n", False, "", False),
        ("", False, "yes", True),
        ("y\n", True, "dry", False),
        ("", False, "dry", False),
    ],
)
def test_who_agrees(monkeypatch: pytest.MonkeyPatch, typed: str, terminal: bool, word: str, agreed: bool) -> None:
    kind = Terminal if terminal else io.StringIO
    monkeypatch.setattr(sys, "stdin", kind(typed))
    monkeypatch.setattr(sys, "stderr", said := kind())
    assert (
        _agreed(["orders: write 3 rows"], Progress(said, ManualClock()), yes=word == "yes", dry=word == "dry") is agreed
    )
    assert "  orders: write 3 rows\n" in said.getvalue()
    assert ("Nothing is written" in said.getvalue()) is not agreed
    assert ("[y/N]" in said.getvalue()) is (terminal and not word)


@pytest.mark.parametrize("words", [["--hold", "0"], ["--hold", "601"], ["--yes"], ["--dry-run"]])
def test_words_that_cannot_be(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(["verify", "shop.toml", *words]) == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_cleans_up_and_says_so_in_a_line(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What holds the job ends as behind an error, also by SIGTERM, and a second signal disturbs nothing."""
    ended = list[str]()

    def verify(*_: object, **__: object) -> Report:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            ended.append("given back")
        raise AssertionError

    monkeypatch.setattr(command, "read_sync", lambda _: None)
    monkeypatch.setattr(command, "verify", verify)
    assert cli.main(["verify", "shop.toml", "--exact"]) == 2
    assert ended == ["given back"]
    assert capsys.readouterr() == ("", "Interrupted, and nothing is decided. A job that was held goes on.\n")


def different(**counts: int) -> TableReport:
    verdict = Verdict(1)
    for kind, count in counts.items():
        for number in range(count):
            verdict.proven(kind, (f"{kind} {number}",))
    return TableReport("orders", ("public.orders",), ("id",), (9, 9), verdict)


def test_the_plan_names_what_is_written_and_deleted() -> None:
    table = different(**{MISSING: 2, DIFFERENT: 3, EXTRA: 4})
    assert plan_of(table, keyed=True) == "public.orders -> orders: write 5 rows, delete 4"
    assert plan_of(table, keyed=False).startswith("public.orders -> orders: write the rows of 9 keys anew")
    assert plan_of(different(), keyed=True) == ""
    assert len(table.verdict.found) == 9


def test_what_is_repaired_is_equal_and_what_is_left_is_not() -> None:
    verdict = different(**{MISSING: 2}).verdict
    for left, code in (({}, 0), ({"they changed at each look": 1}, 1)):
        mended = Mended(1, 0, left, ("j-hold-1-2-3_0",))
        table = TableReport("orders", ("public.orders",), ("id",), (9, 9), verdict, mended=mended)
        report = Report("0/1", True, "", [table])
        assert report.exit_code == code
        text = "\n".join(lines(report))
        assert "repaired: 1 rows written, 0 deleted (label j-hold-1-2-3_0)" in text
        assert ("not repaired: 1, they changed at each look" in text) == bool(left)
