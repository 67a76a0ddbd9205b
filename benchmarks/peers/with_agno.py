"""Agno without telemetry and without a database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from harness import DONE, FOUND, QUESTION, STEPS, always, arguments, serve


async def lookup(key: str) -> str:
    """Look up the value of a key."""
    return FOUND


@dataclass
class InProcess(Model):
    id: str = "in-process"

    async def ainvoke(self, messages: list[Message], *args: Any, **kwargs: Any) -> ModelResponse:
        step = sum(message.role == "assistant" for message in messages)
        if step == STEPS:
            return ModelResponse(role="assistant", content=DONE)
        function = {"name": "lookup", "arguments": json.dumps(arguments(step))}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        return ModelResponse(role="assistant", tool_calls=[call])

    def invoke(self, *args: Any, **kwargs: Any) -> ModelResponse:
        raise NotImplementedError("nothing here is synchronous")

    def invoke_stream(self, *args: Any, **kwargs: Any) -> Iterator[ModelResponse]:
        raise NotImplementedError("nothing here asks for a stream")

    def ainvoke_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        raise NotImplementedError("nothing here asks for a stream")

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response


agent = Agent(model=InProcess(), instructions="You look up keys.", tools=[lookup], telemetry=False)


async def run() -> int:
    result = await agent.arun(QUESTION)
    return len(result.tools or []) if result.content == DONE else 0


if __name__ == "__main__":
    serve("Agno", always(run), packages=["agno"])
