"""A tool's error as data and back, and its one stable line of text.

The line is read by programs (`tool_status=error tool_code=timeout … message=…`), so its form never changes. Nothing in
Foliot reads it to decide anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from foliot.tools.base import (
    ToolArgumentsInvalid,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolCancelled,
    ToolDenied,
    ToolError,
    ToolIsolationMissing,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolSecretMissing,
    ToolTimeout,
    ToolUnreachable,
    ToolUnsupported,
)

Status: TypeAlias = Literal["error", "denied"]
LONGEST_WAIT: Final = 3600.0
# The reason that a server of tools gives for a call which it may have carried out before.
UNKNOWN_EFFECT: Final = "unknown_effect"
NO_MESSAGE: Final = "tool execution failed"

_BY_CODE: Final[Mapping[str, type[ToolError]]] = {
    error.code: error
    for error in (
        ToolError,
        ToolArgumentsInvalid,
        ToolUnsupported,
        ToolPolicyInvalid,
        ToolIsolationMissing,
        ToolDenied,
        ToolSecretMissing,
        ToolAuthInvalid,
        ToolAuthForbidden,
        ToolTimeout,
        ToolCancelled,
    )
}
_BY_KIND: Final[Mapping[str, type[ToolError]]] = {"rate_limited": ToolRateLimited, "network": ToolUnreachable}
_KINDS: Final = frozenset(
    {
        *("timeout", "cancelled", "network", "external", "internal", "rate_limited", "too_large"),
        *("invalid_arguments", "unknown_tool", "not_found", "permission", "denied", "policy_denied"),
        *("dependency_failed", "precondition_failed", "version_mismatch"),
    }
)


def error_text(error: BaseException) -> str:
    """`tool_status=… tool_code=… tool_reason=… retryable=… message=…`, then each detail in order of its key."""
    status, data = error_as_data(error)
    line = (
        f"tool_status={status} tool_code={data['code']} tool_reason={data['reason']} "
        f"retryable={'true' if data['retryable'] else 'false'} message={data['message']}"
    )
    return " ".join((line, *(f"{key}={value}" for key, value in sorted(data["details"].items()))))


def error_as_data(error: BaseException) -> tuple[Status, dict[str, Any]]:
    """Status, and code, reason, retryable, message, details and kind. What is no `ToolError` is classified by type."""
    if not isinstance(error, ToolError):
        error = _classified(error)
    return error.status, {
        "code": error.code,
        "reason": error.reason,
        "retryable": bool(error.retryable),
        "message": error.message.strip() or str(error.__cause__ or "").strip() or NO_MESSAGE,
        "details": clean_details(error.details),
        "kind": error.kind,
    }


def reported_error(
    *,
    status: str = "error",
    code: str = "",
    reason: str = "",
    retryable: bool = False,
    message: str = "",
    details: Mapping[str, Any] | None = None,
    kind: str = "",
) -> ToolError:
    """The error that a service reports, with its own code and reason. A code we know gives the class that we know."""
    code, reason = code.strip() or ToolError.code, reason.strip() or ToolError.reason
    denied = status.strip().lower() == "denied"
    made = _BY_CODE.get(code, ToolError)
    if made is ToolError:
        made = _BY_KIND.get(kind, ToolError)
    if denied and not issubclass(made, ToolDenied):
        made = ToolDenied
    error = made(message.strip() or NO_MESSAGE, retryable=retryable)
    error.details = clean_details(details or {})
    known_kind = kind if kind in _KINDS else made.kind
    # The class says what is usual; this one object says what was reported.
    vars(error).update(status="denied" if denied else "error", code=code, reason=reason, kind=known_kind)
    error.lost = error.lost or reason == UNKNOWN_EFFECT or known_kind == "too_large"
    error.retry_after = retry_seconds(error.details.get("retry_after", ""))
    return error


def is_denied(error: BaseException) -> bool:
    """Whether a rule said no. Goes by class, status, code and reason, never by the text."""
    return isinstance(error, ToolError) and (
        isinstance(error, ToolDenied)
        or error.status == "denied"
        or error.code == ToolDenied.code
        or error.reason == ToolDenied.reason
    )


def clean_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Texts by key, trimmed, blank ones left out."""
    pairs = ((str(key).strip(), "" if value is None else str(value).strip()) for key, value in details.items())
    return {key: value for key, value in pairs if key and value}


def retry_seconds(text: str) -> float | None:
    """A wait in seconds, at most an hour; None when the text is no such thing."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, LONGEST_WAIT) if seconds >= 0 else None


def _classified(error: BaseException) -> ToolError:
    text = str(error).strip()
    if isinstance(error, TimeoutError):
        return ToolTimeout(text or "the tool did not answer in time")
    if isinstance(error, asyncio.CancelledError):
        return ToolCancelled(text or "the call was cancelled")
    return ToolError(text)
