"""The way to the server: the only place that knows `requests`. Give `HttpTransport` to whoever needs a transport."""

from starrocks_txn_sink.http.transport import HttpTransport

__all__ = ["HttpTransport"]
