"""Where models are asked: endpoints of the store with their keys, and nothing that a manifest must not reach."""

from __future__ import annotations

import base64
import json

import pytest

from foliot.engine.definition.endpoints import RunModels
from foliot.errors import Denied, NotFound, SecretError, SecretMissing
from foliot.kernel.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    RestartDelta,
    Text,
    TextDelta,
)
from foliot.kernel.run.spec import RunSpec
from foliot.models.base import ModelAuthError, ModelDelayed, ModelError, ModelOverloaded
from foliot.models.routing.pricing import Pricing
from foliot.resources.references import qualified
from foliot.resources.validate import validate_document
from foliot.server.http.problems import problem_of
from foliot.store.base import Delete, Key, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.store.secrets.keyring import keyring_from_text
from foliot.store.sqlite.database import SqliteDatabase


def document(kind: str, name: str, *, namespace: str = "default", **spec) -> dict:
    made, problems = validate_document({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    assert made is not None, problems
    return made


@pytest.fixture
async def store(tmp_path):
    database = await SqliteDatabase.open(tmp_path / "foliot.db")
    yield SqlResourceStore(database, lambda: keyring_from_text("ab" * 32))
    await database.close()


def endpoint(name: str = "main", **spec) -> dict:
    return document("ModelEndpoint", name, provider="openai", default_model="m", **spec)


async def key_of(store, environ: dict[str, str], ref: str) -> str:
    await store.write([Put(endpoint(auth={"secretRef": ref}))])
    models = RunModels(store, clock=lambda: 0.0, environ=environ)
    try:
        return (await models._resolve("default/main")).gateway.api_key
    finally:
        await models.close()


async def test_a_stored_secret_is_opened_and_wins_over_the_environment(store) -> None:
    value = base64.b64encode(b"sk-stored").decode()
    await store.write([Put(document("Secret", "llm", data={"value": value, "other": value}))])
    assert await key_of(store, {"FOLIOT_SECRET_LLM": "sk-env"}, "llm") == "sk-stored"
    assert await key_of(store, {}, "llm:other") == "sk-stored"


async def test_a_secret_without_the_key_says_which_it_has(store) -> None:
    value = base64.b64encode(b"sk-stored").decode()
    await store.write([Put(document("Secret", "llm", data={"key": value}))])
    with pytest.raises(SecretMissing, match="'main': Secret/llm has no key `value`; it has `key`") as caught:
        await key_of(store, {}, "llm")
    assert (caught.value.http, caught.value.hint) == (422, "write llm:key, or store the value under `value`")
    with pytest.raises(SecretMissing, match="is not there"):
        await key_of(store, {}, "other")
    assert await key_of(store, {"FOLIOT_SECRET_LLM": "sk-env"}, "llm") == "sk-env"
    told = json.loads(bytes(problem_of(caught.value).body))
    assert (told["code"], "it has `key`" in told["detail"]) == ("secret_missing", True)


async def test_the_environment_serves_only_with_the_prefix(store) -> None:
    assert await key_of(store, {"FOLIOT_SECRET_MY_KEY": "sk-env"}, "my-key") == "sk-env"
    with pytest.raises(SecretError, match="main"):
        await key_of(store, {"MY_KEY": "sk-bare", "my-key": "sk-bare"}, "my-key")


async def test_the_key_that_seals_all_secrets_cannot_be_named(store) -> None:
    with pytest.raises(SecretError):
        await key_of(store, {"FOLIOT_SECRET_KEY": "ab" * 32}, "key")


async def test_secrets_of_another_namespace_cannot_be_named(store) -> None:
    value = base64.b64encode(b"sk-theirs").decode()
    await store.write([Put(document("Secret", "llm", namespace="theirs", data={"value": value}))])
    with pytest.raises(Denied, match="may not refer to a Secret of namespace 'theirs'"):
        await key_of(store, {}, "theirs/llm")
    grant = document(
        "ReferenceGrant", "llm", namespace="theirs", **{"from": [{"namespace": "default"}], "to": [{"kind": "Secret"}]}
    )
    await store.write([Put(grant)])
    assert await key_of(store, {}, "theirs/llm") == "sk-theirs"
    await store.write([Delete(Key("ReferenceGrant", "theirs", "llm"))])
    models = RunModels(store, clock=lambda: 0.0, environ={})
    with pytest.raises(SecretError, match="may not refer") as caught:
        await models.model_of("default/main", "default")
    assert "sk-theirs" not in str(caught.value)
    await models.close()


async def test_an_endpoint_that_changed_is_seen_soon(store) -> None:
    now = 0.0
    models = RunModels(store, clock=lambda: now, environ={})
    await store.write([Put(endpoint())])
    assert await models.model_of("default/main", "default") == "m"
    changed = document("ModelEndpoint", "main", provider="openai", default_model="newer")
    await store.write([Put(changed)])
    now = 5.0
    assert await models.model_of("default/main", "default") == "newer"
    await models.close()


async def test_an_endpoint_that_is_not_there_is_named(store) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ={})
    with pytest.raises(NotFound, match="nowhere") as caught:
        await models.model_of("default/nowhere", "default")
    assert "provider:model" in (caught.value.hint or "")
    await models.close()


@pytest.mark.parametrize(
    ("ref", "meant"), [("main", "team/main"), ("other/main", "other/main"), ("openai:gpt-5", "openai:gpt-5")]
)
def test_a_reference_means_the_same_wherever_it_is_read(ref: str, meant: str) -> None:
    assert qualified(ref, "team") == meant


class Object:
    """A gateway made in Python."""

    def __init__(self, pricing: Pricing | None = None) -> None:
        if pricing is not None:
            self.pricing = pricing

    async def respond(self, request: ModelRequest, *, on_delta=None):
        raise AssertionError("nobody is asked for a quote")

    async def close(self) -> None:
        pass


async def test_a_quote_is_that_of_the_dearest_model_that_may_answer(store) -> None:
    await store.write([Put(endpoint("spare", pricing={"input": 0, "output": 30}))])
    models = RunModels(store, clock=lambda: 0.0, environ={})
    models.serve("python:default/a", Object(Pricing(0, 10)))
    request = ModelRequest("m", (), settings=ModelSettings(max_output_tokens=1000))
    spec = RunSpec("a", "m", extra={"endpoint": "python:default/a"})
    assert (await models.quote(spec, request)).cost_usd == pytest.approx(0.01)
    with_spare = RunSpec("a", "m", fallbacks=("spare", "missing"), extra={"endpoint": "python:default/a"})
    assert (await models.quote(with_spare, request)).cost_usd == pytest.approx(0.03)
    models.serve("default/missing", Object())
    unpriced = await models.quote(with_spare, request)
    assert unpriced.unpriced
    assert (unpriced.cost_usd, unpriced.output_tokens) == (None, 1000)
    await models.close()


class Heard(Object):
    """A gateway made in Python that shows a piece and then answers, or fails."""

    def __init__(self, error: ModelError | None = None) -> None:
        self.error = error
        self.asked: list[str] = []

    async def respond(self, request: ModelRequest, *, on_delta=None):
        self.asked.append(request.model)
        if on_delta is not None:
            on_delta(TextDelta("half"))
        if self.error is not None:
            raise self.error
        return ModelResponse(Message("assistant", (Text("saved"),)))


async def test_a_fallback_of_the_agent_is_asked_for_its_own_model(store) -> None:
    spare = document("ModelEndpoint", "spare", provider="scripted", default_model="small", script=["saved by {model}"])
    await store.write([Put(spare)])
    models = RunModels(store, clock=lambda: 0.0, environ={})
    models.serve("python:default/a", Heard(ModelOverloaded("busy")))
    spec = RunSpec("a", "big", fallbacks=("spare",), extra={"endpoint": "python:default/a"})
    answer = await models.ask(spec, ModelRequest("big", ()))
    assert (answer.message.text, answer.model, answer.endpoint) == ("saved by small", "small", "default/spare")
    await models.close()


async def test_fields_for_one_provider_do_not_reach_a_fallback_of_the_agent_of_another(store) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ={})
    request = ModelRequest("big", (), settings=ModelSettings(extra={"logit_bias": {"1": 2}}))
    asked: list[dict[str, object]] = []

    class Listening(Heard):
        async def respond(self, request: ModelRequest, *, on_delta=None):
            asked.append(request.settings.extra)
            return await super().respond(request, on_delta=on_delta)

    models.serve("python:default/a", Listening(ModelOverloaded("busy")))
    models.serve("default/b", Listening())
    spec = RunSpec("a", "big", fallbacks=("b",), extra={"endpoint": "python:default/a"})
    answer = await models.ask(spec, request)
    await models.close()
    assert asked == [{"logit_bias": {"1": 2}}, {}]
    assert answer.notes == (
        "extra is not sent: default/b is of another provider than python:default/a",
        "default/b answered in place of python:default/a (overloaded: busy)",
    )


async def test_a_fallback_of_the_agent_that_answers_after_standing_in_line_says_what_it_was_not_sent(store) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ={})
    second = Heard()

    async def in_line() -> ModelResponse:
        return await second.respond(ModelRequest("b", ()))

    models.serve("python:default/a", Heard(ModelOverloaded("busy")))
    models.serve("default/b", Heard(ModelDelayed("later", wait=5, endpoint="default/b", stand_in_line=in_line)))
    spec = RunSpec("a", "big", fallbacks=("b",), extra={"endpoint": "python:default/a"})
    answer = await models.ask(spec, ModelRequest("big", (), settings=ModelSettings(extra={"mine": 1})))
    await models.close()
    assert second.asked == ["b"]
    assert answer.notes == (
        "extra is not sent: default/b is of another provider than python:default/a",
        "default/b answered in place of python:default/a (overloaded: busy)",
    )


async def test_a_fallback_of_the_agent_that_is_broken_is_passed_over_and_its_pieces_are_withdrawn(store) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ={})
    first, second, third = Heard(ModelOverloaded("busy")), Heard(ModelAuthError("no key")), Heard()
    for name, gateway in (("python:default/a", first), ("default/b", second), ("default/d", third)):
        models.serve(name, gateway)
    spec = RunSpec("a", "big", fallbacks=("b", "missing", "d"), extra={"endpoint": "python:default/a"})
    deltas: list[object] = []
    answer = await models.ask(spec, ModelRequest("big", ()), on_delta=deltas.append)
    assert answer.message.text == "saved"
    assert (first.asked, second.asked, third.asked) == (["big"], ["default/b"], ["default/d"])
    assert [type(delta) for delta in deltas] == [TextDelta, RestartDelta, TextDelta, RestartDelta, TextDelta]

    third.error = ModelAuthError("no key")
    with pytest.raises(ModelOverloaded) as caught:  # it may pass, so the run will ask again
        await models.ask(spec, ModelRequest("big", ()))
    assert [tried["kind"] for tried in caught.value.details["tried"]] == ["overloaded", "auth", "request", "auth"]
    await models.close()


@pytest.mark.parametrize(
    ("ref", "environ", "key"),
    [
        ("openai:gpt-5", {"OPENAI_API_KEY": "k"}, "k"),
        ("claude:claude-sonnet-5", {"ANTHROPIC_API_KEY": "k"}, "k"),
        ("groq:llama", {"GROQ_API_KEY": "k"}, "k"),
        ("gemini:g", {"GOOGLE_API_KEY": "old"}, "old"),
        ("gemini:g", {"GOOGLE_API_KEY": "old", "GEMINI_API_KEY": "k"}, "k"),
        ("ollama:llama3.2:3b", {"OPENAI_API_KEY": "k"}, ""),
        ("nobody:x", {"NOBODY_API_KEY": "k"}, ""),
    ],
)
async def test_a_model_named_with_its_provider_takes_the_key_that_is_usual_there(ref, environ, key) -> None:
    models = RunModels(None, clock=lambda: 0.0, environ=environ)
    gateway = (await models._resolve(ref)).gateway
    assert (gateway.api_key, gateway.model) == (key, ref.partition(":")[2])
    await models.close()


async def test_a_key_that_is_missing_is_asked_for_where_it_is_looked_for(store) -> None:
    models = RunModels(store, clock=lambda: 0.0, environ={})
    with pytest.raises(ModelError) as caught:
        await models.ask(RunSpec("a", "m", extra={"endpoint": "groq:llama"}), ModelRequest("m", ()))
    assert "GROQ_API_KEY" in str(caught.value.hint)
    await models.close()
