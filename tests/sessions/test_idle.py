"""Readers of idle sessions: they cost one look for all, and hear at once what happens to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import Unavailable
from foliot.kernel.identity import Identity
from foliot.sessions.idle import IdleReaders
from foliot.store.sessions.base import Place, Session, SessionMark
from tests.sessions.kit import place, quiet

ANN = Identity("ann")
LONG = 3600.0


class Store:
    """Sessions that a test changes. `looked` counts the looks."""

    def __init__(self) -> None:
        self.now: dict[str, SessionMark] = {}
        self.looked = 0
        self.away = False
        self._changed = asyncio.Event()

    async def marks(self, ids: Iterable[str]) -> Mapping[str, SessionMark]:
        if self.away:
            raise Unavailable("the store is away")
        self.looked += 1
        return {id: self.now[id] for id in ids if id in self.now}

    def next_change(self) -> Callable[[], Awaitable[None]]:
        self._changed = asyncio.Event()
        return self._waited

    async def _waited(self) -> None:
        await self._changed.wait()

    def put(self, id: str, turns: int) -> Session:
        session = Session(1, id, Place("default", "a", "u", "c"), "chat", "", "", {}, 0, 0, None, "", "", turns, 0)
        self.now[id] = session.mark
        self._changed.set()
        return session


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_hundred_readers_look_once_and_only_the_one_whose_session_changed_is_woken() -> None:
    store = Store()
    readers = IdleReaders(store, store.next_change)
    waits = [asyncio.create_task(readers.changed(store.put(f"s{n}", 0), within=LONG)) for n in range(100)]
    await settled()
    before = store.looked

    store.put("s7", 1)
    await waits[7]

    assert store.looked == before + 1
    assert [n for n, each in enumerate(waits) if each.done()] == [7]
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    store.put("s8", 1)
    await settled()
    assert store.looked == before + 1  # nobody waits, nobody looks


async def test_what_happened_before_the_wait_began_is_heard() -> None:
    store = Store()
    readers, seen = IdleReaders(store, store.next_change), store.put("s", 0)
    store.put("s", 1)

    await readers.changed(seen, within=LONG)


async def test_a_deleted_session_and_a_store_that_is_away_wake_their_readers() -> None:
    store = Store()
    readers, seen = IdleReaders(store, store.next_change), store.put("s", 0)
    store.now.clear()
    await readers.changed(seen, within=LONG)

    store.away = True
    await readers.changed(seen, within=LONG)


async def test_readers_of_other_sessions_read_nothing_while_one_is_talked_to(tmp_path: Path) -> None:
    async with Runtime(str(tmp_path / "foliot.db")) as rt:
        rt.inside.know(Agent("helper", model=ScriptedModel([{"say": "ok"}] * 3)))
        sessions, looks = rt.inside.sessions, dict[str, int]()
        ids = [(await sessions.create(place(channel=f"c{n}"), identity=ANN)).id for n in range(6)]
        told: asyncio.Queue[str] = asyncio.Queue()
        real = sessions.store.turns
        assert rt.inside.chat is rt.inside.chat  # all its readers share one look

        async def turns(session: Session, **given: object) -> object:
            looks[session.id] = looks.get(session.id, 0) + 1
            return await real(session, **given)  # pyright: ignore[reportArgumentType]

        sessions.store.turns = turns  # pyright: ignore[reportAttributeAccessIssue]

        async def watch(id: str) -> None:
            async for event in rt.inside.chat.watch(id, identity=ANN):
                told.put_nowait(f"{id} {type(event).__name__}")

        watching = [asyncio.create_task(watch(id)) for id in ids]
        async with asyncio.timeout(30):
            while len(looks) < len(ids):
                await asyncio.sleep(0)
            first = dict(looks)
            for _ in range(3):
                await sessions.say(ids[0], "hello", identity=ANN)
                await quiet(rt, ids[0])
            while await told.get() != f"{ids[0]} EndEvent":
                pass

        assert [looks[id] for id in ids[1:]] == [first[id] for id in ids[1:]]
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
