"""The worst that each built-in tool can be given, while a server in the same process has to go on answering.

Two things are watched: `/livez` is asked for as long as the tool works, and no step of the event
loop may use more of the processor than `LONGEST_STEP`. That is counted in time of the processor, not of the clock, so a
busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from aiohttp import web

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import load_settings
from foliot.tools.backends.http import HttpTool
from foliot.tools.base import ToolDefinition
from foliot.tools.builtin.catalogue import NAMES, builtin_tools
from foliot.tools.builtin.files import LARGEST_EDITED
from foliot.tools.builtin.web import LARGEST_BODY
from tests.loop_watch import watched_steps
from tests.tools.builtin.kit import call, invocation
from tests.tools.web_service import serving, way_out

LONGEST_STEP = 0.4
PAGES = {
    "tags that do not end": "<a ",
    "quotes that do not end": '<a href="',
    "comments that do not end": "<!--",
    "declarations that do not end": "<!",
    "instructions that do not end": "<?",
    "ends that do not end": "</a ",
    "nothing but brackets": "<",
    "references that do not end": "&#",
    "hidden parts that do not end": "<svg></object>",
    "a script that does not end": "<script></",
}
# They get nothing but arguments of their own, which are bounded, or rows of the store.
NOTHING_FOREIGN = frozenset(
    {
        *(
            "ask",
            "ask_user",
            "bash",
            "decide",
            "code",
            "delegate",
            "emit_diagnosis",
            "job",
            "list_tools",
            "memory.list",
            "memory.read",
        ),
        *(
            "memory.search",
            "memory.write",
            "monitor_runs",
            "python",
            "read_scratchpad",
            "recall",
            "read_todos",
            "scratchpad",
            "spawn",
        ),
        *(
            "spawn_agent",
            "submit",
            "submit_work",
            "wait_agents",
            "write_todos",
            "skills",
            "draft_skill",
            "unpack_skill",
        ),
    }
)
WORST = {"http_get", "http_request", "read", "read_file", "write", "write_file", "edit", "edit_file", "glob", "grep"}
READ_RESULT = {"read_result"}  # see test_runs.py: a page of any result, and marks that somebody else wrote


def test_every_built_in_tool_is_thought_of() -> None:
    assert NAMES == NOTHING_FOREIGN | WORST | READ_RESULT


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Callable[[Awaitable[Any]], Any]]:
    """Awaits something while the server is asked; fails when the loop was held, or the server did not answer."""
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    async with Runtime(settings=settings) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:

            async def watch(work: Awaitable[Any]) -> Any:
                task = asyncio.ensure_future(work)
                answers = 0
                with watched_steps() as steps:
                    while not task.done() or not answers:
                        assert (await client.get("/livez")).status_code == 200
                        answers += 1
                        await asyncio.wait({task}, timeout=0.02)
                assert steps.longest < LONGEST_STEP, f"one step of the event loop took {steps.longest:.2f} s"
                return await task

            yield watch


@asynccontextmanager
async def page(body: str, kind: str) -> AsyncGenerator[tuple[Any, str]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body.encode(), headers={"Content-Type": kind})

    async with serving(answer) as service, way_out() as out:
        yield out, service.url


async def test_no_page_holds_the_process(watched: Any) -> None:
    for what, piece in PAGES.items():
        async with page(piece * (LARGEST_BODY // len(piece)), "text/html") as (out, url):
            name = "http_request" if piece == "<a " else "http_get"  # they read answers in the same way
            (tool,) = builtin_tools([name], outbound=out.client)
            assert (await watched(call(tool, {"url": url}))).error is None, what


async def test_no_encoding_holds_the_process(watched: Any) -> None:
    for charset in ("punycode", "idna", "undefined", "unicode_escape", "no-such", "x" * 2000):
        async with page("a-" + "a" * 2_000_000, f"text/plain; charset={charset}") as (out, url):
            (get,) = builtin_tools(["http_get"], outbound=out.client)
            declared = HttpTool(ToolDefinition("t", "", {}, endpoint=url), out.client, out.auth)

            results = [await watched(call(tool, {"url": url})) for tool in (get, declared)]

        assert [result.error for result in results] == [None, None], charset


async def test_no_stream_holds_the_process(watched: Any) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(3000):  # one line that does not end
            await response.write(b"data: " + b"x" * 1000 if not _ else b"x" * 1000)
        await response.write_eof()
        return response

    async with serving(drip) as service, way_out() as out:
        tool = HttpTool(ToolDefinition("t", "", {}, endpoint=service.url), out.client, out.auth)
        heard: list[str] = []

        result = await watched(tool.invoke(invocation(tool, {}), on_output=heard.append))

    assert len(result) == 3_000_000
    assert "".join(heard) == result + "\n"


FILES: dict[str, list[dict[str, Any]]] = {
    "read": [{"path": "long", "offset": 2}, {"path": "lines", "offset": 4_000_000}],
    "write": [{"path": "new", "content": "é" * 2_000_000}],
    "edit": [
        {"path": "long", "old_string": "a" * 250_000 + "b" + "a" * 250_000, "new_string": "b"},
        {"path": "long", "old_string": "a" * 500_000, "new_string": "b"},
        {"path": "long", "old_string": "a" * 500_000, "new_string": "b", "replace_all": True},
    ],
    "glob": [
        {"pattern": "*a" * 500 + "b"},
        {"pattern": "**/" * 340 + "x"},
        {"pattern": "{" + ",".join(["*a"] * 60) + "}" + "*a" * 300 + "!"},
        {"pattern": "[a-", "gitignore": True},
    ],
    "grep": [{"pattern": "(a+)+$"}, {"pattern": "(a|aa)*b", "gitignore": True}, {"pattern": "a" * 1000}],
}


@pytest.mark.parametrize("tool", FILES)
async def test_no_file_and_no_pattern_holds_the_process(
    watched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setattr("foliot.tools.builtin.find.SECONDS", 0.5)
    folder = tmp_path / "work"
    for n in range(20):
        (folder / "d" / f"{'a' * 200}{n}").mkdir(parents=True)
    (folder / "long").write_bytes(b"a" * (LARGEST_EDITED // 2) + b"!")
    (folder / "lines").write_bytes(b"\n" * 500_000)
    (folder / ".gitignore").write_text(("*a" * 400 + "b\n") * 50 + " " * 100_000 + "x\n" + "**/" * 300 + "q\n")
    (made,) = builtin_tools([tool], workspace=folder)

    for arguments in FILES[tool]:
        result = await watched(call(made, arguments))
        # Done, refused, or ended in time: what matters is that the server went on.
        assert result.error is None or result.error.code in ("timeout", "invalid_input", "execution_failed", "conflict")
