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
from typing import Any

from foliot.runtime import Runtime
from foliot.server.access.auth import Anonymous
from foliot.server.app import create_app
from foliot.server.edge.serving import HttpServer, Listen
from foliot.settings import Settings, load_settings
from foliot.stopping import stop_tasks
from foliot.store.placement import Offer
from foliot.tools.base import Tool


@asynccontextmanager
async def served(
    home: str | os.PathLike[str] | None = None, *, tools: Iterable[Tool | Callable[..., Any]] = (), places: int = 4
) -> AsyncGenerator[str]:
    """The address, while the block runs. Nobody is asked for a token, and nobody but this machine can reach it.

    `home` is the folder that everything is kept in, by default that of the settings; `tools` are functions that agents
    can use by name; `places` is how many runs of tasks are done at a time.
    """
    settings: Settings = load_settings() if home is None else load_settings({"home": os.fspath(home)})
    async with Runtime(settings=settings, tools=tools) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        worker = runtime.tasking.worker(Offer("served", runtime.runs.worker, capacity=places))
        async with HttpServer(app, Listen("127.0.0.1", 0)) as server:
            working = asyncio.create_task(worker.run())
            try:
                yield server.url
            finally:
                worker.drain()
                await stop_tasks(working)
