"""The benchmarks' own tools: what is measured is what was used, and a program that needs no Spark runs to its end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import RUNS
from benchmarks.summary import FIGURES, PAGE, benchmark_lines, summary
from tests.support.depth import scaled

ROOT = Path(__file__).parents[3]

FAMILY = """
import json, subprocess, sys
from benchmarks.family import Family

busy = "import sys, time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\nsys.stdin.read()"
family = Family()
before = family.look().python
child = subprocess.Popen([sys.executable, "-c", busy, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
family.look()
alive = {"used": family.python - before, "rss": family.workers_rss}
child.communicate()
family.look()
print(json.dumps([alive, {"used": family.python - before, "rss": family.workers_rss}]))
"""


def run(*command: str) -> Any:
    """What a program of its own prints last: this one may have processes of other tests."""
    process = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=True,
        timeout=800,
        cwd=ROOT,
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.deep
@pytest.mark.parametrize("tables", [(), ("--keyed",)])
def test_a_large_source_transaction_grows_a_worker_by_little_more_than_its_buffers(tables: tuple[str, ...]) -> None:
    """400 MB into two busy tables and a rare one, whose rows once kept every Arrow batch in memory; buffers 24 MiB."""
    size = ("--megabytes", "400", "--row-bytes", "10000", "--rare-every", "200")
    assert run("-m", "benchmarks.memory", *size, *tables)["growth"] < 124


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cores", ["1", "2", "16"])
def test_nothing_goes_wrong_at_a_budget_of_threads_with_bad_rows(cores: str) -> None:
    size = ("--micro-batches", str(scaled(20)), "--bad", "0.02")
    figures = run("-m", "benchmarks.scan_threads", "--cores", cores, *size)
    wrong = {"failed", "repeated", "lost", "doubled", "not_dead", "dead", "misjudged", "unread"}
    assert wrong.isdisjoint(figures)
    assert figures["dead_letters"] == figures["bad_rows"] > 0


@pytest.mark.deep
@pytest.mark.timeout(300)  # a gigabyte takes 15 s on quiet cores, and more than a minute beside other tests
@pytest.mark.parametrize(
    ("arguments", "growth"),
    [(("--megabytes", "1000"), 700), (("--megabytes", "100", "--transactions", "100000", "--open"), 500)],
)
def test_a_worker_grows_within_bounds_by_debeziums_transactions(arguments: tuple[str, ...], growth: int) -> None:
    """Kept in memory a transaction is twice its size and more, because it is copied when it is released."""
    assert run("-m", "benchmarks.debezium_memory", *arguments)["growth"] < growth


def test_what_a_process_used_counts_on_after_its_end() -> None:
    alive, ended = run("-c", FAMILY)
    assert alive["used"] >= 0.25
    assert alive["rss"] > 1 << 20
    assert ended["used"] >= alive["used"]
    assert ended["rss"] == 0


def test_the_summary_has_a_line_for_each_figure_in_one_order() -> None:
    titles = dict.fromkeys(figure.benchmark for figure in FIGURES)
    of_titles: dict[str, dict[str, dict[str, float]]] = {
        title: {f.path[0]: {} for f in FIGURES if f.benchmark == title} for title in titles
    }
    for number, figure in enumerate(FIGURES):
        of_titles[figure.benchmark][figure.path[0]][figure.path[1]] = number + 0.5
    printed = [json.dumps({"benchmark": title, **of}) + "\n" for title, of in of_titles.items()]
    lines = [*summary(benchmark_lines(["a table\n", *reversed(printed)]))]
    for number, (figure, line) in enumerate(zip(FIGURES, lines, strict=True)):
        assert line.startswith(figure.name)
        assert f" {number + 0.5} {figure.unit}".rstrip() in line
        assert f"on {figure.measured_on}" in line
    lines = [*summary(benchmark_lines(printed[1:]))]
    lost = [figure.benchmark == next(iter(titles)) for figure in FIGURES]
    assert ["not measured" in line for line in lines] == lost


def test_each_figure_of_the_summary_is_printed_by_a_program_that_runs_and_compared_by_the_page() -> None:
    programs = "".join((ROOT / "benchmarks" / f"{run.split()[0]}.py").read_text("utf-8") for run in RUNS)
    programs += (ROOT / "benchmarks" / "measure.py").read_text("utf-8")
    page = (ROOT / PAGE).read_text("utf-8")
    sections = {heading_id(text) for text in page.splitlines() if text.startswith("#")}
    for figure in FIGURES:
        assert f'"{figure.benchmark}"' in programs
        assert f'"{figure.path[0]}"' in programs or figure.benchmark == "freshness"  # 1 or 60 partitions
        assert figure.section in sections


def heading_id(heading: str) -> str:
    """What a link to a heading ends in."""
    words = re.sub(r"[^\w\s-]", "", heading.lstrip("# ").lower())
    return words.replace(" ", "-")


def test_a_server_of_a_benchmark_does_not_count() -> None:
    for line in run("-c", FAMILY, "benchmarks.null_server"):
        assert line["used"] < 0.25
        assert line["rss"] == 0


@pytest.mark.deep
def test_the_cost_of_metrics_is_measured() -> None:
    figures = run("-m", "benchmarks.metrics", "--rows", "2000", "--rounds", "1")
    assert (figures["benchmark"], figures["rows"]) == ("metrics", 2000)
    assert figures["lane_cpu_seconds"] > 0


@pytest.mark.parametrize("tables", [(), pytest.param(("--keyed",), marks=pytest.mark.deep)])
def test_a_rare_table_keeps_no_batches_of_the_busy_ones_in_memory(tables: tuple[str, ...]) -> None:
    """25 MB of it are the buffers; with each row of the rare table as a slice of its batch it is 100 MB more."""
    size = ("--megabytes", "150", "--row-bytes", "1000", "--rare-every", "2000")
    assert run("-m", "benchmarks.memory", *size, "--buffer", "16", *tables)["growth"] < 124
