"""What README.md and the quick starts say is true: commands parse, imports resolve, both print one pipeline."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from starrocks_demo.command import add_arguments
from starrocks_txn_ops import cli
from starrocks_txn_ops.sync.settings import parse_sync
from tests.support.quick_start import blocks, rows_of, statements

ROOT = Path(__file__).parents[3]
STARTS = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs" / "start").glob("*.md"))
PAGES = ["README.md", *STARTS]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
WITH_EVENTS = ("docs/start/kafka.md", "docs/start/files.md")


def commands(page: str) -> list[str]:
    return [line[2:].split("#")[0].strip() for block in blocks(page, "console") for line in block.splitlines()]


def test_the_two_commands_come_first() -> None:
    assert commands("README.md")[:2] == ["make demo", "make test"]


def test_the_readme_is_short() -> None:
    lines = TEXTS["README.md"].partition("\n[demo]: ")[0].splitlines()
    assert len(lines) <= 105


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|\$ )make ([a-z]+)\b", "".join(TEXTS.values())))))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("words", re.findall(r'make\s+demo\s+ARGS="([^"]*)"', "".join(TEXTS.values())))
def test_documented_demo_options_exist(words: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.parse_args(words.split())


def test_documented_commands_parse() -> None:
    own_commands = [command for page in PAGES for command in commands(page) if command.startswith(cli.PROGRAM)]
    assert own_commands
    for name, *words in (shlex.split(command)[1:] for command in own_commands):
        command = next(command for command in cli.COMMANDS if command.name == name)
        parser = argparse.ArgumentParser()
        importlib.import_module(command.module).add_arguments(parser)
        parser.parse_args(words)


@pytest.mark.parametrize("page", [page for page in STARTS if blocks(page, "python")])
def test_python_imports_only_names_that_exist(page: str) -> None:
    *_, snippet = blocks(page, "python")  # the last block is the pipeline
    imported = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.ImportFrom)]
    own_imports = [node for node in imported if (node.module or "").startswith("starrocks_txn_sink")]
    assert own_imports or '"starrocks_txn_sink"' in snippet
    for node in own_imports:
        module = importlib.import_module(node.module or "")
        for alias in node.names:
            assert getattr(module, alias.name)


@pytest.mark.parametrize("page", WITH_EVENTS)
def test_the_events_are_json_and_their_rows_too(page: str) -> None:
    events = [json.loads(line) for line in blocks(page, "json")[0].splitlines()]
    assert {event["type"] for event in events} == {"BEGIN", "DATA", "END"}
    assert all(json.loads(event["row"]) for event in events if event["type"] == "DATA")


def test_the_readme_prints_what_the_quick_starts_run() -> None:
    """Tests of tests/cdc and tests/kafka run the quick starts as printed."""
    (printed,), (program,) = blocks("README.md", "python"), blocks("docs/start/debezium.md", "python")
    run = {ast.unparse(node) for node in ast.parse(program).body}
    sink, *statements = ast.parse(printed).body
    assert [ast.unparse(node) for node in statements if ast.unparse(node) not in run] == []
    assert any(ast.unparse(sink).partition(", ")[2] in line for line in run)
    codes = re.findall(r"`((?:subscribe=|\w+Assembly\().*?)`(?=[ :|])", TEXTS["README.md"])
    assert len(codes) == 4
    pages = "".join(TEXTS[page] for page in STARTS)
    assert [code for code in codes if code not in pages] == []


def test_the_readme_prints_the_file_of_sync_without_what_is_optional(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (short,), (whole,) = blocks("README.md", "toml"), blocks("docs/start/database.md", "toml")
    short_file, whole_file = tomllib.loads(short), tomllib.loads(whole)
    assert short_file == {section: whole_file[section] for section in short_file}
    assert set(whole_file) - set(short_file) == {"tables", "routes"}
    monkeypatch.setenv("STARROCKS_PASSWORD", "x")
    parse_sync(short)


def test_links_of_the_readme_lead_to_files() -> None:
    """They are relative: a build makes them absolute for the package index, which `.ci/package` looks at."""
    links = dict(re.findall(r"^\[([\w.-]+)\]: (\S+)$", TEXTS["README.md"], re.MULTILINE))
    assert set(links) == set(re.findall(r"\]\[([\w.-]+)\]", TEXTS["README.md"]))
    assert "](" not in TEXTS["README.md"]
    for link in links.values():
        assert (ROOT / link.partition("#")[0]).is_file(), link


def test_the_shown_run_was_right() -> None:
    assert "RIGHT: every source transaction" in blocks("docs/start/demo.md", "text")[0]


def test_blocks_are_read_as_they_are_printed() -> None:
    assert statements("CREATE DATABASE a;\n\nUSE a;\n") == ["CREATE DATABASE a", "USE a"]
    assert rows_of("a  b\n1  x\n2  y\n") == [["1", "x"], ["2", "y"]]
