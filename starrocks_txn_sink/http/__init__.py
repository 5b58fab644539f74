"""The transaction interface over HTTP. No other package imports `requests`."""

from starrocks_txn_sink.http.transport import HttpTransport

__all__ = ["HttpTransport"]
