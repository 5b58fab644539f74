"""The sink on the driver: `StarRocksSink`, its input projected in the JVM, the checks before the first load."""

from starrocks_txn_sink.sink.assembly import TransactionAssembly
from starrocks_txn_sink.sink.sink import StarRocksSink
from starrocks_txn_sink.sink.supervisor import RestartPolicy, run_forever
from starrocks_txn_sink.sink.typed.route import TableRoute

__all__ = [
    "RestartPolicy",
    "StarRocksSink",
    "TableRoute",
    "TransactionAssembly",
    "run_forever",
]
