"""Tools behind gRPC: one unary method that carries contract v1 envelopes as JSON, without generated code.

The service `orloj.tool.v1.ToolService` has the method `Execute`; request and response are the bytes of the envelopes.
Credentials go as metadata and are never in an envelope. The deadline goes along, so the service can give up in time.
gRPC for Python always says `application/grpc`: a server that chooses its codec by content subtype must be told to use
JSON for this method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from foliot.threads import unhurried
from foliot.tools.backends.grpc_channels import GrpcChannels, load_grpc, place_of
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
from foliot.tools.error_text import LONGEST_WAIT, retry_seconds

if TYPE_CHECKING:
    from foliot.tools.auth import Credentials, ToolAuth

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
        auth: ToolAuth | None = None,
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
        channel = await self._channels.channel(self._place, plaintext_declared=self._plaintext_declared)
        id = request_id("grpc", call)
        request = request_of(call, self._definition, mode="grpc", id=id)
        try:
            answer: bytes = await channel.unary_unary(METHOD)(
                encode_request(request), metadata=_metadata(used), timeout=self._seconds(call)
            )
        except grpc.aio.AioRpcError as error:
            raise _failure(error, self._definition.name) from None
        response = await unhurried(len(answer), decode_response, answer)
        check_request_id(response, id)
        return result_of(response)

    def _seconds(self, call: Invocation) -> float | None:
        """What the service is told: when the attempt ends, or the call, whichever is first."""
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
