"""One request under its key: claimed, done, and its answer kept; or what was answered before.

Only what succeeded is kept. What was refused has changed nothing, so its key is free for a request that is mended. The
answer leaves when it is stored: whoever has heard it hears the same again, for as long as they have the roles in the
namespaces that it was given for.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from foliot.errors import FoliotError, OutcomeUnknown
from foliot.server.auth.identity import HIDDEN, Caller, HowKnown, Role, role_named
from foliot.server.context import CALLER, Services
from foliot.server.errors import BadParameter
from foliot.server.http.bodies import replayed
from foliot.server.route_table import KeyRule
from foliot.store.access.request_keys import ClaimedKey, KeptAnswer, SqlRequestKeys

HEADER: Final = b"idempotency-key"
REPEATED: Final = (b"idempotency-replayed", b"true")
KEY: Final = r"[!-~]{1,255}"
KEY_PATTERN: Final = re.compile(KEY)
# Where a route finds the claim under which its request is done.
CLAIM: Final = "foliot.claim"
# What is stored with the headers of an answer, and not sent: the roles that it needed.
_ASKED: Final = " asked"
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
    who, request_digest = scope[CALLER].principal, _digest(key, scope, body)
    found = await keys.obtain(who, key, request_digest, stop=services.closing.is_set)
    if isinstance(found, KeptAnswer):
        for role, namespace in _asked(found):
            scope[CALLER].require(role, namespace, missing=HIDDEN)
        await _send(found, send, REPEATED)
    elif found.broken and not rule.again:
        await keys.give_up(found, changed_nothing=False)
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
    if len(given) > 1 or not KEY_PATTERN.fullmatch(key):
        raise BadParameter("Idempotency-Key: this cannot be a key", hint="one, of 1 to 255 letters, digits and signs")
    return key


def id_by_key(scope: Scope) -> str | None:
    """An id for what this request makes: the same whenever it is sent under its key, None when it has no key."""
    claimed: ClaimedKey | None = scope.get(CLAIM)
    return None if claimed is None else f"key-{claimed.id[:32]}"


def _digest(key: str, scope: Scope, body: bytes) -> str:
    """Returns the digest that tells requests apart.

    It is keyed with the key, which the store does not have: it may hold secrets.
    """
    asked = f"{scope['method']}\0{scope['path']}\0".encode() + scope["query_string"] + b"\0" + body
    return hmac.digest(key.encode(), asked, "sha256").hex()


async def _do(keys: SqlRequestKeys, claimed: ClaimedKey, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    gathered = _Gathered()
    caller: Caller = scope[CALLER]
    watched = scope[CALLER] = _WatchedCaller(caller.name, caller.known_by, caller.grants, caller.id, caller.account)
    try:
        async with keys.kept_alive(claimed):
            await app(scope, receive, gathered.send)
    except Exception as error:
        status = error.http if isinstance(error, FoliotError) else 500
        await keys.give_up(claimed, changed_nothing=status < 500)
        raise
    answer = gathered.answer()
    answer.headers.append((_ASKED, ",".join(f"{role} {namespace}" for role, namespace in sorted(watched.asked))))
    if answer.status < 300:
        try:
            await keys.answer(claimed, answer)
        except FoliotError:
            await keys.give_up(claimed, changed_nothing=False)
            raise
    else:
        await keys.give_up(claimed, changed_nothing=answer.status < 500)
    await _send(answer, send)


class _WatchedCaller(Caller):
    """A caller of whom it is noticed which roles they needed, and had."""

    __slots__ = ("asked",)

    def __init__(
        self, name: str, known_by: HowKnown, grants: Mapping[str, frozenset[Role]], id: str, account: str
    ) -> None:
        super().__init__(name, known_by, grants, id, account)
        object.__setattr__(self, "asked", set[tuple[Role, str]]())

    def may(self, role: Role, namespace: str) -> bool:
        held = super().may(role, namespace)
        if held:
            self.asked.add((role, namespace))
        return held


def _asked(kept: KeptAnswer) -> list[tuple[Role, str]]:
    """Returns the roles, each with its namespace, that were needed for an answer."""
    said = dict(kept.headers)[_ASKED]
    pairs = [each.split(" ") for each in said.split(",") if each]
    return [(role_named(role), namespace) for role, namespace in pairs]


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

    def answer(self) -> KeptAnswer:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]
        return KeptAnswer(self._status, [pair for pair in headers if pair[0] not in _NOT_KEPT], bytes(self._body))


async def _send(kept: KeptAnswer, send: Send, *more: tuple[bytes, bytes]) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers if name != _ASKED]
    if kept.status != 204:
        headers.append((b"content-length", str(len(kept.body)).encode()))
    await send({"type": "http.response.start", "status": kept.status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": kept.body})
