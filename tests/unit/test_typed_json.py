"""The codec of states and messages: what is written is read back, with the types of the dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import orjson
import pytest

from starrocks_txn_sink import typed_json


@dataclass(frozen=True, slots=True)
class Leaf:
    number: int
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Tree:
    KIND: ClassVar[str] = "tree"
    first: Leaf
    maybe: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    pairs: tuple[tuple[int, str], ...] = ()
    mixed: tuple[str, Leaf] | None = None
    named: Mapping[str, Leaf] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    plain: dict[str, list[int]] = field(default_factory=dict)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(Leaf(1)),
        Tree(
            Leaf(1, b"\x00\xff"),
            Leaf(2),
            (Leaf(3), Leaf(4)),
            ((5, "five"),),
            ("six", Leaf(6, b"6")),
            {"seven": Leaf(7)},
            {"eight": b"8"},
            {"nine": [9]},
        ),
    ],
)
def test_what_is_written_is_read_back(tree: Tree) -> None:
    assert typed_json.read(Tree, orjson.loads(typed_json.dumps(tree))) == tree
    assert typed_json.read(Tree, orjson.loads(typed_json.dumps(typed_json.fields_of(tree)))) == tree


def test_members_of_other_releases_are_left_out_and_missing_ones_have_their_defaults() -> None:
    assert typed_json.read(Leaf, {"later": 1}, number=2) == Leaf(2)
    with pytest.raises(TypeError):
        typed_json.read(Leaf, {"content": ""})


def test_a_value_that_json_has_not_is_no_text() -> None:
    with pytest.raises(TypeError):
        typed_json.dumps({"set": {1}})
