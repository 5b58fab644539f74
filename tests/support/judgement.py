"""What the sink makes of a recorded answer, in a word or two: the product judges, this module names the judgement.

`python -m tests.support.judgement FILE…` writes the judgements into recordings that were sent in.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql.err

from starrocks_txn_sink.errors import QueryRefused, StarRocksSinkError
from starrocks_txn_sink.http.transport import read_load_state, read_reply
from starrocks_txn_sink.protocol.label import Label, RetryPolicy, Steps, Wait, begin, commit, load, roll_back
from starrocks_txn_sink.protocol.turns import TurnRequest
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from starrocks_txn_sink.sql.failures import may_pass, typed_error
from tests.support import recordings

_LABEL = Label("d", "l")
_POLICY = RetryPolicy()
_RNG = random.Random(0)


UNJUDGED = {
    "done": "The statement was done: there is no refusal to judge.",
    "foreign": "The sink sends no such request.",
    "waits": "No real server was asked yet.",
    "double": "A double of a backend answered, whose body is not recorded.",
}
"""Why there is nothing to judge about an answer."""


def unjudged(record: Mapping[str, Any]) -> str | None:
    """Why there is nothing to judge about the record's answer (`UNJUDGED`); None if the sink judges it."""
    if "answer" not in record:
        return "waits"
    answer = record["answer"]
    if "statement" in record:
        return None if "error" in answer else "done"
    if _operation(record["request"]["path"]) is None:
        return "foreign"
    return None if "body" in answer else "double"


def judged(record: Mapping[str, Any]) -> str | None:
    """The judgement of the record's answer; None if there is nothing to judge."""
    if unjudged(record) is not None:
        return None
    answer = record["answer"]
    if "statement" in record:
        return _sql(answer)
    operation = _operation(record["request"]["path"])
    assert operation is not None
    return "redirected" if answer["status"] == 307 else _http(operation, answer)


def _operation(path: str) -> Operation | None:
    last = path.partition("?")[0].rpartition("/")[2].lower()
    return next((operation for operation in Operation if operation.value == last), None)


def _http(operation: Operation, answer: Mapping[str, Any]) -> str:
    body = answer["body"]
    content = (body if isinstance(body, str) else json.dumps(_numbers(body))).encode()
    try:
        if operation is Operation.LOAD_STATE:
            reply = read_load_state(answer["status"], content)
            return reply.state.value if reply.state else reply.status.value
        return _step(operation, read_reply(answer["status"], content))
    except StarRocksSinkError as error:
        return type(error).__name__


def _steps(operation: Operation) -> Steps[Any]:
    if operation is Operation.BEGIN:
        return begin(_LABEL, {})
    if operation is Operation.LOAD:
        return load(_LABEL, "t", [], {}, _POLICY, _RNG)
    return commit(_LABEL, _POLICY, _RNG) if operation is Operation.COMMIT else roll_back(_LABEL, _POLICY, _RNG)


def _step(operation: Operation, reply: Reply) -> str:
    """What the sink does next after `reply`."""
    steps = _steps(operation)
    if isinstance(next(steps), TurnRequest):
        steps.send(None)
    try:
        needed = steps.send(reply)
    except StopIteration as stop:
        refused = isinstance(stop.value, StarRocksSinkError)
        return type(stop.value).__name__ if refused else _DONE[operation]
    if isinstance(needed, Wait):
        return f"{operation.value} again"
    if isinstance(needed, Request) and needed.operation is Operation.LOAD_STATE:
        return "confirm"
    _after(steps, Reply(Status.OK))
    outcome = _after(steps, Reply(Status.OK, state=LabelState.UNKNOWN))
    return f"roll back, then {type(outcome.error).__name__}"


def _after(steps: Any, reply: Reply) -> Any:
    """What the steps return after their last reply."""
    try:
        return steps.send(reply)
    except StopIteration as stop:
        return stop.value


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with a number where a variable stands for one."""
    return {name: 1 if name in ("TxnId",) else value for name, value in body.items()}


_DONE = {Operation.BEGIN: "begun", Operation.LOAD: "loaded", Operation.ROLLBACK: "rolled back"}


def _sql(answer: Mapping[str, Any]) -> str:
    """The typed error of a refusal; `may pass` if the sink asks again."""
    data = b"\xff" + struct.pack("<H", answer["error"]) + answer["text"].encode()
    try:
        pymysql.err.raise_mysql_exception(data)
    except pymysql.err.MySQLError as error:
        failure = typed_error(error, "127.0.0.1:9030", quotes_server=False)
        passes = isinstance(failure, QueryRefused) and may_pass(failure)
        return type(failure).__name__ + (", may pass" if passes else "")
    raise AssertionError(answer)


def write_judgements(path: Path) -> None:
    """Write `judged` into each record of the file."""
    document = recordings.read(path)
    for _, record in recordings.records(document):
        record.pop("judged", None)
        if (judgement := judged(record)) is not None:
            record["judged"] = judgement
    recordings.write(path, document)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_judgements(Path(name))
