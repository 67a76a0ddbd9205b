"""From a command to the runs: opening the runtime, and finding the run that a person means."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.cli.local import LocalClient
from foliot.cli.reach import namespace, remote
from foliot.cli.terminal import out
from foliot.common.cancellation import stop_tasks
from foliot.errors import FoliotError, NotFound, UsageError
from foliot.kernel.identity import acting
from foliot.runtime.groups.groups import Groups
from foliot.runtime.local.groups import whoami as whoami
from foliot.runtime.runtime import Runtime
from foliot.settings.settings import Settings
from foliot.store.journal.base import RunInfo

if TYPE_CHECKING:
    from foliot.cli.watch.run import Client


# --- folders ---------------------------------------------------------------------------------------------------------

# Folders whose modules may be function tools, and nothing else.
#
# A tool may be a module that lies where one works. On `sys.path` such a folder would also serve everybody who tries to
# import what is not installed: an `aiodns.py` there would run inside an HTTP client. So it is asked last of all, and
# only for Foliot's own loaders and for modules that lie in it.

# Modules that import what a resource or a setting names.
_LOADERS: Final = frozenset(
    {"foliot.engine.definition.functions", "foliot.engine.audit.sinks", "foliot.models.registry"}
)


class _Folders(MetaPathFinder):
    def __init__(self) -> None:
        self.paths: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not self.paths or not self._serves(_importer()):
            return None  # parts of a package are found by the package
        return PathFinder.find_spec(fullname, self.paths, target)

    def _serves(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        name = str(frame.f_globals.get("__name__", ""))
        if name in _LOADERS:
            return True
        file = os.path.abspath(frame.f_code.co_filename)
        if name.partition(".")[0] == "foliot" or "site-packages" in file.split(os.sep):
            return False  # a folder may hold an environment, or the source of Foliot itself
        holding = max((each for each in (*sys.path, *self.paths) if _is_in(file, each)), key=len, default="")
        return holding in self.paths


def _is_in(file: str, folder: str) -> bool:
    return bool(folder) and file.startswith(folder.rstrip(os.sep) + os.sep)


def _importer() -> FrameType | None:
    """The frame of whoever imports, past this module and the machinery."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and _is_machinery(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return frame


def _is_machinery(name: str) -> bool:
    return name == __name__ or name.partition(".")[0] in (
        "importlib",
        "_frozen_importlib",
        "_frozen_importlib_external",
    )


_folders: Final = _Folders()


def tools_from(folders: Sequence[str]) -> None:
    """Let function tools be modules of these folders, behind all that is installed."""
    if _folders not in sys.meta_path:
        sys.meta_path.append(_folders)
    _folders.paths += [path for each in folders if (path := os.path.abspath(each)) not in _folders.paths]


# --- runtimes --------------------------------------------------------------------------------------------------------

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
    (see `tools_from`). Raises `UsageError` when the settings name a server.
    """
    settings = current().store_settings()
    for warning in settings.warnings:
        warn(warning)
    tools_from((*folders, os.getcwd()))
    async with Runtime(settings=settings, store_wait=store_wait) as runtime, _traced(runtime, settings):
        yield runtime


@asynccontextmanager
async def reloading_plugins(runtime: Runtime) -> AsyncGenerator[None]:
    """Has plug-ins loaded anew at SIGUSR1, meanwhile, as the settings name them then. Runs under way keep theirs."""
    loop, wanted = asyncio.get_running_loop(), asyncio.Event()

    async def reload() -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            try:
                found = await runtime.plugins.use(current().settings_anew().plugins, anew=True)
            except FoliotError as error:
                warn(f"plug-ins stay as they are: {error.message}")
                continue
            enabled = [each.name for each in found if each.state == "enabled"]
            out(f"Plug-ins were loaded anew: {', '.join(enabled) or 'none'}.", err=True)
            for each in found:
                if each.error:
                    warn(f"plug-in {each.name}: {each.error}")

    with contextlib.suppress(NotImplementedError, ValueError, AttributeError):  # not a Unix, or not the main thread
        loop.add_signal_handler(signal.SIGUSR1, wanted.set)
    reloading = asyncio.create_task(reload())
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError, ValueError, AttributeError):
            loop.remove_signal_handler(signal.SIGUSR1)
        await stop_tasks(reloading)


@asynccontextmanager
async def _traced(runtime: Runtime, settings: Settings) -> AsyncGenerator[None]:
    if settings.otel_endpoint is None:  # almost always: then nothing of it is even loaded
        yield
        return
    from foliot.runtime.telemetry import traced

    async with traced(runtime, settings):
        yield


@asynccontextmanager
async def reached(*folders: str) -> AsyncGenerator[Client]:
    """Opens every group of verbs: on the server that the settings name, else on a runtime of this process.

    Commands cannot tell which; the few that must know say why.
    """
    settings = current().settings()
    if settings.server is None:
        async with opened(*folders) as runtime:
            yield LocalClient(runtime, caller=acting("", whoami(), "cli"))
        return
    async with remote() as client:
        yield client


# Runs that are looked at together for one that is no child.
LOOKED_AT: Final = 20


def decider(client: Client, by: str | None) -> str:
    """Returns the name under which somebody decides: that of `--as`, or of whoever sits here. Raises `UsageError`."""
    if by is not None and not by.strip():
        raise UsageError("--as is blank.", hint="Leave it out to decide as yourself.")
    if by is not None and not client.runs.drives_here:
        raise UsageError(
            "--as cannot be used on a server, which knows by the token who decides.",
            hint="Leave it out; --user NAME acts for another, with the role impersonator.",
        )
    return whoami() if by is None else by


async def run_of(work: Groups, word: str | None) -> RunInfo:
    """The run with this id or the only one that begins so; the newest that somebody started when none is named.

    Raises `NotFound`, and `Conflict` with the candidates when several begin so.
    """
    if word is None:
        before: str | None = None
        while page := await work.runs.list(namespace=namespace(), limit=LOOKED_AT, before=before):
            for info in page:
                if not info.is_child:
                    return info
            before = page[-1].id
        raise NotFound(f"There are no runs in namespace {namespace()} yet.", hint="`foliot run --help` says how.")
    if not word.strip():
        raise UsageError("An empty text does not name a run.", hint="`foliot runs` lists them.")
    try:
        return await work.runs.find(word)
    except NotFound as error:
        near = f"{error.hint}; " if error.hint else ""
        raise NotFound(
            error.message, hint=f"{near}`foliot why` and `foliot task trace` take the name of a task"
        ) from None
