"""Where a provider is asked when the environment says so: the vendors' own SDKs are the judges, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from foliot.engine.definition.endpoints import RunModels
from foliot.kernel.messages import Message, ModelRequest, Text
from foliot.kernel.run.spec import RunSpec
from foliot.models.base import ModelError
from foliot.models.registry import default_registry
from foliot.resources.validate import validate_document
from foliot.store.base import DeclaredBy, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.sqlite.database import SqliteDatabase
from tests.tools.web_service import Service, serving

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
genai = pytest.importorskip("google.genai")

SAY: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def listener() -> AsyncIterator[Service]:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)

    async with serving(refuse) as service:
        yield service


def asked(service: Service) -> tuple[str, str]:
    """The path of the one request that came, and the key in it."""
    (request,) = service.requests
    service.requests.clear()
    names = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
    shown = next(request.headers[name] for name in names if name in request.headers)
    return request.path, shown.removeprefix("Bearer ")


async def ours(ref: str, environ: dict[str, str], store: Any = None) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ=environ)
    request = ModelRequest("", (Message("user", (Text("hello"),)),))
    with contextlib.suppress(ModelError):
        await models.ask(RunSpec("a", ref, extra={"endpoint": ref}), request)
    await models.close()


async def _chat() -> None:
    async with openai.AsyncOpenAI(max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=SAY)


async def _responses() -> None:
    async with openai.AsyncOpenAI(max_retries=0) as client:
        await client.responses.create(model="m", input="hello")


async def _azure() -> None:
    async with openai.AsyncAzureOpenAI(max_retries=0, api_version="2024-10-21") as client:
        await client.chat.completions.create(model="m", messages=SAY)


async def _messages() -> None:
    async with anthropic.AsyncAnthropic(max_retries=0) as client:
        await client.messages.create(model="m", max_tokens=5, messages=SAY)


async def _gemini() -> None:
    client = genai.Client()  # its client for asyncio warns of itself
    await asyncio.to_thread(client.models.generate_content, model="m", contents="hello")


JUDGES: list[tuple[str, str, str, str, Callable[[], Any]]] = [
    ("openai:m", "OPENAI_BASE_URL", "/proxy/v1", "OPENAI_API_KEY", _chat),
    ("openai:m", "OPENAI_BASE_URL", "/v1/", "OPENAI_API_KEY", _chat),
    ("openai-responses:m", "OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY", _responses),
    ("azure-openai:m", "AZURE_OPENAI_ENDPOINT", "", "AZURE_OPENAI_API_KEY", _azure),
    ("anthropic:m", "ANTHROPIC_BASE_URL", "", "ANTHROPIC_API_KEY", _messages),
    ("anthropic:m", "ANTHROPIC_BASE_URL", "/proxy/", "ANTHROPIC_API_KEY", _messages),
    ("gemini:m", "GOOGLE_GEMINI_BASE_URL", "", "GEMINI_API_KEY", _gemini),
    ("gemini:m", "GOOGLE_GEMINI_BASE_URL", "/proxy", "GEMINI_API_KEY", _gemini),
]


@pytest.mark.parametrize(("ref", "variable", "path", "key", "judge"), JUDGES)
async def test_key_and_prompt_go_where_the_official_sdk_sends_them(
    listener: Service,
    monkeypatch: pytest.MonkeyPatch,
    ref: str,
    variable: str,
    path: str,
    key: str,
    judge: Callable[[], Any],
) -> None:
    environ = {variable: listener.url + path, key: "key-1"}
    # Which version of its API is spoken is for each client to say; the address says where.
    for name, value in {**environ, "GOOGLE_GENAI_API_VERSION": "v1beta"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=r"400|no"):
        await judge()
    theirs = asked(listener)
    await ours(ref, environ)
    assert asked(listener) == theirs


@pytest.mark.parametrize(
    ("said", "address"),
    [  # as ollama's own client reads it
        ("10.0.0.5", "http://10.0.0.5:11434"),
        ("10.0.0.5:8080", "http://10.0.0.5:8080"),
        ("http://box", "http://box:80"),
        ("https://box", "https://box:443"),
        ("https://box:8443/ollama/", "https://box:8443/ollama"),
        ("[::1]:7000", "http://[::1]:7000"),
        (":7000", "http://127.0.0.1:7000"),
        (" ", ""),
    ],
)
def test_ollama_host_is_a_host_or_an_address(said: str, address: str) -> None:
    assert default_registry().find("ollama").address_in({"OLLAMA_HOST": said}) == address


async def test_an_endpoint_that_leaves_the_address_to_the_provider_goes_where_the_environment_says(
    listener: Service, tmp_path: Path
) -> None:
    """Whoever declared it: the operator chose the address. One that names an address of its own keeps it."""
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    store = SqlResourceStore(database, lambda: keyring_from_text("ab" * 32))

    def made(kind: str, name: str, **spec: Any) -> Put:
        document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
        assert document is not None, problems
        return Put(document)

    key = made("Secret", "k", stringData={"value": "key-1"})
    main = made("ModelEndpoint", "main", provider="openai", default_model="m", auth={"secretRef": "k"})
    environ = {"OPENAI_BASE_URL": f"{listener.url}/v1"}
    for by in (DeclaredBy("ann"), DeclaredBy("root", operator=True)):
        await store.write([key, main], by=by)
        await ours("default/main", environ, store)
        assert asked(listener) == ("/v1/chat/completions", "key-1")
        other = made("ModelEndpoint", "main", provider="openai", default_model="m", base_url="https://api.invalid/v1")
        await store.write([other], by=by)
        await ours("default/main", environ, store)
        assert not listener.requests
    await database.close()
