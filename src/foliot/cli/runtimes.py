"""From a command to the runs: opening the runtime, and finding the run that a person means."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foliot.cli.connect import namespace
from foliot.cli.errors import warn
from foliot.cli.folders import tools_from
from foliot.cli.invocation import current
from foliot.client.local_work import LOOKED_AT as LOOKED_AT
from foliot.client.local_work import LocalWork
from foliot.client.open import whoami as whoami
from foliot.client.work import Work
from foliot.engine.worker import is_gone
from foliot.errors import NotFound, UsageError
from foliot.runtime import Runtime
from foliot.settings import Settings
from foliot.store.runs import TASK_LABEL, TERMINAL, RunInfo

if TYPE_CHECKING:
    from foliot.client.remote import RemoteClient

F = TypeVar("F", bound=Callable[..., Any])


def run_argument(*, required: bool = True) -> Callable[[F], F]:
    """RUN, given to the command as `run_id`: an id, or as much of its beginning as is unique."""
    return click.argument("run_id", metavar="RUN" if required else "[RUN]", required=required)


# How long a command waits for a store that is away, unless the setting `store_wait` says. A service waits for ever.
STORE_WAIT: Final = 5.0


@asynccontextmanager
async def opened(*folders: str, store_wait: float = STORE_WAIT) -> AsyncGenerator[Runtime]:
    """The runtime on the store that the settings name. Tools are imported from the current folder too, and `folders`.

    A function tool may be a module that lies where one works; no library imports from there
    (see folders.py). Raises `UsageError` when the settings name a server.
    """
    settings = current().store_settings()
    for warning in settings.warnings:
        warn(warning)
    tools_from((*folders, os.getcwd()))
    async with Runtime(settings=settings, store_wait=store_wait) as runtime, _traced(runtime, settings):
        yield runtime


@asynccontextmanager
async def _traced(runtime: Runtime, settings: Settings) -> AsyncGenerator[None]:
    if settings.otel_endpoint is None:  # almost always: then nothing of it is even loaded
        yield
        return
    from foliot.tracing import traced

    async with traced(runtime, settings):
        yield


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the work is: the verbs on it, and the runtime when it is done in this process, else the server's client."""

    work: Work
    runtime: Runtime | None
    remote: RemoteClient | None = None

    def here(self) -> Runtime:
        """The runtime of this process. Only where there is no server."""
        assert self.runtime is not None, "the work is on a server"
        return self.runtime


@asynccontextmanager
async def reached(*folders: str) -> AsyncGenerator[Reach]:
    """The work on the server that the settings name, else on the store, as `opened` does."""
    settings = current().settings()
    if settings.server is None:
        async with opened(*folders) as runtime:
            yield Reach(LocalWork(runtime, actor=whoami()), runtime)
        return
    from foliot.client.open import open_remote

    for warning in settings.warnings:
        warn(warning)
    client = open_remote(settings)
    try:
        yield Reach(client, None, client)
    finally:
        await client.close()


async def run_of(work: Work, word: str | None) -> RunInfo:
    """The run with this id or the only one that begins so; the newest of the namespace when none is named.

    Raises `NotFound`, and `Conflict` with the candidates when several begin so.
    """
    if word is None:
        newest = await work.runs(namespace=namespace(), limit=1)
        if not newest:
            raise NotFound(f"There are no runs in namespace {namespace()} yet.", hint="`foliot run --help` says how.")
        return newest[0]
    if not word.strip():
        raise UsageError("An empty text does not name a run.", hint="`foliot runs` lists them.")
    try:
        return await work.find_run(word)
    except NotFound as error:
        near = f"{error.hint}; " if error.hint else ""
        raise NotFound(
            error.message, hint=f"{near}`foliot why` and `foliot task trace` take the name of a task"
        ) from None


def interrupted(info: RunInfo, now: float) -> bool:
    """Whether nobody drives this run although somebody should. A run of a task is not: a worker will take it."""
    return TASK_LABEL not in info.labels and is_undriven(info, now)


def is_undriven(info: RunInfo, now: float) -> bool:
    """Whether the run could go on, and nobody has it."""
    if info.phase in TERMINAL or info.phase == "waiting":
        return False
    return info.phase == "pending" or is_left_behind(info, now)


def is_left_behind(info: RunInfo, now: float) -> bool:
    """Whether whoever held the run is gone."""
    return is_gone(info.worker) or (info.lease_until is not None and info.lease_until < now)
