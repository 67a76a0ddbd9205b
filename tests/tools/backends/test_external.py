"""Tools of the type external: the whole envelope there, and only an envelope back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from foliot.tools.backends.http import ExternalTool, http_backends
from foliot.tools.base import (
    AuthSpec,
    ToolAuthForbidden,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolSecretMissing,
    ToolUnreachable,
)
from foliot.tools.contract import decode_request, encode_response, error_response, ok_response, request_id
from foliot.tools.outbound.guard import OutboundRefused
from foliot.tools.secrets.masking import MASK
from tests.tools.web_service import call, definition, serving, way_out


async def answered(body: Any, *, status: int = 200, auth: AuthSpec | None = None) -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body if isinstance(body, bytes) else json.dumps(body), status=status)

    async with serving(answer) as service, way_out({"FOLIOT_SECRET_K1": "open-sesame"}) as out:
        tool = definition(service.url, type="external", auth=auth)
        return await ExternalTool(tool, out.client, out.auth).invoke(call({"q": 1}))


async def test_the_service_gets_everything_it_may_need() -> None:
    async def answer(request: web.Request) -> web.Response:
        asked = decode_request(await request.read())
        return web.Response(body=encode_response(ok_response(asked, f"found {asked.input_raw}")))

    async with serving(answer) as service, way_out({"FOLIOT_SECRET_K1": "open-sesame"}) as out:
        auth = AuthSpec("bearer", "k1")
        tool = definition(f"{service.url}/run", type="external", auth=auth, capabilities=("web",), risk="medium")
        made = http_backends(out)["external", "none"](tool)
        assert await made.invoke(call({"q": 1}, attempt=3, deadline=32_000_000_000.0)) == 'found {"q":1}'

        (request,) = service.requests
        assert (request.method, request.path) == ("POST", "/run")
        assert request.headers["X-Tool-Contract-Version"] == "v1"
        assert request.headers["Authorization"] == "Bearer open-sesame"
        assert request.headers["Idempotency-Key"] == "key-1"
        sent = json.loads(service.bodies[0])
        assert sent["request_id"] == request_id("ext", call(attempt=3))
        assert (sent["task_id"], sent["agent"], sent["attempt"]) == ("task-1", "clerk", 3)
        assert sent["trace"] == {"trace_id": "trace-1", "span_id": "call-1"}
        assert sent["runtime"]["mode"] == "external"
        assert (sent["idempotency_key"], sent["deadline_ms"]) == ("key-1", 32_000_000_000_000)
        assert "open-sesame" not in service.bodies[0].decode()


async def test_an_error_of_the_service_comes_back_whole() -> None:
    async def answer(request: web.Request) -> web.Response:
        error = ToolDenied("not for you", rule="r7")
        return web.Response(body=encode_response(error_response(decode_request(await request.read()), error)))

    async with serving(answer) as service, way_out() as out:
        with pytest.raises(ToolDenied, match="not for you") as caught:
            await ExternalTool(definition(service.url, type="external"), out.client, out.auth).invoke(call())
    assert caught.value.details == {"rule": "r7", "tool": "search", "isolation_mode": "external"}


@pytest.mark.parametrize("body", [b"plain text", b"", b"[]", b'{"status": 3}', b"\xff\xfe", b"<html>"])
async def test_what_is_no_envelope_is_a_retryable_failure(body: bytes) -> None:
    with pytest.raises(ToolError, match="not a contract v1 response") as caught:
        await answered(body)
    assert (caught.value.code, caught.value.retryable) == ("execution_failed", True)
    assert caught.value.details["isolation_mode"] == "external"


async def test_an_answer_to_somebody_elses_request_is_refused() -> None:
    with pytest.raises(ToolError, match="another request") as caught:
        await answered({"status": "ok", "request_id": "ext-search-other-1", "output": {"result": "theirs"}})
    assert not caught.value.retryable
    assert "theirs" not in str(caught.value)


async def test_statuses_mean_what_they_mean_everywhere() -> None:
    with pytest.raises(ToolAuthForbidden):
        await answered({"status": "ok"}, status=403)


async def test_secrets_in_results_and_errors_are_hidden() -> None:
    auth = AuthSpec("bearer", "k1")
    assert await answered({"status": "ok", "output": {"a": ["open-sesame"]}}, auth=auth) == {"a": [MASK]}
    with pytest.raises(ToolError) as caught:
        await answered(
            {"status": "error", "error": {"message": "bad open-sesame", "details": {"k": "open-sesame"}}}, auth=auth
        )
    assert "open-sesame" not in f"{caught.value} {caught.value.details}"


async def test_it_may_stream() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        asked = decode_request(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        frame = {"tool_contract_version": "v1", "request_id": asked.request_id, "seq": 1, "delta": "half "}
        await response.write(json.dumps(frame).encode() + b"\n")
        await response.write(encode_response(ok_response(asked, "whole")) + b"\n")
        return response

    shown: list[str] = []
    async with serving(answer) as service, way_out() as out:
        tool = ExternalTool(definition(service.url, type="external"), out.client, out.auth)
        assert await tool.invoke(call(), on_output=shown.append) == "whole"
    assert shown == ["half "]


async def test_a_streamed_piece_of_another_request_is_refused() -> None:
    async def answer(request: web.Request) -> web.Response:
        frame = {"tool_contract_version": "v1", "request_id": "theirs", "seq": 1, "delta": "x"}
        return web.Response(text=json.dumps(frame), content_type="application/x-ndjson")

    async with serving(answer) as service, way_out() as out:
        with pytest.raises(ToolError, match="another request"):
            await ExternalTool(definition(service.url, type="external"), out.client, out.auth).invoke(call())


async def test_faults_of_the_declaration() -> None:
    async with way_out() as out:
        with pytest.raises(ToolPolicyInvalid):
            await ExternalTool(definition("", type="external"), out.client, out.auth).invoke(call())
        with pytest.raises(OutboundRefused):
            await ExternalTool(definition("http://10.0.0.1/", type="external"), out.client, out.auth).invoke(call())
        missing = definition("http://127.0.0.1:1/", type="external", auth=AuthSpec("bearer", "nope"))
        with pytest.raises(ToolSecretMissing):
            await ExternalTool(missing, out.client, out.auth).invoke(call())


async def test_a_service_that_is_down_is_unreachable() -> None:
    async with serving(lambda request: pytest.fail("asked")) as service, way_out() as out:
        gone = service.url
    async with way_out() as out:
        with pytest.raises(ToolUnreachable) as caught:
            await ExternalTool(definition(gone, type="external"), out.client, out.auth).invoke(call())
    assert caught.value.details["isolation_mode"] == "external"
