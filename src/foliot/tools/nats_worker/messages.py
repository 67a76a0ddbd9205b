"""Messages between the callers of tools over a message bus and their servers.

A call goes to `tool.execute.<name>`, its one result to `tool.result.<call id>`, pieces of output to
`tool.output.<execution id>`. Each message is an envelope `{id, type: {domain, category, version}, meta, payload}`; the
payload is the same in every delivery of the same call, what may change (attempt, deadline) is in `meta`.

Pure: nothing here reads, waits or knows a connection.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from foliot.kernel.arguments import read_json
from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.kernel.run.codec import settled
from foliot.tools.base import ToolAnswerLost, ToolError
from foliot.tools.errors import reported_error

DOMAIN: Final = "agentic"
VERSION: Final = "v1"
EXECUTE: Final = "tool.execute"
RESULT: Final = "tool.result"
OUTPUT: Final = "tool.output"
LIST: Final = "tool.list"
EVERY_CALL: Final = f"{EXECUTE}.>"

Category: TypeAlias = Literal["tool_call", "tool_result", "tool_output"]

_TOOL: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_=:-]+")
_LONGEST_TOKEN: Final = 80


class Poison(ValueError):
    """A message that cannot be what it should be. It is never executed and never delivered again."""


class MessageType(Struct, frozen=True):
    category: str
    domain: str = DOMAIN
    version: str = VERSION


class Meta(Struct, frozen=True, omit_defaults=True):
    """Facts about this delivery. `deadline_ms` is when nobody waits any more (ms since 1970)."""

    sender: str = ""
    sent_ms: int = 0
    attempt: int = 1
    deadline_ms: int = 0
    idempotency_key: str = ""


class CallMessage(Struct, frozen=True, omit_defaults=True):
    """One call. `metadata` is context from the runtime; nothing in it was written by a model.

    `approved_by` names an approval that was given; whoever serves checks it and never believes it.
    """

    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    loop_id: str = ""
    trace_id: str = ""
    approved_by: str = ""
    request_id: str = ""
    execution_id: str = ""
    call_ordinal: int = 0


class ResultMessage(Struct, frozen=True, omit_defaults=True):
    """The one result. A non-empty `error` means failure; `error_kind` says of which kind."""

    call_id: str = ""
    name: str = ""
    content: str = ""
    error: str = ""
    error_kind: str = ""
    result_hint: str = ""
    metadata: dict[str, Any] = {}
    loop_id: str = ""
    trace_id: str = ""
    stop_loop: bool = False
    request_id: str = ""
    execution_id: str = ""
    call_ordinal: int = 0


class OutputMessage(Struct, frozen=True, omit_defaults=True):
    """A piece of what a tool prints. `seq` counts from 1."""

    execution_id: str = ""
    seq: int = 0
    data: str = ""
    channel: str = "text"


class _Envelope(Struct, frozen=True):
    id: str
    type: MessageType
    meta: Meta
    payload: Any


class _Raw(Struct, frozen=True):
    type: MessageType
    payload: msgspec.Raw
    id: str = ""
    meta: Meta = Meta()


_encode = msgspec.json.Encoder(enc_hook=str).encode
_canonical = msgspec.json.Encoder(order="deterministic", enc_hook=str).encode
_raw = msgspec.json.Decoder(_Raw)
_call = msgspec.json.Decoder(CallMessage)
_result = msgspec.json.Decoder(ResultMessage)
_output = msgspec.json.Decoder(OutputMessage)


def encode(id: str, payload: CallMessage | ResultMessage | OutputMessage, meta: Meta) -> bytes:
    return _encode(_Envelope(id, MessageType(_CATEGORIES[type(payload)]), meta, payload))


_CATEGORIES: Final[dict[type, Category]] = {
    CallMessage: "tool_call",
    ResultMessage: "tool_result",
    OutputMessage: "tool_output",
}


def decode_call(data: bytes) -> tuple[CallMessage, Meta]:
    """A call that may be run. Raises `Poison` that says what is missing."""
    raw = _open(data, "tool_call")
    try:
        call = _call.decode(raw.payload)
        read_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Poison(f"not a tool call: {error}") from None
    for value, what in (
        (call.id, "tool call id required"),
        (call.name, "tool call function name required"),
        (call.request_id, "tool call request_id required"),
        (call.execution_id, "tool call execution_id required"),
    ):
        if not value.strip():
            raise Poison(what)
    if call.call_ordinal < 1:
        raise Poison("tool call call_ordinal must be positive")
    if result_subject(call.id) is None or call_subject(call.name) is None:
        raise Poison("the id or the name of the call cannot be part of a subject")
    return call, raw.meta


def decode_result(data: bytes) -> ResultMessage:
    """A result. Raises `Poison`."""
    raw = _open(data, "tool_result")
    try:
        read_json(data)
        result = _result.decode(raw.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Poison(f"not a tool result: {error}") from None
    if not result.call_id.strip():
        raise Poison("tool result call_id required")
    return result


def decode_output(data: bytes) -> OutputMessage:
    """A piece of output. Raises `Poison`."""
    try:
        return _output.decode(_open(data, "tool_output").payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Poison(f"not a piece of output: {error}") from None


def _open(data: bytes, category: Category) -> _Raw:
    try:
        raw = _raw.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Poison(f"not an envelope: {error}") from None
    if raw.type != MessageType(category):
        said = f"{raw.type.domain}.{raw.type.category}.{raw.type.version}"[:80]
        raise Poison(f"expected {DOMAIN}.{category}.{VERSION}, this is {said}")
    return raw


# --- subjects and identities -------------------------------------------------------------------------------------


def call_subject(tool: str, prefix: str = "") -> str | None:
    """Returns the subject for calls of this tool; None for a name it cannot hold.

    `prefix` is empty or ends with a dot.
    """
    return f"{prefix}{EXECUTE}.{tool}" if _TOOL.fullmatch(tool) else None


def result_subject(call_id: str, prefix: str = "") -> str | None:
    """Returns the subject of the result; None for an id that is not one token."""
    return f"{prefix}{RESULT}.{call_id}" if call_id and "." not in call_id and _TOOL.fullmatch(call_id) else None


def output_subject(execution: str, prefix: str = "") -> str:
    """Returns the subject for pieces of output."""
    return f"{prefix}{OUTPUT}.{execution}"


def prefix_of(subject: str) -> str:
    """Returns the prefix of a caller's subjects, from the subject of its calls:

    `team-b.` of `team-b.tool.execute.search`.
    """
    before, found, _ = f".{subject}".partition(f".{EXECUTE}.")
    return f"{before[1:]}." if found and before else ""


def wire_call_id(call_id: str, identity: str) -> str:
    """A provider's call id as one token that no other call has: `call_001-<digest>`."""
    digest = hashlib.sha256(f"{identity}\0{call_id}".encode()).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', call_id)[:_LONGEST_TOKEN] or 'call'}-{digest}"


def execution_id(request_id: str, call_id: str, ordinal: int) -> str:
    """The name of one execution, the same wherever it is computed. Lengths go in, so no two calls can share one."""
    request, call = request_id.encode(), call_id.encode()
    data = b"".join(
        (len(request).to_bytes(4, "big"), request, len(call).to_bytes(4, "big"), call, ordinal.to_bytes(4, "big"))
    )
    return f"tool-exec-v1-{_digest(data)}"


def outcome_key(execution: str, owner: str) -> str:
    """Returns the key of an execution's outcome. Callers choose ids, so each has a space of its own."""
    return f"v2.{_digest(_owned(execution, owner))}"


def started_key(execution: str, owner: str) -> str:
    """Returns the key under which the start of an execution with an effect is noted."""
    return f"started.v2.{_digest(_owned(execution, owner))}"


def result_dedupe_id(execution: str, *, approval: bool = False) -> str:
    """The same result is stored once, however often it is published."""
    return f"tool-result/v1/{_digest(execution.encode())}{'/approval-required' if approval else ''}"


def call_dedupe_id(call: CallMessage) -> str:
    """The same call is stored once. With an approval it is another call than without one."""
    return f"tool-call/v1/{_digest(f'{call.execution_id} {fingerprint(call)}'.encode())}"


def fingerprint(call: CallMessage) -> str:
    """Names the content of a call: the same execution with other content is somebody's mistake, or worse."""
    return f"sha256:{hashlib.sha256(_canonical(msgspec.to_builtins(settled(call)))).hexdigest()}"


def _owned(execution: str, owner: str) -> bytes:
    return f"{len(owner)}:{owner}:{execution}".encode()


def _digest(data: bytes) -> str:
    return base64.b32encode(hashlib.sha256(data).digest()).decode().rstrip("=").lower()


# --- outcomes --------------------------------------------------------------------------------------------------------

# From a result to the message that carries it, and back, without losing what kind of failure it was.

# Our kinds in the words of the wire; what is not listed is spelled the same on both sides.
_TO_WIRE: Final = {
    "invalid_arguments": "invalid_args",
    "unknown_tool": "not_found",
    "denied": "policy_denied",
    "execution": "external",
}
# The wire's kinds as (code, reason, kind, retryable), for servers that say nothing more precise.
_FROM_WIRE: Final[Mapping[str, tuple[str, str, str, bool]]] = {
    "timeout": ("timeout", "tool_execution_timeout", "timeout", True),
    "cancelled": ("canceled", "tool_execution_canceled", "cancelled", False),
    "not_found": ("execution_failed", "tool_backend_failure", "not_found", False),
    "invalid_args": ("invalid_input", "tool_invalid_input", "invalid_arguments", False),
    "permission": ("auth_forbidden", "tool_auth_forbidden", "permission", False),
    "policy_denied": ("permission_denied", "tool_permission_denied", "denied", False),
    "network": ("execution_failed", "tool_backend_failure", "network", True),
    "external": ("execution_failed", "tool_backend_failure", "external", True),
    "rate_limited": ("execution_failed", "tool_backend_failure", "rate_limited", True),
    "dependency_failed": ("invalid_input", "tool_precondition_failed", "dependency_failed", False),
    "precondition_failed": ("invalid_input", "tool_precondition_failed", "precondition_failed", False),
    "version_mismatch": ("unsupported_tool", "tool_version_mismatch", "version_mismatch", False),
    "too_large": ("execution_failed", "tool_backend_failure", "too_large", False),
}
_UNKNOWN: Final = ("execution_failed", "tool_backend_failure", "internal", False)
_parts = msgspec.json.Decoder(tuple[Text | Media, ...])


def answer(call: CallMessage, result: ToolResult) -> ResultMessage:
    """The message for a result. Identities are the call's: a tool has no say in them."""
    metadata: dict[str, Any] = {}
    failure = result.error
    if failure is not None:
        metadata["failure"] = {
            "code": failure.code,
            "reason": failure.reason,
            "kind": failure.kind,
            "retryable": failure.retryable,
            "details": failure.details,
        }
        if "layer" in failure.details:
            metadata["policy"] = {"layer": failure.details["layer"], "rule": failure.details.get("rule", "")}
    elif not all(isinstance(part, Text) for part in result.content) or len(result.content) > 1:
        metadata["parts"] = msgspec.to_builtins(result.content)
    return _stamped(
        call,
        content="" if failure is not None else result.text,
        error=failure.message if failure is not None else "",
        error_kind=wire_kind(failure) if failure is not None else "",
        metadata=metadata,
    )


# What a refusal says of a call that was not begun, so that nobody has to ask whether it took effect.
NOT_STARTED: Final[dict[str, Any]] = {"before_effect": True}


def refusal(call: CallMessage, error: str, kind: str, **metadata: Any) -> ResultMessage:
    """A result that whoever serves gives in the tool's place."""
    return _stamped(call, error=error, error_kind=kind, metadata=metadata)


def compact(call: CallMessage, size: int) -> ResultMessage:
    """Returns the result in place of one that is too large to be kept or sent."""
    return refusal(call, "too_large", "internal", size=size, failure={"kind": "too_large", "retryable": False})


def wire_kind(failure: ToolFailure) -> str:
    return _TO_WIRE.get(failure.kind, failure.kind)


def value_of(message: ResultMessage) -> Any:
    """Returns the tool's result: a text, or parts. Raises the `ToolError` that it reports."""
    if message.error or message.error_kind:
        raise _reported(message)
    if "parts" not in message.metadata:
        return message.content
    try:
        return _parts.decode(msgspec.json.encode(message.metadata["parts"]))
    except msgspec.DecodeError:
        raise ToolAnswerLost("the tool's server sent parts that are none") from None


def _reported(message: ResultMessage) -> ToolError:
    code, reason, kind, retryable = _FROM_WIRE.get(message.error_kind, _UNKNOWN)
    more = _object(message.metadata.get("failure"))
    more_kind = str(more.get("kind") or kind)
    error = reported_error(
        status="denied" if more_kind == "denied" else "error",
        code=str(more.get("code") or code),
        reason=str(more.get("reason") or reason),
        retryable=bool(more.get("retryable", retryable)),
        message=message.error or f"the tool failed ({message.error_kind})",
        details=_object(more.get("details")),
        kind=more_kind,
    )
    error.before_effect = error.before_effect or more.get("before_effect") is True
    return error


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _stamped(
    call: CallMessage, *, content: str = "", error: str = "", error_kind: str = "", metadata: dict[str, Any]
) -> ResultMessage:
    return ResultMessage(
        call_id=call.id,
        name=call.name,
        content=content,
        error=error,
        error_kind=error_kind,
        metadata=metadata,
        loop_id=call.loop_id,
        trace_id=call.trace_id,
        request_id=call.request_id,
        execution_id=call.execution_id,
        call_ordinal=call.call_ordinal,
    )
