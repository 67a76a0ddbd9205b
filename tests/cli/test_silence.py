"""A server whose database is away when it starts, and silent later: it waits, tells the truth, and can be stopped."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, ClientTimeout

from simulators.proxy import Proxy

ENDS = 90.0


async def line_with(lines: asyncio.StreamReader, pattern: str) -> str:
    async with asyncio.timeout(ENDS):
        while line := (await lines.readline()).decode():
            if found := re.search(pattern, line):
                return found[0]
    raise AssertionError(f"it ended without a line with {pattern}")


async def collect(lines: asyncio.StreamReader, into: list[bytes]) -> None:
    while line := await lines.readline():
        into.append(line)


@pytest.fixture
async def up(postgres_url: str, home: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Proxy]]:
    with Proxy(postgres_url) as proxy:
        proxy.drop()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", "up", "--port", "0"),
            env={**os.environ, "FOLIOT_HOME": str(home), "FOLIOT_STORE": proxy.url, "FOLIOT_LEASE": "6s"},
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield child, proxy
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def test_a_server_waits_for_its_store_and_tells_when_it_is_silent(
    up: tuple[asyncio.subprocess.Process, Proxy],
) -> None:
    child, proxy = up
    assert child.stderr is not None
    await line_with(child.stderr, "waiting for it")
    proxy.pass_through()
    url = await line_with(child.stderr, r"http://[0-9.]+:\d+")
    rest: list[bytes] = []
    reading = asyncio.create_task(collect(child.stderr, rest))
    async with ClientSession(url, timeout=ClientTimeout(total=ENDS)) as client:
        async with client.get("/readyz") as answer:
            assert answer.status == 200
        proxy.silence()
        for path, headers in (("/readyz", {}), ("/v1/agents", {"Authorization": f"Bearer fol_{'a' * 12}_{'b' * 43}"})):
            async with client.get(path, headers=headers) as answer:
                assert answer.status == 503, await answer.text()
                assert answer.headers["Retry-After"]
        async with client.get("/livez") as answer:
            assert answer.status == 200
    child.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(child.wait(), ENDS) == 0
    await reading
    assert b"Traceback" not in b"".join(rest)


@pytest.mark.parametrize("words", ["up --port 0", "server --port 0", "worker"])
async def test_a_service_is_stopped_while_it_still_waits_for_its_store(
    words: str, postgres_url: str, home: Path
) -> None:
    with Proxy(postgres_url) as proxy:
        proxy.drop()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", *words.split()),
            env={**os.environ, "FOLIOT_HOME": str(home), "FOLIOT_STORE": proxy.url},
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stderr is not None
        await line_with(child.stderr, "waiting for it")
        child.send_signal(signal.SIGTERM)
        said = await asyncio.wait_for(child.stderr.read(), ENDS)
        assert await asyncio.wait_for(child.wait(), ENDS) == 0, said
    assert b"Traceback" not in said


async def test_a_command_waits_a_moment_and_ends_in_words(postgres_url: str, home: Path) -> None:
    with Proxy(postgres_url) as proxy:
        proxy.drop()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "foliot.cli", "worker", "--once"),
            env={**os.environ, "FOLIOT_HOME": str(home), "FOLIOT_STORE": proxy.url, "FOLIOT_STORE_WAIT": "1s"},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await asyncio.wait_for(child.communicate(), ENDS)
    assert child.returncode == 7
    assert "does not answer" in said.decode()
    assert "Traceback" not in said.decode()
