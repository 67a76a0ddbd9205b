"""The official client with responses that were given before: followed, looked into, forgotten."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx2 as httpx
import openai
import pytest

from foliot.runtime.runtime import Runtime
from foliot.store.audit.log import AuditFilter, SqlAuditLog

ON_BOTH = pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)

IN_PARTS = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Look:"},
            {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="},
        ],
    }
]


async def followed(client: openai.AsyncOpenAI, id: str, **how: Any) -> list[Any]:
    async with asyncio.timeout(60):
        stream = await client.responses.retrieve(id, stream=True, **how)
        return [event async for event in stream]


def text_of(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.parametrize("model", ["echo", "clerk", "judge", "careful"])
async def test_a_stream_can_be_taken_up_again_behind_any_event(client: openai.AsyncOpenAI, model: str) -> None:
    live = [event async for event in await client.responses.create(model=model, input="hello", stream=True)]
    id = live[0].response.id

    again = await followed(client, id)

    assert text_of(again) == text_of(live)
    assert again[-1].response.output == live[-1].response.output
    for number, event in enumerate(live):
        rest = await followed(client, id, starting_after=event.sequence_number)
        before = live[: number + 1]
        assert text_of(before) + text_of(rest) == text_of(live)
        shown = [each.type for each in (*before, *rest) if each.type != "response.output_text.delta"]
        assert shown == [each.type for each in live if each.type != "response.output_text.delta"]
        numbers = [each.sequence_number for each in (*before, *rest)]
        assert numbers == sorted(set(numbers))


@ON_BOTH
async def test_work_in_the_background_is_followed_until_it_is_over(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model="slow", input="go", background=True)
    tools = sys.modules["openai_tools"]
    async with asyncio.timeout(60):
        await tools.holding.wait()

    stream = await client.responses.retrieve(begun.id, stream=True)
    types: list[str] = []
    text = ""
    async with asyncio.timeout(60):
        async for event in stream:
            types.append(event.type)
            if event.type == "response.mcp_call.in_progress":
                tools.release.set()
            if event.type == "response.output_text.delta":
                text += event.delta

    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    assert text == "It was held."


async def test_who_follows_and_hangs_up_ends_nothing(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model="slow", input="go", background=True)
    tools = sys.modules["openai_tools"]
    async with asyncio.timeout(60):
        await tools.holding.wait()
    stream = await client.responses.retrieve(begun.id, stream=True)
    await anext(aiter(stream))
    await stream.close()

    tools.release.set()

    assert (await followed(client, begun.id))[-1].response.output_text == "It was held."


@ON_BOTH
async def test_a_system_is_followed_too(client: openai.AsyncOpenAI, worker: None) -> None:
    begun = await client.responses.create(model="line", input="a tale", background=True)

    events = await followed(client, begun.id)

    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text_of(events) == "Finished."
    assert (await followed(client, begun.id, starting_after=events[-1].sequence_number)) == []


async def test_the_input_of_a_response_is_what_was_said(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="rememberer", input="one")
    second = await client.responses.create(model="rememberer", input="two", previous_response_id=first.id)

    newest = await client.responses.input_items.list(second.id)
    pages = [item async for item in client.responses.input_items.list(second.id, order="asc", limit=1)]

    assert [item.id for item in newest.data] == [item.id for item in reversed(pages)]
    assert [(item.role, item.content[0].text) for item in pages if item.type == "message"] == [
        ("user", "one"),
        ("assistant", first.output_text),
        ("user", "two"),
    ]


async def test_files_calls_and_decisions_are_items_of_the_input(client: openai.AsyncOpenAI) -> None:
    shown = await client.responses.create(model="echo", input=IN_PARTS)
    added = await client.responses.create(model="clerk", input="add")
    after = await client.responses.create(model="clerk", input="again", previous_response_id=added.id)
    asked = await client.responses.create(model="careful", input="pay")
    (request,) = (item for item in asked.output if item.type == "mcp_approval_request")
    decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    paid = await client.responses.create(model="careful", input=[decision], previous_response_id=asked.id)

    (said,) = (await client.responses.input_items.list(shown.id)).data
    before = (await client.responses.input_items.list(after.id, order="asc")).data
    (decided,) = (await client.responses.input_items.list(paid.id)).data

    assert [part.type for part in said.content] == ["input_text", "input_image", "input_file"]
    assert said.content[1].image_url == "data:image/png;base64,aGk="
    assert [item.type for item in before] == ["message", "message", "mcp_call", "message", "message"]
    assert (before[2].name, before[2].output) == ("add", "5")
    assert (decided.type, decided.approve, decided.approval_request_id) == ("mcp_approval_response", True, request.id)


async def test_the_input_of_a_system_is_one_message(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(model="line", input="a tale", background=True)

    (said,) = (await client.responses.input_items.list(begun.id)).data

    assert said.content[0].text == "a tale"


@ON_BOTH
async def test_a_response_that_is_over_can_be_forgotten(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    kept = await client.responses.create(model="echo", input="keep this")
    answer = await client.responses.create(model="echo", input="forget this")

    await client.responses.delete(answer.id)

    for look in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await look(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="echo", input="and?", previous_response_id=answer.id)
    assert (await client.responses.retrieve(kept.id)).output_text == kept.output_text
    run_id = answer.id.removeprefix("resp_")
    acts = await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(run_id=run_id, moment="act"))
    assert [act.body["outcome"] for act in acts] == ["deleted", "started"]


@ON_BOTH
async def test_a_task_is_forgotten_with_its_runs(client: openai.AsyncOpenAI, worker: None, runtime: Runtime) -> None:
    answer = await client.responses.create(model="line", input="a tale")

    await client.responses.delete(answer.id)

    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    assert await runtime.inside.runs.journal.list() == []


async def test_what_goes_on_or_belongs_to_a_session_stays(client: openai.AsyncOpenAI) -> None:
    going = await client.responses.create(model="slow", input="go", background=True)
    turn = await client.responses.create(model="echo", input="hello", conversation="chat-1")

    for id, why in ((going.id, "has not ended"), (turn.id, "session 'chat-1'")):
        with pytest.raises(openai.ConflictError, match=why):
            await client.responses.delete(id)

    assert (await client.responses.retrieve(turn.id)).status == "completed"
    await client.responses.cancel(going.id)


@pytest.mark.parametrize(
    "path",
    ["?stream=true&starting_after=-1", "?stream=perhaps", "/input_items?limit=0", "/input_items?order=up"],
)
async def test_a_parameter_that_cannot_be_used_is_refused_in_the_shape_that_clients_read(
    client: openai.AsyncOpenAI, url: str, path: str
) -> None:
    answer = await client.responses.create(model="echo", input="hello")

    async with httpx.AsyncClient() as http:
        refused = await http.get(f"{url}/v1/responses/{answer.id}{path}")

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] in ("starting_after", "stream", "limit", "order")


async def test_an_item_that_is_not_there_is_no_place_to_go_on_from(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model="echo", input="hello")

    with pytest.raises(openai.BadRequestError, match="there is no item"):
        await client.responses.input_items.list(answer.id, after="in_nothing")
