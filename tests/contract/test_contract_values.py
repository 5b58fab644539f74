"""What a real server keeps of JSON values, and why it refuses them (wire contract 5.4, 5.7): the emulator agrees.

`recordings/values-4.1.1.jsonl` has a line for each pair of column type and value: type, the JSON text (long ones by
their length), what is kept or refused with `strict_mode`, and without where that is another. In reasons each number of
four digits and more is N.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import pytest
from pymysql.err import ProgrammingError

from tests.support.contract_client import Client
from tests.support.recordings import FOLDER

RECORDED = FOLDER / "values-4.1.1.jsonl"
HEADERS = {"strip_outer_array": "true", "max_filter_ratio": "1", "ignore_json_size": "true"}
UNREADABLE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""Halves of surrogate pairs: the emulator reads a body with one step by step, so they have a body of their own."""

Outcome: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """One recorded value of a column type."""

    kind: str
    text: str
    strict: Outcome
    lax: Outcome


def _recorded() -> list[Pair]:
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    return [Pair(kind, _text(sent), outcomes[0], outcomes[-1]) for kind, sent, *outcomes in lines]


def _text(sent: str | Mapping[str, int]) -> str:
    if isinstance(sent, str):
        return sent
    ((form, size),) = sent.items()
    return f'"{"a" * size}"' if form == "text" else _deep(size) if form == "nested" else f'"{_deep(size)}"'


def _deep(size: int) -> str:
    return "[" * size + "1" + "]" * size


pytestmark = pytest.mark.usefixtures("generation_b")
KINDS: dict[str, list[Pair]] = {kind: list(pairs) for kind, pairs in groupby(_recorded(), lambda pair: pair.kind)}


@pytest.fixture
def table(client: Client, kind: str) -> str:
    return client.table(f"id INT NOT NULL, v {kind}", "DUPLICATE KEY(id)")


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_kept_and_refused_as_on_the_recorded_server(
    client: Client, table: str, kind: str, real: bool
) -> None:
    """Wire contract 5.4, 5.7 [R]: with and without `strict_mode`; a real server gets each value alone, as then."""
    pairs = KINDS[kind]
    unreadable = [pair for pair in pairs if UNREADABLE.search(pair.text)]
    together = [[pair for pair in pairs if pair not in unreadable], unreadable]
    _compare(client, table, [[pair] for pair in pairs] if real else together)


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_values_in_loads_of_their_own_are_kept_and_refused_alike(client: Client, table: str, kind: str) -> None:
    """Wire contract 5.4, 5.7 [R]: each value in a body of its own, as they were recorded."""
    _compare(client, table, [[pair] for pair in KINDS[kind]])


def _compare(client: Client, table: str, bodies: Sequence[Sequence[Pair]]) -> None:
    different = [
        f"{pair.kind} {pair.text[:60]} {mode}: {there[place]} instead of {expected}"
        for pairs in bodies
        if pairs
        for mode in ("strict", "lax")
        for there in [_remembered(client, table, pairs, strict=mode == "strict")]
        for place, pair in enumerate(pairs)
        for expected in [getattr(pair, mode)]
        if there[place] != expected
    ]
    assert not different, "\n".join(different)


def _remembered(client: Client, table: str, pairs: Sequence[Pair], *, strict: bool) -> list[Outcome]:
    """The same, once more where the server has forgotten all ended loads meanwhile: beyond 1,000 it does (3.3)."""
    try:
        return _loaded(client, table, pairs, strict=strict)
    except ProgrammingError as error:
        if "There is no label named" not in str(error):
            raise
        return _loaded(client, table, pairs, strict=strict)


def _loaded(client: Client, table: str, pairs: Sequence[Pair], *, strict: bool) -> list[Outcome]:
    """What the server makes of each value, all in one body behind a good row."""
    kind = pairs[0].kind
    good = {"INT NOT NULL": 1, "VARCHAR(10) NOT NULL": "a"}.get(kind)
    texts = [f'{{"id":{place},"v":{pair.text}}}' for place, pair in enumerate(pairs)]
    body = ",".join([json.dumps({"id": -1, "v": good}), *texts]).encode()
    client.server.sql(f"TRUNCATE TABLE {client.server.database}.{table}")
    label = client.begin()
    client.loaded(label, table, b"[" + body + b"]", **HEADERS, strict_mode=str(strict).lower())
    assert client.commit(label).ok
    kept = {row[0]: row[1] for row in client.rows(table, f"id, {_shown(kind)}")}
    reasons = iter(client.reasons(label, table))
    return [
        {"kept": _as_text(kept[place])} if place in kept else {"refused": next(reasons)} for place in range(len(pairs))
    ]


def _shown(kind: str) -> str:
    if kind.startswith("VARBINARY"):
        return "hex(v)"
    if kind in ("FLOAT", "DOUBLE"):
        return "CAST(v AS VARCHAR(100))"
    if kind.startswith(("VARCHAR", "CHAR", "STRING")):
        return "if(length(v) > 100, concat('length ', length(v)), hex(v))"
    return "v"


def _as_text(value: Any) -> str | None:
    return None if value is None else str(int(value) if isinstance(value, bool) else value)[:120]
