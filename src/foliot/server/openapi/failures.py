"""How operations fail: one response for each status, shared by all, and which of them a route can give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from foliot.server.http.problems import MEDIA_TYPE
from foliot.server.openapi.schema import SCHEMAS, TEXT, Schema, ref

RESPONSES: Final = "#/components/responses/"
# Names are part of the contract: generators make types of them.
NAMES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("Unreadable", "The request cannot be read: a parameter, a header, or a body that is not what it says it is."),
    401: ("Unauthenticated", "Who calls is not known: no token, or one that is wrong, expired or revoked."),
    403: ("Denied", "The caller has not the role that this needs."),
    404: ("NotFound", "There is nothing of this name, or it is not the caller's to see."),
    405: ("MethodNotAllowed", "There is something at this path, but not for this method."),
    408: ("TooSlow", "The body did not come in time."),
    409: ("Conflict", "It changed meanwhile, is there already, or cannot be done to it as it stands."),
    410: ("Gone", "It is no longer kept, or nobody waits for it any more."),
    412: ("PreconditionFailed", "`If-Match` does not hold."),
    413: ("TooLarge", "The address or the body is larger than this server takes."),
    415: ("UnsupportedMediaType", "The body is not of a content type that can be taken here."),
    422: ("Invalid", "The body can be read, and breaks a rule: `errors` says which, and where."),
    428: ("PreconditionRequired", "An update that does not say which version it is about."),
    429: ("TooMany", "More requests, or more streams, than this server takes from one caller."),
    431: ("HeadersTooLarge", "The headers are larger than this server takes."),
    500: ("Mistake", "This server made a mistake; its log has more under the id of the request."),
    503: ("Unavailable", "A part that is needed does not answer; trying again may help."),
}
# What stands in front of every route can refuse any request with these.
ALWAYS: Final = (400, 413, 429, 431, 500, 503)
_HEADERS: Final[Mapping[int, Mapping[str, Schema]]] = {
    401: {"WWW-Authenticate": {"schema": TEXT}},
    405: {"Allow": {"schema": TEXT, "description": "The methods that there are, with commas between."}},
    429: {"Retry-After": {"schema": TEXT, "description": "Seconds."}},
    503: {"Retry-After": {"schema": TEXT, "description": "Seconds."}},
}
OPENAI: Final = ("/v1/models", "/v1/chat/completions", "/v1/responses")


def responses() -> dict[str, Any]:
    """The components that operations refer to; those of the OpenAI-compatible routes have another shape beside."""
    made: dict[str, Any] = {}
    for status, (name, text) in NAMES.items():
        problem = {MEDIA_TYPE: {"schema": ref("Problem")}}
        common: dict[str, Any] = {"description": text}
        if status in _HEADERS:
            common["headers"] = {key: dict(value) for key, value in _HEADERS[status].items()}
        made[name] = {**common, "content": problem}
        openai = {"application/json": {"schema": {"$ref": SCHEMAS + "OpenAiError"}}}
        made[f"OpenAi{name}"] = {**common, "content": {**problem, **openai}}
    return made


def failures(path: str, where: str, *, body: bool, more: Iterable[int]) -> dict[str, Any]:
    """The responses of an operation that are failures, by status. `where` is that of its rule."""
    found = {*ALWAYS, *more}
    if where != "public":
        found |= {401, 403}
    if where in ("everywhere", "named", "inside") or "{" in path:
        found.add(404)
    openai = path.startswith(OPENAI)
    if body:
        found |= {408} if openai else {408, 422}
    prefix = "OpenAi" if openai else ""
    return {str(status): {"$ref": f"{RESPONSES}{prefix}{NAMES[status][0]}"} for status in sorted(found)}
