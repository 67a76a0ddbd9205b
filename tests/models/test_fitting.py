"""Settings that a model refuses, fields of the endpoint's own, and reasoning that only one account can read."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from foliot import Agent, Runtime, tool
from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import way_of
from foliot.errors import InvalidInput
from foliot.kernel.messages import (
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Reasoning,
    Text,
    ToolCall,
    ToolSpec,
)
from foliot.models.config import GatewayConfig
from foliot.models.gateways.anthropic import AnthropicGateway
from foliot.models.gateways.gemini import GeminiGateway
from foliot.models.gateways.ollama import OllamaGateway
from foliot.models.gateways.openai import OpenAIChatGateway, OpenAIResponsesGateway
from foliot.models.routing.endpoints import EndpointConfig
from foliot.models.routing.router import Router
from foliot.models.wire.anthropic import AnthropicWire
from foliot.models.wire.requests import merged
from foliot.resources.rates import RateLimits
from simulators.provider import Fault, Play, WireServer

SAID = ModelResponse(Message("assistant", (Text("ok"),)))
BROKEN = Play(fault=Fault("status", status=503))
USER = Message("user", (Text("hi"),))


def ask(model: str = "gpt-5", *more: Message, **settings: Any) -> ModelRequest:
    return ModelRequest(model, (USER, *more), settings=ModelSettings(**settings))


# --- what is left out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "provider", "model", "given", "field"),
    [
        (AnthropicGateway, "anthropic", "claude-opus-4-8", {"temperature": 0.5}, "temperature"),
        (OpenAIChatGateway, "openai", "gpt-5", {"temperature": 0.5}, "temperature"),
        (OpenAIChatGateway, "openai", "o3", {"stop": ("END",)}, "stop"),
        (OpenAIResponsesGateway, "openai-responses", "gpt-4o", {"stop": ("END",)}, "stop"),
        (AnthropicGateway, "anthropic", "claude-opus-4-8", {"seed": 1}, "seed"),
    ],
)
async def test_what_a_model_refuses_is_left_out_and_the_answer_and_the_log_say_so(
    kind: Any, provider: str, model: str, given: dict[str, Any], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with WireServer([SAID]) as server:
        gateway = kind(GatewayConfig(provider, f"{server.url}/v1", "sk-1"))
        with caplog.at_level(logging.WARNING, "foliot.models"):
            answers = [await gateway.respond(ask(model, **given)) for _ in range(3)]
        plain = await gateway.respond(ask(model))
        await gateway.close()
    assert all(field not in request.json for request in server.requests)
    (note,) = answers[-1].notes
    assert note.startswith(f"{field} is not sent: {model} refuses it")
    assert [record.getMessage() for record in caplog.records] == [f"model provider {provider}: {note}"]  # once
    assert plain.notes == ()


async def test_a_model_that_takes_a_setting_is_sent_it_without_a_note() -> None:
    async with WireServer([SAID]) as server:
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1"))
        answer = await gateway.respond(ask("gpt-4o", temperature=0.5, stop=("END",)))
        await gateway.close()
    sent = server.requests[0].json
    assert (sent["temperature"], sent["stop"], answer.notes) == (0.5, ["END"], ())


async def test_the_profile_of_an_endpoint_can_refuse_more_and_less() -> None:
    async with WireServer([SAID]) as server:
        options = {"profile": {"refuses": ["top_p"]}}
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1", options=options))
        answer = await gateway.respond(ask("gpt-4o", top_p=0.5, temperature=0.5))
        await gateway.close()
    assert "top_p" not in server.requests[0].json
    assert server.requests[0].json["temperature"] == 0.5
    assert answer.notes == ("top_p is not sent: gpt-4o refuses it",)


async def test_trace_and_why_tell_once_what_was_left_out() -> None:
    call = ModelResponse(Message("assistant", (ToolCall("c1", "nothing", "{}"),)), stop="tool_calls")
    async with WireServer([call, SAID]) as server, Runtime("memory:") as runtime:
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1", model="gpt-5"))
        agent = Agent("clerk", model=gateway, model_name="gpt-5", model_settings={"temperature": 0.5})
        result = await runtime.run(agent, "hi")
        trace = trace_of(result.run_id, await runtime.inside.runs.facts(result.run_id))
    assert len(trace.steps) == 2
    notes = [mark.text for mark in trace.marks if mark.kind == "note"]
    assert notes == ["temperature is not sent: gpt-5 refuses it while it reasons"]
    assert any("temperature is not sent" in line for line in way_of(trace))


# --- the settings of an agent, through a run --------------------------------------------------------------------------


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


SETTINGS: dict[str, Any] = {
    "tool_choice": "look_up",
    "parallel_tool_calls": False,
    "strict_tools": True,
    "reasoning_effort": "MAX",
}


@pytest.mark.parametrize(
    ("kind", "model", "sent", "strict", "notes"),
    [
        (
            OpenAIChatGateway,
            "gpt-5.5",
            {
                "tool_choice": {"type": "function", "function": {"name": "look_up"}},
                "parallel_tool_calls": False,
                "reasoning_effort": "xhigh",
            },
            "tools.0.function.strict",
            ["reasoning_effort max is sent as xhigh (gpt-5.5)"],
        ),
        (
            OpenAIResponsesGateway,
            "gpt-5.5",
            {
                "tool_choice": {"type": "function", "name": "look_up"},
                "parallel_tool_calls": False,
                "reasoning": {"effort": "xhigh", "summary": "auto"},
            },
            "tools.0.strict",
            ["reasoning_effort max is sent as xhigh (gpt-5.5)"],
        ),
        (
            AnthropicGateway,
            "claude-sonnet-5",
            {
                "tool_choice": {"type": "tool", "name": "look_up", "disable_parallel_tool_use": True},
            },
            "tools.0.strict",
            ["reasoning_effort is not sent: claude-sonnet-5 does not think before a call that is forced"],
        ),
        (
            GeminiGateway,
            "gemini-3-flash",
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look_up"]}}},
            None,
            [
                "parallel_tool_calls is not sent: gemini-3-flash refuses it",
                "reasoning_effort max is sent as high (gemini-3-flash)",
            ],
        ),
        (
            OllamaGateway,
            "llama",
            {"think": "high"},
            None,
            [
                "parallel_tool_calls is not sent: llama refuses it",
                "reasoning_effort max is sent as high (llama)",
                "strict_tools is not sent: llama refuses it",
                "tool_choice is not sent: llama refuses it",
            ],
        ),
    ],
)
async def test_what_an_agent_sets_arrives_on_each_wire_or_a_note_says_that_it_was_left_out(
    kind: Any, model: str, sent: dict[str, Any], strict: str | None, notes: list[str]
) -> None:
    call = ModelResponse(Message("assistant", (ToolCall("c1", "look_up", '{"word": "x"}'),)), stop="tool_calls")
    async with WireServer([call, SAID]) as server, Runtime("memory:") as runtime:
        gateway = kind(GatewayConfig(kind.FAMILY or "openai", f"{server.url}/v1", "k", model=model))
        result = await runtime.run(Agent("clerk", model=gateway, tools=[look_up], model_settings=SETTINGS), "hi")
        trace = trace_of(result.run_id, await runtime.inside.runs.facts(result.run_id))
    first, second = (request.json for request in server.requests)
    assert {key: first.get(key) for key in sent} == sent
    assert first.get("model", model) == model
    if "tool_choice" in sent:
        assert second["tool_choice"] in ("auto", {"type": "auto", "disable_parallel_tool_use": True})  # it was called
    if strict is not None:
        found: Any = first
        for step in strict.split("."):
            found = found[int(step) if step.isdigit() else step]
        assert found is True
    assert sorted({mark.text for mark in trace.marks if mark.kind == "note"}) == notes


async def test_a_tool_that_must_be_called_is_shown_at_once_also_among_many() -> None:
    def named(number: int) -> Any:
        return tool(name=f"tool{number}")(lambda: "x")

    call = ModelResponse(Message("assistant", (ToolCall("c1", "tool7", "{}"),)), stop="tool_calls")
    async with WireServer([call, SAID]) as server, Runtime("memory:") as runtime:
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1", model="gpt-4o"))
        many = [named(number) for number in range(50)]
        result = await runtime.run(
            Agent("clerk", model=gateway, tools=many, model_settings={"tool_choice": "tool7"}), "hi"
        )
    assert result.output == "ok"
    first = server.requests[0].json
    assert {each["function"]["name"] for each in first["tools"]} == {"tool7", "tool_search"}
    assert first["tool_choice"]["function"]["name"] == "tool7"


async def test_a_choice_that_an_endpoint_does_not_send_is_noted() -> None:
    async with WireServer([SAID]) as server:
        options = {"tool_choice": False}
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "sk-1", options=options))
        request = ModelRequest(
            "gpt-4o", (USER,), tools=(ToolSpec("t"),), settings=ModelSettings(tool_choice="required")
        )
        answer = await gateway.respond(request)
        await gateway.close()
    assert "tool_choice" not in server.requests[0].json
    assert answer.notes == ("tool_choice is not sent: the endpoint's option tool_choice is off",)


@pytest.mark.parametrize(
    ("model", "settings", "most"),
    [
        ("claude-3-haiku-20240307", {}, 4096),
        ("claude-opus-4-0", {"reasoning_effort": "xhigh"}, 32_000),
        ("claude-sonnet-5", {}, 8192),
    ],
)
def test_no_more_is_asked_for_than_a_model_writes_also_where_nobody_says_how_much(
    model: str, settings: dict[str, Any], most: int
) -> None:
    wire = AnthropicWire()
    request = ask(model, **settings)
    body = wire.build_body(request, wire.names(request), stream=False)
    assert body["max_tokens"] == most
    assert body.get("thinking", {}).get("budget_tokens", 0) < most


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        ("gpt-5-mini", {}, "max_completion_tokens"),
        ("o3", {}, "max_completion_tokens"),
        ("gpt-4o", {}, "max_tokens"),
        ("llama", {}, "max_tokens"),
        ("gpt-5-mini", {"max_tokens_field": "max_tokens"}, "max_tokens"),
    ],
)
async def test_a_model_behind_a_proxy_is_told_its_limit_by_the_name_that_it_takes(
    model: str, options: dict[str, Any], field: str
) -> None:
    async with WireServer([SAID]) as server:
        gateway = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "k", options=options))
        await gateway.respond(ask(model, max_output_tokens=50))
        await gateway.close()
    sent = server.requests[0].json
    assert {name: sent[name] for name in sent if name.startswith("max_")} == {field: 50}


async def test_an_agent_in_python_asks_its_gateway_for_the_model_that_it_was_made_for() -> None:
    async with WireServer([BROKEN, SAID]) as server, Runtime("memory:") as runtime:
        first = OpenAIChatGateway(GatewayConfig("openai", f"{server.url}/v1", "k", model="gpt-4o"))
        result = await runtime.run(Agent("clerk", model=first), "hi")
    assert result.output == "ok"
    assert {request.json["model"] for request in server.requests} == {"gpt-4o"}


# --- fields of the endpoint's own ------------------------------------------------------------------------------------


def test_extra_fields_are_merged_at_every_depth() -> None:
    under = {"a": {"b": 1, "c": {"d": 2}}, "tools": [1], "x": 1, "kept": {}}
    assert merged(under, {"a": {"c": {"e": 3}, "b": 4}, "tools": [2], "x": {"y": 1}}) == {
        "a": {"b": 4, "c": {"d": 2, "e": 3}},
        "tools": [1, 2],
        "x": {"y": 1},
        "kept": {},
    }
    assert under == {"a": {"b": 1, "c": {"d": 2}}, "tools": [1], "x": 1, "kept": {}}


@pytest.mark.parametrize("stream", [False, True])
async def test_extra_of_the_endpoint_lies_between_the_request_and_extra_of_the_agent(stream: bool) -> None:
    options = {"extra": {"generationConfig": {"topK": 5, "candidateCount": 1}, "labels": {"team": "a"}}}
    async with WireServer([SAID]) as server:
        gateway = GeminiGateway(GatewayConfig("gemini", f"{server.url}/v1beta", "k", options=options))
        request = ask("gemini-2.5-flash", max_output_tokens=50, extra={"generationConfig": {"topK": 7}})
        await gateway.respond(request, on_delta=(lambda _: None) if stream else None)
        await gateway.close()
    sent = server.requests[0].json
    assert sent["labels"] == {"team": "a"}
    assert sent["generationConfig"].items() >= {"topK": 7, "candidateCount": 1, "maxOutputTokens": 50}.items()


def test_extra_of_an_endpoint_cannot_name_another_model() -> None:
    with pytest.raises(InvalidInput, match="cannot name the model"):
        OpenAIChatGateway(GatewayConfig("openai", "http://x/v1", "k", options={"extra": {"model": "other"}}))


async def test_what_an_endpoint_adds_counts_when_money_is_reserved() -> None:
    config = GatewayConfig("openai", "http://x/v1", "k", model="gpt-4o", options={"extra": {"max_tokens": 900}})
    endpoint = EndpointConfig("a", config)
    router = Router(lambda _: endpoint)
    (quoted,) = await router.quote("a", ask("", max_output_tokens=100))
    await router.close()
    assert quoted.output_tokens == 900


@pytest.mark.parametrize(("provider", "reaches"), [("openai", True), ("anthropic", False)])
async def test_extra_never_reaches_a_fallback_of_another_provider(provider: str, reaches: bool) -> None:
    async with WireServer([BROKEN]) as first, WireServer([SAID]) as second:
        endpoints = {
            "a": EndpointConfig(
                "a",
                GatewayConfig("openai", f"{first.url}/v1", "k", model="gpt-4o", options={"extra": {"mine": 1}}),
                fallbacks=("b",),
            ),
            "b": EndpointConfig("b", GatewayConfig(provider, f"{second.url}/v1", "k", model="m")),
        }
        router = Router(lambda ref: endpoints[ref])
        answer = await router.respond("a", ask("", extra={"logit_bias": {"1": 2}}))
        await router.close()
    assert first.requests[0].json.items() >= {"logit_bias": {"1": 2}, "mine": 1}.items()
    assert ("logit_bias" in second.requests[0].json) is reaches
    assert "mine" not in second.requests[0].json
    assert answer.endpoint == "b"
    left_out = [note for note in answer.notes if note.startswith("extra")]
    assert left_out == ([] if reaches else ["extra is not sent: b is of another provider than a"])


async def test_a_fallback_that_answers_after_standing_in_line_says_what_it_was_not_sent() -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async with WireServer([BROKEN]) as first, WireServer([SAID]) as second:
        limited = RateLimits(requests=1, per=30)
        endpoints = {
            "a": EndpointConfig("a", GatewayConfig("openai", f"{first.url}/v1", "k", model="m"), fallbacks=("b",)),
            "b": EndpointConfig("b", GatewayConfig("anthropic", f"{second.url}/v1", "k", model="m"), limits=limited),
        }
        router = Router(lambda ref: endpoints[ref], clock=lambda: now, sleep=sleep)
        answers = [await router.respond("a", ask("", extra={"logit_bias": {"1": 2}})) for _ in range(2)]
        await router.close()
    assert now >= 30  # the second one stood in line
    left_out = [[note for note in answer.notes if note.startswith("extra")] for answer in answers]
    assert left_out == [["extra is not sent: b is of another provider than a"]] * 2


# --- reasoning that one account had encrypted ------------------------------------------------------------------------

KEPT = 'openai.responses:{"id":"rs_1","encrypted_content":"enc"}'
THOUGHT = ModelResponse(Message("assistant", (Reasoning("hm", opaque=KEPT), Text("ok"))))


async def test_encrypted_reasoning_goes_back_only_to_the_account_it_came_from() -> None:
    async with WireServer([THOUGHT]) as server:
        url = f"{server.url}/v1"
        mine, again, other = (OpenAIResponsesGateway(GatewayConfig("openai-responses", url, k)) for k in "aab")
        answer = await mine.respond(ask())
        for gateway in (mine, again, other):
            await gateway.respond(ask("gpt-5", answer.message, USER))
            await gateway.close()
    sent = ["encrypted_content" in request.body.decode() for request in server.requests[1:]]
    assert [b'"enc"' in request.body for request in server.requests[1:]] == [True, True, False]
    assert sent[:2] == [True, True]
    assert all(b'"ok"' in request.body for request in server.requests[1:])  # what was said goes to everybody
    (thought,) = (part for part in answer.message.parts if isinstance(part, Reasoning))
    assert thought.opaque is not None
    assert thought.opaque.startswith("@")
    assert thought.opaque.endswith(KEPT)


@pytest.mark.parametrize("options", [{"account": "acme"}, {"organization": "org-1"}, {}])
async def test_a_new_key_of_the_same_account_keeps_the_reasoning_and_any_other_says_that_it_is_gone(
    options: dict[str, Any],
) -> None:
    async with WireServer([THOUGHT]) as server:
        made = [
            OpenAIResponsesGateway(GatewayConfig("openai-responses", f"{server.url}/v1", key, options=options))
            for key in ("old", "new")
        ]
        answer = await made[0].respond(ask())
        later = await made[1].respond(ask("gpt-5", answer.message, USER))
        for gateway in made:
            await gateway.close()
    assert (b'"enc"' in server.requests[1].body) is bool(options)
    lost = "reasoning of earlier steps is not sent: another account or provider had encrypted it"
    assert later.notes == (() if options else (lost,))


async def test_naming_the_account_of_an_endpoint_loses_nothing_that_its_key_had() -> None:
    async with WireServer([THOUGHT]) as server:
        before, after = (
            OpenAIResponsesGateway(GatewayConfig("openai-responses", f"{server.url}/v1", "k", options=options))
            for options in ({}, {"account": "acme"})
        )
        answer = await before.respond(ask())
        later = await after.respond(ask("gpt-5", answer.message, USER))
        for gateway in (before, after):
            await gateway.close()
    assert b'"enc"' in server.requests[1].body
    assert later.notes == ()


async def test_another_address_is_another_account_and_an_old_journal_goes_to_any() -> None:
    async with WireServer([THOUGHT]) as one, WireServer([SAID]) as two:
        here = OpenAIResponsesGateway(GatewayConfig("openai-responses", f"{one.url}/v1", "a"))
        there = OpenAIResponsesGateway(GatewayConfig("openai-responses", f"{two.url}/v1", "a"))
        answer = await here.respond(ask())
        await there.respond(ask("gpt-5", answer.message, USER))
        await there.respond(ask("gpt-5", THOUGHT.message, USER))
        await here.close()
        await there.close()
    assert [b'"enc"' in request.body for request in two.requests] == [False, True]


async def test_a_token_that_is_renewed_is_the_same_account() -> None:
    signed = ToolCall("c1", "look", "{}", opaque="gemini.call:sig")
    said = ModelResponse(Message("assistant", (signed,)), stop="tool_calls")
    async with WireServer([said]) as server:
        url, options = f"{server.url}/v1beta", {"auth": "bearer"}
        first, renewed = (GeminiGateway(GatewayConfig("vertex", url, key, options=options)) for key in "ab")
        answer = await first.respond(ask("gemini-3-flash"))
        await renewed.respond(ask("gemini-3-flash", answer.message, USER))
        await first.close()
        await renewed.close()
    assert b'"thoughtSignature":"sig"' in server.requests[1].body
