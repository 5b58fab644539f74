"""Where redirects may lead, and which servers are supported: the pure rules behind the options."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.addresses import Address, parse_authority, require_supported


def allows(target: str, load_url: str = "http://fe1:8030", **changes: Any) -> bool:
    rules = SinkOptions(load_url=load_url, database="shop", delivery="at-least-once", **changes).redirect_rules
    return rules.allows(rules.rewrite(parse_authority(target, "target")))


def test_by_default_only_the_frontends_hosts_are_followed_on_any_port() -> None:
    assert allows("http://fe1:8040")
    assert not allows("http://be1:8040")
    assert not allows("http://localhost:8040", load_url="http://127.0.0.1:8030")


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        ("be1", "be1:8040", "be10:8040"),
        ("BE1:8040", "be1:8040", "be1:8041"),
        ("*.svc.cluster.local", "be-0.be.svc.cluster.local:8040", "svc.cluster.local.evil.example:8040"),
        ("10.0.0.0/8", "10.20.30.40:8040", "11.0.0.1:8040"),
        ("10.0.0.0/8", "10.20.30.40:8040", "10.evil.example:8040"),
        ("10.0.0.0/8:8040", "10.20.30.40:8040", "10.20.30.40:22"),
        ("[fd00::]/16", "[fd00::5]:8040", "[fe80::5]:8040"),
        ("[::1]:8040", "[::1]:8040", "[::1]:22"),
        ("http://be1", "http://be1:8040", "https://be1:8040"),
        ("be*", "be12:8040", "be1.evil.example:8040"),
        ("*.be.*.local", "0.x.be.prod.local:8040", "0.be.prod.evil.local:8040"),
    ],
)
def test_rules_allow_what_they_say_and_nothing_else(rule: str, inside: str, outside: str) -> None:
    assert allows(inside, redirect_hosts=[rule])
    assert not allows(outside, redirect_hosts=[rule])


def test_a_star_allows_every_host() -> None:
    assert allows("http://anything.example:1", redirect_hosts="*")


def test_the_step_from_https_to_http_needs_a_rule_of_its_own() -> None:
    assert not allows("http://fe1:8040", load_url="https://fe1:8443")
    assert not allows("http://be1:8040", load_url="https://fe1:8443", redirect_hosts="*")
    assert allows("https://be1:8040", load_url="https://fe1:8443", redirect_hosts="*")
    assert allows("http://be1:8040", load_url="https://fe1:8443", redirect_hosts="http://*")


def test_the_map_rewrites_and_its_targets_are_allowed() -> None:
    rules = SinkOptions(
        load_url="https://fe1:8443",
        database="shop",
        delivery="at-least-once",
        redirect_map={"be1:8040": "https://proxy:18040"},
    ).redirect_rules
    target = rules.rewrite(Address("http", "be1", 8040))
    assert target == Address("https", "proxy", 18040)
    assert rules.allows(target)
    assert not rules.allows(Address("http", "be1", 8040))


def test_a_map_without_a_scheme_keeps_the_scheme_and_a_downgrade_must_be_written_out() -> None:
    def rewritten(load_url: str, target: str, redirect: str = "http") -> Address:
        rules = SinkOptions(
            load_url=load_url, database="shop", delivery="at-least-once", redirect_map={"be1:8040": target}
        ).redirect_rules
        address = rules.rewrite(Address(redirect, "be1", 8040))
        assert rules.allows(address)
        return address

    assert rewritten("https://fe1:8443", "proxy:18040") == Address("https", "proxy", 18040)
    assert rewritten("http://fe1:8030", "proxy:18040") == Address("http", "proxy", 18040)
    assert rewritten("http://fe1:8030", "proxy:18040", "https") == Address("https", "proxy", 18040)
    assert rewritten("https://fe1:8443", "http://proxy:18040") == Address("http", "proxy", 18040)
    assert not allows("http://proxy:18040", "https://fe1:8443", redirect_map={"be1:8040": "proxy:18040"})


@pytest.mark.parametrize(
    "host",
    ["fe1\\.svc.cluster.local", "fe1/x", "a@fe1", "fe1#", "fe1%2e", "fe 1", "größe", "", "[::1]", "fe80::1%eth0"],
)
def test_an_address_has_a_plain_host_or_does_not_exist(host: str) -> None:
    with pytest.raises(ValueError, match="neither a host name nor an IP literal"):
        Address("http", host, 8040)


def test_the_leaders_query_port_obeys_the_rules_of_redirects() -> None:
    def may_log_in(host: str, **changes: Any) -> bool:
        rules = SinkOptions(
            load_url="https://fe1:8443", query_url="fe2:9030", database="shop", **changes
        ).redirect_rules
        return rules.allows_query(rules.query_target(host, 9031))

    assert may_log_in("fe1")
    assert may_log_in("FE2")
    assert not may_log_in("be1")
    assert not may_log_in("be1", redirect_hosts=["http://be1", "be1:9030"])
    assert may_log_in("be1", redirect_hosts=["be1:9031"])
    assert may_log_in("be1", redirect_map={"be1:9031": "proxy:19031"})
    with pytest.raises(ValueError, match="neither a host name"):
        may_log_in("be1\\.fe1")


@pytest.mark.parametrize(
    ("load_url", "target"),
    [
        ("http://fe1:8030", "http://be1:8040"),
        ("https://fe1:8443", "http://be1:8040"),
        ("http://fe1:8030", "http://[fd00::1]:8040"),
    ],
)
def test_the_line_an_error_suggests_does_allow_the_host(load_url: str, target: str) -> None:
    rules = SinkOptions(load_url=load_url, database="shop", delivery="at-least-once").redirect_rules
    line = rules.option_line(parse_authority(target, "target"))
    suggested = line.removeprefix("redirect_hosts=['").removesuffix("']")
    assert allows(target, load_url=load_url, redirect_hosts=[suggested])


@pytest.mark.parametrize(
    "version", ["4.0.7", "4.0.12", "4.1.1", "v4.1.2-ee", "StarRocks version 4.2.0-1a2b3c", "5.0.0"]
)
def test_supported_servers(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.0.6", "4.0.6-1a2b", "3.5.12", "4.1.0", "4.1.0-rc1"])
def test_servers_that_are_too_old_or_withdrawn(version: str) -> None:
    with pytest.raises(OptionError, match=r"4\.0\.7 or later"):
        require_supported(version)
    with pytest.raises(OptionError, match=r"4\.0\.7 or later"):
        require_supported(version, unreleased=True)


@pytest.mark.parametrize("version", ["", "main", "4.0", "main-d0b920ca"])
def test_a_version_that_is_none(version: str) -> None:
    with pytest.raises(OptionError, match="does not have the form") as refused:
        require_supported(version)
    assert "allow_unreleased_server" in refused.value.advice
    with nullcontext() if version else pytest.raises(OptionError):
        require_supported(version, unreleased=True)
