"""`foliot up` as people start it: ready, stopped, killed, and streams that survive it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.testing.served import local_headers

Start = Callable[..., Awaitable[tuple[asyncio.subprocess.Process, str, str]]]
PATH = "/v1/model-endpoints"


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `foliot` and gives the process, its address, and what it said until then."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*words: str, **environ: str) -> tuple[asyncio.subprocess.Process, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "foliot.cli",
            "--home",
            str(tmp_path),
            *words,
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "FOLIOT_LOG_LEVEL": "warning", **environ},
        )
        started.append(process)
        assert process.stderr is not None
        said = ""
        async with asyncio.timeout(60):
            while "Ctrl-C" not in said:
                line = (await process.stderr.readline()).decode()
                assert line, f"it ended: {said}"
                said += line
        address = re.search(r"https?://[\d.]+:\d+", said)
        assert address is not None, said
        return process, address[0], said

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


def endpoint(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"provider": "mock"}}


async def test_it_says_where_it_is_and_who_is_let_in_and_stops_when_told(start: Start, tmp_path: Path) -> None:
    process, url, said = await start("up", "--port", "0")
    assert "other callers need a token" in said
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        assert (await http.get("/v1/workers")).status_code == 401
        http.headers.update(await local_headers(url, tmp_path))
        async with asyncio.timeout(60):  # it looks first what it can enforce
            while not (found := (await http.get("/v1/workers")).json()["items"]):
                await asyncio.sleep(0.2)
        (worker,) = found
        assert worker["spec"]["region"] == "default"
        assert worker["status"]["phase"] == "Ready"
        # It reads MCP servers as `foliot worker` does: one that cannot be reached does not stay Pending.
        server = {"transport": "http", "endpoint": "http://127.0.0.1:1/mcp"}
        made = await http.post("/v1/mcp-servers", json={"metadata": {"name": "m"}, "spec": server})
        assert made.status_code == 201, made.text
        async with asyncio.timeout(60):
            while (await http.get("/v1/mcp-servers/m")).json()["status"]["phase"] == "Pending":
                await asyncio.sleep(0.2)

    process.send_signal(signal.SIGTERM)

    async with asyncio.timeout(60):
        assert await process.wait() == 0


async def test_a_watch_goes_on_after_the_server_was_killed(start: Start, streaming: Any, tmp_path: Path) -> None:
    process, url, _ = await start("server", "--port", "0")
    async with httpx.AsyncClient(base_url=url, headers=await local_headers(url, tmp_path), timeout=110) as http:
        async with streaming(http, f"{PATH}/watch") as stream:
            await stream.next()
            for name in ("a", "b", "c"):
                assert (await http.post(PATH, json=endpoint(name))).status_code == 201
            first = await stream.next()
        process.kill()
        await process.wait()

    _, url, _ = await start("server", "--port", url.rpartition(":")[2])
    async with httpx.AsyncClient(base_url=url, headers=await local_headers(url, tmp_path), timeout=110) as http:
        await http.post(PATH, json=endpoint("d"))
        async with streaming(http, f"{PATH}/watch", after=first.id) as stream:
            await stream.next()
            names = [(await stream.next()).data["resource"]["metadata"]["name"] for _ in range(3)]

    assert names == ["b", "c", "d"]


async def test_a_server_ends_what_is_over_its_time_while_no_worker_lives(start: Start, tmp_path: Path) -> None:
    _, url, _ = await start("server", "--port", "0")
    async with httpx.AsyncClient(base_url=url, headers=await local_headers(url, tmp_path), timeout=110) as http:
        assert (await http.post(PATH, json=endpoint("m"))).status_code == 201
        agent = {"metadata": {"name": "a"}, "spec": {"model_ref": "m", "prompt": "Do it."}}
        assert (await http.post("/v1/agents", json=agent)).status_code == 201
        for name, timeout in (("short", "1s"), ("long", "1h")):
            task = {"metadata": {"name": name}, "spec": {"agent": "a", "input": {"topic": "hi"}, "timeout": timeout}}
            assert (await http.post("/v1/tasks", json=task)).status_code == 201
        async with asyncio.timeout(60):
            while (found := (await http.get("/v1/tasks/short")).json()["status"])["phase"] == "Pending":
                await asyncio.sleep(0.1)

        assert found["phase"] == "Cancelled", found
        assert (await http.get("/v1/tasks/long")).json()["status"]["phase"] == "Pending"


async def test_it_does_not_listen_to_strangers_without_a_token(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "foliot.cli",
        "--home",
        str(tmp_path),
        "server",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, said = await process.communicate()

    assert process.returncode == 2
    assert b"foliot tokens create --admin" in said


@pytest.mark.parametrize(
    "service", [("up", "--port", "0"), ("server", "--port", "0"), ("worker",)], ids=lambda each: each[0]
)
async def test_a_secret_key_that_is_none_is_refused_at_the_start(tmp_path: Path, service: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foliot.cli", "--home", str(tmp_path), *service),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FOLIOT_SECRET_KEY": "notakey"},
    )
    async with asyncio.timeout(60):
        _, said = await process.communicate()

    assert process.returncode == 6
    assert b"FOLIOT_SECRET_KEY is not a key" in said
    assert b"notakey" not in said


async def test_servers_keep_schedules_and_take_a_template_without_input(start: Start, tmp_path: Path) -> None:
    """Two servers and no `foliot up`: each time of a schedule makes one task."""
    (_, url, said), (_, other, _) = [await start("server", "--port", "0") for _ in range(2)]
    assert "with the scheduler" in said
    moment = (datetime.now(UTC) - timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%S")
    async with httpx.AsyncClient(base_url=url, headers=await local_headers(url, tmp_path), timeout=20) as http:
        for path, name, spec in (
            ("model-endpoints", "m", {"provider": "scripted", "default_model": "s", "script": [{"say": "{input}"}]}),
            ("agents", "writer", {"model_ref": "m"}),
            ("tasks", "brief", {"agent": "writer", "mode": "template"}),
            ("task-schedules", "once", {"task_ref": "brief", "at": moment}),
        ):
            made = await http.post(f"/v1/{path}", json={"metadata": {"name": name}, "spec": spec})
            assert made.status_code == 201, made.text
        async with asyncio.timeout(60):
            while not (slots := (await http.get("/v1/task-schedules/once/slots")).json()["slots"]):
                await asyncio.sleep(0.2)
            while slots[0]["state"] == "due":
                slots = (await http.get("/v1/task-schedules/once/slots")).json()["slots"]
        assert [slot["state"] for slot in slots] == ["fired"], slots
        tasks = (await http.get("/v1/tasks", params={"labelSelector": "foliot.dev/task-schedule=once"})).json()["items"]
        assert len(tasks) == 1
    assert url != other
