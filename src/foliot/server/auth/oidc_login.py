"""Logging in with an identity provider: the authorization code flow with PKCE, state and nonce.

A browser that is sent away takes a random secret along in a cookie. From it come the PKCE verifier and the nonce, so
that a code or a token that was caught is of use in this browser only, and nothing secret has to be kept. The state is
good once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from foliot.errors import Denied, UsageError
from foliot.server.auth.identity import Role, role_named
from foliot.server.auth.oidc import Provider
from foliot.server.errors import Unauthenticated
from foliot.store.access.logins import Lifetime, LoginSession, SqlLoginFlows, SqlLoginSessions

if TYPE_CHECKING:
    from foliot.settings.settings import Settings


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


class Sent(NamedTuple):
    """The URL to which a browser is sent, and the content of its cookie."""

    url: str
    cookie: str


class Vouched(NamedTuple):
    """The person who came back from the provider, with a new session, and the page they wanted."""

    session: LoginSession
    cookie: str
    return_to: str


class OidcLogins:
    """The flow, and bearer tokens of the same provider."""

    def __init__(
        self,
        provider: Provider,
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

    async def send_away(self, return_to: str, *, here: str | None) -> Sent:
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
        return Sent(url, browser)

    async def take_back(self, params: Mapping[str, str], cookie: str | None, *, here: str | None) -> Vouched:
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
        return Vouched(*begun, return_to)

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
