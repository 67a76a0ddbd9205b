"""The warm state of a process for the sessions of users, and when it is stale.

    warm                                          made anew
    conversations that were read                  from their journals
    connections to MCP servers, their programs    at the next call; a call under way ends where it is
    access tokens (OAuth)                         fetched at the next call
    endpoints of models, with their keys          looked up at the next question

Credentials of tools, hooks, channels and fences are looked up when they are used, and are never warm. An interpreter of
`python` and the program of a runner belong to a turn and end with it. The number of times that a user was invalidated
is in the store: a process compares it when a turn of that user begins.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foliot.runtime.inside import Inside
    from foliot.store.sessions.base import Place

# So many users are known by number; another one counts as not seen, and what is warm for them is made anew once.
MOST_USERS: Final = 10_000


class WarmState:
    """The warm state of one runtime."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._seen: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def freshen(self, place: Place) -> None:
        """Lets go of what is stale for the user of a place, before a turn begins."""
        user = place.namespace, place.user
        marked = await self._inside.sessions.store.staleness(*user)
        if marked == self._seen.get(user, 0):
            return
        self._seen[user] = marked
        self._seen.move_to_end(user)
        if len(self._seen) > MOST_USERS:
            self._seen.popitem(last=False)
        self._inside.runs.conversations.forget()
        self._inside.models.forget()
        self._inside.backends.forget(*user)
