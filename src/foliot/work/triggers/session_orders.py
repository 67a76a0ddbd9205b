"""Orders of triggers to say something to a session, and the protocol by which they are carried out.

An order is complete: whoever carries it out, however often, says one thing once (`key`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from msgspec import Struct

from foliot.kernel.identity import Identity
from foliot.kernel.routing import MessageDetails, Provenance, Routing
from foliot.resources.paths import fill
from foliot.store.base import DeclaredBy


class SessionOrder(Struct, frozen=True):
    """A message to the session of an agent, a user and a channel; `mode: new` begins another one for it.

    `key` is the key of the input. The session of a `new` order has an id that comes from it.
    """

    namespace: str
    agent: str
    user: str
    channel: str
    mode: Literal["reuse", "new"]
    message: str
    key: str
    identity: Identity
    details: MessageDetails


class SessionPosts(Protocol):
    """Says things to sessions on behalf of triggers; implemented by runtime/session_posts.py."""

    async def post(self, order: SessionOrder) -> str:
        """Says it, durably and once; the id of the session. Raises what saying it does."""
        ...


def session_order(
    target: dict[str, Any],
    *,
    namespace: str,
    declarer: DeclaredBy,
    via: str,
    key: str,
    value_of: Callable[[str], str],
    provenance: Provenance,
    attachments: tuple[dict[str, Any], ...] = (),
) -> SessionOrder:
    """Returns the order that `spec.session` of a trigger makes.

    It acts for whoever declared the trigger. For another user it acts where the operator did, or somebody with the role
    impersonator; that is judged when the order is carried out, and the session of another is refused then.
    """
    user: str = target.get("user") or declarer.user
    identity = Identity(declarer.user, via=via)
    if declarer.operator and user != declarer.user:
        identity = Identity(user, by=declarer.user, via=via)
    deliver: dict[str, str] = target.get("deliver") or {}
    routing = Routing(to=deliver.get("recipient", ""), channel=deliver.get("channel", ""))
    return SessionOrder(
        namespace=namespace,
        agent=target["agent"],
        user=user,
        channel=target.get("channel", ""),
        mode=target.get("session_mode", "reuse"),
        message=fill(target["message"], value_of),
        key=key,
        identity=identity,
        details=MessageDetails(routing, bool(deliver), provenance, attachments),
    )
