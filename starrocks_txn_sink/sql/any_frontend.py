"""A connection to any frontend, for the tools: rows with column names, errors with the server's text.

Queries that decide about commits do not use it, because an older server's follower may return old rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import QueryFailed, QueryRefused
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address
from starrocks_txn_sink.sql.connection import QueryPort, Row

_LOGIN_SECONDS = 10.0
"""A port of another protocol accepts the connection and says nothing: nobody should wait for a statement's time."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The first rows of a result, and its total number of rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


class SqlConnection:
    """One connection to one query port.

    Raises QueryFailed if the port does not answer, QueryRefused with the server's text if the server refuses. The text
    may repeat the statement, so show it to its author only and keep it out of logs.
    """

    def __init__(self, options: SinkOptions, address: Address) -> None:
        self.address = address
        self._options = options
        login = self._within(options.connect_timeout + min(options.read_timeout, _LOGIN_SECONDS))
        self._port = QueryPort(options, address, login, quotes_server=True)
        self._port.forward_to_leader(self._within(options.read_timeout))

    @classmethod
    def connect_any(cls, options: SinkOptions) -> SqlConnection:
        """Connect to the first address of `query_url` that accepts the login; raises the last address's error."""
        error: QueryFailed | QueryRefused = QueryFailed("query_url names no address.")
        for address in options.query_addresses:
            try:
                return cls(options, address)
            except (QueryFailed, QueryRefused) as failed:
                error = failed
        raise error

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Row]:
        """All rows as dicts, with column names in lower case."""
        return self._port.run(sql, parameters, self._within(self._options.read_timeout)).named()

    def value(self, sql: str, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row; None without rows."""
        return next((next(iter(row.values())) for row in self.rows(sql, parameters)), None)

    def excerpt(self, sql: str, limit: int) -> Excerpt:
        """The first `limit` rows. Counts the remaining rows without keeping them, so memory stays bounded.

        `batch_deadline` bounds the whole statement: its author knows how many rows it returns.
        """
        answer = self._port.excerpt(sql, limit, self._within(self._options.batch_deadline))
        return Excerpt(answer.columns, tuple(answer.rows), answer.total)

    def close(self) -> None:
        """Close the connection; never raises."""
        self._port.close()

    @staticmethod
    def _within(seconds: float) -> Deadline:
        return Deadline.after(seconds, SystemClock())
