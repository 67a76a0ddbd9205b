"""The rules of the egress broker: which hosts, ports and methods may be reached. Pure.

Nothing may be reached that no rule allows, and a rule that denies wins over all that allow, wherever it stands. A host
is compared in one form only, whatever way it was written in; what could be read in two ways is no host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from foliot.common.hosts import BELOW, EVERY_NAME, is_address, normal_pattern
from foliot.sandbox.base import SandboxPolicyRefused

Verdict: TypeAlias = Literal["allow", "deny"]
Outcome: TypeAlias = Literal["allowed", "denied", "failed"]

_METHOD: Final = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
# TRACE sends back what the broker put in; CONNECT inside a tunnel would be a second one.
NEVER: Final = frozenset({"TRACE", "TRACK", "CONNECT"})


class EgressRule(Struct, frozen=True):
    """One rule. `hosts` are names (`api.example`), names below one (`*.example`), addresses, or `*` for every name.

    Without `methods` a rule holds for all of them. With some, TLS to its hosts is opened by the broker, which sees the
    methods only so.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...] = (443,)
    methods: tuple[str, ...] = ()
    verdict: Verdict = "allow"


class EgressRecord(Struct, frozen=True):
    """One request, or one tunnel, and what became of it. `reason` is a code; it is empty for what went well.

    `bytes_out` left for the host, `bytes_in` came from it. Never holds a path, a header or a body.
    """

    host: str
    port: int
    method: str
    verdict: Outcome
    reason: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0


class HostSet:
    """Hosts by name, below a name, by address, or every name."""

    def __init__(self, entries: Iterable[str], field: str) -> None:
        """Raises `SandboxPolicyRefused` that names `field` for an entry that is none of these."""
        self._exact: set[str] = set()
        self._suffixes: list[str] = []
        self._every = False
        for entry in entries:
            text = normal_pattern(entry)
            if text is None:
                raise SandboxPolicyRefused(
                    field,
                    f"{entry[:80]!r} is not a host",
                    hint="expected a host such as api.example, *.example, 192.0.2.7, 2001:db8::1 or *, without a port",
                )
            if text == EVERY_NAME:
                self._every = True
            elif text.startswith(BELOW):
                self._suffixes.append(text.removeprefix("*"))
            else:
                self._exact.add(text)

    def __contains__(self, host: str) -> bool:
        if host in self._exact:
            return True
        if is_address(host):
            return False  # an address is reached only when it is named
        return self._every or any(host.endswith(suffix) for suffix in self._suffixes)


class _Compiled(Struct, frozen=True):
    hosts: HostSet
    ports: frozenset[int]
    methods: frozenset[str]
    allows: bool

    def holds(self, host: str, port: int) -> bool:
        return port in self.ports and host in self.hosts


class EgressRules:
    """All rules of one session. `within` are further sets of rules, each of which must allow a request as well."""

    def __init__(self, rules: Sequence[EgressRule], within: Sequence[Sequence[EgressRule]] = ()) -> None:
        """Raises `SandboxPolicyRefused` for a rule that makes no sense."""
        self._within = [EgressRules(each) for each in within]
        self._rules: list[_Compiled] = []
        for number, rule in enumerate(rules):
            field = f"rules[{number}]"
            if not rule.hosts or not rule.ports:
                raise SandboxPolicyRefused(field, "a rule needs hosts and ports")
            check_ports(rule.ports, f"{field}.ports")
            methods = frozenset(method.upper() for method in rule.methods)
            for method in methods:
                if not _METHOD.fullmatch(method) or method in NEVER:
                    raise SandboxPolicyRefused(f"{field}.methods", f"{method[:40]!r} is not a method to rule on")
            hosts = HostSet(rule.hosts, f"{field}.hosts")
            self._rules.append(_Compiled(hosts, frozenset(rule.ports), methods, rule.verdict == "allow"))

    def refusal(self, host: str, port: int, method: str | None) -> str:
        """Why a request is refused: `host`, `port`, `method`, `rule` or `policy`; empty when it is allowed.

        Without a method, as when a tunnel is asked for: whether there is any method that would be allowed.
        """
        here = [rule for rule in self._rules if rule.holds(host, port)]
        if method is not None and (method in NEVER or not _METHOD.fullmatch(method)):
            return "method"  # also one in lower case: no rule could be about it
        if any(not rule.allows and (not rule.methods or method in rule.methods) for rule in here):
            return "rule"
        allowing = [rule for rule in here if rule.allows]
        if not allowing:
            known = any(rule.allows and host in rule.hosts for rule in self._rules)
            return "port" if known else "host"
        if method is not None and not any(not rule.methods or method in rule.methods for rule in allowing):
            return "method"
        return "policy" if any(each.refusal(host, port, method) for each in self._within) else ""

    def by_method(self, host: str, port: int) -> bool:
        """Whether the answer for a place depends on the method."""
        return any(rule.methods for rule in self._rules if rule.holds(host, port)) or any(
            each.by_method(host, port) for each in self._within
        )

    @property
    def any_by_method(self) -> bool:
        return any(rule.methods for rule in self._rules) or any(each.any_by_method for each in self._within)


def check_ports(ports: Collection[int], field: str) -> None:
    """Raises `SandboxPolicyRefused` for a number that is no port."""
    for port in ports:
        if not 0 < port < 65536:
            raise SandboxPolicyRefused(field, f"{port!r} is not a port")
