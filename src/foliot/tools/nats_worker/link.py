"""The connection to NATS that callers and servers of tools share: made when it is first needed, and kept up for ever.

A lost connection is not an error here: the client reconnects by itself, and whoever waits looks again after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.errors import Unavailable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

log = logging.getLogger(__name__)

STREAM: Final = "AGENT"
CAPTURED: Final = ("tool.execute.>", "tool.result.*")
_WEEK: Final = 7 * 24 * 3600.0


class NatsLink:
    """One connection. `url` may hold a password; no error or log ever repeats it."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "foliot-tools",
        connect_seconds: float | None = None,
        options: Mapping[str, Any] | None = None,
        waits: Waits | None = None,
    ) -> None:
        """`options` are those of the client's `connect`: credentials, TLS. `waits` bound what is waited for."""
        self._options: dict[str, Any] = {"servers": url, "name": name} | dict(options or {})
        self._waits = waits or Waits()
        self._connect_seconds = self._waits.attempt if connect_seconds is None else connect_seconds
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._changes: set[asyncio.Event] = set()

    async def client(self) -> Client:
        """The client, connected at least once. Raises `Unavailable` when no server answers."""
        async with self._opening:
            if self._client is None or self._client.is_closed:
                self._client = await self._connect()
            return self._client

    async def jetstream(self, *, timeout: float = 5.0) -> JetStreamContext:
        client: Any = await self.client()  # its options are not typed
        return client.jetstream(timeout=timeout)

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    def on_reconnect(self, event: asyncio.Event) -> Callable[[], None]:
        """Set `event` whenever the connection is there again; returns how to stop that."""
        self._changes.add(event)
        return lambda: self._changes.discard(event)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            # A silent connection never takes what waits to be sent; one that breaks meanwhile cancels its closing.
            closing = asyncio.create_task(client.close())
            await asyncio.wait({closing}, timeout=self._waits.goodbye)
            await stop_tasks(closing)

    async def _connect(self) -> Client:
        try:
            from nats.aio.client import Client
        except ImportError:
            raise Unavailable(
                "NATS needs the package nats-py, which is not installed", hint="pip install 'foliot[nats]'"
            ) from None
        client = Client()
        try:
            async with asyncio.timeout(self._connect_seconds):
                await client.connect(
                    **self._options,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,  # pyright: ignore[reportArgumentType] - it only sleeps for it
                    connect_timeout=2,
                    # Ended after two pings without an answer, as every connection: a silent one looks like a quiet one.
                    ping_interval=self._waits.ping,  # pyright: ignore[reportArgumentType] - it only sleeps for it
                    max_outstanding_pings=1,
                    error_cb=_quiet,
                    reconnected_cb=self._reconnected,
                )
        except BaseException as error:
            await client.close()
            if isinstance(error, TimeoutError | OSError | ValueError) or _is_nats(error):
                raise Unavailable(
                    f"no NATS server answered within {self._connect_seconds:g} s",
                    hint="is the address in FOLIOT_NATS right, and is the server running?",
                ) from None
            raise
        return client

    async def _reconnected(self) -> None:
        for event in self._changes:
            event.set()


async def ensure_stream(js: Any, *, name: str = STREAM, prefixes: Sequence[str] = ()) -> None:
    """Make the stream that keeps calls and results, unless there is one already. `prefixes` end with a dot."""
    from nats.js.api import StreamConfig
    from nats.js.errors import NotFoundError

    try:
        await js.stream_info(name)
    except NotFoundError:
        subjects = [f"{prefix}{subject}" for prefix in ("", *prefixes) for subject in CAPTURED]
        await js.add_stream(StreamConfig(name=name, subjects=subjects, max_age=_WEEK))


async def wait_for_stream(js: Any, *, name: str, tries: int, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Until the stream is there: whoever runs the deployment makes it. Raises `Unavailable`."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    why, wait = "it is not there", 0.1
    for attempt in range(tries):
        try:
            await js.stream_info(name)
            return
        except NotFoundError:
            why = "it is not there"
        except (Error, TimeoutError) as error:
            why = type(error).__name__
        if attempt + 1 < tries:
            await sleep(wait)
            wait = min(wait * 2, 2.0)
    raise Unavailable(
        f"the JetStream stream {name!r} cannot be used: {why}",
        hint="make it with the subjects tool.execute.> and tool.result.*, or start with --create-stream",
    )


def _is_nats(error: BaseException) -> bool:
    from nats.errors import Error

    return isinstance(error, Error)


async def _quiet(error: Exception) -> None:
    """Errors of the connection are seen where something is waited for; here they are only noted."""
    log.debug("NATS: %s", type(error).__name__)
