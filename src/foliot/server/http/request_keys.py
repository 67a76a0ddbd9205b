"""One request under its key: claimed, done, and its answer kept; or what was answered before.

Only what succeeded is kept. What was refused has changed nothing, so its key is free for a request that is mended. The
answer leaves when it is stored: whoever has heard it hears the same again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from foliot.common.cancellation import stop_tasks
from foliot.errors import Conflict, FoliotError, OutcomeUnknown
from foliot.server.context import CALLER, Services
from foliot.server.errors import BadParameter
from foliot.server.http.bodies import replayed
from foliot.server.route_table import KeyRule
from foliot.store.access.request_keys import HELD, Claimed, Kept, OtherRequest, SqlRequestKeys, UnderWay

HEADER: Final = b"idempotency-key"
REPEATED: Final = (b"idempotency-replayed", b"true")
KEY: Final = r"[!-~]{1,255}"
_KEY: Final = re.compile(KEY)
# Whoever asks again while it is under way waits so long for the answer before hearing that it is.
PATIENCE: Final = 10.0
LOOK_EVERY: Final = 0.1
# Where a route finds the claim under which its request is done.
CLAIM: Final = "foliot.claim"
# What is particular to one sending of an answer.
_NOT_KEPT: Final = frozenset({"content-length", "date", "x-request-id"})

App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def answer_once(rule: KeyRule, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Have `app` answer a POST: by its key, if it has one and the route keeps answers."""
    key = key_of(scope) if rule.kept else None
    if key is None:
        await app(scope, receive, send)
        return
    request = Request(scope, receive)
    body = await request.body()
    services: Services = scope["app"].state.services
    keys = SqlRequestKeys(services.database)
    found = await _claimed(services, keys, scope[CALLER].principal, key, _digest(key, scope, body))
    if isinstance(found, Kept):
        await _send(found, send, REPEATED)
    elif found.broken and not rule.again:
        await _give_up(keys, found)
        raise OutcomeUnknown(
            "a server stopped in the middle of this request: whether it was done is not known",
            hint="look whether it was; to ask for it again, use another key",
        )
    else:
        scope[CLAIM] = found
        await _do(keys, found, app, scope, replayed(body, receive), send)


def key_of(scope: Scope) -> str | None:
    """The key that a request came with. Raises `BadParameter` for one that is none."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    if not given:
        return None
    key = given[0].decode("latin-1").strip()
    if len(given) > 1 or not _KEY.fullmatch(key):
        raise BadParameter("Idempotency-Key: this cannot be a key", hint="one, of 1 to 255 letters, digits and signs")
    return key


def id_by_key(scope: Scope) -> str | None:
    """An id for what this request makes: the same whenever it is sent under its key, None when it has no key."""
    claimed: Claimed | None = scope.get(CLAIM)
    return None if claimed is None else f"key-{claimed.id[:32]}"


def _digest(key: str, scope: Scope, body: bytes) -> str:
    """Returns the digest that tells requests apart.

    It is keyed with the key, which the store does not have: it may hold secrets.
    """
    asked = f"{scope['method']}\0{scope['path']}\0".encode() + scope["query_string"] + b"\0" + body
    return hmac.digest(key.encode(), asked, "sha256").hex()


async def _claimed(services: Services, keys: SqlRequestKeys, who: str, key: str, request: str) -> Kept | Claimed:
    """The claim, or the answer; while somebody else is at it, that is waited for. Raises `Conflict`."""
    until = time.monotonic() + PATIENCE
    while True:
        found = await keys.claim(who, key, request, now=keys.clock())
        match found:
            case Kept() | Claimed():
                return found
            case OtherRequest():
                raise Conflict("this idempotency key was used for another request", hint="a key belongs to one request")
            case UnderWay():
                if time.monotonic() >= until or services.closing.is_set():
                    raise Conflict(
                        "the first request with this key is under way", hint="ask again in a moment", retryable=True
                    )
                await asyncio.sleep(LOOK_EVERY)


async def _do(keys: SqlRequestKeys, claimed: Claimed, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    gathered = _Gathered()
    holding = asyncio.create_task(_hold(keys, claimed))
    try:
        await app(scope, receive, gathered.send)
    except Exception as error:
        await _give_up(keys, claimed, error.http if isinstance(error, FoliotError) else 500)
        raise
    finally:
        await stop_tasks(holding)
    answer = gathered.answer()
    if answer.status < 300:
        try:
            await keys.answer(claimed, answer)
        except FoliotError:
            await _give_up(keys, claimed)
            raise
    else:
        await _give_up(keys, claimed, answer.status)
    await _send(answer, send)


async def _give_up(keys: SqlRequestKeys, claimed: Claimed, status: int = 500) -> None:
    """Drops the claim of a refused request, which did nothing.

    Any other is held as unknown: a retry need not wait for it.
    """
    with contextlib.suppress(FoliotError):  # then the claim lapses by itself
        if status < 500:
            await keys.drop(claimed)
        else:
            await keys.hold(claimed, until=0.0)


async def _hold(keys: SqlRequestKeys, claimed: Claimed) -> None:
    """Keep the claim alive for as long as this process does."""
    while True:
        await asyncio.sleep(HELD / 3)
        with contextlib.suppress(FoliotError):  # the store may be back in time
            await keys.hold(claimed, until=keys.clock() + HELD)


class _Gathered:
    """An answer that is held back until it is whole."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], [*message.get("headers", ())]
        else:
            self._body += message.get("body", b"")

    def answer(self) -> Kept:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]
        return Kept(self._status, [pair for pair in headers if pair[0] not in _NOT_KEPT], bytes(self._body))


async def _send(kept: Kept, send: Send, *more: tuple[bytes, bytes]) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
    if kept.status != 204:
        headers.append((b"content-length", str(len(kept.body)).encode()))
    await send({"type": "http.response.start", "status": kept.status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": kept.body})
