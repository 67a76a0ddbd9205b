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

from foliot.resources.kinds import KINDS
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

# Who declares resources of a kind, where it is not an author: what starts programs, what has work done, what consents.
_AUTHORS: Final[Mapping[str, Role]] = {
    "mcp-servers": "admin",
    "tasks": "operator",
    "workers": "admin",
    "tool-approvals": "approver",
}
DECLARE: Final = Rule("inside", "author", _AUTHORS)
WRITE: Final = Rule("named", "author", _AUTHORS)


def author_of(kind: str) -> Role:
    """The role that declares resources of a kind."""
    return _AUTHORS.get(KINDS[kind].plural, "author")


RULES: Final[Mapping[tuple[str, str], Rule]] = {
    # --- health and the server itself
    ("GET", "/healthz"): PUBLIC,
    ("GET", "/livez"): PUBLIC,
    ("GET", "/readyz"): PUBLIC,
    ("GET", "/v1/health"): ANYONE,
    ("GET", "/v1/version"): PUBLIC,
    ("GET", "/openapi.json"): ANYONE,
    ("GET", "/v1/auth/me"): ANYONE,
    # --- as clients of OpenAI call it
    ("GET", "/v1/models"): LISTED,
    ("GET", "/v1/models/{model:path}"): LOOK,
    ("POST", "/v1/chat/completions"): Rule("inside", "operator"),
    ("POST", "/v1/responses"): Rule("inside", "operator"),
    ("GET", "/v1/responses/{response_id}"): LOOK,
    ("POST", "/v1/responses/{response_id}/cancel"): Rule("inside", "operator"),
    # --- resources of every kind
    ("POST", "/v1/apply"): LOOK,
    ("GET", "/v1/events/watch"): LISTED,
    ("GET", "/v1/{kind}/watch"): LISTED,
    ("GET", "/v1/{kind}"): LISTED,
    ("POST", "/v1/{kind}"): DECLARE,
    ("GET", "/v1/{kind}/{name}"): READ,
    ("PUT", "/v1/{kind}/{name}"): WRITE,
    ("PATCH", "/v1/{kind}/{name}"): WRITE,
    ("DELETE", "/v1/{kind}/{name}"): WRITE,
    ("GET", "/v1/{kind}/{name}/status"): READ,
    ("PUT", "/v1/{kind}/{name}/status"): Rule("named", "operator"),
}
