"""OpenAI's Agents SDK, with its models for both APIs."""

from __future__ import annotations

from typing import Any

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from judging import BASE, KEY, main, same
from pydantic import BaseModel

set_tracing_disabled(True)


class Judgement(BaseModel):
    verdict: str
    points: int


def agent(api: str, model: str, **more: Any) -> Agent[Any]:
    client = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    kind: Any = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    return Agent(name="one", model=kind(model=model, openai_client=client), **more)


def cells(api: str) -> dict[str, Any]:
    async def plain() -> None:
        same((await Runner.run(agent(api, "echo"), "hello")).final_output, "You said hello.")

    async def stream() -> None:
        result = Runner.run_streamed(agent(api, "echo"), "hello")
        events = [event async for event in result.stream_events()]
        deltas = [
            event.data.delta
            for event in events
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        same(("".join(deltas), result.final_output), ("You said hello.", "You said hello."))

    async def schema() -> None:
        result = await Runner.run(agent(api, "shaper", output_type=Judgement), "hello")
        same(result.final_output, Judgement(verdict="fine", points=3))

    async def tools() -> None:
        asked: list[str] = []

        @function_tool
        def get_weather(city: str) -> str:
            asked.append(city)
            return "rain"

        result = await Runner.run(agent(api, "planner", tools=[get_weather]), "hello")
        same((result.final_output, sorted(asked)), ("Both are known.", ["Oslo", "Rome"]))
        streamed = Runner.run_streamed(agent(api, "planner", tools=[get_weather]), "hello")
        async for _ in streamed.stream_events():
            pass
        same(streamed.final_output, "Both are known.")

    async def own_tools() -> None:
        text = (await Runner.run(agent(api, "clerk"), "hello")).final_output
        assert text.endswith("It is 5."), text
        streamed = Runner.run_streamed(agent(api, "clerk"), "hello")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output.endswith("It is 5."), streamed.final_output

    async def history() -> None:
        session = SQLiteSession(f"history-{api}")
        await Runner.run(agent(api, "rememberer"), "hello", session=session)
        result = await Runner.run(agent(api, "rememberer"), "more", session=session)
        same(result.final_output, "First hello, now more.")

    async def errors() -> None:
        try:
            await Runner.run(agent(api, "nobody"), "hello")
        except openai.NotFoundError as error:
            same(error.code, "model_not_found")
        else:
            raise AssertionError("there is no such model")

    found = {
        "plain": plain,
        "stream": stream,
        "schema": schema,
        "tools": tools,
        "own tools": own_tools,
        "history": history,
        "errors": errors,
    }
    return {f"{api}.{name}": cell for name, cell in found.items()}


CELLS = {**cells("chat"), **cells("responses")}

if __name__ == "__main__":
    main("openai-agents", "openai-agents", CELLS)
