"""Contract v1: how a tool that runs elsewhere is asked, and how it answers, as JSON.

Pure: nothing here reads, waits or knows a transport; HTTP, gRPC, queues and sandboxes all carry these same envelopes. A
request goes out whole (task, agent, trace, attempt, idempotency key, deadline), so that a service can log, deduplicate
and give up in time. A response is the one truth about a call: its `status` and `error.code` decide, never its texts.

What is blank is left out, nested objects are always there. Fields that a reader does not know are skipped, so fields
may be added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field, structs

from foliot.kernel.arguments import read_json
from foliot.kernel.json_texts import MOST_VALUES, has_more_values
from foliot.tools.base import (
    Invocation,
    ToolAnswerLost,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
)
from foliot.tools.errors import error_as_data, reported_error

VERSION: Final = "v1"
PENDING: Final = frozenset({"pending", "running", "queued", "accepted", "in_progress"})
"""What a service may say in `status` while it is not finished."""

Mode: TypeAlias = Literal["external", "grpc", "webhook-callback", "queue", "container", "wasm", "function", "cli"]


class ContractTool(Struct, frozen=True, omit_defaults=True):
    name: str = ""
    operation: str = ""
    version: str = ""
    capabilities: tuple[str, ...] = ()
    risk_level: str = ""
    effect: str = ""


class ContractRuntime(Struct, frozen=True, omit_defaults=True):
    mode: str = ""
    timeout_ms: int = 0
    max_attempts: int = 0
    backoff: str = ""
    max_backoff_ms: int = 0
    jitter: bool = False


class ContractAuth(Struct, frozen=True, omit_defaults=True):
    """Which credentials go with the call. Their values travel in headers or metadata, never in an envelope."""

    profile: str = ""
    secret_ref: str = ""
    scopes: tuple[str, ...] = ()


class ContractTrace(Struct, frozen=True, omit_defaults=True):
    trace_id: str = ""
    span_id: str = ""


class ToolRequest(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call. `input` are the arguments; `input_raw` is their JSON text, for tools that take text.

    `idempotency_key` is the same for every attempt; `deadline_ms` is when nobody waits any more (ms since 1970);
    `callback_url` is where a result may be pushed to.
    """

    tool_contract_version: str = ""
    request_id: str = ""
    task_id: str = ""
    namespace: str = ""
    agent: str = ""
    tool: ContractTool = field(default_factory=ContractTool)
    input: dict[str, Any] | None = None
    input_raw: str = ""
    runtime: ContractRuntime = field(default_factory=ContractRuntime)
    auth: ContractAuth = field(default_factory=ContractAuth)
    trace: ContractTrace = field(default_factory=ContractTrace)
    attempt: int = 0
    idempotency_key: str = ""
    deadline_ms: int = 0
    callback_url: str = ""


class ContractUsage(Struct, frozen=True, omit_defaults=True):
    duration_ms: int | float = 0
    attempt: int = 0


class ContractError(Struct, frozen=True, omit_defaults=True):
    """`retryable` is None only in what others wrote; it is always sent."""

    code: str = ""
    reason: str = ""
    retryable: bool | None = None
    message: str = ""
    details: dict[str, Any] | None = None
    kind: str = ""


class ToolResponse(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One answer. `output.result` is its text."""

    tool_contract_version: str = ""
    request_id: str = ""
    status: str = ""
    output: Any = field(default_factory=dict[str, Any])
    usage: ContractUsage | None = field(default_factory=ContractUsage)
    trace: ContractTrace | None = field(default_factory=ContractTrace)
    error: ContractError | None = None


class ToolOutput(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of output on the way to the response. `seq` counts from 1 without gaps; a repeated one is dropped."""

    tool_contract_version: str
    request_id: str = ""
    seq: int = 0
    delta: str = ""
    status: str = ""


_requests = msgspec.json.Decoder(ToolRequest)
_responses = msgspec.json.Decoder(ToolResponse)
_outputs = msgspec.json.Decoder(ToolOutput)
_encode = msgspec.json.Encoder(enc_hook=str).encode


def request_id(prefix: str, call: Invocation) -> str:
    """`ext-search-<digest>-<attempt>`: the same for the same attempt of the same call, wherever it is made."""
    identity = "\0".join((call.namespace, *call.origin, call.idempotency_key))
    return f"{prefix}-{call.tool}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}-{max(call.attempt, 1)}"


def request_of(call: Invocation, definition: ToolDefinition, *, mode: Mode, id: str) -> ToolRequest:
    """The whole envelope of a call."""
    retry, auth = definition.retry, definition.auth
    timeout = definition.attempt_timeout or definition.timeout
    return normalise_request(
        ToolRequest(
            request_id=id,
            task_id=call.caller.task or call.run_id,
            namespace=call.namespace,
            agent=call.agent,
            tool=ContractTool(
                name=definition.name,
                version=definition.version,
                capabilities=definition.capabilities,
                risk_level=definition.risk,
                effect=definition.effect,
            ),
            input=call.arguments,
            input_raw=_encode(call.arguments).decode(),
            runtime=ContractRuntime(
                mode=mode,
                timeout_ms=round((timeout or 0) * 1000),
                max_attempts=retry.max_attempts,
                backoff=f"{retry.backoff:g}s" if retry.backoff else "",
                max_backoff_ms=round(retry.max_backoff * 1000),
                jitter=retry.jitter != "none",
            ),
            auth=ContractAuth(auth.profile, auth.secret_ref, auth.scopes) if auth else ContractAuth(),
            trace=ContractTrace(call.trace_id, call.call_id),
            attempt=call.attempt,
            idempotency_key=call.idempotency_key,
            deadline_ms=round((call.deadline or 0) * 1000),
        )
    )


def normalise_request(request: ToolRequest) -> ToolRequest:
    """The request with its spellings made one. Raises `ToolArgumentsInvalid` that names the `field`."""
    _check_version(request.tool_contract_version)
    if not request.request_id.strip():
        raise ToolArgumentsInvalid("the request has no request_id", field="request_id")
    if not request.tool.name.strip():
        raise ToolArgumentsInvalid("the request names no tool", field="tool.name")
    return structs.replace(
        request,
        tool_contract_version=VERSION,
        request_id=request.request_id.strip(),
        task_id=request.task_id.strip(),
        namespace=request.namespace.strip(),
        agent=request.agent.strip(),
        tool=structs.replace(
            request.tool,
            name=request.tool.name.strip(),
            operation=_word(request.tool.operation) or "invoke",
            capabilities=_words(request.tool.capabilities),
            risk_level=_word(request.tool.risk_level),
            effect=_word(request.tool.effect),
        ),
        input=request.input or {},
        input_raw=request.input_raw.strip(),
        runtime=structs.replace(
            request.runtime, mode=_word(request.runtime.mode), backoff=_word(request.runtime.backoff)
        ),
        auth=structs.replace(
            request.auth,
            profile=_word(request.auth.profile),
            secret_ref=request.auth.secret_ref.strip(),
            scopes=_words(request.auth.scopes),
        ),
        trace=_trimmed(request.trace),
        attempt=max(request.attempt, 1),
    )


def encode_request(request: ToolRequest) -> bytes:
    return _encode(request)


def decode_request(data: bytes | str) -> ToolRequest:
    """A request that somebody sent, normalised. Raises `ToolArgumentsInvalid`."""
    try:
        return normalise_request(_requests.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ToolArgumentsInvalid(f"not a contract {VERSION} request: {error}", field="request") from None


def input_text(request: ToolRequest) -> str:
    """The arguments for a tool that takes one text."""
    if request.input_raw.strip():
        return request.input_raw
    return _encode(request.input).decode() if request.input else ""


def ok_response(request: ToolRequest, result: str, *, duration_ms: int = 0) -> ToolResponse:
    return normalise_response(
        ToolResponse(status="ok", output={"result": result}, usage=ContractUsage(duration_ms)), request
    )


def error_response(request: ToolRequest, error: BaseException, *, duration_ms: int = 0) -> ToolResponse:
    """Converts any exception into a response envelope: a tool's failure is data, not an error of the transport."""
    status, found = error_as_data(error)
    failure = ContractError(**found)
    if not failure.details:
        failure = structs.replace(failure, details=None)
    return normalise_response(ToolResponse(status=status, usage=ContractUsage(duration_ms), error=failure), request)


def normalise_response(response: ToolResponse, request: ToolRequest) -> ToolResponse:
    """The response as it goes back to who asked: version, id and trace are the request's, what is missing is filled."""
    usage, trace = response.usage or ContractUsage(), response.trace or ContractTrace()
    return structs.replace(
        response,
        tool_contract_version=VERSION,
        request_id=request.request_id,
        status=_word(response.status) or "ok",
        output=_output(response.output),
        usage=structs.replace(usage, attempt=usage.attempt if usage.attempt > 0 else max(request.attempt, 1)),
        trace=ContractTrace(trace.trace_id or request.trace.trace_id, trace.span_id or request.trace.span_id),
    )


def encode_response(response: ToolResponse) -> bytes:
    return _encode(response)


def decode_response(data: bytes | str) -> ToolResponse:
    """A response that a service sent. Raises `ToolError`, retryable: what came is no envelope."""
    if has_more_values(data.encode() if isinstance(data, str) else data):
        raise ToolAnswerLost(f"the answer has more than {MOST_VALUES:,} values", retryable=False)
    try:
        read_json(data.encode() if isinstance(data, str) else data)
        response = _responses.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolAnswerLost(f"the answer is not a contract {VERSION} response: {error}") from None
    if _word(response.tool_contract_version) not in ("", VERSION):
        raise ToolAnswerLost(f"the answer speaks another contract than {VERSION}", expected=VERSION)
    if not (response.status.strip() or response.error or response.output):
        raise ToolAnswerLost(
            f"the answer is not a contract {VERSION} response: it has neither status, output nor error"
        )
    return structs.replace(response, status=_word(response.status) or "ok", output=_output(response.output))


def decode_output(data: bytes | str) -> ToolOutput | None:
    """A piece of output, or None when this is something else."""
    try:
        output = _outputs.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return output if output.seq > 0 and not output.status else None


def is_envelope(value: Any) -> bool:
    """Only what says so is an envelope: an API's own `{"status": "active"}` is its data."""
    return isinstance(value, dict) and "tool_contract_version" in value


def check_request_id(response: ToolResponse, expected: str) -> None:
    """Raises `ToolError` for an answer to somebody else's request. An answer without an id came on our connection."""
    found = response.request_id.strip()
    if found and found != expected:
        raise ToolAnswerLost(
            "the answer belongs to another request", retryable=False, expected=expected, field="request_id"
        )


def result_of(response: ToolResponse) -> Any:
    """The value of a successful response: the text of `output.result`, or the whole output. Raises its `ToolError`."""
    if (error := response_error(response)) is not None:
        raise error
    output = cast("dict[str, Any]", response.output)
    result = output.get("result", output) if output else ""
    return result.strip() if isinstance(result, str) else result


def response_error(response: ToolResponse) -> ToolError | None:
    """The error that a response reports, if it does. `status` and codes decide; what a text looks like never does."""
    status = _word(response.status)
    if status in ("", "ok"):
        return None
    if response.error is None:
        return ToolError("tool response missing error envelope", retryable=False)
    found = response.error
    return reported_error(
        status=status,
        code=found.code,
        reason=found.reason,
        retryable=bool(found.retryable),
        message=found.message,
        details=found.details or {},
        kind=found.kind,
    )


def _check_version(version: str) -> None:
    if _word(version) not in ("", VERSION):
        raise ToolArgumentsInvalid(
            f"unknown tool contract version {version.strip()[:40]!r}", field="tool_contract_version", expected=VERSION
        )


def _output(output: Any) -> dict[str, Any]:
    """Some services answer with the bare text or list; it is their result."""
    if output is None or output == "":
        return {}
    return dict(cast("Mapping[str, Any]", output)) if isinstance(output, dict) else {"result": output}


def _trimmed(trace: ContractTrace) -> ContractTrace:
    return ContractTrace(trace.trace_id.strip(), trace.span_id.strip())


def _word(text: str) -> str:
    return text.strip().lower()


def _words(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for text in texts if (word := _word(text))))
