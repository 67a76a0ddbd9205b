"""Rules of who may call a route. Each row of `server/route_table.py` has one.

`where` says in which namespace the role must be held:

    public      nobody is asked who they are
    anywhere    in any namespace: the answer shows only what the caller can see
    everywhere  in all namespaces: it concerns the whole installation
    named       in the namespace of `?namespace=`, `default` without one; checked before the route runs
    listed      as `anywhere`; the route narrows its filter with `Caller.narrowed`
    inside      the route knows the namespace only when it has looked (a run, a body), and calls `Caller.require`;
                for orders that may name their namespace `form_in` does (`http/bodies.py`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from foliot.resources.kinds import KINDS
from foliot.resources.powers import KIND_POWERS
from foliot.server.auth.identity import Role, role_named

Where: TypeAlias = Literal["public", "anywhere", "everywhere", "named", "listed", "inside"]


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The role that a route needs, and where. `kinds` are the kinds of resources that need another role.

    `query` are parameters that the handler reads from the request itself, beside those of its signature. With `others`
    the route is called by programs that are not written for it: parameters that it does not have are dropped.
    """

    where: Where
    role: Role = "reader"
    kinds: Mapping[str, Role] = field(default_factory=dict[str, Role])
    query: tuple[str, ...] = ()
    others: bool = False


PUBLIC: Final = RouteRule("public")
PROBED: Final = RouteRule("public", others=True)
ANYONE: Final = RouteRule("anywhere")
LISTED: Final = RouteRule("listed")
READ: Final = RouteRule("named")
LOOK: Final = RouteRule("inside")
OPERATE: Final = RouteRule("named", "operator")
STEER: Final = RouteRule("inside", "operator")
CONSENT: Final = RouteRule("named", "approver")

# The first of the roles that declare resources of a kind, where it is not author. All of them, and those of single
# fields, are asked for when the resource is known: see resources/powers.py and server/audit.py.
_AUTHORS: Final[Mapping[str, Role]] = {
    KINDS[kind].plural: role_named(powers.roles[0])
    for kind, powers in KIND_POWERS.items()
    if powers.roles[0] != "author"
}
DECLARE: Final = RouteRule("inside", "author", _AUTHORS)
WRITE: Final = RouteRule("named", "author", _AUTHORS)
