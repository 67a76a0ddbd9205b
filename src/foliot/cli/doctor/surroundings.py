"""Checks around the store: keys and their files, NATS, packages, and enforced rules."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from foliot.cli.doctor.findings import Finding, Findings, guarded, listed
from foliot.common.text import counted
from foliot.errors import SecretError
from foliot.settings.settings import Settings
from foliot.version import __version__, install_command
from foliot_runtime import REPAIR, foreign_package

if TYPE_CHECKING:
    from foliot.client.remote import RemoteClient
    from foliot.store.base import Database, ResourceStore

MOST_SECRETS: Final = 200
NATS_WITHIN: Final = 3.0
EXTRAS: Final = {
    "postgres": ("asyncpg",),
    "nats": ("nats",),
    "mcp": ("mcp",),
    "grpc": ("grpc",),
    "wasm": ("wasmtime",),
    "code": ("pydantic_monty",),
    "pydantic-ai": ("pydantic_ai",),
    "server": ("starlette", "uvicorn"),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


async def look_at_keys(
    settings: Settings, resources: ResourceStore | None, database: Database | None = None
) -> Findings:
    """Whether there is a key, only its owner can read it, it is that of the store, and opens what is stored."""
    from foliot.store.secrets.keyring import load_keyring
    from foliot.store.secrets.store_key import key_of_store, retired_keys, what_to_do

    secrets = [] if resources is None else await _secrets(resources)
    sealed_with = "" if database is None else await key_of_store(database)
    if settings.secret_key is None and not settings.secret_key_file.exists():
        if secrets:
            sealed = counted(len(secrets), "secret is", "secrets are")
            yield Finding(
                "keys",
                "keys.present",
                "error",
                f"{sealed} sealed with key {sealed_with or '?'}, and there is no key file {settings.secret_key_file}",
                "put the key file back, or name it with FOLIOT_SECRET_KEY_FILE: without it they cannot be opened",
            )
        elif sealed_with:
            yield Finding(
                "keys",
                "keys.store",
                "error",
                f"the store is sealed with key {sealed_with}, and there is no key file at {settings.secret_key_file}",
                what_to_do(sealed_with),
            )
        else:
            yield Finding(
                "keys", "keys.present", "note", "there is no key yet: the first secret makes one", "then keep a copy"
            )
        return
    ring = load_keyring(settings, create=False)
    place = "FOLIOT_SECRET_KEY" if settings.secret_key is not None else str(settings.secret_key_file)
    yield Finding(
        "keys", "keys.present", "ok", f"key {ring.active_id} of {place} is active, {len(ring.key_ids)} in all"
    )
    if sealed_with and sealed_with not in ring.key_ids:
        yield Finding(
            "keys",
            "keys.store",
            "error",
            f"the store is sealed with key {sealed_with}, which is not among the keys of {place}",
            what_to_do(sealed_with),
        )
    elif sealed_with and database is not None:
        kept = [each for each in await retired_keys(database) if each in ring.key_ids]
        told = f"; {', '.join(kept)} {'is' if len(kept) == 1 else 'are'} kept to open backups of before" if kept else ""
        yield Finding("keys", "keys.store", "ok", f"the store is sealed with key {sealed_with}{told}")
    closed = [str(key.name) for key in secrets if not await _opens(resources, key)]
    if closed:
        yield Finding(
            "keys",
            "keys.open",
            "error",
            f"{counted(len(closed), 'secret does', 'secrets do')} not open with these keys: {listed(closed)}",
            "add the key they were sealed with behind the active one, or store them again",
        )
    elif secrets:
        yield Finding("keys", "keys.open", "ok", f"all {len(secrets)} secrets that were looked at open")


async def _secrets(resources: ResourceStore) -> list[Any]:
    from foliot.store.base import Filter, Key

    page = await resources.list(Filter(kind="Secret"), limit=MOST_SECRETS)
    return [
        Key("Secret", item["metadata"].get("namespace", "default"), item["metadata"]["name"]) for item in page.items
    ]


async def _opens(resources: ResourceStore | None, key: Any) -> bool:
    assert resources is not None
    try:
        await resources.reveal(key)
    except SecretError:
        return False
    return True


async def look_at_files(settings: Settings) -> Findings:
    """Files that hold credentials, and the settings: who else can read or write them."""
    private = {"nats_credentials": settings.nats_credentials, "nats_cert_key": settings.nats_cert_key}
    for name, path in private.items():
        if path is not None:
            yield _private_file(name, path)
    config = Path(os.environ.get("FOLIOT_CONFIG") or settings.home / "config.toml")
    if _others_may_write(config):
        yield Finding("settings", "settings.file", "warning", f"others may write to {config}", f"chmod go-w {config}")
    for warning in settings.warnings:
        yield Finding("settings", "settings.names", "warning", warning, "correct it or unset it")


def _others_may_write(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_mode & 0o022)


def _private_file(name: str, path: Path) -> Finding:
    check = f"settings.{name}"
    if not path.is_file():
        return Finding("settings", check, "error", f"{name} names {path}, which is not there", "correct the setting")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding("settings", check, "warning", f"others may read {path} (mode {mode:04o})", f"chmod 600 {path}")
    return Finding("settings", check, "ok", f"only its owner may read {path}")


async def look_at_nats(settings: Settings) -> Findings:
    """Whether NATS answers, has JetStream, and the stream of tickets is as it should be. Makes nothing."""
    if settings.nats is None:
        yield Finding("nats", "nats.set", "ok", "not used: workers hear of work through the store")
        return
    from foliot.bus.nats_link import NatsLink
    from foliot.bus.nats_stream import StreamPlan, inspect
    from foliot.bus.open import nats_options

    link = NatsLink(nats_options(settings, name="foliot-doctor"))
    plan = StreamPlan(stream=settings.nats_stream, prefix=settings.nats_prefix)
    link.start()
    try:
        client = await link.connected(timeout=NATS_WITHIN)
        if client is None:
            yield Finding(
                "nats",
                "nats.reachable",
                "error",
                f"NATS at {link.options.place} does not answer; workers find work by themselves, some seconds later",
                "start it, or see address and credentials",
            )
            return
        yield Finding("nats", "nats.reachable", "ok", f"NATS at {link.options.place} answers")
        js: Any = client.jetstream()  # pyright: ignore[reportUnknownMemberType] - the client is only partly typed
        yield await _stream(js, plan, inspect)
    finally:
        await link.close()


async def _stream(js: Any, plan: Any, inspect: Any) -> Finding:
    from nats.errors import Error

    try:
        async with asyncio.timeout(NATS_WITHIN):
            differs = await inspect(js, plan)
    except (Error, TimeoutError) as error:
        return Finding(
            "nats", "nats.stream", "error", f"JetStream does not answer ({type(error).__name__})", "switch it on: -js"
        )
    if differs is None:
        return Finding("nats", "nats.stream", "note", f"there is no stream {plan.stream} yet", "a worker makes it")
    fatal, other = differs
    if fatal:
        return Finding(
            "nats", "nats.stream", "error", f"the stream {plan.stream} is unusable: {'; '.join(fatal)}", "delete it"
        )
    if other:
        return Finding(
            "nats", "nats.stream", "warning", f"the stream {plan.stream} differs: {'; '.join(other)}", "see transports"
        )
    return Finding("nats", "nats.stream", "ok", f"the stream {plan.stream} is as it should be")


async def look_at_packages() -> Findings:
    """Which extras can be used, and whether another project's package `foliot` is in the way."""
    if trouble := foreign_package():
        yield Finding("packages", "packages.foliot", "error", trouble, REPAIR)
    there = [name for name, modules in EXTRAS.items() if all(_found(module) for module in modules)]
    missing = [name for name in EXTRAS if name not in there]
    told = f"installed: {', '.join(there) or 'none'}" + (f"; not installed: {', '.join(missing)}" if missing else "")
    hint = f"{install_command(missing[0])} and so on, where they are wanted" if missing else ""
    yield Finding("packages", "packages.extras", "note" if missing else "ok", told, hint)


async def look_at_plugins(settings: Settings) -> Findings:
    """Which plug-ins are enabled, whether they load, and which are installed and not enabled."""
    from foliot.engine.plugins import examined

    found = await examined(settings.plugins)
    for each in found:
        if each.state in ("failed", "missing"):
            told = f"plug-in {each.name} does not work: {each.error}"
            hint = "repair or install its package, or take it out of the setting plugins (FOLIOT_PLUGINS)"
            yield Finding("plugins", "plugins.enabled", "error", told, hint)
    works = [f"{each.name} {each.version} ({', '.join(each.kinds)})" for each in found if each.state == "enabled"]
    if works or not found:
        yield Finding("plugins", "plugins.enabled", "ok", f"plug-ins at work: {', '.join(works) or 'none'}")
    if idle := [each.name for each in found if each.state == "disabled"]:
        hint = "name them in the setting plugins (FOLIOT_PLUGINS) to use them"
        yield Finding("plugins", "plugins.idle", "note", f"installed and not enabled: {listed(idle)}", hint)


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


async def look_at_rules(settings: Settings, resources: ResourceStore | None) -> Findings:
    """Reports the enforced rules: who may call which tool, which hosts tools may reach, and what contains them."""
    if settings.default_tool_access == "allow":
        yield Finding(
            "rules",
            "rules.default_access",
            "note",
            "an agent without roles may call every tool of which no rule speaks",
            "FOLIOT_DEFAULT_TOOL_ACCESS=deny turns that around",
        )
    else:
        yield Finding("rules", "rules.default_access", "ok", "a tool of which no rule speaks is refused")
    if settings.allowed_tools is not None:
        names = ", ".join(settings.allowed_tools) or "none"
        yield Finding("rules", "rules.allowed_tools", "ok", f"only these tools may be called at all: {names}")
    inside = ", ".join(settings.outbound_allow)
    reach = f"tools may reach the public internet, and inside: {inside}" if inside else "tools reach no inside network"
    yield Finding("rules", "rules.outbound", "ok", reach)
    if resources is not None:
        yield await _contained(resources)


async def _contained(resources: ResourceStore) -> Finding:
    """Tools that ask to be contained, in a runtime that may have nothing to contain them with."""
    from foliot.store.base import Filter

    page = await resources.list(Filter(kind="Tool"))
    contained = [item for item in page.items if _mode(item) not in ("", "none")]
    offered = ("sandboxed", "wasm") if find_spec("wasmtime") is not None else ("sandboxed",)
    wanting = [item for item in contained if _mode(item) not in offered]
    if not wanting:
        return Finding("rules", "rules.sandbox", "ok", f"{len(contained)} tools ask to be contained")
    names = listed([str(item["metadata"]["name"]) for item in wanting])
    return Finding(
        "rules",
        "rules.sandbox",
        "warning",
        f"{len(wanting)} tools ask for a sandbox, and there is none: every call of them is refused ({names})",
        "install one, or declare isolation_mode: none where that is safe",
    )


async def look_at_containers(settings: Settings) -> Findings:
    """Make a container and tell what holds it, by the engine that is set and by gVisor."""
    from foliot.sandbox.container import ContainerSandbox
    from foliot.sandbox.container_cli import RUNSC

    for runtime in (settings.container_runtime, RUNSC):
        sandbox = ContainerSandbox(cli=settings.container_cli, runtime=runtime)
        check = f"sandbox.{sandbox.name}"
        try:
            found = await sandbox.enforces()
            engine = f"{sandbox.cli.kind}{f' with {runtime}' if runtime else ''}" if found.available else ""
        finally:
            await sandbox.close()
        if not found.available:
            what = f"tools that ask for the sandbox {sandbox.name} are refused: {found.why}"
            yield Finding("sandbox", check, "note", what, found.hint)
            continue
        missing = [name for name, each in found.features.items() if not each.enforced]
        told = f"; not enforced: {listed(missing)}" if missing else ""
        yield Finding("sandbox", check, "ok", f"containers are made by {engine}{told}")


async def look_at_sandbox() -> Findings:
    """Fence a program and tell what holds it: each wall and each limit, and why one is missing."""
    from foliot.sandbox.process import ProcessSandbox
    from foliot.sandbox.wasm import Wasm

    sandbox = ProcessSandbox()
    try:
        found = await sandbox.enforces()
    finally:
        await sandbox.close()
    modules = await Wasm().enforces()
    if modules.available:
        yield Finding("sandbox", "sandbox.wasm", "ok", "WebAssembly modules run in wasmtime")
    else:
        yield Finding("sandbox", "sandbox.wasm", "note", f"tools of type wasm are refused: {modules.why}", modules.hint)
    if not found.available:
        what = f"nothing can be fenced here, so bash and every sandboxed tool is refused: {found.why}"
        yield Finding("sandbox", "sandbox.process", "warning", what, found.hint)
        return
    yield Finding("sandbox", "sandbox.process", "ok", "programs are fenced by bubblewrap")
    for name, each in found.features.items():
        if each.enforced:
            yield Finding("sandbox", f"sandbox.{name}", "ok", f"{name}: {each.how}")
        else:
            why, _, hint = each.why.partition("; start ")
            said = f"{name} is not enforced: {why}"
            yield Finding("sandbox", f"sandbox.{name}", "note", said, hint and f"start {hint}")


def _mode(document: dict[str, Any]) -> str:
    runtime: dict[str, Any] = document["spec"].get("runtime") or {}
    return str(runtime.get("isolation_mode") or "")


# --- server ----------------------------------------------------------------------------------------------------------

# What a server says of itself, and how it is reached.

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
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
