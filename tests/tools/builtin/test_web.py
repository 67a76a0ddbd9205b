"""`http_get` and `http_request` against a real server on loopback."""

from __future__ import annotations

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from foliot.tools.base import ToolArgumentsInvalid
from foliot.tools.builtin.web import LARGEST_BODY, LONGEST_TEXT, HttpRequestTool, page_text
from foliot.tools.outbound.guard import Outbound
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.builtin.kit import call, invocation
from tests.tools.web_service import serving, way_out

PAGE = """<!doctype html><html><head><title>The  Title</title><style>p {color: red}</style>
<script>var hidden = "<p>no</p>"</script></head><body><h1>Head &amp; Shoulders</h1><p>One
 two</p><ul><li>first</li><li><a href="https://x.example/y">second</a></li></ul>
<table><tr><td>a</td><td>b</td></tr></table><template>no</template></body></html>"""


def answering(**fields):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(**fields)

    return answer


async def fetch(answer, arguments=None, *, reading=True, policy=None):
    async with serving(answer) as service, way_out(policy=policy) as out:
        given = {"url": service.url + "/page", **(arguments or {})}
        result = await call(HttpRequestTool(out.client, reading=reading), given)
        return result, service


async def test_text_is_shown_with_where_it_came_from() -> None:
    result, service = await fetch(answering(text="hello é"))

    assert result.text == f"HTTP 200\nURL: {service.url}/page\nContent-Type: text/plain\n\nhello é"


async def test_a_page_is_reduced_to_what_can_be_seen() -> None:
    result, _ = await fetch(answering(text=PAGE, content_type="text/html"))

    body = result.text.partition("\n\n")[2]
    assert "Shown: visible text of the page" in result.text
    assert body == ("The Title\n\nHead & Shoulders\nOne two\n- first\n- second (https://x.example/y)\n| a | b")


@given(st.text(alphabet="<>/abp \"'=!-&;#script", max_size=80))
def test_any_markup_gives_some_text(html: str) -> None:
    assert isinstance(page_text(html), str)


async def test_plain_text_that_looks_like_a_page_stays_as_it_is() -> None:
    result, _ = await fetch(answering(text="<p>raw</p>", content_type="text/plain"))

    assert result.text.endswith("<p>raw</p>")


def test_a_number_that_is_no_character_hides_nothing_else() -> None:
    for number in ("9" * 5000, "0" * 5000 + "65", "x" + "f" * 5000):
        assert page_text(f"<title>&#{number};</title><p>before &#{number}; after &#65;</p>").endswith("after A")


@pytest.mark.parametrize("size", [LONGEST_TEXT * 2, LARGEST_BODY * 3])
async def test_a_long_answer_is_cut_and_says_so(size: int) -> None:
    result, _ = await fetch(answering(text="x" * size))

    assert len(result.text) <= LONGEST_TEXT
    assert result.text.endswith("\n[content truncated]")


async def test_what_is_no_text_is_not_shown() -> None:
    result, _ = await fetch(answering(body=b"\x89PNG\0\0", content_type="image/png"))
    untyped, _ = await fetch(answering(body=b"\0\1\2", content_type="application/octet-stream"))

    assert "[6 bytes that are not text; not shown]" in result.text
    assert "not shown" in untyped.text


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "external", False),
        (401, "permission", False),
        (403, "permission", False),
        (404, "not_found", False),
        (429, "rate_limited", True),
        (500, "external", True),
    ],
)
async def test_a_status_that_is_a_refusal_is_a_failure_of_its_kind(status: int, kind: str, retryable: bool) -> None:
    result, _ = await fetch(answering(status=status, text="y" * 600))

    assert result.error is not None
    assert (result.error.kind, result.error.retryable) == (kind, retryable)
    assert result.error.message == f"HTTP {status}: {'y' * 500}..."


async def test_a_request_is_sent_as_it_was_written() -> None:
    sent = {"method": "post", "headers": {"X-Thing": "1", "content-type": "application/json"}, "body": '{"a":1}'}
    result, service = await fetch(answering(text="ok"), sent, reading=False)

    (request,) = service.requests
    assert result.error is None
    assert (request.method, service.bodies) == ("POST", [b'{"a":1}'])
    assert request.headers.getall("Content-Type") == ["application/json"]
    assert (request.headers["X-Thing"], request.headers["Idempotency-Key"]) == ("1", "key-1")


@pytest.mark.parametrize(
    ("reading", "arguments", "words"),
    [
        (True, {"url": ""}, "url is required"),
        (True, {"url": "file:///etc/passwd"}, "url must start with http:// or https://"),
        (True, {"url": "http://x", "method": "POST"}, "method must be one of GET, HEAD"),
        (False, {"url": "http://x", "method": "CONNECT"}, "method must be one of GET, HEAD, POST, PUT, PATCH, DELETE"),
        (False, {"url": "http://x", "body": "b"}, "GET takes no body"),
        (False, {"url": "http://x", "headers": {"Host": "y"}}, "the header Host is set by the client"),
        (False, {"url": "http://x", "headers": {"transfer-encoding": "y"}}, "is set by the client"),
        (False, {"url": "http://x", "headers": {"A": "b\r\nC: d"}}, "the header 'A' cannot be sent"),
        (False, {"url": "http://x", "headers": {"A: b": "c"}}, "the header 'A: b' cannot be sent"),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_anything_is(reading: bool, arguments: dict, words: str) -> None:
    async with way_out() as out:
        tool = HttpRequestTool(out.client, reading=reading)
        with pytest.raises(ToolArgumentsInvalid, match=words):
            await tool.invoke(invocation(tool, arguments))


async def test_an_address_inside_is_refused_also_as_a_redirect() -> None:
    direct, service = await fetch(answering(text="inside"), policy=Outbound())
    assert direct.error is not None
    assert direct.error.code == "runtime_policy_invalid"
    assert service.requests == []

    async def away(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data"})

    redirected, service = await fetch(away)
    assert redirected.error is not None
    assert redirected.error.code == "runtime_policy_invalid"
    assert len(service.requests) == 1


async def test_redirects_end_somewhere_and_credentials_stay_at_home() -> None:
    async def again(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/page"})

    endless, _ = await fetch(again)
    assert endless.error is not None
    assert "redirects to somewhere else too often" in endless.text

    async with serving(answering(text="there")) as other:

        async def send_on(request: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": other.url + "/x"})

        result, home = await fetch(send_on, {"headers": {"Authorization": "Bearer s3cret", "X-Api-Key": "k"}})
    assert f"URL: {other.url}/x" in result.text
    assert home.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert {"Authorization", "X-Api-Key"}.isdisjoint(other.requests[0].headers)


async def test_a_broken_site_does_not_close_the_tool_for_others() -> None:
    async with serving(answering(status=500)) as broken, serving(answering(text="fine")) as well, way_out() as out:
        tool = HttpRequestTool(out.client, reading=True)
        pipeline = Pipeline([tool])
        for _ in range(8):
            assert (await pipeline.call(invocation(tool, {"url": broken.url}))).error is not None

        result = await pipeline.call(invocation(tool, {"url": well.url}))

    assert result.text.endswith("fine")
