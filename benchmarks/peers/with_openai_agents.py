"""The OpenAI Agents SDK with a model in the process, and without tracing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from agents.items import ToolCallOutputItem
from agents.models.interface import Model
from harness import DONE, FOUND, QUESTION, STEPS, always, arguments, serve
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


@function_tool
async def lookup(key: str) -> str:
    """Look up the value of a key."""
    return FOUND


class InProcess(Model):
    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        step = 0 if isinstance(input, str) else sum(item.get("type") == "function_call" for item in input)
        output: Any
        if step == STEPS:
            text = ResponseOutputText(annotations=[], text=DONE, type="output_text")
            output = ResponseOutputMessage(
                id="message", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            output = ResponseFunctionToolCall(
                arguments=json.dumps(arguments(step)), call_id=f"call_{step}", name="lookup", type="function_call"
            )
        return ModelResponse([output], Usage(requests=1, input_tokens=100, output_tokens=20, total_tokens=120), None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("nothing here asks for a stream")


set_tracing_disabled(True)
agent = Agent(name="clerk", instructions="You look up keys.", tools=[lookup], model=InProcess())
CONFIG = RunConfig(tracing_disabled=True)


async def run() -> int:
    result = await Runner.run(agent, QUESTION, max_turns=2 * STEPS, run_config=CONFIG)
    return sum(isinstance(item, ToolCallOutputItem) for item in result.new_items)


if __name__ == "__main__":
    serve("OpenAI Agents SDK", always(run), packages=["openai-agents"])
