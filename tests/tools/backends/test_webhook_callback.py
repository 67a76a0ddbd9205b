"""Tools of the type webhook-callback: at once, by polling, by push, and what must not be believed."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from aiohttp import web

from foliot.errors import Denied
from foliot.tools.backends.callbacks import Callbacks
from foliot.tools.backends.http import MOST_UNKNOWN, Web, WebhookCallbackTool
from foliot.tools.base import AuthSpec, ToolDefinition, ToolError
from foliot.tools.contract import ToolResponse, decode_response, request_id
from tests.tools.web_service import Service, call, definition, serving, way_out

ID = request_id("wh", call())


def envelope(status: str = "ok", **fields: Any) -> web.Response:
    return web.json_response({"tool_contract_version": "v1", "request_id": ID, "status": status, **fields})


def tool(service: Service, out: Web, *, poll_interval: float = 0.01, **fields: Any) -> WebhookCallbackTool:
    made: ToolDefinition = definition(f"{service.url}/job/", type="webhook-callback", **fields)
    return WebhookCallbackTool(made, out.client, out.auth, out.callbacks, poll_interval=poll_interval)


class Polled:
    """202 to the request, then these answers to the polls; each an answer, or an exception to raise."""

    def __init__(self, *answers: web.Response) -> None:
        self.answers = list(answers)

    async def __call__(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.Response(status=202)
        answer = self.answers.pop(0)
        if answer.status == 599:
            assert request.transport is not None
            request.transport.abort()
        return answer


class TestPolling:
    async def test_an_answer_at_once_is_the_result(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return envelope(output={"result": "now"})

        async with serving(answer) as service, way_out() as out:
            assert await tool(service, out).invoke(call()) == "now"
            (request,) = service.requests
            assert request.headers["X-Tool-Contract-Version"] == "v1"
            sent = json.loads(service.bodies[0])
            assert (sent["request_id"], sent["runtime"]["mode"]) == (ID, "webhook-callback")
            assert "callback_url" not in sent

    async def test_it_is_asked_until_it_is_done(self) -> None:
        answers = Polled(
            web.Response(status=202),
            web.Response(status=204),
            envelope("pending"),
            envelope("running"),
            web.Response(status=599),  # a connection that breaks is no answer
            web.Response(status=503, headers={"Retry-After": "0"}),
            envelope(output={"result": "later"}),
        )
        async with serving(answers) as service, way_out({"FOLIOT_SECRET_K1": "sesame"}) as out:
            assert await tool(service, out, auth=AuthSpec("bearer", "k1")).invoke(call()) == "later"
            polls = service.requests[1:]
            assert {request.path for request in polls} == {f"/job/{ID}"}
            assert {request.method for request in polls} == {"GET"}
            assert {request.headers["Authorization"] for request in polls} == {"Bearer sesame"}
            assert len(polls) >= 7

    async def test_pending_in_the_first_answer_means_wait(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return envelope("queued") if request.method == "POST" else envelope(output={"result": "later"})

        async with serving(answer) as service, way_out() as out:
            assert await tool(service, out).invoke(call()) == "later"

    async def test_a_service_that_does_not_know_the_request_yet_is_asked_again(self) -> None:
        answers = Polled(web.Response(status=404), web.Response(status=404), envelope(output={"result": "later"}))
        async with serving(answers) as service, way_out() as out:
            assert await tool(service, out).invoke(call()) == "later"

    @pytest.mark.parametrize("status", [400, 404, 500, 503])
    async def test_a_refused_poll_ends_the_call_when_nothing_can_be_pushed(self, status: int) -> None:
        refused = Polled(*(web.Response(status=status, text="gone") for _ in range(MOST_UNKNOWN + 1)))
        async with serving(refused) as service, way_out() as out:
            with pytest.raises(ToolError, match=f"HTTP {status}: gone") as caught:
                await tool(service, out).invoke(call())
        assert caught.value.details["isolation_mode"] == "webhook-callback"

    async def test_a_refused_request_ends_the_call(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=500)

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(ToolError, match="HTTP 500"):
                await tool(service, out).invoke(call())
            assert len(service.requests) == 1

    async def test_nonsense_and_other_peoples_results_are_errors(self) -> None:
        for answer in (
            web.Response(text="nonsense"),
            web.json_response({"status": "ok", "request_id": "theirs", "output": {"result": "x"}}),
        ):
            async with serving(Polled(answer)) as service, way_out() as out:
                with pytest.raises(ToolError, match=r"not a contract|another request"):
                    await tool(service, out).invoke(call())

    async def test_the_service_may_say_when_to_ask(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            if request.method == "POST":
                return web.Response(status=202, headers={"Retry-After": "0"})
            return envelope(output={"result": "soon"})

        async with serving(answer) as service, way_out() as out:
            # An hour between polls, were it not for the service's own word.
            assert await tool(service, out, poll_interval=3600).invoke(call()) == "soon"

    async def test_giving_up_forgets_the_request(self) -> None:
        asked = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            asked.set()
            return web.Response(status=202)

        async with serving(answer) as service, way_out() as out:
            running = asyncio.create_task(tool(service, out, poll_interval=3600).invoke(call()))
            await asyncio.wait_for(asked.wait(), 60)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not out.callbacks.deliver(ID, ToolResponse(status="ok"))


class TestPush:
    async def test_a_push_to_the_announced_address_is_the_result(self) -> None:
        callbacks = Callbacks("https://foliot.example/")

        async def answer(request: web.Request) -> web.Response:
            url = urlsplit(json.loads(await request.read())["callback_url"])
            assert (url.scheme, url.netloc) == ("https", "foliot.example")
            query = parse_qs(url.query)
            pushed = callbacks.accept(
                unquote(url.path.rpartition("/")[2]),
                until=query["until"][0],
                signature=query["signature"][0],
                body=envelope(output={"result": "pushed"}).body,  # type: ignore[arg-type]
            )
            return web.Response(status=202 if pushed else 500)

        async with serving(answer) as service, way_out(callbacks=callbacks) as out:
            # It comes even before the request is answered, and nobody polls for an hour.
            assert await tool(service, out, poll_interval=3600).invoke(call()) == "pushed"
            assert len(service.requests) == 1

    async def test_a_push_wins_over_a_poll_that_hangs(self) -> None:
        polled = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if request.method == "POST":
                return web.Response(status=202)
            polled.set()
            await asyncio.Event().wait()
            return web.Response()

        async with serving(answer) as service, way_out() as out:
            running = asyncio.create_task(tool(service, out).invoke(call()))
            await asyncio.wait_for(polled.wait(), 60)
            response = ToolResponse(status="ok", output={"result": "pushed"})
            assert out.callbacks.deliver(ID, response)
            assert not out.callbacks.deliver(ID, response)  # once
            assert await running == "pushed"
            assert not out.callbacks.deliver(ID, response)  # and not when it is over

    @pytest.mark.parametrize("status", [401, 404, 405, 410, 500, 503])
    async def test_a_push_may_come_after_any_refused_poll(self, status: int) -> None:
        """The work is under way at the service; that it cannot be asked about it says nothing."""
        polled = asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            if request.method == "POST":
                return web.Response(status=202)
            if len(service.requests) > 3:
                polled.set()
            return web.Response(status=status)

        async with serving(answer) as service, way_out(callbacks=Callbacks("https://foliot.example/")) as out:
            running = asyncio.create_task(tool(service, out).invoke(call()))
            await asyncio.wait_for(polled.wait(), 60)
            assert out.callbacks.deliver(ID, ToolResponse(status="ok", output={"result": "pushed"}))
            assert await running == "pushed"

    async def test_a_pushed_error_is_the_error(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            found = {"status": "error", "error": {"code": "timeout", "message": "slow"}}
            out.callbacks.deliver(ID, decode_response(json.dumps(found)))
            return web.Response(status=202)

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(ToolError, match="slow") as caught:
                await tool(service, out, poll_interval=3600).invoke(call())
        assert caught.value.code == "timeout"

    async def test_what_is_not_finished_or_not_ours_is_not_taken(self) -> None:
        callbacks = Callbacks()
        with callbacks.expect("r1") as waiting:
            assert not callbacks.deliver("r1", ToolResponse(status="running"))
            assert not callbacks.deliver("r1", ToolResponse(status="ok", request_id="r2"))
            assert not callbacks.deliver("r2", ToolResponse(status="ok"))
            assert callbacks.deliver("r1", ToolResponse(status="ok", request_id="r1"))
            assert (await waiting).status == "ok"

    async def test_a_push_may_come_from_another_thread(self) -> None:
        callbacks = Callbacks()
        with callbacks.expect("r1") as waiting:
            assert await asyncio.to_thread(callbacks.deliver, "r1", ToolResponse(status="ok"))
            assert (await waiting).status == "ok"

    async def test_the_same_call_is_not_waited_for_twice(self) -> None:
        callbacks = Callbacks()
        with callbacks.expect("r1"), pytest.raises(ToolError, match="already"), callbacks.expect("r1"):
            pass
        with callbacks.expect("r1"):
            pass

    def test_without_a_public_address_none_is_announced(self) -> None:
        assert Callbacks().url("r1") == ""


class TestSignature:
    @pytest.fixture
    def callbacks(self) -> Callbacks:
        return Callbacks("https://foliot.example", key=b"k" * 32, clock=lambda: 1000.0)

    def parts(self, callbacks: Callbacks, id: str = "r1", **more: Any) -> dict[str, str]:
        query = parse_qs(urlsplit(callbacks.url(id, **more)).query)
        return {"until": query["until"][0], "signature": query["signature"][0]}

    async def test_only_the_address_that_was_given_out_is_good(self, callbacks: Callbacks) -> None:
        good = self.parts(callbacks, deadline=1060.0)
        body = b'{"status":"ok"}'
        with callbacks.expect("r1"), callbacks.expect("r2"):
            for wrong in (
                {**good, "signature": "0" * 64},
                {**good, "signature": "ß"},
                {**good, "until": "9999"},
                {**good, "until": "x"},
                self.parts(callbacks, "r2"),
            ):
                with pytest.raises(Denied):
                    callbacks.accept("r1", **wrong, body=body)
            assert callbacks.accept("r1", **good, body=body)
            assert not callbacks.accept("r1", **good, body=body)

    async def test_it_ends_with_the_call(self, callbacks: Callbacks) -> None:
        with callbacks.expect("r1"), pytest.raises(Denied, match="has ended"):
            callbacks.accept("r1", **self.parts(callbacks, deadline=990.0), body=b'{"status":"ok"}')

    async def test_a_body_that_is_no_response_is_refused_and_the_call_goes_on(self, callbacks: Callbacks) -> None:
        good = self.parts(callbacks)
        with callbacks.expect("r1"):
            with pytest.raises(ToolError):
                callbacks.accept("r1", **good, body=b"nonsense")
            assert callbacks.accept("r1", **good, body=b'{"status":"ok"}')

    def test_processes_with_one_key_accept_each_others_addresses(self, callbacks: Callbacks) -> None:
        other = Callbacks("https://foliot.example", key=b"k" * 32, clock=lambda: 1000.0)
        assert other.url("r1") == callbacks.url("r1")
        assert Callbacks("https://foliot.example", clock=lambda: 1000.0).url("r1") != callbacks.url("r1")
