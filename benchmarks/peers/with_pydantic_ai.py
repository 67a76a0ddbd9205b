"""Pydantic AI with its own `FunctionModel`."""

from __future__ import annotations

from harness import DONE, FOUND, QUESTION, STEPS, always, arguments, serve
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    step = len(messages) // 2
    if step == STEPS:
        return ModelResponse(parts=[TextPart(DONE)])
    return ModelResponse(parts=[ToolCallPart("lookup", arguments(step), tool_call_id=f"call_{step}")])


agent = Agent(FunctionModel(answer), instructions="You look up keys.")
LIMITS = UsageLimits(request_limit=2 * STEPS)


@agent.tool_plain
async def lookup(key: str) -> str:
    """Look up the value of a key."""
    return FOUND


async def run() -> int:
    result = await agent.run(QUESTION, usage_limits=LIMITS)
    return result.usage.tool_calls if result.output == DONE else 0


if __name__ == "__main__":
    serve("Pydantic AI", always(run), packages=["pydantic-ai-slim"])
