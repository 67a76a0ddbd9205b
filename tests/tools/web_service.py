"""A real HTTP server on loopback whose answers a test writes, and the parts to call it with."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from foliot.common.waits import Waits
from foliot.tools.backends.callbacks import Callbacks
from foliot.tools.backends.http import Web
from foliot.tools.base import AuthSpec, Caller, Invocation, ToolDefinition
from foliot.tools.outbound.guard import Guard, Outbound
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, Secrets

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """`answer` is called for every request; what came is kept in `requests`."""

    def __init__(self, answer: Handler) -> None:
        self.answer = answer
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return await self.answer(request)


@asynccontextmanager
async def serving(
    answer: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Service]:
    service = Service(answer)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    await site.start()
    try:
        service.url = f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()


def self_signed(folder: Path) -> ssl.SSLContext:
    """What a server shows that made its own certificate, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


@asynccontextmanager
async def saying(data: bytes) -> AsyncGenerator[str]:
    """A server that answers every first request on a connection with these bytes, whatever they are."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        await server.wait_closed()


@asynccontextmanager
async def way_out(
    environ: Mapping[str, str] | None = None,
    policy: Outbound | None = None,
    *,
    guard: Guard | None = None,
    callbacks: Callbacks | None = None,
    waits: Waits | None = None,
) -> AsyncGenerator[Web]:
    """The parts of a runtime that may call loopback; secrets come from `environ`."""
    secrets = Secrets(EnvironmentSecrets(environ or {}), Masker())
    made = Web(secrets, policy or Outbound(allow_loopback=True), guard=guard, callbacks=callbacks, waits=waits)
    try:
        yield made
    finally:
        await made.close()


def definition(endpoint: str, *, type: str = "http", auth: AuthSpec | None = None, **fields: Any) -> ToolDefinition:
    return ToolDefinition("search", type=type, endpoint=endpoint, auth=auth, **fields)


def call(arguments: dict[str, Any] | None = None, **fields: Any) -> Invocation:
    caller = Caller(namespace="default", agent="clerk", task="task-1")
    given: dict[str, Any] = {"idempotency_key": "key-1", "caller": caller, "trace_id": "trace-1", **fields}
    return Invocation("run-1", "call-1", "search", arguments or {}, **given)
