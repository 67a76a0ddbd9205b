"""Agno, with its models for both APIs of OpenAI."""

from __future__ import annotations

from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.exceptions import ModelProviderError
from agno.models.message import Message
from agno.models.openai import OpenAIChat, OpenAIResponses
from judging import BASE, KEY, main, same
from pydantic import BaseModel


class Judgement(BaseModel):
    verdict: str
    points: int


def model(api: str, name: str) -> Any:
    return (OpenAIChat if api == "chat" else OpenAIResponses)(id=name, base_url=BASE, api_key=KEY, max_retries=0)


def agent(api: str, name: str, **more: Any) -> Agent:
    return Agent(model=model(api, name), telemetry=False, **more)


def cells(api: str) -> dict[str, Any]:
    def plain() -> None:
        same(agent(api, "echo").run("hello").content, "You said hello.")

    def stream() -> None:
        pieces = [event.content for event in agent(api, "echo").run("hello", stream=True) if event.content]
        same("".join(pieces), "You said hello.")

    def schema() -> None:
        same(agent(api, "shaper", output_schema=Judgement).run("hello").content, Judgement(verdict="fine", points=3))

    def tools() -> None:
        asked: list[str] = []

        def get_weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return "rain"

        answer = agent(api, "planner", tools=[get_weather]).run("hello")
        same((answer.content, sorted(asked)), ("Both are known.", ["Oslo", "Rome"]))
        events = agent(api, "planner", tools=[get_weather]).run("hello", stream=True)
        same("".join(event.content for event in events if event.content), "Both are known.")

    def own_tools() -> None:
        text = agent(api, "clerk").run("hello").content
        assert text.endswith("It is 5."), text
        text = "".join(event.content for event in agent(api, "clerk").run("hello", stream=True) if event.content)
        assert text.endswith("It is 5."), text

    def history() -> None:
        speaker = agent(api, "rememberer", db=InMemoryDb(), add_history_to_context=True, session_id="s")
        speaker.run("hello")
        same(speaker.run("more").content, "First hello, now more.")

    def errors() -> None:
        try:
            model(api, "nobody").response([Message(role="user", content="hello")])
        except ModelProviderError as error:
            same(error.status_code, 404)
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
    main("agno", "agno", CELLS)
