"""How `foliot tools serve` works: from declarations to a server that runs until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from foliot.bus.nats_link import NatsLink
from foliot.bus.open import nats_options
from foliot.cli.errors import warn
from foliot.cli.invocation import current
from foliot.cli.manifests import load
from foliot.cli.reach import namespace
from foliot.cli.runtimes import tools_from
from foliot.cli.stop_signals import StopSignals
from foliot.cli.terminal import out
from foliot.common.pages import read_all
from foliot.common.text import counted
from foliot.errors import FoliotError, NotFound, Unavailable, UsageError
from foliot.runtime.runtime import Runtime
from foliot.store.base import Document, Filter, ResourceStore
from foliot.tools.nats_worker.callers import Callers, load_callers
from foliot.tools.nats_worker.server import ServerConfig, ToolServer


@dataclass(frozen=True, slots=True)
class Serving:
    """The options of `foliot tools serve`."""

    files: tuple[str, ...]
    url: str | None
    callers: Path | None
    names: tuple[str, ...]
    shared: bool
    create_stream: bool
    concurrency: int
    drain: float


async def serve_tools(order: Serving, signals: StopSignals) -> int:
    """Serve until SIGINT or SIGTERM. Raises `FoliotError`."""
    settings = current().store_settings()
    url = order.url or settings.nats
    if not url:
        raise UsageError("Where is NATS?", hint="Give --nats nats://host:port, or set FOLIOT_NATS.")
    callers = _callers(order.callers or settings.nats_callers)
    _importable_from(order.files)
    config = ServerConfig(shared=order.shared, create_stream=order.create_stream, concurrency=order.concurrency)
    async with Runtime(settings=settings, store_wait=inf) as runtime:
        documents = await _documents(order, runtime.inside.resources)
        tools = await runtime.inside.tools.served(
            documents, namespace(), None if order.files or order.names else _not_served
        )
        if not tools.definitions:
            raise NotFound("None of these tools can be served.")
        link = NatsLink(nats_options(replace(settings, nats=url), name="foliot-tools"))
        server = ToolServer(tools, link, config, callers=callers, agents=runtime.inside.tools.rights_of)
        try:
            await _reached(link)
            await server.start()
            listed = ", ".join(sorted(tools.definitions))
            known = ", ".join(sorted(each.name for each in callers))
            out(
                f"Serving {counted(len(tools.definitions), 'tool')}: {listed}. Callers: {known}. Ctrl-C stops.",
                err=True,
            )
            await signals.wait()
            out("Finishing what is under way …", err=True)
        finally:
            await server.stop(within=order.drain)
            await link.close()
        out(f"Stopped after {counted(server.metrics.value('executions_total'), 'call')}.", err=True)
    return 0


async def _reached(link: NatsLink) -> None:
    """Wait for a NATS server that is away, and say so."""
    told = False
    while True:
        try:
            await link.reached()
        except Unavailable as error:
            if not told:
                told = True
                warn(f"{error.message}; waiting for it ({error.hint}). Ctrl-C stops.")
        else:
            return


def _callers(path: Path | None) -> Callers:
    """Raises `UsageError` when nobody could call: a server that refuses everything helps nobody."""
    if path is None:
        raise UsageError(
            "Who may call these tools over NATS?",
            hint="Give --callers FILE, or set FOLIOT_NATS_CALLERS: docs/tools.md, Tools over NATS, has an example.",
        )
    callers = load_callers(path, namespace=namespace())
    for each in callers:
        if each.entry.namespace != namespace():
            raise UsageError(
                f"{path}: caller {each.name} is of namespace {each.entry.namespace}, and {namespace()} is served",
                hint="A server serves one namespace; serve the other with --namespace and a prefix of its own.",
            )
    if not len(callers):
        raise UsageError(f"{path} names no callers.")
    return callers


def _not_served(document: Document, error: FoliotError) -> None:
    warn(f"{document['metadata']['name']} is not served: {error.message}")


def _importable_from(files: Sequence[str]) -> None:
    """Function tools may be modules that lie beside the manifests, or where one works."""
    beside = [path if os.path.isdir(path) else os.path.dirname(path) for path in files if path != "-"]
    tools_from((*beside, os.getcwd()))


async def _documents(order: Serving, store: ResourceStore) -> list[Document]:
    """The Tools to serve: of the manifests, else of the store."""
    if order.files:
        found = [item.document for item in load(order.files) if item.document["kind"] == "Tool"]
    else:
        found = await read_all(store.list, Filter("Tool", namespace()))
    if order.names:
        there = {document["metadata"]["name"]: document for document in found}
        missing = [name for name in order.names if name not in there]
        if missing:
            raise NotFound(f"There is no tool {', '.join(missing)}.", hint=f"There are: {', '.join(sorted(there))}.")
        found = [there[name] for name in order.names]
    if not found:
        raise NotFound("There are no tools to serve.", hint="Name manifests with -f, or apply a Tool first.")
    return found
