"""An MCP server is told the trace of the call in `_meta`, and nothing when there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from foliot.engine.definition.freeze import tool_definition
from foliot.kernel.messages import Text
from foliot.kernel.traces import new_trace, under_call
from foliot.resources.validate import validate_document
from foliot.tools.base import Invocation
from foliot.tools.mcp.tool import McpTool
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.mcp.conftest import agreeing, fenced_connections, seen_at

PROGRAM = """\
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    number, params = message.get("id"), message.get("params") or {}
    if number is None:
        continue
    match message.get("method"):
        case "initialize":
            result = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "teller", "version": "0"}}
        case "tools/list":
            result = {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            said = (params.get("_meta") or {}).get("traceparent", "none")
            result = {"content": [{"type": "text", "text": said}]}
        case _:
            print(json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}), flush=True)
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""


def valid(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert made is not None, problems
    return made


async def test_the_context_of_a_call_reaches_an_mcp_server(tmp_path: Path) -> None:
    program = tmp_path / "teller.py"
    program.write_text(PROGRAM)
    spec = {"transport": "stdio", "command": sys.executable, "args": ["/data/teller.py"], "sandbox": seen_at(tmp_path)}
    server = valid("McpServer", "teller", spec)
    document = valid("Tool", "tell", {"type": "mcp", "mcp_server_ref": "teller", "mcp_tool_name": "tell"})

    async def find(namespace: str, name: str) -> dict[str, Any]:
        return server

    context = under_call(str(new_trace("r1")), "r1", "c1")
    async with fenced_connections() as connections:
        tool = McpTool(tool_definition(document), document, connections, find, agreeing(connections, server))
        pipeline = Pipeline([tool])
        told = await pipeline.call(Invocation("r1", "c1", "tell", {}, "key-1", trace=context))
        untold = await pipeline.call(Invocation("r1", "c2", "tell", {}, "key-2"))
    assert (told.content, untold.content) == ((Text(context),), (Text("none"),))
