"""From the manifest of an http tool to the request that it makes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from foliot.engine.definition.freeze import tool_definition
from foliot.resources.definitions.tool import Tool
from foliot.tools.backends.http import http_backends
from tests.tools.web_service import call, serving, way_out


def declared(spec: dict[str, Any]) -> dict[str, Any]:
    document = {"apiVersion": "foliot.dev/v1", "kind": "Tool", "metadata": {"name": "search"}, "spec": spec}
    return Tool.model_validate(document).model_dump(by_alias=True)


async def test_what_is_declared_is_what_is_asked() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.method} {request.path_qs} {request.headers['X-Api']}")

    async with serving(answer) as service, way_out() as out:
        document = declared(
            {
                "endpoint": f"{service.url}/ships/{{imo}}",
                "http": {"method": "get", "headers": {"X-Api": 2}, "query": {"fields": "name,flag"}},
            }
        )
        definition = tool_definition(document)
        made = http_backends(out)[definition.type, definition.isolation](definition)
        assert await made.invoke(call({"imo": 9074729, "at": "now"})) == "GET /ships/9074729?fields=name,flag&at=now 2"


def test_a_tool_without_options_has_none() -> None:
    assert tool_definition(declared({"endpoint": "https://a.example/"})).options == {}
