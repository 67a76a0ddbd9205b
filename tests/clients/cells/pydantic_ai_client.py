"""Pydantic AI, with its models for both APIs of OpenAI."""

from __future__ import annotations

from typing import Any

import openai
from judging import BASE, KEY, main, same
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, UnexpectedModelBehavior
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Judgement(BaseModel):
    verdict: str
    points: int


def agent(api: str, model: str, **more: Any) -> Agent[None, Any]:
    client = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    kind: Any = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return Agent(kind(model, provider=OpenAIProvider(openai_client=client)), **more)


def cells(api: str) -> dict[str, Any]:
    async def plain() -> None:
        same((await agent(api, "echo").run("hello")).output, "You said hello.")

    async def stream() -> None:
        async with agent(api, "echo").run_stream("hello") as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        same("".join(pieces), "You said hello.")

    async def schema() -> None:
        native: Any = NativeOutput(Judgement)
        same((await agent(api, "shaper", output_type=native).run("hello")).output, Judgement(verdict="fine", points=3))
        by_tool = await agent(api, "finisher", output_type=Judgement).run("hello")
        same(by_tool.output, Judgement(verdict="fine", points=3))

    async def tools() -> None:
        asked: list[str] = []
        caller = agent(api, "planner")

        @caller.tool_plain
        def get_weather(city: str) -> str:
            asked.append(city)
            return "rain"

        same((await caller.run("hello")).output, "Both are known.")
        same(sorted(asked), ["Oslo", "Rome"])
        async with caller.run_stream("hello") as result:
            same(await result.get_output(), "Both are known.")

    async def own_tools() -> None:
        text = (await agent(api, "clerk").run("hello")).output
        assert text.endswith("It is 5."), text
        async with agent(api, "clerk").run_stream("hello") as result:
            text = await result.get_output()
        assert text.endswith("It is 5."), text

    async def history() -> None:
        speaker = agent(api, "rememberer")
        first = await speaker.run("hello")
        second = await speaker.run("more", message_history=first.all_messages())
        same(second.output, "First hello, now more.")

    async def errors() -> None:
        try:
            await agent(api, "nobody").run("hello")
        except (ModelHTTPError, UnexpectedModelBehavior) as error:
            same(getattr(error, "status_code", 0), 404)
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
    main("pydantic-ai", "pydantic-ai-slim", CELLS)
