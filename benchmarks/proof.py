"""Is `verify` right, and what does it cost: a real source database under steady traffic, the emulator as the server.

    python -m benchmarks.proof [--source postgres] [--tables 50] [--rows 1000000] [--runs 20] [--rate 50]
                               [--minutes 60] [--only runs,bytes,faults,kills] [--rows-per-second N]
                               [--output proof.json]

Debezium, Kafka and `sync` copy the tables (and five small ones: a column of each type, no primary key, two shards)
while a writer commits. Then

1. the freshness of the job is measured without `verify`, and during all of its runs: the time from a commit at the
   source until a reader of StarRocks sees it;
2. `verify` runs so many times: each must find all tables equal. One more run counts the bytes of both connections, and
   one client reads all rows of both sides, for the ratio;
3. faults are planted, in rounds: each must be found, named and repaired, and nothing else may be reported; the next run
   must find all equal;
4. while a repair of 4,000 rows in two tables holds the job, each process is killed by SIGKILL in turn: the repair,
   `sync`, Kafka Connect, Kafka, the source, the emulator; it starts again, the repair is repeated, and all must be
   equal.

`--only` runs some of these parts: `runs` (1, and the equal runs of 2), `bytes`, `faults`, `kills`. It ends after
`--minutes` with what it has by then. All parts share the machine. Needs PostgreSQL or MariaDB, and what `make servers`
fetches; without them it says so and fails. The exit code is 0 if nothing was wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import line, say, where
from benchmarks.proof_faults import false_reports, faults, found
from benchmarks.proof_world import PARTS, QUIET, Run, World, read_all, running
from starrocks_txn_sink.protocol.ledger import DRIVER, HOLD, LEDGER_TABLE
from tests.cdc.mariadb import NoMariaDB
from tests.cdc.postgres import NoPostgres
from tests.kafka.jars import NoMaven
from tests.support.waiting import wait_until

_HELD = re.compile(r"The job was held for ([\d.]+) s")
_REPAIR = ("--repair", "--yes")
_PARTS = ("runs", "bytes", "faults", "kills")
_LOST = 2_000
"""Rows of a table that a repair writes when something is killed: enough for a hold that lasts."""
_REST = 16
"""Runs that the program behind the equal ones takes as long as: the costs, the faults, the kills."""
Figures = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=("postgres", "mariadb"), default="postgres")
    parser.add_argument("--tables", type=int, default=50, help="at least 5 (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of all tables together (default %(default)s)")
    parser.add_argument("--runs", type=int, default=20, help="of verify on equal tables (default %(default)s)")
    parser.add_argument("--rate", type=float, default=50, help="transactions a second (default %(default)s)")
    parser.add_argument("--window", type=float, default=60, help="seconds of freshness before (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="the program's end (default %(default)s)")
    parser.add_argument("--rows-per-second", type=int, default=0, help="verify's own bound in the runs (default: none)")
    parser.add_argument("--only", default=",".join(_PARTS), help="parts, in their order (default %(default)s)")
    parser.add_argument("--output", type=Path, help="a file for the figures as JSON")
    arguments = parser.parse_args()
    if not {*arguments.only.split(",")} <= {*_PARTS}:
        parser.error(f"--only is {arguments.only!r}; the parts are {', '.join(_PARTS)}")
    if arguments.tables < 5:
        parser.error("--tables is less than 5")
    size = {name: getattr(arguments, name) for name in ("source", "tables", "rows", "rate", "rows_per_second", "only")}
    figures: Figures = {**size, "measured": "real database, emulator", "complete": False, "wrong": []}
    began = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:7.1f} s  {text}")

    with tempfile.TemporaryDirectory(prefix="proof-", ignore_cleanup_errors=True) as folder:
        try:
            place = (arguments.source, arguments.tables, arguments.rows, arguments.rate, arguments.minutes)
            with running(*place, Path(folder), tell) as world:
                figures["rows"] = world.rows * len(world.tables)
                _prove(world, arguments, figures, tell)
        except (AssertionError, RuntimeError, TimeoutError, subprocess.SubprocessError) as failed:
            figures["wrong"].append(f"it ended early: {str(failed)[-2000:]}")
    figures["seconds"] = round(time.monotonic() - began, 1)
    _table(figures)
    line("proof", figures)
    if arguments.output:
        arguments.output.write_text(json.dumps(figures | {"where": where()}, indent=1) + "\n", encoding="utf-8")
    return bool(figures["wrong"])


def _prove(world: World, arguments: argparse.Namespace, figures: Figures, tell: Any) -> None:
    tell("the snapshot is in StarRocks; a first verify waits for the job")
    first = world.run()
    figures["first"] = {"exit_code": first.code, "seconds": round(first.seconds, 1)}
    _judge(first, 0, figures, "the first run", world)
    parts = arguments.only.split(",")
    if "runs" in parts:
        _freshness_before(world, arguments.window, figures)
        tell(f"freshness before: {figures['freshness']['before']}")
        _equal_runs(world, arguments, _REST if len(parts) > 1 else 2, figures, tell)
        tell(f"freshness during: {figures['freshness']['during']}")
    if "bytes" in parts:
        _cost(world, figures)
        tell(f"bytes of one run {figures['bytes']}; all rows: {figures['read_all']}")
    if "faults" in parts:
        _faults(world, figures, tell)
    if "kills" in parts:
        _kills(world, figures, tell)
    figures["complete"] = "runs" not in parts or len(figures["verify"]["runs"]) == arguments.runs


def _judge(run: Run, code: int, figures: Figures, name: str, world: World) -> None:
    world.check()
    if run.code != code or not run.passed:
        passed = "" if run.passed else ", at a position that the job had not passed"
        figures["wrong"].append(f"{name} ended with {run.code}, not {code}{passed}: {run.messages[-500:]}")


def _freshness_before(world: World, seconds: float, figures: Figures) -> None:
    low = time.time()
    time.sleep(min(seconds, max(0.0, world.left)))
    high = time.time()
    time.sleep(min(5.0, max(0.0, world.left)))  # until the last of them are seen
    figures["freshness"] = {"before": world.reader.freshness(world.traffic.sent, low, high)}


def _equal_runs(world: World, arguments: argparse.Namespace, rest: int, figures: Figures, tell: Any) -> None:
    """So many runs, as long as there is time for the rest of the program, which takes as long as `rest` runs."""
    done: list[Figures] = []
    figures["verify"] = {"asked": arguments.runs, "runs": done}
    low = time.time()
    for number in range(arguments.runs):
        if done and world.left < rest * done[-1]["seconds"]:
            tell(f"no time for more than {number} runs")
            break
        run = world.run("--rows-per-second", str(arguments.rows_per_second))
        wrong = false_reports((), run)
        done.append({"seconds": round(run.seconds, 2), "exit_code": run.code, "passed": run.passed, "wrong": wrong})
        figures["wrong"] += wrong
        _judge(run, 0, figures, f"run {number + 1}", world)
        tell(f"run {number + 1}: {done[-1]}")
    high = time.time()
    time.sleep(min(5.0, max(0.0, world.left)))
    figures["freshness"]["during"] = world.reader.freshness(world.traffic.sent, low, high)
    figures["verify"]["equal"] = sum(run["exit_code"] == 0 and not run["wrong"] for run in done)
    figures["verify"]["seconds"] = round(statistics.median(run["seconds"] for run in done), 2) if done else None


def _cost(world: World, figures: Figures) -> None:
    before = [proxy.count for proxy in world.proxies]
    run = world.run(file=world.counted)
    _judge(run, 0, figures, "the run whose bytes are counted", world)
    counts = (proxy.count - count for proxy, count in zip(world.proxies, before, strict=True))
    figures["bytes"] = dict(zip(("source", "starrocks"), counts, strict=True))
    all_rows = figures["read_all"] = read_all(world)
    seconds = sum(side["seconds"] for side in all_rows.values())
    bytes_ = sum(side["bytes"] for side in all_rows.values())
    figures["ratio"] = {
        "seconds": round((figures.get("verify", {}).get("seconds") or run.seconds) / seconds, 3),
        "bytes": round(sum(figures["bytes"].values()) / bytes_, 5),
    }


def _faults(world: World, figures: Figures, tell: Any) -> None:
    results: list[Figures] = []
    figures["faults"] = results
    for number, planted in enumerate(faults(world), 1):
        for fault in planted:
            fault.plant(world)
        seen = world.run()
        world.check()
        wrong = false_reports(planted, seen)
        figures["wrong"] += [f"round {number}: {text}" for text in wrong]
        low = time.time()
        mended = world.run(*_REPAIR, "--delete-others", r"elsewhere\..*")
        high = time.time()
        _judge(mended, 0, figures, f"the repair of round {number}", world)
        after = world.run()
        _judge(after, 0, figures, f"the run behind round {number}", world)
        figures["wrong"] += [f"behind round {number}: {text}" for text in false_reports((), after)]
        held = [float(seconds) for seconds in _HELD.findall(mended.messages)]
        for fault in planted:
            tables = {*fault.finds, *fault.lacks}
            equal = all(after.tables.get(table, {}).get("status", "equal") == "equal" for table in tables)
            results.append({"fault": fault.name, "found": found(fault, seen), "repaired": equal, "round": number})
            if not (results[-1]["found"] and equal):
                figures["wrong"].append(f"{fault.name}: {results[-1]}")
        time.sleep(2.0)
        figures.setdefault("repairs", []).append(
            {
                "seconds": round(mended.seconds, 1),
                "held": held,
                "keys": sum(table["missing"] + table["extra"] + table["different"] for table in mended.tables.values()),
                "freshness": world.reader.freshness(world.traffic.sent, low, high),
            }
        )
        tell(f"round {number}: {figures['repairs'][-1]}, reported and not so: {wrong}")


def _kills(world: World, figures: Figures, tell: Any) -> None:
    """SIGKILL of each process in turn, while a repair of two tables holds the job; then the repair again."""
    kills: list[Figures] = []
    figures["kills"] = {"of": kills}
    words = ("--table", "|".join(QUIET))
    for part in ("the repair", *PARTS):
        for table in QUIET:
            world.warehouse.ask(f"DELETE FROM shop.{table} WHERE id <= {_LOST}")
        process = world.command(*_REPAIR, *words, "--hold", "10")
        held = _holds(world, process)
        if part == "the repair":
            process.kill()
        else:
            world.kill(part)
        messages = process.communicate(timeout=max(1.0, world.left))[1]
        world.revive()
        repaired = world.run(*_REPAIR, *words)
        _judge(repaired, 0, figures, f"the repair behind the kill of {part}", world)
        kills.append({"killed": part, "in_a_hold": held, "its_repair": process.returncode, "again": repaired.code})
        if not held:
            figures["wrong"].append(f"no hold before the kill of {part}: {messages[-300:]}")
        tell(f"kills: {kills[-1]}")
    after = world.run()
    _judge(after, 0, figures, "the run behind the kills", world)
    wrong = false_reports((), after)
    figures["wrong"] += [f"behind the kills: {text}" for text in wrong]
    figures["kills"]["equal"] = after.code == 0 and not wrong
    tell(f"behind the kills all is equal: {figures['kills']['equal']}")


def _holds(world: World, process: subprocess.Popen[str]) -> bool:
    """Whether the command holds the job, before it ends."""
    held = f"SELECT 1 FROM shop.{LEDGER_TABLE} WHERE kind = '{DRIVER}' AND epoch = '{HOLD}'"
    with suppress(AssertionError):
        wait_until(
            lambda: world.warehouse.ask(held), max(1.0, world.left), "no hold", alive=lambda: process.poll() is None
        )
        return True
    return False


def _table(figures: Figures) -> None:
    verify, all_rows = figures.get("verify", {}), figures.get("read_all", {})
    say(f"\nproof ({where()}): {figures['source']}, emulator; {figures['tables']} tables, {figures['rows']:,} rows")
    if "equal" in verify:
        say(f"equal found equal      {verify['equal']} of {len(verify['runs'])} runs, {verify['seconds']} s each")
    for side, read in all_rows.items():
        of_all = f"{read['bytes']:,}, {read['seconds']} s"
        say(f"bytes, {side:16}{figures['bytes'][side]:,}; all rows with one client {of_all}")
    if "ratio" in figures:
        ratio = figures["ratio"]
        say(f"ratio to all rows      {ratio['seconds']} of the time, {ratio['bytes']} of the bytes")
    for when, ages in figures.get("freshness", {}).items():
        cut = f"p50 {ages.get('p50')}, p99 {ages.get('p99')} s"
        say(f"freshness {when:13}{cut}, {ages['beats']} transactions, load {ages['load']}")
    for number, repair in enumerate(figures.get("repairs", ()), 1):
        took = f"{repair['seconds']} s, held {repair['held']} s, freshness {repair['freshness']}"
        say(f"repair {number}: {repair['keys']:,} keys, {took}")
    for fault in figures.get("faults", ()):
        seen = "found" if fault["found"] else "NOT FOUND"
        say(f"{fault['fault']:58}{seen}, {'repaired' if fault['repaired'] else 'NOT REPAIRED'}")
    kills = figures.get("kills", {})
    for kill in kills.get("of", ()):
        say(f"kill of {kill['killed']:15}in a hold: {kill['in_a_hold']}; the repair again ended with {kill['again']}")
    say(f"equal behind the kills {kills.get('equal', 'not run')}")
    for text in figures["wrong"]:
        say(f"WRONG: {text}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (NoMaven, NoPostgres, NoMariaDB) as missing:
        sys.exit(f"proof: not run. {missing}")
