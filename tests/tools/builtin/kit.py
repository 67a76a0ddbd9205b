"""Calls of built-in tools, through the real pipeline, on real journals."""

from __future__ import annotations

from typing import Any

from foliot.kernel.messages import ToolResult
from foliot.tools.base import Caller, Invocation, Tool
from foliot.tools.pipeline.pipeline import Pipeline


def invocation(tool: Tool, arguments: dict[str, Any], **fields: Any) -> Invocation:
    caller = fields.pop("caller", Caller(agent="clerk"))
    given: dict[str, Any] = {"run_id": "run-1", "call_id": "call-1", "idempotency_key": "key-1", **fields}
    return Invocation(tool=tool.definition.name, arguments=arguments, caller=caller, **given)


async def call(tool: Tool, arguments: dict[str, Any], **fields: Any) -> ToolResult:
    return await Pipeline([tool]).call(invocation(tool, arguments, **fields))
