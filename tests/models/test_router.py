from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from foliot.errors import NotFound, Unavailable
from foliot.kernel.messages import (
    Delta,
    Message,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    RestartDelta,
    Text,
    TextDelta,
    Usage,
)
from foliot.kernel.tokens import estimate_request
from foliot.models.base import (
    Embeddings,
    ModelAuthError,
    ModelDelayed,
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimeout,
    OnDelta,
)
from foliot.models.config import GatewayConfig
from foliot.models.registry import Provider, ProviderRegistry, default_registry
from foliot.models.routing import usage as spending
from foliot.models.routing.endpoints import FALL_BACK_ON, EndpointConfig, OpenGateway
from foliot.models.routing.limits import ASKER
from foliot.models.routing.pricing import Pricing
from foliot.models.routing.router import Router
from foliot.models.scripted.model import ScriptedModel
from foliot.resources.rates import RateLimits
from foliot.tools.pipeline.breaker import Circuits

ASK = ModelRequest("", (Message("user", (Text("hello"),)),))


class Recorded:
    """The scripted model of an endpoint, and what happened to it."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.embedding: ModelError | None = None
        self._model = ScriptedModel(config.options["script"])

    async def respond(self, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        self.requests.append(request)
        return await self._model.respond(request, on_delta=on_delta)

    async def embed(self, texts: Sequence[str], *, model: str = "", dimensions: int | None = None) -> Embeddings:
        if self.embedding is not None:
            raise self.embedding
        return Embeddings((), Usage(7), model or "e")

    async def close(self) -> None:
        self.closed += 1


@dataclass
class World:
    """Endpoints by name, simulated time, and a router over them."""

    endpoints: dict[str, EndpointConfig] = field(default_factory=dict[str, EndpointConfig])
    built: list[Recorded] = field(default_factory=list[Recorded])
    waits: list[float] = field(default_factory=list[float])
    now: float = 0.0
    rotated: dict[str, EndpointConfig] = field(default_factory=dict[str, EndpointConfig])
    looks: int = 0

    def __post_init__(self) -> None:
        free = [Provider(name, self.build, requires_api_key=False) for name in ("fake", "pydantic-ai")]
        registry = ProviderRegistry([*free, Provider("openai", self.build)])
        health = Circuits()
        self.router = Router(
            self.resolve,
            look_anew=self.look_anew,
            registry=registry,
            circuits=lambda key: health.named(key, key, lambda: self.now),
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def build(self, config: GatewayConfig) -> Recorded:
        self.built.append(Recorded(config))
        return self.built[-1]

    def add(
        self, name: str, script: Any, *, model: str = "", provider: str = "fake", key: str = "", **more: Any
    ) -> None:
        gateway = GatewayConfig(provider, model=model, api_key=key, options={"script": script})
        self.endpoints[name] = EndpointConfig(name, gateway, **more)

    async def resolve(self, ref: str) -> EndpointConfig:
        if ref not in self.endpoints:
            raise NotFound(f"no ModelEndpoint {ref!r}", hint="create it")
        return self.endpoints[ref]

    async def look_anew(self, ref: str) -> EndpointConfig | None:
        self.looks += 1
        return self.rotated.get(ref) or self.endpoints.get(ref)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def ask(self, ref: str, request: ModelRequest = ASK, on_delta: OnDelta | None = None) -> ModelResponse:
        return await self.router.respond(ref, request, on_delta=on_delta)


@pytest.fixture
async def world():
    made = World()
    yield made
    await made.router.close()


async def test_an_answer_names_the_endpoint_that_gave_it_and_the_gateway_is_built_once(world: World):
    world.add("main", {"turns": ["hi"], "loop": True}, model="big")

    answers = [await world.ask("main") for _ in range(3)]

    assert {a.message.text for a in answers} == {"hi"}
    assert (answers[0].endpoint, answers[0].provider) == ("main", "scripted")
    assert len(world.built) == 1


@pytest.mark.parametrize("kind", ["overloaded", "timeout", "garbage", "rate_limit"])
async def test_an_endpoint_is_asked_once_and_whoever_asks_counts_the_tries(world: World, kind: str):
    world.add("main", [{"fail": kind}])

    with pytest.raises(ModelError) as caught:
        await world.ask("main")

    assert (caught.value.kind, len(world.built[0].requests), world.waits) == (kind, 1, [])


async def test_the_chain_goes_on_at_the_next_endpoint_with_its_own_model(world: World):
    world.add("main", [{"fail": "overloaded"}], model="big", fallbacks=("second", "third"))
    world.add("second", [{"fail": "timeout"}], model="middle")
    world.add("third", ["saved"], model="small")

    answer = await world.ask("main", replace_model(ASK, "special"))

    assert (answer.message.text, answer.endpoint, answer.model) == ("saved", "third", "small")
    assert [recorded.requests[-1].model for recorded in world.built] == ["special", "middle", "small"]
    assert [len(recorded.requests) for recorded in world.built] == [1, 1, 1]
    assert world.waits == []  # at once


def replace_model(request: ModelRequest, model: str) -> ModelRequest:
    return ModelRequest(model, request.messages)


@pytest.mark.parametrize("kind", ["auth", "request"])
async def test_an_error_of_ones_own_making_falls_back_only_when_asked_for(world: World, kind: str):
    world.add("main", [{"fail": kind}], fallbacks=("second",))
    world.add("second", {"turns": ["saved"], "loop": True})
    with pytest.raises(ModelError) as caught:
        await world.ask("main")
    assert caught.value.kind == kind

    world.endpoints["main"] = replace(world.endpoints["main"], fall_back_on=FALL_BACK_ON | {kind})
    assert (await world.ask("main")).endpoint == "second"


async def test_when_nobody_answers_the_error_lists_all_that_were_tried(world: World):
    world.add("main", [{"fail": "overloaded"}], fallbacks=("second", "main"))
    world.add("second", [{"fail": "timeout"}])

    with pytest.raises(ModelTimeout) as caught:
        await world.ask("main")

    assert [(t["endpoint"], t["kind"]) for t in caught.value.details["tried"]] == [
        ("main", "overloaded"),
        ("second", "timeout"),
    ]


async def test_a_broken_fallback_does_not_make_a_passing_trouble_final(world: World):
    """The run waits and asks again after an error that may pass; after the last one here it would have ended."""
    world.add("main", [{"fail": "rate_limit", "retry_after": 3}], fallbacks=("second", "gone"))
    world.add("second", [{"fail": "auth"}])

    with pytest.raises(ModelRateLimited) as caught:
        await world.ask("main")

    assert caught.value.retry_after == 3
    assert [t["kind"] for t in caught.value.details["tried"]] == ["rate_limit", "auth", "request"]


async def test_a_missing_endpoint_is_a_request_error_and_a_missing_fallback_is_passed_over(world: World):
    with pytest.raises(ModelRequestError, match="no ModelEndpoint 'nope'") as caught:
        await world.ask("nope")
    assert caught.value.hint == "create it"

    world.add("main", [{"fail": "overloaded"}], fallbacks=("gone", "third"))
    world.add("third", ["saved"])
    assert (await world.ask("main")).endpoint == "third"


async def test_an_endpoint_that_cannot_be_built_says_why(world: World):
    world.add("main", ["x"], provider="opnai")
    with pytest.raises(ModelRequestError, match="unknown model provider 'opnai'") as caught:
        await world.ask("main")
    assert caught.value.hint == "did you mean openai?"
    world.add("main", ["x"], provider="openai")
    with pytest.raises(ModelRequestError, match="needs an API key"):
        await world.ask("main")


async def test_a_store_that_does_not_answer_is_a_passing_trouble():
    def resolve(ref: str) -> EndpointConfig:
        raise Unavailable("the database is away")

    with pytest.raises(ModelOverloaded, match="database"):
        await Router(resolve).respond("main", ASK)


async def test_pieces_that_were_shown_are_withdrawn_before_the_answer_starts_anew(world: World):
    broken = {"say": "abcdefgh", "fail": "garbage", "fail_at": 4, "chunk": 4}
    deltas: list[Delta] = []
    world.add("main", [broken], fallbacks=("second",))
    world.add("second", ["saved"])
    answer = await world.ask("main", on_delta=deltas.append)
    last = max(n for n, delta in enumerate(deltas) if isinstance(delta, RestartDelta))
    assert "".join(d.text for d in deltas[last + 1 :] if isinstance(d, TextDelta)) == answer.message.text == "saved"


async def test_nothing_is_withdrawn_when_nothing_was_shown(world: World):
    world.add("main", [{"fail": "overloaded"}], fallbacks=("second",))
    world.add("second", ["ok"])
    deltas: list[Delta] = []
    await world.ask("main", on_delta=deltas.append)
    assert deltas == [TextDelta("ok")]


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, version="2"),
        lambda e: replace(e, secret_version="2"),
        lambda e: replace(e, gateway=replace(e.gateway, api_key="rotated")),
    ],
)
async def test_a_changed_endpoint_or_key_gets_a_new_gateway_and_the_old_one_is_closed_after_its_last_call(
    world: World, change: Callable[[EndpointConfig], EndpointConfig]
):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: ModelRequest) -> str:
        begun.set()
        await go_on.wait()
        return "old"

    world.add("main", slow, key="first")
    call = asyncio.create_task(world.ask("main"))
    await begun.wait()

    world.endpoints["main"] = change(world.endpoints["main"])
    go_on_second = asyncio.create_task(world.ask("main"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(world.built) == 2
    assert world.built[0].closed == 0

    go_on.set()
    assert (await call).message.text == "old"
    await go_on_second
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [recorded.closed for recorded in world.built] == [1, 0]

    await world.router.close()
    assert [recorded.closed for recorded in world.built] == [1, 1]


async def test_an_old_gateway_stays_open_while_any_of_its_calls_goes_on(world: World):
    gates = {name: asyncio.Event() for name in ("one", "two")}
    begun: list[str] = []

    async def slow(request: ModelRequest) -> str:
        name = request.messages[-1].text
        begun.append(name)
        await gates[name].wait()
        return name

    world.add("main", slow)
    requests = [ModelRequest("", (Message("user", (Text(name),)),)) for name in gates]
    calls = [asyncio.create_task(world.ask("main", request)) for request in requests]
    while len(begun) < 2:
        await asyncio.sleep(0)
    world.add("main", ["new"])
    await world.ask("main")

    gates["one"].set()
    await calls[0]
    await asyncio.sleep(0)
    assert world.built[0].closed == 0

    gates["two"].set()
    await calls[1]
    await asyncio.sleep(0)
    assert world.built[0].closed == 1


async def test_new_limits_alone_need_no_new_gateway(world: World):
    world.add("main", {"turns": ["x"], "loop": True})
    await world.ask("main")
    world.endpoints["main"] = replace(world.endpoints["main"], limits=RateLimits(concurrency=1), pricing=Pricing(1, 1))
    assert (await world.ask("main")).usage.cost_usd is not None
    assert len(world.built) == 1


async def test_endpoints_with_the_same_key_wait_in_one_line(world: World):
    for name in "ab":
        world.add(
            name, {"turns": ["ok"], "loop": True}, provider="openai", key="k", model="m", limits=RateLimits(2, per=60)
        )
    world.add(
        "c", {"turns": ["ok"], "loop": True}, provider="openai", key="k", model="other", limits=RateLimits(2, per=60)
    )
    for name in "abc":
        await world.ask(name)
    assert world.waits == []
    await world.ask("a")
    assert world.now == pytest.approx(60, abs=0.1)


async def as_run(world: World, run_id: str, ref: str, *, placed: bool = False) -> ModelResponse:
    token = ASKER.set((run_id, placed))
    try:
        return await world.ask(ref)
    finally:
        ASKER.reset(token)


async def test_a_run_whose_turn_comes_later_is_told_so_and_holds_nothing(world: World):
    world.add("main", {"turns": ["ok"], "loop": True}, limits=RateLimits(2, per=60))
    for name in "ab":
        await as_run(world, name, "main")
    for number, name in enumerate("cd"):
        with pytest.raises(ModelDelayed, match=f"allows 2 requests in 60 s; {number} are in front") as caught:
            await as_run(world, name, "main")
        assert caught.value.wait == pytest.approx(60, abs=0.1)
    assert (world.waits, len(world.built[0].requests)) == ([], 2)
    world.now += caught.value.wait
    assert (await as_run(world, "d", "main", placed=True)).message.text == "ok"


async def test_a_turn_that_comes_in_a_moment_is_waited_for(world: World):
    world.add("main", {"turns": ["ok"], "loop": True}, limits=RateLimits(1, per=0.5))
    await as_run(world, "a", "main")
    await as_run(world, "b", "main")
    assert world.now == pytest.approx(0.5, abs=0.01)


async def test_without_room_the_fallback_is_asked_and_no_place_is_taken(world: World):
    world.add("main", {"turns": ["ok"], "loop": True}, limits=RateLimits(1, per=60), fallbacks=("second",))
    world.add("second", {"turns": ["saved"], "loop": True}, limits=RateLimits(1, per=60))
    assert [(await as_run(world, name, "main")).endpoint for name in "ab"] == ["main", "second"]
    with pytest.raises(ModelDelayed) as caught:
        await as_run(world, "c", "main")
    assert caught.value.endpoint == "main"
    world.add("second", [{"fail": "auth"}])
    with pytest.raises(ModelDelayed):  # a broken fallback ends nobody who only has to wait
        await as_run(world, "c", "main")
    with pytest.raises(ModelDelayed, match="1 are in front"):
        await as_run(world, "d", "main")


async def test_a_limit_that_was_removed_is_gone_at_once(world: World):
    world.add("main", {"turns": ["ok"], "loop": True}, limits=RateLimits(1, per=60))
    await as_run(world, "a", "main")
    with pytest.raises(ModelDelayed):
        await as_run(world, "b", "main")
    world.endpoints["main"] = replace(world.endpoints["main"], limits=RateLimits())
    assert (await as_run(world, "b", "main", placed=True)).message.text == "ok"
    world.endpoints["main"] = replace(world.endpoints["main"], limits=RateLimits(1, per=60))
    with pytest.raises(ModelDelayed, match="0 are in front"):
        await as_run(world, "c", "main")


async def test_an_endpoint_that_keeps_failing_is_left_alone_and_then_tried_by_one(world: World):
    world.add("main", [{"fail": "overloaded"}], fallbacks=("second",))
    world.add("second", {"turns": ["saved"], "loop": True})
    for _ in range(20):
        assert (await world.ask("main")).endpoint == "second"
    assert len(world.built[0].requests) == 5
    world.now += 31
    await world.ask("main")
    await world.ask("main")
    assert len(world.built[0].requests) == 6
    world.endpoints["main"] = replace(world.endpoints["main"], version="2")  # it was repaired
    await world.ask("main")
    assert sum(len(each.requests) for each in world.built if each.config.options["script"] != {}) > 6


async def test_a_dead_endpoint_without_a_fallback_says_when_to_come_back(world: World):
    world.add("main", [{"fail": "overloaded"}])
    for _ in range(5):
        with pytest.raises(ModelOverloaded):
            await world.ask("main")
    with pytest.raises(ModelOverloaded, match="not asked for a while") as caught:
        await world.ask("main")
    assert (caught.value.retry_after, len(world.built[0].requests)) == (pytest.approx(30), 5)


async def test_a_refused_key_is_looked_up_once_more(world: World):
    def answer(request: ModelRequest) -> str:
        if world.built[-1].config.api_key == "old":
            raise ModelAuthError("revoked")
        return "ok"

    world.add("main", answer, provider="openai", key="old")
    with pytest.raises(ModelAuthError):
        await world.ask("main")
    assert (world.looks, len(world.built[0].requests)) == (1, 1)  # it is still the same: that is the end
    old = world.endpoints["main"]
    world.rotated["main"] = replace(old, gateway=replace(old.gateway, api_key="new"))
    assert (await world.ask("main")).message.text == "ok"
    assert world.looks == 2


async def test_one_key_is_one_line_whatever_is_spoken_and_wherever_its_address_is_written():
    def key(provider: str, base_url: str = "", api_key: str = "k", name: str = "a") -> str:
        config = EndpointConfig(name, GatewayConfig(provider, base_url, api_key))
        return OpenGateway(
            config, ScriptedModel("echo"), provider, base_url or default_registry().find(provider).base_url
        ).limiter_key

    openai = key("openai")
    assert key("openai-responses") == key("openai", "https://api.openai.com/v1", name="b") == openai
    assert (
        len(
            {
                openai,
                key("openai", api_key="other"),
                key("groq"),
                key("openai", "http://h:1"),
                key("openai", "http://h:2"),
            }
        )
        == 5
    )
    assert key("ollama", api_key="") != key("ollama", api_key="", name="b")


@pytest.mark.parametrize("limits", [RateLimits(), RateLimits(100)], ids=["unlimited", "limited"])
async def test_retry_after_holds_every_run_on_that_key_and_model(world: World, limits: RateLimits):
    world.add("a", [{"fail": "rate_limit", "retry_after": "100s"}], provider="openai", key="k", limits=limits)
    world.add("b", {"turns": ["ok"], "loop": True}, provider="openai", key="k", limits=limits)
    with pytest.raises(ModelRateLimited):
        await world.ask("a")

    with pytest.raises(ModelDelayed, match="asked to be left alone") as caught:
        await as_run(world, "r", "b")
    assert caught.value.wait == pytest.approx(100)
    assert [len(each.requests) for each in world.built if each.config.options["script"] != "a"][1:] == [0]

    world.now = 70.0
    assert (await world.ask("b")).message.text == "ok"
    assert world.now == pytest.approx(100)


async def test_tokens_are_reserved_by_estimate_and_settled_by_what_was_used(world: World):
    world.add(
        "main",
        {"turns": [{"say": "x", "usage": {"input_tokens": 50, "output_tokens": 50}}], "loop": True},
        limits=RateLimits(tokens=1100, per=60),
    )
    request = ModelRequest("", ASK.messages, settings=ModelSettings(max_output_tokens=900))
    for _ in range(2):
        await world.ask("main", request)
    assert world.waits == []  # without settling the second would wait a minute
    await world.ask("main", request)
    assert world.now > 50  # three hundred used, and nine hundred wanted


async def test_costs_are_filled_in_from_the_endpoints_prices_or_the_tables_and_unknown_stays_none(world: World):
    turn = {"say": "x", "usage": {"input_tokens": 1_000_000, "output_tokens": 0}}
    world.add("own", [turn], pricing=Pricing(7, 7))
    world.add("table", [turn], provider="openai", key="k", model="gpt-4o")
    world.add("unknown", [turn])
    answered = ModelResponse(Message("assistant", (Text("x"),)), Usage(1_000_000), model="gpt-4o", provider="openai")
    world.add("between", lambda request: answered, provider="pydantic-ai")

    assert (await world.ask("own")).usage.cost_usd == 7.0
    assert (await world.ask("table", replace_model(ASK, "gpt-4o"))).usage.cost_usd == pytest.approx(2.5)
    assert (await world.ask("unknown")).usage.cost_usd is None
    assert (await world.ask("between")).usage.cost_usd == pytest.approx(2.5)


async def test_a_quote_is_the_most_that_is_expected_at_every_endpoint_that_may_answer(world: World):
    world.add("main", [{"say": "x"}], pricing=Pricing(1, 10), fallbacks=("dear", "missing"))
    world.add("dear", [{"say": "x"}], pricing=Pricing(2, 20))
    request = ModelRequest("", ASK.messages, settings=ModelSettings(max_output_tokens=1000))
    cheap, dear = await world.router.quote("main", request)
    assert cheap.output_tokens == 1000
    assert cheap.input_tokens == estimate_request(request)
    assert cheap.cost_usd == pytest.approx((estimate_request(request) + 10 * 1000) / 1e6)
    assert dear.cost_usd == pytest.approx(2 * (cheap.cost_usd or 0))
    assert world.built == []  # nothing is opened for a quote


async def test_a_quote_leaves_out_who_cannot_answer_and_is_refused_when_nobody_can(world: World):
    world.add("main", ["x"], model="big", fallbacks=("odd",), pricing=Pricing(0, 10))
    world.add("odd", ["x"], provider="opnai")
    assert len(await world.router.quote("main", ASK)) == 1
    with pytest.raises(ModelRequestError, match="unknown model provider 'opnai'"):
        await world.router.quote("odd", ASK)


async def test_a_gateway_is_always_told_the_model(world: World):
    world.add("main", ["x"], model="big")
    await world.ask("main", replace_model(ASK, ""))
    assert world.built[0].requests[0].model == "big"


async def test_a_quote_without_a_price_or_a_limit_says_so(world: World):
    world.add("main", [{"say": "x"}])
    (quote,) = await world.router.quote("main", ASK)
    assert (quote.output_tokens, quote.cost_usd) == (4096, None)
    with pytest.raises(ModelRequestError):
        await world.router.quote("missing", ASK)


async def test_the_providers_count_corrects_later_estimates(world: World):
    raw = estimate_request(ASK)
    world.add("main", [{"say": "x", "usage": {"input_tokens": raw * 2, "output_tokens": 1}}], model="m")
    await world.ask("main")
    assert world.router.tokens.estimate(ASK, model="fake:m") == raw * 2


async def test_a_cancelled_call_gives_its_place_back(world: World):
    async def hang(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    world.add("main", hang, limits=RateLimits(concurrency=1))
    call = asyncio.create_task(world.ask("main"))
    for _ in range(5):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    world.add("main", ["free"], limits=RateLimits(concurrency=1))
    assert (await world.ask("main")).message.text == "free"


def test_the_key_shows_in_no_representation():
    endpoint = EndpointConfig("e", GatewayConfig("openai", api_key="sk-very-secret"))
    assert "sk-very-secret" not in repr(endpoint)
    assert "sk-very-secret" not in endpoint.key_fingerprint


def test_usage_that_a_gateway_priced_itself_is_believed():
    async def scenario() -> ModelResponse:
        made = World()
        priced = ModelResponse(Message("assistant", (Text("x"),)), Usage(5, 5, cost_usd=0.25))
        made.add("main", lambda request: priced, pricing=Pricing(1000, 1000))
        answer = await made.ask("main")
        await made.router.close()
        return answer

    assert asyncio.run(scenario()).usage.cost_usd == 0.25


# --- one path for everything that is asked -----------------------------------------------------------------------


async def test_a_place_is_settled_when_its_call_is_stopped_before_it_began(world: World) -> None:
    world.add("one", {"turns": ["hi"], "loop": True}, limits=RateLimits(concurrency=1))
    stopped = asyncio.Event()

    async def leave(_: str) -> None:
        stopped.set()
        await asyncio.Event().wait()

    turns, really = world.router.turns, world.router.turns.leave
    turns.leave = leave  # pyright: ignore[reportAttributeAccessIssue]
    ASKER.set(("r1", True))
    asking = asyncio.ensure_future(world.ask("one"))
    await stopped.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    turns.leave = really  # pyright: ignore[reportAttributeAccessIssue]
    assert (await world.ask("one")).message.text == "hi"


async def test_a_fallback_that_answers_says_for_whom_and_why(world: World) -> None:
    world.add("main", [{"fail": "overloaded"}], fallbacks=("spare",))
    world.add("spare", {"turns": ["hi"], "loop": True})
    (note,) = (await world.ask("main")).notes
    assert note.startswith("spare answered in place of main (overloaded: ")


async def test_a_delay_tells_of_the_failure_before_it(world: World) -> None:
    world.add("main", {"turns": [{"fail": "overloaded"}], "loop": True}, fallbacks=("spare",))
    world.add("spare", {"turns": ["hi"], "loop": True}, limits=RateLimits(requests=1, per=3600))
    ASKER.set(("r1", False))
    await world.ask("main")
    with pytest.raises(ModelDelayed) as caught:
        await world.ask("main")
    assert caught.value.after is not None
    assert caught.value.after.kind == "overloaded"


async def test_whoever_asks_outside_a_run_leaves_no_place_behind(world: World) -> None:
    world.add("one", {"turns": ["hi"], "loop": True}, limits=RateLimits(requests=1, per=3600))
    await world.ask("one")
    for _ in range(3):
        with pytest.raises(ModelDelayed):
            await world.ask("one")
    ASKER.set(("r1", False))
    with pytest.raises(ModelDelayed, match="0 are in front"):
        await world.ask("one")


async def test_an_open_circuit_says_what_the_endpoint_failed_with(world: World) -> None:
    world.add("one", {"turns": [{"fail": "overloaded"}], "loop": True})
    for _ in range(5):
        with pytest.raises(ModelOverloaded) as first:
            await world.ask("one")
    with pytest.raises(ModelOverloaded, match="not asked for a while") as caught:
        await world.ask("one")
    assert first.value.message in caught.value.message


async def test_vectors_are_made_within_the_limits_of_their_key_and_model(world: World) -> None:
    world.add("one", ["hi"], limits=RateLimits(requests=2, per=3600))
    assert (await world.router.embed("one", ["ab"], model="e")).usage.input_tokens == 7
    await world.router.embed("one", ["ab"], model="e")
    with pytest.raises(ModelDelayed):
        await world.router.embed("one", ["ab"], model="e")


async def test_an_endpoint_that_makes_no_vectors_is_left_alone_for_a_while(world: World) -> None:
    world.add("one", ["hi"], pricing=Pricing(1.0, 1.0))
    assert (await world.router.embed("one", ["ab"])).usage.cost_usd == pytest.approx(7e-6)
    world.built[0].embedding = ModelOverloaded("no")
    for _ in range(5):
        with pytest.raises(ModelOverloaded, match="no"):
            await world.router.embed("one", ["ab"])
    with pytest.raises(ModelOverloaded, match="not asked for a while"):
        await world.router.embed("one", ["ab"])


async def test_the_key_for_vectors_is_looked_up_once_more_when_it_is_refused(world: World) -> None:
    world.add("one", ["hi"], key="old")
    await world.router.embed("one", ["ab"])
    world.built[0].embedding = ModelAuthError("expired")
    world.rotated["one"] = EndpointConfig("one", GatewayConfig("fake", api_key="new", options={"script": ["hi"]}))
    assert (await world.router.embed("one", ["ab"])).usage.input_tokens == 7
    assert world.looks == 1


async def test_what_a_broken_off_answer_took_is_counted(world: World) -> None:
    world.add("one", [{"say": "hi", "stop": "other"}])
    paid = spending.count()
    with pytest.raises(ModelGarbage):
        await world.ask("one")
    assert paid.usage.total_tokens > 0
