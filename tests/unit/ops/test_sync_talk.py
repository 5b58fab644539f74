"""What `sync` says while it runs, and where the noise of its other processes goes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from starrocks_txn_ops.sync.talk import Talk, quiet_children
from starrocks_txn_sink.coordinator.model import Receipt, RegionCount
from starrocks_txn_sink.metrics.spark_progress import QueryProgress
from starrocks_txn_sink.telemetry import Event
from tests.support.manual_clock import ManualClock
from tests.support.terminal import Terminal


class Told:
    """A talk, what it prints, and its time."""

    def __init__(self, out: io.StringIO) -> None:
        self.out, self.clock = out, ManualClock()
        self.talk = Talk(out, self.clock.monotonic)

    def tell(self, name: str, **fields: Any) -> None:
        self.talk(Event(name, fields))

    def commit(self, rows: int, dead: int = 0) -> None:
        regions = (RegionCount("p", "orders", rows, 1),)
        letters = (RegionCount("p", "orders", dead, 1),) if dead else ()
        receipt = Receipt("l", 1, "shop", 1, regions, (), 1, 1, 0, recycled=False, dead_lettered=letters)
        self.tell("receipt.collected", receipt=receipt)

    @property
    def text(self) -> str:
        return self.out.getvalue()


def test_a_log_gets_whole_lines_with_rate_lag_and_last_commit() -> None:
    told = Told(io.StringIO())
    with told.talk.running("running, 4 tables"):
        told.talk.renew()
        told.clock.sleep(20)
        told.commit(1500)
        told.commit(500, dead=3)
        told.tell("query.progressed", progress=QueryProgress(lags={"0": 7, "1": 10}))
        told.tell("snapshot.progressed", text="3 of 5 tables", tables=5, over=3, unknown=0)
        told.tell("job.held", code="job_held")
        told.tell("outage.ended")
        told.tell("outage.waiting", code="server_unreachable")
        told.clock.sleep(2)
        told.talk.renew()
        told.tell("outage.ended")
        told.tell("snapshot.ended")
        told.clock.sleep(100)
        told.talk.renew()
    assert told.text.splitlines() == [
        "sync: running, 4 tables",
        "sync: 0 rows/s, no commit yet, 0 rows in 0 commits",
        "sync: a command holds the job (job_held); it goes on by itself",
        "sync: waiting: server_unreachable, 3 rows are dead letters, snapshot: 3 of 5 tables, 2,000 of about 2,017 rows"
        ", 200 rows/s, 17 messages behind, last commit 2.0 s ago, 2,000 rows in 2 commits",
        "sync: 3 rows are dead letters, 0 rows/s, 17 messages behind, last commit 1 min 42 s ago, "
        "2,000 rows in 2 commits",
        "sync: ended: 2,000 rows in 2 commits, 2 min 2 s, 16 rows/s, 3 rows are dead letters",
    ]


def test_the_line_says_how_commits_are_paced_and_when_rows_are_late() -> None:
    told = Told(io.StringIO())
    paced = {"job": "shop", "freshness": 1.0, "interval": 0.752, "pause": 0.5, "late": 0.034, "reason": "freshness"}
    with told.talk.running("running"):
        told.tell("commits.paced", **{**paced, "interval": 55.0, "pause": 0.0})  # the first one, which says no pace
        told.talk.renew()
        told.tell("commits.paced", **paced)
        told.talk.renew()
        told.tell("freshness.missed", **paced)
        told.tell("commits.paced", **{**paced, "interval": 6.02, "reason": "rowsets"})
        told.talk.renew()
        told.tell("freshness.met", **paced)
        told.talk.renew()
    assert [line.partition("commits")[2].lstrip(", ") for line in told.text.splitlines()[1:5]] == [
        "",
        "a commit each 0.75 s (freshness)",
        "3% of rows later than 1 s, a commit each 6 s (rowsets)",
        "a commit each 6 s (rowsets)",
    ]


def test_the_messages_behind_are_told_while_the_first_micro_batch_runs() -> None:
    told = Told(io.StringIO())
    with told.talk.running("running"):
        told.tell(
            "source.lagged", query="q", lags={}, partitions={"shop.public.orders/0": 300, "shop.public.items/0": 40}
        )
        told.talk.renew()
    assert told.text.splitlines()[1] == "sync: 0 rows/s, 340 messages behind, no commit yet, 0 rows in 0 commits"


def test_a_snapshot_whose_end_no_row_shows_is_told_until_all_is_read() -> None:
    told = Told(io.StringIO())
    spread = {
        "tables": 4,
        "over": 0,
        "unknown": 4,
        "text": "not known of 4 tables, whose topics have several partitions",
    }
    with told.talk.running("running"):
        told.tell("source.lagged", query="q", lags={}, partitions={"0": 340})
        told.clock.sleep(1)
        told.commit(300)
        told.tell("snapshot.progressed", **spread)
        told.talk.renew()  # the 340 are those of before
        told.tell("source.lagged", query="q", lags={}, partitions={"0": 40})
        told.talk.renew()
        told.tell("source.lagged", query="q", lags={}, partitions={"0": 0})
        told.talk.renew()
    committed, before, after = told.text.splitlines()[1:4]
    assert committed.startswith("sync: snapshot: 4 tables, 300 rows, 300 rows/s")
    assert before.startswith("sync: snapshot: 4 tables, 300 of about 340 rows, 300 rows/s")
    assert after.startswith("sync: 300 rows/s, 0 messages behind")


def test_a_pause_behind_a_commit_is_known_until_it_ends() -> None:
    told = Told(io.StringIO())
    told.tell("commits.paced", job="shop", freshness=2.0, interval=1.7, pause=1.5, late=0.0, reason="freshness")
    told.clock.sleep(1.4)
    assert told.talk.is_paused("q")
    told.clock.sleep(0.2)
    assert not told.talk.is_paused("q")


def test_a_terminal_has_one_line_that_others_do_not_break(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(Terminal())
    monkeypatch.setattr(sys, "stderr", told.out)
    with told.talk.running("running"):
        told.talk.renew()
        told.talk.renew()
        sys.stderr.write("a warning")
        sys.stderr.write("\n")
        told.talk.renew()
    assert sys.stderr is told.out
    line, clear = "0 rows/s, no commit yet, 0 rows in 0 commits", "\r\x1b[K"
    renewed = f"{clear}{line}"
    assert (
        told.text
        == f"sync: running\n{renewed}{renewed}{clear}a warning\n{renewed}{clear}sync: ended: 0 rows in 0 commits, 0 s\n"
    )


def test_other_processes_write_to_a_file_whose_end_is_shown_if_the_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = [sys.executable, "-c", "import os; os.write(1, b'noise\\n'); os.write(2, b'more\\n')"]
    said = list[str]()
    with quiet_children("ods/shop", said.append):
        subprocess.run(child, check=True)
    os.write(1, b"shown\n")
    assert capfd.readouterr() == ("shown\n", "")
    (file,) = tmp_path.glob("starrocks-txn-sink-ods-shop-*.log")
    assert said == [f"starting Spark; what Spark, Ivy and Kafka's client say is in {file}"]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("noise\nmore\n", 0o600)
    child[-1] += "; raise SystemExit(1)"
    with pytest.raises(subprocess.CalledProcessError), quiet_children("ods/shop", said.append):
        subprocess.run(child, check=True)
    assert capfd.readouterr().err == "noise\nmore\n"
    assert said[0] != said[1]
