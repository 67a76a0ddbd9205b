"""A Foliot of its own in this process: server and worker on loopback, for examples, and for tests of programs that
speak to one.

    async with served() as url, Client(url) as client:
        …
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from foliot.client.local_access import LocalAccess
from foliot.common.cancellation import stop_tasks
from foliot.errors import Unavailable
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import Settings, load_settings
from foliot.store.queue.placement import Offer
from foliot.store.secrets.local_key import LocalKey
from foliot.tools.base import Tool


async def local_headers(url: str, home: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Returns the headers by which a client other than Foliot's calls the server at `url`, of this home, until it
    stops.

    Raises `Unavailable` when that server does not know the local key of the home.
    """
    folder = load_settings().home if home is None else Path(home)
    access = LocalAccess.to(url, folder)
    async with aiohttp.ClientSession(trust_env=False) as session:
        bearer = None if access is None else (await access.bearer(session, True))[0]
    if bearer is None:
        raise Unavailable(f"the server at {url} does not know the local key of {folder}")
    return {"Authorization": f"Bearer {bearer}"}


@asynccontextmanager
async def served(
    home: str | os.PathLike[str] | None = None, *, tools: Iterable[Tool | Callable[..., Any]] = (), places: int = 4
) -> AsyncGenerator[str]:
    """The address, while the block runs. Nobody but this machine can reach it, and `Client(url)` needs no token.

    `home` is the folder that everything is kept in, by default that of the settings; for another one it is
    `Client(url, home=home)`. `tools` are functions that agents can use by name; `places` is how many runs of tasks are
    done at a time.
    """
    settings: Settings = load_settings() if home is None else load_settings({"home": os.fspath(home)})
    async with Runtime(settings=settings, tools=tools) as runtime:
        auth = TokenAuth(
            runtime.inside.tasking.database, local=True, local_key=LocalKey.made(settings.home), settings=settings
        )
        app = create_app(runtime, settings=settings, auth=auth)
        worker = runtime.inside.tasking.worker(Offer("served", runtime.inside.runs.worker, capacity=places))
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
            working = asyncio.create_task(worker.run())
            try:
                yield server.url
            finally:
                worker.drain()
                await stop_tasks(working)
                await auth.close()
