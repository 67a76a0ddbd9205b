"""Roles and namespaces as somebody writes them in a request that gives rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foliot.errors import InvalidInput
from foliot.server.auth.identity import EVERYWHERE, role_named
from foliot.settings.settings import NAME

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
