"""What a lane sends its driver: one tagged union, one encoder, one decoder.

A lane that ends well sends its receipts and then its report; a lane that assembles also sends its CarryOver. A lane
whose rows must be sorted first sends a Complaint and nothing else. Each message is a line of JSON with its `kind`.

A lane that fails has to fail its Spark task, or Spark would not run the task again. Of a failed task PySpark gives the
driver the text of the error and nothing else: the error object stays on the executor, and Spark drops the accumulators
of failed tasks. So the report of a failed lane travels in that text, in an envelope: a note behind the error, one line
with a version and base64 of compressed JSON, whose checksum notices a cut. Only this module writes and reads it. Spark
shows the line as the last one of the task's traceback; the package itself shows and logs codes, never that text.
"""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
import pyarrow as pa

from starrocks_txn_sink.assembler.model import Counters
from starrocks_txn_sink.assembler.spill import CarriedState
from starrocks_txn_sink.events import Event
from starrocks_txn_sink.lane.receipt import Receipt, receipt_of
from starrocks_txn_sink.lane.report import LaneReport

MESSAGES: Final = "message string"
"""The schema of what a lane's task yields, a row a message, as Spark reads it."""

_COLUMN: Final = pa.schema([pa.field("message", pa.string())])
_OPEN, _CLOSE = "[starrocks_txn_sink/1:", "]"


@dataclass(frozen=True, slots=True)
class CarryOver:
    """What a lane that assembles leaves open, by source partition, and what its assembler counted and noticed.

    `inline` has the content of small files of the state. A `small` lane would have taken its events in any order;
    `malformed` values were left out (`on_malformed="drop"`).
    """

    partitions: Mapping[str, CarriedState] = field(default_factory=dict)
    flows: Counters = field(default_factory=Counters)
    notices: tuple[Event, ...] = ()
    inline: Mapping[str, bytes] = field(default_factory=dict)
    small: bool = False
    malformed: int = 0

    def fields(self) -> dict[str, Any]:
        """All of it as JSON's types; `of` reads them back."""
        return {
            "partitions": {name: each.as_json() for name, each in self.partitions.items()},
            "flows": self.flows.as_dict(),
            "notices": [(notice.name, notice.fields) for notice in self.notices],
            "inline": {name: base64.b64encode(content).decode() for name, content in self.inline.items()},
            "small": self.small,
            "malformed": self.malformed,
        }

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> CarryOver:
        return cls(
            {name: CarriedState.of_json(each) for name, each in fields["partitions"].items()},
            Counters(**fields["flows"]),
            tuple(Event(name, values) for name, values in fields["notices"]),
            {name: base64.b64decode(content) for name, content in fields["inline"].items()},
            fields["small"],
            fields["malformed"],
        )


@dataclass(frozen=True, slots=True)
class Complaint:
    """The lane's rows are not in order: it has rolled back, and `why` says what it met."""

    why: str


Message = Receipt | LaneReport | CarryOver | Complaint
Chosen = TypeVar("Chosen", Receipt, LaneReport, CarryOver, Complaint)

_KINDS: Final = {Receipt: "receipt", LaneReport: "report", CarryOver: "carried", Complaint: "complaint"}
_READ: Final[dict[str, Callable[[dict[str, Any]], Message]]] = {
    "receipt": receipt_of,
    "report": LaneReport.of,
    "carried": CarryOver.of,
    "complaint": lambda fields: Complaint(**fields),
}


def encode(message: Message) -> str:
    """One line of JSON."""
    fields = message.fields() if isinstance(message, CarryOver) else message
    return orjson.dumps({"kind": _KINDS[type(message)], "fields": fields}).decode()


def decode(line: str) -> Message:
    """The message in a line of `encode`. Raises ValueError, KeyError or TypeError for a line that is none."""
    value = orjson.loads(line)
    return _READ[value["kind"]](value["fields"])


def encoded(messages: Iterable[Message]) -> pa.RecordBatch:
    """The messages as a batch of MESSAGES."""
    return pa.RecordBatch.from_arrays([pa.array([*map(encode, messages)], pa.string())], schema=_COLUMN)


def of_kind(messages: Iterable[Message], kind: type[Chosen]) -> list[Chosen]:
    """Those of `messages` that are of one kind."""
    return [message for message in messages if isinstance(message, kind)]


# --- in the text of an error ---


def envelope(report: LaneReport) -> str:
    """The report as a line for the text of an error."""
    return f"{_OPEN}{base64.b64encode(zlib.compress(encode(report).encode())).decode()}{_CLOSE}"


def report_in(text: str) -> LaneReport | None:
    """The report in an error's text, as it came from an executor; None when there is none or it cannot be read."""
    for part in text.split(_OPEN)[1:]:
        content, closed, _ = part.partition(_CLOSE)
        with contextlib.suppress(ValueError, KeyError, TypeError, zlib.error):  # cut, or of another version
            message = decode(zlib.decompress(base64.b64decode(content, validate=True)).decode()) if closed else None
            if isinstance(message, LaneReport):
                return message
    return None
