"""The open labels of a job: those that information_schema.loads lists, without those that are committed.

Releases before 4.1.3 list each committed label that they remember (wire contract 10.6): hundreds after some minutes. So
the state of each is asked for, many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import DeadlineExceeded, TransportError
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.protocol.label import Label
from starrocks_txn_sink.protocol.wire import LabelState, Operation

NOT_ANSWERED: Final = "not answered"
_AT_ONCE: Final = 16
"""Questions at a time: a frontend answers each from memory, in a millisecond or two."""
_COMMITTED: Final = frozenset((LabelState.COMMITTED.value, LabelState.VISIBLE.value))


def label_states(transport: HttpTransport, database: str, labels: Sequence[str], deadline: Deadline) -> dict[str, str]:
    """The state of each label as the server reports it, NOT_ANSWERED where it does not answer before `deadline`.

    UNKNOWN is a label without a registered transaction (wire contract 6.2). Raises the errors of a refused request.
    """
    if not labels:
        return {}
    with ThreadPoolExecutor(min(_AT_ONCE, len(labels)), thread_name_prefix="label-state") as pool:
        states = pool.map(partial(_state, transport, database, deadline), labels)
        return dict(zip(labels, states, strict=True))


def is_open(state: str) -> bool:
    """Whether a listed label with this state is open; a state that nobody knows counts."""
    return state not in _COMMITTED


def _state(transport: HttpTransport, database: str, deadline: Deadline, label: str) -> str:
    try:
        reply = transport.send(Label(database, label).request(Operation.LOAD_STATE), deadline)
    except (TransportError, DeadlineExceeded):
        return NOT_ANSWERED
    return reply.state.value if reply.state is not None else NOT_ANSWERED
