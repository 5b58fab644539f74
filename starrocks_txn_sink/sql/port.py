"""`QueryPort`: one login at one query port. The border to PyMySQL.

Three rules hold here for every statement of the package:
- Without TLS, the password leaves only as an answer to a challenge (`mysql_native_password`). A server that asks for
  it in another way is refused: PyMySQL would send it in clear, or encrypted with a key that this server chose.
- An exchange (connecting and login, or a statement with all its rows) ends by one deadline. A socket's own timeout
  restarts with each byte, so BoundedSocket gives every call only the remaining time.
- Each failure is typed. PyMySQL reads a broken packet with plain `struct` and slices, so it raises any exception.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection
from pymysql.constants import CLIENT
from pymysql.cursors import SSCursor
from pymysql.err import InterfaceError, InternalError, MySQLError

from starrocks_txn_sink.clock import Deadline
from starrocks_txn_sink.errors import OptionError, QueryFailed, QueryRefused, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address

CHALLENGE = "mysql_native_password"
"""The only authentication without TLS: the answer to a random challenge, from which nobody reads the password."""

_TRANSIENT_NUMBERS = frozenset({0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1205, 2003, 2005, 2006, 2013, 2014, 2055})
_TRANSIENT_TEXTS = (
    *("timeout", "timed out", "not alive", "no alive", "alive: false", "backend node not found"),
    *("publish", "too many", "mem_limit", "exceed limit", "not ready"),
)
_PRIVILEGE = ("the user lacks a privilege", "Grant it: `starrocks-txn-sink doctor` names it.")
_REFUSALS = {
    1045: ("the user name or the password is wrong", "Check username and password."),
    3162: ("the user does not exist", "Check username, or create the user."),
    1049: ("the database does not exist", "Create it, or correct the option database."),
    1146: ("a table does not exist", "Create it, or correct its name."),
    5502: ("a table does not exist", "Create it, or correct its name."),
    **dict.fromkeys((1044, 1142, 1227, 5203), _PRIVILEGE),
}
"""What the server's error numbers mean, with the advice. The server's own text may repeat a statement's values."""
NO_TABLE = frozenset((1146, 5502))
_CLIENT_REASONS = {
    1040: "the server has too many connections",
    2003: "no connection could be made",
    2005: "the host name cannot be resolved",
    2006: "the server closed the connection",
    2013: "the connection broke before the answer arrived",
}
"""What numbers of the MySQL client mean, and of a server that takes no login at the moment."""
LOGIN_OR_DATABASE = frozenset((1045, 1049, 3162))
"""Refusals that no privilege cures."""
_UNSPECIFIC = 1064
"""StarRocks' number for an error without a number of its own: of a statement, or of a server in trouble."""
_OF_STATEMENT = ("syntax error", "analyzing error", "semantic")
_QUOTED = re.compile(r"""'[^']*'?|"[^"]*"?|`[^`]*`?""")
_SECURE_TRANSPORT_REQUIRED = 3159
_TLS_NOT_SUPPORTED = 2026
_FETCH_ROWS = 1000
_TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a statement, each as long as `columns`. `total` counts rows that were read but not kept, too."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int


Dial = Callable[[Address, float], Any]
"""Connects to an address within some seconds and returns a socket; raises OSError."""


def dial(address: Address, seconds: float) -> socket.socket:
    connected = socket.create_connection((address.host, address.port), seconds)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


class QueryPort:
    """A logged-in connection. Not thread-safe.

    Raises QueryFailed if no usable answer arrived (a statement may have taken effect), QueryRefused if the server
    refused, DeadlineExceeded if no time is left at the start. With `quotes_server`, QueryRefused has the server's text,
    which may repeat the statement and its values: for a person who wrote the statement, never for a log.
    """

    def __init__(
        self,
        options: SinkOptions,
        address: Address,
        deadline: Deadline,
        *,
        quotes_server: bool = False,
        dial: Dial = dial,
    ) -> None:
        self.address = address
        self._quotes_server = quotes_server
        self._driver: _Driver | None = None
        settings = _login(options, address)
        seconds = deadline.bounded(options.connect_timeout, f"connecting to {address.netloc}")
        with self._typed():
            self._socket = BoundedSocket(dial(address, seconds), deadline.earlier(options.read_timeout))
            self._driver = _Driver(**settings)
            self._driver.connect(self._socket)  # type: ignore[arg-type]

    def run(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Answer:
        """Run one statement; `%s` marks a parameter, except inside a name in backticks."""
        with self._exchange(deadline) as driver, driver.cursor() as cursor:
            cursor.execute(bind(sql, [str(cursor.mogrify("%s", (value,))) for value in parameters]))
            columns = _columns(cursor)
            rows = list(cursor.fetchall())
            return _whole(Answer(columns, rows, len(rows)))

    def forward_to_leader(self, deadline: Deadline) -> bool:
        """Have the frontend pass queries on while it does not lead, now or later (wire contract 10.11).

        False if the server does not know how: then a follower answers from its own state.
        """
        try:
            self.run("SET follower_query_forward_mode = 'leader'", (), deadline)
        except QueryRefused:
            return False
        return True

    def excerpt(self, sql: str, limit: int, deadline: Deadline) -> Answer:
        """Run `sql` as it is and keep the first `limit` rows; the rest is counted, so memory stays bounded."""
        with self._exchange(deadline) as driver, _unbuffered(driver) as cursor:
            cursor.execute(sql)
            columns = _columns(cursor)
            first = list(cursor.fetchmany(limit)) if columns else []
            total = len(first)
            while rest := (cursor.fetchmany(_FETCH_ROWS) if total else ()):
                total += len(rest)
            return _whole(Answer(columns, first, total))

    def is_connected_to(self, host: str, port: int) -> bool:
        """Whether the peer's own address is `host` and `port`."""
        try:
            return bool(self._socket.peer()[:2] == (host, port))
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection; never raises."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.suppress(Exception):
                driver.close()

    @contextlib.contextmanager
    def _exchange(self, deadline: Deadline) -> Iterator[_Driver]:
        deadline.bounded(1.0, f"the answer of {self.address.netloc}")
        if self._driver is None:
            raise QueryFailed("The connection to the query port is closed.", place=self.address.netloc)
        self._socket.deadline = deadline
        with self._typed():
            yield self._driver

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn each exception into a typed error. After QueryFailed the protocol's state is unknown: close."""
        try:
            yield
        except QueryRefused:
            raise
        except StarRocksSinkError:
            self.close()
            raise
        except Exception as error:
            typed = self._translate(error)
            if isinstance(typed, QueryFailed):
                self.close()
            raise typed from None  # the driver's text and frames may hold the statement and its values

    def _translate(self, error: Exception) -> QueryFailed | QueryRefused:
        place = self.address.netloc
        if (failed := _tls_failure(error)) is not None:
            return QueryFailed(
                f"The TLS handshake with the query port failed ({type(failed).__name__}).",
                hint="Check tls_ca, tls_certificate, tls_key and that the certificate names this host.",
                place=place,
            )
        out_of_step = isinstance(error, InternalError) and not _number(error)  # the driver's own, of a packet's number
        if out_of_step or not isinstance(error, (MySQLError, OSError)):
            return QueryFailed(
                f"The query port's answer is not the MySQL protocol ({type(error).__name__}).",
                hint="Check that query_url names query_port (9030 by default).",
                place=place,
            )
        if _is_transient(error):
            said = f"{_error_kind(error)}{_words(error)}"
            return QueryFailed(f"StarRocks did not answer over the MySQL protocol: {said}.", place=place)
        return self._refusal(error, place)

    def _refusal(self, error: Exception, place: str) -> QueryRefused:
        number = _number(error)
        if number in (_SECURE_TRANSPORT_REQUIRED, _TLS_NOT_SUPPORTED):
            return QueryRefused(
                f"The query port and query_tls do not fit ({number}).",
                hint="Set query_tls=True for a server that requires TLS.",
                place=place,
            )
        why, hint = _REFUSALS.get(number, (f"{_error_kind(error)}{_words(error)}", QueryRefused.hint))
        if self._quotes_server:
            said = str(error.args[1] if len(error.args) > 1 else error)[:_TEXT_LIMIT]
            return QueryRefused(f"{said} ({number})", hint=hint)
        return QueryRefused(
            f"StarRocks refused a statement over the MySQL protocol: {why}.", hint=hint, place=place, number=number
        )


_NAME_OR_MARK = re.compile(r"`(?:[^`]|``)*`|%s")


def bind(sql: str, literals: Sequence[str]) -> str:
    """`sql` with its marks replaced by `literals`; no other `%` has a meaning. TypeError for another number."""
    left = iter(literals)
    marks = [found for found in _NAME_OR_MARK.findall(sql) if found == "%s"]
    if len(marks) != len(literals):
        raise TypeError(f"{len(marks)} marks, {len(literals)} parameters")
    return _NAME_OR_MARK.sub(lambda found: next(left) if found[0] == "%s" else found[0], sql)


# --- login ---


def _login(options: SinkOptions, address: Address) -> dict[str, Any]:
    """Arguments of the driver. Reads the password again; raises OptionError if it or a TLS file cannot be read."""
    secure: dict[str, Any] = {"ssl": _tls_context(options)} if options.query_tls else {"ssl_disabled": True}
    return {
        "host": address.host,
        "port": address.port,
        "user": options.username,
        "password": options.read_password().encode(),  # UTF-8 as in HTTP; the driver would take latin-1
        "autocommit": True,
        "defer_connect": True,
        "auth_plugin_map": None if options.query_tls else _ChallengeOnly(),
        **secure,
    }


class _Driver(Connection):
    """PyMySQL's connection, with the rules for the password applied to the greeting, before anything is sent."""

    server_capabilities: int

    def _get_server_information(self) -> None:
        super()._get_server_information()  # type: ignore[misc]
        if not self.ssl:
            self._auth_plugin_name = CHALLENGE
        elif not self.server_capabilities & CLIENT.SSL:
            raise QueryRefused(
                "The query port offers no TLS, and the password was not sent.",
                hint="Give the frontends a certificate (ssl_keystore_location), or set query_tls=False inside a "
                "trusted network.",
                place=f"{self.host}:{self.port}",
            )


class _ChallengeOnly(dict[Any, Any]):
    """Maps every authentication plugin but CHALLENGE to `_Refusing`."""

    def __init__(self) -> None:
        super().__init__(all_others=_Refusing)  # PyMySQL replaces an empty map

    def get(self, plugin: Any, default: Any = None) -> Any:
        name = plugin.decode("ascii", "replace") if isinstance(plugin, bytes) else plugin
        return default if name in ("", CHALLENGE) else _Refusing


class _Refusing:
    """Refuses to answer a server that asks for the password in clear, or encrypted with the server's key."""

    def __init__(self, driver: _Driver) -> None:
        self._place = f"{driver.host}:{driver.port}"

    def authenticate(self, _: object) -> None:
        raise QueryRefused(
            "The query port asks for the password itself on a connection without TLS; it was not sent.",
            hint="Set query_tls=True, or give the user mysql_native_password.",
            place=self._place,
        )


# --- one deadline ---


class BoundedSocket:
    """A connected socket (plain, after `start_tls` with TLS) that never waits past `deadline`."""

    def __init__(self, connected: Any, deadline: Deadline) -> None:
        self._socket = connected
        self.deadline = deadline

    def _bound(self) -> Any:
        left = self.deadline.remaining()
        if left <= 0.0:
            raise TimeoutError("no time is left")
        self._socket.settimeout(left)
        return self._socket

    def settimeout(self, seconds: float | None) -> None:
        """Ignore the driver's timeouts: each of them would start again."""

    def sendall(self, data: bytes) -> None:
        self._bound().sendall(data)

    def receive_into(self, buffer: Any) -> int:
        received: int = self._bound().recv_into(buffer)
        return received

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def start_tls(self, wrap: Callable[..., ssl.SSLSocket], host: str) -> None:
        self._socket = wrap(self._bound(), server_hostname=host)

    def peer(self) -> Any:
        return self._socket.getpeername()

    def close(self) -> None:
        self._socket.close()


class _Received(io.RawIOBase):
    def __init__(self, bounded: BoundedSocket) -> None:
        self._bounded = bounded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._bounded.receive_into(buffer)


class _TlsContext(ssl.SSLContext):
    def wrap_socket(  # type: ignore[override]
        self, bounded: Any, *_: Any, server_hostname: Any = None, **__: Any
    ) -> Any:
        bounded.start_tls(super().wrap_socket, server_hostname)
        return bounded


def _tls_context(options: SinkOptions) -> ssl.SSLContext:
    """TLS 1.2 or later that checks certificate and host name, unless `tls_verify` is off."""
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        name = "tls_ca"
        if options.tls_ca is not None:
            context.load_verify_locations(cafile=options.tls_ca)
        elif options.tls_verify:
            context.load_default_certs()
        name = "tls_certificate"
        if options.tls_certificate is not None:
            context.load_cert_chain(options.tls_certificate, options.tls_key)
    except OSError as error:
        raise OptionError(
            f"{name} cannot be read ({type(error).__name__}).",
            hint="Put its files, in PEM, on the driver and on every executor.",
            option=name,
        ) from None
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# --- errors of the driver ---


@contextlib.contextmanager
def _unbuffered(driver: _Driver) -> Iterator[SSCursor]:
    """A cursor that streams. After an error its result must not read on when it is collected."""
    cursor = driver.cursor(SSCursor)
    try:
        yield cursor
        cursor.close()
    except BaseException:
        result = getattr(driver, "_result", None) or getattr(cursor, "_result", None)
        if result is not None:
            result.unbuffered_active = False
        raise


def _columns(cursor: Any) -> tuple[str, ...]:
    return tuple(str(column[0]) for column in cursor.description or ())


def _whole(answer: Answer) -> Answer:
    if any(len(row) != len(answer.columns) for row in answer.rows):
        raise ValueError("a row has another number of columns")
    return answer


def _tls_failure(error: BaseException) -> ssl.SSLError | None:
    original = getattr(error, "original_exception", None) or error.__context__
    return next((one for one in (error, original) if isinstance(one, ssl.SSLError)), None)


def _is_transient(error: Exception) -> bool:
    """Whether the cause is the connection or the server's load, so that the same statement may succeed later."""
    if isinstance(error, (OSError, InterfaceError)):
        return True
    text = str(error).lower()
    return _number(error) in _TRANSIENT_NUMBERS or any(fragment in text for fragment in _TRANSIENT_TEXTS)


def _number(error: Exception) -> int:
    """The server's or the driver's error number; 0 without one."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def may_pass(refusal: QueryRefused) -> bool:
    """Whether a refusal of a statement that is known to be right may be the server's trouble, which passes."""
    said = refusal.message.lower()
    return refusal.context.get("number") == _UNSPECIFIC and not any(fragment in said for fragment in _OF_STATEMENT)


def _words(error: Exception) -> str:
    """The server's words of an unspecific error, without what it quotes: it may repeat a statement's values."""
    if _number(error) != _UNSPECIFIC or len(error.args) < 2:
        return ""
    said = " ".join(_QUOTED.sub("…", str(error.args[1])).split())[:_TEXT_LIMIT].rstrip(".")
    return f": {said}" if said else ""


def _error_kind(error: Exception) -> str:
    """The cause in words, or type and number of the error. Never its text, which may repeat a statement's values."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if (why := _CLIENT_REASONS.get(_number(error))) is not None:
        return why
    number = f" {error.args[0]}" if error.args and isinstance(error.args[0], int) else ""
    return f"{type(error).__name__}{number}"
