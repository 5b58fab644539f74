"""Addresses of frontends, backends and query ports. Never resolves names.

Two readers of one URL may see two hosts in it. Therefore an Address exists only for a plain host name or an IP literal,
and connections are made from its host and port, not from text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starrocks_txn_sink.errors import OptionError

FRONTEND_HTTP_PORT = 8030
"""Default of the frontend's `http_port`, for an address without scheme and port (wire contract 1.1)."""

QUERY_PORT = 9030
DEFAULT_PORTS = {"http": 80, "https": 443}

_ADDRESS_HINT = "Write host:port or http://host:port, and the password into the option password, never into a URL."
_HOST_NAME = re.compile(r"[a-z0-9._-]+")
HOST_HINT = "A host is a name of letters, digits, '.', '_' and '-', or an IP address (IPv6 in brackets)."


@dataclass(frozen=True, slots=True)
class Address:
    """Scheme, host (lower case, IPv6 without brackets) and port of a server.

    Construction raises ValueError for a host that is neither a name of `[a-z0-9._-]` nor an IP literal.
    """

    scheme: str
    host: str
    port: int
    netloc: str = field(init=False, repr=False, compare=False)
    url: str = field(init=False, repr=False, compare=False)
    """Scheme, host and port, for the path to follow."""

    def __post_init__(self) -> None:
        if _HOST_NAME.fullmatch(self.host) is None and not _is_ipv6(self.host):
            raise ValueError("The host is neither a host name nor an IP literal.")
        if not 0 < self.port <= 65535:
            raise ValueError("The port is not between 1 and 65535.")
        netloc = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        object.__setattr__(self, "netloc", netloc)
        object.__setattr__(self, "url", f"{self.scheme}://{netloc}")

    def __str__(self) -> str:
        return self.url


def _is_ipv6(host: str) -> bool:
    try:
        return "%" not in host and ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def split_list(text: str | Sequence[str]) -> tuple[str, ...]:
    """Split text at commas or semicolons; accepts a sequence too. Strips items and drops empty ones."""
    parts = re.split(r"[,;]", text) if isinstance(text, str) else list(text)
    return tuple(part.strip() for part in parts if part.strip())


def parse_frontends(text: str | Sequence[str], option: str = "load_url") -> tuple[Address, ...]:
    """Parse `http://fe1:8030,fe2:8030`; the default scheme is http. OptionError never repeats secrets."""
    addresses = tuple(dict.fromkeys(_frontend(part, option) for part in split_list(text)))
    if not addresses:
        raise OptionError(f"{option} is empty.", hint="Name at least one frontend, as in http://fe1:8030.")
    if len({address.scheme for address in addresses}) > 1:
        raise OptionError(
            f"{option} mixes http and https.",
            hint="Use one scheme for all frontends, so that a failover never sends the password unencrypted.",
        )
    return addresses


def parse_query_url(text: str | Sequence[str], option: str = "query_url") -> tuple[Address, ...]:
    """Parse `mysql://host:9030,host2:9030` or `jdbc:mysql://…`, whose path and parameters are ignored."""
    if isinstance(text, str):
        text = re.sub(r"^(jdbc:mysql://[^/?]*).*$", r"\1", text.strip())
    parts = [re.sub(r"^(jdbc:)?mysql://", "", part) for part in split_list(text)]
    if any("://" in part and "@" not in part for part in parts):
        raise OptionError(
            f"{option} has an unknown scheme.",
            hint="Write mysql://host:9030, the query port; HTTP addresses belong to load_url.",
            option=option,
        )
    addresses = tuple(dict.fromkeys(_split_address(f"mysql://{part}", option, QUERY_PORT) for part in parts))
    if not addresses:
        raise OptionError(f"{option} is empty.", hint="Name a query port, as in mysql://fe1:9030, or leave it out.")
    return addresses


def parse_authority(text: str, option: str) -> Address:
    """Parse `host:port` or `scheme://host:port`."""
    return _split_address(text if "://" in text else f"http://{text}", option, None)


def parse_location(text: str | None) -> Address | None:
    """The server that a redirect's Location names; None if the header is missing or names no usable host."""
    try:
        parts = urlsplit(text or "")
        default = DEFAULT_PORTS[parts.scheme]
        return Address(parts.scheme, parts.hostname or "", default if parts.port is None else parts.port)
    except (ValueError, KeyError):
        return None


def _frontend(text: str, option: str) -> Address:
    if "://" not in text:
        return _split_address(f"http://{text}", option, FRONTEND_HTTP_PORT)
    return _split_address(text, option, DEFAULT_PORTS.get(text.partition("://")[0].lower()))


def _split_address(url: str, option: str, default_port: int | None) -> Address:
    """Parse a URL. Errors never quote it: a part of it may be a password in the wrong place."""
    if "@" in url:
        raise OptionError(
            f"{option} contains a user or a password.",
            hint="Set the options username and password, never inside a URL.",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    port = default_port if port is None else port
    if not host or not port or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise OptionError(f"{option} contains an item that is not an address.", hint=_ADDRESS_HINT, option=option)
    if parts.scheme not in {"http", "https", "mysql"}:
        raise OptionError(f"{option} has an unknown scheme.", hint="Allowed are http and https.", option=option)
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise OptionError(
            f"{option} has more than scheme, host and port.", hint="Remove path and parameters.", option=option
        )
    try:
        return Address(parts.scheme, host, port)
    except ValueError:
        raise OptionError(f"{option} contains an invalid host.", hint=HOST_HINT, option=option) from None


MIN_SERVER_VERSION = "4.0.7"
"""First release whose multi-table transactions check states, really roll back, and accept the sink's labels."""

WITHDRAWN = ((4, 1, 0),)
"""Refused releases above the minimum: the image of 4.1.0 was withdrawn."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d])")


def require_supported(version: str, *, unreleased: bool = False) -> None:
    """Raise OptionError when `version` (`4.0.7`, `4.1.2-ee`, `StarRocks version 4.0.9`) is too old or withdrawn.

    With `unreleased` a version without a number (`main-d0b920c`, a build of one's own) is accepted.
    """
    match = _VERSION.search(version)
    if match is None and unreleased and version.strip():
        return
    if match is None:
        raise OptionError(
            f"The server reports the version {version[:80]!r}, which does not have the form 4.0.7.",
            hint=f"Point load_url and query_url at StarRocks {MIN_SERVER_VERSION} or later. For a build that is at "
            "least as new, set allow_unreleased_server=True.",
        )
    number = (int(match[1]), int(match[2]), int(match[3]))
    minimum = tuple(int(part) for part in MIN_SERVER_VERSION.split("."))
    if number < minimum or number in WITHDRAWN:
        raise OptionError(
            f"The server is StarRocks {match[0]}; its multi-table transactions are not safe to use.",
            hint=f"Upgrade the server to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
        )
