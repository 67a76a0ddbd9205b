"""The official client, unmodified, against a real server: chat completions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from foliot.runtime.runtime import Runtime

ON_BOTH = pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True
)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def chunks_of(stream: AsyncIterator[ChatCompletionChunk]) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def test_models_are_the_agents_and_systems(client: openai.AsyncOpenAI) -> None:
    found = {model.id: model async for model in client.models.list()}

    assert {"echo", "clerk", "line"} <= found.keys()
    assert found["line"].foliot["kind"] == "system"
    assert (await client.models.retrieve("echo")).owned_by == "default"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.models.retrieve("nobody")


async def test_an_agent_that_is_not_active_is_no_model(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    for active, listed in ((True, True), (False, False)):
        spec = {"model_ref": "tape", "active": active}
        document = {"apiVersion": "foliot.dev/v1", "kind": "Agent", "metadata": {"name": "resting"}, "spec": spec}
        taken = await http.post("/v1/apply", json=document, params={"allowMissing": "true", "forceConflicts": "true"})
        assert taken.is_success, taken.text
        assert ("resting" in [model.id async for model in client.models.list()]) == listed


async def test_an_agent_answers(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    answer = await client.chat.completions.create(model="echo", messages=said("hello"))

    assert answer.choices[0].message.content == "You said hello."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 5, 12)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    info = await runtime.inside.runs.journal.get(answer.id.removeprefix("chatcmpl-"))
    assert (info.phase, info.labels["foliot.dev/via"]) == ("succeeded", "openai")


async def test_an_answer_comes_in_pieces(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="default/echo", messages=said("hello"), stream=True, stream_options={"include_usage": True}
    )
    chunks = await chunks_of(stream)

    written = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(written) > 2
    assert text_of(chunks) == "You said hello."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12


async def test_calls_of_tools_are_shown_and_not_handed_out(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="clerk", messages=said("add"))
    stream = await client.chat.completions.create(model="clerk", messages=said("add"), stream=True)
    chunks = await chunks_of(stream)

    assert whole.choices[0].message.tool_calls is None
    assert whole.choices[0].message.content == "It is 5."
    (call,) = whole.foliot["tool_calls"]
    assert (call["name"], call["arguments"]) == ("add", '{"one":2,"other":3}')
    assert all(chunk.choices[0].delta.tool_calls is None for chunk in chunks)
    assert [chunk.foliot["type"] for chunk in chunks if hasattr(chunk, "foliot")] == ["tool.called", "tool.returned"]
    assert text_of(chunks) == "Let me look.\n\nIt is 5."


async def test_a_conversation_is_its_messages(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="rememberer",
        messages=[*said("one"), {"role": "assistant", "content": "Yes."}, *said("two")],
    )

    assert answer.choices[0].message.content == "First one, now two."


@ON_BOTH
async def test_a_session_remembers_by_its_header(client: openai.AsyncOpenAI) -> None:
    told = client.with_options(default_headers={"X-Foliot-Session": "mine"})
    for text in ("one", "two", "three"):
        answer = await told.chat.completions.create(model="rememberer", messages=said(text))

    assert answer.choices[0].message.content == "First one, now three."
    other = client.with_options(default_headers={"X-Foliot-Session": "yours"})
    fresh = await other.chat.completions.create(model="rememberer", messages=said("four"))
    assert fresh.choices[0].message.content == "First four, now four."


@ON_BOTH
async def test_a_request_with_a_key_is_done_once(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    keyed: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "k1"}}
    one = await client.chat.completions.create(model="echo", messages=said("hello"), **keyed)
    other = await client.chat.completions.create(model="echo", messages=said("hello"), **keyed)

    assert one.id == other.id
    assert other.choices[0].message.content == "You said hello."
    assert len(await runtime.inside.runs.journal.list()) == 1
    with pytest.raises(openai.ConflictError, match="idempotency key"):
        await client.chat.completions.create(model="echo", messages=said("goodbye"), **keyed)


async def test_settings_and_instructions_reach_the_run(client: openai.AsyncOpenAI, runtime: Runtime) -> None:
    answer = await client.chat.completions.create(
        model="echo",
        messages=[{"role": "system", "content": "Be brief."}, *said("hello")],
        max_completion_tokens=50,
        temperature=0.25,
        stop=["END"],
        seed=7,
        user="ann",
        metadata={"ticket": "T-1"},
    )

    info, state = await runtime.inside.runs.load(answer.id.removeprefix("chatcmpl-"))
    settings = state.spec.settings
    assert (settings.max_output_tokens, settings.temperature, settings.stop, settings.seed) == (50, 0.25, ("END",), 7)
    assert state.spec.system.endswith("Be brief.")
    assert info.labels["openai.com/metadata.ticket"] == "T-1"


async def test_a_shape_can_be_asked_for(client: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"verdict": {"type": "string"}}, "required": ["verdict"]}
    answer = await client.chat.completions.create(model="judge", messages=said("?"))
    assert answer.choices[0].message.content == '{"verdict":"fine"}'
    with pytest.raises(openai.BadRequestError, match="shape of their own"):
        await client.chat.completions.create(
            model="judge",
            messages=said("?"),
            response_format={"type": "json_schema", "json_schema": {"name": "v", "schema": schema}},
        )
    stream = await client.chat.completions.create(model="judge", messages=said("?"), stream=True)
    assert text_of(await chunks_of(stream)) == '{"verdict":"fine"}'


async def test_why_an_answer_ends_is_told(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="stutterer", messages=said("?"), stream=True)

    assert text_of(await chunks_of(stream)).endswith("A whole answer.")


async def test_a_failed_run_is_an_error_that_is_not_tried_again(url: str, runtime: Runtime) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(model="broken", messages=said("hello"))
        stream = await client.chat.completions.create(model="broken", messages=said("hello"), stream=True)
        with pytest.raises(openai.APIError, match="foliot why"):
            await chunks_of(stream)

    assert failed.value.type == "server_error"
    assert len(await runtime.inside.runs.journal.list(agent="broken")) == 2


async def test_a_run_that_waits_says_for_what(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="careful", messages=said("pay"))
    stream = await client.chat.completions.create(model="careful", messages=said("pay"), stream=True)
    chunks = await chunks_of(stream)

    (waits,) = answer.foliot["waiting"]["for"]
    assert waits["kind"] == "approval"
    assert waits["command"] == f"foliot approvals approve {waits['id']}"
    for text in (answer.choices[0].message.content, text_of(chunks)):
        assert text == "This waits until somebody has approved pay."
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_question_is_answered_by_the_next_message_of_the_session(client: openai.AsyncOpenAI) -> None:
    told = client.with_options(default_headers={"X-Foliot-Session": "paint"})
    asked = await told.chat.completions.create(model="asker", messages=said("paint"))
    answer = await told.chat.completions.create(model="asker", messages=said("blue"))

    assert asked.choices[0].message.content == "Which colour? (red / blue)"
    assert answer.choices[0].message.content == "It is blue."


@ON_BOTH
@pytest.mark.usefixtures("worker")
async def test_a_system_answers_too(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="line", messages=said("clocks"))
    stream = await client.chat.completions.create(model="line", messages=said("clocks"), stream=True)
    chunks = await chunks_of(stream)

    assert whole.choices[0].message.content == "Finished."
    assert whole.usage is not None
    assert whole.usage.total_tokens > 0
    assert text_of(chunks) == "Finished."
    worked = [(chunk.foliot["agent"], chunk.foliot["phase"]) for chunk in chunks if hasattr(chunk, "foliot")]
    assert worked == [("first", "running"), ("first", "succeeded"), ("second", "running"), ("second", "succeeded")]


@pytest.mark.parametrize(("header", "phase"), [("cancel", "cancelled"), ("continue", "succeeded")])
async def test_who_hangs_up_cancels_or_lets_it_go_on(
    client: openai.AsyncOpenAI, runtime: Runtime, header: str, phase: str
) -> None:
    stream = await client.chat.completions.create(
        model="slow", messages=said("hold"), stream=True, extra_headers={"X-Foliot-On-Disconnect": header}
    )
    async with asyncio.timeout(60):
        while "openai_tools" not in sys.modules:
            await asyncio.sleep(0.01)
        tools: Any = sys.modules["openai_tools"]
        await tools.holding.wait()
    await stream.close()
    (info,) = await runtime.inside.runs.journal.list(agent="slow")
    async with asyncio.timeout(60):
        if header == "continue":
            tools.release.set()
        while (info := await runtime.inside.runs.journal.get(info.id)).phase != phase:
            await asyncio.sleep(0.01)
    tools.release.set()


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"messages": []}, "nothing to answer"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "nothing to answer"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "no role 'wizard'"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "no call 'c' waits"),
        ({"messages": ["x"]}, "an object is expected"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "type 'video'"),
        ({"messages": said("x"), "functions": [{"name": "f"}]}, "functions cannot be used"),
        ({"messages": said("x"), "nonsense": 1}, "no parameter 'nonsense'"),
        ({"messages": said("x"), "n": 2}, "one answer"),
        ({"messages": said("x"), "max_tokens": 0}, "at least one token"),
        ({"messages": said("x"), "temperature": 9}, "between 0 and 2"),
        ({"messages": said("x"), "response_format": {"type": "xml"}}, "no format 'xml'"),
        ({"messages": said("x"), "stream": "yes"}, "Expected `bool | null`"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_its_place(
    client: openai.AsyncOpenAI, runtime: Runtime, body: dict[str, Any], match: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=match) as refused:
        await client.post("/chat/completions", body={"model": "echo", **body}, cast_to=object)

    assert refused.value.type == "invalid_request_error"
    assert refused.value.param
    assert await runtime.inside.runs.journal.list() == []


async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other/echo", messages=said("x"))

    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 5000, b"[]", b""])
async def test_a_body_that_is_no_request_is_refused(url: str, body: bytes) -> None:
    import httpx2 as httpx

    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/v1/chat/completions", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_session_takes_one_request_at_a_time(client: openai.AsyncOpenAI) -> None:
    told = client.with_options(default_headers={"X-Foliot-Session": "busy"})
    first = asyncio.create_task(told.chat.completions.create(model="slow", messages=said("hold")))
    async with asyncio.timeout(60):
        while "openai_tools" not in sys.modules:
            await asyncio.sleep(0.01)
        tools: Any = sys.modules["openai_tools"]
        await tools.holding.wait()
    with pytest.raises(openai.ConflictError, match="has not ended"):
        await told.chat.completions.create(model="slow", messages=said("hurry"))
    tools.release.set()

    assert (await first).choices[0].message.content == "It was held."


async def test_two_who_begin_a_session_at_once_do_not_hear_each_other(client: openai.AsyncOpenAI) -> None:
    told = client.with_options(default_headers={"X-Foliot-Session": "race"})
    answers = await asyncio.gather(
        *(told.chat.completions.create(model="echo", messages=said(word)) for word in ("one", "two", "three")),
        return_exceptions=True,
    )

    for word, answer in zip(("one", "two", "three"), answers, strict=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, openai.ConflictError)
        else:
            assert answer.choices[0].message.content == f"You said {word}."
    assert not all(isinstance(answer, BaseException) for answer in answers)
