"""Tools behind a real gRPC server: envelopes, TLS, credentials, deadlines, statuses, and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from foliot.engine.definition.freeze import tool_definition
from foliot.resources.validate import validate_document
from foliot.tools.backends.grpc import GrpcAddress, GrpcChannels, GrpcTool, place_of
from foliot.tools.base import (
    AuthSpec,
    Caller,
    Invocation,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolCancelled,
    ToolDefinition,
    ToolDenied,
    ToolError,
    ToolPolicyInvalid,
    ToolPrecondition,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
    ToolUnsupported,
)
from foliot.tools.outbound.guard import Guard, Outbound, OutboundRefused
from foliot.tools.secrets.auth import CallAuth
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import EnvironmentSecrets, Secrets
from tests.tools.backends.grpc_service import certificate, serving

CALL = Invocation(
    "run-1", "c1", "search", {"q": "clocks"}, "key-1", caller=Caller(agent="finder", task="t-9"), trace_id="tr-1"
)


@pytest.fixture
async def channels() -> AsyncIterator[GrpcChannels]:
    opened = GrpcChannels()
    yield opened
    await opened.close()


def tool(channels: GrpcChannels, endpoint: str, **fields: Any) -> GrpcTool:
    return GrpcTool(ToolDefinition("search", type="grpc", endpoint=endpoint, **fields), channels)


async def echo(request: bytes, context: Any) -> bytes:
    asked = json.loads(request)
    return json.dumps(
        {"tool_contract_version": "v1", "request_id": asked["request_id"], "status": "ok", "output": {"result": asked}}
    ).encode()


async def test_the_whole_envelope_arrives_and_the_result_comes_back(channels: GrpcChannels) -> None:
    async with serving(echo) as service:
        asked = await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)

    assert asked["tool"]["name"] == "search"
    assert asked["input"] == {"q": "clocks"}
    assert (asked["agent"], asked["task_id"], asked["trace"]["trace_id"]) == ("finder", "t-9", "tr-1")
    assert (asked["idempotency_key"], asked["attempt"], asked["runtime"]["mode"]) == ("key-1", 1, "grpc")
    assert service.metadata[0]["x-tool-contract-version"] == "v1"


async def test_a_service_is_called_over_tls_when_nothing_else_is_said() -> None:
    ca, key, cert = certificate("localhost")
    channels = GrpcChannels(roots=ca)
    async with serving(echo, tls=(key, cert)) as service:
        asked = await tool(channels, f"localhost:{service.port}").invoke(CALL)
        await channels.close()
    assert asked["input"] == {"q": "clocks"}


@pytest.mark.parametrize("trusted", [True, False], ids=["for another name", "of an unknown authority"])
async def test_a_certificate_that_does_not_fit_is_refused_before_anything_is_sent(trusted: bool) -> None:
    ca, key, cert = certificate("elsewhere.example" if trusted else "localhost")
    channels = GrpcChannels(roots=ca if trusted else certificate()[0])
    async with serving(echo, tls=(key, cert)) as service:
        with pytest.raises(ToolUnreachable) as caught:
            await tool(channels, f"localhost:{service.port}").invoke(CALL)
        await channels.close()
    assert caught.value.before_effect
    assert service.metadata == []


async def test_a_checked_address_is_connected_to_and_the_name_is_what_the_certificate_must_be_for() -> None:
    ca, key, cert = certificate("tools.example")

    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    channels = GrpcChannels(roots=ca, guard=Guard(Outbound(allow_loopback=True), lookup=lookup))
    async with serving(echo, tls=(key, cert)) as service:
        asked = await tool(channels, f"tools.example:{service.port}").invoke(CALL)
        await channels.close()
    assert asked["tool"]["name"] == "search"


async def test_the_guard_refuses_a_name_that_leads_inside() -> None:
    async def lookup(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.7"]

    channels = GrpcChannels(guard=Guard(Outbound(), lookup=lookup))
    with pytest.raises(OutboundRefused):
        await tool(channels, "tools.example:443").invoke(CALL)
    assert channels.open == 0


async def test_plaintext_is_for_this_machine_unless_the_tool_declares_it(channels: GrpcChannels) -> None:
    async with serving(echo) as service:
        # Not a loopback address to look at, and yet nothing leaves this machine.
        endpoint = f"grpc://0.0.0.0:{service.port}"
        with pytest.raises(ToolPolicyInvalid, match="without TLS"):
            await tool(channels, endpoint).invoke(CALL)
        assert service.metadata == []
        await tool(channels, endpoint, options={"grpc": {"plaintext": True}}).invoke(CALL)
        assert len(service.metadata) == 1


async def test_plaintext_goes_by_the_checked_address_and_not_by_the_name() -> None:
    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1" if host == "near.example" else "10.0.0.7"]

    channels = GrpcChannels(guard=Guard(Outbound(allow_loopback=True, allow_private=True), lookup=lookup))
    async with serving(echo) as service:
        with pytest.raises(ToolPolicyInvalid, match="without TLS"):
            await tool(channels, f"grpc://localhost:{service.port}").invoke(CALL)
        await tool(channels, f"grpc://near.example:{service.port}").invoke(CALL)
        await channels.close()


def test_a_bare_address_means_tls_and_nonsense_is_refused() -> None:
    assert place_of("tools.example:443") == GrpcAddress("tools.example", 443)
    assert place_of("grpcs://[::1]:50051") == GrpcAddress("[::1]", 50051)
    assert place_of("grpc://localhost:1") == GrpcAddress("localhost", 1, plaintext=True)
    for wrong in ("", "tools.example", "tools.example:0", "tools.example:70000", "http://x:1", "user@host:1", "a b:1"):
        with pytest.raises(ToolPolicyInvalid):
            place_of(wrong, tool="search")


async def test_credentials_travel_as_metadata_and_never_in_the_envelope(channels: GrpcChannels) -> None:
    bodies: list[bytes] = []

    async def keep(request: bytes, context: Any) -> bytes:
        bodies.append(request)
        return await echo(request, context)

    secrets = Secrets(EnvironmentSecrets({"FOLIOT_SECRET_SEARCH_KEY": "hush-hush-value"}), Masker())
    auth = AuthSpec("api_key_header", "search-key", header_name="X-Search-Key")
    async with serving(keep) as service:
        definition = ToolDefinition("search", endpoint=f"grpc://127.0.0.1:{service.port}", auth=auth)
        await GrpcTool(definition, channels, auth=CallAuth(secrets)).invoke(CALL)
    assert service.metadata[0]["x-search-key"] == "hush-hush-value"
    assert b"hush-hush-value" not in bodies[0]
    assert json.loads(bodies[0])["auth"] == {"profile": "api_key_header", "secret_ref": "search-key"}


async def test_a_tool_with_auth_is_not_built_without_someone_to_resolve_it(channels: GrpcChannels) -> None:
    with pytest.raises(ToolPolicyInvalid, match="nobody to resolve"):
        GrpcTool(ToolDefinition("search", endpoint="tools.example:443", auth=AuthSpec("bearer", "k")), channels)


async def test_the_deadline_of_the_call_goes_along(channels: GrpcChannels) -> None:
    async with serving(echo) as service:
        called = tool(channels, f"grpc://127.0.0.1:{service.port}", timeout=300.0)
        await called.invoke(CALL)
        await called.invoke(replace(CALL, deadline=time.time() + 50))
        with pytest.raises(ToolTimeout) as caught:
            await called.invoke(replace(CALL, deadline=time.time() - 1))
    far, near = service.deadlines
    assert far is not None
    assert near is not None
    assert far > 60
    assert near < 60
    assert caught.value.before_effect


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        ("CANCELLED", ToolCancelled, False),
        ("DEADLINE_EXCEEDED", ToolTimeout, True),
        ("UNAUTHENTICATED", ToolAuthInvalid, False),
        ("PERMISSION_DENIED", ToolAuthForbidden, False),
        ("UNAVAILABLE", ToolUnreachable, True),
        ("RESOURCE_EXHAUSTED", ToolRateLimited, True),
        ("UNIMPLEMENTED", ToolUnsupported, False),
        ("FAILED_PRECONDITION", ToolPrecondition, False),
        ("INTERNAL", ToolError, True),
        ("NOT_FOUND", ToolError, False),
    ],
)
async def test_the_status_code_decides_and_never_the_text(
    status: str, error: type[ToolError], retryable: bool, channels: GrpcChannels
) -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(getattr(grpc.StatusCode, status), "permission denied: approval_required")
        raise AssertionError("abort raises")

    async with serving(refuse) as service:
        with pytest.raises(ToolError) as caught:
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)
    assert type(caught.value) is error
    assert caught.value.retryable is retryable
    assert not caught.value.before_effect, "the service was reached: nobody knows what it did"
    assert caught.value.details["grpc_status"] == status


async def test_a_service_says_how_long_to_wait(channels: GrpcChannels) -> None:
    async def busy(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "60000"),))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down")
        raise AssertionError("abort raises")

    async with serving(busy) as service:
        with pytest.raises(ToolRateLimited) as caught:
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)
    assert caught.value.retry_after == 60.0


async def test_an_error_envelope_is_the_error_it_reports(channels: GrpcChannels) -> None:
    async def deny(request: bytes, context: Any) -> bytes:
        return json.dumps(
            {
                "tool_contract_version": "v1",
                "status": "denied",
                "error": {"code": "permission_denied", "reason": "quota", "retryable": False, "message": "not today"},
            }
        ).encode()

    async with serving(deny) as service:
        with pytest.raises(ToolDenied, match="not today") as caught:
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)
    assert caught.value.reason == "quota"


@pytest.mark.parametrize(
    "answer",
    [b"\xff\xfe\x80", b'{"status": "ok", "output": {"result": "\xff\xfe"}}', b"", b"[]", b'{"request_id": "x"}'],
    ids=["no text", "invalid UTF-8", "nothing", "no object", "no envelope"],
)
async def test_an_answer_that_is_no_envelope_is_a_failure(answer: bytes, channels: GrpcChannels) -> None:
    async def garbage(request: bytes, context: Any) -> bytes:
        return answer

    async with serving(garbage) as service:
        with pytest.raises(ToolError, match="not a contract v1 response"):
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)


async def test_the_answer_to_another_request_is_not_believed(channels: GrpcChannels) -> None:
    async def mixed_up(request: bytes, context: Any) -> bytes:
        return b'{"tool_contract_version":"v1","request_id":"grpc-search-0","status":"ok","output":{"result":"theirs"}}'

    async with serving(mixed_up) as service:
        with pytest.raises(ToolError, match="another request"):
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)


async def test_an_answer_beyond_the_limit_is_not_taken_in() -> None:
    async def flood(request: bytes, context: Any) -> bytes:
        return b'{"status":"ok","output":{"result":"' + b"x" * 100_000 + b'"}}'

    channels = GrpcChannels(largest_answer=10_000)
    async with serving(flood) as service:
        with pytest.raises(ToolError):
            await tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL)
        await channels.close()


async def test_a_service_that_hangs_is_left_at_the_deadline(channels: GrpcChannels) -> None:
    stopped = asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("never gets here")

    async with serving(hang) as service:
        with pytest.raises(ToolTimeout):
            await tool(channels, f"grpc://127.0.0.1:{service.port}", timeout=1.0).invoke(CALL)
        async with asyncio.timeout(60):
            await stopped.wait()


async def test_cancelling_the_call_reaches_the_service(channels: GrpcChannels) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("never gets here")

    async with serving(hang) as service:
        task = asyncio.create_task(tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL))
        async with asyncio.timeout(60):
            await begun.wait()
            task.cancel()
            await stopped.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_service_that_crashes_in_the_middle_leaves_the_effect_unknown(channels: GrpcChannels) -> None:
    begun = asyncio.Event()

    async def hang(request: bytes, context: Any) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError("never gets here")

    async with serving(hang) as service:
        task = asyncio.create_task(tool(channels, f"grpc://127.0.0.1:{service.port}").invoke(CALL))
        async with asyncio.timeout(60):
            await begun.wait()
            await service.crash()
            with pytest.raises(ToolError) as caught:
                await task
    assert not caught.value.before_effect


async def test_a_service_that_is_not_there_certainly_did_nothing_and_is_found_when_it_comes(
    channels: GrpcChannels,
) -> None:
    async with serving(echo) as service:
        port = service.port
    called = tool(channels, f"grpc://127.0.0.1:{port}")
    with pytest.raises(ToolUnreachable) as caught:
        await called.invoke(CALL)
    assert caught.value.before_effect
    async with serving(echo, port=port):
        assert (await called.invoke(CALL))["tool"]["name"] == "search"


async def test_calls_to_one_place_share_a_channel(channels: GrpcChannels) -> None:
    async with serving(echo) as service:
        first = tool(channels, f"grpc://127.0.0.1:{service.port}")
        second = tool(channels, f"grpc://127.0.0.1:{service.port}/")
        await asyncio.gather(*(each.invoke(CALL) for each in (first, second, first, second)))
    assert channels.open == 1


def test_a_manifest_can_declare_plaintext_and_only_for_grpc() -> None:
    def checked(**spec: Any) -> tuple[Any, Any]:
        return validate_document({"kind": "Tool", "metadata": {"name": "search"}, "spec": spec})

    document, problems = checked(type="grpc", endpoint="grpc://tools.example:50051", grpc={"plaintext": True})
    assert document is not None, problems
    assert tool_definition(document).options["grpc"] == {"plaintext": True}
    assert checked(type="http", endpoint="https://tools.example", grpc={"plaintext": True})[0] is None
