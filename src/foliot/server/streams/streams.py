"""The shared state of the streams of one server: what they read, and how many each caller may have open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.types import Scope

from foliot.common.cancellation import stop_tasks
from foliot.errors import FoliotError, Unavailable
from foliot.server.errors import Unauthenticated
from foliot.server.streams.resource_feed import Feed
from foliot.server.streams.sse import HEARTBEAT, EventStream, Slots
from foliot.server.streams.task_feed import TaskFeed
from foliot.store.base import Database

if TYPE_CHECKING:
    from foliot.server.auth.identity import Caller
    from foliot.server.context import Authenticator


# --- signs -----------------------------------------------------------------------------------------------------------

# Whether something happened to a run or a task, asked once for all streams of this process.
#
# A stream that follows one run would otherwise read its journal again with every commit of anybody. Here one task
# looks, at most so often, at the marks of everything that is followed (two numbers each, in one query), and wakes only
# those whose mark is another one.

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
# Between two looks at least so long, and as long as the last one took.
SHORTEST_ROUND: Final = 0.01


class Sign:
    """One stream's view of what it follows. `mark` is another one whenever something happened since."""

    def __init__(self, stir: Callable[[], None]) -> None:
        self.mark: Hashable = None
        self.stir = stir


class Signs:
    """Looks for as long as anybody follows something."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs: dict[str, list[Sign]] = {}
        self._tasks: dict[str, list[Sign]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._now = asyncio.Event()

    @asynccontextmanager
    async def of_run(self, run_id: str, stir: Callable[[], None]) -> AsyncGenerator[Sign]:
        """Call `stir` whenever the run has a new event or another phase."""
        async with self._added(self._runs, run_id, stir) as sign:
            yield sign

    @asynccontextmanager
    async def of_task(self, key: int, stir: Callable[[], None]) -> AsyncGenerator[Sign]:
        """Call `stir` whenever something happened to the task or to a run of it. `key` is that of its row."""
        async with self._added(self._tasks, str(key), stir) as sign:
            yield sign

    @asynccontextmanager
    async def _added(self, place: dict[str, list[Sign]], name: str, stir: Callable[[], None]) -> AsyncGenerator[Sign]:
        sign = Sign(stir)
        place.setdefault(name, []).append(sign)
        self._now.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield sign
        finally:
            place[name].remove(sign)
            if not place[name]:
                del place[name]
            if not self._runs and not self._tasks:
                looking, self._looking = self._looking, None
                await stop_tasks(looking)

    async def _look(self) -> None:
        while True:
            began = time.perf_counter()
            self._now.clear()
            try:
                seen = self._database.change_mark()
                changed = await self._compare()
                if not changed and not self._now.is_set():
                    await self._database.wait_for_change(seen, timeout=LOOK_EVERY)
                    began = time.perf_counter()
            except Unavailable:
                await asyncio.sleep(LOOK_EVERY)
            except Exception:  # nobody waits for this task: what it does not catch, nobody hears of
                log.exception("could not look for news of runs and tasks; it is tried again")
                await asyncio.sleep(LOOK_EVERY)
            await asyncio.sleep(max(SHORTEST_ROUND, time.perf_counter() - began))

    async def _compare(self) -> bool:
        """Whether anything was new. One query: two would let a commit between them pass for seen."""
        rows = await self._database.read("marks", runs=_array(self._runs), tasks=_array(self._tasks))
        marks = {(row["kind"], row["name"]): (row["seq"], row["phase"], row["revision"], row["live"]) for row in rows}
        told = [_tell(kind, place, marks) for kind, place in (("run", self._runs), ("task", self._tasks))]
        return any(told)


def _tell(kind: str, place: dict[str, list[Sign]], marks: dict[tuple[str, str], tuple[Hashable, ...]]) -> bool:
    told = False
    for name, signs in place.items():
        mark = marks.get((kind, name), ())  # what is gone has a mark too
        for sign in signs:
            if sign.mark != mark:
                sign.mark = mark
                sign.stir()
                told = True
    return told


def _array(names: dict[str, list[Sign]]) -> str:
    return msgspec.json.encode(list(names)).decode()


# --- open streams ----------------------------------------------------------------------------------------------------


class Streams:
    """Made with the server. What follows the store does so only while somebody reads."""

    def __init__(self, database: Database, closing: asyncio.Event, auth: Authenticator, *, most: int) -> None:
        self.feed = Feed(database)
        self.signs = Signs(database)
        self.tasks = TaskFeed(database)
        self.slots = Slots(most)
        self.heartbeat = HEARTBEAT
        self._closing = closing
        self._auth = auth

    def hold(self, caller: Caller) -> AbstractContextManager[None]:
        """One of the streams that the caller may have, for as long as the block takes. Raises `TooMany`."""
        return self.slots.hold(caller.name)

    def respond(
        self,
        caller: Caller,
        frames: AsyncGenerator[bytes],
        *,
        slot: AbstractContextManager[Any] | None = None,
        told: Callable[[FoliotError], bytes] | None = None,
    ) -> EventStream:
        """Streams these frames as the answer to a request.

        It is one of the streams that the caller may have, and lasts no longer than the caller's credential. `slot` is
        what `hold` gave; `told` encodes an error for these clients, also that the server stopped before the last frame.
        """
        return EventStream(
            frames,
            closing=self._closing,
            heartbeat=self.heartbeat,
            slot=slot or self.hold(caller),
            still=partial(self.check, caller),
            told=told,
            whole=told is not None,
        )

    async def last(self, caller: Caller, scope: Scope, ends: set[asyncio.Task[Any]]) -> None:
        """Return when one of these tasks has ended. Raises `Unauthenticated` when the caller may no longer wait."""
        while True:
            timeout = self.heartbeat / 2
            done, _ = await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            with suppress(Unavailable):  # nobody is sent away because the store is away
                await self.check(caller, scope)

    async def check(self, caller: Caller, scope: Scope) -> None:
        """Raises `Unauthenticated` when the token or session is no longer good, or stands for other rights by now."""
        if (await self._auth.identify(scope)).grants != caller.grants:
            raise Unauthenticated("your rights have changed", hint="connect again")
