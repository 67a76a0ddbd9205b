"""Every backend of tools under the same suite, each with a real counterpart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web

from foliot.engine.definition.freeze import tool_definition
from foliot.errors import Denied
from foliot.resources.validate import validate_document
from foliot.testing.tool_suite import Program, Subject, ToolConformance, WireConformance
from foliot.tools.backends.callbacks import PATH, Callbacks
from foliot.tools.backends.grpc import GrpcChannels, GrpcTool
from foliot.tools.backends.http import ExternalTool, HttpTool, WebhookCallbackTool
from foliot.tools.backends.nats import NatsTool
from foliot.tools.base import Invocation, ToolDefinition, ToolError
from foliot.tools.function import tool
from foliot.tools.mcp.tool import McpTool
from tests.conformance.tool_counterparts import External, InAnotherProcess, PlainHttp, Pushing, answered, over_nats
from tests.tools.backends.grpc_service import serving as grpc_serving
from tests.tools.mcp.conftest import agreeing, fenced_connections, seen_at
from tests.tools.serving.bus import linked
from tests.tools.web_service import serving, way_out


def definition(type: str, endpoint: str = "") -> ToolDefinition:
    return ToolDefinition("program", type=type, endpoint=endpoint)


class TestFunction(ToolConformance):
    @pytest.fixture
    def subject(self) -> Subject:
        program = Program()

        @tool
        async def act(call: Invocation, do: str, value: Any = None, message: str = "", size: int = 0) -> Any:
            """Do as told."""
            return await program.act(call.arguments, call.idempotency_key)

        return Subject(act, program)


class TestHttp(ToolConformance):
    @pytest.fixture
    async def subject(self):
        program = Program()
        async with serving(PlainHttp(program)) as service, way_out() as out:
            yield Subject(HttpTool(definition("http", service.url), out.client, out.auth), program)


class TestExternal(WireConformance):
    @pytest.fixture
    async def subject(self):
        program = Program()
        async with serving(External(program)) as service, way_out() as out:
            yield Subject(ExternalTool(definition("external", service.url), out.client, out.auth), program)


class TestWebhookCallback(WireConformance):
    """Every answer is pushed, to a route that does with it what the server's does."""

    @pytest.fixture
    async def subject(self):
        program = Program()
        pushing = Pushing(program)
        waiting: list[Callbacks] = []

        async def route(request: web.Request) -> web.Response:
            try:
                taken = waiting[0].accept(
                    unquote(request.path.removeprefix(f"{PATH}/")),
                    until=request.query["until"],
                    signature=request.query["signature"],
                    body=await request.read(),
                )
            except (Denied, ToolError) as error:
                return web.Response(status=400, text=error.message)
            return web.Response(status=204 if taken else 410)

        async with serving(route) as here, serving(pushing) as service:
            waiting.append(Callbacks(here.url))
            async with way_out(callbacks=waiting[0]) as out:
                made = WebhookCallbackTool(
                    definition("webhook-callback", service.url), out.client, out.auth, out.callbacks, poll_interval=0.2
                )
                yield Subject(made, program, large=1_000_000)
            await pushing.close()


class TestGrpc(WireConformance):
    @pytest.fixture
    async def subject(self):
        program = Program()

        async def execute(request: bytes, context: Any) -> bytes:
            asked = json.loads(request)
            return await answered(program, asked, asked.get("idempotency_key", ""))

        channels = GrpcChannels()
        async with grpc_serving(execute) as service:
            yield Subject(GrpcTool(definition("grpc", f"grpc://127.0.0.1:{service.port}"), channels), program)
            await channels.close()


class TestNats(WireConformance):
    @pytest.fixture
    async def subject(self, nats_url: str):
        program = Program()
        async with linked(nats_url) as link, over_nats(link, "program", program):
            yield Subject(NatsTool(definition("queue"), link, look_every=0.2), program, large=900_000)


class TestMcp(WireConformance):
    @pytest.fixture
    async def subject(self, tmp_path: Path):
        script = str(Path(__file__).with_name("mcp_program.py"))
        server, problems = validate_document(
            {
                "kind": "McpServer",
                "metadata": {"name": "program"},
                "spec": {
                    "transport": "stdio",
                    "command": sys.executable,
                    "args": [script, "/data"],
                    "sandbox": seen_at(tmp_path),
                },
            }
        )
        assert server is not None, problems
        declared, problems = validate_document(
            {
                "kind": "Tool",
                "metadata": {"name": "program"},
                "spec": {"type": "mcp", "mcp_server_ref": "program", "mcp_tool_name": "program"},
            }
        )
        assert declared is not None, problems

        async def find(namespace: str, name: str) -> dict[str, Any]:
            return server

        async with fenced_connections() as connections:
            made = McpTool(tool_definition(declared), declared, connections, find, agreeing(connections, server))
            yield Subject(made, InAnotherProcess(tmp_path))
