"""Messages of triggers to sessions, said by the service of sessions."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from foliot.errors import Conflict
from foliot.kernel.routing import stored_details
from foliot.sessions.service import SessionService
from foliot.store.sessions.base import Place
from foliot.work.triggers.session_orders import SessionOrder


class RuntimePosts:
    """`SessionPosts` of one runtime."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def post(self, order: SessionOrder) -> str:
        """Says it, durably and once; the id of the session. Raises what saying it does."""
        place = Place(order.namespace, order.agent, order.user, order.channel)
        identity = order.identity
        if order.mode == "new":
            id = hashlib.sha256(f"{order.namespace}:{order.key}".encode()).hexdigest()[:32]
            with suppress(Conflict):  # begun before, by this very order
                await self._sessions.create(place, identity=identity, id=id, kind="scheduler")
        else:
            id = (await self._sessions.resolve(place, identity=identity, kind="scheduler")).id
        details = stored_details(order.details)
        await self._sessions.say(id, order.message, identity=identity, key=order.key, place=order.key, details=details)
        return id
