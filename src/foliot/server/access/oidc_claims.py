"""From what an identity provider says of somebody to a name and roles here.

Names are written `oidc:<name>`: nobody at the provider can have the name of an account or a token of this server. Two
people have two names: one is taken as it is, or not at all, and a slash in it is spelt out (`%2F`), because it stands
between the name of a maker and that of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from foliot.errors import Denied
from foliot.server.access.identity import Role, role_named

PREFIX: Final = "oidc:"
LONGEST: Final = 200
ANYBODY: Final = "*"


@dataclass(frozen=True, slots=True)
class RoleRule:
    """Whoever has `value` in the claim has the role in the namespace; `*` is anybody, and all namespaces."""

    value: str
    role: Role
    namespace: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Which claims are read, and how."""

    name_claim: str
    roles_claim: str
    rules: tuple[RoleRule, ...]

    def name_of(self, claims: Mapping[str, Any]) -> str:
        """Raises `Denied` when the claim is missing or cannot be a name."""
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable() or name != name.strip():
            raise Denied(
                f"the identity provider does not say who you are in {self.name_claim!r}",
                hint="an admin sets oidc_name_claim, or the scopes that are asked for",
            )
        if self.name_claim == "email" and claims.get("email_verified", True) is not True:
            raise Denied("the identity provider has not verified your e-mail address")
        return PREFIX + name.replace("%", "%25").replace("/", "%2F")

    def grants_of(self, claims: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Roles by namespace. Raises `Denied` when there are none."""
        held = _values(claims, self.roles_claim)
        found: dict[str, set[str]] = {}
        for rule in self.rules:
            if rule.value == ANYBODY or rule.value in held:
                found.setdefault(rule.namespace, set()).add(rule.role)
        if not found:
            raise Denied("you have no role here", hint="an admin gives roles to groups with oidc_roles")
        return {namespace: tuple(sorted(roles)) for namespace, roles in sorted(found.items())}


def rules_of(texts: Sequence[str]) -> tuple[RoleRule, ...]:
    """Rules written `devs=author@team-a`. Raises `UsageError` for a role that there is not."""
    rules: list[RoleRule] = []
    for text in texts:
        value, _, grant = text.rpartition("=")
        role, _, namespace = grant.partition("@")
        rules.append(RoleRule(value.strip(), role_named(role), namespace))
    return tuple(rules)


def _values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """The texts of a claim; dots lead into objects, as in `realm_access.roles`."""
    found: Any = claims.get(name)
    if found is None and "." in name:
        found = claims
        for step in name.split("."):
            found = cast("Mapping[str, Any]", found).get(step) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return frozenset({found})
    return (
        frozenset(each for each in cast("list[Any]", found) if isinstance(each, str))
        if isinstance(found, list)
        else frozenset()
    )
