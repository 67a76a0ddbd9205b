"""The official client."""

from __future__ import annotations

from typing import Any

import openai
from judging import BASE, KEY, main, same
from pydantic import BaseModel

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}]
TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}]
USER: Any = {"role": "user", "content": "hello"}


class Judgement(BaseModel):
    verdict: str
    points: int


def client() -> openai.OpenAI:
    return openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)


def chat_plain() -> None:
    answer = client().chat.completions.create(model="echo", messages=[USER])
    same(answer.choices[0].message.content, "You said hello.")
    same(answer.usage.total_tokens if answer.usage else None, 12)


def chat_stream() -> None:
    with client().chat.completions.stream(model="echo", messages=[USER]) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
    same("".join(pieces), "You said hello.")
    assert len(pieces) > 1, "it comes in pieces"


def chat_schema() -> None:
    answer = client().chat.completions.parse(model="shaper", messages=[USER], response_format=Judgement)
    same(answer.choices[0].message.parsed, Judgement(verdict="fine", points=3))


def chat_tools() -> None:
    messages: list[Any] = [USER]
    for stream in (False, True):
        messages = [USER]
        while True:
            if stream:
                with client().chat.completions.stream(model="planner", messages=messages, tools=CHAT_TOOLS) as events:
                    choice: Any = events.get_final_completion().choices[0]
            else:
                choice = (
                    client().chat.completions.create(model="planner", messages=messages, tools=CHAT_TOOLS).choices[0]
                )
            if choice.finish_reason != "tool_calls":
                break
            calls = choice.message.tool_calls
            same([call.function.arguments for call in calls], ['{"city":"Oslo"}', '{"city":"Rome"}'])
            sent = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in calls
            ]
            messages.append({"role": "assistant", "content": choice.message.content, "tool_calls": sent})
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
        same(choice.message.content, "Both are known.")


def chat_own_tools() -> None:
    answer = client().chat.completions.create(model="clerk", messages=[USER])
    same((answer.choices[0].message.content, answer.choices[0].message.tool_calls), ("It is 5.", None))


def chat_history() -> None:
    said: Any = {"role": "assistant", "content": "Yes."}
    messages = [USER, said, {"role": "assistant", "content": ""}, {"role": "user", "content": "more"}]
    answer = client().chat.completions.create(model="rememberer", messages=messages)
    same(answer.choices[0].message.content, "First hello, now more.")


def chat_errors() -> None:
    try:
        client().chat.completions.create(model="nobody", messages=[USER])
    except openai.NotFoundError as error:
        same((error.code, error.param), ("model_not_found", "model"))
    else:
        raise AssertionError("there is no such model")


def plain() -> None:
    same(client().responses.create(model="echo", input="hello").output_text, "You said hello.")


def stream() -> None:
    with client().responses.stream(model="echo", input="hello") as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
        same(events.get_final_response().output_text, "You said hello.")
    same("".join(pieces), "You said hello.")


def schema() -> None:
    answer = client().responses.parse(model="shaper", input="hello", text_format=Judgement)
    same(answer.output_parsed, Judgement(verdict="fine", points=3))


def tools() -> None:
    for streamed in (False, True):
        given: dict[str, Any] = {"input": "hello"}
        while True:
            if streamed:
                with client().responses.stream(model="forecaster", tools=TOOLS, **given) as events:
                    answer: Any = events.get_final_response()
            else:
                answer = client().responses.create(model="forecaster", tools=TOOLS, **given)
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
            given = {"input": outputs, "previous_response_id": answer.id}
        same(answer.output_text, "It says rain.")


def own_tools() -> None:
    with client().responses.stream(model="clerk", input="hello") as events:
        for _ in events:
            pass
        answer = events.get_final_response()
    same(answer.output_text, "Let me look.\n\nIt is 5.")
    same([item.type for item in answer.output], ["message", "mcp_call", "message"])


def history() -> None:
    first = client().responses.create(model="rememberer", input="hello")
    answer = client().responses.create(model="rememberer", input="more", previous_response_id=first.id)
    same(answer.output_text, "First hello, now more.")


def errors() -> None:
    try:
        client().responses.create(model="nobody", input="hello")
    except openai.NotFoundError as error:
        same(error.code, "model_not_found")
    else:
        raise AssertionError("there is no such model")


CHAT = {
    "plain": chat_plain,
    "stream": chat_stream,
    "schema": chat_schema,
    "tools": chat_tools,
    "own tools": chat_own_tools,
    "history": chat_history,
    "errors": chat_errors,
}
RESPONSES = {
    "plain": plain,
    "stream": stream,
    "schema": schema,
    "tools": tools,
    "own tools": own_tools,
    "history": history,
    "errors": errors,
}
CELLS = {
    **{f"chat.{name}": cell for name, cell in CHAT.items()},
    **{f"responses.{name}": cell for name, cell in RESPONSES.items()},
}

if __name__ == "__main__":
    main("openai", "openai", CELLS)
