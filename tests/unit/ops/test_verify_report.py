"""What `verify` says: lines, exit codes, how far it is, and where its file has the source."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from starrocks_txn_ops.sync.settings import parse_sync
from starrocks_txn_ops.verify.command import share_of
from starrocks_txn_ops.verify.progress import Pace, Progress
from starrocks_txn_ops.verify.rules.core import DIFFERENT, MISSING, Verdict
from starrocks_txn_ops.verify.rules.report import Mended, Report, TableReport, document, lines, summary
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.protocol.verified import Verified
from tests.support.manual_clock import ManualClock


def table(*, different: int = 0, unsettled: int = 0, reason: str = "", skipped: bool = False) -> TableReport:
    verdict = Verdict(2)
    for number in range(different):
        verdict.proven(DIFFERENT if number else MISSING, (str(number),))
    for number in range(unsettled):
        verdict.left((str(number),))
    return TableReport("t", ("public.t",), ("id",), (5, 4), verdict, reason=reason, skipped=skipped)


@pytest.mark.parametrize(
    ("tables", "code", "word"),
    [
        ([table()], 0, "equal at 0/1: 1 equal"),
        (
            [table(), table(different=1), table(reason="why")],
            1,
            "DIFFERENT at 0/1: 1 equal, 1 different, 1 not compared",
        ),
        ([table(), table(unsettled=1)], 2, "NOT PROVEN at 0/1: 1 equal, 1 unsettled"),
        ([table(), table(reason="why")], 2, "NOT PROVEN"),
        ([table(), table(reason="a history", skipped=True)], 0, "equal at 0/1: 1 equal, 1 skipped"),
        ([table(reason="a history", skipped=True)], 2, "NOT PROVEN"),
    ],
)
def test_the_exit_code_says_what_was_found(tables: list[TableReport], code: int, word: str) -> None:
    report = Report("0/1", True, "", tables)
    assert report.exit_code == code == document(report)["exit_code"]
    assert [*lines(report)][-1].startswith(word)


def test_some_keys_are_named_and_the_others_counted() -> None:
    shown = "\n".join(lines(Report("0/1", False, "it is at 0/0", [table(different=4, unsettled=3)], {"x": "y"}, 0.01)))
    for text in (
        "position 0/1, a sample of 1 % of the keys",
        "the job had not passed it: it is at 0/0",
        "public.t -> t: different, 5 rows at the source, 4 in StarRocks",
        "missing 1, different 3",
        "missing: id=0\n",
        "different: id=1; id=2 and 1 more",
        "unsettled 3, which look different, and are not proven to be: id=0; id=1 and 1 more",
        "left out: x, y",
    ):
        assert text in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_in_a_terminal_and_few_lines_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    clock, terminal, log = ManualClock(), Terminal(), io.StringIO()
    both = [Progress(out, clock, 2, 1_000) for out in (terminal, log)]
    for progress in both:
        progress.begin("orders")
    for _ in range(5):
        clock.sleep(10.0)
        for progress in both:
            progress.done(100, 1)
    for progress in both:
        progress.end()
    assert "\n" not in terminal.getvalue()
    assert (
        "table 1 of 2 (orders): 5 ranges, 500 of 1,000 rows, 5 rows looked at again, about 50 s left"
        in terminal.getvalue()
    )
    assert log.getvalue().count("\n") == 2
    assert "\r" not in log.getvalue()


def test_the_rate_is_bounded_by_waiting() -> None:
    clock = ManualClock()
    pace = Pace(100, clock)
    for _ in range(10):
        clock.advance(0.5)  # what the ranges take themselves
        pace.rest(200)
    assert clock.monotonic() == pytest.approx(20.0)
    unbounded = Pace(0, clock)
    unbounded.rest(10**9)
    assert clock.monotonic() == pytest.approx(20.0)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5 %", 0.005), ("100%", 1.0)])
def test_a_share_of_the_keys(text: str, share: float) -> None:
    assert share_of(text) == share


@pytest.mark.parametrize("text", ["1", "0%", "101%", "x%"])
def test_another_share_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--sample"):
        share_of(text)


FILE = """
[source]
brokers = "b:9092"
topics = 'shop\\..*'
{}
[target]
load_url = "http://fe:8030"
query_url = "mysql://fe:9030"
database = "shop"
[query]
checkpoint = "c"
"""


def test_a_file_says_where_the_source_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse_sync(FILE.format("")).database is None
    url = 'database = "mysql://reader@db/shop"\n'
    access = parse_sync(FILE.format(f'{url}database_password_environment = "SECRET"')).database
    assert access is not None
    assert (access.place.host, access.place.port, access.place.postgresql) == ("db", 3306, False)
    with pytest.raises(OptionError, match="SECRET has no password"):
        access.password()
    monkeypatch.setenv("SECRET", "word")
    assert access.password() == "word"
    file = tmp_path / "password"
    file.write_text("word of a file\n", encoding="utf-8")
    access = parse_sync(FILE.format(f'{url}database_password_file = "{file}"')).database
    assert access is not None
    assert access.password() == "word of a file"


@pytest.mark.parametrize(
    ("lines_of_source", "message"),
    [
        ('database = "oracle://a@b/c"', "line 5: database lacks a part, or names another kind"),
        ('database = "mysql://a:b@c/d"', "line 5: database has a password, which does not belong in the file"),
        ('database_password_environment = "X"', "line 5: database_password_environment needs database"),
        (
            'database = "mysql://a@b/c"\ndatabase_password_environment = "X"\ndatabase_password_file = "y"',
            "line 7: database_password_environment and database_password_file are both set",
        ),
    ],
)
def test_a_place_that_cannot_work_is_an_error_with_its_line(lines_of_source: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_sync(FILE.format(lines_of_source))


def test_the_ledger_keeps_how_many_tables_and_rows_are_different() -> None:
    """A repaired table is equal, and rows that a repair has left are different."""
    repaired, left = (
        replace(table(different=3), mended=Mended(2, 0, {"it does not fit": rows} if rows else {})) for rows in (0, 1)
    )
    tables = [table(), repaired, left, table(different=5), table(unsettled=1), table(reason="why")]
    assert summary(Report("0/1", True, "", tables), 7) == Verified(7, 2, 2, 2, 6, "0/1")


@pytest.mark.parametrize(
    ("mended", "said"),
    [
        (Mended(2, 1, labels=("a", "b", "c", "d")), ["2 rows written, 1 deleted (label a, b, c and 1 more)"]),
        (Mended(deleted=3, added=("born", "mail")), ["columns added: born, mail", "0 rows written, 3 deleted"]),
        (Mended(left={"why": 2}), ["not repaired: 2, why"]),
    ],
)
def test_what_a_repair_has_done_is_said(mended: Mended, said: list[str]) -> None:
    """A DELETE has no label, and an added column may need no row."""
    report = Report("0/1", True, "", [replace(table(different=1), mended=mended)])
    shown = [line.strip().removeprefix("repaired: ") for line in lines(report)]
    assert [line for line in shown if "missing" not in line][2:-1] == said
