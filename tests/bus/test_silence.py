"""A NATS server that goes silent without a word is found out, and one that answers again is used again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from foliot.bus.base import Ticket
from foliot.bus.nats import NatsTransport
from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.common.waits import Waits
from simulators.proxy import Proxy

ENDS = 60.0
# The client library forgets the connection of an attempt that timed out, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
TICKET = Ticket("t1", "r1", "default", "clerk", "task", due_at=0.0)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENDS):
        while not holds():
            await asyncio.sleep(0.02)


async def test_tickets_go_out_when_a_silent_server_answers_again(nats_url: str) -> None:
    with Proxy(nats_url) as proxy:
        link = NatsLink(NatsOptions(proxy.url, waits=Waits(lease=1.0)))
        transport = await NatsTransport.open(link, patience=ENDS)
        assert transport.is_connected
        proxy.silence()
        await transport.publish([TICKET])
        assert await transport.receive(want=1, timeout=0.5) == []
        await until(lambda: link.client is None)
        proxy.pass_through()
        async with asyncio.timeout(ENDS):
            while not (got := await transport.receive(want=1, timeout=1.0)) or got[0].ticket is None:
                pass
        assert got[0].ticket.run_id == "r1"
        await got[0].done()
        proxy.silence()
        await asyncio.wait_for(transport.close(), ENDS)


async def test_waiting_for_a_connection_that_is_lost_unnoticed_lets_others_work() -> None:
    link = NatsLink(NatsOptions("nats://127.0.0.1:1"))
    link._up.set()  # pyright: ignore[reportPrivateUsage]  # nobody has said yet that it is not
    others = asyncio.create_task(asyncio.sleep(0))

    assert await link.connected(timeout=0.05) is None
    assert others.done()


async def test_a_link_of_tools_can_be_closed_in_silence(nats_url: str) -> None:
    with Proxy(nats_url) as proxy:
        link = NatsLink(NatsOptions(proxy.url, waits=Waits(lease=1.0)))
        client = await link.reached()
        proxy.silence()
        await client.publish("tool.x", b"lost")
        await until(lambda: link.client is None)
        await asyncio.wait_for(link.close(), ENDS)
