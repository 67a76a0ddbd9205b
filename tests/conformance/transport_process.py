"""A worker process for the tests of transports: `python transport_process.py <url>`.

Takes tickets, says so on stdout, and holds them until it is killed.
"""

from __future__ import annotations

import asyncio
import sys

from foliot.bus.base import Transport
from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.bus.nats_stream import StreamPlan
from foliot.bus.postgres import PostgresTransport
from foliot.bus.store import StoreTransport
from foliot.store.base import Notices
from foliot.store.open import open_database

QUICK = StreamPlan(ack_wait=1.0)


async def open_transport(url: str) -> Transport:
    if url.startswith("nats"):
        return await NatsTransport.open(NatsLink(NatsOptions(url)), QUICK)
    database = await open_database(url)
    return PostgresTransport(database) if isinstance(database, Notices) else StoreTransport(database)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(url: str) -> None:
    transport = await open_transport(url)
    held = []
    say("ready")
    while True:
        for each in await transport.receive(want=1, timeout=60):
            held.append(each)
            say(each.ticket.id if each.ticket else "ring")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
