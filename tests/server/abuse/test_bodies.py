"""Bodies that are too large, too deep, or nothing that anybody could read."""

from __future__ import annotations

import json
from typing import Any

import pytest

HEAD = "POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"
TAKES_JSON = ("/v1/tasks/submit", "/v1/chat/completions", "/mcp")
TAKES_MANIFESTS = ("/v1/apply", "/v1/tasks")


def head(wire: Any) -> bytes:
    return HEAD.format(wire.tokens["admin"]).encode()


def test_a_body_that_is_announced_too_large_is_not_waited_for(wire: Any) -> None:
    reply = wire.say(head(wire) + b"Content-Length: 5000000000\r\n\r\n", "POST")

    assert (reply.status, reply.code) == (413, "too_large")


def test_nobody_is_asked_to_go_on_with_a_body_that_is_refused(wire: Any) -> None:
    reply = wire.say(head(wire) + b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n", "POST")

    assert reply.status == 413


def test_who_waits_to_be_asked_is_asked(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(head(wire) + b"Expect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")
        assert caller.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(b"[]")

        assert caller.reply("POST").status in (400, 422)


@pytest.mark.parametrize("chunk", [65536, 1_048_576, 16_000_000])
def test_a_body_without_a_length_is_cut_off_at_the_limit(wire: Any, chunk: int) -> None:
    with wire.call() as caller:
        caller.send(head(wire) + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(16_000_000 // chunk):
            caller.send(b"%x\r\n" % chunk + b"x" * chunk + b"\r\n")

        assert caller.reply("POST").code == "too_large"
        assert caller.ended()


def test_a_body_of_tiny_chunks_with_long_tails_is_read_as_it_is(wire: Any) -> None:
    chunks = b"".join(b"1;%s\r\n%c\r\n" % (b"a" * 100, byte) for byte in b'{"kind": "Agent"}')

    reply = wire.say(
        head(wire) + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\n\r\n", "POST"
    )

    assert reply.status == 422
    assert b"metadata" in reply.body


def test_somebody_unknown_is_refused_before_their_body_is_read(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(b"POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")

        assert caller.reply("POST").status == 401


@pytest.mark.parametrize("path", ["/v1/apply", "/v1/tasks/submit", "/v1/chat/completions", "/v1/agents", "/mcp"])
def test_who_leaves_in_the_middle_of_a_body_is_no_mistake_of_the_server(wire: Any, path: str) -> None:
    with wire.call() as caller:
        caller.send(head(wire).replace(b"/v1/apply", path.encode()) + b"Content-Length: 1000\r\n\r\n{")

    wire.until(lambda: wire.connections == 0)  # that nothing is in the log is looked at after every test


def test_a_connection_is_used_again_after_an_answer_that_came_before_the_body(wire: Any) -> None:
    with wire.call() as caller:
        caller.send(b"POST /v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
        assert caller.reply("POST").status == 401
        caller.send(b"0123456789GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert caller.reply().status == 200


DEEP = {
    "lists": b"[" * 200_000 + b"]" * 200_000,
    "lists without an end": b"[" * 1_000_000,
    "objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a deep field": b'{"input": {"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    "a deep message": b'{"model": "x", "messages": [{"role": "user", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    "a deep spec": b'{"kind": "Agent", "metadata": {"name": "a"}, "spec": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}",
}
UNREADABLE = {
    "bytes that are no text": b"\xff\xfe\x00\x01",
    "half a letter": '{"kind": "é"}'.encode()[:-3],
    "a lone surrogate": b'{"kind": "\\ud800", "metadata": {"name": "\\udfff"}}',
    "a letter in too many bytes": b'{"kind": "\xc0\xaf"}',
    "a NUL": b'{"kind": "Agent", "metadata": {"name": "a\\u0000b"}, "spec": {}}',
    "a raw NUL": b'{"kind": "Ag\x00ent"}',
    "UTF-16": '{"kind": "Agent"}'.encode("utf-16"),
    "a mark of the byte order": b"\xef\xbb\xbf{}",
    "numbers that are none": b'{"kind": NaN, "spec": -Infinity}',
    "a number with a million digits": b'{"kind": ' + b"9" * 1_000_000 + b"}",
    "a number beyond all floats": b'{"kind": 1e999999}',
    "a key twice": b'{"kind": "Agent", "kind": "Secret"}',
    "thousands of keys": json.dumps({f"k{n}": n for n in range(30_000)}).encode(),
    "a text": b'"text"',
    "nothing": b"null",
    "spaces": b" " * 100_000,
}


@pytest.mark.parametrize("body", [*DEEP.values(), *UNREADABLE.values()], ids=[*DEEP, *UNREADABLE])
@pytest.mark.parametrize("path", [*TAKES_JSON, *TAKES_MANIFESTS])
def test_what_cannot_be_read_is_refused(wire: Any, path: str, body: bytes) -> None:
    reply = wire.ask("POST", path, "Content-Type: application/json", "Accept: application/json", body=body)

    assert 400 <= reply.status < 500, reply.body[:300]
    assert len(reply.body) < 200_000
    json.loads(reply.body)


BOMB = "\n".join(
    ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
).encode()
YAML = {
    "an alias bomb": BOMB,
    "a bomb in a manifest": b"kind: Agent\nmetadata: {name: a}\nspec:\n"
    + b"".join(b"  " + x + b"\n" for x in BOMB.split(b"\n")),
    "an alias of itself": b"kind: &a [*a]\n",
    "a merge of itself": b"a: &a\n  <<: *a\n",
    "lists in lists": b"[" * 100_000,
    "dashes": b"- " * 100_000 + b"x",
    "steps": b"".join(b" " * n + b"a:\n" for n in range(1500)),
    "questions": b"? " * 50_000,
    "a python object": b'kind: !!python/object/apply:os.system ["true"]\n',
    "another tag": b"kind: !secret x\n",
    "a binary": b"kind: !!binary aGVsbG8=\n",
    "many documents": b"---\nkind: x\n" * 20_000,
    "empty documents": b"---\n" * 100_000,
    "a long word": b"kind: " + b"a" * 2_000_000,
    "a directive": b"%YAML 9.9\n---\nkind: x\n",
    "a tab": b"kind:\n\tname: x\n",
    "a control character": b"kind: \x07\n",
}


@pytest.mark.parametrize("body", YAML.values(), ids=YAML.keys())
def test_yaml_that_is_meant_to_hurt_is_refused(wire: Any, body: bytes) -> None:
    reply = wire.ask("POST", "/v1/apply", "Content-Type: application/yaml", body=body)

    assert reply.status in (400, 422), (reply.status, reply.body[:300])
    assert reply.code in ("invalid_manifest", "usage", "invalid")
    assert len(reply.body) < 200_000
