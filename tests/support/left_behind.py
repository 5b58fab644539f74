"""What writers of a job have left on an emulator with a password: a position in the ledger, an open label."""

from __future__ import annotations

from contextlib import closing

from starrocks_emulator.server import Emulator
from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.http import HttpTransport
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol import label as protocol
from starrocks_txn_sink.protocol.label import Label, run
from starrocks_txn_sink.protocol.wire import Operation, Status
from starrocks_txn_sink.sink.session import Session
from tests.support.micro_batch import write_micro_batch

PASSWORD = "secret-of-the-test"


def options(server: Emulator, job: str = "shop") -> SinkOptions:
    return SinkOptions(
        load_url=server.load_url, query_url=server.query_url, database="shop", job=job, password=PASSWORD
    )


def write_a_position(server: Emulator, job: str = "shop") -> Session:
    """What a query leaves in the ledger after one micro-batch."""
    return write_micro_batch(options(server, job), {42: '{"id":1}'}, 5, checkpoint="checkpoint-1")


def leave_open(server: Emulator, name: str) -> None:
    """A label with a load, as a writer that died leaves it."""
    sink_options, clock = options(server), SystemClock()
    label, deadline = Label("shop", name), Deadline.after(30, clock)
    with closing(HttpTransport(sink_options)) as transport:
        run(protocol.begin(label, sink_options.begin_headers()), transport, clock, deadline)
        request = label.request(
            Operation.LOAD, table="items", headers=sink_options.load_headers("items"), body=[memoryview(b'[{"id":7}]')]
        )
        assert transport.send(request, deadline).status is Status.OK
