"""What was found out about a credential, believed until the store may say something else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from foliot.server.access.identity import Caller
from foliot.store.base import Database

# Where the store cannot tell for nothing whether anything changed, a credential is believed for so long without asking.
BELIEVED: Final = 1.0
MOST_KNOWN: Final = 4096


class Credential(Protocol):
    def good(self, now: float) -> bool:
        """Whether it lets anybody in at this time."""
        ...


C = TypeVar("C", bound=Credential)


class Holder(NamedTuple, Generic[C]):
    """Who somebody is, and by what."""

    caller: Caller
    by: C


class _Known(NamedTuple, Generic[C]):
    version: object | None
    at: float
    holder: Holder[C]

    def still(self, version: object | None, now: float) -> bool:
        same = self.version == version if version is not None else now - self.at < BELIEVED
        return same and self.holder.by.good(now)


class Believed(Generic[C]):
    """Asks `ask` about a text, and remembers what it said for as long as that holds."""

    def __init__(self, database: Database, ask: Callable[[str, float], Awaitable[Holder[C] | None]]) -> None:
        self._db = database
        self._ask = ask
        self._known: dict[str, _Known[C]] = {}
        # How often something was taken back: what was found out meanwhile may be of the time before.
        self._forgotten = 0

    def forget(self) -> None:
        """Something was taken back here: ask again about all of them, also where the store does not tell at once."""
        self._forgotten += 1
        self._known.clear()

    async def of(self, text: str, now: float) -> Holder[C] | None:
        """Who holds the credential with this text, if it is good now."""
        version = self._db.version()
        known = self._known.get(text)
        if known is not None and known.still(version, now):
            return known.holder
        forgotten = self._forgotten
        holder = await self._ask(text, now)
        if holder is None:
            self._known.pop(text, None)
            return None
        if forgotten != self._forgotten:
            return holder
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[text] = _Known(version, now, holder)
        return holder
