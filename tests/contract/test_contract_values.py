"""What a real server keeps of JSON values, and why it refuses them (wire contract 5.4, 5.7): the emulator agrees.

`recordings/values-4.1.1.jsonl` has a line for each pair of column type and value: type, the JSON text (long ones by
their length), what is kept or refused with `strict_mode`, and without where that is another. In reasons each number of
four digits and more is N. `recordings/members-4.1.1.jsonl` has bodies, loaded one after the other into a table of k,
v and s: the body, its headers, and "OK", how many rows were filtered, or -1 where the whole body was not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import pytest

from starrocks_emulator.sql.session import QuerySession
from starrocks_emulator.sql.statements import run
from starrocks_emulator.tables.store import NO_ROWS, CommitRejected, Store
from tests.support.recordings import FOLDER
from tests.support.store_setup import load, rows, with_tables

MEMBERS = FOLDER / "members-4.1.1.jsonl"
KEPT_OF_MEMBERS = [
    *((1, None, None), (2, None, None), (4, 1, None), (5, None, None), (6, None, None), (7, None, "a"), (8, 1, None)),
    *((9, 1, None), (10, 2, None), (16, None, None), (18, 3, None), (19, 7, "z"), (20, 6, None), (21, 1, None)),
    *((23, None, "\0"), (29, None, None)),
]
OPERATIONS = {"2": 9, "-1": 9, "1": None, '"1"': None, "1.0": None}
"""`__op` as it was sent → what is in the column then; others are filtered."""
RECORDED = FOLDER / "values-4.1.1.jsonl"
HEADERS = {"format": "json", "strip_outer_array": "true", "max_filter_ratio": "1"}
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


KINDS: dict[str, list[Pair]] = {kind: list(pairs) for kind, pairs in groupby(_recorded(), lambda pair: pair.kind)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = with_tables(Store(tmp_path_factory.mktemp("values")))
    yield opened
    opened.close()


@pytest.fixture
def table(store: Store, kind: str) -> Iterator[str]:
    run(store, QuerySession(), f"CREATE TABLE test.kept (k INT NOT NULL, v {kind}) DUPLICATE KEY(k)")
    yield "kept"
    run(store, QuerySession(), "DROP TABLE test.kept")


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_kept_and_refused_as_on_the_recorded_server(store: Store, table: str, kind: str) -> None:
    """Wire contract 5.4, 5.7 [R]: with and without `strict_mode`."""
    pairs = KINDS[kind]
    alone = [[pair for pair in pairs if UNREADABLE.search(pair.text)]]
    _compare(store, table, [[pair for pair in pairs if not UNREADABLE.search(pair.text)], *alone])


@pytest.mark.deep
@pytest.mark.parametrize("kind", KINDS)
def test_values_in_loads_of_their_own_are_kept_and_refused_alike(store: Store, table: str, kind: str) -> None:
    """Wire contract 5.4, 5.7 [R]: each value in a body of its own."""
    _compare(store, table, [[pair] for pair in KINDS[kind]])


def test_bodies_are_read_and_refused_as_on_the_recorded_server(store: Store) -> None:
    """Wire contract 5.4, 4.7 [R]: members that are missing, unknown, twice; what is no JSON."""
    ddl = "CREATE TABLE test.members (k INT NOT NULL, v INT DEFAULT '7', s VARCHAR(10)) PRIMARY KEY(k)"
    run(store, QuerySession(), ddl)
    different = []
    for line in MEMBERS.read_text(encoding="utf-8").splitlines():
        content, headers, expected = json.loads(line)
        found = _outcome(store, content, headers)
        if found != expected:
            different.append(f"{content!r} {headers}: {found} instead of {expected}")
    assert not different, "\n".join(different)
    assert rows(store, "SELECT * FROM members ORDER BY k") == KEPT_OF_MEMBERS
    assert _outcome(store, b'[{"k":40,"s":"\xff\xfe"}]', {}) == -1


def _outcome(store: Store, content: str | bytes, headers: Mapping[str, str]) -> str | int:
    sent = content if isinstance(content, bytes) else content.encode()
    common = {"format": "json", "strip_outer_array": "true", "strict_mode": "true"}
    try:
        load(store, "members", sent, headers={**common, **headers})
    except CommitRejected as rejected:
        return rejected.filtered or -1
    return "OK"


def test_operations_are_whole_numbers(store: Store) -> None:
    """Wire contract 5.6 [R]: 1 deletes, any other number does not; names, truth values and null filter the row."""
    run(store, QuerySession(), "CREATE TABLE test.operations (k INT NOT NULL, v INT NOT NULL) PRIMARY KEY(k)")
    headers = {"format": "json", "strip_outer_array": "true", "strict_mode": "true"}
    for sent in ("2", '"1"', "-1", "1.0", '"upsert"', '"delete"', "true", "null", '"x"', "1"):
        load(store, "operations", [{"k": 9, "v": 1}], headers=headers)
        content = f'[{{"k":9,"v":9,"__op":{sent}}}]'
        if sent in OPERATIONS:
            load(store, "operations", content, headers=headers)
            kept = OPERATIONS[sent]
            assert rows(store, "SELECT v FROM operations") == ([] if kept is None else [(kept,)]), sent
        else:
            with pytest.raises(CommitRejected, match=NO_ROWS):
                load(store, "operations", content, headers=headers)


def _compare(store: Store, table: str, bodies: Sequence[Sequence[Pair]]) -> None:
    different = [
        f"{pair.kind} {pair.text[:60]} {mode}: {there[place]} instead of {expected}"
        for pairs in bodies
        if pairs
        for mode in ("strict", "lax")
        for there in [_loaded(store, table, pairs, strict=mode == "strict")]
        for place, pair in enumerate(pairs)
        for expected in [getattr(pair, mode)]
        if there[place] != expected
    ]
    assert not different, "\n".join(different)


def _loaded(store: Store, table: str, pairs: Sequence[Pair], *, strict: bool) -> list[Outcome]:
    """What the emulator makes of each value, all in one body behind a good row."""
    kind = pairs[0].kind
    good = {"INT NOT NULL": 1, "VARCHAR(10) NOT NULL": "a"}.get(kind)
    texts = [f'{{"k":{place},"v":{pair.text}}}' for place, pair in enumerate(pairs)]
    body = ",".join([json.dumps({"k": -1, "v": good}), *texts])
    run(store, QuerySession(), f"TRUNCATE TABLE test.{table}")
    logs = len(store.tracking_logs.all())
    load(store, table, f"[{body}]", headers={**HEADERS, "strict_mode": str(strict).lower()})
    kept = {row[0]: row[1] for row in rows(store, f"SELECT k, {_shown(kind)} FROM {table} WHERE k >= 0")}
    lines = iter(store.tracking_logs.all()[-1].lines if len(store.tracking_logs.all()) > logs else ())
    return [
        {"kept": _as_text(kept[place])} if place in kept else {"refused": _reason(next(lines))}
        for place in range(len(pairs))
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


def _reason(line: str) -> str:
    """The first line of a reason, as it was recorded."""
    first = line.split("Row:")[0].split("\n")[0].strip().removeprefix("Error: ")
    return re.sub(r"\b\d{4,}\b", "N", first)[:400]
