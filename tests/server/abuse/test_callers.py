"""Callers that are not who they say, pages of other sites, and methods that only look."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foliot.server.http.envelope import RequestLimits

CONSOLE = "https://console.example"


def test_a_token_that_is_not_quite_one_lets_nobody_in(wire: Any) -> None:
    token: str = wire.tokens["admin"]
    prefix, id, secret = token.split("_", 2)
    forged = [
        wire.tokens["expired"],
        token.upper(),
        token.lower(),
        token.swapcase(),
        f"{prefix.upper()}_{id}_{secret}",
        f"{prefix}_{id}_",
        f"{prefix}_{id}",
        f"{prefix}__{secret}",
        f"{prefix}_{id}_{'A' * len(secret)}",
        f"{prefix}_{id}_{secret[:-1]}",
        f"{prefix}_{id}_{secret}x",
        f"{prefix}_{wire.tokens['reader'].split('_', 2)[1]}_{secret}",
        token + "\x00",
        f"{token},{token}",
        f'"{token}"',
        "' OR '1'='1",
        "é" * 20,
        "a" * 20_000,
        "null",
        "undefined",
        "",
    ]

    for each in forged:
        data = f"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {each}\r\n\r\n".encode()
        reply = wire.say(data)
        assert reply.status == (400 if "\x00" in each else 401), each[:60]
        assert reply.code in ("unauthenticated", "malformed")


@pytest.mark.parametrize(
    "headers",
    [
        ["Authorization: Basic {}"],
        ["Authorization: {}"],
        ["X-Authorization: Bearer {}"],
        ["Proxy-Authorization: Bearer {}"],
        ["Cookie: token={}"],
        ["Cookie: session={}; foliot_session={}; Authorization={}"],
        ["X-Api-Key: {}"],
    ],
)
def test_a_good_token_in_a_wrong_place_lets_nobody_in(wire: Any, headers: list[str]) -> None:
    token = wire.tokens["admin"]

    reply = wire.ask("GET", "/v1/agents", *(each.replace("{}", token) for each in headers), token=None)

    assert (reply.status, reply.code) == (401, "unauthenticated")


@pytest.mark.parametrize("first", ["x", "{}"])
def test_two_tokens_have_two_readings(wire: Any, first: str) -> None:
    token = wire.tokens["admin"]

    reply = wire.ask("GET", "/v1/agents", f"Authorization: Bearer {first.replace('{}', token)}")

    assert (reply.status, reply.code) == (400, "malformed")
    assert token not in reply.body.decode()


def test_a_token_in_the_query_lets_nobody_in(wire: Any) -> None:
    token = wire.tokens["admin"]

    for name in ("token", "access_token", "authorization", "api_key"):
        assert wire.ask("GET", f"/v1/agents?{name}={token}", token=None).status == 401


def test_the_same_is_said_of_a_namespace_that_is_hidden_and_one_that_is_not_there(wire: Any) -> None:
    body = json.dumps({"metadata": {"name": "there", "namespace": "hidden"}, "spec": {"provider": "mock"}}).encode()
    assert wire.ask("POST", "/v1/model-endpoints?namespace=hidden", body=body).status in (200, 201)

    told = [
        json.loads(wire.ask("GET", f"/v1/model-endpoints/{name}?namespace={space}", token="reader").body)
        for name, space in (("there", "hidden"), ("absent", "hidden"), ("there", "nowhere"))
    ]

    assert told[0] == told[1] == told[2]
    assert told[0]["code"] == "not_found"


def test_a_preflight_is_not_answered_where_no_origin_is_configured(wire: Any) -> None:
    for origin in (CONSOLE, "null", "*", "http://localhost", ""):
        reply = wire.ask("OPTIONS", "/v1/agents", f"Origin: {origin}", "Access-Control-Request-Method: GET")
        assert (reply.status, reply.code) == (405, "method_not_allowed")
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_pages_of_configured_origins_may_call_and_no_others(standing: Any) -> None:
    with standing(limits=RequestLimits(origins=(CONSOLE,))) as wire:
        asks = ("Access-Control-Request-Method: PATCH", "Access-Control-Request-Headers: authorization")

        yes = wire.ask("OPTIONS", "/v1/agents", f"Origin: {CONSOLE}", *asks, token=None)
        assert (yes.status, yes.body) == (204, b"")
        assert yes.headers["access-control-allow-origin"] == CONSOLE
        assert "PATCH" in yes.headers["access-control-allow-methods"]
        assert "Authorization" in yes.headers["access-control-allow-headers"]
        assert yes.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in yes.headers

        for origin in (
            "https://evil.example",
            "https://console.example.evil.example",
            "https://evil-console.example",
            "http://console.example",
            "https://console.example:8443",
            "https://CONSOLE.example",
            "null",
            "*",
        ):
            no = wire.ask("OPTIONS", "/v1/agents", f"Origin: {origin}", *asks, token=None)
            assert no.status == 405, origin
            read = wire.ask("GET", "/v1/agents", f"Origin: {origin}")
            for reply in (no, read):
                assert "access-control-allow-origin" not in reply.headers
                assert reply.headers["vary"] == "Origin"

        read = wire.ask("GET", "/v1/agents", f"Origin: {CONSOLE}")
        refused = wire.ask("GET", "/v1/agents", f"Origin: {CONSOLE}", token=None)
        assert (read.status, refused.status) == (200, 401)
        for reply in (read, refused):
            assert reply.headers["access-control-allow-origin"] == CONSOLE
            assert "X-Request-ID" in reply.headers["access-control-expose-headers"]
        # Without the question of a preflight it is an OPTIONS like any other.
        assert wire.ask("OPTIONS", "/v1/agents", f"Origin: {CONSOLE}", token=None).status == 405


@pytest.mark.parametrize("path", ["/livez", "/v1/agents", "/v1/auth/me", "/openapi.json", "/v1/agents/none", "/none"])
def test_to_ask_about_something_is_to_read_it_without_its_body(wire: Any, path: str) -> None:
    read, asked = wire.ask("GET", path), wire.ask("HEAD", path)

    assert (asked.status, asked.body) == (read.status, b"")
    for name in ("content-type", "content-length", "etag"):
        assert asked.headers.get(name) == read.headers.get(name)


def test_to_ask_about_something_needs_the_right_to_read_it(wire: Any) -> None:
    assert wire.ask("HEAD", "/v1/agents", token=None).status == 401
    assert wire.ask("HEAD", "/v1/agents", token="expired").status == 401


def test_to_ask_about_a_stream_does_not_open_one(wire: Any) -> None:
    reply = wire.ask("HEAD", "/v1/events/watch")

    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PROPFIND", "LOCK", "PURGE", "MKCOL", "DELETE"])
def test_other_methods_are_refused_with_those_that_there_are(wire: Any, method: str) -> None:
    reply = wire.ask(method, "/v1/version", "X-Secret: sesame")

    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert "GET" in reply.headers["allow"]
    assert b"sesame" not in reply.body
