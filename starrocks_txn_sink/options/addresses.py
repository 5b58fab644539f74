"""Addresses of frontends and query ports, read from what the user wrote. No names are resolved here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starrocks_txn_sink.errors import OptionError

FRONTEND_HTTP_PORT = 8030
"""The frontend's `http_port`, taken when a bare host is given (wire contract 1.1)."""

QUERY_PORT = 9030
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to: scheme, host (lower case, no brackets around IPv6) and port."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


def split_list(text: str | Sequence[str]) -> tuple[str, ...]:
    """Cut a list written with commas or semicolons; a sequence is taken as it is."""
    parts = re.split(r"[,;]", text) if isinstance(text, str) else list(text)
    return tuple(part.strip() for part in parts if part.strip())


def parse_frontends(text: str | Sequence[str], option: str = "load_url") -> tuple[Address, ...]:
    """Read `http://fe1:8030,fe2:8030`; http where no scheme is written. OptionErrors never repeat secrets."""
    addresses = tuple(dict.fromkeys(_frontend(part, option) for part in split_list(text)))
    if not addresses:
        raise OptionError(f"{option} is empty.", hint="Name at least one frontend, as in http://fe1:8030.")
    if len({address.scheme for address in addresses}) > 1:
        raise OptionError(
            f"{option} mixes http and https.",
            hint="Use one scheme for all frontends, so that a failover never changes how the password travels.",
        )
    return addresses


def parse_query_url(text: str | Sequence[str], option: str = "query_url") -> tuple[Address, ...]:
    """Read `mysql://host:9030,host2:9030` (or `jdbc:mysql://…`, whose path and parameters are left aside)."""
    if isinstance(text, str):
        text = re.sub(r"^(jdbc:mysql://[^/?]*).*$", r"\1", text.strip())
    parts = [re.sub(r"^(jdbc:)?mysql://", "", part) for part in split_list(text)]
    addresses = tuple(dict.fromkeys(_split_address(f"mysql://{part}", option, QUERY_PORT) for part in parts))
    if not addresses:
        raise OptionError(f"{option} is empty.", hint="Name a query port, as in mysql://fe1:9030, or leave it out.")
    return addresses


def parse_authority(text: str, option: str) -> Address:
    """Read `host:port` or `scheme://host:port` of a redirect rule; http where no scheme is written."""
    return _split_address(text if "://" in text else f"http://{text}", option, None)


def _frontend(text: str, option: str) -> Address:
    if "://" not in text:
        return _split_address(f"http://{text}", option, FRONTEND_HTTP_PORT)
    return _split_address(text, option, DEFAULT_PORTS.get(text.partition("://")[0].lower()))


def _split_address(url: str, option: str, default_port: int | None) -> Address:
    """Take a URL apart; nothing of it is repeated before it is known to hold no user information."""
    if "@" in url:
        raise OptionError(
            f"{option} holds a user or a password.", hint="Give them as username and password, never inside a URL."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    port = default_port if port is None else port
    if not host or not port or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise OptionError(f"{option} holds {url[:80]!r}, which is no address.", hint="Write host:port.")
    if parts.scheme not in {"http", "https", "mysql"}:
        raise OptionError(f"{option} has the scheme {parts.scheme!r}.", hint="Allowed are http and https.")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise OptionError(f"{option} has more than scheme, host and port.", hint="Remove path and parameters.")
    return Address(parts.scheme, host, port)
