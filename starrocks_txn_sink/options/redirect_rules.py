"""Which hosts a redirect may lead to, and how its address is rewritten. Pure: no names are resolved.

The password travels with every request, so a redirect is followed only to a host that the user named: the frontends of
`load_url` on any port, and what `redirect_hosts` allows. A rule is `[scheme://]host[:port]`, where host is exact, has
wildcards (`*.svc.cluster.local`), is a range of addresses (`10.0.0.0/8`) or `*`. A rule without a scheme never allows
the step from https down to http; `http://…` in front of it does.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.addresses import Address, parse_authority

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
        """Whether `target` may be followed to; `secure` says that the redirecting server was asked over https."""
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
    """Read one rule; raises OptionError when it is none, or when its range of addresses is none."""
    found = _RULE.fullmatch(text.strip().lower())
    if found is None or (found["port"] and int(found["port"]) > 65535):
        raise OptionError(
            f"{option} holds {text[:80]!r}, which names no host.",
            hint="Write a host, host:port, a pattern such as *.svc.cluster.local, a range such as 10.0.0.0/8, or *.",
        )
    host = found["host"].replace("[", "").replace("]", "")
    if "/" in host:
        try:
            host = str(ipaddress.ip_network(host))
        except ValueError as error:
            raise OptionError(
                f"{option} holds {text[:80]!r}: {error}.", hint="Write a range such as 10.0.0.0/8."
            ) from None
    return HostRule(found["scheme"], host, int(found["port"]) if found["port"] else None)


@dataclass(frozen=True, slots=True)
class RedirectRules:
    """The whole rule: rewrite first, then check where the rewritten address leads."""

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
        """The line that would allow `target`, for the error that refuses it."""
        downgrade = self.frontends[0].scheme == "https" and target.scheme != "https"
        host = f"[{target.host}]" if ":" in target.host else target.host
        rule = str(target) if downgrade else host
        return f"redirect_hosts=[{rule!r}]"
