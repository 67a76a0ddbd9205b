"""Results that are pushed: who waits for which, and the address that a tool is told to push to.

The address is signed and ends with the call, so that only who was asked can answer, and only in time. The HTTP route
that receives a push calls `accept`; one result is taken for each request, every later one is refused.

Processes that share a store share the key that signs, and what was pushed (`Shared`): any of them takes a push, and the
one that waits looks for it there. Without a store a push has to reach the process that made the call.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Protocol
from urllib.parse import quote

from foliot.common.cancellation import stop_tasks
from foliot.common.threads import unhurried
from foliot.errors import Denied, FoliotError
from foliot.tools.base import ToolError
from foliot.tools.contract import PENDING, ToolResponse, decode_response

PATH: Final = "/v1/tool-callbacks"
DEFAULT_LIFE: Final = 3600.0
LOOK_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class Shared(Protocol):
    """Pushes as all processes know them: `foliot.store.ledger.pushes`."""

    async def key(self) -> bytes: ...
    async def expect(self, request_id: str, until: float) -> None: ...
    async def take(self, request_id: str, body: bytes) -> bool: ...
    async def pushed(self, request_id: str) -> bytes | None: ...
    async def forget(self, request_id: str) -> None: ...


class Callbacks:
    """The pushes that one process waits for. `base_url` is its public address, blank when it has none.

    `key` signs addresses; with `shared`, it is the one of the store.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        key: bytes | None = None,
        clock: Callable[[], float] = time.time,
        shared: Shared | None = None,
        look_every: float = LOOK_SECONDS,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._key = key or secrets.token_bytes(32)
        self._clock = clock
        self._shared = shared if self._base else None
        self._look_every = look_every
        self._agreed = False
        self._waiting: dict[str, asyncio.Future[ToolResponse]] = {}

    @property
    def announced(self) -> bool:
        """Whether tools are told where to push to."""
        return bool(self._base)

    @asynccontextmanager
    async def waiting(
        self, request_id: str, *, until: float
    ) -> AsyncGenerator[tuple[str, asyncio.Future[ToolResponse]]]:
        """The address to push to until then, and what will be pushed, to whichever process. Raises like `expect`,
        and `FoliotError` when the store does not answer.
        """
        with self.expect(request_id) as future:
            if self._shared is None:
                yield self.url(request_id, deadline=until), future
                return
            await self._agree()
            await self._shared.expect(request_id, until)
            looking = asyncio.create_task(self._look(self._shared, request_id, future), name=f"push {request_id}")
            try:
                yield self.url(request_id, deadline=until), future
            except asyncio.CancelledError:
                # The call may go on in another process, which waits for the same push: it is forgotten in time.
                await stop_tasks(looking)
                raise
            except BaseException:
                await self._over(request_id, looking)
                raise
            else:
                await self._over(request_id, looking)

    async def _over(self, request_id: str, looking: asyncio.Task[None]) -> None:
        await stop_tasks(looking)
        if self._shared is not None:
            with suppress(FoliotError):  # it is forgotten in time
                await self._shared.forget(request_id)

    async def _agree(self) -> None:
        if self._shared is not None and not self._agreed:
            self._key, self._agreed = await self._shared.key(), True

    async def _look(self, shared: Shared, request_id: str, future: asyncio.Future[ToolResponse]) -> None:
        """Polls the store until the result has reached another process, or an earlier one that has ended."""
        while not future.done():
            try:
                body = await shared.pushed(request_id)
            except FoliotError as error:
                log.warning("what was pushed for %s cannot be looked up: %s", request_id, error.message)
                body = None
            if body is not None:
                self._waiting.pop(request_id, None)
                _settle(future, await unhurried(len(body), decode_response, body))
                return
            await asyncio.sleep(self._look_every)

    def url(self, request_id: str, *, deadline: float | None = None) -> str:
        """Returns the URL to which the result of this request can be pushed; blank when there is no public address."""
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
        if not _ends(request_id, response):
            return False
        future = self._waiting.pop(request_id, None)
        if future is None:
            return False
        future.get_loop().call_soon_threadsafe(_settle, future, response)
        return True

    async def take(self, request_id: str, *, until: str, signature: str, body: bytes) -> bool:
        """Take a push from the HTTP route, whichever process waits for it. As `accept`, and raises `FoliotError`
        when the store does not answer: then it has to be pushed again.
        """
        if self._shared is None:
            return self.accept(request_id, until=until, signature=signature, body=body)
        await self._agree()
        if not self._signed(request_id, until, signature):
            self._agreed = False  # the key may have been made anew
            await self._agree()
        self._check(request_id, until, signature)
        response = await unhurried(len(body), decode_response, body)
        if not _ends(request_id, response) or not await self._shared.take(request_id, body):
            return False
        self.deliver(request_id, response)  # at once, if it is this process that waits
        return True

    def accept(self, request_id: str, *, until: str, signature: str, body: bytes) -> bool:
        """Take a push for this process alone. True when it was taken, False when nobody waits for it (any more).

        Raises `Denied` for an address that was not given out here or has ended, `ToolError` for a body that is no
        response.
        """
        self._check(request_id, until, signature)
        return self.deliver(request_id, decode_response(body))

    def _check(self, request_id: str, until: str, signature: str) -> None:
        if not self._signed(request_id, until, signature):
            raise Denied("the signature of this callback address is not right")
        if self._clock() >= int(until):
            raise Denied("this callback address has ended")

    def _signed(self, request_id: str, until: str, signature: str) -> bool:
        return hmac.compare_digest(self._sign(request_id, until).encode(), signature.encode())

    def _sign(self, request_id: str, until: str) -> str:
        return hmac.new(self._key, f"{request_id}\n{until}".encode(), hashlib.sha256).hexdigest()


def _ends(request_id: str, response: ToolResponse) -> bool:
    """Whether it is how this request ended."""
    return response.status not in PENDING and response.request_id.strip() in ("", request_id)


def _settle(future: asyncio.Future[ToolResponse], response: ToolResponse) -> None:
    if not future.done():
        future.set_result(response)
