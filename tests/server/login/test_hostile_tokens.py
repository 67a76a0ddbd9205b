"""Tokens that are forged, expired or for somebody else, and keys that cannot be used: nobody is believed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from foliot.errors import Unavailable
from foliot.server.auth.oidc import ASKED_EVERY, LARGEST, OidcProvider
from foliot.server.errors import Unauthenticated
from tests.server.login.provider import KEYS, FakeProvider, public_jwk


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider() as provider:
        yield provider


@pytest.fixture
def known(provider: FakeProvider) -> OidcProvider:
    """The provider as the server knows it."""
    return OidcProvider(provider.issuer, "foliot", "secret")


def made(header: dict[str, Any], payload: dict[str, Any], key: bytes | None = None) -> str:
    """A token as no library would make it."""

    def part(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    body = f"{part(json.dumps({'typ': 'JWT', 'kid': 'one', **header}).encode())}.{part(json.dumps(payload).encode())}"
    return f"{body}.{part(hmac.digest(key, body.encode(), hashlib.sha256)) if key else ''}"


def hostile(provider: FakeProvider, how: str, payload: dict[str, Any]) -> str:
    pem = KEYS[0].public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    now = int(time.time())
    changes: dict[str, dict[str, Any]] = {
        "another audience": {"aud": "somebody-else"},
        "no audience": {"aud": None},
        "expired": {"iat": now - 7200, "exp": now - 3600},
        "no expiry": {"exp": None},
        "not yet": {"nbf": now + 3600},
        "from the future": {"iat": now + 3600},
        "another issuer": {"iss": "https://evil.example"},
        "no subject": {"sub": None},
        "another nonce": {"nonce": "x"},
        "no nonce": {"nonce": None},
        "issued to another client": {"aud": ["foliot", "other"], "azp": "other"},
        "many audiences, nobody named": {"aud": ["foliot", "other"]},
    }
    if how in changes:
        merged = {**payload, **changes[how]}
        return provider.signed({name: value for name, value in merged.items() if value is not None})
    match how:
        case "unsigned":
            return made({"alg": "none"}, payload)
        case "unsigned, written oddly":
            return made({"alg": "nOnE"}, payload)
        case "the public key as a secret":
            return made({"alg": "HS256"}, payload, pem)
        case "a shared secret among the keys":
            shared = {"kty": "oct", "kid": "one", "k": base64.urlsafe_b64encode(b"k" * 32).decode()}
            provider.jwks = lambda: {"keys": [shared]}
            return made({"alg": "HS256"}, payload, b"k" * 32)
        case "another key of the same name":
            return jwt.encode(payload, KEYS[1], algorithm="RS256", headers={"kid": "one"})
        case "an unknown key":
            return jwt.encode(payload, KEYS[0], algorithm="RS256", headers={"kid": "two"})
        case "a key for encryption":
            provider.jwks = lambda: {"keys": [public_jwk(KEYS[0], "one", use="enc")]}
            return provider.signed(payload)
        case "an algorithm that the key is not for":
            provider.jwks = lambda: {"keys": [public_jwk(KEYS[0], "one", alg="RS512")]}
            return provider.signed(payload)
        case "the key inside the token":
            header = {"kid": "one", "jwk": public_jwk(KEYS[1], "one"), "jku": f"{provider.issuer}/keys"}
            return jwt.encode(payload, KEYS[1], algorithm="RS256", headers=header)
        case _:
            head, _, tail = provider.signed(payload).rpartition(".")
            return f"{head}.{tail[:-4]}AAAA"


HOSTILE = [
    *("another audience", "no audience", "expired", "no expiry", "not yet", "from the future", "another issuer"),
    *("no subject", "another nonce", "no nonce", "issued to another client", "many audiences, nobody named"),
    *("unsigned", "unsigned, written oddly", "the public key as a secret", "a shared secret among the keys"),
    *("another key of the same name", "an unknown key", "a key for encryption", "the key inside the token"),
    *("an algorithm that the key is not for", "a broken signature"),
]


async def redeemed(known: OidcProvider, provider: FakeProvider, nonce: str = "n") -> Any:
    """A code that the provider gave, taken to it."""
    verifier = "v" * 43
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    sent = await known.login_url(
        redirect_uri="http://localhost/back",
        state="s",
        nonce=nonce,
        code_challenge=challenge,
        code_challenge_method="S256",
    )
    code = provider.authorize(sent).partition("code=")[2].partition("&")[0]
    return await known.redeem(code, verifier=verifier, redirect_url="http://localhost/back", nonce=nonce)


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
async def test_a_token_that_is_good_is_believed(known: OidcProvider, provider: FakeProvider, algorithm: str) -> None:
    provider.sign = lambda payload: provider.signed(payload, algorithm=algorithm)

    assert (await redeemed(known, provider))["preferred_username"] == "ada"


@pytest.mark.parametrize("how", HOSTILE)
async def test_a_token_that_is_not_good_is_nobody(known: OidcProvider, provider: FakeProvider, how: str) -> None:
    provider.sign = lambda payload: hostile(provider, how, payload)

    with pytest.raises(Unauthenticated, match="not good"):
        await redeemed(known, provider)


BEARER = [how for how in HOSTILE if "nonce" not in how and "audiences" not in how and "client" not in how]


@pytest.mark.parametrize("how", BEARER)
async def test_a_bearer_token_that_is_not_good_is_nobody(known: OidcProvider, provider: FakeProvider, how: str) -> None:
    token = hostile(provider, how, provider.payload(aud="api"))

    with pytest.raises(Unauthenticated, match="not good"):
        await known.verify(token, audience="api")


@pytest.mark.parametrize("text", ["", "a.b.c", "...", "e30.e30.", "\x00.\x00.\x00", "é.é.é", "a" * 10_000])
async def test_what_is_no_token_at_all_is_nobody(known: OidcProvider, text: str) -> None:
    with pytest.raises(Unauthenticated, match="not good"):
        await known.verify(text, audience="api")


async def test_keys_that_the_provider_changes_are_asked_for_again_but_not_at_every_turn(provider: FakeProvider) -> None:
    now = [0.0]
    known = OidcProvider(provider.issuer, "foliot", clock=lambda: now[0])
    await known.verify(provider.signed(provider.payload()), audience="foliot")
    provider.keys = {"two": KEYS[1]}
    rotated = provider.signed(provider.payload(), kid="two")

    for _ in range(3):
        with pytest.raises(Exception, match="not good"):
            await known.verify(rotated, audience="foliot")
    assert provider.asked == ["about", "keys"]
    now[0] += ASKED_EVERY
    assert (await known.verify(rotated, audience="foliot"))["sub"] == "1"
    assert provider.asked == ["about", "keys", "keys"]


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
async def test_a_provider_that_describes_itself_strangely_is_not_used(
    known: OidcProvider, provider: FakeProvider, about: dict[str, Any]
) -> None:
    provider.about = about

    with pytest.raises(Unavailable):
        await known.login_url()
    with pytest.raises(Unavailable):
        await known.login_url()
    assert provider.asked == ["about"], "it is not asked at every turn"


@pytest.mark.parametrize("keys", [b"<html>", b"[]", b"{}", b'{"keys": 1}', b" " * (LARGEST + 1), b'{"keys": [1, {}]}'])
async def test_keys_that_cannot_be_read_let_nobody_in(known: OidcProvider, provider: FakeProvider, keys: bytes) -> None:
    provider.jwks = lambda: keys

    with pytest.raises((Unavailable, Unauthenticated)):
        await redeemed(known, provider)


@pytest.mark.parametrize("azp", [None, "other", ""])
async def test_a_bearer_for_several_audiences_is_taken_only_from_whom_it_was_issued_to(
    provider: FakeProvider, azp: str | None
) -> None:
    known = OidcProvider(provider.issuer, "foliot")
    both = {"aud": ["api", "other"]}
    good = provider.signed(provider.payload(**both, azp="foliot"))
    assert (await known.verify(good, audience="api"))["sub"] == "1"

    with pytest.raises(Unauthenticated):
        await known.verify(
            provider.signed(provider.payload(**both, **({} if azp is None else {"azp": azp}))), audience="api"
        )


async def test_a_key_that_the_provider_has_withdrawn_is_no_good_any_more(provider: FakeProvider) -> None:
    now = 0.0
    known = OidcProvider(provider.issuer, "foliot", clock=lambda: now)
    token = provider.signed(provider.payload())
    await known.verify(token, audience="foliot")
    provider.keys["two"] = provider.keys.pop("one")

    now = 301.0

    with pytest.raises(Unauthenticated):
        await known.verify(token, audience="foliot")


async def test_keys_of_a_provider_that_is_away_are_not_believed_for_ever(provider: FakeProvider) -> None:
    now = 0.0
    known = OidcProvider(provider.issuer, "foliot", clock=lambda: now)
    token = provider.signed(provider.payload())
    await known.verify(token, audience="foliot")
    await provider.stop()
    now = 600.0
    await known.verify(token, audience="foliot")

    now = 901.0

    with pytest.raises(Unavailable):
        await known.verify(token, audience="foliot")
