"""What a server says of itself, and how it is reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from foliot.cli.doctor.base import Finding, Findings, guarded
from foliot.version import __version__

if TYPE_CHECKING:
    from foliot.client.remote import RemoteClient
    from foliot.settings import Settings

AREA = "server"


async def look_at_server(client: RemoteClient, settings: Settings) -> AsyncIterator[Finding]:
    """Whether it answers, as whom it knows the caller, and how its parts are. Its own machine has its own doctor."""
    looks = (
        ("server.reachable", partial(_reachable, client, settings)),
        ("server.known", partial(_known, client)),
        ("server.health", partial(_healthy, client)),
        ("server.able", partial(_able, client)),
    )
    for check, look in looks:
        failed = False
        async for finding in guarded(AREA, check, look):
            failed = failed or finding.level == "error"
            yield finding
        if failed and check != "server.health":
            return  # what comes next would say the same


async def _reachable(client: RemoteClient, settings: Settings) -> Findings:
    version = await client.version()
    came_from = settings.origin("server")
    yield Finding(AREA, "server.reachable", "ok", f"Foliot {version} answers at {settings.server} (from {came_from})")
    if version != __version__:
        text = f"it is version {version}, and this command line {__version__}"
        yield Finding(AREA, "server.version", "note", text, "most things work; install the same one to be sure")
    if str(settings.server).startswith("http:") and not _is_here(str(settings.server)):
        text = "the way to it is not encrypted: whoever is on it can read the token"
        yield Finding(AREA, "server.tls", "warning", text, "give the server a certificate, and use https://")


async def _known(client: RemoteClient) -> Findings:
    me = await client.me()
    roles = "; ".join(f"{', '.join(held)} in {_where(space)}" for space, held in sorted(me.roles.items()))
    if me.authenticated:
        yield Finding(AREA, "server.known", "ok", f"it knows you as {me.username}: {roles or 'no roles'}")
    else:
        hint = "`foliot tokens create --admin` on its machine makes the first token"
        yield Finding(AREA, "server.known", "note", "it asks nobody for a token: there is none yet", hint)


async def _healthy(client: RemoteClient) -> Findings:
    health = await client.health()
    for name, part in health.parts.items():
        status = str(part.get("status", ""))
        more = ", ".join(f"{key} {value}" for key, value in part.items() if key != "status")
        text = f"{name}: {status}{f' ({more})' if more else ''}"
        level = "ok" if status == "ok" else "warning"
        hint = "start one with `foliot worker`, or the server with `foliot up`" if name == "workers" else ""
        yield Finding(AREA, f"server.{name}", level, text, hint)


async def _able(client: RemoteClient) -> Findings:
    found = await client.capabilities()
    has, lacks = [each.id for each in found if each.enabled], [each.id for each in found if not each.enabled]
    missing = f"; not {', '.join(lacks)}" if lacks else ""
    yield Finding(AREA, "server.able", "ok", f"it can: {', '.join(has)}{missing}")


def _where(space: str) -> str:
    return "all namespaces" if space == "*" else f"namespace {space}"


def _is_here(url: str) -> bool:
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
