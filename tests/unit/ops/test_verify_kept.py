"""What `verify --resume` keeps of a run that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_ops.verify.kept import Equal, Kept, kept_in
from starrocks_txn_ops.verify.rules.report import Report, TableReport, document, lines, summary
from starrocks_txn_sink.errors import OptionError


def kept(folder: Path, text: str = "[source]", share: float = 1.0) -> Kept:
    (folder / "shop.toml").write_text(text)
    return kept_in(str(folder / "kept"), str(folder / "shop.toml"), share)


def test_a_run_goes_on_behind_the_tables_that_were_equal(tmp_path: Path) -> None:
    first = kept(tmp_path)
    first.open(7, "0/1")
    first.keep("public.t -> t", Equal("0/1", (5, 5)))
    with first.path.open("a") as file:
        file.write('{"table": "publ')  # killed
    second = kept(tmp_path)
    second.open(9, "0/2")
    assert (second.began, second.position, second.equal) == (7, "0/1", {"public.t -> t": Equal("0/1", (5, 5))})
    second.keep("public.u -> u", Equal("0/2", (1, 1)))
    third = kept(tmp_path)
    third.open(11, "0/3")
    assert [*third.equal] == ["public.t -> t", "public.u -> u"]
    third.end()
    assert not third.path.exists()


@pytest.mark.parametrize(("text", "share"), [("[source] ", 1.0), ("[source]", 0.5)])
def test_another_comparison_is_refused(tmp_path: Path, text: str, share: float) -> None:
    kept(tmp_path).open(7, "0/1")
    with pytest.raises(OptionError, match="is of another comparison"):
        kept(tmp_path, text, share).open(9, "0/2")


@pytest.mark.parametrize("content", ["a text\n", '{"same": 1}\n', "[]\n", '"x"\n'])
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: str) -> None:
    file = kept(tmp_path)
    file.path.write_text(content)
    with pytest.raises(OptionError, match="was not written by verify --resume"):
        file.open(7, "0/1")
    assert file.path.read_text() == content


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        kept_in(str(tmp_path / "none" / "kept"), str(tmp_path / "shop.toml"), 1.0).open(7, "0/1")


def test_the_report_names_both_positions_and_the_ledger_the_first_one() -> None:
    report = Report("0/2", True, "", [TableReport("t", ("public.t",))], since="0/1")
    assert next(iter(lines(report))) == "position 0/2, going on behind a run at 0/1"
    assert document(report)["since"] == summary(report, 7).position == "0/1"
    assert document(Report("0/2", True, "", []))["since"] == "0/2"


def test_a_file_of_sync_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path / "none.toml"), "--resume", str(tmp_path / "kept")]) == 2
    assert "none.toml" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()
