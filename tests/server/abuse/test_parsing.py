"""Bytes that are no request, or more than one: refused with words, and the server goes on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

HEAD = b"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/agents HTTP/1.1\r\nHost: localhost\r\n"

NO_REQUESTS = {
    "noise": b"\x00\x01\x02\x03\xff\xfe\r\n\r\n",
    "a hello of TLS": bytes.fromhex("16030100a5010000a10303") + b"\x00" * 64 + b"\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"GETT / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method in small letters": b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another protocol": b"GET / FTP/1.1\r\nHost: localhost\r\n\r\n",
    "a version that does not exist": b"GET / HTTP/4.2\r\nHost: localhost\r\n\r\n",
    "a space in the address": b"GET /v1/agents x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a raw byte in the path": b"GET /v1/agents/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a NUL in the path": b"GET /v1/agents/a\x00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header without a colon": HEAD + b"Nonsense\r\n\r\n",
    "a space before the colon": HEAD + b"X-A : b\r\n\r\n",
    "a header without a name": HEAD + b": b\r\n\r\n",
    "a line that goes on in the next": HEAD + b"X-A: b\r\n c\r\n\r\n",
    "a NUL in a header": HEAD + b"X-A: b\x00c\r\n\r\n",
    "a lone CR in a header": HEAD + b"X-A: b\rX-B: c\r\n\r\n",
    "lines that end with LF alone": b"GET /v1/agents HTTP/1.1\nHost: localhost\n\n",
    "two lengths that differ": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "two lengths that agree": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "two lengths in one line": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\nhello",
    "a length in hexadecimal": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "a length beyond all numbers": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks of something packed": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an encoding that sounds like chunks": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a vertical tab before the encoding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk without a size": POST + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n0\r\n\r\n",
    "a chunk of a negative size": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    "a chunk beyond all sizes": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n",
    "a chunk that is longer than it says": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
    "no host": b"GET /v1/agents HTTP/1.1\r\n\r\n",
    "two hosts": HEAD + b"Host: evil.example\r\n\r\n",
    "an empty host": b"GET /v1/agents HTTP/1.1\r\nHost: \r\n\r\n",
    "a host with a login": b"GET /v1/agents HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n",
    "a host with a path": b"GET /v1/agents HTTP/1.1\r\nHost: localhost/v1\r\n\r\n",
    "two hosts in one line": b"GET /v1/agents HTTP/1.1\r\nHost: localhost, evil.example\r\n\r\n",
    "a host in two bytes a letter": b"GET /v1/agents HTTP/1.1\r\nHost: l\xc3\xb6calhost\r\n\r\n",
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_what_has_two_readings_or_none_is_refused(wire: Any, data: bytes) -> None:
    reply = wire.say(data)

    assert (reply.status, reply.code) == (400, "malformed")


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
        b"X-A: b\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_nothing_is_smuggled_behind_a_request_with_two_ends(wire: Any, head: bytes) -> None:
    with wire.call() as caller:
        caller.send(POST + head + SMUGGLED)

        assert caller.reply("POST").code == "malformed"
        assert caller.ended()


def test_what_follows_a_body_is_not_taken_for_a_header(wire: Any) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer " + wire.tokens["admin"].encode()

    reply = wire.say(POST + body + b"\r\nX-Request-ID: from-behind\r\n\r\n", "POST")

    assert (reply.status, reply.code) == (401, "unauthenticated")
    assert reply.headers["x-request-id"] != "from-behind"


def test_requests_ahead_of_their_answers_are_answered_in_order(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(
            b"".join(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: n%d\r\n\r\n" % n for n in range(8))
        )

        assert [caller.reply().headers["x-request-id"] for _ in range(8)] == [f"n{n}" for n in range(8)]


def test_thousands_of_requests_ahead_are_not_kept(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000)

        def read_all() -> None:
            for _ in range(5000):
                caller.reply()

        with pytest.raises(ConnectionError):
            read_all()


def test_a_stream_that_somebody_sends_requests_into_ends_with_the_connection(wire: Any) -> None:
    token = wire.tokens["admin"].encode()
    stream = b"GET /v1/events/watch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    with wire.call() as caller:
        caller.send(stream + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in caller.socket.recv(4096)
        assert wire.services.streams.slots.open == 1

    def heard() -> bool:
        # Nothing more is read from the connection. What is written to it finds that nobody is there.
        body = json.dumps({"metadata": {"name": f"news-{time.monotonic_ns()}"}, "spec": {"provider": "mock"}}).encode()
        assert wire.ask("POST", "/v1/model-endpoints", body=body).status == 201
        return wire.services.streams.slots.open == 0

    wire.until(heard)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0"])
def test_no_other_protocol_is_changed_to(wire: Any, upgrade: bytes) -> None:
    with wire.call() as caller:
        caller.send(
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade
        )
        caller.send(b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\n\r\n" + SMUGGLED)

        reply = caller.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert caller.ended()


def test_an_address_with_its_host_is_the_same_address(wire: Any) -> None:
    reply = wire.ask("GET", "http://evil.example/v1/auth/me")

    assert reply.status == 200
    assert b"evil" not in reply.body


def test_the_version_before_is_answered_once(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(b"GET /livez HTTP/1.0\r\n\r\n")

        assert caller.reply().status == 200
        assert caller.ended()


def test_headers_without_end_are_cut_off(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(HEAD)
        for _ in range(2000):
            caller.send(b"X-Endless: " + b"a" * 1000 + b"\r\n")

        try:
            assert caller.reply().code == "headers_too_large"
        except ConnectionError:  # reset while it was still sending
            assert caller.ended()


@pytest.mark.parametrize(
    "many",
    [b"".join(b"X-%d: a\r\n" % n for n in range(200)), b"X-Long: " + b"a" * 40_000 + b"\r\n"],
    ids=["many", "long"],
)
def test_headers_that_are_too_much_are_told_the_limit(wire: Any, many: bytes) -> None:
    reply = wire.say(HEAD + many + b"\r\n")

    assert (reply.status, reply.code) == (431, "headers_too_large")
