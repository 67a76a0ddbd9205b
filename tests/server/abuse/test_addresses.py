"""Addresses that try to be others, headers that try to be more, and places that do not exist."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from typing import Any

import pytest

TRICKS = [
    "/v1/agents/..",
    "/v1/agents/../secrets",
    "/v1/agents/./a",
    "/v1/agents/%2e%2e",
    "/v1/agents/%2E%2e/secrets",
    "/v1/agents/%2e%2e%2fsecrets",
    "/v1/agents/a%2fstatus",
    "/v1/agents/a%2Fstatus",
    "/v1/agents/..%5csecrets",
    "/v1/agents/a\\b",
    "/v1/agents/a%00",
    "/v1/agents/%0d%0aX-Injected:%20yes",
    "/v1/agents/a%0ab",
    "/v1/agents/%7f",
    "/v1/agents/%ff",
    "/v1/agents/%c0%af",
    "/v1/agents/%ed%a0%80",
    "/v1/agents/%",
    "/v1/agents/%zz",
    "/v1/agents/%u0041",
    "/livez/..",
    "/v1/agents?labelSelector=%ff",
    "/v1/agents?namespace=%c0%ae",
    "/v1/agents/a%c2%85",
    "/v1/agents/a%e2%80%a8b",
    "/v1/agents?namespace=a&namespace=b",
    "/v1/agents?namespace=a&namespace=a",
    "/v1/agents?namespace=&namespace=a",
    "/v1/agents?n%61mespace=a",
    "/v1/agents?%6eamespace=a",
    "/v1/agents?+namespace=a",
    "/v1/agents?namespace%20=a",
    "/v1/agents?namespace%00=a",
    "/v1/agents?limit=1;namespace=a",
    "/v1/agents?namespace=+a",
    "/v1/agents?namespace=a%20",
    "/v1/agents?namespace=%e3%80%80a",
    "/v1/agents?namespace=a%00",
    "/v1/agents?namespace=a%0a",
    "/v1/agents?namespace=a%7f",
    "/v1/agents?namespace=a%e2%80%a9",
    "/v1/agents?namespace=%zz",
    "/v1/agents?namespace=%u0041",
    "/v1/agents?namespace=\xc3\xa9",
    "/v1/agents?=a",
    "/v1/agents?&=&",
]


@pytest.mark.parametrize("path", TRICKS)
def test_an_address_with_two_readings_is_refused(wire: Any, path: str) -> None:
    reply = wire.ask("GET", path)

    assert (reply.status, reply.code) == (400, "malformed")
    assert "x-injected" not in reply.headers


@pytest.mark.parametrize(
    "path",
    [
        "//v1/agents",
        "/v1//agents",
        "/v1/agents/",
        "/V1/agents",
        "/v1/AGENTS",
        "/v1/agents;admin=true",
        "/v1/agents/a;b",
        "/v1/agents/...",
        "/v1/%61gents%20",
        "/%76%31/nothing",
        "/v1/agents/%252e%252e",
        "/v1/agents/%252fetc",
        "/v1/agents/é",
        "*",
        "//evil.example/%2e",
    ],
)
def test_an_address_that_is_only_nearly_right_is_nothing(wire: Any, path: str) -> None:
    reply = wire.ask("GET", path.encode().decode("latin-1"))

    assert reply.status in (400, 404), reply.body
    assert reply.code in ("malformed", "not_found", "invalid", "usage")
    assert "location" not in reply.headers


@pytest.mark.parametrize(
    "path", ["/livez/../v1/agents", "/%6civez/%2e%2e/v1/agents", "//livez", "/livez;/../v1/agents"]
)
def test_what_is_open_to_all_opens_nothing_else(wire: Any, path: str) -> None:
    assert wire.ask("GET", path, token=None).status in (400, 401, 404)


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("Namespace=a", "did you mean namespace?"),
        ("NAMESPACE=a", "did you mean namespace?"),
        ("name-space=a", "did you mean namespace?"),
        ("namspace=a", "did you mean namespace?"),
        ("labelselector=a", "did you mean labelSelector?"),
        ("namespace[]=a", "did you mean namespace?"),
        ("watch=true", "the parameters are"),
    ],
)
def test_a_parameter_that_a_route_does_not_have_is_refused(wire: Any, query: str, hint: str) -> None:
    reply = wire.ask("GET", f"/v1/agents?{query}")

    assert (reply.status, reply.code) == (400, "invalid")
    assert hint in json.loads(reply.body)["hint"]


def test_what_programs_written_for_others_add_is_not_looked_at(wire: Any) -> None:
    for path in ("/livez?probe=1&probe%5B%5D=2", "/v1/models?include%5B%5D=a&include%5B%5D=b&client=x"):
        assert wire.ask("GET", path).status == 200
    assert wire.ask("GET", "/v1/models?Namespace=team").status == 400


@pytest.mark.parametrize(
    "query",
    ["namespace=", "namespace", "&namespace=default&", "limit=5&namespace=default", "labelSelector=app+in+(a,b)"],
)
def test_a_query_with_one_reading_is_read(wire: Any, query: str) -> None:
    assert wire.ask("GET", f"/v1/agents?{query}").status == 200


@pytest.mark.parametrize(
    "header",
    [
        "Idempotency-Key: a",
        "If-Match: *",
        "If-None-Match: *",
        "Last-Event-ID: 1",
        "Origin: http://localhost",
        "Content-Type: application/json",
        "Mcp-Session-Id: a",
        "Cookie: a=b",
        "X-Foliot-Session: a",
        "X-Request-ID: a",
    ],
)
def test_a_header_that_steers_is_sent_once(wire: Any, header: str) -> None:
    reply = wire.ask("GET", "/v1/version", header, header)

    assert (reply.status, reply.code) == (400, "malformed")


@pytest.mark.parametrize(
    "path",
    ["/v1/work/revoke", "/v1/dragons/x", "/v1/tool-approvals/x/y/revoke", "/v1/tool-approvals//revoke", "/v1/mcp/x"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_a_path_that_leads_nowhere_reaches_no_handler_and_no_key(wire: Any, method: str, path: str) -> None:
    for token in ("admin", None):
        reply = wire.ask(method, path, "Idempotency-Key: k", token=token)

        assert (reply.status, reply.code) == (404, "not_found")


def test_a_long_address_is_refused(wire: Any) -> None:
    assert wire.ask("GET", "/v1/agents/" + "a" * 5000).code == "too_large"
    assert wire.ask("GET", "/v1/agents?fieldSelector=" + "a" * 5000).code == "too_large"
    assert wire.ask("GET", "/v1/agents?" + "a=b&" * 900).status < 500


INJECTIONS = ["a b", "a\x0b", "é", "%0d%0aSet-Cookie: a=b", "\xff\xfe", "a" * 10_000, "<script>", "';--", "\u2028"]


@pytest.mark.parametrize("value", INJECTIONS)
@pytest.mark.parametrize("header", ["X-Request-ID", "Idempotency-Key", "If-Match", "If-None-Match", "Traceparent"])
def test_what_headers_say_is_never_said_again_as_a_header(wire: Any, header: str, value: str) -> None:
    value = value.encode().decode("latin-1")
    body = json.dumps({"metadata": {"name": "injected"}, "spec": {"provider": "mock"}}).encode()

    for method, path in (("POST", "/v1/model-endpoints?dryRun=true"), ("GET", "/v1/version")):
        reply = wire.ask(method, path, f"{header}: {value}", body=body if method == "POST" else b"")

        assert reply.status < 500
        assert "set-cookie" not in reply.headers
        for name, told in reply.headers.items():
            assert told.isascii(), (name, told)
            assert told.isprintable(), (name, told)
            assert "script" not in told


@pytest.mark.parametrize(
    "name", ["a\r\nX-Injected: yes", "a\nb", "../../etc/passwd", "a/b", "a b", "é", "a" * 5000, ""]
)
def test_names_that_would_end_up_in_headers_are_no_names(wire: Any, name: str) -> None:
    body = json.dumps({"metadata": {"name": name}, "spec": {"provider": "mock"}}).encode()

    reply = wire.ask("POST", "/v1/model-endpoints", body=body)

    assert reply.status in (400, 422)
    assert "x-injected" not in reply.headers


def test_a_proxy_header_makes_nobody_somebody_else(wire: Any) -> None:
    for header in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Forwarded-User", "X-Remote-User", "Remote-User"):
        assert wire.ask("GET", "/v1/agents", f"{header}: 127.0.0.1", token=None).status == 401


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_a_method_is_what_the_first_line_says(wire: Any, header: str) -> None:
    made = json.dumps({"metadata": {"name": "kept"}, "spec": {"provider": "mock"}}).encode()
    assert wire.ask("POST", "/v1/model-endpoints", body=made).status in (200, 201)

    assert wire.ask("GET", "/v1/model-endpoints/kept", f"{header}: DELETE").status == 200
    assert wire.ask("GET", "/v1/model-endpoints/kept?_method=DELETE", f"{header}: DELETE").status == 400
    wire.ask("POST", "/v1/model-endpoints?_method=DELETE", f"{header}: DELETE", body=made)

    assert wire.ask("GET", "/v1/model-endpoints/kept").status == 200


def forged_cursors() -> list[str]:
    chance = random.Random(7)
    plain = [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"after": "x"}',
        b"[1,2,3]",
        b"\x00",
        b"'; DROP TABLE resources; --",
        b"9" * 400,
    ]
    made = [urlsafe_b64encode(each).decode() for each in plain]
    made += [urlsafe_b64encode(chance.randbytes(chance.randint(1, 120))).decode() for _ in range(400)]
    made += [
        "0",
        "-1",
        "1e9",
        "999999999999999999999",
        "null",
        "%00",
        "a" * 3000,
        "~",
        "default/",
        "/",
        "é",
        "undefined",
    ]
    return made


@pytest.mark.parametrize("path", ["/v1/agents", "/v1/tasks", "/v1/runs", "/v1/resources"])
def test_hundreds_of_forged_places_are_no_places(wire: Any, path: str) -> None:
    token = wire.tokens["admin"]
    with wire.call() as caller:
        for cursor in forged_cursors():
            said = cursor.encode().decode("latin-1") if cursor.isascii() else "%C3%A9"
            request = (
                f"GET {path}?after={said}&limit=2 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
            caller.send(request.encode("latin-1"))
            reply = caller.reply()
            assert reply.status in (200, 400, 410, 422), (cursor, reply.body)


@pytest.mark.parametrize("place", ["-1", "99999999999999999999", "0x10", "1.5", "é", "a" * 3000, "' OR 1=1", "\x0b"])
def test_a_stream_does_not_begin_at_a_forged_place(wire: Any, place: str) -> None:
    reply = wire.ask("GET", "/v1/events/watch", f"Last-Event-ID: {place.encode().decode('latin-1')}")

    assert reply.status in (400, 410, 422), reply.body
