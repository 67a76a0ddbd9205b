"""From a command to the store and back: opening the client, and running what is asynchronous."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.client.base import Client

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end. Ctrl-C cancels the work, lets it clean up, and then ends the command.

    Nothing that a tool left behind, a thread or a task that does not listen, keeps the command from ending.
    """
    import asyncio

    from foliot.cli.logs import configure
    from foliot.stopping import ending_alone

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
