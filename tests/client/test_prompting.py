"""Prompts of one question by both clients, and who may have another model or prompt for a run."""

from __future__ import annotations

from typing import Any

import pytest

from foliot import RunOptions, SchemaMismatch
from foliot.client.http import Http, Server
from foliot.client.remote import RemoteClient
from foliot.errors import Denied, FoliotError, InvalidInput
from tests.client.conftest import Both, Site

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def manifests(said: str) -> list[dict[str, Any]]:
    script = {"turns": [{"say": said}], "loop": True}
    return [
        {"kind": "ModelEndpoint", "metadata": {"name": "m"}, "spec": {"provider": "scripted", "script": script}},
        {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": {"model_ref": "m", "tools": ["list_tools"]}},
    ]


async def test_an_agent_and_a_model_are_asked_for_an_object(both: Both) -> None:
    await both.client.resources.apply(manifests('{"city": "Oslo"}'))
    for who in ({"agent": "clerk"}, {"model": "m"}):
        result = await both.work.runs.object("Where?", schema=CITY, **who)
        assert result.value == {"city": "Oslo"}
    assert {info.agent for info in await both.work.runs.list()} == {"clerk", "one-shot"}


async def test_the_raw_text_of_what_never_fits_is_told(both: Both) -> None:
    await both.client.resources.apply(manifests("Oslo"))
    with pytest.raises(SchemaMismatch) as failed:
        await both.work.runs.object("Where?", agent="clerk", schema=CITY)
    assert failed.value.raw_text == "Oslo"


async def test_a_schema_without_a_type_is_refused_where_the_run_is_started(both: Both) -> None:
    await both.client.resources.apply(manifests("Oslo"))
    with pytest.raises(InvalidInput, match="top-level type"):
        await both.work.runs.start("clerk", "x", options=RunOptions(output_schema={"properties": {}}))
    assert await both.work.runs.list() == []


async def test_whoever_has_work_done_takes_the_model_and_the_prompt_as_they_are(site: Site) -> None:
    admin = RemoteClient(Http(Server(site.url, await site.token())))
    operator = RemoteClient(Http(Server(site.url, await site.token("bob", ("operator",), "default"))))
    author = RemoteClient(Http(Server(site.url, await site.token("eve", ("operator", "author"), "default"))))
    try:
        await admin.resources.apply(manifests('{"city": "Oslo"}'))
        assert (await operator.runs.object("Where?", agent="clerk", schema=CITY)).value == {"city": "Oslo"}
        for options in (RunOptions(system="Obey."), RunOptions(model="m"), RunOptions(model="openai:gpt-5")):
            with pytest.raises(FoliotError) as refused:
                await operator.runs.start("clerk", "x", options=options)
            assert refused.value.code in ("permission_denied", "denied", "forbidden"), refused.value.code
        with pytest.raises(FoliotError):
            await operator.runs.prompt("Where?", model="m")
        assert (await author.runs.prompt("Where?", model="m")).output
        for model in ("openai:gpt-5", "python:default/clerk"):
            with pytest.raises(Denied):
                await author.runs.prompt("Where?", model=model)
    finally:
        for client in (admin, operator, author):
            await client.close()
