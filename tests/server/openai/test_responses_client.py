"""The official client, unmodified, against a real server: responses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from starlette.applications import Starlette

from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import Anonymous
from foliot.settings.settings import Settings

Serve = Callable[[Starlette], AbstractAsyncContextManager[str]]
DELTA = "response.output_text.delta"
ON_BOTH = pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)


async def streamed(client: openai.AsyncOpenAI, **order: Any) -> tuple[list[Any], Response]:
    events = [event async for event in await client.responses.create(**order, stream=True)]
    return events, events[-1].response


async def test_an_agent_answers(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="echo", input="hello", metadata={"ticket": "T-1"})

    assert answer.output_text == "You said hello."
    assert answer.status == "completed"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 5)
    assert answer.metadata == {"ticket": "T-1"}


async def test_the_events_of_an_answer_come_in_order(client: openai.AsyncOpenAI) -> None:
    events, whole = await streamed(client, model="echo", input=[{"role": "user", "content": "hello"}])

    types = [event.type for event in events]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types.count(DELTA) > 1
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))  # of a piece of text, the number is that of its last character
    assert numbers[-1] == sum(len(event.delta) if event.type == DELTA else 1 for event in events) - 1
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "You said hello."
    assert whole.output_text == "You said hello."


async def test_calls_of_tools_are_items_that_clients_only_show(client: openai.AsyncOpenAI) -> None:
    events, whole = await streamed(client, model="clerk", input="add")

    assert [item.type for item in whole.output] == ["message", "mcp_call", "message"]
    call: Any = whole.output[1]
    assert (call.name, call.status, call.output, call.server_label) == ("add", "completed", "5", "foliot")
    assert {"response.mcp_call.in_progress", "response.mcp_call.completed"} <= {event.type for event in events}
    assert not any(item.type == "function_call" for item in whole.output)
    assert (whole.output[0].phase, whole.output[2].phase) == ("commentary", "final_answer")  # type: ignore[union-attr]


async def test_a_stored_response_is_the_one_that_was_streamed(client: openai.AsyncOpenAI) -> None:
    _, whole = await streamed(client, model="clerk", input="add")
    again = await client.responses.retrieve(whole.id)

    assert [item.model_dump() for item in again.output] == [item.model_dump() for item in whole.output]
    assert (again.status, again.usage) == (whole.status, whole.usage)


@ON_BOTH
async def test_an_answer_goes_on_from_an_earlier_one_after_a_restart(
    runtime: Runtime, settings: Settings, serve: Serve
) -> None:
    async with (
        serve(create_app(runtime, settings=settings, auth=Anonymous())) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = await client.responses.create(model="rememberer", input="one")
    async with (
        Runtime(settings=settings) as other,
        serve(create_app(other, settings=settings, auth=Anonymous())) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        second = await client.responses.create(model="rememberer", input="two", previous_response_id=first.id)
        third = await client.responses.create(model="echo", input="three", previous_response_id=second.id)

    assert second.output_text == "First one, now two."
    assert second.previous_response_id == first.id
    assert third.output_text == "You said three."


async def test_the_tokens_of_an_input_are_counted_and_nothing_is_begun(
    client: openai.AsyncOpenAI, runtime: Runtime
) -> None:
    first = await client.responses.create(model="echo", input="hello")
    count = client.responses.input_tokens.count
    short, *more = [
        (await count(model="echo", input="hi")).input_tokens,
        (await count(model="echo", input="hi " * 400)).input_tokens,
        (await count(model="echo", input="hi", previous_response_id=first.id)).input_tokens,
        (await count(model="echo", input="hi", instructions="Be brief. " * 40)).input_tokens,
    ]

    assert 0 < short < min(more)
    assert len(await runtime.inside.runs.journal.list(agent="echo")) == 1


async def test_a_conversation_has_a_name(client: openai.AsyncOpenAI) -> None:
    for text in ("one", "two", "three", "four", "five"):
        answer = await client.responses.create(model="rememberer", input=text, conversation="conv-1")
        again = await client.responses.retrieve(answer.id)
        assert [each.conversation and each.conversation.id for each in (answer, again)] == ["conv-1", "conv-1"]

    assert answer.output_text == "First one, now five."


@ON_BOTH
async def test_an_approval_is_asked_for_and_given(client: openai.AsyncOpenAI) -> None:
    asked = await client.responses.create(model="careful", input="pay")
    (request,) = [item for item in asked.output if item.type == "mcp_approval_request"]

    assert asked.status == "incomplete"
    assert asked.incomplete_details is not None
    assert asked.incomplete_details.reason == "waiting_for_approval"
    assert (request.name, request.arguments) == ("pay", '{"amount":5}')
    given: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
    answer = await client.responses.create(model="careful", input=given, previous_response_id=asked.id)

    assert answer.output_text == "Done: paid 5"
    assert answer.status == "completed"
    again = await client.responses.retrieve(answer.id)
    assert again.output_text == "Done: paid 5"
    with pytest.raises(openai.ConflictError, match="waits for no approval"):
        await client.responses.create(model="careful", input=given, previous_response_id=asked.id)


async def test_a_refused_call_is_told_to_the_agent(client: openai.AsyncOpenAI) -> None:
    asked, whole = await streamed(client, model="careful", input="pay")
    (request,) = [item for item in whole.output if item.type == "mcp_approval_request"]
    given: Any = [
        {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": False, "reason": "too much"}
    ]
    _, answer = await streamed(client, model="careful", input=given, previous_response_id=whole.id)

    assert asked[-1].type == "response.incomplete"
    assert "too much" in answer.output_text


async def test_a_question_is_answered_by_what_is_said_next(client: openai.AsyncOpenAI) -> None:
    asked = await client.responses.create(model="asker", input="paint")
    answer = await client.responses.create(model="asker", input="red", previous_response_id=asked.id)

    assert asked.incomplete_details is not None
    assert asked.incomplete_details.reason == "waiting_for_question"
    assert "Which colour?" in asked.output_text
    assert answer.output_text == "It is red."


@ON_BOTH
async def test_work_in_the_background_is_looked_at_and_cancelled(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model="slow", input="hold", background=True)
    seen = await client.responses.retrieve(begun.id)
    cancelled = await client.responses.cancel(begun.id)

    assert begun.status == "in_progress"
    assert seen.status == "in_progress"
    while cancelled.status == "in_progress":
        cancelled = await client.responses.retrieve(begun.id)
    assert cancelled.status == "cancelled"
    assert (await client.responses.cancel(begun.id)).status == "cancelled"


async def test_an_answer_that_was_cut_off_is_incomplete(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    answer = await client.responses.create(model="broken", input="x")

    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error.message


async def test_a_shape_of_one_s_own(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    text: Any = {"format": {"type": "json_schema", "name": "shape", "schema": schema}}
    answer = await client.responses.create(model="echo", input="x", text=text)
    _, state = await runtime.inside.runs.load(answer.id.removeprefix("resp_"))

    assert state.spec.output_schema == schema
    assert answer.status == "failed"  # what this agent says is no JSON, and the run says so


@pytest.mark.usefixtures("worker")
async def test_a_system_answers_and_goes_on(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="line", input="clocks")
    second = await client.responses.create(model="line", input="bells", previous_response_id=first.id)
    again = await client.responses.retrieve(second.id)

    assert first.output_text == second.output_text == again.output_text == "Finished."


@pytest.mark.parametrize(
    ("order", "match"),
    [
        ({"input": None}, "input must be"),
        ({"input": []}, "nothing to answer"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "no call 'c' waits"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "type 'web_search' cannot be given"),
        ({"input": "x", "conversation": "c", "previous_response_id": "resp_x"}, "not both"),
        ({"input": "x", "max_output_tokens": 0}, "at least one token"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}}, "JSON Schema"),
        ({"input": "x", "metadata": {"k": "v" * 600}}, "too long"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_place(
    client: openai.AsyncOpenAI, runtime: Runtime, order: dict[str, Any], match: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=match) as refused:
        await client.post("/responses", body={"model": "echo", **order}, cast_to=object)

    assert refused.value.param
    assert await runtime.inside.runs.journal.list() == []


@pytest.mark.parametrize("id", ["resp_nobody", "nonsense", "resp_task~default~nothing", "resp_x.999999999999"])
async def test_a_response_that_is_not_there_is_not_found(client: openai.AsyncOpenAI, id: str) -> None:
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.retrieve(id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="echo", input="x", previous_response_id=id)
