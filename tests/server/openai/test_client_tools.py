"""Tools that the client brings along and calls itself: the run waits for their results, and goes on with them."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from foliot.kernel.messages import Media, Text
from foliot.kernel.run import events as e
from foliot.runtime.runtime import Runtime
from tests.server.openai.conftest import declare

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}}
]
TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}]
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is Oslo?"}]


def result(call_id: str, text: str) -> ChatCompletionMessageParam:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def called(answer: ChatCompletion) -> list[Any]:
    return list(answer.choices[0].message.tool_calls or ())


async def asked(client: openai.AsyncOpenAI, model: str = "forecaster", **more: Any) -> ChatCompletion:
    return await client.chat.completions.create(model=model, messages=ASKED, tools=CHAT_TOOLS, **more)


async def answered(client: openai.AsyncOpenAI, first: ChatCompletion, *texts: str, **more: Any) -> ChatCompletion:
    message: Any = first.choices[0].message.model_dump(exclude_none=True)
    results = [result(call.id, text) for call, text in zip(called(first), texts, strict=True)]
    return await client.chat.completions.create(
        model=more.pop("model", "forecaster"), messages=[*ASKED, message, *results], tools=CHAT_TOOLS, **more
    )


async def test_the_run_waits_for_the_client_and_goes_on_with_its_result(
    client: openai.AsyncOpenAI, runtime: Runtime
) -> None:
    first = await asked(client)
    (call,) = called(first)
    info = await runtime.inside.runs.journal.get(first.id.removeprefix("chatcmpl-"))

    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.content == "I ask."
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":"Oslo"}')
    assert info.phase == "waiting"

    second = await answered(client, first, "rain")

    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "It says rain."
    assert second.choices[0].message.tool_calls is None
    (only,) = await runtime.inside.runs.journal.list()
    assert (only.id, only.phase) == (info.id, "succeeded")


async def test_each_answer_counts_what_it_used_itself(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    first = await asked(client)
    second = await answered(client, first, "rain")
    (run,) = await runtime.inside.runs.journal.list()
    ended = (await runtime.inside.runs.facts(run.id))[-1][1]

    assert isinstance(ended, e.RunSucceeded)
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.total_tokens > 0
    assert first.usage.total_tokens + second.usage.total_tokens == ended.usage.total_tokens


async def test_results_that_are_sent_again_are_heard_once(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    first = await asked(client)
    answers = [await answered(client, first, "rain") for _ in range(2)]
    both = await asyncio.gather(*(answered(client, first, "rain") for _ in range(2)))

    assert {answer.choices[0].message.content for answer in (*answers, *both)} == {"It says rain."}
    assert len(await runtime.inside.runs.journal.list()) == 1
    with pytest.raises(openai.ConflictError, match="another result"):
        await answered(client, first, "snow")


async def test_calls_and_answers_come_in_pieces(client: openai.AsyncOpenAI) -> None:
    stream: Any = await asked(client, stream=True)
    chunks = [chunk async for chunk in stream]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]

    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert "".join(delta.function.arguments for delta in deltas) == '{"city":"Oslo"}'
    message: Any = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": deltas[0].id,
                "type": "function",
                "function": {"name": deltas[0].function.name, "arguments": '{"city":"Oslo"}'},
            }
        ],
    }
    rest: Any = await client.chat.completions.create(
        model="forecaster", messages=[*ASKED, message, result(deltas[0].id, "rain")], tools=CHAT_TOOLS, stream=True
    )
    told = [chunk async for chunk in rest]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == "It says rain."
    assert told[-1].choices[0].finish_reason == "stop"


async def test_several_calls_wait_for_all_of_their_results(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    first = await asked(client, "planner")
    calls = called(first)
    message: Any = first.choices[0].message.model_dump(exclude_none=True)

    assert [call.function.arguments for call in calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']
    with pytest.raises(openai.BadRequestError, match="have no result"):
        await client.chat.completions.create(
            model="planner", messages=[*ASKED, message, result(calls[0].id, "rain")], tools=CHAT_TOOLS
        )
    second = await answered(client, first, "rain", "", model="planner")

    assert second.choices[0].message.content == "Done."
    assert len(await runtime.inside.runs.journal.list()) == 1


async def test_own_tools_and_those_of_the_client_are_called_side_by_side(client: openai.AsyncOpenAI) -> None:
    first = await asked(client, "mixed")
    (call,) = called(first)
    (own,) = first.model_extra["foliot"]["tool_calls"] if first.model_extra else ()

    assert (call.function.name, own["name"]) == ("get_weather", "add")
    second = await answered(client, first, "rain", model="mixed")
    assert second.choices[0].message.content == "Both."


async def test_what_the_user_says_besides_is_heard(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    first = await asked(client)
    (call,) = called(first)
    message: Any = first.choices[0].message.model_dump(exclude_none=True)
    second = await client.chat.completions.create(
        model="forecaster",
        messages=[*ASKED, message, result(call.id, "rain"), {"role": "user", "content": "And quickly."}],
        tools=CHAT_TOOLS,
    )
    _, state = await runtime.inside.runs.load(first.id.removeprefix("chatcmpl-"))

    assert second.choices[0].message.content == "It says rain."
    assert any(message.text == "And quickly." for message in state.transcript)


async def test_calls_of_earlier_turns_are_a_part_of_the_conversation(
    client: openai.AsyncOpenAI, runtime: Runtime
) -> None:
    first = await asked(client)
    second = await answered(client, first, "rain")
    message: Any = first.choices[0].message.model_dump(exclude_none=True)
    last: Any = second.choices[0].message.model_dump(exclude_none=True)
    history = [*ASKED, message, result(called(first)[0].id, "rain"), last, {"role": "user", "content": "And now?"}]
    third = await client.chat.completions.create(model="rememberer", messages=history, tools=CHAT_TOOLS)
    _, state = await runtime.inside.runs.load(third.id.removeprefix("chatcmpl-"))

    assert third.choices[0].message.content == "First How is Oslo?, now And now?."
    assert [message.role for message in state.transcript[:4]] == ["user", "assistant", "tool", "assistant"]
    assert state.transcript[1].calls[0].id == "call_1_1", "as the model called it"


async def test_calls_of_another_service_are_a_part_of_the_conversation(client: openai.AsyncOpenAI) -> None:
    call: Any = {"id": "call_abc", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    said: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = await client.chat.completions.create(model="reader", messages=[*ASKED, said, result("call_abc", "hail")])

    assert answer.choices[0].message.content == "I read hail."
    with pytest.raises(openai.BadRequestError, match="has no result"):
        await client.chat.completions.create(model="reader", messages=[*ASKED, said, *ASKED])
    with pytest.raises(openai.BadRequestError, match="waits for a result"):
        await client.chat.completions.create(model="reader", messages=[*ASKED, result("call_x", "hail")])


@pytest.mark.parametrize("by", ["previous", "items"])
async def test_responses_wait_and_go_on_too(client: openai.AsyncOpenAI, runtime: Runtime, by: str) -> None:
    first = await client.responses.create(model="forecaster", input="How is Oslo?", tools=TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]

    assert (first.status, call.name, call.arguments) == ("completed", "get_weather", '{"city":"Oslo"}')
    sent: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    if by == "previous":
        with pytest.raises(openai.BadRequestError, match="results of get_weather"):
            await client.responses.create(model="forecaster", input="Well?", previous_response_id=first.id)
        second = await client.responses.create(model="forecaster", input=[sent], previous_response_id=first.id)
    else:
        items: Any = [{"role": "user", "content": "How is Oslo?"}, *(item.model_dump() for item in first.output), sent]
        second = await client.responses.create(model="forecaster", input=items, tools=TOOLS)

    assert second.output_text == "It says rain."
    assert second.id != first.id
    assert len(await runtime.inside.runs.journal.list()) == 1
    third = await client.responses.create(model="rememberer", input="And now?", previous_response_id=second.id)
    assert third.output_text == "First How is Oslo?, now And now?."


async def test_a_response_in_pieces_hands_out_calls(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model="forecaster", input="How is Oslo?", tools=TOOLS) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    added = [e.item for e in events if e.type == "response.output_item.added" and e.item.type == "function_call"]
    (call,) = [item for item in whole.output if item.type == "function_call"]

    assert [item.arguments for item in added] == [""]
    assert call.arguments == '{"city":"Oslo"}'
    sent: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    async with client.responses.stream(
        model="forecaster", input=[sent], previous_response_id=whole.id, tools=TOOLS
    ) as stream:
        assert (await stream.get_final_response()).output_text == "It says rain."


async def test_a_run_that_went_on_elsewhere_knows_the_tools_of_its_client(
    client: openai.AsyncOpenAI, runtime: Runtime, settings: Any
) -> None:
    """Another process takes it up from the journal, which has all that is needed."""
    first = await asked(client)
    run_id = first.id.removeprefix("chatcmpl-")
    async with Runtime(settings=settings) as other:
        await other.inside.answer_question(run_id, None, "rain")

    info, state = await runtime.inside.runs.load(run_id)
    assert (info.phase, state.transcript[-1].text) == ("succeeded", "It says rain.")


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "custom"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "a name is"),
        ({"tools": [*CHAT_TOOLS, *CHAT_TOOLS]}, "two tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "no"}}}]}, "schema"),
        ({"tool_choice": "required"}, "no tool"),
        ({"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "y"}}}, "no tool 'y'"),
        ({"tools": CHAT_TOOLS, "model": "line"}, "their own tools"),
        ({"tools": [{"type": "function", "function": {"name": "add"}}], "model": "clerk"}, "has a tool 'add'"),
    ],
)
async def test_tools_that_cannot_be_brought_are_refused(
    client: openai.AsyncOpenAI, runtime: Runtime, more: dict[str, Any], match: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=match):
        await client.chat.completions.create(**{"model": "echo", "messages": ASKED, **more})
    assert await runtime.inside.runs.journal.list() == []


async def test_none_of_them_is_offered_when_none_is_chosen(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    answer = await client.chat.completions.create(model="echo", messages=ASKED, tools=CHAT_TOOLS, tool_choice="none")
    _, state = await runtime.inside.runs.load(answer.id.removeprefix("chatcmpl-"))

    assert state.spec.tools == ()


async def test_a_result_may_hold_images_and_files(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    image: Any = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    file: Any = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}
    first = await client.responses.create(model="forecaster", input="How is Oslo?", tools=TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    output: Any = {"type": "function_call_output", "call_id": call.call_id}

    async def send(*parts: Any) -> openai.types.responses.Response:
        return await client.responses.create(
            model="forecaster", previous_response_id=first.id, tools=TOOLS, input=[{**output, "output": list(parts)}]
        )

    second = await send({"type": "input_text", "text": "rain"}, image, file)
    again = await send({"type": "input_text", "text": "rain"}, image, file)

    assert second.output_text == again.output_text == "It says rain."
    (info,) = await runtime.inside.runs.journal.list()
    (finished,) = [event for _, event in await runtime.inside.runs.facts(info.id) if isinstance(event, e.ToolFinished)]
    assert finished.result.content == (
        Text("rain"),
        Media("image/png", data="aGk="),
        Media("application/pdf", data="aGk=", name="a.pdf"),
    )
    with pytest.raises(openai.ConflictError, match="another result"):
        await send({"type": "input_text", "text": "rain"}, image)


async def test_a_result_of_nothing_but_an_image_is_that_image(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    first = await client.responses.create(model="forecaster", input="How is Oslo?", tools=TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    image: Any = {"type": "input_image", "image_url": "https://x.test/a.png"}

    await client.responses.create(
        model="forecaster",
        tools=TOOLS,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": [image]}],
    )

    (info,) = await runtime.inside.runs.journal.list()
    (finished,) = [event for _, event in await runtime.inside.runs.facts(info.id) if isinstance(event, e.ToolFinished)]
    assert finished.result.content == (Media("image/png", url="https://x.test/a.png"),)


async def test_a_chat_takes_texts_of_tools_only(client: openai.AsyncOpenAI) -> None:
    first = await asked(client)
    (call,) = called(first)
    message: Any = first.choices[0].message.model_dump(exclude_none=True)
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    wrong: Any = {"role": "tool", "tool_call_id": call.id, "content": [image]}
    with pytest.raises(openai.BadRequestError, match="results of tools are text"):
        await client.chat.completions.create(model="forecaster", messages=[*ASKED, message, wrong], tools=CHAT_TOOLS)


async def test_the_first_response_stays_what_it_was_when_the_run_went_on(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="forecaster", input="How is Oslo?", tools=TOOLS)
    waiting = await client.responses.retrieve(first.id)
    (call,) = [item for item in first.output if item.type == "function_call"]
    second = await client.responses.create(
        model="forecaster",
        tools=TOOLS,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )

    found = await client.responses.retrieve(first.id)
    told = [event async for event in await client.responses.retrieve(first.id, stream=True)]

    assert (found.status, found.output, found.output_text) == ("completed", first.output, "I ask.")
    assert (found.output, found.usage) == (waiting.output, waiting.usage)
    assert told[-1].type == "response.completed"
    assert told[-1].response.output == first.output
    assert (await client.responses.retrieve(second.id)).output_text == "It says rain."


TWICE = """\
kind: ModelEndpoint
metadata: {name: traveller-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {get_weather: {city: Oslo}}}
    - {call: {get_weather: {city: Bergen}}}
    - {say: "It says {last_result}."}
---
kind: Agent
metadata: {name: traveller}
spec: {model_ref: traveller-model}
"""


async def test_results_sent_again_are_answered_with_the_next_calls_that_they_led_to(
    client: openai.AsyncOpenAI, runtime: Runtime
) -> None:
    await declare(runtime, TWICE)
    first = await asked(client, "traveller")
    second = await answered(client, first, "rain", model="traveller")

    again = await answered(client, first, "rain", model="traveller")

    assert again.choices[0].finish_reason == "tool_calls"
    assert called(again) == called(second)
    assert '"Bergen"' in called(again)[0].function.arguments
    with pytest.raises(openai.ConflictError, match="another result"):
        await answered(client, first, "snow", model="traveller")
    (only,) = await runtime.inside.runs.journal.list()
    assert only.phase == "waiting"


GUARDED = """\
kind: ModelEndpoint
metadata: {name: payer-model}
spec:
  provider: scripted
  default_model: scripted
  script:
    - {call: {get_weather: {city: Oslo}}}
    - {call: {sum_up: {one: 2, other: 3}}}
    - {say: "It says {last_result}."}
---
kind: Tool
metadata: {name: get_weather}
spec: {type: function, function: "openai_tools:add", effect: read}
---
kind: Tool
metadata: {name: sum_up}
spec: {type: function, function: "openai_tools:add", effect: read, requires_prior: [get_weather]}
---
kind: Agent
metadata: {name: payer}
spec: {model_ref: payer-model, tools: [sum_up]}
"""


async def test_a_tool_of_the_client_is_not_what_a_tool_of_the_agent_waits_for(
    client: openai.AsyncOpenAI, runtime: Runtime
) -> None:
    await declare(runtime, GUARDED)
    first = await asked(client, "payer")
    second = await answered(client, first, "rain", model="payer")
    assert "can be called after 'get_weather' succeeded" in str(second.choices[0].message.content)
