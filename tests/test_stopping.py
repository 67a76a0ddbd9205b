"""Tasks that are told to end do end, even when the telling got lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from foliot.bus.nats_link import NatsLink, NatsOptions
from foliot.common.cancellation import stop_tasks

GREETING = {"server_id": "S", "version": "2.10.0", "max_payload": 1_048_576, "headers": True, "proto": 1}


async def test_a_task_that_lost_its_cancellation_is_asked_again() -> None:
    asked = 0

    async def deaf() -> None:
        nonlocal asked
        while asked < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await stop_tasks(task, None, again=0.01)
    assert (task.done(), asked) == (True, 3)


async def test_how_a_task_ended_is_of_no_concern() -> None:
    async def fails() -> None:
        raise ValueError("on its own")

    over, failing = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fails())
    await over
    await stop_tasks(over, failing)
    assert failing.done()


async def test_who_waits_for_tasks_to_end_can_be_cancelled() -> None:
    go_on = asyncio.Event()

    async def slow_to_leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()

    task = asyncio.create_task(slow_to_leave())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(stop_tasks(task))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    go_on.set()
    await asyncio.wait({task})


@pytest.mark.parametrize("moment", ["greeted", "answered"])
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_is_closed_at_any_moment_of_its_beginning(moment: str, turns: int) -> None:
    """Some of these moments are those in which the client's own `wait_for` drops a cancellation."""
    reached = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO %s\r\n" % json.dumps(GREETING).encode())
        if moment == "greeted":
            reached.set()
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
                reached.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        link = NatsLink(NatsOptions(f"nats://127.0.0.1:{port}"))
        link.start()
        async with asyncio.timeout(60):
            await reached.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            await link.close()
    assert link.client is None
