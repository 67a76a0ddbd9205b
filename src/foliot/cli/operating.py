"""From a command to the verbs of whoever runs an installation: on the store, or on the server of the settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.kernel.identity import acting

if TYPE_CHECKING:
    from foliot.client.operations import Operations
    from foliot.client.remote import RemoteClient
    from foliot.client.tooling import Tooling
    from foliot.client.triggers import Triggers
    from foliot.store.base import Database, ResourceStore
    from foliot.work.base import Tasks


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
    from foliot.client.local_triggers import LocalTriggers

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
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

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
