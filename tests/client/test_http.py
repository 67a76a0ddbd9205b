"""Requests: what is asked again and what never is, how long is waited, what errors become, and whom is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from foliot.client import http as module
from foliot.client.errors import error_of, path_of
from foliot.client.http import EventReader, Http, Server, checked_url
from foliot.client.remote import selector_text
from foliot.errors import Conflict, Denied, FoliotError, Gone, InvalidInput, NotFound, Unavailable, UsageError
from foliot.resources.problems import render_path
from foliot.store.base import Requirement
from foliot.store.resources.selectors import parse_labels

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Serves one handler for every path; the address."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def failing(times: int, status: int, **headers: str) -> tuple[Handler, list[str]]:
    """Fails so often, and then does it."""
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.method)
        if len(asked) <= times:
            body = {"code": "unavailable", "detail": "not now"}
            return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})
        return web.json_response({"done": True})

    return handler, asked


async def test_a_read_is_asked_again_while_the_server_is_not_there_for_it(serve):
    handler, asked = failing(3, 503)
    async with Http(Server(await serve(handler))) as http:
        assert (await http.ask("GET", "/x")).json() == {"done": True}
    assert len(asked) == 4


async def test_a_read_is_not_asked_for_ever_when_each_answer_takes_long(serve, monkeypatch, caplog):
    handler, asked = failing(3, 503)
    monkeypatch.setattr("foliot.client.http.TRIED_FOR", 0.0)
    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Unavailable):
            await http.ask("GET", "/x")
    assert len(asked) == 1
    monkeypatch.undo()
    async with Http(Server(await serve(handler))) as http:
        assert (await http.ask("GET", "/x")).json() == {"done": True}
    assert caplog.text.count("not now; it is asked again") == 1


async def test_a_write_that_may_have_been_done_is_not_done_again(serve):
    handler, asked = failing(1, 503)
    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Unavailable, match="not now"):
            await http.ask("POST", "/x", body=b"{}")
    assert asked == ["POST"]


async def test_a_write_that_the_server_says_it_did_not_do_is_asked_again_after_the_time_it_names(serve):
    handler, asked = failing(2, 429, Retry_After="0")
    async with Http(Server(await serve(handler))) as http:
        await http.ask("POST", "/x", body=b"{}")
    assert len(asked) == 3


async def test_nobody_waits_an_hour_because_a_server_says_so(serve):
    handler, asked = failing(9, 429, Retry_After="3600")
    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Unavailable) as caught:
            await http.ask("GET", "/x")
    assert (len(asked), caught.value.details["retry_after"]) == (1, 3600.0)


async def test_a_write_whose_connection_breaks_is_not_repeated_and_a_read_is(serve):
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Unavailable, match="broke off"):
            await http.ask("POST", "/x", body=b"{}")
        assert asked == ["POST"]
        with pytest.raises(Unavailable):
            await http.ask("GET", "/x")
    assert len(asked) > 2


async def test_a_server_that_is_not_there_is_named_and_a_token_is_not():
    async with Http(Server("http://127.0.0.1:1", "fol_secret")) as http:
        with pytest.raises(Unavailable) as caught:
            await http.ask("GET", "/x")
    assert "http://127.0.0.1:1" in caught.value.message
    assert "fol_secret" not in f"{caught.value} {caught.value.hint} {http.server!r}"
    assert caught.value.exit_code == 7


async def test_a_server_that_does_not_answer_is_not_waited_for(serve):
    async def handler(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with Http(Server(await serve(handler), timeout=0.1)) as http:
        with pytest.raises(Unavailable, match="in time"):
            await http.ask("POST", "/x", body=b"{}")


async def test_the_token_goes_to_the_server_and_to_nobody_it_sends_us_to(serve):
    stolen: list[str | None] = []

    async def thief(request: web.Request) -> web.Response:
        stolen.append(request.headers.get("Authorization"))
        return web.json_response({})

    elsewhere = await serve(thief)
    known: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        known.append(request.headers.get("Authorization"))
        return web.Response(status=302, headers={"Location": elsewhere})

    async with Http(Server(await serve(handler), "fol_secret")) as http:
        with pytest.raises(FoliotError):
            await http.ask("GET", "/x")
    assert (known, stolen) == (["Bearer fol_secret"], [])


async def test_something_else_than_a_server_of_foliot_is_told_apart(serve):
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Unavailable, match="not JSON"):
            (await http.ask("GET", "/x")).json()


@pytest.mark.parametrize(
    "url", ["", "foliot", "ftp://x", "http://", "http://a:b@host", "http://host?x=1", "http://h:0"]
)
def test_an_address_that_cannot_be_is_refused(url):
    with pytest.raises(UsageError):
        checked_url(url)


def test_a_certificate_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match=r"ca\.pem"):
        Http(Server("https://host", ca=tmp_path / "ca.pem"))


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://foliot.example:8080", True),
        ("http://10.0.0.7", True),
        ("http://127.0.0.2:1", False),
        ("http://localhost:8080", False),
        ("http://[::1]:8080", False),
        ("https://foliot.example", False),
    ],
)
def test_a_token_that_others_can_read_on_its_way_is_warned_of_once(url, warned, caplog, monkeypatch):
    monkeypatch.setattr("foliot.client.http._warned", set())
    for token in (None, "fol_sesame", "fol_sesame"):
        Http(Server(url, token))

    assert [url in record.getMessage() for record in caplog.records] == [True] * warned
    assert "sesame" not in caplog.text


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (404, "not_found", NotFound, 3),
        (409, "conflict", Conflict, 4),
        (412, "precondition_failed", Conflict, 4),
        (410, "gone", Gone, 4),
        (422, "invalid", InvalidInput, 5),
        (400, "usage", UsageError, 2),
        (403, "denied", Denied, 6),
        (401, "unauthenticated", Denied, 6),
        (503, "unavailable", Unavailable, 7),
        (429, "too_many_requests", Unavailable, 7),
        (500, "internal", FoliotError, 1),
        (422, "of_a_newer_version", InvalidInput, 5),
    ],
)
def test_a_problem_is_the_error_that_it_was_made_from(status, code, kind, exit_code):
    body = msgspec.json.encode({"code": code, "detail": "what happened", "hint": "what to do"})

    error = error_of(status, body, where="x")

    assert (type(error), error.message, error.exit_code) == (kind, "what happened", exit_code)
    assert error.hint


@given(st.binary(max_size=200), st.integers(100, 599))
def test_no_answer_is_so_strange_that_it_breaks_the_client(body: bytes, status: int):
    assert isinstance(error_of(status, body, where="x"), FoliotError)


@given(st.lists(st.one_of(st.integers(0, 99), st.from_regex(r"[a-z_]{1,8}", fullmatch=True)), max_size=6))
def test_a_path_that_was_shown_is_read_back(steps: list[Any]):
    assert path_of(render_path(tuple(steps))) == tuple(steps)


@given(
    st.lists(
        st.one_of(
            st.builds(
                Requirement,
                st.from_regex(r"[a-z]{1,8}", fullmatch=True),
                st.sampled_from(["=", "!=", "in", "notin"]),
                st.tuples(st.from_regex(r"[a-z0-9.-]{1,8}", fullmatch=True)),
            ),
            st.builds(Requirement, st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sampled_from(["exists", "absent"])),
        ),
        max_size=5,
    )
)
def test_a_selector_is_read_as_it_was_meant(requirements: list[Requirement]):
    assert parse_labels(selector_text(requirements) or "") == tuple(requirements)


# --- events ------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))), max_size=9
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_events_come_whole_however_their_bytes_are_cut(events: list[tuple[int, str]], cuts: list[int]):
    stream = b"".join(b": alive\n\nid: %d\nevent: e\ndata: %s\n\n" % (n, text.encode()) for n, text in events)
    reader, came, position, turn = EventReader(), [], 0, 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        came += reader.feed(stream[position : position + size])
        position, turn = position + size, turn + 1

    assert [(event.id, event.data) for event in came] == [(str(n), text) for n, text in events]


def test_an_event_that_breaks_off_in_the_middle_is_asked_for_again():
    reader = EventReader("7")

    assert list(reader.feed(b"id: 8\nevent: e\ndata: half")) == []

    assert reader.last_id == "7"


async def test_a_stream_that_ends_early_goes_on_behind_its_last_id_and_ends_when_told(serve):
    asked: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        asked.append(last)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        start = int(last or 0) + 1
        for number in range(start, start + 2):
            await response.write(f"id: {number}\ndata: {number}\n\n".encode())
        await response.write(b"event: end\ndata: {}\n\n" if start > 4 else b"id: 99\ndata: ha")
        return response

    async with Http(Server(await serve(handler))) as http, asyncio.timeout(60):
        came = [event.data async for event in http.stream("/x")]

    assert (came, asked) == (["1", "2", "3", "4", "5", "6"], [None, "2", "4"])


async def test_a_stream_that_is_refused_says_why_at_once(serve):
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"code": "gone", "detail": "too long ago"}, status=410)

    async with Http(Server(await serve(handler))) as http:
        with pytest.raises(Gone, match="too long ago"):
            await anext(http.stream("/x"))


async def test_a_stream_gives_up_on_a_server_that_stays_away():
    async with Http(Server("http://127.0.0.1:1", patience=0.05)) as http, asyncio.timeout(60):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await anext(http.stream("/x"))
