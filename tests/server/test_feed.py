"""One tail of the feed for all watches: what each sees, whoever comes late, whoever is slow."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from foliot.common.cancellation import stop_tasks
from foliot.errors import Gone
from foliot.runtime.runtime import Runtime
from foliot.server.streams import resource_feed as feed_module
from foliot.server.streams.resource_feed import BEHIND, Feed
from foliot.store.base import Delete, Filter, Key, Put, Requirement

SOON = 60.0
NUMBERS = itertools.count(1)
SHAPES = [
    Filter(),
    Filter("ModelEndpoint"),
    Filter("Memory", "b"),
    Filter(None, "a"),
    Filter("ModelEndpoint", None, (Requirement("tier", "=", ("gold",)),)),
    Filter(None, None, (), (Requirement("metadata.name", "=", ("n1",)),)),
    Filter("ModelEndpoint", "a", (Requirement("tier", "exists"),), (Requirement("spec.default_model", "!=", ("m2",)),)),
]


def document(kind: str, namespace: str, name: str, model: str, tier: str | None) -> dict[str, Any]:
    labels = {"tier": tier} if tier else {}
    spec = {"provider": "mock", "default_model": model} if kind == "ModelEndpoint" else {"type": model}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "foliot.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}


class Random:
    """Writes whatever comes to a seed's mind."""

    def __init__(self, runtime: Runtime, seed: int) -> None:
        self._resources = runtime.inside.resources
        self._chance = random.Random(seed)
        self._there: set[Key] = set()

    async def write(self, count: int) -> None:
        for _ in range(count):
            pick = self._chance.choice
            key = Key(pick(["ModelEndpoint", "Memory"]), pick("ab"), f"n{self._chance.randrange(4)}")
            if key in self._there and self._chance.random() < 0.25:
                self._there.discard(key)
                await self._resources.write([Delete(key)])
                continue
            self._there.add(key)
            model, tier = f"m{self._chance.randrange(3)}", pick([None, "gold", "tin"])
            await self._resources.write([Put(document(key.kind, key.namespace, key.name, model, tier))])


class Reading:
    """A stream that is read all the time. `pause` lets it stop reading."""

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self.events: list[tuple[int, str]] = []
        self.comments = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._came = asyncio.Condition()
        self._task = asyncio.create_task(self._read(frames))

    async def _read(self, frames: AsyncGenerator[bytes]) -> None:
        async with aclosing(frames):
            async for data in frames:
                self.comments += data.count(BEHIND)
                found = re.findall(rb'id: (\d+)\nevent: resource\ndata: {"type":"(\w+)"', data)
                async with self._came:
                    self.events += [(int(number), kind.decode()) for number, kind in found]
                    self._came.notify_all()
                await self.may_read.wait()

    async def until(self, revision: int) -> list[tuple[int, str]]:
        async with asyncio.timeout(SOON), self._came:
            await self._came.wait_for(lambda: bool(self.events) and self.events[-1][0] >= revision)
        return [event for event in self.events if event[0] <= revision]

    async def close(self) -> None:
        await stop_tasks(self._task)


async def truth(runtime: Runtime, filter: Filter, after: int, upto: int) -> list[tuple[int, str]]:
    """What a watch of the store itself says, up to a change that the filter lets through."""
    words = {"created": "added", "updated": "updated", "deleted": "deleted"}
    told: list[tuple[int, str]] = []
    watch: Any = runtime.inside.resources.watch(filter, after=after)
    async with asyncio.timeout(SOON), aclosing(watch) as changes:
        async for change in changes:
            told.append((change.revision, words[change.action]))
            if change.revision >= upto:
                break
    return told


async def seen_by(runtime: Runtime, filter: Filter) -> int:
    """A change that this filter lets through; its revision."""
    kind, space = filter.kind or "ModelEndpoint", filter.namespace or "a"
    name = "n1" if any(each.key == "metadata.name" for each in filter.fields) else "last"
    model = f"end-{next(NUMBERS)}"
    (written,) = await runtime.inside.resources.write([Put(document(kind, space, name, model, "gold"))])
    return int(written.document["metadata"]["resourceVersion"])


@pytest.mark.parametrize("seed", range(6))
async def test_every_filter_sees_from_every_place_what_a_watch_of_the_store_sees(
    runtime: Runtime, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LEAST_KEPT", 1500)
    monkeypatch.setattr(feed_module, "KEPT_BYTES", 1500)
    chance = random.Random(seed)
    writer = Random(runtime, seed)
    feed = Feed(runtime.inside.tasking.database)
    streams: list[tuple[Filter, int, Reading]] = []
    for _ in range(6):
        await writer.write(chance.randrange(15))
        await asyncio.sleep(chance.choice([0, 0.01]))
        filter, after = chance.choice(SHAPES), chance.randint(0, await runtime.inside.resources.revision())
        streams.append((filter, after, Reading(feed.frames(filter, after))))

    for filter, after, stream in streams:
        stop = await seen_by(runtime, filter)
        assert await stream.until(stop) == await truth(runtime, filter, after, stop)

    for _, _, stream in streams:
        await stream.close()
    assert feed.readers == 0


async def test_whoever_reads_slowly_is_told_misses_nothing_and_holds_up_nobody(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LEAST_KEPT", 3000)
    monkeypatch.setattr(feed_module, "KEPT_BYTES", 3000)
    feed = Feed(runtime.inside.tasking.database)
    slow, quick = Reading(feed.frames(Filter(), 0)), Reading(feed.frames(Filter(), 0))
    slow.may_read.clear()
    for _ in range(30):
        first = await seen_by(runtime, Filter())
        await quick.until(first)

    assert len(slow.events) < 5, "it does not read"
    slow.may_read.set()
    last = await seen_by(runtime, Filter())

    assert [number for number, _ in await slow.until(last)] == list(range(1, last + 1))
    assert await quick.until(last) == slow.events
    assert (slow.comments, quick.comments) == (1, 0)
    await slow.close()
    await quick.close()


async def test_what_is_not_kept_any_more_is_gone(runtime: Runtime) -> None:
    feed = Feed(runtime.inside.tasking.database)
    for _ in range(10):
        await seen_by(runtime, Filter())
    await runtime.inside.resources.compact(keep=3)
    with pytest.raises(Gone):
        await anext(feed.frames(Filter(), 2))
    stream = Reading(feed.frames(Filter(), 8))
    assert [number for number, _ in await stream.until(10)] == [9, 10]
    await stream.close()


async def test_a_frame_is_made_once_for_all_who_watch_the_same(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = feed_module.change_frame

    def counted(revision: int, action: Any, text: str) -> bytes:
        made.append(revision)
        return make(revision, action, text)

    monkeypatch.setattr(feed_module, "change_frame", counted)
    feed = Feed(runtime.inside.tasking.database)
    first = await seen_by(runtime, Filter())
    streams = [Reading(feed.frames(Filter("ModelEndpoint", each), first)) for each in (None, "a", None) * 5]
    async with asyncio.timeout(SOON):
        while feed.readers < len(streams):
            await asyncio.sleep(0)  # each begins in its turn
    for stream in streams:
        await stream.until(await seen_by(runtime, Filter()))
    last = await runtime.inside.resources.revision()
    for stream in streams:
        assert [number for number, _ in await stream.until(last)] == list(range(first + 1, last + 1))
        await stream.close()
    assert made == list(range(first + 1, last + 1))


async def test_the_tail_ends_with_its_last_reader_and_begins_again_with_the_next(runtime: Runtime) -> None:
    feed = Feed(runtime.inside.tasking.database)
    for _ in range(3):
        after = await runtime.inside.resources.revision()
        stream = Reading(feed.frames(Filter(), after))
        assert await stream.until(await seen_by(runtime, Filter())) == [(after + 1, "updated" if after else "added")]
        await stream.close()
        assert feed.readers == 0
