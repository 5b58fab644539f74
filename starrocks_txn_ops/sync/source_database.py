"""One question after the other to a source database, PostgreSQL or MySQL, for commands that look at its catalog."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pymysql

from starrocks_txn_sink.errors import OptionError

Ask = Callable[[str, tuple[str, ...]], list[tuple[Any, ...]]]
"""Runs a statement with its parameters (%s) and returns its rows."""

_SCHEMES: Final = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306}
_FORM: Final = "Write postgresql://USER@HOST:5432/DATABASE or mysql://USER@HOST:3306/DATABASE."

_TLS: Final = "For PostgreSQL set libpq's variables, as PGSSLMODE and PGSSLROOTCERT."


@dataclass(frozen=True, slots=True)
class SourceDatabase:
    """The place of a source database; the password is not part of it."""

    postgresql: bool
    host: str
    port: int
    user: str
    database: str

    @classmethod
    def of_url(cls, url: str) -> SourceDatabase:
        """The place in a URL; raises OptionError for one of another form, and for one with a password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise OptionError("--source is no URL.", hint=_FORM) from None
        if parts.password is not None:
            message = "--source has a password, which every user of this machine can read on the command line."
            raise OptionError(message, hint="Use --source-password-environment.")
        database = unquote(parts.path.strip("/"))
        if parts.scheme not in _SCHEMES or not parts.hostname or not parts.username or not database:
            raise OptionError("--source lacks a part, or names another kind of database.", hint=_FORM)
        if parts.query or parts.fragment:
            raise OptionError("--source has parameters, which would have no effect.", hint=f"{_FORM} {_TLS}")
        kind = parts.scheme.startswith("postgres")
        return cls(kind, parts.hostname, port or _SCHEMES[parts.scheme], unquote(parts.username), database)

    @contextlib.contextmanager
    def connect(self, password: str, seconds: float) -> Iterator[Ask]:
        """Ask the database; raises OptionError where it does not answer, refuses the user, or psycopg is absent."""
        with (self._postgresql if self.postgresql else self._mysql)(password, seconds) as ask:
            yield ask

    @contextlib.contextmanager
    def _postgresql(self, password: str, seconds: float) -> Iterator[Ask]:
        try:
            import psycopg
        except ImportError:
            message = "PostgreSQL is asked with psycopg, which is not installed."
            raise OptionError(message, hint="Run: pip install 'starrocks-txn-sink[postgresql]'") from None
        try:
            with psycopg.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=password or None,
                dbname=self.database,
                connect_timeout=max(2, round(seconds)),
                options=f"-c statement_timeout={round(seconds * 1000)} -c default_transaction_read_only=on",
            ) as connection:
                yield lambda sql, values: list(connection.execute(sql.encode(), values).fetchall())
        except psycopg.Error as error:
            raise self._failed(error) from None

    @contextlib.contextmanager
    def _mysql(self, password: str, seconds: float) -> Iterator[Ask]:
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=password,
                database=self.database,
                connect_timeout=max(1, round(seconds)),
                read_timeout=max(1, round(seconds)),
            )
            with contextlib.closing(connection), connection.cursor() as cursor:

                def ask(sql: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
                    cursor.execute(sql, values)
                    return list(cursor.fetchall())

                yield ask
        except RuntimeError as error:  # PyMySQL lacks a library for the user's way to log in
            text = f"The database {self.database} at {self.host}:{self.port} cannot be read: {error}"
            raise OptionError(text, hint="Install that package with pip.") from None
        except (pymysql.MySQLError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> OptionError:
        words = " ".join(str(error).split())[:300]
        return OptionError(
            f"The database {self.database} at {self.host}:{self.port} cannot be read: {words}",
            hint="Check --source, the password's variable, and that the user may read the catalog.",
        )
