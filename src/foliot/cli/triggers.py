"""From a command to schedules and webhooks: the store they are in, and the tasks they make."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from foliot.cli.runtimes import opened
from foliot.common.durations import seconds
from foliot.errors import UsageError
from foliot.runtime.session_posts import RuntimePosts
from foliot.store.base import Database, ResourceStore
from foliot.work.tasks.base import Tasks
from foliot.work.triggers.session_orders import SessionPosts


class Triggers(NamedTuple):
    """The services that schedules and webhooks need."""

    database: Database
    store: ResourceStore
    tasks: Tasks
    posts: SessionPosts


@asynccontextmanager
async def triggering() -> AsyncGenerator[Triggers]:
    """Opens the store, and the tasks of a runtime on it."""
    async with opened() as runtime:
        inside = runtime.inside
        yield Triggers(
            inside.database,
            inside.resources,
            inside.tasking.tasks,
            RuntimePosts(inside.sessions, inside.database, clock=inside.clock),
        )


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
    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="such as 30s, 5m or 1h") from None
