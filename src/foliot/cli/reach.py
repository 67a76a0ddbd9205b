"""From a command to the store and back: opening the client, and running what is asynchronous."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.client.base import Client
from foliot.kernel.identity import acting

if TYPE_CHECKING:
    from foliot.client.operations import Operations, Tooling, Triggers
    from foliot.client.remote import RemoteClient
    from foliot.store.base import Database, ResourceStore
    from foliot.work.tasks.base import Tasks

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end. Ctrl-C cancels the work, lets it clean up, and then ends the command.

    Nothing that a tool left behind, a thread or a task that does not listen, keeps the command from ending.
    """
    import asyncio

    from foliot.cli.logs import configure
    from foliot.common.cancellation import ending_alone

    try:
        configure(current().settings())
    except BaseException:
        work.close()
        raise
    return asyncio.run(ending_alone(work))


@asynccontextmanager
async def connected() -> AsyncGenerator[Client]:
    """A client for the store that the settings name, closed at the end whatever happens."""
    from foliot.client.open import open_client

    settings = current().settings()
    for warning in settings.warnings:
        warn(warning)
    client = await open_client(settings)
    try:
        yield client
    finally:
        await client.close()


def namespace() -> str:
    """The namespace to work in: the flag, else the setting."""
    return current().settings().namespace


# --- operating -------------------------------------------------------------------------------------------------------

# From a command to the verbs of whoever runs an installation: on the store, or on the server of the settings.


@asynccontextmanager
async def operating() -> AsyncGenerator[Operations]:
    """Records, budgets, workers and their limits."""
    if current().settings().server is not None:
        async with remote() as client:
            yield client
        return
    from foliot.client.local_operations import LocalOperations
    from foliot.client.open import whoami

    async with stored() as (database, store):
        yield LocalOperations(database, store, current().settings(), caller=acting("", whoami(), "cli"))


@asynccontextmanager
async def triggered() -> AsyncGenerator[Triggers]:
    """Schedules and webhooks."""
    if current().settings().server is not None:
        async with remote() as client:
            yield client
        return
    from foliot.client.local_operations import LocalTriggers

    async with stored() as (database, store):
        yield LocalTriggers(database, store, _tasks)


@asynccontextmanager
async def tooled() -> AsyncGenerator[Tooling]:
    """Tools outside any run."""
    if current().settings().server is not None:
        async with remote() as client:
            yield client
        return
    from foliot.cli.runtimes import opened
    from foliot.client.local_tooling import LocalTooling

    async with opened() as runtime:
        yield LocalTooling(runtime, current().settings())


@asynccontextmanager
async def remote() -> AsyncGenerator[RemoteClient]:
    """The server that the settings name. Raises `UsageError` without one."""
    from foliot.client.open import open_remote

    settings = current().settings()
    for warning in settings.warnings:
        warn(warning)
    client = open_remote(settings)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def stored() -> AsyncGenerator[tuple[Database, ResourceStore]]:
    """The store that the settings name. Raises `UsageError` when they name a server."""
    from foliot.store.open import open_database
    from foliot.store.resources.database import SqlResourceStore
    from foliot.store.secrets.keyring import load_keyring

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        yield (
            database,
            SqlResourceStore(
                database, partial(load_keyring, settings), existing=partial(load_keyring, settings, create=False)
            ),
        )
    finally:
        await database.close()


@asynccontextmanager
async def _tasks() -> AsyncGenerator[Tasks]:
    from foliot.cli.runtimes import opened

    async with opened() as runtime:
        yield runtime.tasking.tasks
