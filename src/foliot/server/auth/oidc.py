"""An identity provider (OpenID Connect): where it is found, its keys, a code for a token, and whether a token is good.

The operator names the provider, so it may be anywhere; but it cannot send us elsewhere: redirects are not followed, and
what it says about itself must be about the issuer that was named. Signatures are by public keys only. Keys are kept,
and asked for again when a token names one that is not among them, and every few minutes: one that is withdrawn is no
good any more.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from foliot.errors import Unavailable, UsageError
from foliot.server.errors import Unauthenticated

if TYPE_CHECKING:
    from foliot.settings.settings import Settings


# --- kept ------------------------------------------------------------------------------------------------------------

# Something that another server says, kept for a while: asked for by one at a time, and not too often.

log = logging.getLogger(__name__)

T = TypeVar("T")


class Kept(Generic[T]):
    """`ask` is called when what is kept is `old` seconds old or not enough, at most once in `pause` seconds.

    While the other server is away, what was kept before does, until it is `longest` seconds old.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        old: float,
        pause: float,
        clock: Callable[[], float],
        longest: float = float("inf"),
    ) -> None:
        self._ask = ask
        self._old = old
        self._pause = pause
        self._longest = longest
        self._clock = clock
        self._asking = asyncio.Lock()
        self._value: T | None = None
        self._at = 0.0
        self._asked_at: float | None = None

    async def get(self, enough: Callable[[T], bool] = lambda _: True) -> T:
        """Returns the cached value, asking anew when that may give more. Raises `Unavailable` when there is none."""
        if (value := self._fresh(enough)) is not None:
            return value
        async with self._asking:
            if (value := self._fresh(enough)) is not None:
                return value
            now = self._clock()
            if self._asked_at is not None and now - self._asked_at < self._pause:
                if (value := self._usable(now)) is None:
                    raise Unavailable("the other server did not answer a moment ago", hint="try again")
                return value
            self._asked_at = now
            try:
                self._value, self._at = await self._ask(), now
            except Unavailable as error:
                if (value := self._usable(now)) is None:
                    raise
                log.warning("what was known before is used: %s", error.message)
                return value
            return self._value

    def _usable(self, now: float) -> T | None:
        return self._value if now - self._at < self._longest else None

    def _fresh(self, enough: Callable[[T], bool]) -> T | None:
        value = self._value
        return value if value is not None and self._clock() - self._at < self._old and enough(value) else None


# --- oidc ------------------------------------------------------------------------------------------------------------

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEPT: Final = 3600.0
# A key that the provider has withdrawn is good for so long at most; for the second, while the provider is away.
KEYS_KEPT: Final = 300.0
KEYS_LONGEST: Final = 900.0
# A token that names an unknown key makes us ask for the keys again, but not more often than this.
ASKED_EVERY: Final = 10.0
LEEWAY: Final = 30.0
LARGEST: Final = 1024 * 1024
WITHIN: Final = 10.0
_NEEDED: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class Provider:
    """One provider, and what this server is called there."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self.client_id = client_id
        self._secret = client_secret
        self._about = Kept(self._ask_about, old=KEPT, pause=ASKED_EVERY, clock=clock)
        self._keys = Kept(self._ask_keys, old=KEYS_KEPT, pause=ASKED_EVERY, longest=KEYS_LONGEST, clock=clock)

    @staticmethod
    def of(settings: Settings) -> Provider | None:
        """The provider of the settings, if they name one. Raises `UsageError` when half of it is missing."""
        if settings.oidc_issuer is None:
            return None
        if settings.oidc_client_id is None:
            raise UsageError(
                "an identity provider is named, but not what this server is called there", hint="set oidc_client_id"
            )
        return Provider(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret)

    async def login_url(self, **params: str) -> str:
        """Returns the URL to which a browser is sent to log in. Raises `Unavailable`."""
        endpoint = (await self._about.get())["authorization_endpoint"]
        query = urlencode({"response_type": "code", "client_id": self.client_id, **params}, quote_via=quote)
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    async def redeem(self, code: str, *, verifier: str, redirect_url: str, nonce: str) -> Mapping[str, Any]:
        """The claims about whoever came back with this code. Raises `Unauthenticated`, `Unavailable`."""
        about = await self._about.get()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_url,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        methods = about.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if self._secret is None or "client_secret_basic" not in methods:
            form["client_id"] = self.client_id
            if self._secret is not None:
                form["client_secret"] = self._secret
        else:
            login = f"{quote(self.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        status, answer = await _ask("POST", about["token_endpoint"], form=form, headers=headers)
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            log.warning("the identity provider did not take a code: status %d, %.80r", status, answer.get("error"))
            raise Unauthenticated("the identity provider did not confirm the login", hint="start again")
        claims = await self.verify(token, audience=self.client_id)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _not_good("its nonce is another one")
        if claims.get("azp", self.client_id) != self.client_id:
            raise _not_good("it was issued to somebody else")
        return claims

    async def verify(self, token: str, *, audience: str) -> Mapping[str, Any]:
        """The claims of a token that this provider signed for this audience and that has not expired.

        Raises `Unauthenticated`, `Unavailable` when the keys cannot be had.
        """
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _not_good("it is no token") from None
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm not in ALGORITHMS or not isinstance(key_id, str):
            raise _not_good("its algorithm is not allowed")
        about = await self._about.get()
        key = _found(await self._keys.get(lambda keys: _found(keys, key_id) is not None), key_id)
        if key is None or key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
            raise _not_good("its key is not known")
        try:
            claims = jwt.decode(
                token,
                jwt.PyJWK(key, algorithm),
                algorithms=[algorithm],
                audience=audience,
                issuer=about["issuer"],
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise _not_good(type(error).__name__) from None
        # One of several audiences could pass the token on to another: it is taken only from whom it was issued to.
        if claims["aud"] not in (audience, [audience]) and claims.get("azp") not in (self.client_id, audience):
            raise _not_good("it is for several audiences, and was issued to somebody else")
        return claims

    async def _ask_about(self) -> dict[str, Any]:
        """Fetches the provider's discovery document."""
        status, about = await _ask("GET", self.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if status != 200 or about.get("issuer") != self.issuer:
            raise Unavailable(
                f"the identity provider at {self.issuer} does not describe itself as that",
                hint="check oidc_issuer: it must be written as the provider writes it",
            )
        for name in _NEEDED:
            if not _may_be_asked(about.get(name), self.issuer):
                raise Unavailable(f"the identity provider at {self.issuer} has no usable {name}")
        return about

    async def _ask_keys(self) -> dict[str, dict[str, Any]]:
        status, answer = await _ask("GET", (await self._about.get())["jwks_uri"])
        keys = answer.get("keys")
        if status != 200 or not isinstance(keys, list):
            raise Unavailable("the identity provider does not show its keys")
        return _by_id(cast("list[Any]", keys))


async def _ask(
    method: str, url: str, *, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object. Raises `Unavailable`; what it says holds no secret."""
    import aiohttp

    place = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
    body = bytearray()
    try:
        async with (
            aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=WITHIN), trust_env=False
            ) as session,
            session.request(
                method, url, data=form, headers={"Accept": "application/json", **(headers or {})}, allow_redirects=False
            ) as response,
        ):
            async for piece in response.content.iter_chunked(65536):
                body += piece
                if len(body) > LARGEST:
                    raise Unavailable(f"the identity provider at {place} sends too much")
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        log.warning("the identity provider at %s does not answer: %s", place, type(error).__name__)
        raise Unavailable(f"the identity provider at {place} does not answer", hint="try again") from None
    try:
        return status, msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unavailable(f"the identity provider at {place} does not answer in JSON") from None


def _found(keys: Mapping[str, dict[str, Any]], key_id: str) -> dict[str, Any] | None:
    if not key_id and len(keys) == 1:  # the only one need not be named
        return next(iter(keys.values()))
    return keys.get(key_id)


def _by_id(keys: list[Any]) -> dict[str, dict[str, Any]]:
    """Public keys by their ids; a shared secret is no key that others could check with."""
    found: dict[str, dict[str, Any]] = {}
    for each in keys:
        if isinstance(each, dict):
            key = cast("dict[str, Any]", each)
            if key.get("kty") in ("RSA", "EC", "OKP") and isinstance(key.get("kid", ""), str):
                found[key.get("kid", "")] = key
    return found


def _may_be_asked(url: Any, issuer: str) -> bool:
    """Whether an address that the provider names is as safe as its own."""
    return isinstance(url, str) and url.startswith(
        ("https://", "http://") if issuer.startswith("http:") else "https://"
    )


def _not_good(why: str) -> Unauthenticated:
    log.info("a token of the identity provider is not good: %s", why)
    return Unauthenticated("this token is not good", hint="it may be wrong, expired or for somebody else")
