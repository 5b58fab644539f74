"""docs/operations: what leads there arrives, and what they say exists."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from starrocks_txn_ops import cli
from starrocks_txn_sink import errors
from starrocks_txn_sink.sink.failures import error_link
from tools.errors import CODES, EXPLAINED

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGE = (DOCS / "operations" / "runbook.md").read_text()
PAGES = "\n".join(file.read_text() for file in sorted((DOCS / "operations").glob("*.md")))
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yml"


def anchor(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text: str) -> list[str]:
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [anchor(heading) for heading in re.findall(r"^#{1,6} +(.+)$", plain, re.MULTILINE)]


def error_page(code: str) -> str:
    return (DOCS / "operations" / "errors" / f"{code}.md").read_text()


def test_every_error_code_has_a_page_and_no_other_code_has_one() -> None:
    assert {file.stem for file in (DOCS / "operations" / "errors").iterdir()} == set(CODES)
    assert set(CODES) >= {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")
    }


@pytest.mark.parametrize("code", CODES)
def test_the_page_of_an_error_has_what_it_is_cause_remedy_and_links(code: str) -> None:
    page = error_page(code)
    assert page.startswith(f"# Error `{code}`\n")
    assert code not in EXPLAINED or EXPLAINED[code].summary in page
    parts = re.findall(r"^\*\*(.+?)\.\*\* \S", page, re.MULTILINE)
    assert parts in (["Cause", "Remedy"], ["Cause", "Remedy", "More"])
    assert len(page.split()) < 250


@pytest.mark.parametrize("code", CODES)
def test_the_index_leads_to_the_page_of_an_error_and_has_its_anchor(code: str) -> None:
    assert PAGE.count(f'<a id="error-{code}"></a>[`{code}`](errors/{code}.md)') == 1


@pytest.mark.parametrize("code", CODES)
def test_the_block_of_a_failed_query_links_to_the_page(code: str) -> None:
    page = error_link(code).partition("/blob/main/")[2]
    assert (ROOT / page).read_text() == error_page(code)


def test_sections_are_told_apart() -> None:
    places = anchors(PAGE)
    assert len(places) == len(set(places))


def alert_names() -> list[str]:
    return re.findall(r"^\s*-?\s*alert:\s*\"?(\w+)", ALERTS.read_text(), re.MULTILINE) if ALERTS.exists() else []


@pytest.mark.parametrize("name", alert_names())
def test_every_alert_has_a_section(name: str) -> None:
    kebab = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.removeprefix("StarRocksSink").removeprefix("StarRocksTxnSink"))
    assert f"alert-{kebab.lower()}" in anchors(PAGE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("console") for line in block.splitlines() if "…" not in line]


@pytest.mark.parametrize("line", COMMANDS)
def test_documented_commands_parse(line: str) -> None:
    prompt, program, name, *words = shlex.split(line.partition(" > ")[0])
    assert (prompt, program) == ("$", cli.PROGRAM)
    command = next(command for command in cli.COMMANDS if command.name == name)
    parser = argparse.ArgumentParser()
    importlib.import_module(command.module).add_arguments(parser)
    parser.parse_args(words)


@pytest.mark.parametrize("snippet", blocks("python"))
def test_documented_python_uses_names_that_exist(snippet: str) -> None:
    tree = ast.parse(snippet)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(getattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_is_in_the_page(command: cli.Command) -> None:
    page = (DOCS / "operations" / "commands.md").read_text()
    assert re.search(rf"^\|.*\[`{command.name}`\]\(", page, re.MULTILINE)
