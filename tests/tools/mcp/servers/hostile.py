"""A server that does whatever code it is sent: the worst that a program of a stranger can be."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any


def run(code: str) -> str:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            exec(code, {})
    except BaseException as error:
        return f"{said.getvalue()}{type(error).__name__}: {error}"
    return said.getvalue()


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "hostile", "version": "0"}
            return {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object", "properties": {"code": {"type": "string"}}}
            return {"tools": [{"name": "run", "description": "runs code", "inputSchema": schema}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": run(params["arguments"]["code"])}]}
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = {
            "jsonrpc": "2.0",
            "id": message["id"],
            "result": answer(message["method"], message.get("params") or {}),
        }
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
