"""A tool that pushes its result to another process than the one that called it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
from aiohttp import web

from tests.server.foliot_processes import Processes, begin, declare
from tests.tools.web_service import serving


async def test_a_result_is_pushed_to_a_server_and_reaches_the_worker_that_waits(tmp_path: Path) -> None:
    asked: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def work(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.json_response({}, status=404)
        call = await request.json()
        if not asked.done():
            asked.set_result({**call, "headers": dict(request.headers)})
        return web.json_response(
            {"tool_contract_version": "v1", "request_id": call["request_id"], "status": "accepted"}, status=202
        )

    processes = Processes(tmp_path, public_url="http://foliot.example", outbound_allow="127.0.0.1")
    try:
        async with serving(work) as service:
            _, url = await processes.server()
            async with httpx.AsyncClient(base_url=url, headers=processes.headers, timeout=60) as http:
                tool = {"type": "webhook-callback", "endpoint": service.url, "effect": "read"}
                made = await http.post("/v1/tools", json={"metadata": {"name": "far"}, "spec": tool})
                assert made.status_code == 201, made.text
                await declare(http, "caller", {"call": {"far": {}}}, {"say": "It says {last_result}."}, tools=("far",))
                await processes.worker()
                run_id = await begin(http, "t", "caller")
                async with asyncio.timeout(60):
                    call = await asked
                given = urlsplit(_address(call))
                place = f"{given.path}?{given.query}"
                done = {"tool_contract_version": "v1", "request_id": call["request_id"], "status": "ok"}
                # No credential of the installation: the address is what shows that it was asked.
                async with httpx.AsyncClient(base_url=url, timeout=60) as tool_side:
                    pushed = await tool_side.post(place, json={**done, "output": {"result": "42"}})
                    again = await tool_side.post(place, json={**done, "output": {"result": "43"}})
                async with asyncio.timeout(60):
                    while (run := (await http.get(f"/v1/runs/{run_id}")).json())["status"]["phase"] != "succeeded":
                        assert run["status"]["phase"] in ("pending", "running", "waiting"), run
                        await asyncio.sleep(0.05)
                results = (await http.get(f"/v1/runs/{run_id}/results")).json()["items"]
                told = (await http.get(f"/v1/runs/{run_id}/results/{results[0]['call']}")).json()
    finally:
        await processes.close()

    assert (given.netloc, pushed.status_code, again.status_code) == ("foliot.example", 202, 410)
    assert "42" in told["text"]


def _address(call: dict[str, Any]) -> str:
    """Where the call asks for its result, wherever it says so."""
    (found,) = [value for value in _texts(call) if "/v1/tool-callbacks/" in value]
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _texts(each)]
