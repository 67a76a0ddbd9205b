"""Nothing is reached that no rule allows, and a host is compared in one form, however it is written."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foliot.common.hosts import is_address, normal_host
from foliot.sandbox.base import SandboxPolicyRefused
from foliot.sandbox.egress.rules import EgressRule, EgressRules

LABELS = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
HOSTS = st.one_of(NAMES, ADDRESSES.map(lambda text: normal_host(text) or ""))
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE"])
PORTS = st.integers(1, 65535)
RULES = st.builds(
    EgressRule,
    st.lists(st.one_of(HOSTS, NAMES.map(lambda name: f"*.{name}"), st.just("*")), min_size=1, max_size=3).map(tuple),
    st.lists(st.sampled_from([80, 443, 8080]), min_size=1, max_size=2).map(tuple),
    st.lists(METHODS, max_size=2).map(tuple),
    st.sampled_from(["allow", "deny"]),
)


@given(st.text(max_size=40))
def test_the_normal_form_of_a_normal_form_is_itself(text: str) -> None:
    host = normal_host(text)
    if host is not None:
        assert normal_host(host) == host
        assert host.isascii()
        assert host == host.lower()


@given(NAMES, st.booleans())
def test_case_and_a_last_dot_make_no_difference(name: str, dotted: bool) -> None:
    assert normal_host(name.upper() + "." * dotted) == name


@given(st.ip_addresses(v=6))
def test_an_ipv6_address_has_one_form(address: ipaddress.IPv6Address) -> None:
    assert normal_host(f"[{address.exploded}]") == normal_host(str(address))
    assert is_address(normal_host(str(address)) or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "-a.example",
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "1.2.3.4.",
        "a.example..",
        "a b",
        "a\0b",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "[127.0.0.1]",
        "[a.example]",
        "büro.example",
        "a%2eexample",
        "a/b",
        "u@a.example",
        "x" * 64 + ".example",
        "a." * 127 + "example",
        "a.example:80",
    ],
)
def test_what_can_be_read_in_two_ways_is_no_host(text: str) -> None:
    assert normal_host(text) is None


def test_an_ipv4_address_wrapped_as_ipv6_is_that_address() -> None:
    assert normal_host("[::ffff:169.254.169.254]") == "169.254.169.254"


@given(HOSTS, PORTS, METHODS)
def test_without_rules_nothing_is_allowed(host: str, port: int, method: str) -> None:
    assert EgressRules([]).refusal(host, port, method) == "host"


@settings(max_examples=30)
@given(st.lists(RULES, max_size=5), HOSTS, st.sampled_from([80, 443, 22]), METHODS, st.randoms(use_true_random=False))
def test_the_order_of_rules_makes_no_difference(rules, host, port, method, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(rules)
    random.shuffle(shuffled)
    first, second = EgressRules(rules), EgressRules(shuffled)
    assert first.refusal(host, port, method) == second.refusal(host, port, method)
    # A request that is allowed has a tunnel that is allowed: CONNECT is never stricter than what goes through it.
    if not first.refusal(host, port, method):
        assert not first.refusal(host, port, None)


@settings(max_examples=30)
@given(st.lists(RULES, max_size=4), HOSTS, METHODS)
def test_a_rule_that_denies_wins(rules, host, method) -> None:  # type: ignore[no-untyped-def]
    denied = EgressRule((host,), (443,), verdict="deny")
    assert EgressRules([*rules, denied]).refusal(host, 443, method) == "rule"


@settings(max_examples=30)
@given(st.lists(RULES, max_size=4), RULES, HOSTS, METHODS)
def test_another_rule_that_allows_never_takes_anything_away(rules, more, host, method) -> None:  # type: ignore[no-untyped-def]
    more = EgressRule(more.hosts, more.ports, more.methods, "allow")
    if not EgressRules(rules).refusal(host, 443, method):
        assert not EgressRules([*rules, more]).refusal(host, 443, method)


@pytest.mark.parametrize(
    ("host", "port", "method", "refusal"),
    [
        ("api.example", 443, "GET", ""),
        ("api.example", 443, "DELETE", "method"),
        ("api.example", 443, "TRACE", "method"),
        ("api.example", 22, "GET", "port"),
        ("other.example", 443, "GET", "host"),
        ("a.files.example", 80, "PUT", ""),
        ("files.example", 80, "PUT", "host"),
        ("evilfiles.example", 80, "PUT", "host"),
        ("bad.files.example", 80, "PUT", "rule"),
        ("xn--bcher-kva.example", 443, "GET", ""),
        ("192.0.2.7", 443, "GET", "host"),
        ("2001:db8::1", 443, "GET", ""),
    ],
)
def test_rules_by_host_port_and_method(host: str, port: int, method: str, refusal: str) -> None:
    rules = EgressRules(
        [
            EgressRule(("API.example.",), methods=("get", "POST")),
            EgressRule(("*.files.example",), (80, 443)),
            EgressRule(("bad.files.example",), (80,), verdict="deny"),
            EgressRule(("bücher.example", "[2001:DB8:0::1]")),
        ]
    )
    assert rules.refusal(host, port, method) == refusal


def test_every_name_is_not_every_address() -> None:
    rules = EgressRules([EgressRule(("*",))])
    assert rules.refusal("anything.example", 443, "GET") == ""
    assert rules.refusal("93.184.215.14", 443, "GET") == "host"


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (EgressRule(()), "rules[0]"),
        (EgressRule(("a.example",), ()), "rules[0]"),
        (EgressRule(("a.example",), (0,)), "rules[0].ports"),
        (EgressRule(("a.example:443",)), "rules[0].hosts"),
        (EgressRule(("https://a.example",)), "rules[0].hosts"),
        (EgressRule(("*.1.2.3.4",)), "rules[0].hosts"),
        (EgressRule(("a.*.example",)), "rules[0].hosts"),
        (EgressRule(("a.example",), methods=("TRACE",)), "rules[0].methods"),
        (EgressRule(("a.example",), methods=("GET /",)), "rules[0].methods"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_its_field(rule: EgressRule, field: str) -> None:
    with pytest.raises(SandboxPolicyRefused) as error:
        EgressRules([rule])
    assert error.value.field == field


@pytest.mark.parametrize("method", ["post", "Post", "pOST", "trace", "Connect", "track"])
def test_a_method_in_another_case_is_none_that_any_rule_allows(method: str) -> None:
    denied = EgressRule(("a.example",), methods=("POST",), verdict="deny")
    rules = EgressRules([EgressRule(("a.example",)), denied])
    assert rules.refusal("a.example", 443, "GET") == ""
    assert rules.refusal("a.example", 443, method) == "method"
