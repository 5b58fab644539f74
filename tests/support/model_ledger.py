"""The ledger's questions, answered from the model server: its rows arrive with the data, under the same label."""

from __future__ import annotations

from typing import Any

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.protocol.bound import BOUND, ReadBound, WriteBound
from starrocks_txn_sink.protocol.label import LedgerRequest
from starrocks_txn_sink.protocol.ledger import (
    ACCEPTED,
    DRIVER,
    MARKER,
    POSITION,
    ListUnfinished,
    ReadMarker,
    ReadOwner,
    ReadPositions,
    ReadTraces,
    WriteClaim,
    WriteMarker,
)
from tests.support.model_server import ModelServer

WRITES = (WriteClaim, WriteMarker, WriteBound)
_OWNER = ("token", "epoch", "checkpoint", "batch", "updated_at")
_POSITION = ("name", "position", "checkpoint", "batch", "label", "row_count", "digest")


class ModelLedger:
    """`protocol.label.Ledger` over a model server; answers go through the same reading as those of SQL."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._inserts = 0

    def execute(self, question: LedgerRequest, deadline: Deadline) -> Any:
        """Answer at once; what was inserted is visible when the answer comes."""
        del deadline
        if isinstance(question, WRITES):
            self._server.publish(self.insert(question))
            return None
        return self.read(question)

    def insert(self, question: WriteClaim | WriteMarker | WriteBound) -> str:
        """Commit what `question` changes; returns the name that `publish` of the server makes it visible by."""
        self._inserts += 1
        name = f"insert {self._inserts}"
        sql, values = question.statement("model")
        columns = sql[sql.index("(") + 1 : sql.index(")")].split(", ")
        row = dict(zip(columns, (*values, f"{self._server.now:.3f}"), strict=True))  # the last column is now()
        if isinstance(question, WriteBound):  # a job has one, whatever its name
            row["bound"], row["name"] = row["name"], ""
        self._server.store.insert(row, name)
        return name

    def read(self, question: LedgerRequest) -> Any:
        """The answer to a question that changes nothing, from what is visible now."""
        ledger = self._server.store.ledger
        rows: list[tuple[object, ...]] = []
        match question:
            case ListUnfinished():
                rows = [(label,) for label in self._server.unfinished()]
            case ReadMarker(job, scope, token):
                row = ledger.get((job, MARKER, scope))
                rows = [(int(row is not None and row["token"] == token),)]
            case ReadOwner(job, kind):
                rows = [_columns(row, _OWNER) for key, row in ledger.items() if key[:2] == (job, kind)]
            case ReadTraces(job, checkpoint):
                kinds = {POSITION: None, DRIVER: None, MARKER: ACCEPTED}
                traces = [
                    row
                    for key, row in ledger.items()
                    if row.get("checkpoint") == checkpoint
                    or (key[0] == job and key[1] in kinds and kinds[key[1]] in (None, key[2]))
                ]
                rows = [(row["kind"], row.get("token")) for row in traces]
            case ReadPositions(job):
                rows = [_columns(row, _POSITION) for key, row in ledger.items() if key[:2] == (job, POSITION)]
            case ReadBound(job):
                row = ledger.get((job, BOUND, ""))
                age = 0 if row is None else int(self._server.now) - int(float(row["updated_at"]))
                rows = [] if row is None else [(row["bound"], row["token"], row["batch"], age)]
        return question.result(rows)


def _columns(row: dict[str, Any], names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(row.get(name) for name in names)
