"""One question after the other to a source database, PostgreSQL or MySQL, for commands that look at its catalog."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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
    def of_url(
        cls, url: str, option: str = "--source", password: str = "--source-password-environment"
    ) -> SourceDatabase:
        """The place in a URL; raises OptionError for one of another form, and for one with a password.

        `option` and `password` are what errors call the URL and the place for a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise OptionError(f"{option} is no URL.", hint=_FORM) from None
        if parts.password is not None:
            readers = "which every user of this machine can read on the command line"
            readers = readers if option.startswith("-") else "which does not belong in the file"
            raise OptionError(f"{option} has a password, {readers}.", hint=f"Use {password}.")
        database = unquote(parts.path.strip("/"))
        if parts.scheme not in _SCHEMES or not parts.hostname or not parts.username or not database:
            raise OptionError(f"{option} lacks a part, or names another kind of database.", hint=_FORM)
        if parts.query or parts.fragment:
            raise OptionError(f"{option} has parameters, which would have no effect.", hint=f"{_FORM} {_TLS}")
        kind = parts.scheme.startswith("postgres")
        return cls(kind, parts.hostname, port or _SCHEMES[parts.scheme], unquote(parts.username), database)

    @contextlib.contextmanager
    def connect(self, password: str, seconds: float) -> Iterator[Ask]:
        """Ask the database; raises OptionError where it does not answer, refuses the user, or psycopg is absent."""
        with (self._postgresql if self.postgresql else self._mysql)(password, seconds) as ask:
            yield ask

    @contextlib.contextmanager
    def _postgresql(self, password: str, seconds: float) -> Iterator[Ask]:
        settings = f"-c statement_timeout={round(seconds * 1000)} -c default_transaction_read_only=on"
        with self.postgresql_connection(password, seconds, settings) as connection:
            yield lambda sql, values: list(connection.execute(sql.encode(), values).fetchall())

    @contextlib.contextmanager
    def postgresql_connection(self, password: str, seconds: float, settings: str) -> Iterator[Any]:
        """Psycopg's connection with the server's `settings`; its errors inside become OptionError."""
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
                options=settings,
            ) as connection:
                yield connection
        except psycopg.Error as error:
            raise self._failed(error) from None

    @contextlib.contextmanager
    def _mysql(self, password: str, seconds: float) -> Iterator[Ask]:
        with (
            self.mysql_connection(password, seconds, read_timeout=max(1, round(seconds))) as connection,
            connection.cursor() as cursor,
        ):

            def ask(sql: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
                cursor.execute(sql, values)
                return list(cursor.fetchall())

            yield ask

    @contextlib.contextmanager
    def mysql_connection(self, password: str, seconds: float, **more: Any) -> Iterator[pymysql.Connection[Any]]:
        """PyMySQL's connection, with `more` of its arguments; its errors inside become OptionError."""
        try:
            connection = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=password,
                database=self.database,
                connect_timeout=max(1, round(seconds)),
                **more,
            )
            with contextlib.closing(connection):
                yield connection
        except RuntimeError as error:  # PyMySQL lacks a library for the user's way to log in
            text = f"The database {self.database} at {self.host}:{self.port} cannot be read: {error}"
            raise OptionError(text, hint="Install that package with pip.") from None
        except (pymysql.MySQLError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> OptionError:
        words = " ".join(str(error).split())[:300]
        return OptionError(
            f"The database {self.database} at {self.host}:{self.port} cannot be read: {words}",
            hint="Check its URL, the password, and that the user may read it.",
        )


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """A source database as a file names it, with the place of its password."""

    place: SourceDatabase
    environment: str | None = None
    file: str | None = None

    @classmethod
    def of_settings(cls, url: str | None, environment: str | None, file: str | None) -> SourceAccess | None:
        """The access by settings of a file; None without a URL. Raises OptionError."""
        if environment is not None and file is not None:
            message = "database_password_environment and database_password_file are both set."
            raise OptionError(message, hint="Keep one.", option="database_password_file")
        if url is None:
            if environment is not None or file is not None:
                option = "database_password_environment" if environment is not None else "database_password_file"
                raise OptionError(f"{option} needs database.", hint=_FORM, option=option)
            return None
        ways = "database_password_environment or database_password_file"
        try:
            return cls(SourceDatabase.of_url(url, "database", ways), environment, file)
        except OptionError as error:
            raise OptionError(error.message, hint=error.advice, option="database") from None

    def password(self) -> str:
        """The password, empty without a place for it; raises OptionError for a place that has none."""
        if self.file is not None:
            try:
                password = Path(self.file).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                raise OptionError(f"{self.file} cannot be read: {error}.", hint="Correct it.") from None
        elif self.environment is not None:
            password = os.environ.get(self.environment, "")
        else:
            return ""
        if not password:
            raise OptionError(f"{self.file or self.environment} has no password for the source.", hint="Set it.")
        return password
