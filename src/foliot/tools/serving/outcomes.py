"""From a result to the message that carries it, and back, without losing what kind of failure it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from foliot.kernel.messages import Media, Text, ToolFailure, ToolResult
from foliot.tools.base import ToolAnswerLost, ToolError
from foliot.tools.error_text import reported_error
from foliot.tools.serving.messages import CallMessage, ResultMessage

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
    """In place of a result that is too large to be kept or sent."""
    return refusal(call, "too_large", "internal", size=size, failure={"kind": "too_large", "retryable": False})


def wire_kind(failure: ToolFailure) -> str:
    return _TO_WIRE.get(failure.kind, failure.kind)


def value_of(message: ResultMessage) -> Any:
    """What the tool returned: a text, or parts. Raises the `ToolError` that it reports."""
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
