"""What the README says is true: its commands exist, their options parse, its links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from starrocks_demo.command import add_arguments
from starrocks_txn_sink import cli

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line[2:].split("#")[0].strip() for block in blocks("console") for line in block.splitlines()]


def test_the_two_commands_come_first() -> None:
    assert commands()[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`|\$ )make ([a-z]+)\b", README))))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("words", re.findall(r'make demo ARGS="([^"]*)"', README))
def test_documented_demo_options_exist(words: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.parse_args(words.split())


def test_documented_commands_parse() -> None:
    ours = (command.removeprefix(".venv/bin/") for command in commands())
    found = [shlex.split(command)[1:] for command in ours if command.startswith(cli.PROGRAM)]
    assert found
    for name, *words in found:
        command = next(command for command in cli.COMMANDS if command.name == name)
        parser = argparse.ArgumentParser()
        importlib.import_module(command.module).add_arguments(parser)
        parser.parse_args(words)


def test_python_imports_only_names_that_exist() -> None:
    (snippet,) = blocks("python")
    imported = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imported if (node.module or "").startswith("starrocks_txn_sink")]
    assert ours
    for node in ours:
        module = importlib.import_module(node.module or "")
        for alias in node.names:
            assert getattr(module, alias.name)


def test_the_event_example_is_json() -> None:
    events = [json.loads(line) for block in blocks("json") for line in block.splitlines()]
    assert [event["type"] for event in events] == ["BEGIN", "DATA", "END"]


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).is_file()


def test_the_shown_run_was_right() -> None:
    assert any("RIGHT: every source transaction" in block for block in blocks("text"))
