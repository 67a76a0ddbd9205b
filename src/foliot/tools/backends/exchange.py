"""One authorised request of a tool, and what the status of its answer means.

Shared by all backends that speak HTTP, so that a status means the same whichever of them met it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Final

from foliot.tools.auth import Credentials, ToolAuth
from foliot.tools.base import (
    Invocation,
    ToolAuthForbidden,
    ToolAuthInvalid,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolRateLimited,
    ToolTimeout,
)
from foliot.tools.error_text import LONGEST_WAIT, retry_seconds
from foliot.tools.masking import Masker
from foliot.tools.outbound.client import Answer, OutboundClient

_EXCERPT: Final = 400
_ERROR_BODY: Final = 16 * 1024
# Not the tool's own word: what stands before it heard nothing from it, or lost the connection to it.
_FROM_A_GATEWAY: Final = frozenset({502, 504})


class Exchange:
    """Requests of one tool."""

    def __init__(self, definition: ToolDefinition, client: OutboundClient, auth: ToolAuth) -> None:
        self._definition = definition
        self._client = client
        self._auth = auth

    @property
    def masker(self) -> Masker:
        return self._auth.masker

    @asynccontextmanager
    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[Answer]:
        """The answer of a server that did not refuse. Raises the error that its status means.

        When the credentials are not accepted (401), they are looked up once more (a token is fetched anew, a secret may
        have been changed meanwhile), and if there are others the request is made once more: the server did nothing the
        first time.
        """
        tool = self._definition
        patience = self._client.patience.of(tool.timeout)
        used = await self._credentials()
        for last in (False, True):
            async with self._client.send(
                method, url, headers=headers, credentials=used.headers, body=body, patience=patience
            ) as answer:
                if answer.status == 401 and tool.auth is not None and not last:
                    refused, used = used, await self._renewed(used)
                    if used.headers != refused.headers:
                        continue
                if answer.status >= 300:
                    raise await self._refusal(answer)
                yield answer
                return

    async def _credentials(self) -> Credentials:
        tool = self._definition
        return await self._auth.credentials(tool.auth, namespace=tool.namespace, tool=tool.name)

    async def _renewed(self, refused: Credentials) -> Credentials:
        self._auth.evict(self._definition.auth, refused)
        return await self._credentials()

    async def _refusal(self, answer: Answer) -> ToolError:
        body = (await answer.beginning(_ERROR_BODY)).decode(errors="replace")
        # First redacted, then cut: the half of a secret would not be recognised.
        return status_error(self._definition.name, answer.status, answer.headers, self.masker.redact(body))


def status_error(tool: str, status: int, headers: Mapping[str, str], body: str) -> ToolError:
    """What an HTTP status says about a call."""
    excerpt = body.strip().encode()[:_EXCERPT].decode(errors="ignore")
    message = f"tool={tool} HTTP {status}: {excerpt}"
    details: dict[str, Any] = {"tool": tool, "http_status": str(status)}
    match status:
        case 401:
            return ToolAuthInvalid(message, **details)
        case 403:
            return ToolAuthForbidden(message, **details)
        case 429:
            error: ToolError = ToolRateLimited(message, **details)
        case _:
            error = ToolError(message, retryable=status >= 500, **details)
            error.lost = status in _FROM_A_GATEWAY
    error.retry_after = retry_after(headers)
    return error


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """The wait that a server asks for, in seconds, at most an hour; None when it asks for none."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    seconds = retry_seconds(text)
    if seconds is not None:
        return seconds
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - (time.time() if now is None else now), 0.0), LONGEST_WAIT)


def endpoint_of(definition: ToolDefinition) -> str:
    """Where the tool is. Raises `ToolPolicyInvalid` when nobody said."""
    if not definition.endpoint.strip():
        raise ToolPolicyInvalid(
            f"tool {definition.name!r} has no endpoint", hint="set spec.endpoint of the Tool", tool=definition.name
        )
    return definition.endpoint.strip()


def check_deadline(call: Invocation) -> None:
    """Raises `ToolTimeout` when nobody waits for the result any more: then nothing is begun."""
    if call.deadline is not None and time.time() >= call.deadline:
        late = ToolTimeout(f"the deadline of {call.tool!r} had passed before the tool was asked", sent="no")
        late.before_effect = True
        raise late


@contextmanager
def explained(masker: Masker, **details: str) -> Generator[None]:
    """What goes wrong inside says where it was, and no secret."""
    try:
        yield
    except ToolError as error:
        for key, value in details.items():
            error.details.setdefault(key, value)
        masker.scrub(error)
        raise
