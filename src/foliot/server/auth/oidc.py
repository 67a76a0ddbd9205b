"""An identity provider (OpenID Connect): where it is found, its keys, a code for a token, and whether a token is good.

The operator names the provider, so it may be anywhere; but it cannot send us elsewhere: redirects are not followed, and
what it says about itself must be about the issuer that was named. Signatures are by public keys only. Keys are kept,
and asked for again when a token names one that is not among them, and every few minutes: one that is withdrawn is no
good any more.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from foliot.errors import Denied, Unavailable, UsageError
from foliot.server.auth.identity import Role, role_named
from foliot.server.errors import Unauthenticated
from foliot.store.access.logins import Lifetime, LoginSession, SqlLoginFlows, SqlLoginSessions

if TYPE_CHECKING:
    from foliot.settings.settings import Settings

# --- kept ------------------------------------------------------------------------------------------------------------

# Something that another server says, kept for a while: asked for by one at a time, and not too often.

log = logging.getLogger(__name__)

T = TypeVar("T")


class CachedKeys(Generic[T]):
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


class OidcProvider:
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
        self._about = CachedKeys(self._ask_about, old=KEPT, pause=ASKED_EVERY, clock=clock)
        self._keys = CachedKeys(self._ask_keys, old=KEYS_KEPT, pause=ASKED_EVERY, longest=KEYS_LONGEST, clock=clock)

    @staticmethod
    def of(settings: Settings) -> OidcProvider | None:
        """The provider of the settings, if they name one. Raises `UsageError` when half of it is missing."""
        if settings.oidc_issuer is None:
            return None
        if settings.oidc_client_id is None:
            raise UsageError(
                "an identity provider is named, but not what this server is called there", hint="set oidc_client_id"
            )
        return OidcProvider(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret)

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


# --- oidc login ------------------------------------------------------------------------------------------------------

# Logging in with an identity provider: the authorization code flow with PKCE, state and nonce.
#
# A browser that is sent away takes a random secret along in a cookie. From it come the PKCE verifier and the nonce, so
# that a code or a token that was caught is of use in this browser only, and nothing secret has to be kept. The state
# is good once.

# --- oidc claims -----------------------------------------------------------------------------------------------------

# From what an identity provider says of somebody to a name and roles here.
#
# Names are written `oidc:<name>`: nobody at the provider can have the name of an account or a token of this server.
# Two people have two names: one is taken as it is, or not at all, and a slash in it is spelt out (`%2F`), because it
# stands between the name of a maker and that of a token.

PREFIX: Final = "oidc:"
LONGEST: Final = 200
ANYBODY: Final = "*"


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A rule that gives a role: holders of `value` in the claim have it in the namespace; `*` is anybody, and all
    namespaces.
    """

    value: str
    role: Role
    namespace: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Which claims are read, and how."""

    name_claim: str
    roles_claim: str
    rules: tuple[RoleRule, ...]

    def name_of(self, claims: Mapping[str, Any]) -> str:
        """Raises `Denied` when the claim is missing or cannot be a name."""
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable() or name != name.strip():
            raise Denied(
                f"the identity provider does not say who you are in {self.name_claim!r}",
                hint="an admin sets oidc_name_claim, or the scopes that are asked for",
            )
        if self.name_claim == "email" and claims.get("email_verified", True) is not True:
            raise Denied("the identity provider has not verified your e-mail address")
        return PREFIX + name.replace("%", "%25").replace("/", "%2F")

    def grants_of(self, claims: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Roles by namespace. Raises `Denied` when there are none."""
        held = _values(claims, self.roles_claim)
        found: dict[str, set[str]] = {}
        for rule in self.rules:
            if rule.value == ANYBODY or rule.value in held:
                found.setdefault(rule.namespace, set()).add(rule.role)
        if not found:
            raise Denied("you have no role here", hint="an admin gives roles to groups with oidc_roles")
        return {namespace: tuple(sorted(roles)) for namespace, roles in sorted(found.items())}


def rules_of(texts: Sequence[str]) -> tuple[RoleRule, ...]:
    """Rules written `devs=author@team-a`. Raises `UsageError` for a role that there is not."""
    rules: list[RoleRule] = []
    for text in texts:
        value, _, grant = text.rpartition("=")
        role, _, namespace = grant.partition("@")
        rules.append(RoleRule(value.strip(), role_named(role), namespace))
    return tuple(rules)


def _values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """The texts of a claim; dots lead into objects, as in `realm_access.roles`."""
    found: Any = claims.get(name)
    if found is None and "." in name:
        found = claims
        for step in name.split("."):
            found = cast("Mapping[str, Any]", found).get(step) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return frozenset({found})
    return (
        frozenset(each for each in cast("list[Any]", found) if isinstance(each, str))
        if isinstance(found, list)
        else frozenset()
    )


# --- oidc login ------------------------------------------------------------------------------------------------------

CALLBACK: Final = "/v1/auth/oidc/callback"
BACK_WITHIN: Final = 600.0
_CODE: Final = re.compile(r"[a-z_]{1,60}")
_LOCAL_PATH: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]{0,500}|/")


class LoginRedirect(NamedTuple):
    """The URL to which a browser is sent, and the content of its cookie."""

    url: str
    cookie: str


class OidcLogin(NamedTuple):
    """The person who came back from the provider, with a new session, and the page they wanted."""

    session: LoginSession
    cookie: str
    return_to: str


class OidcLogins:
    """The flow, and bearer tokens of the same provider."""

    def __init__(
        self,
        provider: OidcProvider,
        settings: Settings,
        flows: SqlLoginFlows,
        sessions: SqlLoginSessions,
        lifetime: Lifetime,
        clock: Callable[[], float],
    ) -> None:
        self.provider = provider
        self.audience = settings.oidc_audience
        self.reading = Reading(settings.oidc_name_claim, settings.oidc_roles_claim, rules_of(settings.oidc_roles))
        self._scopes = " ".join(dict.fromkeys(("openid", *settings.oidc_scopes)))
        self._redirect_url = settings.oidc_redirect_url
        if self._redirect_url is None and settings.public_url is not None:
            self._redirect_url = settings.public_url.rstrip("/") + CALLBACK
        self._flows = flows
        self._sessions = sessions
        self._lifetime = lifetime
        self._clock = clock

    async def send_away(self, return_to: str, *, here: str | None) -> LoginRedirect:
        """Begin. `here` is the address of this server as a browser on this machine sees it.

        Raises `UsageError` for a place to go on that is not on this server, `Unavailable`.
        """
        if not _LOCAL_PATH.fullmatch(return_to):
            raise UsageError("return_to must be a path on this server", hint="such as /runs")
        browser, state = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        url = await self.provider.login_url(
            redirect_uri=self._back(here),
            scope=self._scopes,
            state=state,
            nonce=_derived(browser, "nonce"),
            code_challenge=_challenge(_derived(browser, "pkce")),
            code_challenge_method="S256",
        )
        await self._flows.begin(state, browser, return_to, now=self._clock(), seconds=BACK_WITHIN)
        return LoginRedirect(url, browser)

    async def take_back(self, params: Mapping[str, str], cookie: str | None, *, here: str | None) -> OidcLogin:
        """The end of it: who came back with these parameters.

        Raises `Unauthenticated`, `Denied` for somebody without a role here, `Unavailable`.
        """
        state, code, error = params.get("state", ""), params.get("code", ""), params.get("error")
        return_to = await self._flows.take(state, cookie or "", now=self._clock()) if state else None
        if return_to is None or cookie is None:
            raise Unauthenticated("this login was not begun in this browser, or is over", hint="start again")
        if error is not None or not code:
            why = error if error and _CODE.fullmatch(error) else "it gave no code"
            raise Unauthenticated(f"the identity provider did not let you in: {why}", hint="start again")
        if params.get("iss", self.provider.issuer) != self.provider.issuer:
            raise Unauthenticated("another identity provider has answered", hint="start again")
        claims = await self.provider.redeem(
            code,
            verifier=_derived(cookie, "pkce"),
            redirect_url=self._back(here),
            nonce=_derived(cookie, "nonce"),
        )
        name, grants = self.reading.name_of(claims), self.reading.grants_of(claims)
        begun = await self._sessions.begin_vouched(name, grants, lifetime=self._lifetime, now=self._clock())
        return OidcLogin(*begun, return_to)

    async def bearer(self, token: str) -> tuple[Mapping[str, Any], str, dict[str, tuple[str, ...]]]:
        """Claims, name and roles of a bearer token of the provider.

        Raises `Unauthenticated`, `Denied` for somebody without a role here, `Unavailable`.
        """
        assert self.audience is not None, "asked only where such tokens are taken"
        claims = await self.provider.verify(token, audience=self.audience)
        return claims, self.reading.name_of(claims), self.reading.grants_of(claims)

    def _back(self, here: str | None) -> str:
        if self._redirect_url is not None:
            return self._redirect_url
        if here is None:
            raise UsageError(
                "this server does not know how browsers reach it", hint="set public_url or oidc_redirect_url"
            )
        return here + CALLBACK


def _derived(secret: str, purpose: str) -> str:
    raw = hmac.digest(secret.encode(), b"foliot login " + purpose.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
