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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foliot.errors import UsageError
from foliot.server.access.oidc import Provider
from foliot.server.access.oidc_claims import Reading, rules_of
from foliot.server.errors import Unauthenticated
from foliot.store.access.login_flows import SqlLoginFlows
from foliot.store.access.login_sessions import Lifetime, LoginSession, SqlLoginSessions

if TYPE_CHECKING:
    from foliot.settings import Settings

CALLBACK: Final = "/v1/auth/oidc/callback"
BACK_WITHIN: Final = 600.0
_CODE: Final = re.compile(r"[a-z_]{1,60}")
_LOCAL_PATH: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]{0,500}|/")


class Sent(NamedTuple):
    """Where a browser is sent, and what it takes along in its cookie."""

    url: str
    cookie: str


class Vouched(NamedTuple):
    """Who came back, with a session that has begun, and where they wanted to go."""

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
