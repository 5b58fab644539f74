"""What is carried from one micro-batch to the next when the assembler runs inside the lanes: states and row places.

Of a source partition that is its AssemblerState, and for each of its blobs the place where the rows are: a file of the
state's directory and the number of a record batch in it. A manifest has this for all source partitions after a
micro-batch. Manifests are JSON; rows are never in them, except for the content of small files (`inline`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from starrocks_txn_sink.assembler.counters import Counters
from starrocks_txn_sink.assembler.state import AssemblerState
from starrocks_txn_sink.errors import InputError

FORMAT: Final = 1


class Place(NamedTuple):
    """Where the rows of a blob are."""

    file: str
    number: int


@dataclass(frozen=True, slots=True)
class Carried:
    """One source partition between two micro-batches; `places` has every blob that `state` names."""

    state: AssemblerState = field(default_factory=AssemblerState)
    places: Mapping[int, Place] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state.to_json(), "blobs": [(number, *place) for number, place in self.places.items()]}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Carried:
        places = {number: Place(file, at) for number, file, at in value["blobs"]}
        return cls(AssemblerState.from_json(value["state"]), places)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is carried after micro-batch `batch` (-1: before the first); `query` wrote it."""

    batch: int = -1
    query: str = ""
    partitions: Mapping[str, Carried] = field(default_factory=dict)
    inline: Mapping[str, bytes] = field(default_factory=dict)

    def files(self) -> set[str]:
        """The files that have rows of open source transactions, those inside the manifest among them."""
        return {place.file for each in self.partitions.values() for place in each.places.values()}

    def levels(self) -> Counters:
        """The levels of all source partitions; no flows."""
        return sum((Counters().at(each.state) for each in self.partitions.values()), Counters())

    def then(
        self, batch: int, query: str, touched: Mapping[str, Carried], inline: Iterable[tuple[str, bytes]]
    ) -> Manifest:
        """The manifest after one more micro-batch, in which the source partitions `touched` had events."""
        after = Manifest(batch, query, {**self.partitions, **touched})
        files = after.files()
        known = {**self.inline, **dict(inline)}
        return Manifest(
            batch, query, after.partitions, {name: content for name, content in known.items() if name in files}
        )

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "batch": self.batch,
                "query": self.query,
                "partitions": {name: each.as_json() for name, each in self.partitions.items()},
                "inline": {name: base64.b64encode(content).decode() for name, content in self.inline.items()},
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """The manifest that `to_json` wrote; InputError when another format wrote it."""
        value = orjson.loads(text)
        if value.get("format") != FORMAT:
            raise InputError(
                "The fused assembler's state in the checkpoint has another format.",
                hint="Finish the query with the release that started it, then start it with a new checkpoint.",
            )
        return cls(
            value["batch"],
            value["query"],
            {name: Carried.of_json(each) for name, each in value["partitions"].items()},
            {name: base64.b64decode(content) for name, content in value["inline"].items()},
        )
