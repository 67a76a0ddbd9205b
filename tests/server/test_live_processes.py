"""What a worker's model writes is seen in a stream of another process, over PostgreSQL and over NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.foliot_processes import Processes, begin, declare

ROUNDS = 30
SAID = "This is written word by word, in another process than the one that shows it."


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=pytest.mark.services),
        pytest.param("nats", marks=pytest.mark.services),
    ]
)
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Processes]:
    settings = (
        {"store": request.getfixturevalue("postgres_url")}
        if request.param == "postgres"
        else {"nats": request.getfixturevalue("nats_url")}
    )
    made = Processes(tmp_path, **settings)
    yield made
    await made.close()


async def test_a_stream_shows_what_the_model_of_a_worker_writes(processes: Processes, streaming: Any) -> None:
    _, url = await processes.server()
    async with httpx.AsyncClient(base_url=url, headers=processes.headers, timeout=110) as http:
        turn = {"say": SAID, "call": {"ask_user": {"question": "More?"}}, "chunk": 5, "pace": "1ms"}
        await declare(http, "writer", {**turn, "repeat": ROUNDS}, {"say": "Done."}, tools=("ask_user",))
        await processes.worker()
        run_id = await begin(http, "t", "writer")
        async with streaming(http, f"/v1/runs/{run_id}/events") as stream:
            # When a stream has begun the worker hears of it soon: the first answers may come without pieces.
            for _ in range(ROUNDS):
                pieces, written = await until_asked(stream)
                if pieces:
                    break
                assert (await http.post(f"/v1/runs/{run_id}/answer", json={"text": "more"})).status_code == 202
            assert written == SAID
            assert pieces
            assert "".join(pieces) in SAID
            # From now on they come from the beginning, up to the moment in which the whole answer is there.
            assert (await http.post(f"/v1/runs/{run_id}/answer", json={"text": "more"})).status_code == 202
            pieces, written = await until_asked(stream)
    assert written == SAID
    assert SAID.startswith("".join(pieces))


async def until_asked(stream: Any) -> tuple[list[str], str]:
    """The pieces that came until the run asks, and what was recorded in the end."""
    pieces: list[str] = []
    written = ""
    async with asyncio.timeout(60):
        while True:
            event = await stream.next(40)
            assert event.name != "end", event
            if event.name == "delta":
                assert event.id is None
                assert not written, "pieces of an answer come before it"
                pieces.append(event.data["delta"].get("text", ""))
            elif event.data["type"] == "model.responded":
                parts = event.data["data"]["response"]["message"]["parts"]
                written = next(part["text"] for part in parts if "text" in part)
            elif event.data["type"] == "run.waiting":
                return pieces, written
