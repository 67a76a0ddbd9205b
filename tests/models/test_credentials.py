"""Requests that are signed and tokens that are bought: servers on loopback check each signature for real."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from foliot.engine.definition.endpoints import RunModels
from foliot.errors import InvalidInput
from foliot.kernel.messages import Message, ModelRequest, Text
from foliot.models.base import ModelAuthError, ModelError
from foliot.models.config import GatewayConfig
from foliot.models.credentials import AwsSignature, GoogleTokens, found
from foliot.models.gateways.connection import HttpEndpoint
from foliot.models.registry import default_registry
from tests.models.obeying import Obeying
from tests.tools.web_service import serving

jwt = pytest.importorskip("jwt")
KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
AWS = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "session_token": "sess-token-77", "region": "eu-west-1"}
WHEN = 1794918645.0  # 2026-11-17T12:30:45Z
HELLO = ModelRequest("", (Message("user", (Text("Reply with the single word: ready"),)),))


async def unused(url: str, body: bytes, headers: Any) -> tuple[int, bytes]:
    raise AssertionError


# --- AWS -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "region", "service", "token", "body", "signature"),
    [
        (
            "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1/chat/completions",
            "eu-west-1", "bedrock", "", b'{"model":"m"}',
            "03a4f7371c9a52cf429da4c7f160763d3162f217c72e7fb1d56345b6f43b4f6c",
        ),
        (
            "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-v1%3A0/invoke",
            "us-east-1", "bedrock", "FwoGZXIvYXdzEXAMPLE==", b"{}",
            "270761003b15306590b6ca37cab8edf64f315e437007977020cdb858a27317d0",
        ),
        (
            "http://127.0.0.1:8123/anthropic/v1/messages?b=2&a=x%20y&a=%2F",
            "us-gov-west-1", "bedrock-mantle", "t", '{"text":"é"}'.encode(),
            "984aef1e5e7915f747049cb08d4a54e53e1c8e15f403090a87e6e195293df9ac",
        ),
    ],
)  # fmt: skip
async def test_signatures_are_those_of_the_official_library(
    url: str, region: str, service: str, token: str, body: bytes, signature: str
) -> None:
    """Recorded of botocore 1.44, with the example key of AWS's own documentation."""
    given = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "session_token": token}
    given |= {} if "amazonaws" in url else {"region": region}
    got = await AwsSignature(given, service, url, clock=lambda: WHEN).headers(url, body, "application/json", unused)
    assert got["Authorization"].endswith(f"Signature={signature}")
    assert f"/{region}/{service}/aws4_request" in got["Authorization"]


def verified(request: web.Request, body: bytes, secret: str) -> bool:
    """What AWS does: sign what came, with the headers that the caller says it signed, and compare."""
    scheme, _, rest = request.headers["Authorization"].partition(" ")
    said = dict(part.split("=", 1) for part in rest.split(", "))
    key_id, date, region, service, kind = said["Credential"].split("/")
    lines = "".join(f"{name}:{request.headers[name]}\n" for name in said["SignedHeaders"].split(";"))
    path = request.raw_path.partition("?")[0]
    canonical = f"POST\n{path}\n\n{lines}\n{said['SignedHeaders']}\n{hashlib.sha256(body).hexdigest()}"
    stamp = request.headers["X-Amz-Date"]
    text = f"{scheme}\n{stamp}\n{date}/{region}/{service}/{kind}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for each in (date, region, service, kind, text):
        key = hmac.new(key, each.encode(), hashlib.sha256).digest()
    wanted = {"host", "content-type", "x-amz-date"}
    return key.hex() == said["Signature"] and key_id == KEY_ID and wanted <= set(said["SignedHeaders"].split(";"))


@pytest.mark.parametrize(
    ("provider", "wire", "path", "service"),
    [
        ("bedrock", "openai-chat", "/openai/v1", "bedrock"),
        ("bedrock-anthropic", "anthropic", "/anthropic/v1", "bedrock-mantle"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_bedrock_is_asked_with_a_signature_that_it_verifies(
    provider: str, wire: str, path: str, service: str, stream: bool
) -> None:
    answers = Obeying(provider, wire)

    async def answer(request: web.Request) -> web.StreamResponse:
        if not verified(request, await request.read(), SECRET):
            return web.json_response({"message": "The request signature does not match"}, status=403)
        assert request.headers["X-Amz-Security-Token"] == AWS["session_token"]
        assert f"/eu-west-1/{service}/" in request.headers["Authorization"]
        return await answers(request)

    async with serving(answer) as service_at:

        async def asked(document: dict[str, str]) -> Any:
            # As a file would have it, on many lines.
            key = json.dumps(document, indent=2)
            config = GatewayConfig(provider, base_url=service_at.url + path, api_key=key, model="m")
            gateway = default_registry().build(config)
            try:
                return await gateway.respond(HELLO, on_delta=(lambda delta: None) if stream else None)
            finally:
                await gateway.close()

        assert (await asked(AWS)).message.text == "ready"
        with pytest.raises(ModelAuthError) as caught:
            await asked({**AWS, "secret_access_key": "another"})
        for request in service_at.requests:
            assert SECRET not in str(request.headers)
            assert "x-api-key" not in request.headers
    for secret in (SECRET, "another", AWS["session_token"]):
        assert secret not in f"{caught.value} {caught.value.hint} {caught.value.details}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access_key_id": "a", "region": "r"}, "no secret_access_key"),
        ({"access_key_id": "a", "secret_access_key": "s3cr3t"}, "region"),
        ({"access_key_id": 7, "secret_access_key": "s3cr3t", "region": "r"}, "no access_key_id"),
    ],
)
def test_credentials_that_lack_something_are_refused_before_any_call(given: Any, said: str) -> None:
    config = GatewayConfig("bedrock", base_url="http://127.0.0.1:9/openai/v1", api_key=json.dumps(given), model="m")
    with pytest.raises(InvalidInput, match=said) as caught:
        default_registry().build(config)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in repr(config)


def test_credentials_are_found_where_the_official_tools_look(tmp_path: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "eu-west-1"}
    wanted = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "session_token": "", "region": "eu-west-1"}
    assert json.loads(found("aws", environ)) == wanted
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws" / "credentials"
    file.write_text(
        f"[default]\naws_access_key_id={KEY_ID}\naws_secret_access_key = {SECRET}%x\n\n"
        "[work]\naws_access_key_id = W\naws_secret_access_key = S\naws_session_token = T\n"
    )
    home = {"HOME": str(tmp_path)}
    assert json.loads(found("aws", home))["secret_access_key"] == f"{SECRET}%x"
    work = json.loads(found("aws", {**home, "AWS_PROFILE": "work"}))
    assert (work["access_key_id"], work["session_token"]) == ("W", "T")
    moved = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "HOME": "/nonexistent"}
    assert json.loads(found("aws", moved))["access_key_id"] == KEY_ID
    for nowhere in ({}, {"HOME": str(tmp_path / "no")}, {**home, "AWS_PROFILE": "nobody"}):
        assert found("aws", nowhere) == ""
    file.write_text("no file of this kind")
    assert found("aws", home) == ""
    assert default_registry().find("bedrock").key_in({**environ, "AWS_BEARER_TOKEN_BEDROCK": "bearer"}) == "bearer"


async def test_a_model_named_by_its_provider_is_asked_with_what_the_environment_holds() -> None:
    answers = Obeying("bedrock", "openai-chat")

    async def answer(request: web.Request) -> web.StreamResponse:
        assert verified(request, await request.read(), SECRET)
        return await answers(request)

    async with serving(answer) as service:
        environ = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}
        environ["AWS_BEDROCK_BASE_URL"] = f"{service.url}/openai/v1"
        models = RunModels(None, clock=asyncio.get_running_loop().time, environ=environ)
        try:
            got = await models._router.respond("bedrock:m", HELLO)
        finally:
            await models.close()
    assert got.message.text == "ready"


# --- Google --------------------------------------------------------------------------------------------------------

PRIVATE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = PRIVATE.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Bank:
    """Gives tokens for assertions that verify, good for `life` seconds, and takes none but the newest."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.life: float = 3600
        self.fails = 0
        self.refuses = False
        self.answers = Obeying("vertex", "gemini")

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/token":
            if self.refuses or request.headers.get("Authorization") != f"Bearer {self.given[-1]}":
                shown = request.headers.get("Authorization", "")
                return web.json_response({"error": {"message": f"bad credentials {shown}"}}, status=401)
            return await self.answers(request)
        form = {name: values[0] for name, values in parse_qs((await request.read()).decode()).items()}
        if self.fails:
            return web.json_response({"error": "invalid_grant", "error_description": str(form)}, status=self.fails)
        if form["grant_type"] == "refresh_token":
            assert form == {"grant_type": "refresh_token", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
        else:
            assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
            claims = jwt.decode(
                form["assertion"], PRIVATE.public_key(), ["RS256"], audience="https://oauth2.googleapis.com/token",
                options={"verify_exp": False, "verify_iat": False},
            )  # fmt: skip
            assert claims["iss"] == "robot@project.iam.gserviceaccount.com"
            assert claims["scope"] == SCOPE
            assert claims["exp"] - claims["iat"] == 3600
            assert jwt.get_unverified_header(form["assertion"])["kid"] == "kid-1"
        self.given.append(f"ya29.token-{len(self.given)}")
        return web.json_response({"access_token": self.given[-1], "expires_in": self.life, "token_type": "Bearer"})


def robot(url: str) -> dict[str, str]:
    return {
        "type": "service_account", "project_id": "project", "private_key_id": "kid-1", "private_key": PEM,
        "client_email": "robot@project.iam.gserviceaccount.com", "token_uri": f"{url}/token",
    }  # fmt: skip


def endpoint_of(url: str, document: dict[str, str], clock: Callable[[], float]) -> HttpEndpoint:
    config = GatewayConfig("vertex", base_url=f"{url}/v1", api_key=json.dumps(document), model="m")
    return HttpEndpoint(config, config.base_url, {}, GoogleTokens(document, clock=clock))


ASKED = json.dumps({"contents": [{"role": "user", "parts": [{"text": "ready?"}]}]}).encode()
PATH = "/models/m:generateContent"


async def test_vertex_is_asked_with_a_token_that_a_service_account_buys_once() -> None:
    async with serving(bank := Bank()) as service:
        config = GatewayConfig(
            "vertex", base_url=f"{service.url}/v1", api_key=json.dumps(robot(service.url), indent=2), model="m"
        )
        gateway = default_registry().build(config)
        try:
            got = await asyncio.gather(*(gateway.respond(HELLO) for _ in range(8)))
        finally:
            await gateway.close()
        user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
        endpoint = endpoint_of(service.url, {**user, "token_uri": f"{service.url}/token"}, lambda: WHEN)
        await endpoint.fetch(PATH, ASKED)
        await endpoint.close()
    assert {each.message.text for each in got} == {"ready"}
    assert bank.given == ["ya29.token-0", "ya29.token-1"]


async def test_the_official_library_buys_the_same() -> None:
    accounts = pytest.importorskip("google.oauth2.service_account")
    bank = Bank()
    async with serving(bank) as service:
        theirs = accounts.Credentials.from_service_account_info(robot(service.url), scopes=[SCOPE])
        assertion = theirs._make_authorization_grant_assertion()
        ours = GoogleTokens(robot(service.url))._asked()["assertion"]
    read = [
        (jwt.get_unverified_header(each), jwt.decode(each, options={"verify_signature": False}))
        for each in (ours, assertion.decode() if isinstance(assertion, bytes) else assertion)
    ]
    assert read[0][0] == read[1][0]
    assert {name: read[0][1][name] for name in ("iss", "scope", "aud")} == {
        name: read[1][1][name] for name in ("iss", "scope", "aud")
    }


async def test_a_token_is_replaced_before_it_ends_and_when_it_is_refused() -> None:
    now = WHEN
    async with serving(bank := Bank()) as service:
        endpoint = endpoint_of(service.url, robot(service.url), lambda: now)
        try:
            await endpoint.fetch(PATH, ASKED)
            now += 3000
            await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == 1
            now += 301  # five minutes before the end
            await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == 2
            bank.given.append("withdrawn")  # the provider takes the old one back
            await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == 4
            # Whoever gives tokens is away: the old one is used for as long as it is good, and no longer.
            now += 3400
            bank.fails = 503
            await endpoint.fetch(PATH, ASKED)
            now += 300
            with pytest.raises(ModelError) as caught:
                await endpoint.fetch(PATH, ASKED)
            assert caught.value.retryable
            bank.fails = 0
            await endpoint.fetch(PATH, ASKED)
            bank.life = 60  # shorter than the time before its end: half of its life is used
            now += 3600
            await endpoint.fetch(PATH, ASKED)
            count = len(bank.given)
            now += 29
            await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == count
            now += 2
            await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == count + 1
        finally:
            await endpoint.close()


async def test_no_secret_is_in_what_is_said_of_a_refusal() -> None:
    async with serving(bank := Bank()) as service:
        endpoint = endpoint_of(service.url, robot(service.url), lambda: WHEN)
        try:
            bank.fails = 400
            with pytest.raises(ModelAuthError, match=r"400, invalid_grant") as caught:
                await endpoint.fetch(PATH, ASKED)
            assert "eyJ" not in str(caught.value)
            bank.fails = 0
            await endpoint.fetch(PATH, ASKED)
            bank.refuses = True
            with pytest.raises(ModelAuthError, match="bad credentials") as caught:
                await endpoint.fetch(PATH, ASKED)
            assert len(bank.given) == 2  # asked once more with a new one, and no third time
        finally:
            await endpoint.close()
    assert "ya29" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"private_key": "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"}, "no RSA key"),
        ({"private_key": ""}, "no private_key"),
        ({"type": "external_account"}, "'external_account' are not used"),
        ({"token_uri": "http://tokens.example/token"}, "no https address"),
    ],
)
def test_google_s_credentials_that_buy_nothing_are_told(change: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        GoogleTokens({**robot("http://127.0.0.1:9"), **change})
    assert "c2VjcmV0" not in str(caught.value)


def test_application_default_credentials_are_found(tmp_path: Path) -> None:
    file = tmp_path / "robot.json"
    file.write_text(json.dumps(robot("https://tokens.example"), indent=2))
    assert json.loads(found("google", {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}))["private_key"] == PEM
    gcloud = tmp_path / ".config" / "gcloud"
    gcloud.mkdir(parents=True)
    (gcloud / "application_default_credentials.json").write_text('{"type": "authorized_user"}')
    assert json.loads(found("google", {"HOME": str(tmp_path)})) == {"type": "authorized_user"}
    assert found("google", {"HOME": str(tmp_path / "no")}) == ""
    assert found("google", {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)}) == ""
