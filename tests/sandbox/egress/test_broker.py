"""The broker lets through what a rule allows, puts secrets in only where they are meant for, and records everything."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import ssl
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.errors import SecretError
from foliot.sandbox.base import SandboxPolicyRefused
from foliot.sandbox.egress.broker import EgressLimits
from foliot.sandbox.egress.credentials import EgressSecret
from foliot.sandbox.egress.rules import EgressRule
from tests.sandbox.egress.world import World, bundle, open_world, over_tls, page, say


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


def get(url: str, *headers: str, method: str = "GET") -> bytes:
    host = url.split("/")[2]
    return "\r\n".join([f"{method} {url} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_request_that_a_rule_allows_goes_through_and_is_recorded(world: World) -> None:
    port = await world.serve()
    async with world.broker(EgressRule(("a.test",), (port,))) as broker:
        answer = await say(broker, get(f"http://A.test.:{port}/x?y=1", "Proxy-Connection: keep-alive", "X-Mine: 1"))
    assert status(answer) == 200
    assert world.heard == [
        f"GET /x?y=1 HTTP/1.1\r\nHost: a.test:{port}\r\nX-Mine: 1\r\nConnection: close\r\n\r\n".encode()
    ]
    (record,) = world.records
    assert (record.host, record.port, record.method, record.verdict, record.reason) == (
        "a.test",
        port,
        "GET",
        "allowed",
        "",
    )
    assert (record.bytes_out, record.bytes_in) == (len(world.heard[0]), len(page()))


async def test_what_no_rule_allows_is_refused_and_not_even_resolved(world: World) -> None:
    port = await world.serve()
    rules = EgressRule(("a.test",), (port,), ("GET",)), EgressRule(("metadata.test",), (80,))
    async with world.broker(*rules) as broker:
        for url, method in [
            (f"http://b.test:{port}/", "GET"),
            ("http://a.test:1/", "GET"),
            (f"http://a.test:{port}/", "DELETE"),
            (f"http://a.test:{port}/", "TRACE"),
            (f"http://127.0.0.1:{port}/", "GET"),
            (f"http://[::ffff:127.0.0.1]:{port}/", "GET"),
            ("http://169.254.169.254/latest", "GET"),
        ]:
            assert status(await say(broker, get(url, method=method))) == 403
        for place in ("b.test:443", f"127.0.0.1:{port}", "a.test:22"):
            assert status(await say(broker, f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())) == 403
        assert world.asked == []
        assert status(await say(broker, get("http://metadata.test/"))) == 403
    assert world.heard == []
    assert [record.reason for record in world.records] == (
        ["host", "port", "method", "method", "host", "host", "host", "host", "host", "port", "address_metadata"]
    )
    assert {record.verdict for record in world.records} == {"denied"}


async def test_the_case_of_a_method_is_no_way_around_a_rule_that_denies_it(world: World) -> None:
    port = await world.serve()
    url, secret = f"http://a.test:{port}/", EgressSecret("token", ("a.test",), (port,), cleartext=True)
    rules = EgressRule(("a.test",), (port,)), EgressRule(("a.test",), (port,), ("POST",), "deny")
    async with world.broker(*rules, secrets=[secret]) as broker:
        word = broker.environment["FOLIOT_SECRET_TOKEN"]
        for method in ("post", "Post", "trace", "Track", "get"):
            answer = await say(broker, get(url, f"Authorization: Bearer {word}", method=method))
            assert status(answer) == 400
            assert b"upper case" in answer
    assert world.heard == []
    assert {record.reason for record in world.records} == {"malformed"}


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "X_HTTP_Method_Override", "x_http-method", "X_METHOD-override"]
)
async def test_no_header_asks_for_another_method_however_it_is_written(world: World, name: str) -> None:
    port = await world.serve()
    async with world.broker(EgressRule(("a.test",), (port,), ("GET",))) as broker:
        assert status(await say(broker, get(f"http://a.test:{port}/", f"{name}: DELETE"))) == 403
    assert world.heard == []
    assert [record.reason for record in world.records] == ["method"]


async def test_a_host_that_cannot_be_reached_is_a_failure_and_not_a_refusal(world: World) -> None:
    port = await world.serve()
    await world.close()
    async with world.broker(EgressRule(("*.test",), (port,))) as broker:
        assert status(await say(broker, get(f"http://nowhere.test:{port}/"))) == 502
        assert status(await say(broker, get(f"http://a.test:{port}/"))) == 502
    assert world.verdicts == [("GET", "failed", "unresolved"), ("GET", "failed", "unreachable")]


@pytest.mark.parametrize(
    "attack",
    [
        "GET http://a.test:{port}/ HTTP/1.1\nHost: a.test:{port}\n\n",
        "\r\nGET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n",
        "GET http://a.test:{port}/ HTTP/1.1\r\n\r\n",
        "GET http://a.test:{port}/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
        "GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nX: " + "x" * 40000 + "\r\n\r\n",
        "POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\nx",
        (
            "PUT http://a.test:{port}/ HTTP/1.1\r\nHost:a.test:{port}\r\nContent-Length:5\r\n"
            "Transfer-Encoding:chunked\r\n\r\n"
        ),
        "PUT http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n",
        "CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\nearly",
        "CONNECT a.test:{port} HTTP/1.1\r\nHost: b.test:{port}\r\n\r\n",
        "CONNECT http://a.test:{port}/ HTTP/1.1\r\n\r\n",
        "CONNECT a.test HTTP/1.1\r\n\r\n",
        "half a request",
    ],
)
async def test_a_request_with_two_readings_reaches_nobody(attack: str, world: World) -> None:
    port = await world.serve()
    async with world.broker(EgressRule(("a.test",), (port,))) as broker:
        assert status(await say(broker, attack.format(port=port).encode())) == 400
    assert world.heard == []
    (record,) = world.records
    assert record.verdict == "denied"
    assert record.reason in ("malformed", "host_mismatch")


async def test_what_follows_a_request_is_never_another_one(world: World) -> None:
    port = await world.serve(lambda head, body: page(body))
    async with world.broker(EgressRule(("a.test",), (port,), ("POST",))) as broker:
        url = f"http://a.test:{port}/"
        hidden = get(f"http://a.test:{port}/hidden", method="DELETE")
        for request in (
            get(url, "Content-Length: 3", method="POST") + b"abc",
            get(url, "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
        ):
            assert b"abc" in await say(broker, request + hidden)
        cut = get(url, "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\nX: trailer\r\n\r\n"
        await say(broker, cut)
    assert [head.split(b" ")[0] for head in world.heard[:2]] == [b"POST", b"POST"]
    assert not any(b"hidden" in each for each in world.heard + world.bodies)
    assert world.records[-1].reason == "malformed"
    assert b"trailer" not in b"".join(world.bodies)


# --- secrets ----------------------------------------------------------------------------------------------------------


async def test_a_placeholder_becomes_the_secret_in_headers_for_its_host_and_nowhere_else(world: World) -> None:
    port = await world.serve()
    rule = EgressRule(("*.test",), (port,))
    secret = EgressSecret("token", ("a.test",), (port,), variable="API_TOKEN", cleartext=True)
    async with world.broker(rule, secrets=[secret]) as broker:
        word = broker.environment["API_TOKEN"]
        assert re.fullmatch(r"FOLIOT_SECRET_token_[0-9a-f]{32}", word)
        basic = base64.b64encode(f"user:{word}".encode()).decode()
        url = f"http://a.test:{port}/"
        await say(broker, get(url, f"Authorization: Bearer {word}", f"X-Two: {word},{word}"))
        await say(broker, get(url, f"Authorization: basic {basic}"))
        body = f"token={word}".encode()
        await say(broker, get(url, f"Content-Length: {len(body)}", method="POST") + body)
        refused = [
            get(f"http://b.test:{port}/", f"Authorization: Bearer {word}"),
            get(f"http://b.test:{port}/", f"Authorization: Basic {basic}"),
            get(f"http://outside.example:{port}/", f"X: {word}"),
            get(f"http://a.test:{port}/?token={word}"),
            get(url, f"X-{word}: 1"),
        ]
        for request in refused:
            answer = await say(broker, request)
            assert status(answer) == 403
            assert word.encode() not in answer
    value = world.values["token"]
    assert f"Authorization: Bearer {value}\r\nX-Two: {value},{value}\r\n".encode() in world.heard[0]
    assert f"Authorization: Basic {base64.b64encode(f'user:{value}'.encode()).decode()}\r\n".encode() in world.heard[1]
    assert (len(world.heard), world.bodies[2]) == (3, body)
    assert [record.reason for record in world.records[3:]] == (
        ["placeholder_elsewhere"] * 3 + ["placeholder_in_url", "placeholder_in_name"]
    )
    assert value not in repr(world.records)
    assert world.revealed == ["token"] * 3


async def test_a_secret_does_not_go_in_clear_unless_that_was_said(world: World) -> None:
    port = await world.serve()
    secret = EgressSecret("token", ("a.test",), (port,))
    async with world.broker(EgressRule(("a.test",), (port,)), secrets=[secret]) as broker:
        word = broker.environment["FOLIOT_SECRET_TOKEN"]
        assert status(await say(broker, get(f"http://a.test:{port}/", f"Authorization: Bearer {word}"))) == 403
    assert (world.heard, world.revealed, world.records[0].reason) == ([], [], "placeholder_in_clear")


async def test_a_secret_that_would_break_the_header_is_not_sent(world: World) -> None:
    port = await world.serve()
    secret = EgressSecret("token", ("a.test",), (port,), cleartext=True)
    world.values["token"] = "a\r\nX-Injected: 1"
    async with world.broker(EgressRule(("a.test",), (port,)), secrets=[secret]) as broker:
        word = broker.environment["FOLIOT_SECRET_TOKEN"]
        answer = await say(broker, get(f"http://a.test:{port}/", f"Authorization: Bearer {word}"))
    assert (status(answer), world.heard) == (403, [])
    assert b"Injected" not in answer


async def test_a_secret_that_cannot_be_had_is_a_failure_that_says_nothing_of_the_store(world: World) -> None:
    port = await world.serve()
    secret = EgressSecret("token", ("a.test",), (port,), cleartext=True)

    async def sealed(name: str) -> str:
        raise SecretError(f"the key ring of {name} is in another place")

    async with world.broker(EgressRule(("a.test",), (port,)), secrets=[secret], reveal=sealed) as broker:
        word = broker.environment["FOLIOT_SECRET_TOKEN"]
        answer = await say(broker, get(f"http://a.test:{port}/", f"Authorization: Bearer {word}"))
    assert (status(answer), world.heard) == (502, [])
    assert b"key ring" not in answer
    assert world.verdicts == [("GET", "failed", "secret_unavailable")]


async def test_two_secrets_for_two_hosts_stay_apart(world: World) -> None:
    port = await world.serve()
    secrets = [
        EgressSecret("token", ("a.test",), (port,), cleartext=True),
        EgressSecret("other", ("b.test",), (port,), cleartext=True),
    ]
    async with world.broker(EgressRule(("*.test",), (port,)), secrets=secrets) as broker:
        token, other = (broker.environment[f"FOLIOT_SECRET_{name}"] for name in ("TOKEN", "OTHER"))
        both = get(f"http://a.test:{port}/", f"X: {token}", f"Y: {other}")
        assert status(await say(broker, both)) == 403
        assert status(await say(broker, get(f"http://b.test:{port}/", f"X: {other}"))) == 200
    assert world.revealed == ["other"]
    async with world.broker(secrets=secrets) as broker:
        assert broker.environment["FOLIOT_SECRET_TOKEN"] != token  # of this session only


@pytest.mark.parametrize(
    ("secret", "field"),
    [
        (EgressSecret("token", ()), "secrets[0].hosts"),
        (EgressSecret("token", ("a.test",), variable="PATH"), "secrets[0].variable"),
        (EgressSecret("token", ("a.test",), variable="LD_PRELOAD"), "secrets[0].variable"),
        (EgressSecret("token", ("a.test",), variable="FOLIOT_RUN_ID"), "secrets[0].variable"),
        (EgressSecret("token", ("*",)), "secrets[0].hosts"),
        (EgressSecret("to ken", ("a.test",)), "secrets[0].name"),
        (EgressSecret("token", ("a.test",), variable="A=B"), "secrets[0].variable"),
        (EgressSecret("token", ("a.test",), (0,)), "secrets[0].ports"),
        (EgressSecret("token", ("a.test",), variable="https_proxy"), "secrets"),
    ],
)
def test_a_secret_that_makes_no_sense_is_refused_with_its_field(
    secret: EgressSecret, field: str, tmp_path: Path
) -> None:
    with pytest.raises(SandboxPolicyRefused) as error:
        World(tmp_path).broker(secrets=[secret])
    assert error.value.field == field


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_is_opened_for_secrets_and_methods_with_the_authority_of_the_session(world: World) -> None:
    port = await world.serve(tls="a.test")
    secret = EgressSecret("token", ("a.test",), (port,))
    async with world.broker(EgressRule(("a.test",), (port,), ("GET",)), secrets=[secret]) as broker:
        word, trust = broker.environment["FOLIOT_SECRET_TOKEN"], bundle(broker)
        place = f"a.test:{port}"
        inner = f"GET /x HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {word}\r\n\r\n".encode()
        assert b"hello" in await over_tls(broker, place, inner, ask="a.test", trust=trust)
        for refused, code in (
            (f"DELETE / HTTP/1.1\r\nHost: {place}\r\n\r\n", 403),
            (f"TRACE / HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {word}\r\n\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: b.test\r\n\r\n", 400),
            (f"GET http://b.test/ HTTP/1.1\r\nHost: {place}\r\n\r\n", 400),
            (f"GET /?{word} HTTP/1.1\r\nHost: {place}\r\n\r\n", 403),
            (f"GET / HTTP/1.1\r\nHost: {place}\r\nX-HTTP-Method-Override: DELETE\r\n\r\n", 403),
        ):
            assert status(await over_tls(broker, place, refused.encode(), ask="a.test", trust=trust)) == code
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await over_tls(broker, place, inner, ask="b.test", trust=trust)
        with pytest.raises(ssl.SSLError):  # the real server's authority is not what vouches for the broker
            await over_tls(broker, place, inner, ask="a.test", trust=world.authority.certificate)
        await world.until_recorded(9)
    (head,) = world.heard
    assert f"Authorization: Bearer {world.values['token']}\r\n".encode() in head
    assert word.encode() not in head
    reasons = ["", "method", "method", "host_mismatch", "malformed", "placeholder_in_url", "method"]
    assert [record.reason for record in world.records] == [*reasons, "tls_refused", "tls_refused"]


async def test_a_host_whose_certificate_is_not_trusted_gets_no_secret(world: World) -> None:
    port = await world.serve(tls="another.test")
    secret = EgressSecret("token", ("a.test",), (port,))
    async with world.broker(EgressRule(("a.test",), (port,)), secrets=[secret]) as broker:
        word = broker.environment["FOLIOT_SECRET_TOKEN"]
        inner = f"GET / HTTP/1.1\r\nHost: a.test:{port}\r\nAuthorization: Bearer {word}\r\n\r\n".encode()
        answer = await over_tls(broker, f"a.test:{port}", inner, ask="a.test", trust=bundle(broker))
    assert (status(answer), world.heard, world.revealed) == (502, [], [])
    assert world.verdicts == [("GET", "failed", "certificate")]


async def test_other_tls_is_carried_as_it_is_when_it_asks_for_the_host_of_its_connect(world: World) -> None:
    port = await world.serve(tls="a.test")
    async with world.broker(EgressRule(("*.test",), (port,))) as broker:
        trust = world.authority.certificate
        request = b"DELETE / HTTP/1.1\r\nHost: a.test\r\n\r\n"
        assert b"hello" in await over_tls(broker, f"a.test:{port}", request, ask="a.test", trust=trust)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await over_tls(broker, f"a.test:{port}", request, ask="c.test", trust=trust)
        connect = f"CONNECT a.test:{port} HTTP/1.1\r\n\r\n".encode()
        reader, writer = await asyncio.open_unix_connection(broker.socket_path)
        writer.write(connect)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await world.until_recorded(3)
        assert "SSL_CERT_FILE" not in broker.environment
    assert world.verdicts == [
        ("CONNECT", "allowed", ""),
        ("CONNECT", "denied", "sni"),
        ("CONNECT", "denied", "not_tls"),
    ]
    assert world.records[0].bytes_in > 500
    assert len(world.heard) == 1


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_requests_connections_bytes_and_time_are_bounded(world: World) -> None:
    port = await world.serve(lambda head, body: page(b"x" * 100_000))
    rule, url = EgressRule(("a.test",), (port,)), f"http://a.test:{port}/"
    async with world.broker(rule, limits=EgressLimits(requests=1)) as broker:
        codes = [status(await say(broker, get(url))) for _ in range(4)]
    assert codes == [200, 503, 503, 503]
    assert [record.reason for record in world.records] == ["", "requests"]  # the flood is not kept
    world.records.clear()
    async with world.broker(rule, limits=EgressLimits(bytes=50_000)) as broker:
        assert len(await say(broker, get(url))) < 100_000
        assert status(await say(broker, get(url))) == 503
    assert [record.reason for record in world.records] == ["bytes", "bytes"]
    world.records.clear()
    async with world.broker(rule, limits=EgressLimits(idle=0.05)) as broker:
        assert await say(broker, b"GET http://a.test/ HT", more=True) == b""
    assert world.verdicts == [("", "failed", "timeout")]
    world.records.clear()
    async with world.broker(rule, limits=EgressLimits(connections=1)) as broker:
        _, held = await asyncio.open_unix_connection(broker.socket_path)
        assert status(await say(broker, get(url))) == 503
        held.close()
    assert ("", "denied", "connections") in world.verdicts


async def test_limits_that_bound_nothing_are_refused(world: World) -> None:
    for limits in (EgressLimits(connections=0), EgressLimits(idle=float("inf")), EgressLimits(bytes=-1)):
        with pytest.raises(SandboxPolicyRefused, match=r"limits\."):
            world.broker(limits=limits)


async def test_nonsense_and_silence_count_as_requests(world: World) -> None:
    async with world.broker(limits=EgressLimits(requests=5)) as broker:
        for _ in range(20):
            await say(broker, b"nonsense\n")
    assert [record.reason for record in world.records] == ["malformed"] * 5 + ["requests"]


async def test_the_folder_of_an_owner_that_was_killed_is_removed_and_no_other(world: World, tmp_path: Path) -> None:
    short = Path(tempfile.mkdtemp(prefix="f"))
    try:
        left = short / "foliot-egress-left"
        left.mkdir()
        (left / "lock").touch()
        (short / "foliot-egress-trap").mkdir()
        os.mkfifo(short / "foliot-egress-trap" / "lock")
        async with world.broker(folder=str(short)) as first, world.broker(folder=str(short)) as second:
            assert not left.exists()
            assert Path(first.socket_path).exists()
            assert Path(second.socket_path).exists()
        assert [path.name for path in short.iterdir()] == ["foliot-egress-trap"]
    finally:
        shutil.rmtree(short)


async def test_nothing_is_let_through_that_cannot_be_recorded(world: World) -> None:
    port = await world.serve()

    def full(_: object) -> None:
        raise OSError("no space left")

    async with world.broker(EgressRule(("a.test",), (port,)), record=full) as broker:
        codes = [status(await say(broker, get(f"http://a.test:{port}/"))) for _ in range(3)]
    assert codes == [200, 503, 503]


async def test_the_socket_is_private_and_gone_with_the_broker(world: World, tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with world.broker(EgressRule(("a.test",), (port,))) as broker:
        path = Path(broker.socket_path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
        asking = asyncio.create_task(say(broker, get(f"http://a.test:{port}/") + b"", more=True))
        await asyncio.wait_for(arrived.wait(), 30)
    assert await asyncio.wait_for(asking, 30) == b""
    assert world.verdicts == [("GET", "failed", "closed")]
    assert not path.parent.exists()
    server.close()
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(SandboxPolicyRefused, match="cannot listen"):
        await world.broker(folder=str(deep)).__aenter__()
    assert list(deep.iterdir()) == []
