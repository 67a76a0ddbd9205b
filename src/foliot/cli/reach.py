"""From a command to the store and back: opening the client, and running what is asynchronous."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.kernel.identity import acting

if TYPE_CHECKING:
    from foliot.cli.served import ServedClient
    from foliot.runtime.groups.groups import StoreGroups
    from foliot.runtime.inside import Inside

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
async def connected() -> AsyncGenerator[StoreGroups]:
    """The verbs that need no engine, on the server that the settings name, else on the store; closed at the end."""
    settings = current().settings()
    if settings.server is not None:
        async with remote() as client:
            yield client
        return
    from foliot.runtime.local.groups import opened_store, whoami

    for warning in settings.warnings:
        warn(warning)
    async with opened_store(settings, inside=_inside, caller=acting("", whoami(), "cli")) as store:
        yield store


@asynccontextmanager
async def _inside() -> AsyncGenerator[Inside]:
    """Opens what accepts and ends work, for the few commands that do; tools may be modules of the current folder."""

    from foliot.cli.runtimes import STORE_WAIT, tools_from
    from foliot.runtime.runtime import Runtime

    tools_from((os.getcwd(),))
    async with Runtime(settings=current().store_settings(), store_wait=STORE_WAIT) as runtime:
        yield runtime.inside


def namespace() -> str:
    """The namespace to work in: the flag, else the setting."""
    return current().settings().namespace


@asynccontextmanager
async def remote() -> AsyncGenerator[ServedClient]:
    """Opens the server that the settings name, to ask about itself. Raises `UsageError` without one."""
    from foliot.cli.served import open_server

    settings = current().settings()
    for warning in settings.warnings:
        warn(warning)
    client = open_server(settings)
    try:
        yield client
    finally:
        await client.close()
