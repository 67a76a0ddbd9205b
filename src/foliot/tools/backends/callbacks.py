"""Results that are pushed: who waits for which, and the address that a tool is told to push to.

The address is signed and ends with the call, so that only who was asked can answer, and only in time. The HTTP route
that receives a push calls `accept`; one result is taken for each request, every later one is refused.

Waiting calls are known to this process only. A push has to reach the process that made the call; where several serve
one address, the one that receives it must pass it on, or the tool be polled.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote

from foliot.errors import Denied
from foliot.tools.base import ToolError
from foliot.tools.contract import PENDING, ToolResponse, decode_response

PATH: Final = "/v1/tool-callbacks"
DEFAULT_LIFE: Final = 3600.0


class Callbacks:
    """The pushes that one process waits for. `base_url` is its public address, blank when it has none.

    `key` signs addresses; processes that share an address share the key.
    """

    def __init__(self, base_url: str = "", *, key: bytes | None = None, clock: Callable[[], float] = time.time) -> None:
        self._base = base_url.rstrip("/")
        self._key = key or secrets.token_bytes(32)
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[ToolResponse]] = {}

    def url(self, request_id: str, *, deadline: float | None = None) -> str:
        """Where the result of this request can be pushed to; blank when there is no public address."""
        if not self._base:
            return ""
        until = str(int(deadline if deadline is not None else self._clock() + DEFAULT_LIFE) + 1)
        signature = self._sign(request_id, until)
        return f"{self._base}{PATH}/{quote(request_id, safe='')}?until={until}&signature={signature}"

    @contextmanager
    def expect(self, request_id: str) -> Generator[asyncio.Future[ToolResponse]]:
        """Wait for a push as long as the block lasts. Raises `ToolError` when somebody waits for the same already."""
        if request_id in self._waiting:
            raise ToolError("the same call is waited for already", retryable=False)
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            yield future
        finally:
            self._waiting.pop(request_id, None)
            future.cancel()

    def deliver(self, request_id: str, response: ToolResponse) -> bool:
        """Hand over a result. True exactly once for a request that is waited for; False for any other.

        May be called from any thread.
        """
        if response.status in PENDING or response.request_id.strip() not in ("", request_id):
            return False
        future = self._waiting.pop(request_id, None)
        if future is None:
            return False
        future.get_loop().call_soon_threadsafe(_settle, future, response)
        return True

    def accept(self, request_id: str, *, until: str, signature: str, body: bytes) -> bool:
        """What the HTTP route does with a push. True when it was taken, False when nobody waits for it (any more).

        Raises `Denied` for an address that was not given out here or has ended, `ToolError` for a body that is no
        response.
        """
        if not hmac.compare_digest(self._sign(request_id, until).encode(), signature.encode()):
            raise Denied("the signature of this callback address is not right")
        if self._clock() >= int(until):
            raise Denied("this callback address has ended")
        return self.deliver(request_id, decode_response(body))

    def _sign(self, request_id: str, until: str) -> str:
        return hmac.new(self._key, f"{request_id}\n{until}".encode(), hashlib.sha256).hexdigest()


def _settle(future: asyncio.Future[ToolResponse], response: ToolResponse) -> None:
    if not future.done():
        future.set_result(response)
