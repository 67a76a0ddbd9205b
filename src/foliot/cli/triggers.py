"""From a command to schedules and webhooks: the store they are in, and the tasks they make."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from foliot.cli.connect import namespace
from foliot.cli.invocation import current
from foliot.cli.output import word_of
from foliot.errors import NotFound, UsageError
from foliot.stopping import stop_tasks
from foliot.store.base import Database, Document, Filter, Key, ResourceStore
from foliot.work.base import Tasks


class Triggers(NamedTuple):
    """What schedules and webhooks need."""

    database: Database
    store: ResourceStore
    tasks: Tasks


@asynccontextmanager
async def stored() -> AsyncGenerator[tuple[Database, ResourceStore]]:
    """The store that the settings name, for commands that only look."""
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        yield database, SqlResourceStore(database, partial(load_keyring, settings))
    finally:
        await database.close()


@asynccontextmanager
async def triggering() -> AsyncGenerator[Triggers]:
    """The store, and the tasks of a runtime on it."""
    from foliot.cli.runtimes import opened

    async with stored() as (database, store), opened() as runtime:
        yield Triggers(database, store, runtime.tasking.tasks)


async def declared(store: ResourceStore, kind: str, name: str) -> Document:
    """The resource of this name in the namespace one works in. Raises `NotFound` that names what may be meant."""
    try:
        return await store.get(Key(kind, namespace(), name))
    except NotFound:
        page = await store.list(Filter(kind, namespace()), limit=1000)
        names = [str(each["metadata"]["name"]) for each in page.items]
        near = difflib.get_close_matches(name, names, n=3) or names[:5]
        word = word_of(kind)
        hint = f"There are: {', '.join(near)}." if near else f"There is none in this namespace: apply a {kind}."
        raise NotFound(f"There is no {word} {name!r} in namespace {namespace()!r}.", hint=hint) from None


async def all_declared(store: ResourceStore, kind: str, space: str | None) -> list[Document]:
    page = await store.list(wanted := Filter(kind, space))
    found = list(page.items)
    while page.cursor is not None:
        page = await store.list(wanted, cursor=page.cursor)
        found += page.items
    return found


def pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` as it was typed. Raises `UsageError`."""
    found: dict[str, str] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{option}: {pair!r} has no value", hint="such as topic=news")
        found[key] = value
    return found


def length(text: str, option: str) -> float:
    """Seconds. Raises `UsageError`."""
    from foliot.resources.durations import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="such as 30s, 5m or 1h") from None


async def until_stopped(*work: asyncio.Task[None]) -> None:
    """Return when SIGINT or SIGTERM comes; raise what ends one of the tasks before. They are cancelled in any case."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, ValueError):  # elsewhere Ctrl-C cancels this task
            loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        await stop_tasks(stopping, *work)
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, ValueError):
                loop.remove_signal_handler(number)
