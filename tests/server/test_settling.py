"""Two people settle one call at the same moment, each over a server of their own: one word is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.foliot_processes import Processes, begin, declare

ROUNDS = 6


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Processes]:
    settings = {"store": request.getfixturevalue("postgres_url")} if request.param == "postgres" else {}
    made = Processes(tmp_path, outbound_allow="127.0.0.1", **settings)
    yield made
    await made.close()


@asynccontextmanager
async def bank() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Hears each payment, and never says what became of it."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}/pay", heard


async def lost(http: httpx.AsyncClient, run_id: str, count: int) -> dict[str, Any]:
    """Wait until a run has lost its payment for the `count`th time; the call as it is listed."""
    async with asyncio.timeout(60):
        while True:
            calls = (await http.get("/v1/unknown-calls", params={"limit": 1000})).json()["calls"]
            for each in calls:
                if each["run_id"] == run_id and each["attempt"] == count and each["phase"] == "waiting":
                    return each
            await asyncio.sleep(0.02)


async def test_of_two_words_about_one_call_one_is_taken_and_recorded(processes: Processes) -> None:
    (_, one), (_, two) = await processes.server(), await processes.server()
    await processes.worker()
    options: dict[str, Any] = {"headers": processes.headers, "timeout": 60}
    async with (
        bank() as (address, heard),
        httpx.AsyncClient(base_url=one, **options) as first,
        httpx.AsyncClient(base_url=two, **options) as second,
    ):
        spec = {"type": "http", "endpoint": address, "effect": "once"}
        for number in range(ROUNDS):
            tool = f"pay{number}"  # each fails too seldom to be left alone
            made = await first.post("/v1/tools", json={"metadata": {"name": tool}, "spec": spec})
            assert made.status_code == 201, made.text
            await declare(first, f"payer{number}", {"call": {tool: {"amount": 5}}}, {"say": "done"}, tools=(tool,))
            run_id = await begin(first, f"t{number}", f"payer{number}")
            call = await lost(first, run_id, 1)
            settle = f"/v1/runs/{run_id}/settle"
            word = {"call": call["call_id"], "decision": "run", "attempt": 1}
            answers = await asyncio.gather(
                first.post(settle, json=word),
                second.post(settle, json={**word, "decision": "happened", "result": "paid"}),
            )
            codes = [answer.status_code for answer in answers]
            assert sorted(codes) == [200, 409], [answer.text for answer in answers]
            taken = "run" if codes[0] == 200 else "happened"
            found = (await first.get("/v1/audit", params={"run": run_id, "limit": 100})).json()
            records = [each["body"] for each in found["records"]]
            said = [each["outcome"] for each in records if each["moment"] in ("decided", "act")]
            assert sorted(said) == sorted([taken, "run_settled"]), "the word that was refused is in the log"
            if taken == "happened":
                continue
            # It was paid again, and lost again: what was said of the first attempt says nothing about this one.
            await lost(first, run_id, 2)
            payments = len(heard)
            for again in (word, {"call": call["call_id"], "decision": "run"}, {"call": tool, "decision": "run"}):
                refused = await second.post(settle, json=again)
                assert refused.status_code == 409, refused.text
                assert "attempt 2" in refused.text
            assert len(heard) == payments
            done = await second.post(settle, json={**word, "decision": "happened", "attempt": 2})
            assert done.status_code == 200, done.text
