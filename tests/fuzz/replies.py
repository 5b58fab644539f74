"""Malformed and random answers of a server, read by `http.transport`, fed to the protocol of a label.

Only typed errors may come out, and `Committed` only when a get_load_state said VISIBLE; whether one did is read
from the bytes by another JSON reader.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import NotSent, ReplyLost, StarRocksSinkError
from starrocks_txn_sink.http.transport import read_load_state, read_reply
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.fencing import roll_back_until_confirmed
from starrocks_txn_sink.protocol.label import Aborted, Committed, Label, RetryPolicy, Steps, Unknown, run
from starrocks_txn_sink.protocol.wire import LabelState, Operation, Reply, Request, Status
from tests.support.manual_clock import ManualClock

LABEL = Label("shop", "job-e-0-1-1_0")
_KEYS = ("Status", "status", "STATUS", "Message", "msg", "state", "State", "TxnId", "Label", "LoadBytes", "code", "x")
_MESSAGES = (
    "",
    "stream load task L does not exist",
    "Can not abort VISIBLE transaction 1, label is L",
    "Can not abort transaction 1 during committing, label is L",
    "Can not commit CANCELLED transaction 1, label is L",
    "Transaction 1 is already committing, label is L",
    "Transaction 1 has already committed, label is L",
    "VISIBLE",
)
_WORDS = (*(status.value for status in Status), *LabelState.__members__, "Success", "Fail", "visible", "ok", "OK ", "")
_HTTP = (200, 201, 204, 301, 307, 400, 401, 403, 404, 429, 500, 502, 503, 504)
_PAGES = (
    b"",
    b" ",
    b"<html><head><title>502 Bad Gateway</title></head></html>",
    b"null",
    b"[]",
    b'"VISIBLE"',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\xff\xfe\x00VISIBLE",
    b'{"state":"VISIBLE"',
    b'{"status":"OK","state":"VISIBLE"}{}',
    b"\xef\xbb\xbf" + b'{"status":"OK","state":"VISIBLE"}',
)

Answer = tuple[int, bytes]


def answer(rng: random.Random) -> Answer:
    """One answer: an HTTP status and a body, from nearly right to noise."""
    kind = rng.random()
    if kind < 0.6:
        body = json.dumps(_plausible(rng)).encode()
    elif kind < 0.78:
        body = _damaged(json.dumps(_plausible(rng)).encode(), rng)
    elif kind < 0.9:
        body = json.dumps({rng.choice(_KEYS): _value(rng, 3) for _ in range(rng.randrange(8))}).encode()
    elif kind < 0.96:
        body = rng.choice(_PAGES)
    else:
        body = rng.randbytes(rng.randrange(200))
    return 200 if rng.random() < 0.8 else rng.choice(_HTTP), body


def _plausible(rng: random.Random) -> dict[str, Any]:
    status = rng.choice(("OK", "OK", "FAILED", rng.choice(_WORDS)))
    reply: dict[str, Any] = {"Status": status, "Message": rng.choice(_MESSAGES)}
    if rng.random() < 0.6:
        reply["state"] = rng.choice((*LabelState.__members__, "visible", rng.choice(_WORDS)))
    if rng.random() < 0.1:
        reply["TxnId"] = _value(rng, 1)
    return reply


def _damaged(body: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, doubled or put in."""
    damaged = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(damaged) + 1)
        how = rng.randrange(4)
        if how == 0 and place < len(damaged):
            damaged[place] ^= 1 << rng.randrange(8)
        elif how == 1:
            del damaged[place:]
        elif how == 2:
            damaged[place:place] = damaged[: rng.randrange(20)]
        else:
            damaged[place:place] = rng.choice((b"\x00", b'"', b"{", b"\\u0056", b",", b"\xc3\x28", b"NaN"))
    return bytes(damaged)


def _value(rng: random.Random, depth: int) -> Any:
    plain: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(_WORDS),
        lambda: rng.choice(_MESSAGES),
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice((0, -1, 2**63, 2**64, -(2**70), 10**30)),
        lambda: rng.choice((0.5, 1e300, float("inf"), float("nan"))),
        lambda: "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randrange(5))),
    )
    if depth and rng.random() < 0.2:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if depth and rng.random() < 0.2:
        return {rng.choice(_KEYS): _value(rng, depth - 1) for _ in range(rng.randrange(3))}
    return rng.choice(plain)()


def says_visible(status: int, body: bytes) -> bool:
    """Whether an answer to get_load_state is proof of a commit, read independently of the product."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if status != 200 or not isinstance(parsed, dict):
        return False
    fields = {key.lower(): value for key, value in reversed(parsed.items())}
    words = [fields.get("status"), fields.get("state")]
    return [word.upper() if isinstance(word, str) else None for word in words] == ["OK", "VISIBLE"]


class Noise:
    """A transport whose server answers at random; `seen` counts what the answers were read as."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.seen: Counter[str] = Counter()
        self.visible = False

    def send(self, request: Request, deadline: Deadline) -> Reply:
        del deadline
        if self.rng.random() < 0.05:
            raise self.rng.choice((NotSent, ReplyLost))("on the way")
        status, body = answer(self.rng)
        is_query = request.operation is Operation.LOAD_STATE
        self.visible = is_query and says_visible(status, body)
        try:
            reply = (read_load_state if is_query else read_reply)(status, body)
        except StarRocksSinkError as error:
            self.seen[error.code] += 1
            raise
        self.seen["reply"] += 1
        return reply

    def close(self) -> None: ...


def fuzz_replies(count: int, seed: int) -> dict[str, int]:
    """Read at least `count` answers; returns how often each result came, raises AssertionError for a broken rule."""
    rng = random.Random(seed)
    noise, results = Noise(rng), Counter[str]()
    while sum(noise.seen.values()) < count:
        results[_one(noise, rng)] += 1
    return {"answers": sum(noise.seen.values()), **noise.seen, **results}


def _one(noise: Noise, rng: random.Random) -> str:
    """One operation on a label against the noise; the name of its result."""
    steps, clock = _operation(rng), ManualClock()
    try:
        result = run(steps, noise, clock, Deadline.after(rng.choice((0.5, 5.0, 60.0)), clock))
    except StarRocksSinkError as error:
        if not str(error) or len(str(error)) > 2000:
            raise AssertionError("An error without, or with too much of a message.") from error
        return f"raised {error.code}"
    if isinstance(result, Committed) and not noise.visible:
        raise AssertionError("Committed, although no answer said VISIBLE.")
    if not isinstance(result, (Committed, Aborted, Unknown)):
        return "other"
    return type(result).__name__.lower()


def _operation(rng: random.Random) -> Steps[Any]:
    retry_policy = RetryPolicy(commit_again=rng.random() < 0.5, busy_tries=5, unknown_tries=3)
    makers: tuple[Callable[[], Steps[Any]], ...] = (
        lambda: protocol.begin(LABEL, {"timeout": "600"}),
        lambda: protocol.load(LABEL, "t", [b"[]"], {}, retry_policy, rng),
        lambda: protocol.commit(LABEL, retry_policy, rng),
        lambda: protocol.commit(LABEL, retry_policy, rng),
        lambda: protocol.confirm(LABEL, None, retry_policy, rng),
        lambda: protocol.roll_back(LABEL, retry_policy, rng),
        lambda: roll_back_until_confirmed(LABEL, rng),
    )
    return rng.choice(makers)()
