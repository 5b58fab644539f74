"""The conformance page: made of JUnit files, and never behind the suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration import conformance
from integration.conformance import (
    NOT_RUN,
    PAGE,
    Rule,
    page,
    recordings_table,
    rehearsal_table,
    results,
    rules,
    with_recordings,
)
from starrocks_txn_ops.rehearsal.command import CHECKS, CLEARED
from tests.support.recorded_cases import case, objection
from tests.support.recordings import read, recordings, records
from tools.__main__ import generate

JUNIT = """<testsuites><testsuite><testcase classname="tests.contract.test_contract_fate" name="test_a[B]"/>
<testcase classname="tests.contract.test_contract_fate" name="test_a[C]"><skipped/></testcase>
<testcase classname="tests.contract.test_contract_fate" name="test_b[B]"/>
<testcase classname="tests.contract.test_contract_fate" name="test_b[C]"><failure/></testcase>
</testsuite></testsuites>"""


def test_one_failure_is_a_failure_and_a_skipped_generation_is_none(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    assert results([file]) == {
        ("test_contract_fate", "test_a"): "passes",
        ("test_contract_fate", "test_b"): "fails",
    }


def test_what_was_not_run_is_named() -> None:
    first = rules()[0]
    text = page({(first.module, first.name): "passes"}, {(first.module, first.name): "fails"})
    assert f"- {first.text} ({', '.join(first.sections)}): *real* fails\n" in text
    assert text.count(f": *emulator* {NOT_RUN}\n") == len(rules()) - 1
    assert text.count(f": *emulator* {NOT_RUN}; *real* {NOT_RUN}\n") == len((*CHECKS, CLEARED))


def test_what_a_real_server_has_answered_is_named() -> None:
    recorded = {rule.text: rule.recorded for rule in rules()}
    assert recorded["only loads may be put"]
    assert recorded["a repeated commit is ok"]
    assert not recorded["a load answers bytes and no row counts"]


def test_the_numbers_follow_the_suite_and_verdicts_stay() -> None:
    right = PAGE.read_text(encoding="utf-8")
    suite, recorded = rules(), [rule for rule in rules() if rule.recorded]
    line = f"| all | {len(suite)} | {len(recorded)} |\n"
    assert line in right
    verdict = "\n- only loads may be put (1.1): *real* fails\n"
    assert with_recordings(right.replace(line, "| all | 1 | 1 |\n") + verdict) == right + verdict
    assert with_recordings(f"{right}\n- a rule that is gone (1.1): *real* fails\n") == right
    assert generate()["docs/inside/conformance.md"] == right


def test_the_recorded_answers_are_counted() -> None:
    answers = [record for path in recordings() for _, record in records(read(path)) if "answer" in record]
    total, excused = len(answers), sum("excused" in record for record in answers)
    judged_count = sum("judged" in record for record in answers)
    line = f"| all |  | {total} | {total - excused} | {excused} | {judged_count} | {total - judged_count} |"
    assert line in recordings_table()
    assert line in PAGE.read_text(encoding="utf-8")


def test_a_scene_that_is_not_recorded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "scenes", dict)
    with pytest.raises(ValueError, match="names scenes that no recording of a real server has"):
        rules()


def test_a_named_scene_has_a_request_of_the_rule() -> None:
    cases = [case("POST", "http://fe/api/transaction/commit", 200, {"Status": "OK", "Message": "x"})]
    assert objection("Wire contract 3.2 [R: a commit of two tables].", cases) is None
    assert "has none of" in str(objection("Wire contract 3.2 [R: auth].", cases))
    assert objection("Wire contract 3.2.", cases) is None


def test_reports_of_real_servers_fill_their_column() -> None:
    def report(version: str, verdict: str) -> dict[str, object]:
        return {"version": version, "checks": [{"check": "load.order", "verdict": verdict}]}

    emulator = [report(f"{version}-emulator", "as expected") for version in ("4.0.7", "4.1.5")]
    real = [report("4.0.13", "as expected"), report("4.1.1", "differs, harmless")]
    table = rehearsal_table([*emulator, *real])
    line = "- load.order: *real* as expected (4.0.13); differs, harmless (4.1.1)"
    assert line in table.splitlines()
    assert f"- load.lz4: *emulator* {NOT_RUN}; *real* {NOT_RUN}" in table.splitlines()


def test_nothing_fails_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    answers, _, lists = text.partition("## Rehearsal")
    for path in recordings():
        assert f"| {path.stem} | " in answers
    checks = [re.split(r" \(|: ", line[2:])[0] for line in lists.splitlines() if line.startswith("- ")]
    assert set(checks) <= {check.name for check in (*CHECKS, CLEARED)}
    assert "fails\n" not in text


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_each_rule_names_its_sections(rule: Rule) -> None:
    assert rule.sections
