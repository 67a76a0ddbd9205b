"""Errors as problem details (RFC 9457): `application/problem+json` with a `code` that never changes.

{"type": "https://foliot.dev/problems/not_found", "title": "Not Found", "status": 404, "code": "not_found",
 "detail": "there is no Agent/x in namespace 'default'", "hint": "…", "errors": [{"field": "spec.model_ref", …}]}
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from foliot.errors import Denied, FoliotError, SecretError, SecretMissing, Unavailable
from foliot.resources.field_owners import FieldConflict
from foliot.resources.problems import ManifestError
from foliot.runtime.outcomes import InUse
from foliot.server.errors import InvalidParameters, KnownFailure, MethodNotAllowed, TooMany, Unauthenticated

log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[Scope, FoliotError], Response]
"""The answer for an error of a request."""

MEDIA_TYPE: Final = "application/problem+json"
TYPES: Final = "https://foliot.dev/problems/"
RETRY_AFTER: Final = "2"
# An answer is for people: it is never a second copy of what they sent.
MOST_ERRORS: Final = 200
LONGEST: Final = 2000
TOLD_EVERY: Final = 10.0
_last_told: Final[dict[str, float]] = {}
# Codes of what the framework itself refuses.
_CODES: Final[Mapping[int, str]] = {404: "not_found", 405: "method_not_allowed", 400: "invalid", 413: "too_large"}


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str | None = None,
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Response:
    """The response for one problem."""
    document: dict[str, Any] = {
        "type": TYPES + code,
        "title": _title(status),
        "status": status,
        "code": code,
        "detail": _short(detail),
    }
    if hint:
        document["hint"] = _short(hint)
    if errors:
        document["errors"] = [{key: _short(value) for key, value in each.items()} for each in errors[:MOST_ERRORS]]
    document.update((key, value) for key, value in more.items() if value not in (None, ""))
    return Response(msgspec.json.encode(document), status, headers, MEDIA_TYPE)


def problem_of(error: FoliotError) -> Response:
    """Converts an error into a problem response. Details that concern only this machine stay in its log."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="foliot"'
    elif isinstance(error, TooMany | Unavailable):
        headers["Retry-After"] = str(error.details.get("retry_after", RETRY_AFTER))
    elif isinstance(error, MethodNotAllowed):
        headers["Allow"] = str(error.details.get("allow", ""))
    if isinstance(error, SecretError) and not isinstance(error, SecretMissing):
        log.error("a secret cannot be used: %s", error.message)
        return problem(500, error.code, "a secret of this server cannot be sealed or opened; its log says more")
    errors: Sequence[Mapping[str, Any]] = ()
    if isinstance(error, ManifestError):
        errors = findings_of(error)
    elif isinstance(error, InvalidParameters):
        errors = [{"field": f"{each.place}.{each.name}", "message": each.message} for each in error.faults]
    message = public_message(error)
    conflicts = error.details["conflicts"] if isinstance(error, FieldConflict) else None
    tasks = error.details["tasks"] if isinstance(error, InUse) else None
    return problem(
        error.http,
        error.code,
        message,
        hint=error.hint,
        errors=errors,
        headers=headers,
        conflicts=conflicts,
        tasks=tasks,
    )


def public_message(error: FoliotError) -> str:
    """Tell an error without where the store is: that is for the log of this machine."""
    if (place := error.details.get("place")) is None:
        return error.message
    _store_is_away(error.message)
    return error.message.replace(f" at {place}", "").replace(f" {place}", "")


def findings_of(error: ManifestError) -> list[dict[str, Any]]:
    """Every problem of a manifest with its place."""
    return [
        {
            "field": finding.field,
            "message": finding.message,
            "severity": finding.severity,
            **{
                name: value
                for name, value in (
                    # What was checked against the store has no file, and names the resource in its place.
                    ("file", "" if finding.line else finding.file),
                    ("at", "key" if finding.problem.at == "key" else ""),
                    ("line", finding.line),
                    ("column", finding.column),
                    ("kind", finding.kind),
                    ("name", finding.name),
                    ("hint", finding.problem.hint),
                    ("expected", finding.problem.expected),
                )
                if value
            },
        }
        for finding in error.findings
    ]


async def answer_to(error: FoliotError | HTTPException, scope: Scope, report: Report) -> Response:
    """Returns the answer to a request that ended with this error: what `report` says of it."""
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "http_error")
        detail = "there is nothing at this path" if error.status_code == 404 else str(error.detail)
        return problem(error.status_code, code, detail, headers=error.headers)
    if isinstance(error, Denied):
        from foliot.server.auth.logins import tell_denied  # which needs to know what a request is

        await tell_denied(Request(scope), error)
    if error.http >= 500 and not isinstance(error, Unavailable | KnownFailure):
        log.error("a request failed: %s", error.message, exc_info=error)
    return report(scope, error)


def _store_is_away(message: str) -> None:
    """Every request finds out; the log hears of it now and then."""
    now = time.monotonic()
    if now - _last_told.get("store", -TOLD_EVERY) >= TOLD_EVERY:
        _last_told["store"] = now
        log.warning("the store cannot be used: %s", message)


def _short(value: Any) -> Any:
    """A text that is too long loses its middle."""
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    return f"{value[: LONGEST // 2]} … {value[-LONGEST // 2 :]}"


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
