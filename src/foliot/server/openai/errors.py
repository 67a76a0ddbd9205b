"""Errors in the shape that clients of OpenAI read: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from foliot.errors import FoliotError, InvalidInput, NotFound, SecretError, SecretMissing, Unavailable
from foliot.server.errors import InvalidParameters, KnownFailure, MethodNotAllowed, NoRoute, TooMany, Unauthenticated
from foliot.server.http.problems import RETRY_AFTER, problem_of, public_message
from foliot.server.http.responses import Json
from foliot.server.streams.pieces import Ended

log = logging.getLogger(__name__)

_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
# The official clients try again by themselves after 409, 429 and 5xx. A run that failed is not made better by a second.
NO_RETRY: Final = {"x-should-retry": "false"}


# The first words of the paths that clients of OpenAI call, whether there is something here or not.
_OPENAI: Final = frozenset(
    (
        *(
            "assistants",
            "audio",
            "batches",
            "chat",
            "completions",
            "containers",
            "conversations",
            "embeddings",
            "evals",
        ),
        *("files", "fine_tuning", "images", "models", "moderations", "realtime", "responses", "threads", "uploads"),
        *("vector_stores", "videos"),
    )
)
_SERVED: Final = "of OpenAI's API there are /v1/models, /v1/chat/completions and /v1/responses"
# What OpenAI serves at an address where something else is served here.
_ELSEWHERE: Final = {
    ("GET", "/v1/chat/completions"): "a chat is stored as a run: GET /v1/runs lists them",
    ("POST", "/v1/responses/compact"): "agents compact their own conversations: POST /v1/sessions/{id}/compact",
}
# Limits on what is paid for, apart from those on what an agent does.
SPENT: Final = frozenset({"tokens", "cost_usd"})


class BadRequest(InvalidInput):
    """A request that says what cannot be done. `param` is the member that is wrong."""

    code, http = "invalid_request", 400

    def __init__(self, message: str, *, param: str = "", hint: str | None = None, code: str = "") -> None:
        super().__init__(message, hint=hint, param=param, openai_code=code)


class RunFailed(KnownFailure):
    """The run that was asked for ended without an answer."""

    code = "run_failed"

    def __init__(self, ended: Ended, where: str) -> None:
        message = ended.error or f"the run was {ended.phase}"
        super().__init__(f"{message} (run {where})", hint=f"`foliot why {where}` tells the story")
        self.details = {"openai_code": ended.reason or ended.phase}
        self.ended = ended

    @property
    def status(self) -> int:
        if self.ended.phase == "cancelled":
            return 409
        return 429 if self.ended.code == "budget_exceeded" and self.ended.reason in SPENT else 500


def error_document(error: FoliotError) -> dict[str, Any]:
    """The `error` object. What concerns only this machine stays in its log."""
    status = status_of(error)
    message = public_message(error)
    message = message if not error.hint else f"{message} ({error.hint})"
    if isinstance(error, SecretError) and not isinstance(error, SecretMissing):
        log.error("a secret cannot be used: %s", error.message)
        message = "a secret of this server cannot be sealed or opened; its log says more"
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    code = error.details.get("openai_code") or error.code
    return {"message": message, "type": kind, "param": error.details.get("param") or None, "code": code}


def status_of(error: FoliotError) -> int:
    if isinstance(error, RunFailed):
        return error.status
    # These clients know 400 for what is wrong in a request, and treat 422 as something else.
    return 400 if error.http == 422 else error.http


def report(scope: Scope, error: FoliotError) -> Response:
    """The answer for an error: a problem, or what clients of OpenAI read where they call."""
    path: str = scope["path"]
    if path.startswith("/v1/") and path.split("/", 3)[2] in _OPENAI:
        return error_response(_as_openai(error, scope["method"], path))
    return problem_of(error)


def _as_openai(error: FoliotError, method: str, path: str) -> FoliotError:
    """Name the paths that are served, for one that OpenAI serves and Foliot does not; and the first wrong parameter."""
    if isinstance(error, MethodNotAllowed) and (method, path) in _ELSEWHERE:
        return NotFound(f"there is no {method} {path}", hint=_ELSEWHERE[method, path], openai_code="unknown_url")
    if isinstance(error, NoRoute):
        return NotFound(f"there is nothing at {path[:200]}", hint=_SERVED, openai_code="unknown_url")
    if isinstance(error, InvalidParameters):
        first = error.faults[0]
        return BadRequest(f"{first.name} {first.message}", param=first.name)
    return error


def error_response(error: FoliotError) -> Json:
    """The answer for an error."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="foliot"'
    elif isinstance(error, TooMany | Unavailable):
        headers["Retry-After"] = str(error.details.get("retry_after", RETRY_AFTER))
    elif isinstance(error, MethodNotAllowed):
        headers["Allow"] = str(error.details.get("allow", ""))
    elif status_of(error) >= 409:
        headers |= NO_RETRY
    return Json({"error": error_document(error)}, status_of(error), headers)


def no_such_model(word: str) -> NotFound:
    """Builds the error for a model that is missing, or hidden from the caller."""
    return NotFound(
        f"the model {word!r} does not exist or you do not have access to it",
        hint="a model is the name of an agent or a system; GET /v1/models lists them",
        param="model",
        openai_code="model_not_found",
    )
