"""An application on a socket, until it is told to stop: uvicorn, with what it leaves to others.

Streams end when the server stops (they would wait for ever), and requests under way are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import uvicorn
from starlette.applications import Starlette

from foliot.errors import Unavailable, UsageError
from foliot.server.context import Services
from foliot.server.http.connections import Bounds, bounded
from foliot.server.http.envelope import RequestLimits

if TYPE_CHECKING:
    from foliot.settings.settings import Settings

KEEP_ALIVE: Final = 30
GRACE: Final = 30
BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True)
class Listen:
    """The address to listen on, and the certificate. Port 0 is any that is free.

    With `client_ca` only those are talked to who show a certificate that it has signed.
    """

    host: str
    port: int
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.cert else "http"


def listen_of(settings: Settings) -> Listen:
    """Reads the address and the certificates from the settings.

    Raises `UsageError` for a certificate without its key, or vice versa.
    """
    host, _, port = settings.listen.rpartition(":")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise UsageError(f"for TLS, {missing} is missing", hint="set tls_cert and tls_key, both or none")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise UsageError("tls_client_ca asks for certificates, which needs TLS", hint="set tls_cert and tls_key")
    return Listen(host.strip("[]"), int(port), settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def limits_of(settings: Settings) -> RequestLimits:
    """Reads the limits of requests from the settings."""
    return RequestLimits(
        body=settings.max_body,
        media_body=max(settings.max_media_body, settings.max_body),
        rate=settings.request_rate,
        burst=settings.request_burst,
        auth_failures=settings.auth_failures,
        origins=settings.cors_origins,
        https=(settings.public_url or "").startswith("https://"),
    )


class HttpServer:
    """`async with HttpServer(app, listen) as server` serves; leaving it finishes what is under way."""

    def __init__(self, app: Starlette, listen: Listen, *, bounds: Bounds | None = None, grace: int = GRACE) -> None:
        self._app = app
        self._listen = listen
        self._bounds = bounds or Bounds()
        self._grace = grace
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> HttpServer:
        """Raises `Unavailable` when the address is taken, `UsageError` for a certificate that cannot be used."""
        self._server = _Server(_config(self._app, self._listen, self._bounds, self._grace))
        self._socket = _bound(self._listen)
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        ready = asyncio.create_task(self._server.ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Half a start cannot be undone in order; a whole one can, and takes a moment.
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
            if self._server.started:
                await self.__aexit__()
            raise
        finally:
            ready.cancel()
        if not self._server.started:
            self._socket.close()
            await self._task
            raise Unavailable("the server did not start")
        return self

    async def __aexit__(self, *_: object) -> None:
        services: Services = self._app.state.services
        services.closing.set()
        self._server.should_exit = True
        assert self._task is not None, "only what was entered is left"
        await self._task
        self._socket.close()

    @property
    def url(self) -> str:
        host, port = cast("tuple[str, int]", self._socket.getsockname()[:2])
        shown = f"[{host}]" if ":" in host else host
        return f"{self._listen.scheme}://{shown}:{port}"

    async def ended(self) -> None:
        """Return when it has stopped of itself."""
        assert self._task is not None, "only what was entered can end"
        await asyncio.wait({self._task})


class _Server(uvicorn.Server):
    """Signals are the command line's; it says when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _config(app: Starlette, listen: Listen, bounds: Bounds, grace: int) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=bounded(bounds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
        ssl_certfile=listen.cert,
        ssl_keyfile=listen.key,
        ssl_ca_certs=listen.client_ca,
        ssl_cert_reqs=ssl.CERT_REQUIRED if listen.client_ca else ssl.CERT_NONE,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"the certificate cannot be used: {error}", hint="check tls_cert, tls_key and tls_client_ca"
        ) from None
    return config


def _bound(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        bound = socket.create_server((listen.host, listen.port), family=family, backlog=BACKLOG)
        # Connections inherit it. The event loop sees to it only where a socket names its protocol, which this one does
        # not; without it the body of an answer waits 40 ms for the acknowledgement of its head.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return bound
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}",
            hint="another server may be running there; choose another port with --port",
        ) from None
