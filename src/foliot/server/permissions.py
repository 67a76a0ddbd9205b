"""Who may call what: one row for each method and path. What is not here does not start.

`where` says in which namespace the role must be held:

    public      nobody is asked who they are
    anywhere    in any namespace: the answer shows only what the caller can see
    everywhere  in all namespaces: it concerns the whole installation
    named       in the namespace of `?namespace=`, `default` without one; checked before the route runs
    listed      as `anywhere`; the route narrows its filter with `Caller.narrowed`
    inside      the route knows the namespace only when it has looked (a run, a body), and calls `Caller.require`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from foliot.server.identity import Role

Where: TypeAlias = Literal["public", "anywhere", "everywhere", "named", "listed", "inside"]


@dataclass(frozen=True, slots=True)
class Rule:
    """The role that a route needs, and where. `kinds` are the kinds of resources that need another role."""

    where: Where
    role: Role = "reader"
    kinds: Mapping[str, Role] = field(default_factory=dict[str, Role])


PUBLIC: Final = Rule("public")
ANYONE: Final = Rule("anywhere")
LISTED: Final = Rule("listed")
READ: Final = Rule("named")
LOOK: Final = Rule("inside")

RULES: Final[Mapping[tuple[str, str], Rule]] = {
    # --- health and the server itself
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/livez"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/v1/health"): ANYONE,
    ("GET", "/v1/version"): PUBLIC,
    ("GET", "/openapi.json"): ANYONE,
    ("GET", "/v1/auth/me"): ANYONE,
}
