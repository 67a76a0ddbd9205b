"""Problem details (RFC 9457) back into the errors they were made from: the same class, text, hint and exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from foliot.errors import (
    Conflict,
    Denied,
    FoliotError,
    Gone,
    InactiveAgent,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    SecretError,
    SecretMissing,
    Unavailable,
    UsageError,
)
from foliot.resources.field_owners import FieldConflict
from foliot.resources.problems import Finding, ManifestError, Path, Problem
from foliot.runtime.outcomes import InUse
from foliot.store.journal.base import RunHeld, RunTaken
from foliot.store.sessions.base import SessionArchived, SessionBusy
from foliot.tools.base import ToolIsolationMissing

BODY: Final = "request body"
MOST_SHOWN: Final = 200
_BY_CODE: Final[Mapping[str, type[FoliotError]]] = {
    each.code: each
    for each in (
        *(InvalidInput, UsageError, NotFound, Conflict, OutcomeUnknown, Gone, Denied, InactiveAgent),
        *(SecretError, SecretMissing, Unavailable, FieldConflict, InUse, RunTaken, RunHeld),
        *(SessionArchived, SessionBusy, ToolIsolationMissing),
    )
}
# For a code that this version does not know, and for what a proxy in between says in its own words.
_BY_STATUS: Final[Mapping[int, type[FoliotError]]] = {
    400: UsageError,
    401: Denied,
    403: Denied,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    412: Conflict,
    413: InvalidInput,
    422: InvalidInput,
    428: InvalidInput,
    429: Unavailable,
    431: InvalidInput,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
_STEP: Final = re.compile(r'\[(\d+)\]|\["((?:[^"]|"(?!\]))*)"\]|\.?([^.\[\]]+)')


def error_of(status: int, body: bytes, *, where: str, retry_after: float | None = None) -> FoliotError:
    """The error that an answer tells of. `where` is said when the answer is not one of a Foliot server."""
    told = _decoded(body)
    code, detail = str(told.get("code", "")), str(told.get("detail", ""))
    hint = str(told["hint"]) if told.get("hint") else None
    findings = told.get("errors")
    if code == ManifestError.code and isinstance(findings, list):
        return ManifestError([_finding(each) for each in cast("list[Any]", findings)], hint=hint)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, FoliotError)
    if not detail:
        detail = f"{where} answered {status}, and not as a Foliot server does"
        hint = hint or "check the address of the server"
    if status == 401:
        hint = (
            "give a good token: FOLIOT_TOKEN, --token-file, or `foliot context set`. Whoever started the server "
            "needs none on its machine, with the same FOLIOT_HOME"
        )
    more: dict[str, Any] = {} if retry_after is None else {"retry_after": retry_after}
    if kind is FieldConflict:
        more["conflicts"] = told.get("conflicts") or []
    if isinstance(told.get("tasks"), list):
        more["tasks"] = told["tasks"]
    return kind(detail, hint=hint, server_code=code, status=status, **more)


def path_of(field: str) -> Path:
    """The path that `render_path` has shown as this text."""
    steps: list[str | int] = []
    for index, quoted, plain in _STEP.findall(field):
        steps.append(int(index) if index else quoted or plain)
    return tuple(steps)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _finding(told: Mapping[str, Any]) -> Finding:
    problem = Problem(
        path_of(str(told.get("field", ""))),
        str(told.get("message", "")),
        told.get("hint"),
        told.get("expected"),
        "warning" if told.get("severity") == "warning" else "error",
        "key" if told.get("at") == "key" else "value",
    )
    kind, name = told.get("kind"), told.get("name")
    file = str(told.get("file") or BODY)
    # A line of the body that was sent means nothing to whoever wrote the files it was made from.
    placed = {} if file == BODY else {"line": told.get("line"), "column": told.get("column")}
    return Finding(problem, file, kind=kind, name=name, **placed)
