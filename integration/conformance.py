"""docs/inside/conformance.md: the rules of the wire contract that the contract suite checks, and where they hold.

    python -m integration.conformance --emulator emulator.xml [--real real.xml] [--rehearsals report.json …]

reads pytest's JUnit files, rehearses the emulator, and reads reports of rehearsals (docs/operations/rehearsal.md):
those of `tests/contract/rehearsals` and the named ones. The page says which servers were not run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starrocks_emulator.server import Emulator
from starrocks_emulator.settings import Generation, Settings
from starrocks_txn_ops.rehearsal.command import CHECKS, CLEARED, collect
from starrocks_txn_ops.rehearsal.findings import json_document
from starrocks_txn_ops.rehearsal.stage import Stage, Terms
from starrocks_txn_sink import SinkOptions
from tests.support import recordings
from tests.support.judgement import UNJUDGED, unjudged
from tests.support.recorded_cases import named_scenes, scenes

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "contract"
PAGE = ROOT / "docs" / "inside" / "conformance.md"
CONTRACT = ROOT / "docs" / "reference" / "wire-contract.md"
NOT_RUN = "not run"
REHEARSALS = SUITE / "rehearsals"
_SECTIONS = re.compile(r"wire contract (\d+(?:\.\d+)*(?:, \d+(?:\.\d+)*)*)", re.IGNORECASE)

_HEAD = """# Conformance

How many rules of [the wire contract](../reference/wire-contract.md) were seen to hold, and where: those that the sink
relies on, and those of the emulator's other clients (11, single mode).

- *emulator*: the package's own, in generations B (4.0.7 and later, 4.1) and C (newer patches). It follows the contract,
  and proves nothing of StarRocks.
- *real*: StarRocks 4.1.1 (ad83983, B), a frontend and one backend, asked on 28 November 2026. Its answers are recorded
  (`tests/contract/recordings`). No server of C, no cluster with several backends, and no shared data was asked.
- *frontend*: real ones of the same release, whose backends were doubles that count rows and keep none: what happens
  when leaders change and backends fail.

**The suites on the real server**, that day: 242 tests, of which 223 passed, 13 failed and 6 were left out. What failed
was a fault of the sink (2), another answer of the emulator or the contract (9), or a matter of the server's set-up (2);
[known faults](../reference/wire-contract.md#415-known-faults) has those of the server. Most of it has been mended
since, by these answers; **what was mended has not been run on a real server again**.

Made by `make conformance`; `make docs` renews the numbers.

## Recorded answers

*same*: the emulator gives the server's answer, with ids, labels and times as variables; *another*: it does not, for a
reason below the table. *judged*: the sink makes of the answer what the contract says.

{recordings}

## Rehearsal

What `starrocks-txn-sink rehearse` found by [its checks](../operations/rehearsal.md#what-it-looks-at): as expected, but
for

{rehearsal}

## Contract suite

Tests of `tests/contract`, by the chapter of the contract that they name first; their docstrings name the sections. The
emulator passes all. *real*: the recorded server gave the same answers to the rule's own requests.

{suite}
"""
_TESTED, _REHEARSED = ("passes", NOT_RUN), ("as expected", "as expected")
"""What the page's sentences say of emulator and real server."""

_ENTRY = re.compile(r"^- ([^(:]+?)(?: \(.*)?$")
_ANSWERS = re.compile(r"(?s)(?<=says\.\n\n)\| recording .*?(?=\n\n## Rehearsal)")
_CHAPTER = re.compile(r"^## (\d+) (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """One test of the suite: its name, and the sections of the wire contract that its docstring names.

    `recorded`: a real server's answers to its requests are recorded, in the scenes that the docstring names.
    """

    module: str
    name: str
    sections: tuple[str, ...]
    recorded: bool = False

    @property
    def text(self) -> str:
        return self.name.removeprefix("test_").replace("_", " ")


def rules() -> list[Rule]:
    """The suite's tests in their order."""
    return [rule for path in sorted(SUITE.glob("test_*.py")) for rule in _rules_of(path)]


def _rules_of(path: Path) -> Iterator[Rule]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole = _sections((ast.get_docstring(tree) or "").split("\n", 1)[0])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            docstring = ast.get_docstring(node) or ""
            yield Rule(path.stem, node.name, _sections(docstring) or whole, _is_recorded(node.name, docstring))


def _is_recorded(rule: str, docstring: str) -> bool:
    """Whether a real server has answered what `rule` asks; ValueError if a named scene is not recorded."""
    names = named_scenes(docstring)
    if missing := [name for name in names if name not in scenes()]:
        raise ValueError(f"{rule} names scenes that no recording of a real server has: {missing}")
    return bool(names) or "[R]" in docstring


def _sections(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(number for listed in _SECTIONS.findall(text) for number in listed.split(", ")))


def results(files: Iterable[Path]) -> dict[tuple[str, str], str]:
    """`passes`, `fails` or `skipped` for each (module, test), over all its parameters."""
    outcomes: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for case in ET.parse(file).getroot().iter("testcase"):
            module = case.get("classname", "").rsplit(".", 1)[-1]
            name = case.get("name", "").split("[", 1)[0]
            outcomes.setdefault((module, name), set()).add(_outcome(case))
    return {
        key: next(word for word in ("fails", "passes", "skipped") if word in words) for key, words in outcomes.items()
    }


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "fails"
    return "skipped" if "skipped" in kinds else "passes"


def rehearse_emulator() -> Iterator[dict[str, Any]]:
    """The reports of the emulator, one a generation."""
    for generation in Generation:
        with tempfile.TemporaryDirectory() as folder, Emulator(Path(folder), Settings(generation)) as emulator:
            options = SinkOptions(load_url=emulator.load_url, query_url=emulator.query_url, database="scratch")
            yield rehearsal_report(options, Terms(seconds=2.0, megabytes=1.0))


def rehearsal_report(options: SinkOptions, terms: Terms) -> dict[str, Any]:
    """The report of a rehearsal in the options' database."""
    began, start = time.time(), time.monotonic()
    with contextlib.closing(Stage(options, terms)) as stage:
        results = collect(stage, lambda _: None)
        return json_document(stage, results, began, time.monotonic() - start)


def rehearsal_table(reports: Iterable[Mapping[str, Any]]) -> str:
    """Verdicts by check: those of the emulator, and those of real servers."""
    verdicts: dict[tuple[str, bool], list[str]] = {}
    for report in reports:
        version = str(report["version"])
        for check in report["checks"]:
            real = not version.endswith("-emulator")
            verdicts.setdefault((str(check["check"]), real), []).append(f"{check['verdict']} ({version})")
    lines = (
        _line(check.name, (), _REHEARSED, [_joined(verdicts.get((check.name, real), ())) for real in (False, True)])
        for check in (*CHECKS, CLEARED)
    )
    return "\n".join(line for line in lines if ": " in line)


def _line(name: str, sections: Sequence[str], usual: Sequence[str], verdicts_by_server: Sequence[str]) -> str:
    """An entry of a list, with the verdicts of emulator and real server that are not the usual ones."""
    verdicts = [
        f"*{server}* {verdict}"
        for server, verdict, expected in zip(("emulator", "real"), verdicts_by_server, usual, strict=True)
        if verdict != expected
    ]
    places = f" ({', '.join(sections)})" if sections else ""
    return f"- {name}{places}" + (f": {'; '.join(verdicts)}" if verdicts else "")


def _joined(verdicts: Sequence[str]) -> str:
    """One word for equal verdicts, else each with its version."""
    words = {verdict.partition(" (")[0] for verdict in verdicts}
    if len(words) == 1:
        return words.pop()
    return "; ".join(verdicts) or NOT_RUN


def recordings_table() -> str:
    """Numbers of the recorded answers by file, and the reasons why some are not the emulator's, or not judged."""
    lines = ["| recording | server | records | same | another | judged | nothing to judge |", f"{'|---' * 7}|"]
    excused, silent, total = Counter[str](), Counter[str](), 0
    for path in recordings.recordings():
        document = recordings.read(path)
        answers = [record for _, record in recordings.records(document) if "answer" in record]
        excuses = Counter(record["excused"] for record in answers if "excused" in record)
        quiet = Counter(reason for record in answers if (reason := unjudged(record)) is not None)
        lines.append(_numbers(path.stem, document["mark"], len(answers), excuses.total(), quiet.total()))
        excused, silent, total = excused + excuses, silent + quiet, total + len(answers)
    lines.append(_numbers("all", "", total, excused.total(), silent.total()))
    lines += ["", _compared(), *(f"- not compared: {text}" for text in recordings.UNCOMPARED.values())]
    excuses_lines = [f"- another: {recordings.EXCUSES[name]} ({number})" for name, number in excused.most_common()]
    nothing = [f"- nothing to judge: {UNJUDGED[name]} ({number})" for name, number in silent.most_common()]
    return "\n".join([*lines, "", *excuses_lines, *nothing])


def _compared() -> str:
    """Numbers of the values and whole transactions of the real server that a test compares."""
    values = (recordings.FOLDER / "values-4.1.1.jsonl").read_text(encoding="utf-8").splitlines()
    scenes = recordings.read(recordings.FOLDER / "behaviour-4.1.1.json")["scenes"]
    steps = sum("loads" in step for scene in scenes for step in scene["steps"])
    return (
        f"Besides: what the real server kept of {len(values):,} pairs of a column type and a JSON value, with and "
        f"without `strict_mode`,\nand how {steps} transactions ended, with the rows of their tables. The emulator's "
        "differ in nothing.\n"
    )


def _numbers(name: str, server: str, total: int, excused: int, silent: int) -> str:
    return f"| {name} | {server} | {total} | {total - excused} | {excused} | {total - silent} | {silent} |"


def page(
    emulator: dict[tuple[str, str], str],
    real: dict[tuple[str, str], str],
    rehearsals: Iterable[Mapping[str, Any]] = (),
) -> str:
    """The page's text."""
    lines = [
        _line(
            rule.text,
            rule.sections,
            _TESTED,
            [results.get((rule.module, rule.name), NOT_RUN) for results in (emulator, real)],
        )
        for rule in rules()
    ]
    parts = {
        "recordings": recordings_table(),
        "rehearsal": rehearsal_table(rehearsals),
        "suite": suite_table(line for line in lines if ": " in line),
    }
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], _HEAD)


def suite_table(exceptions: Iterable[str]) -> str:
    """Numbers of rules by chapter, and of those that a real server has answered; then the lines of what differs."""
    titles = dict(_CHAPTER.findall(CONTRACT.read_text(encoding="utf-8")))
    numbers = Counter(_chapter(rule) for rule in rules())
    recorded = Counter(_chapter(rule) for rule in rules() if rule.recorded)
    rows = [
        f"| {chapter} {titles[chapter]} | {numbers[chapter]} | {recorded[chapter]} |"
        for chapter in sorted(numbers, key=int)
    ]
    head = ["| chapter | rules | real |", "|---|---|---|"]
    lines = "\n".join([*head, *rows, f"| all | {numbers.total()} | {recorded.total()} |"])
    return "\n\n".join(filter(None, (lines, "\n".join(exceptions))))


def _chapter(rule: Rule) -> str:
    return rule.sections[0].partition(".")[0]


def with_recordings(text: str) -> str:
    """The page with the numbers of the recordings and the suite as they are now; the runs of other servers stay."""
    text = _ANSWERS.sub(lambda _: recordings_table(), text)
    head, mark, suite = text.partition("\n| chapter ")
    names = {rule.text for rule in rules()}
    listed = (line for line in suite.splitlines() if (match := _ENTRY.match(line)) and match[1] in names)
    return f"{head}\n{suite_table(listed)}\n" if mark else text


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/inside/conformance.md from JUnit files.")
    parser.add_argument("--emulator", type=Path, nargs="*", default=[])
    parser.add_argument("--real", type=Path, nargs="*", default=[])
    parser.add_argument("--rehearsals", type=Path, nargs="*", default=[], help="reports of `rehearse --json`")
    args = parser.parse_args()
    files = sorted(REHEARSALS.glob("*.json")) + args.rehearsals
    reports = [*rehearse_emulator(), *(json.loads(file.read_text(encoding="utf-8")) for file in files)]
    PAGE.write_text(page(results(args.emulator), results(args.real), reports), encoding="utf-8")


if __name__ == "__main__":
    main()
