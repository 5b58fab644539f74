"""Failures of the query port: the driver's exceptions become QueryFailed (no usable answer) or QueryRefused.

NoBackend, a QueryFailed, is the frontend's own answer: it is here alone that texts are taken for it.

The server's own text may repeat a statement and its values, so an error names what an error number means instead.
"""

import re
import socket
import ssl
from typing import Final

from pymysql.err import InterfaceError, InternalError, MySQLError

from starrocks_txn_sink.errors import NoBackend, QueryFailed, QueryRefused

_TRANSIENT_NUMBERS = frozenset({0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1205, 2003, 2005, 2006, 2013, 2014, 2055})
_TRANSIENT_TEXTS = (
    *("timeout", "timed out", "not alive", "no alive"),
    *("publish", "too many", "mem_limit", "exceed limit", "not ready"),
)
_ALIVE: Final = "alive: true"
_NO_BACKEND: Final = {
    "backend node not found": "No backend is alive",
    "current available backends: []": "No backend is alive",
    "current alive backend is []": "No backend is alive",
    "cluster has no available capacity": "No backend is registered, or no disk of theirs has room",
    "tablet lost replicas": "The backends that hold a tablet are down",
}
"""Beginnings of the frontend's answers while backends are missing, in lower case (wire contract 10.14)."""
_PRIVILEGE = ("the user lacks a privilege", "Grant it: `starrocks-txn-sink doctor` names it.")
_REFUSALS = {
    1045: ("the user name or the password is wrong", "Check username and password."),
    3162: ("the user does not exist", "Check username, or create the user."),
    **dict.fromkeys((1049, 5501), ("the database does not exist", "Create it, or correct the option database.")),
    **dict.fromkeys((1146, 5502), ("a table does not exist", "Create it, or correct its name.")),
    **dict.fromkeys((1044, 1142, 1227, 5203), _PRIVILEGE),
}
"""Meaning of the server's error numbers, and the advice; 4.1 sends 1045, 5203, 5501, 5502 (wire contract 7.8)."""
_MISSING = re.compile(r"the (?P<what>[A-Z][A-Z ]*) privilege\(s\) on (?P<where>[A-Z]+(?: [\w.]+)?) for this operation")
NO_TABLE = frozenset((1146, 5502))
_CLIENT_REASONS = {
    1040: "the server has too many connections",
    2003: "no connection could be made",
    2005: "the host name cannot be resolved",
    2006: "the server closed the connection",
    2013: "the connection broke before the answer arrived",
}
"""Meaning of the MySQL client's numbers, and of 1040, with which a server refuses a login for the moment."""
LOGIN_OR_DATABASE = frozenset((1045, 1049, 3162, 5501))
"""Numbers of refusals that no further privilege would prevent."""
_UNSPECIFIC = 1064
"""StarRocks' number for all other errors: the statement is wrong, or the server is in trouble."""
_WRONG_STATEMENT = ("syntax error", "analyzing error", "semantic")
_QUOTED = re.compile(r"""'[^']*'?|"[^"]*"?|`[^`]*`?""")
_SECURE_TRANSPORT_REQUIRED = 3159
_TLS_NOT_SUPPORTED = 2026
_TEXT_LIMIT = 200


def typed_error(
    error: Exception, place: str, *, quotes_server: bool, greeted: bool = True
) -> QueryFailed | QueryRefused:
    """The typed error for the driver's `error` at `place`; with `quotes_server` a refusal has the server's text.

    Unless `greeted` the peer took the connection and has not said anything.
    """
    if (failed := _tls_failure(error)) is not None:
        return QueryFailed(
            f"The TLS handshake with the query port failed ({type(failed).__name__}).",
            hint="Check tls_ca, tls_certificate, tls_key and that the certificate names this host.",
            place=place,
        )
    out_of_step = isinstance(error, InternalError) and not _number(error)  # the driver's, for a wrong packet number
    if out_of_step or not isinstance(error, (MySQLError, OSError)):
        return QueryFailed(
            f"The query port's answer is not the MySQL protocol ({type(error).__name__}).",
            hint="Check that query_url names query_port (9030 by default).",
            place=place,
        )
    if (missing := _missing_backend(error)) is not None:
        return NoBackend(f"{missing}{_words(error)}.", place=place)
    if not greeted and _is_late(error):
        return QueryFailed(
            "The port of query_url takes connections and says nothing, as a port of HTTP does.",
            hint="Check that query_url names query_port (9030 by default). If it does, the frontend hangs: look at its "
            "log.",
            place=place,
        )
    if _is_transient(error):
        words = f"{_error_kind(error)}{_words(error)}"
        return QueryFailed(f"StarRocks did not answer over the MySQL protocol: {words}.", place=place)
    return _refusal(error, place, quotes_server)


def is_answer(error: Exception) -> bool:
    """Whether `error` is the server's own answer to a statement, after which the connection goes on."""
    return isinstance(error, MySQLError) and _number(error) == _UNSPECIFIC


def _missing_backend(error: Exception) -> str | None:
    """What the frontend says of its backends, if that is why it cannot serve; None for another error."""
    text = _unquoted(error) if is_answer(error) else ""
    reason = next((reason for part, reason in _NO_BACKEND.items() if part in text), None)
    return "The frontend leaves out the backends that are alive" if reason and _ALIVE in text else reason


def _refusal(error: Exception, place: str, quotes_server: bool) -> QueryRefused:
    number = _number(error)
    if number in (_SECURE_TRANSPORT_REQUIRED, _TLS_NOT_SUPPORTED):
        return QueryRefused(
            f"The query port and query_tls do not fit ({number}).",
            hint="Set query_tls=True for a server that requires TLS.",
            place=place,
        )
    why, hint = _REFUSALS.get(number, (f"{_error_kind(error)}{_words(error)}", QueryRefused.hint))
    if (why, hint) == _PRIVILEGE:
        why = _missing_privilege(error)
    if quotes_server:
        words = str(error.args[1] if len(error.args) > 1 else error)[:_TEXT_LIMIT]
        return QueryRefused(f"{words} ({number})", hint=hint)
    return QueryRefused(
        f"StarRocks refused a statement over the MySQL protocol: {why}.", hint=hint, place=place, number=number
    )


def _missing_privilege(error: Exception) -> str:
    """The privilege that the server's text asks for, where it does: privileges and names of objects, no values."""
    match = _MISSING.search(str(error.args[-1]))
    return f"the user lacks {match['what']} on {match['where']}" if match is not None else _PRIVILEGE[0]


def _tls_failure(error: BaseException) -> ssl.SSLError | None:
    """The TLS error that is `error` or its cause; the driver keeps the cause in an attribute."""
    original = getattr(error, "original_exception", None) or error.__context__
    return next((cause for cause in (error, original) if isinstance(cause, ssl.SSLError)), None)


def _is_transient(error: Exception) -> bool:
    """Whether the cause is the connection or the server's load, so that the same statement may succeed later."""
    if isinstance(error, (OSError, InterfaceError)):
        return True
    number = _number(error)
    if number in _TRANSIENT_NUMBERS or number in _REFUSALS:  # not by text: it has names, and a name may be any word
        return number in _TRANSIENT_NUMBERS
    text = _unquoted(error)
    return any(fragment in text for fragment in _TRANSIENT_TEXTS)


def _unquoted(error: Exception) -> str:
    """The error's text in lower case, without its quotations, which have names and values of the statement."""
    return _QUOTED.sub("", str(error.args[-1] if error.args else error)).lower()


def _number(error: Exception) -> int:
    """The server's or the driver's error number; 0 without one."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def may_pass(refusal: QueryRefused) -> bool:
    """Whether a refusal may be the server's trouble, which passes; for statements that are right for certain."""
    words = refusal.message.lower()
    return refusal.context.get("number") == _UNSPECIFIC and not any(fragment in words for fragment in _WRONG_STATEMENT)


def _words(error: Exception) -> str:
    """The server's text of an unspecific error, without its quotations, which may repeat a statement's values."""
    if _number(error) != _UNSPECIFIC or len(error.args) < 2:
        return ""
    words = " ".join(_QUOTED.sub("…", str(error.args[1])).split())[:_TEXT_LIMIT].rstrip(".")
    return f": {words}" if words else ""


def _is_late(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or isinstance(error.__cause__ or error.__context__, TimeoutError)


def _error_kind(error: Exception) -> str:
    """The cause in words, or type and number of the error. Never its text, which may repeat a statement's values."""
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if _is_late(error):
        return "no answer in time"
    if (why := _CLIENT_REASONS.get(_number(error))) is not None:
        return why
    number = f" {error.args[0]}" if error.args and isinstance(error.args[0], int) else ""
    return f"{type(error).__name__}{number}"
