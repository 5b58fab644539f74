"""Allowed redirect targets. Never resolves names.

The password travels with every request, so the sink follows a redirect only to hosts that the user configured: hosts of
`load_url` on any port, targets of `redirect_map`, and matches of `redirect_hosts`. An entry of `redirect_hosts` is a
rule `[scheme://]host[:port]`: host is exact, has wildcards (`*.svc.cluster.local`), is an address range (`10.0.0.0/8`)
or `*`. A rule without a scheme never allows a downgrade from https to http; the prefix `http://` allows it. The same
rules decide about the leader that SHOW FRONTENDS names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.addresses import Address, parse_authority

_RULE = re.compile(
    r"(?:(?P<scheme>https?)://)?"
    r"(?P<host>\[[0-9a-f:.]+\](?:/\d+)?|\*|[a-z0-9._*-]+|[0-9a-f:.]+/\d+)"
    r"(?::(?P<port>\d+))?"
)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of `redirect_hosts`."""

    scheme: str | None
    host: str
    port: int | None

    def allows(self, target: Address, secure: bool) -> bool:
        """Whether a redirect may lead to `target`; `secure`: the sink itself uses https."""
        if self.port is not None and self.port != target.port:
            return False
        if self.scheme is None and secure and target.scheme != "https":
            return False
        return (self.scheme is None or self.scheme == target.scheme) and self._matches(target.host)

    def _matches(self, host: str) -> bool:
        if "/" not in self.host:
            return _pattern(self.host).fullmatch(host) is not None
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(self.host)
        except ValueError:
            return False


def _pattern(host: str) -> re.Pattern[str]:
    """A star at the start matches dots, too; a later star does not: `be*` does not match `be1.evil.example`."""
    first, labels = ("[^/]*", host[1:]) if host.startswith("*") else ("", host)
    return re.compile(first + "[^.:]*".join(re.escape(part) for part in labels.split("*")))


def parse_host_rule(text: str, option: str = "redirect_hosts") -> HostRule:
    """Parse one rule; raises OptionError for a malformed rule or address range."""
    parts = _RULE.fullmatch(text.strip().lower())
    if parts is None or (parts["port"] and not 0 < int(parts["port"]) <= 65535):
        raise OptionError(
            f"{option} contains an item that is not a host rule.",
            hint="Write a host, host:port, a pattern such as *.svc.cluster.local, a range such as 10.0.0.0/8, or *. "
            "An IPv6 address stands in brackets, as in [::1].",
            option=option,
        )
    host = parts["host"].replace("[", "").replace("]", "")
    try:
        if "/" in host:
            host = str(ipaddress.ip_network(host))
        elif ":" in host:
            host = str(ipaddress.ip_address(host))
    except ValueError:
        raise OptionError(
            f"{option} contains an invalid IP address or range.",
            hint="Write a range such as 10.0.0.0/8 (no bits set behind the prefix), or an address such as [::1].",
            option=option,
        ) from None
    return HostRule(parts["scheme"], host, int(parts["port"]) if parts["port"] else None)


@dataclass(frozen=True, slots=True)
class RedirectRules:
    """Redirect policy of one sink: `rewrite` a target first, then check the result with `allows`.

    `rewrites` holds the targets of `redirect_map`; if the user gave a target no scheme, its scheme is empty.
    """

    frontends: tuple[Address, ...]
    rewrites: Mapping[str, Address]
    rules: tuple[HostRule, ...]
    query_ports: tuple[Address, ...] = ()

    @classmethod
    def of(
        cls,
        frontends: Iterable[Address],
        redirect_map: Mapping[str, str],
        hosts: Sequence[str],
        query_ports: Iterable[Address] = (),
    ) -> RedirectRules:
        """The policy that the options say; raises OptionError for an address or a rule that cannot be read."""
        rewrites = {
            parse_authority(source, "redirect_map").netloc: _rewritten(target)
            for source, target in redirect_map.items()
        }
        return cls(tuple(frontends), rewrites, tuple(parse_host_rule(host) for host in hosts), tuple(query_ports))

    @property
    def secure(self) -> bool:
        """Whether the sink speaks https, so that a redirect to http is a downgrade."""
        return self.frontends[0].scheme == "https"

    def rewrite(self, target: Address) -> Address:
        """The address to connect to instead of `target`."""
        mapped = self.rewrites.get(target.netloc)
        return target if mapped is None else replace(mapped, scheme=mapped.scheme or self._kept_scheme(target))

    def _kept_scheme(self, target: Address) -> str:
        """The scheme for a target of `redirect_map` without one: https never becomes http, and mysql stays mysql."""
        if target.scheme == "mysql":
            return target.scheme
        return "https" if self.secure or target.scheme == "https" else "http"

    def allows(self, target: Address) -> bool:
        """Whether credentials may be sent to `target`, an address that `rewrite` returned."""
        downgrade = self.secure and target.scheme != "https"
        mapped = self.rewrites.values()
        if target in (*self.frontends, *mapped) or (not downgrade and replace(target, scheme="") in mapped):
            return True
        if not downgrade and any(target.host == frontend.host for frontend in self.frontends):
            return True
        return any(rule.allows(target, self.secure) for rule in self.rules)

    def query_target(self, host: str, port: int) -> Address:
        """The query port to connect to for the leader's address `host` and `port`.

        Raises ValueError for a host that is no host name.
        """
        return replace(self.rewrite(Address("mysql", host.lower(), port)), scheme="mysql")

    def allows_query(self, target: Address) -> bool:
        """Whether the sink may log in at `target`, an address that `query_target` returned.

        Schemes do not count here, because the option `query_tls` decides about TLS for all query ports.
        """
        configured = (*self.frontends, *self.query_ports)
        if any(target.host == address.host for address in configured):
            return True
        if any((target.host, target.port) == (mapped.host, mapped.port) for mapped in self.rewrites.values()):
            return True
        return any(rule.scheme is None and rule.allows(target, secure=False) for rule in self.rules)

    def option_line(self, target: Address) -> str:
        """The option setting that would allow `target`, for the hint of RedirectRefused."""
        downgrade = self.secure and target.scheme == "http"
        host = f"[{target.host}]" if ":" in target.host else target.host
        rule = str(target) if downgrade else host
        return f"redirect_hosts=[{rule!r}]"


def _rewritten(target: str) -> Address:
    mapped = parse_authority(target, "redirect_map")
    return mapped if "://" in target else replace(mapped, scheme="")
