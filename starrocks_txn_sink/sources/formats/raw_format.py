"""The seam between raw messages and events: what a lane or a stage needs of a format, and what a format gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from starrocks_txn_sink.protocol.snapshots import Marks, beside
from starrocks_txn_sink.protocol.source_keys import SourceKey
from starrocks_txn_sink.rows.places import IN_KAFKA

OnMalformed = Literal["fail", "drop"]
OnTruncate = Literal["fail", "ignore"]
Reader = Literal["spark", "librdkafka"]

VALUE: Final = "value"
KEY: Final = "key"
MESSAGE_KEY: Final = "message_key"
"""The message's key in a frame that has it as bytes or text, for its names alone; KEY has what rows are read from."""
SOURCE_PARTITION: Final = "source_partition"
POSITION: Final = "position"
SOURCE_TIME: Final = "source_time"
"""The commit's time at the source, in milliseconds since the Unix epoch; for rules, which take the column away."""

MALFORMED_HINT: Final = 'Correct the source, or pass on_malformed="drop" to lose such values.'


@dataclass(frozen=True, slots=True)
class ParsedMessages:
    """The events of a batch of messages, in order, and the number of malformed messages that were dropped.

    A message that is neither, such as a tombstone, was passed over. `schemas` has the converter's schemas (JSON) of the
    messages of each StarRocks table, as far as they have any. `truncates` counts the source's TRUNCATEs that were
    ignored, by StarRocks table. `marks` say how far the source's first snapshot is (`protocol.snapshots`), and `keys`
    under which keys the rows came.
    """

    events: pa.Table
    malformed: int
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict)
    truncates: Mapping[str, int] = field(default_factory=dict)
    marks: Marks = field(default_factory=dict)
    keys: frozenset[SourceKey] = frozenset()

    @classmethod
    def joined(cls, parts: Sequence[ParsedMessages]) -> ParsedMessages:
        """The events of `parts`, which follow each other in one batch."""
        schemas: dict[str, list[str]] = {}
        truncates, marks = Counter[str](), dict[str, str]()
        for part in parts:
            for table, texts in part.schemas.items():
                schemas[table] = list(dict.fromkeys([*schemas.get(table, ()), *texts]))
            truncates.update(part.truncates)
            marks = beside(marks, part.marks)
        malformed = sum(part.malformed for part in parts)
        keys = frozenset[SourceKey]().union(*(part.keys for part in parts))
        return cls(pa.concat_tables([part.events for part in parts]), malformed, schemas, truncates, marks, keys)


class RawFormat(Protocol):
    """A format of raw messages."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of a frame that `parse` reads, by the name that each has in a batch.

        VALUE is always one of them. A frame may lack MESSAGE_KEY, and then a batch lacks it (`columns_in`).
        SOURCE_PARTITION and POSITION are among them if the message's place gives them; the events have them from the
        value otherwise.
        """

    @property
    def events(self) -> pa.Schema:
        """The columns of the events, those that their assembler reads. A column of `columns` keeps the frame's type."""

    @property
    def on_malformed(self) -> OnMalformed:
        """`fail` at a malformed message, or `drop` it and count it."""

    @property
    def keeps_unchanged(self) -> bool:
        """Whether rows may leave values out because they did not change (`rows.unchanged`)."""

    @property
    def encodes_bytes(self) -> bool:
        """Whether the source's bytes come as texts that stand for them."""

    @property
    def reader(self) -> Reader:
        """`spark` reads the messages, or with `librdkafka` the lanes do."""

    def parse(self, batch: pa.RecordBatch, keep: tuple[str, ...] = ()) -> ParsedMessages:
        """The events of a batch, with the columns `keep` of their messages.

        Raises InputError for the first malformed message under `fail`. The error names its place, never its content.
        """


def columns_in(messages: RawFormat, texts: Container[str]) -> dict[str, str]:
    """The columns that a format reads of a frame with these columns of `texts`: MESSAGE_KEY only if it is one."""
    return {name: column for name, column in messages.columns.items() if name != MESSAGE_KEY or column in texts}


def further_places(columns: Mapping[str, str], there: Collection[str]) -> tuple[str, ...]:
    """Kafka's columns of a frame in which a format finds the place of a message in its value, for errors."""
    is_needed = POSITION not in columns and {*IN_KAFKA} <= {*there}
    return tuple(name for name in IN_KAFKA if is_needed and name not in columns)


def is_placed(messages: RawFormat) -> bool:
    """Whether source partition and position are columns, so that messages can be sorted before they are parsed."""
    return SOURCE_PARTITION in messages.columns and POSITION in messages.columns


def place_of(batch: pa.RecordBatch, number: int, names: Iterable[str]) -> dict[str, Any]:
    """The values of the columns `names` in message `number` of a batch, for errors."""
    place = {name: batch.column(name)[number].as_py() for name in names}
    return {name: "NULL" if value is None else value for name, value in place.items()}


def place_text(place: Mapping[str, Any]) -> str:
    """A place at the end of an error's text; empty without a place."""
    return " at" + "".join(f" {name}={value}" for name, value in place.items()) if place else ""
