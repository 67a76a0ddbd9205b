"""From what a server answered to what a tool returns or raises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from foliot.kernel.messages import Media, Text
from foliot.tools.base import (
    ToolArgumentsInvalid,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolError,
    ToolRateLimited,
    ToolTimeout,
    ToolUnreachable,
    ToolUnsupported,
)
from foliot.tools.mcp.http import Exchange
from foliot.tools.mcp.process import ServerSpec
from foliot.tools.outbound.client import ToolAnswerTooLarge

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp_types import CallToolResult, ContentBlock

LONGEST_MESSAGE: Final = 4000
BAD_REQUEST: Final = 400
TOO_MANY_REQUESTS: Final = 429
SERVER_ERROR: Final = 500
TOO_LARGE: Final = -32095
"""The code by which our own transport fails a call whose answer was not read, because it was too long."""
FROM_A_GATEWAY: Final = frozenset({502, 504})
BY_STATUS: Final[dict[int, type[ToolError]]] = {
    401: ToolAuthInvalid,
    403: ToolAuthForbidden,
    404: ToolUnsupported,
    408: ToolTimeout,
    TOO_MANY_REQUESTS: ToolRateLimited,
}
WHAT: Final = {
    401: "does not accept the credentials",
    403: "does not allow this caller to do that",
    404: "has nothing at this address",
    408: "took too long",
    TOO_MANY_REQUESTS: "is called too often",
}


def parts_of(result: CallToolResult) -> list[Text | Media]:
    """The parts for the model. Structured content is added unless a text says the same already."""
    parts = [part for block in result.content for part in _parts(block)]
    structured = result.structured_content
    texts = [part.text for part in parts if isinstance(part, Text)]
    if structured is not None and not _said(texts, structured):
        parts.append(Text(json.dumps(structured, ensure_ascii=False)))
    return parts or [Text("")]


def _parts(block: ContentBlock) -> Iterator[Text | Media]:
    match block.type:
        case "text":
            yield Text(block.text)
        case "image" | "audio":
            yield Media(block.mime_type, data=block.data)
        case "resource":
            resource = block.resource
            if (blob := getattr(resource, "blob", None)) is not None:
                yield Media(resource.mime_type or "application/octet-stream", data=blob, name=str(resource.uri))
            else:
                yield Text(getattr(resource, "text", ""))
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            yield Text(f"{block.title or block.name} <{block.uri}>{about}")


def _said(texts: list[str], structured: Any) -> bool:
    """Whether the texts hold the structured value: in one, or item by item. SDKs wrap what is no object in `result`."""
    candidates = [structured]
    if isinstance(structured, dict) and list(cast("dict[str, Any]", structured)) == ["result"]:
        candidates.append(structured["result"])
    for value in candidates:
        if any(_says(text, value) for text in texts):
            return True
        if isinstance(value, list):
            items = cast("list[Any]", value)
            if len(items) == len(texts) and all(map(_says, texts, items)):
                return True
    return False


def _says(text: str, value: Any) -> bool:
    if text == value:
        return True
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def reported_error(server: ServerSpec, tool: str, result: CallToolResult) -> ToolError:
    """The server carried the call out and says that it failed."""
    text = "\n".join(part.text for part in parts_of(result) if isinstance(part, Text) and part.text.strip())
    return ToolError(text[:LONGEST_MESSAGE] or "the tool failed and did not say why", **_where(server, tool))


def protocol_error(server: ServerSpec, tool: str, error: MCPError, exchange: Exchange, *, lost: str) -> ToolError:
    """The server did not answer with a result. `lost` is why the connection ended, if it did."""
    import mcp_types as types

    where = _where(server, tool)
    if isinstance(exchange.failure, ToolError):
        failure = exchange.failure
        failure.details.update(where)
        failure.before_effect = not exchange.sent
        return failure
    # With 400 a server of the current revision says what is wrong in the words of the protocol, also in mid-call.
    if exchange.status is not None and (exchange.status != BAD_REQUEST or error.code == types.INTERNAL_ERROR):
        return refusal(server, exchange, tool)
    message = f"{server} refused the call of {tool!r}: {error.message[:LONGEST_MESSAGE]}"
    match error.code:
        case types.INVALID_PARAMS:
            return ToolArgumentsInvalid(message, **where)
        case types.METHOD_NOT_FOUND:
            return ToolUnsupported(message, **where)
        case code if code == TOO_LARGE:
            return ToolAnswerTooLarge(
                f"{server}: the call of {tool!r}: {error.message}; the answer was not used", **where
            )
        case types.REQUEST_TIMEOUT:
            return ToolTimeout(f"{server} did not answer the call of {tool!r} in time", **where)
        case types.CONNECTION_CLOSED:
            gone = ToolUnreachable(
                f"{server} went away during the call of {tool!r}" + (f": {lost}" if lost else ""), **where
            )
            gone.before_effect = not exchange.sent
            return gone
        case types.INVALID_REQUEST:
            # Also what refuses a server that wants to ask the user or the model something in the middle of a call.
            return ToolError(message, retryable=False, **where)
        case _:
            return ToolError(message, **where)


def refusal(server: ServerSpec, exchange: Exchange, tool: str = "") -> ToolError:
    """Translates an HTTP status into the error of a call."""
    status = exchange.status or 0
    kind = BY_STATUS.get(status, ToolError)
    what = WHAT.get(status, "failed")
    error = kind(f"{server} {what} (HTTP {status})", **_where(server, tool), status=str(status))
    if kind is ToolError:
        error.retryable = status >= SERVER_ERROR
    error.before_effect = status < SERVER_ERROR
    error.lost = error.lost or status in FROM_A_GATEWAY
    error.retry_after = exchange.retry_after
    return error


def _where(server: ServerSpec, tool: str) -> dict[str, Any]:
    where = {"mcp_server": server.name, "mcp_tool": tool}
    return {key: value for key, value in where.items() if value}
