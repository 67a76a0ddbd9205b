"""How a tool's server is told who calls: the one place where a secret becomes a header.

    profile                     secret                               header
    bearer                      a token                              Authorization: Bearer …
    api_key_header              a key                                the header that `header_name` names
    basic                       user:password                        Authorization: Basic …
    oauth2_client_credentials   the keys client_id, client_secret    Authorization: Bearer … (fetched, `TokenCache`)

`environment` is the same for tools that run in a sandbox and take variables instead of headers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from foliot.tools.base import AuthSpec, ToolError, ToolPolicyInvalid, ToolSecretMissing
from foliot.tools.outbound.client import OutboundAnswer, OutboundClient
from foliot.tools.secrets.masking import Masker
from foliot.tools.secrets.secrets import DEFAULT_KEY, Secrets

# --- oauth -----------------------------------------------------------------------------------------------------------

# Access tokens by client credentials (OAuth 2.0, RFC 6749, 4.4): fetched once, used until shortly before they end.
#
# Callers that need the same token at the same time wait for one exchange. A token that was refused is evicted, and the
# next caller fetches another. Client secrets are no part of what is kept: of them, only a digest tells tokens apart,
# so that who knows a client's id but not its secret gets nothing.

LARGEST_ANSWER: Final = 1024 * 1024
EXCHANGE_TIMEOUT: Final = 10.0
DEFAULT_LIFE: Final = 3600.0
_SKEW: Final = 30.0
_KEPT: Final = 1024


class TokenKey(NamedTuple):
    token_url: str
    client_id: str
    scopes: tuple[str, ...]
    secret_digest: bytes


class _Token(NamedTuple):
    value: str
    until: float


class _Grant(msgspec.Struct):
    access_token: str = ""
    expires_in: int | float | str | None = None
    token_type: str = ""


class TokenCache:
    """Tokens of one runtime."""

    def __init__(
        self,
        client: OutboundClient,
        masker: Masker,
        *,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = EXCHANGE_TIMEOUT,
    ) -> None:
        self._client = client
        self._masker = masker
        self._clock = clock
        self._timeout = timeout
        self._tokens: dict[TokenKey, _Token] = {}
        self._exchanges: dict[TokenKey, asyncio.Task[_Token]] = {}

    async def token(self, token_url: str, client_id: str, client_secret: str, scopes: Collection[str] = ()) -> str:
        """A token that is good now. Raises `ToolSecretMissing`, retryable, when the exchange fails."""
        key = self._key(token_url, client_id, client_secret, scopes)
        kept = self._tokens.get(key)
        if kept is not None and self._clock() < kept.until:
            self._masker.add(kept.value)
            return kept.value
        task = self._exchanges.get(key)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(self._fetch(key, client_secret), name="token-exchange")
            self._exchanges[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # Shielded: a caller that gives up must not take the token away from the others.
        return (await asyncio.shield(task)).value

    def evict(self, token_url: str, client_id: str, scopes: Collection[str] = (), *, token: str | None = None) -> None:
        """Forget a token. With `token`, only if it is still that one: another caller may have replaced it already."""
        for key, kept in list(self._tokens.items()):
            same = (key.token_url, key.client_id, key.scopes) == (token_url, client_id, _ordered(scopes))
            if same and (token is None or kept.value == token):
                del self._tokens[key]

    def forget(self) -> None:
        """Forget all tokens: the next callers fetch others."""
        self._tokens.clear()

    def _key(self, token_url: str, client_id: str, client_secret: str, scopes: Collection[str]) -> TokenKey:
        return TokenKey(token_url, client_id, _ordered(scopes), hashlib.sha256(client_secret.encode()).digest())

    def _finished(self, key: TokenKey, task: asyncio.Task[_Token]) -> None:
        if self._exchanges.get(key) is task:
            del self._exchanges[key]
        if not task.cancelled():
            task.exception()  # seen: when every caller gave up, nobody else looks

    async def _fetch(self, key: TokenKey, client_secret: str) -> _Token:
        began = self._clock()
        grant = await self._exchange(key, client_secret)
        self._masker.add(grant.access_token)
        token = _Token(grant.access_token, began + _life(grant.expires_in))
        if len(self._tokens) >= _KEPT:
            self._tokens.clear()
        self._tokens[key] = token
        return token

    async def _exchange(self, key: TokenKey, client_secret: str) -> _Grant:
        form = {"grant_type": "client_credentials", "client_id": key.client_id, "client_secret": client_secret}
        if key.scopes:
            form["scope"] = " ".join(key.scopes)
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        try:
            async with asyncio.timeout(self._timeout):
                # No redirect is followed: the client's secret is in the body.
                async with self._client.send(
                    "POST", key.token_url, headers=headers, body=urlencode(form).encode(), redirects=0
                ) as answer:
                    return await self._read(answer, key)
        except ToolSecretMissing:
            raise
        except ToolError as error:
            raise self._failed(key, error.message, hint=error.hint, retryable=error.retryable) from None
        except TimeoutError:
            raise self._failed(key, f"no answer within {self._timeout:g} s") from None

    async def _read(self, answer: OutboundAnswer, key: TokenKey) -> _Grant:
        if answer.status != 200:
            body = (await answer.beginning(4096)).decode(errors="replace")
            raise self._failed(key, f"HTTP {answer.status} {self._masker.redact(body)[:400]}".strip())
        body = await answer.read(LARGEST_ANSWER)
        try:
            grant = msgspec.json.decode(body, type=_Grant)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._failed(key, "the answer is not the JSON of a token") from None
        grant.access_token = grant.access_token.strip()
        if not grant.access_token:
            raise self._failed(key, "the answer holds no access_token")
        if grant.token_type.strip().lower() not in ("", "bearer"):
            raise self._failed(key, "the token is of another type than bearer, and no other is supported")
        return grant

    def _failed(self, key: TokenKey, why: str, *, hint: str | None = None, retryable: bool = True) -> ToolSecretMissing:
        where = _shown(key.token_url)
        return ToolSecretMissing(
            f"the exchange for an access token at {where} failed: {self._masker.redact(why)}",
            hint=hint,
            retryable=retryable,
            token_url=where,
        )


def _ordered(scopes: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(set(scopes)))


def _life(expires_in: Any) -> float:
    """Returns how long to use a token: a little less than it lives, so that it does not expire on the way."""
    try:
        life = float(expires_in)
    except (TypeError, ValueError):
        life = 0.0
    if not 0 < life < float("inf"):
        life = DEFAULT_LIFE
    return max(life - _SKEW if life > _SKEW else life, 1.0)


def _shown(url: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- auth ------------------------------------------------------------------------------------------------------------

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_FOR_KEYS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials to send with one call. `renewable`: a refusal may only mean that the token has expired."""

    profile: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    client_id: str = ""
    token: str = field(default="", repr=False)

    @property
    def renewable(self) -> bool:
        return bool(self.token)


class CallAuth:
    """Makes credentials for calls. Nothing is kept between calls but access tokens."""

    def __init__(self, secrets: Secrets, tokens: TokenCache | None = None) -> None:
        self._secrets = secrets
        self._tokens = tokens

    @property
    def masker(self) -> Masker:
        return self._secrets.masker

    async def credentials(self, auth: AuthSpec | None, *, namespace: str, tool: str, by: str = "Tool") -> Credentials:
        """Resolves the credentials to send, for a resource of the kind `by`.

        Raises `ToolSecretMissing`, `ToolPolicyInvalid` when the declaration cannot be carried out.
        """
        if auth is None or not (auth.profile or auth.secret_ref):
            return Credentials()
        if not auth.secret_ref:
            raise ToolPolicyInvalid(f"the auth of tool {tool!r} names no secret", tool=tool)
        match auth.profile or "bearer":
            case "oauth2_client_credentials":
                return await self._client_credentials(auth, namespace, tool, by)
            case "bearer":
                return _bearer(await self._value(auth, auth.secret_ref, namespace, tool, by))
            case "api_key_header":
                name = auth.header_name.strip()
                if not _HEADER.fullmatch(name) or name.lower() in _NOT_FOR_KEYS:
                    raise ToolPolicyInvalid(f"the auth of tool {tool!r} needs the name of a header", tool=tool)
                value = await self._value(auth, auth.secret_ref, namespace, tool, by)
                environment = {"TOOL_AUTH_HEADER_NAME": name, "TOOL_AUTH_HEADER_VALUE": value}
                return Credentials("api_key_header", {name: value}, environment)
            case "basic":
                return self._basic(await self._value(auth, auth.secret_ref, namespace, tool, by), tool)
            case other:  # pyright: ignore[reportUnnecessaryComparison] - a definition may come from unchecked code
                raise ToolPolicyInvalid(f"tool {tool!r} has an unknown auth profile {other!r}", tool=tool)

    def evict(self, auth: AuthSpec | None, used: Credentials) -> None:
        """The server refused these: the next call fetches a new token."""
        if self._tokens is not None and auth is not None and used.renewable:
            self._tokens.evict(auth.token_url, used.client_id, auth.scopes, token=used.token)

    def forget(self) -> None:
        """Forget what is kept between calls."""
        if self._tokens is not None:
            self._tokens.forget()

    async def _client_credentials(self, auth: AuthSpec, namespace: str, tool: str, by: str) -> Credentials:
        path, _, key = auth.secret_ref.partition(":")
        if key and key != DEFAULT_KEY:
            raise ToolPolicyInvalid(
                f"the secret of tool {tool!r} names one key, and OAuth needs two: client_id and client_secret",
                hint="name the secret without a key",
                tool=tool,
            )
        if not auth.token_url or self._tokens is None:
            what = "no tokenURL" if not auth.token_url else "nobody to fetch tokens"
            raise ToolPolicyInvalid(f"the auth of tool {tool!r} has {what}", tool=tool)
        client_id = await self._value(auth, f"{path}:client_id", namespace, tool, by)
        client_secret = await self._value(auth, f"{path}:client_secret", namespace, tool, by)
        token = await self._tokens.token(auth.token_url, client_id, client_secret, auth.scopes)
        made = _bearer(_one_line(token, tool))
        return Credentials(auth.profile, made.headers, made.environment, client_id, token)

    def _basic(self, value: str, tool: str) -> Credentials:
        if ":" not in value:
            raise ToolPolicyInvalid(
                f"the secret of tool {tool!r} has no colon", hint="basic auth needs user:password", tool=tool
            )
        encoded = base64.b64encode(value.encode()).decode()
        self.masker.add(encoded, value.partition(":")[2])
        return Credentials("basic", {"Authorization": f"Basic {encoded}"}, {"TOOL_AUTH_BASIC": encoded})

    async def _value(self, auth: AuthSpec, ref: str, namespace: str, tool: str, by: str) -> str:
        value = await self._secrets.value(ref, namespace=namespace, tool=tool, hosts=auth.hosts, by=by)
        return _one_line(value, tool)


def _bearer(token: str) -> Credentials:
    return Credentials("bearer", {"Authorization": f"Bearer {token}"}, {"TOOL_AUTH_BEARER": token})


def _one_line(value: str, tool: str) -> str:
    """A line break would end the header and begin another of the writer's choice."""
    if not value.isprintable():
        raise ToolSecretMissing(f"the secret of tool {tool!r} has line breaks or control characters in it")
    return value
