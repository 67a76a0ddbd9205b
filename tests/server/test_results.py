"""What a call gave can be read by people, also what was cut before the model saw it."""

from __future__ import annotations

from urllib.parse import quote

import httpx2 as httpx
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.errors import NotFound
from foliot.tools.builtin.results import result_page, results_of

FLOOD = "".join(f"{n} é€😀 " for n in range(20_000))


@tool(effect="read")
def flood() -> str:
    """Says very much."""
    return FLOOD


@tool(effect="read")
def fails() -> str:
    """Fails."""
    raise ValueError("broken")


@pytest.fixture
async def run(runtime: Runtime) -> str:
    script = [{"call": {"flood": {}}}, {"call": {"fails": {}}}, {"say": "done"}]
    agent = Agent("clerk", model=ScriptedModel(script), tools=[flood, fails])
    return (await runtime.run(agent, "go")).run_id


async def test_a_cut_result_is_read_whole_page_by_page(http: httpx.AsyncClient, run: str) -> None:
    listed = (await http.get(f"/v1/runs/{run}/results")).json()
    first, second = listed["items"]
    assert (listed["run"], first["tool"], first["cut"], first["failed"]) == (run, "flood", True, False)
    assert (second["tool"], second["cut"], second["failed"]) == ("fails", False, True)
    assert first["bytes"] == len(FLOOD.encode())

    text, at = "", 0
    while at is not None:
        page = (
            await http.get(f"/v1/runs/{run}/results/{first['call']}", params={"offset": at, "limit": 50_000})
        ).json()
        assert (page["offset"], page["total"], page["tool"]) == (at, len(FLOOD.encode()), "flood")
        text, at = text + page["text"], page["next"]
    assert text == FLOOD


async def test_a_call_id_with_slashes_is_read_as_any_other(http: httpx.AsyncClient, runtime: Runtime) -> None:
    script = [{"call": [{"tool": "fails", "args": {}, "id": "functions/fails:0/1"}]}, {"say": "done"}]
    agent = Agent("clerk", model=ScriptedModel(script), tools=[fails])
    run = (await runtime.run(agent, "go")).run_id
    (item,) = (await http.get(f"/v1/runs/{run}/results")).json()["items"]

    page = await http.get(f"/v1/runs/{run}/results/{quote(item['call'], safe='')}")

    assert item["call"] == "functions/fails:0/1"
    assert (page.status_code, page.json().get("tool")) == (200, "fails")


async def test_what_is_not_there_is_said(http: httpx.AsyncClient, run: str, runtime: Runtime) -> None:
    assert (await http.get("/v1/runs/no-such/results")).status_code == 404
    assert (await http.get(f"/v1/runs/{run}/results/no-such")).status_code == 404
    assert (await http.get(f"/v1/runs/{run}/results/no-such?limit=0")).status_code == 400
    with pytest.raises(NotFound, match="no result of a call"):
        await result_page(runtime.inside.runs.journal, run, "no-such", most=10)
    (first, _) = await results_of(runtime.inside.runs.journal, run)
    beyond = await result_page(runtime.inside.runs.journal, run, first.call, offset=10**12, most=10)
    assert (beyond.text, beyond.next) == ("", None)
