"""Runs that take turns: rows per second, CPU seconds and memory of each; medians, a table, a JSON line."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.family import Family

Work = Callable[[], object]


@dataclass(slots=True)
class Sample:
    """One run; CPU and memory are of the JVM and of the Python workers together."""

    seconds: float
    cpu_seconds: float
    python_cpu_seconds: float
    python_rss_growth: int


@dataclass(slots=True)
class Variant:
    """Something to run; `rows` of it go through each time."""

    name: str
    rows: int
    work: Work
    prepare: Work = lambda: None
    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in self.samples))

    @property
    def rate(self) -> float:
        """Rows per second, the median round's."""
        return self.rows / self.median("seconds")

    @property
    def per_cpu(self) -> float:
        """Rows per CPU second."""
        return self.rows / max(self.median("cpu_seconds"), 1e-9)


def take_turns(variants: list[Variant], rounds: int) -> None:
    """Run each variant once to warm up, then `rounds` times in turns, another one first each time."""
    for variant in variants:
        variant.prepare()
        variant.work()
    for number in range(rounds):
        for variant in variants[number % len(variants) :] + variants[: number % len(variants)]:
            variant.prepare()
            variant.samples.append(measure_once(variant.work))


def measure_once(work: Work) -> Sample:
    """Run `work` and see what this process's tree used; `work` itself runs in this process."""
    family, over = Family().look(), threading.Event()
    whole, python, rss = family.whole, family.python, family.workers_rss
    peak = [rss]

    def watch() -> None:
        while not over.wait(0.2):
            peak[0] = max(peak[0], family.look().workers_rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    over.set()
    watcher.join()
    family.look()
    return Sample(seconds, family.whole - whole, family.python - python, peak[0] - rss)


def report(title: str, variants: list[Variant], **further: Any) -> None:
    """Print the table, ratios against the first variant, and one JSON line."""
    table(title, variants)
    line(title, figures(variants) | further)


def table(title: str, variants: list[Variant]) -> None:
    """Print a row for each variant; ratios are against the first."""
    first = variants[0]
    say(f"\n{title} ({where()})")
    say(f"{'':44}{'k rows/s':>10}{'ratio':>8}{'k rows/CPU s':>14}{'Python CPU s/M':>16}{'Python RSS +MB':>16}")
    for variant in variants:
        python = variant.median("python_cpu_seconds") / variant.rows * 1e6
        grown = variant.median("python_rss_growth") / 1e6
        say(
            f"{variant.name:44}{variant.rate / 1000:10.0f}{variant.rate / first.rate:8.2f}"
            f"{variant.per_cpu / 1000:14.0f}{python:16.2f}{grown:16.0f}"
        )


def figures(variants: list[Variant]) -> dict[str, Any]:
    """What the table shows, for programs; `in_turns` has ratios against the first variant, of one round each."""
    first = variants[0]
    return {
        variant.name: {
            "in_turns": {
                "rows_per_second": _in_turns(first, variant, "seconds"),
                "cpu_seconds_a_row": _in_turns(variant, first, "cpu_seconds"),
            },
            "rows_per_second": round(variant.rate),
            "rows_per_cpu_second": round(variant.per_cpu),
            "ratio": round(variant.rate / variants[0].rate, 3),
            "cpu_ratio": round(variant.per_cpu / variants[0].per_cpu, 3),
            "python_cpu_seconds_per_million": round(variant.median("python_cpu_seconds") / variant.rows * 1e6, 3),
        }
        for variant in variants
    }


def _in_turns(above: Variant, below: Variant, name: str) -> list[float]:
    """The least, the median and the greatest ratio of a row's share, of two runs in one round."""
    pairs = zip(above.samples, below.samples, strict=True)
    ratios = sorted(getattr(a, name) / above.rows / (getattr(b, name) / below.rows) for a, b in pairs)
    return [round(ratio, 3) for ratio in (ratios[0], statistics.median(ratios), ratios[-1])]


def line(title: str, figures: Mapping[str, Any]) -> None:
    """One line of JSON."""
    say(json.dumps({"benchmark": title, "where": where(), **figures}))


def where() -> str:
    """The commit and the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return f"commit {commit or '?'}, {os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
