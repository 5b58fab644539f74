"""What verified assembling remembers of a source between micro-batches: a header, and blobs of events that wait."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import orjson

from starrocks_txn_sink.errors import InputError

FORMAT: Final = 1
REMEMBERED: Final = 10_000  # ids of settled transactions, so that what is repeated of them is known


@dataclass(frozen=True, slots=True)
class HeldBlob:
    """Events that wait, as one Arrow stream under `number`."""

    number: int
    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """`last_position` is that of the last transaction handed on; `oldest` when the oldest event of a transaction
    arrived that does not add up yet.

    `settled` and `quarantined` are the newest ids of transactions that were handed on (or repeated), and given up.
    `snapshots` counts what was handed on of a snapshot before the first transaction, `letters` the quarantined units.
    """

    last_position: int | None = None
    blobs: tuple[HeldBlob, ...] = ()
    next_blob: int = 0
    oldest: float | None = None
    settled: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    snapshots: int = 0
    letters: int = 0

    def expires_at(self, open_timeout: float | None) -> float | None:
        """When (seconds since the epoch) to look again."""
        return self.oldest + open_timeout if self.oldest is not None and open_timeout is not None else None

    def to_json(self) -> str:
        return orjson.dumps({"format": FORMAT, **asdict(self)}).decode()

    @classmethod
    def from_json(cls, text: str) -> VerifiedState:
        """The state that `to_json` wrote; InputError when another format wrote it."""
        value = orjson.loads(text)
        if value.pop("format", None) != FORMAT:
            raise InputError(
                "The assembler's state in the checkpoint has another format.",
                hint="Finish the query with the release that started it, then start it with a new checkpoint.",
            )
        value["blobs"] = tuple(HeldBlob(**each) for each in value["blobs"])
        value["settled"], value["quarantined"] = tuple(value["settled"]), tuple(value["quarantined"])
        return cls(**value)


def remembered(known: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """`known` and `more`, the newest REMEMBERED of them."""
    return tuple(dict.fromkeys([*known, *more]))[-REMEMBERED:]
