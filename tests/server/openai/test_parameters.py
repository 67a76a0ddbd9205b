"""Every parameter that the official client can send is in the table, and the docs show the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as response_params

from foliot.server.openai.errors import BadRequest
from foliot.server.openai.requests import (
    CHAT,
    RESPONSES,
    ChatRequest,
    RequestParameter,
    ResponsesRequest,
    parameter_table,
    read_chat,
    read_response,
)

DOCS = Path(__file__).parents[3] / "docs" / "openai.md"
READERS: Any = {
    "chat": (CHAT, read_chat, {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
    "responses": (RESPONSES, read_response, {"model": "m", "input": "hello"}),
}


def test_the_tables_have_what_the_client_can_send_and_nothing_else() -> None:
    chat = chat_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    responses = response_params.ResponseCreateParamsBase.__annotations__.keys() | {"stream"}

    assert (chat ^ CHAT.keys(), responses ^ RESPONSES.keys()) == (set(), set())


@pytest.mark.parametrize("api", READERS)
def test_the_docs_show_the_table(api: str) -> None:
    assert parameter_table(READERS[api][0]) in DOCS.read_text(), (
        "put the output of foliot.server.openai.requests.parameter_table into docs/openai.md"
    )


@pytest.mark.parametrize(
    ("api", "name", "parameter"),
    [(api, name, each) for api in READERS for name, each in READERS[api][0].items()],
    ids=[f"{api}-{name}" for api in READERS for name in READERS[api][0]],
)
def test_a_parameter_does_what_the_table_says(api: str, name: str, parameter: RequestParameter) -> None:
    _, read, least = READERS[api]
    as_if_not_there = read(json.dumps({**least, **({name: None} if name not in least else {})}).encode())
    match parameter.fate:
        case "only":
            for value in parameter.values:
                read(json.dumps({**least, name: value}).encode())
            with pytest.raises(BadRequest) as refused:
                read(json.dumps({**least, name: "something else"}).encode())
            assert refused.value.details["param"] == name
        case "refused":
            with pytest.raises(BadRequest) as refused:
                read(json.dumps({**least, name: {"x": 1}}).encode())
            assert refused.value.details["param"] == name
        case "no effect":
            same = read(json.dumps({**least, name: {"x": 1}}).encode())
            assert (same.settings, same.schema, same.metadata) == (as_if_not_there.settings, None, {})
        case _:  # the reader looks at it
            fields = ChatRequest.__struct_fields__ if api == "chat" else ResponsesRequest.__struct_fields__
            assert name in fields


@pytest.mark.parametrize("api", READERS)
def test_what_is_in_no_table_is_refused(api: str) -> None:
    _, read, least = READERS[api]
    with pytest.raises(BadRequest, match="no parameter 'temprature'"):
        read(json.dumps({**least, "temprature": 1}).encode())
    read(json.dumps({**least, "temprature": None}).encode())


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"stream_options": {"includeusage": True}}),
        ("/v1/responses", {"reasoning": {"efort": "high"}}),
        ("/v1/responses", {"text": {"formt": {"type": "text"}}}),
    ],
)
async def test_a_mistyped_member_of_a_parameter_is_refused(client: openai.AsyncOpenAI, path: str, more: Any) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"input": "hi"}
    with pytest.raises(openai.BadRequestError, match=next(iter(next(iter(more.values()))))):
        await client.post(path.removeprefix("/v1"), body={"model": "greeter", **said, **more}, cast_to=object)
