"""`foliot worker --metrics-port`: a worker that can be watched from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys

from aiohttp import ClientSession


def test_a_worker_says_where_its_metrics_are(foliot, home) -> None:
    said = foliot("worker", "--once", "--metrics-port", "0")
    assert said.code == 0, said.err
    assert re.search(r"http://127\.0\.0\.1:\d+/metrics", said.err)


def test_a_port_that_cannot_be_is_refused(foliot) -> None:
    assert foliot("worker", "--once", "--metrics-port", "70000").code == 2


async def test_a_worker_process_is_scraped_while_it_works(home) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foliot.cli", "worker", "--name", "w1", "--metrics-port", "0"),
        env={**os.environ, "FOLIOT_HOME": str(home)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stderr is not None
    try:
        address = None
        async with asyncio.timeout(60):
            while address is None:
                line = (await child.stderr.readline()).decode()
                assert line, "the worker ended early"
                address = re.search(r"http://\S+(?=/metrics)", line)
            async with ClientSession(address[0]) as client:
                while 'foliot_worker_capacity{worker="w1"} 64.0' not in (text := await _get(client, "/metrics")):
                    await asyncio.sleep(0.05)  # until it is registered; bounded by the timeout above
                assert 'foliot_workers{state="ready"} 1.0' in text
                assert 'foliot_transport_connected{transport="' in text
                assert '"ready"' in await _get(client, "/healthz")
    finally:
        child.send_signal(signal.SIGTERM)
        await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 0


async def _get(client: ClientSession, path: str) -> str:
    async with client.get(path) as answer:
        return await answer.text()
