"""Callers, and their roles by namespace.

A role is held in a namespace, or everywhere (`*`). Every role includes reading; an admin may do all but act in the name
of others. What somebody cannot read does not exist for them: it is answered as missing, not as forbidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from foliot.errors import Denied, InvalidInput, NotFound, UsageError
from foliot.kernel.identity import Identity, acting, is_name
from foliot.settings.settings import NAME
from foliot.store.access.users import EVERYWHERE, includes
from foliot.store.base import Filter, Requirement

Role: TypeAlias = Literal["reader", "operator", "approver", "author", "admin", "impersonator"]
ROLES: Final[Mapping[Role, str]] = {
    "reader": "looks at everything but secret values",
    "operator": "has work done: tasks, runs, messages to them",
    "approver": "decides about calls that wait for consent",
    "author": "declares agents, tools, models and secrets",
    "admin": "all of it, and rules, tokens, and servers of tools",
    "impersonator": "has work done for other users, by name; no other role includes it",
}
# Said whether or not there is something: what is told depends only on who asks.
HIDDEN: Final = "there is nothing of this name that you can see"
# By a token of this server, a session of a browser, a token of the identity provider, the local key, or not at all.
HowKnown: TypeAlias = Literal["token", "session", "oidc", "local", "anonymous"]


def role_named(word: str) -> Role:
    """The role of this name. Raises `UsageError`."""
    for role in ROLES:
        if word.strip().lower() == role:
            return role
    raise UsageError(f"there is no role {word!r}", hint=f"the roles are {', '.join(ROLES)}")


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is what records of their acts say. `grants` are the roles by namespace, `*` being all of them.

    `id` is that of the credential, or of the account behind it: names are chosen by people, and a token may be called
    as an account is. Blank where the name is all there is. `account` is the name of the account behind a session or
    token, blank without one.
    """

    name: str
    known_by: HowKnown
    grants: Mapping[str, frozenset[Role]]
    id: str = ""
    account: str = ""

    @property
    def principal(self) -> str:
        """The owner of this caller's idempotency keys, rates and sessions."""
        return f"{self.known_by}:{self.id or self.name}"

    def may(self, role: Role, namespace: str) -> bool:
        """Whether they hold the role in this namespace; `*` asks for all namespaces."""
        return includes(self.grants.get(EVERYWHERE), role) or includes(self.grants.get(namespace), role)

    def sees(self, namespace: str) -> bool:
        return self.may("reader", namespace)

    def somewhere(self, role: Role) -> bool:
        """Whether they hold the role in any namespace."""
        return any(includes(roles, role) for roles in self.grants.values())

    @property
    def namespaces(self) -> tuple[str, ...] | None:
        """The namespaces they can read, sorted; None for all."""
        return None if self.sees(EVERYWHERE) else tuple(sorted(self.grants))

    def require(self, role: Role, namespace: str, *, missing: str = "there is nothing of this name") -> None:
        """Raises `NotFound` with the text `missing` when they cannot see the namespace, `Denied` without the role."""
        if self.may(role, namespace):
            return
        if not self.sees(namespace):
            raise NotFound(missing)
        where = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace!r}"
        raise Denied(
            f"this needs the role {role} in {where}",
            hint="ask whoever gave you your token",
            role=role,
            namespace="" if namespace == EVERYWHERE else namespace,
        )

    def identity(self, namespace: str, via: str, *, user: str = "") -> Identity:
        """Returns the identity they act with there.

        `user` is from the request: another name than their own needs a right.

        Raises `Denied`, and `UsageError` for what is no name.
        """
        wanted = user.strip(" ")
        if wanted and not is_name(wanted):
            raise UsageError(
                "the user that you act for has no name that can be shown",
                hint="a name is one line of printable characters, at most 253",
            )
        if wanted and wanted != self.name and not self.may("impersonator", namespace):
            raise Denied(
                f"you are {self.name!r} and cannot act for {wanted[:80]!r}",
                hint=f"leave out the user, or have the role impersonator in namespace {namespace!r}",
                role="impersonator",
                namespace=namespace,
            )
        return acting(wanted, self.name, via)

    def identity_for(self, user: str, via: str) -> Identity:
        """The identity of what they do in somebody's name. Whether they may is asked before."""
        return acting(user, self.name, via)

    def acting_for_self(self, via: str) -> Identity:
        """The identity of what they do in their own name."""
        return acting("", self.name, via)

    def spaces(self, namespace: str | None) -> list[str | None]:
        """Returns where to look for a list: the namespace that is asked for, or all they can see (None is all)."""
        if namespace:
            return [namespace] if self.sees(namespace) else []
        return [None] if self.namespaces is None else [*self.namespaces]

    def narrowed(self, wanted: Filter) -> Filter | None:
        """The filter, for what they can see of it; None when that is nothing."""
        if wanted.namespace is not None:
            return wanted if self.sees(wanted.namespace) else None
        visible = self.namespaces
        if visible is None:
            return wanted
        if len(visible) == 1:
            return Filter(wanted.kind, visible[0], wanted.labels, wanted.fields)
        within = Requirement("metadata.namespace", "in", visible)
        return Filter(wanted.kind, None, wanted.labels, (*wanted.fields, within))


_READING: Final[frozenset[Role]] = frozenset({"reader"})


def granted(namespaces: Iterable[str], roles: Iterable[Role]) -> dict[str, frozenset[Role]]:
    """The same roles in each of these namespaces."""
    held = frozenset(roles)
    return dict.fromkeys(namespaces, held)


def narrowed_to(
    grants: Mapping[str, frozenset[Role]], most: Mapping[str, frozenset[Role]]
) -> dict[str, frozenset[Role]]:
    """Returns the part of `grants` that a holder of `most` may have: the roles in both, where both hold them."""
    spaces = {*most, *grants} if EVERYWHERE in grants or EVERYWHERE in most else {*grants} & {*most}
    found: dict[str, frozenset[Role]] = {}
    for space in spaces:
        given = grants.get(space, frozenset()) | grants.get(EVERYWHERE, frozenset())
        limit = most.get(space, frozenset()) | most.get(EVERYWHERE, frozenset())
        if given and limit:  # every role includes reading, so two that differ have that in common
            both: set[Role] = {
                role for role in ROLES if role in given | limit and includes(limit, role) and includes(given, role)
            }
            found[space] = frozenset(both) or _READING
    return found


def granted_each(grants: Mapping[str, Iterable[str]]) -> dict[str, frozenset[Role]]:
    """Roles by namespace, from their names. Raises `UsageError` for a role that there is not."""
    return {namespace: frozenset(role_named(role) for role in roles) for namespace, roles in grants.items()}


# --- rights ----------------------------------------------------------------------------------------------------------

# Roles and namespaces as somebody writes them in a request that gives rights.

LONGEST_SPACE = 253
MOST_SPACES = 1000


def asked_role(text: str) -> str:
    """The role of this name. Raises `InvalidInput`."""
    try:
        return role_named(text)
    except InvalidInput as error:
        raise InvalidInput(f"roles: {error.message}", hint=error.hint) from None


def asked_space(text: str) -> str:
    """A namespace, or `*` for all of them. Raises `InvalidInput`."""
    if text == EVERYWHERE or (len(text) <= LONGEST_SPACE and NAME.fullmatch(text)):
        return text
    raise InvalidInput(f"namespaces: {text!r} cannot be a namespace", hint="a name, or * for all")


def asked_grants(roles: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Roles by namespace, at least one. Raises `InvalidInput`."""
    grants = {asked_space(space): [*dict.fromkeys(map(asked_role, held))] for space, held in roles.items()}
    if not grants or not all(grants.values()) or len(grants) > MOST_SPACES:
        raise InvalidInput(
            "roles: an account needs at least one role in each of its namespaces",
            hint='such as {"team-a": ["operator"]}, or {"*": ["admin"]}',
        )
    return grants
