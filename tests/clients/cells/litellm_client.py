"""LiteLLM, over both APIs."""

from __future__ import annotations

from typing import Any

import litellm
from judging import BASE, KEY, main, same
from pydantic import BaseModel

litellm.suppress_debug_info = True
WHERE: dict[str, Any] = {"api_base": BASE, "api_key": KEY, "num_retries": 0}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": CITY}]
USER = {"role": "user", "content": "hello"}


class Judgement(BaseModel):
    verdict: str
    points: int


def ask(model: str, messages: list[Any], **more: Any) -> Any:
    return litellm.completion(model=f"openai/{model}", messages=messages, **WHERE, **more)


def respond(model: str, given: Any, **more: Any) -> Any:
    return litellm.responses(model=f"openai/{model}", input=given, **WHERE, **more)


def text_of(response: Any) -> str:
    return "".join(part.text for item in response.output if item.type == "message" for part in item.content)


def chat_plain() -> None:
    same(ask("echo", [USER]).choices[0].message.content, "You said hello.")


def chat_stream() -> None:
    chunks = list(ask("echo", [USER], stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "You said hello.")


def chat_schema() -> None:
    answer = ask("shaper", [USER], response_format=Judgement)
    same(Judgement.model_validate_json(answer.choices[0].message.content), Judgement(verdict="fine", points=3))


def chat_tools() -> None:
    for stream in (False, True):
        messages: list[Any] = [USER]
        while True:
            answer = ask("planner", messages, tools=CHAT_TOOLS, stream=stream)
            if stream:
                answer = litellm.stream_chunk_builder(list(answer), messages=messages)
            message = answer.choices[0].message
            if answer.choices[0].finish_reason != "tool_calls":
                break
            same([call.function.arguments for call in message.tool_calls], ['{"city":"Oslo"}', '{"city":"Rome"}'])
            messages.append(message)
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
        same(message.content, "Both are known.")


def chat_own_tools() -> None:
    same(ask("clerk", [USER]).choices[0].message.content, "It is 5.")
    chunks = list(ask("clerk", [USER], stream=True))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Let me look.\n\nIt is 5.")


def chat_history() -> None:
    messages = [USER, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "more"}]
    same(ask("rememberer", messages).choices[0].message.content, "First hello, now more.")


def chat_errors() -> None:
    try:
        ask("nobody", [USER])
    except litellm.NotFoundError as error:
        same("does not exist" in str(error), True)
    else:
        raise AssertionError("there is no such model")


def plain() -> None:
    same(text_of(respond("echo", "hello")), "You said hello.")


def stream() -> None:
    events = list(respond("echo", "hello", stream=True))
    same("".join(event.delta for event in events if event.type == "response.output_text.delta"), "You said hello.")


def schema() -> None:
    shape = {"type": "json_schema", "name": "judgement", "schema": Judgement.model_json_schema()}
    answer = respond("shaper", "hello", text={"format": shape})
    same(Judgement.model_validate_json(text_of(answer)), Judgement(verdict="fine", points=3))


def tools() -> None:
    for streamed in (False, True):
        given: Any = [USER]
        while True:
            answer = respond("forecaster", given, tools=TOOLS, stream=streamed)
            if streamed:
                answer = [event for event in answer if event.type == "response.completed"][-1].response
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                break
            given = [*given, *(item.model_dump() for item in calls)]
            given += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
        same(text_of(answer), "It says rain.")


def own_tools() -> None:
    same(text_of(respond("clerk", "hello")), "Let me look.\n\nIt is 5.")
    events = list(respond("clerk", "hello", stream=True))
    same(text_of(events[-1].response), "Let me look.\n\nIt is 5.")


def history() -> None:
    first = respond("rememberer", "hello")
    same(text_of(respond("rememberer", "more", previous_response_id=first.id)), "First hello, now more.")


def errors() -> None:
    try:
        respond("nobody", "hello")
    except litellm.NotFoundError as error:
        same("does not exist" in str(error), True)
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
    main("litellm", "litellm", CELLS)
