"""What it costs a lane to load safely: each rule alone, with it and without it in turns on the same bytes.

    python -m benchmarks.prices [--rounds 11] [--only rows,lines,small,lanes]

Lanes are processes, as Spark's workers are; the driver's part runs in this process, without Spark, and the emulator
(generation B, 16 cores) in one of its own. A rule is taken away by a patch of this program, or by its option where it
has one:

- `continue`: a load waits for `100 Continue` before its body;
- `turns`: lanes take turns at the tables of a label, so a first load is alone;
- `threads`: the tables of a label are counted against the backends' threads;
- `values`: values are judged before they are sent (`check_values`).

`rows` and `lines` have 100,000 rows of 150 bytes in two tables: ready rows, and raw TxnEvents that the lanes parse and
assemble. `small` has 400 rows in twenty tables. `lanes` compares numbers of lanes, with all rules. CPU seconds are
those of lanes and driver, without the emulator's; a price is a ratio of two runs of one round: least, median, greatest.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa

from benchmarks.measure import line, say
from starrocks_emulator.process import EmulatorProcess
from starrocks_emulator.settings import Settings
from starrocks_txn_sink import TxnEventLines
from starrocks_txn_sink.assembler.rules.directory import FileDirectory
from starrocks_txn_sink.assembler.rules.incremental import IncrementalAssembler
from starrocks_txn_sink.assembler.rules.model import Policy
from starrocks_txn_sink.assembler.rules.payload import PayloadEncoder
from starrocks_txn_sink.clock import SystemClock
from starrocks_txn_sink.http import connection
from starrocks_txn_sink.http.sockets import RequestTimer
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.rows import columns
from starrocks_txn_sink.sink.lanes import RoundRunner, write_shared
from starrocks_txn_sink.sink.session import open_session
from starrocks_txn_sink.writer.assembling import AssemblySpec
from starrocks_txn_sink.writer.lane_try import SparkLane
from starrocks_txn_sink.writer.messages import Message
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.turns import turns_of
from starrocks_txn_sink.writer.worker import Attempt
from tests.support.query_port import query

RULES: Final = ("continue", "turns", "threads", "values")
TABLES: Final = [f"t{number}" for number in range(20)]
DDL: Final = [
    f"CREATE TABLE shop.{name} (id BIGINT NOT NULL, customer VARCHAR(40), amount DECIMAL(18, 2), note VARCHAR(99)) "
    "DUPLICATE KEY (id) DISTRIBUTED BY HASH (id)"
    for name in TABLES
]
_ROWS_OF_TRANSACTION: Final = 10
_ROWS_OF_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of a micro-batch, over all `lanes`: ready ones, or raw `lines`."""

    rows: int
    tables: int
    lanes: int
    lines: bool = False

    def batches(self, lane: int) -> list[pa.RecordBatch]:
        """The rows of one lane, in source transactions of ten rows."""
        count = self.rows // self.lanes
        rows = [self._row(lane * count + number) for number in range(count)]
        tables = [TABLES[number % self.tables] for number in range(count)]
        table = self._lines(lane, rows, tables) if self.lines else self._marked(lane, rows, tables)
        return list(table.combine_chunks().to_batches(max_chunksize=_ROWS_OF_BATCH))

    @staticmethod
    def _row(number: int) -> str:
        start = (
            f'{{"id":1{number:011d},"customer":"customer-{number % 100_000:06d}","amount":"1{number:06d}.50","note":"'
        )
        return f'{start.ljust(148, "x")}"}}'

    @staticmethod
    def _marked(lane: int, rows: Sequence[str], tables: Sequence[str]) -> pa.Table:
        numbers = range(len(rows))
        return pa.table(
            {
                columns.PARTITION: pa.array([f"p{lane}"] * len(rows)),
                columns.POSITION: pa.array([1 + number // _ROWS_OF_TRANSACTION for number in numbers], pa.int64()),
                columns.TABLE: pa.array(tables),
                columns.PAYLOAD: pa.array([f",{row}" for row in rows]),
                columns.TRANSACTION_END: pa.array(
                    [number % _ROWS_OF_TRANSACTION == _ROWS_OF_TRANSACTION - 1 for number in numbers]
                ),
            }
        )

    @staticmethod
    def _lines(lane: int, rows: Sequence[str], tables: Sequence[str]) -> pa.Table:
        values: list[str] = []
        for start in range(0, len(rows), _ROWS_OF_TRANSACTION):
            txn = f'"txn_id":"{lane}-{start}"'
            values.append(f'{{"type":"BEGIN",{txn}}}')
            for number in range(start, start + _ROWS_OF_TRANSACTION):
                place = f'"database":"shop","table":"{tables[number]}","op":"c"'
                values.append(f'{{"type":"DATA",{txn},{place},"row":{json.dumps(rows[number])}}}')
            values.append(f'{{"type":"END",{txn}}}')
        return pa.table(
            {
                "value": pa.array(values, pa.string()).cast(pa.binary()),
                "source_partition": pa.array([f"p{lane}"] * len(values)),
                "position": pa.array(range(len(values)), pa.int64()),
            }
        )


# --- the lanes' processes ---


@contextmanager
def _no_continue() -> Iterator[None]:
    prepare = connection._prepare_request

    def without_expect(exchange: connection.Exchange) -> Any:
        request = prepare(exchange)
        request.headers.pop("expect", None)
        return request

    with (
        mock.patch.object(connection, "_prepare_request", without_expect),
        mock.patch.object(RequestTimer, "may_send_body", return_value=True),
    ):
        yield


def serve_lane(number: int, without: str, orders: Connection) -> None:
    """Run the lane `number` for each order, a task and its content; answer with messages and CPU seconds."""
    logging.disable(logging.CRITICAL)
    batches_of = cache(lambda content: content.batches(number))
    with _no_continue() if without == "continue" else nullcontext():
        while (order := orders.recv()) is not None:
            task, content, attempt = order
            batches = batches_of(content)
            started = time.process_time()
            messages = _run_lane(task, Attempt(number, attempt, False), batches, content.lines)
            orders.send((messages, time.process_time() - started))


def _run_lane(task: LaneTask, attempt: Attempt, batches: Sequence[pa.RecordBatch], lines: bool) -> list[Message]:
    if not lines:
        return SparkLane(task).run(batches, attempt)
    with tempfile.TemporaryDirectory() as home:
        rules = IncrementalAssembler, Policy(), PayloadEncoder("shop"), time.time(), FileDirectory(home), "s"
        return SparkLane(task, AssemblySpec(*rules, lines=TxnEventLines())).run(batches, attempt)


# --- the driver ---


@dataclass
class Job:
    """A job whose lanes do `without` a rule ("": with all of them). A context manager: leaving ends the lanes."""

    server: EmulatorProcess
    lanes: int
    without: str = ""
    samples: list[dict[str, float]] = field(default_factory=list)
    _attempts: int = 0

    def __enter__(self) -> Job:
        self.options = SinkOptions(
            load_url=self.server.load_url,
            query_url=self.server.query_url,
            database="shop",
            job=f"shop{self.lanes}{self.without}",
            delivery="at-least-once",  # the same positions again and again
            lanes=self.lanes,
            check_values=self.without != "values",
        )
        self.session = open_session(self.options, "k", str(self.options.job), "c")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["starrocks_txn_sink.sink.lanes", "starrocks_txn_sink.writer.assembling"])
        self._ends, self._processes = [], []
        for number in range(self.lanes):
            end, other = context.Pipe()
            process = context.Process(target=serve_lane, args=(number, self.without, other), daemon=True)
            process.start()
            self._ends.append(end)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):
            end.send(None)
            process.join()

    def measure(self, content: Content) -> dict[str, float]:
        """Write one micro-batch: its CPU seconds in lanes and driver, its wall seconds, and its labels."""
        turns = turns_of("local", "", "") if self.lanes > 1 and self.without != "turns" else None
        task = replace(self.session.lane_task(self.options, self._attempts, lanes=self.lanes), turns=turns)
        used = [0.0]

        def run_lanes(task: LaneTask) -> list[Message]:
            self._attempts += 1
            for end in self._ends:
                end.send((task, content, self._attempts))
            answers = [end.recv() for end in self._ends]
            used[0] += sum(seconds for _, seconds in answers)
            return [message for messages, _ in answers for message in messages]

        uncounted = mock.patch.object(RoundRunner, "_counted_tables", return_value=nullcontext())
        with uncounted if self.without == "threads" else nullcontext():
            cpu, wall = time.process_time(), time.perf_counter()
            written = write_shared(task, run_lanes, lambda *_: None, SystemClock())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        rows = sum(receipt.rows for receipt in written.receipts)
        if rows != content.rows:
            raise RuntimeError(f"{rows} rows were written in place of {content.rows}.")
        return {
            "cpu": cpu + used[0],
            "wall": wall,
            "refused": sum(receipt.retries for receipt in written.receipts),
            "labels": sum(receipt.attempts for receipt in written.receipts),
        }


def take_turns(server: EmulatorProcess, jobs: Sequence[Job], contents: Mapping[int, Content], rounds: int) -> None:
    """Measure each job once to warm up, then `rounds` times in turns, in another order each time."""
    for job in jobs:
        job.samples.clear()
    for number in range(-1, rounds):
        for job in random.Random(number).sample(jobs, len(jobs)):
            sample = job.measure(contents[job.lanes])
            if number >= 0:
                job.samples.append(sample)
        for table in TABLES:
            query(server, f"TRUNCATE TABLE shop.{table}")


def compared(of: Job, other: Job) -> dict[str, Any]:
    """The ratios of `of` to `other`, in one round each: least, median, greatest. Then medians and sums of both."""
    ratios, medians, sums = {}, {}, {}
    for name in ("cpu", "wall"):
        pairs = zip(of.samples, other.samples, strict=True)
        values = sorted(one[name] / another[name] for one, another in pairs)
        ratios[name] = [round(value, 3) for value in (values[0], statistics.median(values), values[-1])]
        seconds = [statistics.median(sample[name] for sample in job.samples) for job in (of, other)]
        medians[f"{name}_seconds"] = [round(value, 4) for value in seconds]
    for name in ("refused", "labels"):
        sums[name] = [sum(sample[name] for sample in job.samples) for job in (of, other)]
    return {**ratios, **medians, **sums}


def tell(title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    for name, figures in found.items():
        say(f"{title}, {name}: {json.dumps(figures)}")
    line(f"prices, {title}", {"figures": found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="rows,lines,small,lanes")
    choice = parser.parse_args()
    logging.disable(logging.CRITICAL)
    contents = {
        "rows": Content(choice.rows, 2, 2),
        "lines": Content(choice.rows, 2, 2, lines=True),
        "small": Content(400, 20, 2),
    }
    parts = choice.only.split(",")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmulatorProcess(home, Settings(cores=16)))
        for sql in ("CREATE DATABASE shop", *DDL):
            query(server, sql)
        jobs = [stack.enter_context(Job(server, 2, rule)) for rule in ("", *RULES)] if {*parts} & {*contents} else []
        for name in [name for name in contents if name in parts]:
            take_turns(server, jobs, {2: contents[name]}, choice.rounds)
            tell(name, {job.without: compared(jobs[0], job) for job in jobs[1:]})
        jobs = [stack.enter_context(Job(server, lanes)) for lanes in (1, 2, 4)] if "lanes" in parts else []
        for tables in (1, 20) if jobs else ():
            take_turns(
                server, jobs, {job.lanes: Content(choice.rows, tables, job.lanes) for job in jobs}, choice.rounds
            )
            tell(f"{tables} tables", {f"{job.lanes} lanes": compared(job, jobs[0]) for job in jobs[1:]})


if __name__ == "__main__":
    main()
