"""LangChain's ChatOpenAI, over both APIs."""

from __future__ import annotations

from typing import Any

import openai
from judging import BASE, KEY, main, same
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Judgement(BaseModel):
    verdict: str
    points: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "rain"


def model(api: str, name: str) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=BASE, api_key=KEY, max_retries=0, use_responses_api=api == "responses")


def cells(api: str) -> dict[str, Any]:
    def plain() -> None:
        same(model(api, "echo").invoke("hello").text, "You said hello.")

    def stream() -> None:
        pieces = [chunk.text for chunk in model(api, "echo").stream("hello")]
        same("".join(pieces), "You said hello.")

    def schema() -> None:
        shaped = model(api, "shaper").with_structured_output(Judgement)
        same(shaped.invoke("hello"), Judgement(verdict="fine", points=3))

    def tools() -> None:
        for streamed in (False, True):
            caller = model(api, "planner").bind_tools([get_weather])
            messages: list[Any] = [HumanMessage("hello")]
            while True:
                if streamed:
                    chunks = list(caller.stream(messages))
                    answer: Any = chunks[0]
                    for chunk in chunks[1:]:
                        answer = answer + chunk
                else:
                    answer = caller.invoke(messages)
                messages.append(answer)
                if not answer.tool_calls:
                    break
                same([call["args"] for call in answer.tool_calls], [{"city": "Oslo"}, {"city": "Rome"}])
                messages += [ToolMessage("rain", tool_call_id=call["id"]) for call in answer.tool_calls]
            same(answer.text, "Both are known.")

    def own_tools() -> None:
        text = model(api, "clerk").invoke("hello").text
        assert text.endswith("It is 5."), text
        text = "".join(chunk.text for chunk in model(api, "clerk").stream("hello"))
        assert text.endswith("It is 5."), text

    def history() -> None:
        said = [
            SystemMessage("Be brief."),
            HumanMessage("hello"),
            AIMessage("Yes."),
            AIMessage(""),
            HumanMessage("more"),
        ]
        same(model(api, "rememberer").invoke(said).text, "First hello, now more.")

    def errors() -> None:
        try:
            model(api, "nobody").invoke("hello")
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
    main("langchain-openai", "langchain-openai", CELLS)
