"""Addresses of frontends and query ports, allowed redirect targets, supported server versions. Never resolves names.

The password travels with every request, so the sink follows a redirect only to hosts that the user configured: hosts of
`load_url` on any port, targets of `redirect_map`, and matches of `redirect_hosts`. A rule is `[scheme://]host[:port]`,
where host is exact, has wildcards (`*.svc.cluster.local`), is an address range (`10.0.0.0/8`) or `*`. A rule without a
scheme never allows a downgrade from https to http; the prefix `http://` allows it.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starrocks_txn_sink.errors import OptionError

FRONTEND_HTTP_PORT = 8030
"""Default of the frontend's `http_port`, for an address without scheme and port (wire contract 1.1)."""

QUERY_PORT = 9030
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Scheme, host (lower case, IPv6 without brackets) and port of a server."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"


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
    addresses = tuple(dict.fromkeys(_split_address(f"mysql://{part}", option, QUERY_PORT) for part in parts))
    if not addresses:
        raise OptionError(f"{option} is empty.", hint="Name a query port, as in mysql://fe1:9030, or leave it out.")
    return addresses


def parse_authority(text: str, option: str) -> Address:
    """Parse `host:port` or `scheme://host:port` of a redirect rule; the default scheme is http."""
    return _split_address(text if "://" in text else f"http://{text}", option, None)


def _frontend(text: str, option: str) -> Address:
    if "://" not in text:
        return _split_address(f"http://{text}", option, FRONTEND_HTTP_PORT)
    return _split_address(text, option, DEFAULT_PORTS.get(text.partition("://")[0].lower()))


def _split_address(url: str, option: str, default_port: int | None) -> Address:
    """Parse a URL. Errors quote it only after the check for user information, which may hold a password."""
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
        raise OptionError(f"{option} contains {url[:80]!r}, which is not an address.", hint="Write host:port.")
    if parts.scheme not in {"http", "https", "mysql"}:
        raise OptionError(f"{option} has the scheme {parts.scheme!r}.", hint="Allowed are http and https.")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise OptionError(f"{option} has more than scheme, host and port.", hint="Remove path and parameters.")
    return Address(parts.scheme, host, port)


_RULE = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9a-f:.]+\](?:/\d+)?|[^\s:@]+|[0-9a-f:]+/\d+)(?::(?P<port>\d+))?"
)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of `redirect_hosts`."""

    scheme: str | None
    host: str
    port: int | None

    def allows(self, target: Address, secure: bool) -> bool:
        """Whether a redirect may lead to `target`; `secure`: the redirecting server uses https."""
        if self.port is not None and self.port != target.port:
            return False
        if self.scheme is None and secure and target.scheme != "https":
            return False
        return (self.scheme is None or self.scheme == target.scheme) and self._matches(target.host)

    def _matches(self, host: str) -> bool:
        if "/" not in self.host:
            return fnmatch.fnmatchcase(host, self.host)
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(self.host)
        except ValueError:
            return False


def parse_host_rule(text: str, option: str = "redirect_hosts") -> HostRule:
    """Parse one rule; raises OptionError for a malformed rule or address range."""
    found = _RULE.fullmatch(text.strip().lower())
    if found is None or (found["port"] and int(found["port"]) > 65535):
        raise OptionError(
            f"{option} contains {text[:80]!r}, which is not a host rule.",
            hint="Write a host, host:port, a pattern such as *.svc.cluster.local, a range such as 10.0.0.0/8, or *.",
        )
    host = found["host"].replace("[", "").replace("]", "")
    if "/" in host:
        try:
            host = str(ipaddress.ip_network(host))
        except ValueError as error:
            raise OptionError(
                f"{option} contains {text[:80]!r}: {error}.", hint="Write a range such as 10.0.0.0/8."
            ) from None
    return HostRule(found["scheme"], host, int(found["port"]) if found["port"] else None)


@dataclass(frozen=True, slots=True)
class RedirectRules:
    """Redirect policy of one sink: `rewrite` a target first, then check the result with `allows`."""

    frontends: tuple[Address, ...]
    rewrites: Mapping[str, Address]
    rules: tuple[HostRule, ...]

    @classmethod
    def of(cls, frontends: Iterable[Address], redirect_map: Mapping[str, str], hosts: Sequence[str]) -> RedirectRules:
        rewrites = {
            parse_authority(source, "redirect_map").netloc: parse_authority(target, "redirect_map")
            for source, target in redirect_map.items()
        }
        return cls(tuple(frontends), rewrites, tuple(parse_host_rule(host) for host in hosts))

    def rewrite(self, target: Address) -> Address:
        """The address to connect to instead of `target`."""
        return self.rewrites.get(target.netloc, target)

    def allows(self, target: Address) -> bool:
        """Whether credentials may be sent to `target`, an address that `rewrite` returned."""
        if target in self.frontends or target in self.rewrites.values():
            return True
        secure = self.frontends[0].scheme == "https"
        same_host = any(target.host == frontend.host for frontend in self.frontends)
        if same_host and not (secure and target.scheme != "https"):
            return True
        return any(rule.allows(target, secure) for rule in self.rules)

    def option_line(self, target: Address) -> str:
        """The option setting that would allow `target`, for the hint of RedirectRefused."""
        downgrade = self.frontends[0].scheme == "https" and target.scheme != "https"
        host = f"[{target.host}]" if ":" in target.host else target.host
        rule = str(target) if downgrade else host
        return f"redirect_hosts=[{rule!r}]"


MIN_SERVER_VERSION = "4.0.7"
"""First release whose multi-table transactions check states, really roll back, and accept the sink's labels."""

WITHDRAWN = ((4, 1, 0),)
"""Refused releases above the minimum: the image of 4.1.0 was withdrawn."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d])")


def require_supported(version: str) -> None:
    """Raise OptionError when `version` (`4.0.7`, `4.1.2-ee`, `StarRocks version 4.0.9`) is too old or withdrawn."""
    found = _VERSION.search(version)
    if found is None:
        raise OptionError(
            f"The server reports the version {version[:80]!r}, which does not have the form 4.0.7.",
            hint=f"Point load_url and query_url at StarRocks {MIN_SERVER_VERSION} or later.",
        )
    number = (int(found[1]), int(found[2]), int(found[3]))
    minimum = tuple(int(part) for part in MIN_SERVER_VERSION.split("."))
    if number < minimum or number in WITHDRAWN:
        raise OptionError(
            f"The server is StarRocks {found[0]}; its multi-table transactions are not safe to use.",
            hint=f"Upgrade the server to StarRocks {MIN_SERVER_VERSION} or later (4.1.1 or later in the 4.1 line).",
        )
