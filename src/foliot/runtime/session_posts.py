"""Messages of triggers to sessions, said by the service of sessions."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

from foliot.engine.base import Clock
from foliot.errors import Conflict
from foliot.kernel.identity import acting
from foliot.kernel.routing import stored_details
from foliot.sessions.service import SessionService
from foliot.store.access.tokens import IMPERSONATOR, SqlTokens
from foliot.store.base import Database
from foliot.store.sessions.base import Place, SessionArchived
from foliot.store.taken import MessageKey
from foliot.work.triggers.session_orders import SessionOrder

# Somebody may begin another conversation between the two steps, again and again.
_TRIES: Final = 5


class RuntimePosts:
    """`SessionPosts` of one runtime."""

    def __init__(self, sessions: SessionService, database: Database, *, clock: Clock) -> None:
        self._sessions = sessions
        self._tokens = SqlTokens(database)
        self._clock = clock

    async def post(self, order: SessionOrder) -> str:
        """Says it, durably and once, whatever session is active by then; the id of the session that it was said to.

        The key of an order is that of an event or a slot: when a trigger was changed since, it is still the same order.
        Raises what saying it does.
        """
        for _ in range(_TRIES - 1):
            with suppress(SessionArchived):
                return await self._post(order)
        return await self._post(order)

    async def _post(self, order: SessionOrder) -> str:
        place = Place(order.namespace, order.agent, order.user, order.channel)
        identity = order.identity
        if order.user != identity.user and await self._tokens.holds(
            identity.user, IMPERSONATOR, order.namespace, now=self._clock()
        ):
            identity = acting(order.user, identity.user, identity.via)
        if order.mode == "new":
            id = hashlib.sha256(f"{order.namespace}:{order.key}".encode()).hexdigest()[:32]
            with suppress(Conflict):  # begun before, by this very order
                await self._sessions.create(place, identity=identity, id=id, kind="scheduler")
        else:
            id = (await self._sessions.resolve(place, identity=identity, kind="scheduler")).id
        said = await self._sessions.say(
            id,
            order.message,
            identity=identity,
            key=order.key,
            place=order.key,
            details=stored_details(order.details),
            once=MessageKey(f"orders:{order.namespace}", order.key, digest=""),
        )
        return said.session or id
