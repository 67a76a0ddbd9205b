"""The transport and the live bus that the settings ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from foliot.bus.base import Delivery, Ticket, Transport
from foliot.bus.live import LiveBus, LocalLive
from foliot.bus.live_postgres import PostgresLive
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.common.waits import Waits
from foliot.errors import UsageError
from foliot.settings.settings import Settings
from foliot.store.base import Database, Notices


async def open_transport(
    settings: Settings,
    database: Database,
    *,
    clock: Callable[[], float] = time.time,
    waits: Waits | None = None,
) -> Transport:
    """NATS JetStream when `settings.nats` names a server; otherwise the database itself, by notices where it has them.

    The caller closes it, before the database. Raises `UsageError` for settings that cannot work, and `InvalidInput`
    when a stream with other contents has the name of ours; not because a server is away.
    """
    if settings.nats is not None:
        from foliot.bus.nats import NatsTransport
        from foliot.bus.nats_stream import StreamPlan

        plan = StreamPlan(stream=settings.nats_stream, prefix=settings.nats_prefix)
        return await NatsTransport.open(
            NatsLink(nats_options(settings, name="foliot-work", waits=waits)), plan, clock=clock
        )
    return over_database(database, clock=clock)


def over_database(database: Database, *, clock: Callable[[], float] = time.time) -> Transport:
    """The transport over the database itself. There is nothing to open: it uses what the database has opened."""
    if isinstance(database, Notices):
        return PostgresTransport(database, clock=clock)
    return StoreTransport(database, clock=clock)


async def open_live(settings: Settings, database: Database, *, waits: Waits | None = None) -> LiveBus:
    """Over NATS when `settings.nats` names a server, else by notices of the database, else within this process.

    The caller closes it, before the database. Raises `UsageError` for settings that cannot work.
    """
    if settings.nats is not None:
        from foliot.bus.live_nats import NatsLive

        return NatsLive(NatsLink(nats_options(settings, name="foliot-live", waits=waits)))
    return PostgresLive(database) if isinstance(database, Notices) else LocalLive()


def nats_options(settings: Settings, *, name: str, waits: Waits | None = None) -> NatsOptions:
    """How to reach the NATS server of the settings. Raises `UsageError` when they name none.

    `waits` are by default the bounds that belong to the lease of the settings.
    """
    if settings.nats is None:
        raise UsageError("no NATS server is named", hint="set FOLIOT_NATS, or nats in the configuration file")
    return NatsOptions(
        settings.nats,
        name=name,
        credentials=settings.nats_credentials,
        ca=settings.nats_ca,
        cert=settings.nats_cert,
        key=settings.nats_cert_key,
        waits=waits or Waits(settings.lease),
    )


# --- later opened ----------------------------------------------------------------------------------------------------

# A transport that is opened when it is first needed: most processes that could use one never do.


class OpenedLater:
    """A `Transport` in front of one that `opening` makes. What `opening` raises, the first use raises."""

    def __init__(self, opening: Callable[[], Awaitable[Transport]]) -> None:
        self._opening = opening
        self._opened: asyncio.Task[Transport] | None = None

    async def ready(self) -> Transport:
        """The transport itself, opened once however many ask. Raises as `open_transport`."""
        if self._opened is None or (self._opened.done() and self._opened.exception() is not None):
            self._opened = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opened)

    @property
    def opened(self) -> Transport | None:
        """The transport itself, if it is open already."""
        task = self._opened
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def _open(self) -> Transport:
        return await self._opening()

    async def publish(self, tickets: Sequence[Ticket]) -> None:
        """Publishes tickets, opening the transport on first use; see `Transport`."""
        if tickets:
            await (await self.ready()).publish(tickets)

    async def receive(self, *, want: int, timeout: float) -> Sequence[Delivery]:
        """Receives deliveries, opening the transport on first use; see `Transport`."""
        return await (await self.ready()).receive(want=want, timeout=timeout)

    async def close(self) -> None:
        """Closes the transport if it was opened."""
        if self._opened is not None:
            (opened,) = await asyncio.gather(self._opened, return_exceptions=True)
            if not isinstance(opened, BaseException):
                await opened.close()
