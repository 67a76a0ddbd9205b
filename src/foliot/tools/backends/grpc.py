"""Tools behind gRPC: one unary method that carries contract v1 envelopes as JSON, without generated code.

The service `orloj.tool.v1.ToolService` has the method `Execute`; request and response are the bytes of the envelopes.
Credentials go as metadata and are never in an envelope. The deadline goes along, so the service can give up in time.
gRPC for Python always says `application/grpc`: a server that chooses its codec by content subtype must be told to use
JSON for this method.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from foliot.common.threads import unhurried
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolArgumentsInvalid,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolCancelled,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolPrecondition,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
    ToolUnsupported,
    before_effect,
)
from foliot.tools.contract import (
    VERSION,
    check_request_id,
    decode_response,
    encode_request,
    request_id,
    request_of,
    result_of,
)
from foliot.tools.errors import LONGEST_WAIT, retry_seconds
from foliot.tools.outbound.guard import Guard
from foliot.version import install_command

if TYPE_CHECKING:
    from foliot.tools.secrets.auth import CallAuth, Credentials


# --- grpc channels ---------------------------------------------------------------------------------------------------

# Connections to gRPC services: one channel per place, shared by all tools that call it.
#
# TLS 1.2 or newer is the rule (gRPC's own floor). `grpc://` asks for plaintext, which is given on this machine only,
# unless the tool declares that it is meant (`options.grpc.plaintext`): then whoever reads the manifest sees it.
#
# With a guard, a name is resolved and checked first and the channel goes to the checked addresses alone; the name
# stays what the server's certificate must be for.

LARGEST_ANSWER: Final = 4 * 1024 * 1024
_PLACE: Final = re.compile(
    r"(?:(?P<scheme>grpcs?)://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(?P<port>[0-9]{1,5})/?"
)


class GrpcAddress(Struct, frozen=True):
    """The address of a service. `plaintext`: without TLS."""

    host: str
    port: int
    plaintext: bool = False

    @property
    def bare_host(self) -> str:
        return self.host.strip("[]")


def place_of(endpoint: str, *, tool: str = "") -> GrpcAddress:
    """`host:port`, `grpcs://host:port` (the same) or `grpc://host:port`. Raises `ToolPolicyInvalid`."""
    found = _PLACE.fullmatch(endpoint.strip())
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ToolPolicyInvalid(
            f"the endpoint of tool {tool!r} is not a gRPC address" if endpoint.strip() else f"{tool!r} has no endpoint",
            hint="expected host:port, with grpc:// in front for plaintext on this machine",
            tool=tool,
        )
    return GrpcAddress(found["host"].lower(), int(found["port"]), found["scheme"] == "grpc")


def load_grpc() -> Any:
    """The grpc module, which is heavy and optional. Raises `ToolPolicyInvalid` that says how to get it."""
    try:
        return import_module("grpc")
    except ImportError:
        raise ToolPolicyInvalid(
            "tools of the type `grpc` need the package grpcio, which is not installed",
            hint=install_command("grpc"),
        ) from None


class GrpcChannels:
    """Channels by place. Close it when nothing calls any more.

    `roots` are PEM certificates to trust instead of the public ones. Without a `guard` names are resolved by gRPC.
    """

    def __init__(
        self, *, guard: Guard | None = None, roots: bytes | None = None, largest_answer: int = LARGEST_ANSWER
    ) -> None:
        self._guard = guard
        self._roots = roots
        self._largest = largest_answer
        self._channels: dict[tuple[GrpcAddress, str], Any] = {}

    async def channel(self, place: GrpcAddress, *, plaintext_declared: bool = False) -> Any:
        """A channel that is connected now.

        Raises `ToolPolicyInvalid` for a place that may not be reached so, and `ToolUnreachable` with `before_effect`.
        """
        addresses = await self._checked(place)
        _refuse_plaintext(place, addresses, plaintext_declared)
        target = _target(place, addresses)
        key = (place, target)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._open(place, target)
        try:
            await _connect(channel, place)
        except ToolUnreachable:
            # gRPC waits longer and longer before it tries again; who calls again wants a fresh try.
            await self._drop(key, channel)
            raise
        return channel

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    @property
    def open(self) -> int:
        """How many channels there are."""
        return len(self._channels)

    async def _checked(self, place: GrpcAddress) -> tuple[str, ...]:
        if self._guard is None:
            return ()
        return tuple(str(address) for address in await self._guard.check_host(place.host, place.port))

    def _open(self, place: GrpcAddress, target: str) -> Any:
        grpc = load_grpc()
        # A subchannel is otherwise shared by all channels to the same address, whatever they were told to trust.
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", self._largest),
            ("grpc.enable_retries", 0),  # repeating a call is for the pipeline to decide, which knows its effect
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),  # a proxy would connect to addresses that nobody checked
            ("grpc.default_authority", f"{place.host}:{place.port}"),
        ]
        if place.plaintext:
            return grpc.aio.insecure_channel(target, options=options)
        options.append(("grpc.ssl_target_name_override", place.bare_host))
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(self._roots), options=options)

    async def _drop(self, key: tuple[GrpcAddress, str], channel: Any) -> None:
        if self._channels.get(key) is channel:
            del self._channels[key]
            with contextlib.suppress(asyncio.CancelledError):
                await channel.close(grace=None)


def _refuse_plaintext(place: GrpcAddress, addresses: Sequence[str], declared: bool) -> None:
    if not place.plaintext or declared:
        return
    if not all(_is_loopback(host) for host in (addresses or (place.bare_host,))):
        raise ToolPolicyInvalid(
            f"the gRPC service on {place.host!r} would be called without TLS",
            hint="use grpcs://, or declare options.grpc.plaintext for the tool if that is meant",
            host=place.host,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _target(place: GrpcAddress, addresses: Sequence[str]) -> str:
    """Returns the gRPC target: the checked addresses, else the name as it is."""
    if not addresses:
        return f"dns:///{place.host}:{place.port}"
    family = "ipv6" if ":" in addresses[0] else "ipv4"
    same = [address for address in addresses if (":" in address) == (family == "ipv6")]
    return f"{family}:" + ",".join(
        f"[{address}]:{place.port}" if family == "ipv6" else f"{address}:{place.port}" for address in same
    )


async def _connect(channel: Any, place: GrpcAddress) -> None:
    """Waits until the channel is ready. A failure here has certainly not reached the tool."""
    states = load_grpc().ChannelConnectivity
    while (state := channel.get_state(try_to_connect=True)) is not states.READY:
        if state in (states.TRANSIENT_FAILURE, states.SHUTDOWN):
            error = ToolUnreachable(
                f"there is no connection to the gRPC service on {place.host}:{place.port}",
                hint="is it running, and does its certificate fit?" if not place.plaintext else "is it running?",
                host=place.host,
            )
            error.before_effect = True
            raise error
        await channel.wait_for_state_change(state)


# --- grpc ------------------------------------------------------------------------------------------------------------

METHOD: Final = "/orloj.tool.v1.ToolService/Execute"
SAID_AT_MOST: Final = 400

# By the name of the status code. What is not listed is a failure of the service that may pass.
_BY_STATUS: Final[Mapping[str, tuple[type[ToolError], bool]]] = {
    "CANCELLED": (ToolCancelled, False),
    "DEADLINE_EXCEEDED": (ToolTimeout, True),
    "UNAUTHENTICATED": (ToolAuthInvalid, False),
    "PERMISSION_DENIED": (ToolAuthForbidden, False),
    "INVALID_ARGUMENT": (ToolArgumentsInvalid, False),
    "OUT_OF_RANGE": (ToolArgumentsInvalid, False),
    "UNIMPLEMENTED": (ToolUnsupported, False),
    "FAILED_PRECONDITION": (ToolPrecondition, False),
    "RESOURCE_EXHAUSTED": (ToolRateLimited, True),
    "UNAVAILABLE": (ToolUnreachable, True),
    "NOT_FOUND": (ToolError, False),
    "ALREADY_EXISTS": (ToolError, False),
    "DATA_LOSS": (ToolError, False),
}


class GrpcTool:
    """A `Tool` of the type `grpc`. `channels` are shared by all of them; `auth` makes the credentials."""

    isolation = "none"

    def __init__(
        self,
        definition: ToolDefinition,
        channels: GrpcChannels,
        *,
        auth: CallAuth | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises `ToolPolicyInvalid` when the definition cannot be carried out."""
        if definition.auth is not None and auth is None:
            raise ToolPolicyInvalid(f"tool {definition.name!r} has auth, and there is nobody to resolve secrets")
        options = cast("Mapping[str, Any]", definition.options.get("grpc") or {})
        self._definition = definition
        self._place = place_of(definition.endpoint, tool=definition.name)
        self._plaintext_declared = bool(options.get("plaintext"))
        self._channels = channels
        self._auth = auth
        self._clock = clock

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises the `ToolError` that the service reports, or that its status means."""
        with before_effect():
            used = await self._credentials(call)
        try:
            return await self._execute(call, used)
        except ToolAuthInvalid:
            if self._auth is None or used is None:
                raise
            self._auth.evict(self._definition.auth, used)
            renewed = await self._credentials(call)
            if renewed is None or renewed.headers == used.headers:
                raise
            return await self._execute(call, renewed)

    async def _credentials(self, call: Invocation) -> Credentials | None:
        if self._auth is None or self._definition.auth is None:
            return None
        return await self._auth.credentials(
            self._definition.auth, namespace=self._definition.namespace, tool=self._definition.name
        )

    async def _execute(self, call: Invocation, used: Credentials | None) -> Any:
        grpc = load_grpc()
        with before_effect():
            channel = await self._channels.channel(self._place, plaintext_declared=self._plaintext_declared)
            id = request_id("grpc", call)
            request = encode_request(request_of(call, self._definition, mode="grpc", id=id))
        try:
            answer: bytes = await channel.unary_unary(METHOD)(
                request, metadata=_metadata(used), timeout=self._seconds(call)
            )
        except grpc.aio.AioRpcError as error:
            raise _failure(error, self._definition.name) from None
        response = await unhurried(len(answer), decode_response, answer)
        check_request_id(response, id)
        return result_of(response)

    def _seconds(self, call: Invocation) -> float | None:
        """Returns the time limit to send to the service: the end of the attempt or of the call, whichever is first."""
        limits = [self._definition.attempt_timeout or self._definition.timeout]
        if call.deadline is not None:
            limits.append(call.deadline - self._clock())
        left = [limit for limit in limits if limit is not None]
        if left and min(left) <= 0:
            late = ToolTimeout(f"the time for {self._definition.name!r} was over before it was called")
            late.before_effect = True
            raise late
        return min(left) if left else None


def _metadata(used: Credentials | None) -> tuple[tuple[str, str], ...]:
    headers = tuple(used.headers.items()) if used is not None else ()
    return (("x-tool-contract-version", VERSION), *((name.lower(), value) for name, value in headers))


def _failure(error: Any, tool: str) -> ToolError:
    """The status as an error of ours. Its code decides; its text is only shown."""
    status: str = error.code().name
    made, retryable = _BY_STATUS.get(status, (ToolError, True))
    said = str(error.details() or "").strip()[:SAID_AT_MOST]
    failure = made(
        f"the gRPC service of {tool!r} says {status}{': ' + said if said else ''}",
        retryable=retryable,
        grpc_status=status,
        tool=tool,
    )
    # A connection that broke, or a limit that was met, says nothing about what the tool had done by then.
    failure.before_effect = False
    failure.lost = (
        failure.lost or status == "DATA_LOSS" or (status == "RESOURCE_EXHAUSTED" and "larger than max" in said)
    )
    failure.retry_after = _retry_after(error)
    return failure


def _retry_after(error: Any) -> float | None:
    """Seconds, from the trailers that servers of gRPC or behind HTTP proxies use."""
    said = {str(key).lower(): value for key, value in (error.trailing_metadata() or ())}
    pushback, after = said.get("grpc-retry-pushback-ms"), said.get("retry-after")
    if isinstance(pushback, str) and pushback.isascii() and pushback.isdigit():
        return min(int(pushback) / 1000, LONGEST_WAIT)
    return retry_seconds(after) if isinstance(after, str) else None
