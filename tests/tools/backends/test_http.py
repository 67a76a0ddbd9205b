"""Tools of the type http against real servers: requests, answers, statuses, streams and servers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from foliot.common.waits import Waits
from foliot.errors import InvalidInput
from foliot.kernel.messages import Media
from foliot.tools.backends.exchange import retry_after
from foliot.tools.backends.http import HttpTool, RequestTemplate, http_backends
from foliot.tools.base import (
    AuthSpec,
    ToolArgumentsInvalid,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
)
from foliot.tools.outbound.client import OutboundClient, Patience
from foliot.tools.outbound.guard import Guard, Outbound, OutboundRefused
from foliot.tools.pipeline.pipeline import Pipeline
from foliot.tools.secrets.masking import MASK
from tests.tools.web_service import call, definition, saying, serving, way_out

BEARER = AuthSpec("bearer", "k1")
SECRETS = {"FOLIOT_SECRET_K1": "open-sesame"}


ELSEWHERE = ["1/delete", "1\\delete", "1%2fdelete", "1%2Fdelete", "1%5Cdelete", "1%252fdelete", "%2e%2e", "../x"]
ELSEWHERE += ["..;", "a\n"]
# As servers read them that take wide signs for plain ones, or bytes that are no UTF-8 for signs.
ELSEWHERE += ["1\uff0fdelete", "\uff0e\uff0e", "\u2025", "1\uff3cdelete", "1%ef%bc%8fdelete", "1%c0%afdelete"]


def template(endpoint: str, **http: Any) -> RequestTemplate:
    return RequestTemplate(definition(endpoint, options={"http": http} if http else {}))


async def answered(response: web.StreamResponse, arguments: dict[str, Any] | None = None, **fields: Any) -> Any:
    """What a call comes to when the server answers with this."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return response

    async with serving(answer) as service, way_out(SECRETS) as out:
        return await HttpTool(definition(service.url, **fields), out.client, out.auth).invoke(call(arguments))


class TestRequest:
    def test_arguments_are_posted_as_json(self) -> None:
        made = template("https://a.example/x").fill({"q": "π", "n": 1})
        assert (made.method, made.url) == ("POST", "https://a.example/x")
        assert json.loads(made.body or b"") == {"q": "π", "n": 1}
        assert made.headers == {"Content-Type": "application/json"}

    def test_arguments_fill_the_path_and_the_rest_is_the_body(self) -> None:
        made = template("https://a.example/u/{id}/x?v={v}#part", method="PUT").fill({"id": "a b?c", "v": True, "n": 1})
        assert made.url == "https://a.example/u/a%20b%3Fc/x?v=true"
        assert json.loads(made.body or b"") == {"n": 1}

    def test_without_a_body_the_rest_is_the_query(self) -> None:
        arguments = {"q": "a b&c", "tags": ["x", "y"], "none": None, "deep": {"k": 1}}
        made = template("https://a.example/?fixed=1", method="GET").fill(arguments)
        assert made.body is None
        assert made.url == "https://a.example/?fixed=1&q=a%20b%26c&tags=x&tags=y&deep=%7B%22k%22%3A1%7D"

    def test_a_form(self) -> None:
        made = template("https://a.example/", body="form").fill({"a": "1 2", "b": [1, 2]})
        assert made.body == b"a=1+2&b=1&b=2"
        assert made.headers["Content-Type"] == "application/x-www-form-urlencoded"

    def test_headers_and_query_may_use_arguments_and_lose_those_that_are_missing(self) -> None:
        http = {
            "headers": {"X-Lang": "{lang}", "X-Gone": "a {gone}"},
            "query": {"page": "{page}", "v": "2", "z": "{z}"},
        }
        made = template("https://a.example/", **http).fill({"lang": "de", "page": [1, 2]})
        assert made.headers == {"Content-Type": "application/json", "X-Lang": "de"}
        assert made.url == "https://a.example/?page=1&page=2&v=2"
        assert made.body == b"{}"

    def test_braces_that_name_nothing_stay(self) -> None:
        made = template("https://a.example/", query={"filter": '{"a": 1}'}).fill({})
        assert made.url == "https://a.example/?filter=%7B%22a%22%3A%201%7D"

    @pytest.mark.parametrize("value", ["..", ".", "", None, ["a"], {"a": 1}, *ELSEWHERE])
    def test_an_argument_cannot_lead_elsewhere(self, value: Any) -> None:
        with pytest.raises(ToolArgumentsInvalid):
            template("https://a.example/u/{id}/x").fill({"id": value})
        if value not in ("", "."):  # beside other text they are part of a name
            with pytest.raises(ToolArgumentsInvalid):
                template("https://a.example/u/{id}{more}").fill({"id": value, "more": ""})

    @given(st.one_of(st.text(), st.text(alphabet="./\\%2fFeE5cC?#@:;1\r\n\0")))
    def test_whatever_is_given_a_server_finds_the_place_that_was_declared(self, value: str) -> None:
        """Whether it undoes escapes never, once or twice, and whatever it takes for a separator."""
        try:
            made = template("https://a.example/users/{id}").fill({"id": value})
        except ToolArgumentsInvalid:
            return
        place = urlsplit(made.url)
        assert (place.scheme, place.netloc, place.query, place.fragment) == ("https", "a.example", "", "")
        for path in (place.path, unquote(place.path), unquote(unquote(place.path))):
            route = path.replace("\\", "/").split("/")
            assert (len(route), route[1]) == (3, "users")
            assert route[2] not in ("", ".", "..")

    async def test_a_server_that_undoes_escapes_is_not_led_elsewhere(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=request.path)

        async with serving(answer) as service, way_out() as out:
            tool = HttpTool(definition(f"{service.url}/users/{{id}}"), out.client, out.auth)
            slashes = HttpTool(definition(f"{service.url}/projects/{{+id}}/x"), out.client, out.auth)
            for value in ELSEWHERE:
                with pytest.raises(ToolArgumentsInvalid):
                    await tool.invoke(call({"id": value}))
            assert service.requests == []
            assert await tool.invoke(call({"id": "a?b#c&d=e@f:g"})) == "/users/a?b#c&d=e@f:g"
            assert await slashes.invoke(call({"id": "group/project"})) == "/projects/group/project/x"
            assert service.requests[-1].raw_path == "/projects/group%2Fproject/x"
            with pytest.raises(ToolArgumentsInvalid):
                await slashes.invoke(call({"id": "group/../../users"}))

    @pytest.mark.parametrize("endpoint", ["https://a.example/?action=read", "https://a.example/"])
    def test_an_argument_cannot_say_otherwise_what_the_query_says(self, endpoint: str) -> None:
        query = {} if "?" in endpoint else {"action": "read"}
        with pytest.raises(ToolArgumentsInvalid, match="itself says action"):
            template(endpoint, method="GET", query=query).fill({"action": "delete"})

    def test_a_missing_argument_is_named(self) -> None:
        with pytest.raises(ToolArgumentsInvalid, match="needs id"):
            template("https://a.example/u/{id}").fill({})

    def test_an_argument_cannot_make_a_second_header(self) -> None:
        with pytest.raises(ToolArgumentsInvalid, match="X-Lang"):
            template("https://a.example/", headers={"X-Lang": "{lang}"}).fill({"lang": "de\r\nX-Admin: 1"})

    @pytest.mark.parametrize("endpoint", ["https://{host}/", "https://a.{host}:80", "ftp://a.example", "", "a.example"])
    def test_the_host_never_comes_from_arguments(self, endpoint: str) -> None:
        with pytest.raises(ToolPolicyInvalid):
            template(endpoint).fill({"host": "169.254.169.254"})

    async def test_what_goes_over_the_wire(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        async with serving(answer) as service, way_out(SECRETS) as out:
            options = {"http": {"method": "PATCH", "headers": {"X-A": "1", "Authorization": "overridden"}}}
            tool = definition(f"{service.url}/u/{{id}}", auth=BEARER, options=options)
            made = http_backends(out)["http", "none"](tool)
            assert await made.invoke(call({"id": "a b", "n": 1})) == "ok"
            (request,) = service.requests
            assert (request.method, request.raw_path) == ("PATCH", "/u/a%20b")
            assert service.bodies == [b'{"n":1}']
            assert request.headers["Idempotency-Key"] == "key-1"
            assert request.headers["Authorization"] == "Bearer open-sesame"
            assert (request.headers["X-A"], request.content_type) == ("1", "application/json")
            assert made.definition is tool


class TestAnswer:
    @pytest.mark.parametrize(
        ("response", "value"),
        [
            (web.Response(text=" plain \n"), "plain"),
            (web.json_response({"status": "active"}), '{"status": "active"}'),
            (web.json_response({"status": "ok", "data": 1}), '{"status": "ok", "data": 1}'),
            (web.json_response({"status": "denied", "error": "no"}), '{"status": "denied", "error": "no"}'),
            (web.json_response([{"tool_contract_version": "v1"}]), '[{"tool_contract_version": "v1"}]'),
            (web.Response(status=204), ""),
            (web.Response(body="grüße".encode("latin-1"), content_type="text/plain", charset="latin-1"), "grüße"),
            (web.Response(body=b"caf\xe9", content_type="text/plain"), "caf\ufffd"),
            (web.Response(body=b"x", headers={"Content-Type": "text/plain; charset=no-such"}), "x"),
            (web.Response(body=b"text", content_type="application/octet-stream"), "text"),
        ],
    )
    async def test_the_body_is_the_result(self, response: web.Response, value: str) -> None:
        assert await answered(response) == value

    @pytest.mark.parametrize(
        ("media_type", "body"),
        [("image/png", b"\x89PNG\0"), ("application/pdf", b"%PDF"), ("application/octet-stream", b"\0\xff")],
    )
    async def test_files_become_parts(self, media_type: str, body: bytes) -> None:
        found = await answered(web.Response(body=body, content_type=media_type))
        assert found == Media(media_type, data=base64.b64encode(body).decode())

    async def test_an_envelope_that_says_so_decides(self) -> None:
        envelope: dict[str, Any] = {"tool_contract_version": "v1", "status": "ok", "output": {"result": " fine "}}
        assert await answered(web.json_response(envelope)) == "fine"
        envelope |= {"status": "denied", "error": {"code": "quota", "message": "no more"}}
        with pytest.raises(ToolDenied, match="no more") as caught:
            await answered(web.json_response(envelope))
        assert caught.value.code == "quota"

    async def test_an_envelope_of_another_version_is_an_error(self) -> None:
        with pytest.raises(ToolError, match="another contract"):
            await answered(web.json_response({"tool_contract_version": "v2", "status": "ok"}))

    async def test_a_secret_that_comes_back_is_hidden(self) -> None:
        encoded = base64.b64encode(b"key=open-sesame").decode()
        found = await answered(web.Response(text=f"you sent open-sesame or {encoded}"), auth=BEARER)
        assert found.startswith(f"you sent {MASK} or ")
        assert encoded not in found

    async def test_a_file_that_holds_a_secret_is_not_used(self) -> None:
        with pytest.raises(ToolError, match="holds a secret"):
            await answered(web.Response(body=b"\0open-sesame", content_type="image/png"), auth=BEARER)


class TestStatus:
    @pytest.mark.parametrize(
        ("status", "expected", "retryable"),
        [
            (400, ToolError, False),
            (401, ToolAuthInvalid, False),
            (403, ToolAuthForbidden, False),
            (404, ToolError, False),
            (408, ToolError, False),
            (422, ToolError, False),
            (429, ToolRateLimited, True),
            (500, ToolError, True),
            (503, ToolError, True),
            (304, ToolError, False),
        ],
    )
    async def test_what_it_means(self, status: int, expected: type[ToolError], retryable: bool) -> None:
        with pytest.raises(expected) as caught:
            await answered(web.Response(status=status, text="  why  " if status != 304 else None))
        error = caught.value
        assert type(error) is expected
        assert error.retryable is retryable
        assert error.message == (f"tool=search HTTP {status}: why" if status != 304 else "tool=search HTTP 304:")
        assert error.details == {"tool": "search", "http_status": str(status)}

    async def test_the_excerpt_is_short_and_without_secrets(self) -> None:
        # The secret lies across the place where the text is cut.
        with pytest.raises(ToolError) as caught:
            await answered(web.Response(status=500, text="x" * 395 + " open-sesame token=abc"), auth=BEARER)
        assert "sesame" not in caught.value.message
        assert "open" not in caught.value.message
        assert len(caught.value.message) <= 400 + len("tool=search HTTP 500: ")

    async def test_a_text_that_looks_like_a_denial_is_only_text(self) -> None:
        text = "permission denied: approval required: approval_pending"
        with pytest.raises(ToolError) as caught:
            await answered(web.Response(status=500, text=text))
        assert (type(caught.value), caught.value.status, caught.value.retryable) == (ToolError, "error", True)

    @pytest.mark.parametrize("status", [429, 503])
    async def test_the_server_may_say_when_to_come_back(self, status: int) -> None:
        with pytest.raises(ToolError) as caught:
            await answered(web.Response(status=status, headers={"Retry-After": "7"}))
        assert caught.value.retry_after == 7.0

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("0", 0.0),
            ("1.5", 1.5),
            ("-1", None),
            ("soon", None),
            ("", None),
            ("nan", None),
            ("99999999", 3600.0),
            ("Thu, 01 Jan 1970 00:01:40 GMT", 60.0),
            ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ],
    )
    def test_the_wait_is_a_number_or_a_date(self, text: str, seconds: float | None) -> None:
        assert retry_after({"Retry-After": text}, now=40.0) == seconds


class TestTokens:
    async def test_a_token_that_is_refused_is_fetched_anew_once(self) -> None:
        exchanges = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal exchanges
            if request.path == "/token":
                exchanges += 1
                return web.json_response({"access_token": f"token-{exchanges}-abc"})
            good = request.headers["Authorization"] == f"Bearer token-{good_from}-abc"
            return web.Response(text="ok") if good else web.Response(status=401, text=request.headers["Authorization"])

        environ = {"FOLIOT_SECRET_C1_CLIENT_ID": "me", "FOLIOT_SECRET_C1_CLIENT_SECRET": "hush-hush"}
        async with serving(answer) as service, way_out(environ) as out:
            auth = AuthSpec("oauth2_client_credentials", "c1", token_url=f"{service.url}/token", scopes=("a",))
            tool = HttpTool(definition(service.url, auth=auth), out.client, out.auth)
            good_from = 1
            assert [await tool.invoke(call({"n": 1})) for _ in range(3)] == ["ok"] * 3
            assert exchanges == 1
            good_from = 2  # the first token was taken back
            assert await tool.invoke(call({"n": 2})) == "ok"
            assert exchanges == 2
            assert service.bodies[-1] == service.bodies[-3] == b'{"n":2}'
            good_from = 99
            with pytest.raises(ToolAuthInvalid) as caught:
                await tool.invoke(call())
            assert exchanges == 3
            assert "token-3" not in caught.value.message

    async def test_other_credentials_are_not_tried_twice(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=401)

        async with serving(answer) as service, way_out(SECRETS) as out:
            with pytest.raises(ToolAuthInvalid):
                await HttpTool(definition(service.url, auth=BEARER), out.client, out.auth).invoke(call())
            assert len(service.requests) == 1

    async def test_a_secret_that_was_changed_meanwhile_is_looked_up_once_more(self) -> None:
        environ = {"FOLIOT_SECRET_K1": "old-key"}

        async def answer(request: web.Request) -> web.Response:
            environ["FOLIOT_SECRET_K1"] = "new-key"
            good = request.headers["Authorization"] == "Bearer new-key"
            return web.Response(text="ok") if good else web.Response(status=401)

        async with serving(answer) as service, way_out(environ) as out:
            assert await HttpTool(definition(service.url, auth=BEARER), out.client, out.auth).invoke(call()) == "ok"
            assert len(service.requests) == 2


@asynccontextmanager
async def hanging(said: bytes) -> AsyncGenerator[str]:
    """A server that says this and then nothing, until the other side has had enough; its host and port."""
    left = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        with suppress(OSError):
            while await reader.read(1024):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(60):
            await left.wait()


class TestPhases:
    @pytest.mark.parametrize(
        ("said", "phase", "words"),
        [
            (b"", "headers", "did not begin to answer within 0.2 s"),
            (b"HTTP/1.1 200 OK\r\nX-A: b\r\n", "headers", "did not begin to answer within 0.2 s"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "body", "stopped in the middle of its answer"),
        ],
    )
    async def test_each_phase_of_a_request_has_its_limit(self, said: bytes, phase: str, words: str) -> None:
        async with hanging(said) as place, way_out() as out:
            out.client.patience = Patience(head=0.2 if phase == "headers" else 60, silence=0.2)
            tool = HttpTool(definition(f"http://{place}/", timeout=None), out.client, out.auth)
            with pytest.raises(ToolTimeout, match=words) as caught:
                await tool.invoke(call())
        assert caught.value.details["phase"] == phase

    async def test_a_server_that_sends_drop_by_drop_is_left(self) -> None:
        async def drip(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b".")
                await asyncio.sleep(0.01)

        async with serving(drip) as service, way_out() as out:
            out.client.patience = Patience(silence=10, body=0.3)
            with pytest.raises(ToolTimeout, match="took too long to send its answer"):
                await HttpTool(definition(service.url, timeout=None), out.client, out.auth).invoke(call())

    async def test_a_server_that_does_not_speak_tls_is_left(self) -> None:
        async with hanging(b"") as place:
            client = OutboundClient(Guard(Outbound(allow_hosts=("127.0.0.1",))), waits=Waits(lease=1.0))
            with pytest.raises(ToolTimeout, match="no connection") as caught:
                async with client.send("GET", f"https://{place}/"):
                    pass
            await client.close()
        assert caught.value.details["phase"] == "connect"

    def test_a_call_that_may_take_an_hour_may_be_silent_for_that(self) -> None:
        assert Patience().of(3600.0) == Patience(3600.0, 3600.0, 3600.0)
        assert Patience().of(30.0) == Patience().of(None) == Patience()


class TestStreams:
    @staticmethod
    def streaming(*pieces: str | bytes, media_type: str = "text/event-stream") -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": media_type})
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece.encode() if isinstance(piece, str) else piece)
            return response

        return answer

    async def run(self, answer: Any, **fields: Any) -> tuple[Any, list[str]]:
        shown: list[str] = []
        async with serving(answer) as service, way_out(SECRETS) as out:
            tool = HttpTool(definition(service.url, **fields), out.client, out.auth)
            return await tool.invoke(call(), on_output=shown.append), shown

    async def test_events_are_shown_as_they_come(self) -> None:
        first_shown = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(b": hello\n\nevent: x\ndata: one\n\n")
            await asyncio.wait_for(first_shown.wait(), 60)  # no second piece before the first was seen
            await response.write(b"data: two\ndata:three\n\ndata: [DONE]\n\ndata: ignored\n\n")
            return response

        shown: list[str] = []

        def show(text: str) -> None:
            shown.append(text)
            first_shown.set()

        async with serving(answer) as service, way_out() as out:
            tool = HttpTool(definition(service.url), out.client, out.auth)
            assert await tool.invoke(call(), on_output=show) == "one\ntwo\nthree"
        assert shown == ["one\n", "two\nthree\n"]

    async def test_lines_of_json(self) -> None:
        answer = self.streaming('{"a":1}\r\n{"b"', ':2}\n\n{"c":3}', media_type="application/x-ndjson")
        assert await self.run(answer) == ('{"a":1}\n{"b":2}\n{"c":3}', ['{"a":1}\n', '{"b":2}\n', '{"c":3}\n'])

    async def test_pieces_of_the_contract_are_numbered_and_the_first_response_ends_it(self) -> None:
        def frame(**fields: Any) -> str:
            return json.dumps({"tool_contract_version": "v1", **fields}) + "\n"

        answer = self.streaming(
            frame(seq=1, delta="a"),
            frame(seq=1, delta="again"),
            frame(seq=2, delta="b"),
            frame(status="ok", output={"result": "done"}),
            frame(status="error", error={"message": "a second answer"}),
            media_type="application/x-ndjson",
        )
        assert await self.run(answer) == ("done", ["a", "b"])

    async def test_a_response_without_output_leaves_what_was_streamed(self) -> None:
        answer = self.streaming(
            'data: {"tool_contract_version":"v1","seq":1,"delta":"abc"}\n\n',
            'data: {"tool_contract_version":"v1","status":"ok"}\n\n',
        )
        assert (await self.run(answer))[0] == "abc"

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (['{"tool_contract_version":"v1","seq":2,"delta":"x"}'], "lost a piece"),
            (['{"tool_contract_version":"v1","seq":1,"delta":"x"}'], "without a result"),
            (['{"tool_contract_version":"v1","seq":1,"delta":"x"}', "noise"], "not of the contract"),
            (['{"tool_contract_version":"v1","status":"error","error":{"message":"bad"}}'], "bad"),
        ],
    )
    async def test_a_broken_stream_is_an_error(self, lines: list[str], words: str) -> None:
        answer = self.streaming("\n".join(lines), media_type="application/x-ndjson")
        with pytest.raises(ToolError, match=words):
            await self.run(answer)

    async def test_a_secret_across_two_pieces_is_hidden(self) -> None:
        def frame(seq: int, delta: str) -> str:
            return json.dumps({"tool_contract_version": "v1", "seq": seq, "delta": delta}) + "\n"

        end = '{"tool_contract_version":"v1","status":"ok"}\n'
        answer = self.streaming(frame(1, "open-"), frame(2, "sesame!"), end, media_type="application/x-ndjson")
        value, shown = await self.run(answer, auth=BEARER)
        assert value == "".join(shown) == f"{MASK}!"

    async def test_invalid_utf8_is_seen_and_harms_nothing(self) -> None:
        assert (await self.run(self.streaming(b"data: a\xffb\n\n")))[0] == "a\ufffdb"

    async def test_a_stream_that_breaks_off_is_an_error(self) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b"data: a\n\n")
            assert request.transport is not None
            request.transport.abort()
            return response

        with pytest.raises(ToolUnreachable) as caught:
            await self.run(answer)
        assert caught.value.details["sent"] == "yes"


class TestMisbehaviour:
    @pytest.mark.parametrize("media_type", ["text/plain", "text/event-stream"])
    async def test_a_flood_is_cut_off_at_the_limit(self, media_type: str) -> None:
        sent = 0
        stopped = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            response = web.StreamResponse(headers={"Content-Type": media_type})
            await response.prepare(request)
            try:
                for _ in range(16 * 1024):  # 1 GB, if anybody read it
                    await response.write(b"x" * 65536)
                    sent += 65536
            finally:
                stopped.set()
            return response

        async with serving(answer) as service, way_out() as out:
            with pytest.raises(ToolError, match="more than 4,194,304 bytes") as caught:
                await HttpTool(definition(service.url), out.client, out.auth).invoke(call())
            await asyncio.wait_for(stopped.wait(), 60)
        assert (caught.value.kind, caught.value.retryable) == ("too_large", False)
        assert sent < 64 * 1024 * 1024

    async def test_the_limit_itself_is_allowed(self) -> None:
        assert len(await answered(web.Response(text="x" * (4 * 1024 * 1024)))) == 4 * 1024 * 1024

    async def test_a_server_that_hangs_is_left_when_the_call_is_cancelled(self) -> None:
        begun, left = asyncio.Event(), asyncio.Event()

        async def answer(request: web.Request) -> web.Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            return web.Response()

        async with serving(answer) as service, way_out() as out:
            running = asyncio.create_task(HttpTool(definition(service.url), out.client, out.auth).invoke(call()))
            await asyncio.wait_for(begun.wait(), 60)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.wait_for(left.wait(), 60)

    async def test_the_pipeline_bounds_a_server_that_hangs(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            await asyncio.Event().wait()
            return web.Response()

        async with serving(answer) as service, way_out() as out:
            tool = HttpTool(definition(service.url, timeout=0.1), out.client, out.auth)
            result = await Pipeline([tool]).call(call())
        assert result.error is not None
        assert result.error.code == "timeout"

    async def test_nothing_is_begun_after_the_deadline(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        async with serving(answer) as service, way_out() as out:
            tool = HttpTool(definition(service.url), out.client, out.auth)
            with pytest.raises(ToolTimeout):
                await tool.invoke(call(deadline=time.time() - 1))
            assert service.requests == []

    async def test_a_second_answer_on_the_same_connection_is_not_believed(self) -> None:
        one = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        async with saying(one + b"first" + one + b"other") as url, way_out() as out:
            tool = HttpTool(definition(url), out.client, out.auth)
            assert [await tool.invoke(call()) for _ in range(2)] == ["first", "first"]

    async def test_inside_addresses_are_refused(self) -> None:
        async with way_out(policy=Outbound()) as out:
            tool = HttpTool(definition("http://localhost:1/{x}"), out.client, out.auth)
            with pytest.raises(OutboundRefused):
                await tool.invoke(call({"x": "y"}))

    async def test_a_missing_endpoint_is_a_fault_of_the_declaration(self) -> None:
        async with way_out() as out:
            with pytest.raises(ToolPolicyInvalid, match="no endpoint"):
                await HttpTool(definition(""), out.client, out.auth).invoke(call())

    async def test_many_calls_share_their_connections(self) -> None:
        ports: set[int] = set()

        async def answer(request: web.Request) -> web.Response:
            assert request.transport is not None
            ports.add(request.transport.get_extra_info("peername")[1])
            return web.Response(text="ok")

        async with serving(answer) as service, way_out() as out:
            tool = HttpTool(definition(service.url), out.client, out.auth)
            assert [await tool.invoke(call()) for _ in range(20)] == ["ok"] * 20
        assert len(ports) == 1


def test_a_policy_entry_that_is_none_is_refused_early() -> None:
    with pytest.raises(InvalidInput):
        Outbound(allow_hosts=["http://inside"])
