"""How `foliot tools serve` works: from declarations to a server that runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from foliot.cli.connect import namespace
from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.cli.manifests import load
from foliot.cli.terminal import out
from foliot.engine.backends import Backends
from foliot.engine.endpoints import stored_secrets
from foliot.engine.governance import governed
from foliot.engine.powers import Grants
from foliot.engine.records.opening import open_audit
from foliot.engine.records.trail import AuditTrail
from foliot.engine.story.amounts import counted
from foliot.errors import FoliotError, InvalidInput, NotFound, UsageError
from foliot.store.base import Database, Document, Filter, ResourceStore
from foliot.tools.base import Tool
from foliot.tools.pipeline import Pipeline
from foliot.tools.secrets import Secrets
from foliot.tools.serving.link import NatsLink
from foliot.tools.serving.server import ServerConfig, ToolServer


@dataclass(frozen=True, slots=True)
class Serving:
    """What was typed."""

    files: tuple[str, ...]
    url: str | None
    names: tuple[str, ...]
    shared: bool
    create_stream: bool
    concurrency: int
    drain: float


async def serve_tools(order: Serving) -> None:
    """Serve until SIGINT or SIGTERM. Raises `UsageError`, `NotFound`, `Unavailable`, `ManifestError`."""
    settings = current().store_settings()
    url = order.url or settings.nats
    if not url:
        raise UsageError("Where is NATS?", hint="Give --nats nats://host:port, or set FOLIOT_NATS.")
    _importable_from(order.files)
    config = ServerConfig(shared=order.shared, create_stream=order.create_stream, concurrency=order.concurrency)
    async with (
        _store() as (store, database),
        _backends(store) as (backends, secrets),
        _audit(database, secrets) as audit,
    ):
        documents = await _documents(order, store)
        tools = _callable(documents, backends, strict=bool(order.files or order.names))
        parts = governed(
            store,
            clock=time.time,
            default_access=settings.default_tool_access,
            allowed_tools=settings.allowed_tools,
            secrets=secrets,
            recorders=(audit,),
        )
        link = NatsLink(url)
        server = ToolServer(Pipeline(tools, parts), link, config)
        try:
            await server.start()
            listed = ", ".join(sorted(tool.definition.name for tool in tools))
            out(f"Serving {counted(len(tools), 'tool')}: {listed}. Ctrl-C stops.", err=True)
            await _told_to_stop()
            out("Finishing what is under way …", err=True)
        finally:
            await server.stop(within=order.drain)
            await link.close()
        out(f"Stopped after {counted(server.metrics.value('executions_total'), 'call')}.", err=True)


def _importable_from(files: Sequence[str]) -> None:
    """Function tools may be modules that lie beside the manifests, or where one works."""
    beside = [path if os.path.isdir(path) else os.path.dirname(path) for path in files if path != "-"]
    for folder in (*map(os.path.abspath, beside), os.getcwd()):
        if folder not in sys.path:
            sys.path.insert(0, folder)


async def _documents(order: Serving, store: ResourceStore) -> list[Document]:
    """The Tools to serve: of the manifests, else of the store."""
    if order.files:
        found = [item.document for item in load(order.files) if item.document["kind"] == "Tool"]
    else:
        page = await store.list(wanted := Filter("Tool", namespace()))
        found = list(page.items)
        while page.cursor is not None:
            page = await store.list(wanted, cursor=page.cursor)
            found += page.items
    if order.names:
        there = {document["metadata"]["name"]: document for document in found}
        missing = [name for name in order.names if name not in there]
        if missing:
            raise NotFound(f"There is no tool {', '.join(missing)}.", hint=f"There are: {', '.join(sorted(there))}.")
        found = [there[name] for name in order.names]
    if not found:
        raise NotFound("There are no tools to serve.", hint="Name manifests with -f, or apply a Tool first.")
    return found


def _callable(documents: list[Document], backends: Backends, *, strict: bool) -> list[Tool]:
    """The tools behind the documents. What cannot be called is an error when it was asked for by name or file."""
    tools: list[Tool] = []
    for document in documents:
        name = document["metadata"]["name"]
        try:
            if document["spec"]["type"] == "queue":
                raise InvalidInput(f"{name} is itself called over NATS: serving it would call it in a circle")
            tools.append(backends.tool(document))
        except FoliotError as error:
            if strict:
                raise
            warn(f"{name} is not served: {error.message}")
    if not tools:
        raise NotFound("None of these tools can be served.")
    return tools


async def _told_to_stop() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # where signals cannot be caught, Ctrl-C cancels this task
            loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)


@asynccontextmanager
async def _backends(store: ResourceStore) -> AsyncGenerator[tuple[Backends, Secrets]]:
    settings = current().store_settings()
    secrets = stored_secrets(store, os.environ)
    backends = Backends(
        secrets,
        store,
        grants=Grants.of(settings),
        environ=os.environ,
    )
    try:
        yield backends, secrets
    finally:
        await backends.close()


@asynccontextmanager
async def _audit(database: Database, secrets: Secrets) -> AsyncGenerator[AuditTrail]:
    trail = open_audit(database, secrets, current().settings())
    try:
        yield trail
    finally:
        await trail.close()


@asynccontextmanager
async def _store() -> AsyncGenerator[tuple[ResourceStore, Database]]:
    from foliot.store.keyring import load_keyring
    from foliot.store.open import open_database
    from foliot.store.resources import SqlResourceStore

    settings = current().store_settings()
    database = await open_database(settings.store)
    try:
        yield SqlResourceStore(database, lambda: load_keyring(settings)), database
    finally:
        await database.close()
