"""Callers that are slow on purpose, do not read, or come in crowds."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

import pytest

from foliot.server.http.connections import MOST_AHEAD, TOLD, Bounds
from foliot.server.http.envelope import RequestLimits

# Short, but long enough for a caller who means well on a machine that has much to do.
SHORT = Bounds(headers_within=1.0, linger=0.2)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, open_server: Any) -> Any:
    limits = RequestLimits(auth_failures=0, body_within=1.0)
    with open_server(tmp_path_factory.mktemp("server"), limits=limits, bounds=SHORT) as wire:
        yield wire
        wire.until(wire.serves)


def test_headers_that_never_end_are_not_waited_for(hasty: Any) -> None:
    with hasty.call() as caller:
        caller.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow")

        reply = caller.reply()
        assert (reply.status, reply.code) == (408, "too_slow")
        assert caller.ended()


def test_headers_that_come_one_byte_at_a_time_are_not_waited_for_longer(hasty: Any) -> None:
    with hasty.call() as caller:
        done = threading.Event()

        def drip() -> None:
            caller.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            while not done.wait(0.02):
                caller.send(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert caller.reply().code == "too_slow"
        finally:
            done.set()
            thread.join()


def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(hasty: Any) -> None:
    with hasty.call() as caller:
        caller.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert caller.reply().status == 200
        caller.send(b"GET /livez HTTP/1.1\r\nHost")

        assert caller.reply().code == "too_slow"


def test_who_says_nothing_is_left(hasty: Any) -> None:
    with hasty.call() as caller:
        assert caller.ended()


@pytest.mark.parametrize(
    ("framed", "drips"), [(b"Content-Length: 100000", False), (b"Transfer-Encoding: chunked", True)]
)
def test_a_body_that_does_not_come_is_not_waited_for(hasty: Any, framed: bytes, drips: bool) -> None:
    token = hasty.tokens["admin"].encode()
    with hasty.call() as caller:
        done = threading.Event()

        def send() -> None:
            caller.send(b"POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + b"\r\n")
            caller.send(framed + b"\r\n\r\n")
            while drips and not done.wait(0.02):
                caller.send(b"1\r\na\r\n" if framed.endswith(b"chunked") else b"a")

        thread = threading.Thread(target=send)
        thread.start()
        try:
            reply = caller.reply("POST")
            assert (reply.status, reply.code) == (408, "too_slow")
            assert caller.ended()
        finally:
            done.set()
            thread.join()


def test_who_does_not_read_what_they_asked_for_is_left(standing: Any) -> None:
    with standing(bounds=Bounds(read_within=0.5)) as wire, socket.socket() as deaf:
        endpoint = json.dumps({"metadata": {"name": "m"}, "spec": {"provider": "mock"}}).encode()
        assert wire.ask("POST", "/v1/model-endpoints", body=endpoint).status == 201
        for number in range(10):
            spec = {"model_ref": "m", "prompt": "tick " * 20_000}
            body = json.dumps({"metadata": {"name": f"a{number}"}, "spec": spec}).encode()
            made = wire.ask("POST", "/v1/agents", body=body)
            assert made.status == 201, made.body[:500]
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(30)
        deaf.connect(("127.0.0.1", wire.port))
        token = wire.tokens["admin"].encode()
        request = b"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
        deaf.sendall(request * MOST_AHEAD)  # 16 megabytes of answers, more than lies between two ends

        assert deaf.recv(1) == b"H", "the first answer has begun"
        wire.until(lambda: wire.connections == 0)
        wire.still_serves()


def test_more_connections_than_there_may_be_are_told_to_come_back(standing: Any) -> None:
    with standing(bounds=Bounds(connections=8, headers_within=30)) as wire, contextlib.ExitStack() as crowd:
        held = [crowd.enter_context(wire.call()) for _ in range(8)]
        for caller in held:  # each is known to be there
            caller.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert caller.reply().status == 200

        refused = wire.ask("GET", "/v1/agents")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "busy", "2")
        assert refused.headers["connection"] == "close"
        assert wire.ask("GET", "/livez", token=None).status == 200, "a full server is a live one"
        # Those that were there before are served as ever.
        held[0].send(b"GET /v1/agents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ")
        held[0].send(wire.tokens["admin"].encode() + b"\r\n\r\n")
        assert held[0].reply().status == 200

        crowd.close()
        wire.until(wire.serves)
        wire.still_serves()


def test_a_crowd_beyond_all_measure_is_cut_off_and_nobody_else_suffers(standing: Any) -> None:
    with standing(bounds=Bounds(connections=4, headers_within=30)) as wire, contextlib.ExitStack() as crowd:
        callers = [crowd.enter_context(wire.call()) for _ in range(4 + TOLD + 40)]
        assert callers[-1].ended()
        callers[0].send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert callers[0].reply().status == 200

        crowd.close()
        wire.until(wire.serves)
