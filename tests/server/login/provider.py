"""An identity provider that does what a test tells it, good or bad, on loopback."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import ec, rsa

# Making one takes a while: two for all tests.
KEYS = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]


def public_jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm: Any = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


class FakeProvider:
    """`async with FakeProvider() as provider`: then `provider.issuer`, and what it says can be changed."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": KEYS[0]}
        self.jwks: Callable[[], Any] = lambda: {"keys": [public_jwk(key, kid) for kid, key in self.keys.items()]}
        self.claims: dict[str, Any] = {"sub": "1", "preferred_username": "ada", "groups": ["devs"]}
        self.about: dict[str, Any] = {}
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.redirects: set[str] = set()
        self.asked: list[str] = []
        self.sent: list[dict[str, str]] = []
        self.headers: list[str] = []
        self.client_id = "foliot"
        self._codes: dict[str, tuple[str, str]] = {}

    async def __aenter__(self) -> FakeProvider:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._about)
        app.router.add_get("/keys", self._keys)
        app.router.add_post("/token", self._token)
        self._server = TestServer(app)
        await self._server.start_server()
        self.issuer = f"http://127.0.0.1:{self._server.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        await self._server.close()

    def authorize(self, location: str) -> str:
        """What the login page does after somebody typed the right things: path and query to go back to."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        assert query["code_challenge_method"] == "S256"
        assert query["response_type"] == "code"
        code = f"code-{len(self._codes)}"
        self._codes[code] = (query["code_challenge"], query["nonce"])
        return f"{urlsplit(query['redirect_uri']).path}?code={code}&state={query['state']}"

    def payload(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        times = {"iat": now, "exp": now + 300}
        claims = {"iss": self.issuer, "aud": self.client_id, **times, **self.claims, **more}
        return {name: value for name, value in claims.items() if value is not None}

    def signed(self, payload: dict[str, Any], kid: str = "one", algorithm: str = "RS256") -> str:
        return jwt.encode(payload, self.keys[kid], algorithm=algorithm, headers={"kid": kid})

    async def _about(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("about")
        if "about" in self.redirects:
            raise web.HTTPFound(f"{self.issuer}/keys")
        names = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        about = {"issuer": self.issuer, **{name: self.issuer + path for name, path in names.items()}, **self.about}
        return web.json_response(about)

    async def _keys(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("keys")
        if "keys" in self.redirects:
            raise web.HTTPFound("/.well-known/openid-configuration")
        shown = self.jwks()
        return web.Response(body=shown) if isinstance(shown, bytes) else web.json_response(shown)

    async def _token(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("token")
        if "token" in self.redirects:
            raise web.HTTPTemporaryRedirect(f"{self.issuer}/elsewhere")
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.sent.append(form)
        self.headers.append(request.headers.get("Authorization", ""))
        challenge, nonce = self._codes.pop(form["code"], ("", ""))
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if digest != challenge:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"access_token": "x", "id_token": self.sign(self.payload(nonce=nonce))})
