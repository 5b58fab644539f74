"""What a request says, before anybody acts on it: path, headers, the rules of contract section 1.1."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from starrocks_txn_sink.emulator.transactions.replies import Thrown

LOAD_PROPERTIES = frozenset(
    (
        *("format", "columns", "where", "column_separator", "row_delimiter", "skip_header", "trim_space", "enclose"),
        *("escape", "max_filter_ratio", "timeout", "partitions", "temporary_partitions", "negative", "strict_mode"),
        *("timezone", "load_mem_limit", "jsonpaths", "json_root", "strip_outer_array", "partial_update"),
        *("partial_update_mode", "transmission_compression_type", "load_dop", "enable_replicated_storage"),
        *("merge_condition", "log_rejected_record_num", "compression", "warehouse", "envelope"),
    )
)
"""Headers that shape the plan of a table; all loads of the table must repeat them (contract sections 4.6 and 5)."""

_TRANSACTION_PATH = re.compile(r"/api/transaction/([^/]+)/?")
_MULTI_STREAMING_SOURCE = 12


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request without its body. Header names are lower case; `target` is path plus query as received."""

    method: str
    target: str
    headers: Mapping[str, str]
    peer: str = "127.0.0.1"

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    def header(self, name: str) -> str:
        return self.headers.get(name, "").strip()

    @property
    def transaction_operation(self) -> str | None:
        """The lower-case op of `/api/transaction/{op}`, for POST and PUT; None for every other request."""
        found = _TRANSACTION_PATH.fullmatch(self.path)
        if found is None or self.method not in ("POST", "PUT"):
            return None
        return found[1].lower()

    def load_properties(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name in LOAD_PROPERTIES}


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password that the server knows."""

    user: str
    password: str

    def objection(self, request: Request) -> str | None:
        """Why the request is not let in (the 401 message of section 7), or None."""
        scheme, _, encoded = request.header("authorization").partition(" ")
        if scheme.lower() != "basic":
            return "Need auth information."
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "Need auth information."
        known = hmac.compare_digest(user.encode(), self.user.encode())
        if known & hmac.compare_digest(password.encode(), self.password.encode()):
            return None
        return f"Access denied for {user}@{request.peer}"


@dataclass(frozen=True, slots=True)
class TransactionParameters:
    """The headers the frontend reads on every transaction operation; `timeout` is in seconds, None when absent."""

    database: str
    label: str
    table: str
    multi: bool
    timeout: float | None


def transaction_parameters(request: Request) -> TransactionParameters:
    """Read and check them in the server's order; raises `Thrown` with the server's words."""
    label = request.header("label")
    database = request.header("db")
    if not database:
        raise Thrown("No database selected.")
    if not label:
        raise Thrown("Empty label.")
    multi = request.header("transaction_type").lower() == "multi" or _source_type(request) == _MULTI_STREAMING_SOURCE
    return TransactionParameters(database, label, request.header("table"), multi, _timeout(request))


def _source_type(request: Request) -> int | None:
    text = request.header("source_type") or request.query.get("source_type", "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Thrown(f"Invalid source type: {text}") from None


def _timeout(request: Request) -> float | None:
    text = request.header("timeout")
    if not text:
        return None
    if re.fullmatch(r"[-+]?\d{1,18}", text) is None:
        raise Thrown(f'For input string: "{text}"', "java.lang.NumberFormatException")
    return float(text)
