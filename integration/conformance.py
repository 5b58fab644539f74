"""docs/inside/conformance.md: every rule of the wire contract that the contract suite checks, and where it holds.

    python -m integration.conformance --emulator emulator.xml [--real real.xml] [--rehearsals report.json …]

reads pytest's JUnit files, rehearses the emulator, and reads reports of rehearsals (docs/operations/rehearsal.md). The
page says which servers were not run.
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
from starrocks_txn_sink import SinkOptions
from starrocks_txn_sink.operations.rehearsal.command import CHECKS, CLEARED, collect
from starrocks_txn_sink.operations.rehearsal.findings import json_document
from starrocks_txn_sink.operations.rehearsal.stage import Stage, Terms
from tests.support import recordings
from tests.support.judgement import UNJUDGED, unjudged
from tests.support.recorded_cases import named_scenes, scenes

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "tests" / "contract"
PAGE = ROOT / "docs" / "inside" / "conformance.md"
NOT_RUN = "not run"
_SECTIONS = re.compile(r"wire contract (\d+(?:\.\d+)*(?:, \d+(?:\.\d+)*)*)", re.IGNORECASE)

_HEAD = """# Conformance

What the sink relies on, what other clients of the emulator do (the rules of 11 and of single mode), and where it was
seen to hold. Each line is a test of `tests/contract`; sections are those of
[the wire contract](../reference/wire-contract.md), which was read from StarRocks' sources, documentation and recorded
replies. *emulator* is the one of this package, in its generations B (4.0.7 and later, 4.1) and C (newer patches);
*frontend* is a real frontend of StarRocks 4.1.1, whose answers are recorded (`tests/contract/recordings`); *real* is
StarRocks in a container, or a user's cluster by a rehearsal's report ([rehearsal.md](../operations/rehearsal.md)).

The frontend's backends were doubles, which count rows and keep none, so it says nothing of bodies, formats, what is
filtered and what is shown. The real columns are filled by `make integration` where a Docker engine is, and by reports;
**so far no row has been loaded into a real StarRocks**. So a "passes" without "recorded" says that the emulator follows
the contract as we read it, not that StarRocks does. 4.1.1 is of generation B: no real frontend was asked what only C
does.

Made by `make conformance`; a test keeps the lists up to date, and `make docs` the recorded answers and the column
*frontend*.

## Recorded answers

What the frontend was asked, and what it answered. *same*: the emulator gives the same answer, with ids, labels and
times as variables; *another*: it gives another one, for one of the reasons below the table. *judged*: the sink makes of
the answer what the contract says.

{recordings}

## Rehearsal

What `starrocks-txn-sink rehearse` found.

{rehearsal}

## Contract suite

| rule | sections | emulator | frontend | real |
|---|---|---|---|---|
"""
_ANSWERS = re.compile(r"(?s)(?<=says\.\n\n)\| recording .*?(?=\n\n## Rehearsal)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One test of the suite: its name, and the sections of the wire contract that its docstring names.

    `recorded`: a real frontend's answers to its requests are recorded, in the scenes that the docstring names.
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
            yield Rule(
                path.stem, node.name, _sections(docstring) or whole, _is_recorded(node.name, named_scenes(docstring))
            )


def _is_recorded(rule: str, named: Sequence[str]) -> bool:
    """Whether a frontend has answered what `rule` asks; ValueError if a named scene is not recorded."""
    if missing := [name for name in named if name not in scenes()]:
        raise ValueError(f"{rule} names scenes that no recording of a frontend has: {missing}")
    return bool(named)


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
    lines = ["| check | sections | emulator | real |", "|---|---|---|---|"]
    for check in (*CHECKS, CLEARED):
        cells = (_joined(verdicts.get((check.name, real), ())) for real in (False, True))
        lines.append(f"| {check.name} | {', '.join(check.sections)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _joined(verdicts: Sequence[str]) -> str:
    """One word for equal verdicts of the emulator, else each with its version."""
    words = {verdict.partition(" (")[0] for verdict in verdicts}
    if len(words) == 1 and all(verdict.endswith("-emulator)") for verdict in verdicts):
        return words.pop()
    return "; ".join(verdicts) or NOT_RUN


def recordings_table() -> str:
    """Numbers of the recorded answers by file, and the reasons why some are not the emulator's, or not judged."""
    lines = ["| recording | records | same | another | judged | nothing to judge |", "|---|---|---|---|---|---|"]
    excused, silent, total = Counter[str](), Counter[str](), 0
    for path in recordings.recordings():
        document = recordings.read(path)
        if document["mark"] != "frontend":
            continue
        found = [record for _, record in recordings.records(document) if "answer" in record]
        excuses = Counter(record["excused"] for record in found if "excused" in record)
        quiet = Counter(reason for record in found if (reason := unjudged(record)) is not None)
        lines.append(_numbers(path.stem, len(found), excuses.total(), quiet.total()))
        excused, silent, total = excused + excuses, silent + quiet, total + len(found)
    lines.append(_numbers("all", total, excused.total(), silent.total()))
    another = [f"- another: {recordings.EXCUSES[name]} ({number})" for name, number in excused.most_common()]
    nothing = [f"- nothing to judge: {UNJUDGED[name]} ({number})" for name, number in silent.most_common()]
    return "\n".join([*lines, "", *another, *nothing])


def _numbers(name: str, total: int, excused: int, silent: int) -> str:
    return f"| {name} | {total} | {total - excused} | {excused} | {total - silent} | {silent} |"


def page(
    emulator: dict[tuple[str, str], str],
    real: dict[tuple[str, str], str],
    rehearsals: Iterable[Mapping[str, Any]] = (),
) -> str:
    """The page's text."""
    lines = []
    for rule in rules():
        key = (rule.module, rule.name)
        frontend = "recorded" if rule.recorded else "–"
        cells = (rule.text, ", ".join(rule.sections), emulator.get(key, NOT_RUN), frontend, real.get(key, NOT_RUN))
        lines.append("| " + " | ".join(cells) + " |")
    head = _HEAD.replace("{recordings}", recordings_table()).replace("{rehearsal}", rehearsal_table(rehearsals))
    return head + "\n".join(lines) + "\n"


_ROW = re.compile(
    r"^\| (?P<rule>[^|]+) \| (?P<sections>[\d., ]+) \| (?P<emulator>[^|]+)"
    r" \| (?P<frontend>recorded|–) \| (?P<real>[^|]+) \|$"
)


def with_recordings(text: str) -> str:
    """The page with numbers and the column *frontend* as the recordings are now; the runs of other servers stay."""
    marks = {rule.text: "recorded" if rule.recorded else "–" for rule in rules()}
    text = _ANSWERS.sub(lambda _: recordings_table(), text)
    return "\n".join(_remarked(line, marks) for line in text.split("\n"))


def _remarked(line: str, marks: Mapping[str, str]) -> str:
    match = _ROW.match(line)
    if match is None:
        return line
    cells = (match["rule"], match["sections"], match["emulator"], marks.get(match["rule"], "–"), match["real"])
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/inside/conformance.md from JUnit files.")
    parser.add_argument("--emulator", type=Path, nargs="*", default=[])
    parser.add_argument("--real", type=Path, nargs="*", default=[])
    parser.add_argument("--rehearsals", type=Path, nargs="*", default=[], help="reports of `rehearse --json`")
    args = parser.parse_args()
    reports = [*rehearse_emulator(), *(json.loads(file.read_text(encoding="utf-8")) for file in args.rehearsals)]
    PAGE.write_text(page(results(args.emulator), results(args.real), reports), encoding="utf-8")


if __name__ == "__main__":
    main()
