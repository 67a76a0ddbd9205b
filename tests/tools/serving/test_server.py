"""Foliot as the serving side, on a real NATS server: the whole way of a call, and what comes of parts that break."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from foliot.bus.nats_link import NatsLink
from foliot.dev.nats import Nats
from foliot.errors import Conflict, InvalidInput, Unavailable
from foliot.tools.backends.nats import NatsTool
from foliot.tools.base import Caller, Invocation, ToolDefinition, ToolError, ToolRateLimited, ToolUnsupported
from foliot.tools.function import tool
from foliot.tools.governance.rules import FixedRules, Permission, Rules
from foliot.tools.nats_worker.ledger import BUCKET
from foliot.tools.nats_worker.messages import CallMessage, Meta, encode, execution_id, outcome_key
from foliot.tools.nats_worker.server import ServerConfig, ToolServer
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.serving.bus import ANYBODY, QUICK, invocation, linked, served, settled, until


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[NatsLink]:
    async with linked(nats_url) as opened:
        yield opened


class Counting:
    """A tool that counts, and does what it is told."""

    def __init__(self, effect: str = "idempotent", **fields: Any) -> None:
        self.calls: list[Invocation] = []
        self.definition = ToolDefinition("search", effect=effect, **fields)  # type: ignore[arg-type]
        self.do: Any = None

    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        self.calls.append(call)
        if self.do is not None:
            return await self.do(call, on_output)
        return f"found {call.arguments['q']}"


def caller_of(link: NatsLink, **fields: Any) -> NatsTool:
    return NatsTool(ToolDefinition("search", type="queue", **fields), link, look_every=0.2)


def message(id: str = "c1", **fields: Any) -> CallMessage:
    base: dict[str, Any] = {
        "name": "search",
        "arguments": {"q": "clocks"},
        "request_id": "req-1",
        "execution_id": execution_id("req-1", id, 1),
        "call_ordinal": 1,
    }
    return CallMessage(id=id, **{**base, **fields})


async def publish(link: NatsLink, call: CallMessage, meta: Meta = Meta(), *, dedupe: str = "") -> None:  # noqa: B008 - frozen
    js: Any = await link.jetstream()
    headers = {"Nats-Msg-Id": dedupe} if dedupe else None
    await js.publish(f"tool.execute.{call.name}", encode("m", call, meta), headers=headers)


class Results:
    """Everything that is published as a result."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []

    async def listen(self, link: NatsLink) -> Results:
        client: Any = await link.reached()

        async def hear(msg: Any) -> None:
            self.payloads.append(json.loads(msg.data)["payload"])

        await client.subscribe("tool.result.*", cb=hear)
        await settled(client)
        return self

    async def next(self, count: int = 1) -> list[dict[str, Any]]:
        await until(lambda: len(self.payloads) >= count)
        return self.payloads


async def test_a_call_goes_from_one_foliot_to_another_and_back(link: NatsLink) -> None:
    served_tool = Counting()
    async with served(link, served_tool) as server:
        call = invocation(caller=Caller("team", "finder", ("reader",), advertised=frozenset({"search"})))
        assert await caller_of(link).invoke(call) == "found clocks"

    received = served_tool.calls[0]
    assert received.idempotency_key == f"anybody/{call.idempotency_key}"
    assert received.caller == Caller(user="anybody", via="nats", advertised=frozenset({"search"}))
    assert server.metrics.value("executions_total", tool_name="search", status="success") == 1
    assert server.metrics.value("outcome_total", path="new") == 1


async def test_calls_are_taken_from_a_new_client_when_the_old_one_gave_up(link: NatsLink) -> None:
    async with served(link, Counting()):
        await (await link.reached()).close()  # as the client does when a server refuses it for a while
        assert await caller_of(link).invoke(invocation()) == "found clocks"


async def test_failures_keep_their_code_kind_and_details_on_the_way(link: NatsLink) -> None:
    served_tool = Counting()

    async def refuse(call: Invocation, on_output: Any) -> Any:
        raise ToolRateLimited("slow down", quota="12")

    served_tool.do = refuse
    async with served(link, served_tool):
        with pytest.raises(ToolRateLimited, match="slow down") as caught:
            await caller_of(link).invoke(invocation())
    assert caught.value.details["quota"] == "12"


async def test_output_is_heard_while_the_tool_works(link: NatsLink) -> None:
    served_tool, heard = Counting(), list[str]()

    async def speak(call: Invocation, on_output: Any) -> str:
        for piece in ("one ", "two ", "three"):
            on_output(piece)
        await until(lambda: len(heard) == 3)
        return "said"

    served_tool.do = speak
    async with served(link, served_tool):
        assert await caller_of(link).invoke(invocation(), on_output=heard.append) == "said"
    assert "".join(heard) == "one two three"


async def test_a_call_delivered_again_is_answered_from_what_was_kept(link: NatsLink) -> None:
    served_tool, results = Counting(), await Results().listen(link)
    async with served(link, served_tool) as server:
        await publish(link, message())
        await results.next(1)
        await publish(link, message())
        first, second = await results.next(2)
        await until(lambda: server.metrics.value("outcome_total", path="replay") == 1)
    assert first == second
    assert len(served_tool.calls) == 1


async def test_the_same_execution_with_other_content_is_never_run(link: NatsLink) -> None:
    served_tool, results = Counting(), await Results().listen(link)
    async with served(link, served_tool) as server:
        await publish(link, message())
        await results.next(1)
        await publish(link, message(arguments={"q": "something else"}))
        await until(lambda: server.metrics.value("outcome_collisions_total") == 1)
    assert [call.arguments for call in served_tool.calls] == [{"q": "clocks"}]
    assert len(results.payloads) == 1


async def test_an_outcome_that_cannot_be_read_ends_the_delivery(link: NatsLink) -> None:
    served_tool = Counting()
    async with served(link, served_tool) as server:
        js: Any = await link.jetstream()
        await (await js.key_value(BUCKET)).put(outcome_key(message().execution_id, "anybody"), b"\xffnot a record")
        await publish(link, message())
        await until(lambda: server.metrics.value("outcome_store_failures_total", reason="corrupt") == 1)
    assert served_tool.calls == []


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{}", b'{"type":{"category":"tool_result"},"payload":{}}'])
async def test_poison_is_dropped_and_the_next_call_is_served(data: bytes, link: NatsLink) -> None:
    served_tool = Counting()
    async with served(link, served_tool) as server:
        js: Any = await link.jetstream()
        await js.publish("tool.execute.search", data)
        assert await caller_of(link).invoke(invocation()) == "found clocks"
        await until(lambda: server.metrics.value("poison_total") == 1)
    assert server.health()["error_count"] == 1


async def test_a_once_call_whose_server_died_is_not_run_again_and_says_so(link: NatsLink) -> None:
    served_tool, begun = Counting("once"), asyncio.Event()

    async def hang(call: Invocation, on_output: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    served_tool.do = hang
    dying = ToolServer(Pipeline([served_tool]), link, ServerConfig(**QUICK), callers=ANYBODY)
    await dying.start()
    task = asyncio.create_task(caller_of(link).invoke(invocation()))
    async with asyncio.timeout(60):
        await begun.wait()
    await dying.stop(within=0.0)

    served_tool.do = None
    async with served(link, served_tool):
        with pytest.raises(ToolError, match="nobody knows") as caught:
            await task
    assert len(served_tool.calls) == 1
    assert caught.value.reason == "unknown_effect"
    assert not caught.value.retryable


async def test_an_idempotent_call_whose_server_died_is_run_again_under_the_same_key(link: NatsLink) -> None:
    served_tool, begun = Counting("idempotent"), asyncio.Event()

    async def hang(call: Invocation, on_output: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    served_tool.do = hang
    dying = ToolServer(Pipeline([served_tool]), link, ServerConfig(**QUICK), callers=ANYBODY)
    await dying.start()
    task = asyncio.create_task(caller_of(link).invoke(invocation()))
    async with asyncio.timeout(60):
        await begun.wait()
    await dying.stop(within=0.0)

    served_tool.do = None
    async with served(link, served_tool):
        assert await task == "found clocks"
    assert len({call.idempotency_key for call in served_tool.calls}) == 1
    assert len(served_tool.calls) == 2


async def test_stopping_lets_what_is_under_way_finish(link: NatsLink) -> None:
    served_tool, begun, go_on = Counting(), asyncio.Event(), asyncio.Event()

    async def slow(call: Invocation, on_output: Any) -> str:
        begun.set()
        await go_on.wait()
        return "finished"

    served_tool.do = slow
    server = ToolServer(Pipeline([served_tool]), link, ServerConfig(**QUICK), callers=ANYBODY)
    await server.start()
    task = asyncio.create_task(caller_of(link).invoke(invocation()))
    async with asyncio.timeout(60):
        await begun.wait()
    stopping = asyncio.create_task(server.stop(within=20.0))
    await until(lambda: server.health()["state"] == "draining")
    go_on.set()
    assert await task == "finished"
    await stopping
    assert server.health()["state"] == "stopped"
    await server.stop()


async def test_refusals_say_which_layer_refused_and_are_kept(link: NatsLink) -> None:
    results = await Results().listen(link)
    served_tool = Counting()
    async with served(link, served_tool, allowed_tools=("search",)) as server:
        await publish(link, message("c1", name="delete_file"))
        await publish(link, message("c2", metadata={"agent.tools.advertised": ["read"]}))
        await publish(link, message("c3", metadata={"agent.tools.advertised": "search"}))
        await publish(link, message("c1", name="delete_file"))
        found = {payload["call_id"]: payload for payload in await results.next(4)}
        await until(lambda: server.metrics.value("outcome_total", path="replay") == 1)

    assert (found["c1"]["error"], found["c1"]["error_kind"]) == ('tool "delete_file" is not allowed', "policy_denied")
    wrong = 'tool "search" is not permitted for this loop (advertised tool set)'
    assert (found["c2"]["error"], found["c2"]["error_kind"]) == (wrong, "permission")
    assert found["c3"]["error"] == wrong, "a list that cannot be read allows nothing"
    assert served_tool.calls == []
    assert server.metrics.value("rejections_total", tool_name="_unknown", reason="not_allowed") == 1


async def test_a_tool_that_is_not_here_is_answered_unless_others_serve_beside(link: NatsLink) -> None:
    async with served(link, Counting()):
        with pytest.raises(ToolUnsupported, match='tool "elsewhere" not found'):
            await NatsTool(ToolDefinition("elsewhere", type="queue"), link).invoke(invocation("elsewhere"))

    results = await Results().listen(link)
    async with served(link, Counting(), shared=True):
        await publish(link, message("c8", name="elsewhere"))
        await publish(link, message("c9"))
        await results.next(1)
    assert [payload["call_id"] for payload in results.payloads] == ["c9"]


async def test_admission_is_the_pipelines_and_an_approval_on_the_wire_is_no_proof(link: NatsLink) -> None:
    served_tool, results = Counting(), await Results().listen(link)
    rule = Permission("ask", "search", operations={"*": "ask"})
    pipeline = Pipeline(
        [served_tool], PipelineParts(rules=FixedRules(Rules("default", permissions={"search": (rule,)})))
    )
    async with served(link, pipeline=pipeline) as server:
        await publish(link, message("c1"))
        await publish(link, message("c2", approved_by="ap-made-up"))
        payloads = await results.next(2)
    wanted = "approval_required: Tool 'search' requires human approval before execution"
    assert [payload["error"] for payload in payloads] == [wanted, wanted]
    assert [payload["error_kind"] for payload in payloads] == ["permission", "permission"]
    assert served_tool.calls == []
    assert server.health()["error_count"] == 0
    js: Any = await link.jetstream()
    with pytest.raises(Exception, match=r"key not found"):
        await (await js.key_value(BUCKET)).get(outcome_key(message("c1").execution_id, "anybody"))


async def test_a_call_that_comes_after_its_deadline_is_not_run(link: NatsLink) -> None:
    served_tool, results = Counting(), await Results().listen(link)
    async with served(link, served_tool):
        await publish(link, message(), Meta(deadline_ms=round(time.time() * 1000) - 5000))
        late = (await results.next(1))[0]
        await publish(link, message(), Meta(deadline_ms=round(time.time() * 1000) + 60_000))
        again = (await results.next(2))[1]
    assert late["error_kind"] == "timeout"
    assert again["content"] == "found clocks", "nothing had happened: with more time the same call may run"


async def test_a_result_that_no_message_can_hold_is_replaced_by_a_note(link: NatsLink) -> None:
    served_tool, results = Counting(), await Results().listen(link)

    async def flood(call: Invocation, on_output: Any) -> str:
        return "x" * 2_000_000

    served_tool.do = flood
    pipeline = Pipeline([served_tool], PipelineParts(result_limit=10_000_000))
    async with served(link, pipeline=pipeline) as server:
        await publish(link, message())
        payload = (await results.next(1))[0]
    assert (payload["error"], payload["error_kind"]) == ("too_large", "internal")
    assert server.metrics.value("outcome_total", path="compact") == 1


async def test_tools_are_listed_with_schema_version_digest_and_why_they_cannot_be_called(link: NatsLink) -> None:
    @tool(effect="read", version="1.4.0")
    def look(q: str) -> str:
        """Look something up."""
        return q

    client: Any = await link.reached()
    async with served(link, Counting(category="knowledge"), look, allowed_tools=("look",)):
        everything = json.loads((await client.request("tool.list", b"", timeout=60)).data)["tools"]
        read = json.loads((await client.request("tool.list", b'{"effect":"read_only"}', timeout=60)).data)["tools"]
        known = json.loads((await client.request("tool.list", b'{"category":"knowledge"}', timeout=60)).data)["tools"]
        wrong = json.loads((await client.request("tool.list", b"\xff{", timeout=60)).data)
        unknown = json.loads((await client.request("tool.list", b'{"role":"reader"}', timeout=60)).data)

    assert [entry["name"] for entry in everything] == ["look", "search"]
    assert everything[0]["available"] is True
    assert everything[0]["version"] == "1.4.0"
    assert everything[0]["parameters"]["properties"] == {"q": {"type": "string"}}
    assert everything[0]["schema_digest"].startswith("sha256:")
    assert (everything[1]["available"], everything[1]["reason"]) == (False, "not allowed in this deployment")
    assert [entry["name"] for entry in read] == ["look"]
    assert [entry["name"] for entry in known] == ["search"]
    assert wrong["tools"] == []
    assert "filter" in wrong["error"]
    assert unknown["tools"] == [], "a filter that is not understood must not list everything"


async def test_health_and_metrics_tell_what_happened(link: NatsLink) -> None:
    async with served(link, Counting()) as server:
        await caller_of(link).invoke(invocation())
        await until(lambda: server.health()["in_flight"] == 0)
        health, text = server.health(), server.metrics.as_text()
    assert (health["state"], health["healthy"], health["tools"]) == ("ready", True, 1)
    assert health["messages_per_second"] > 0
    assert health["bytes_per_second"] > 0
    assert 'foliot_tools_executions_total{status="success",tool_name="search"} 1' in text
    assert 'foliot_tools_execution_duration_seconds_bucket{le="+Inf",tool_name="search"} 1' in text
    assert server.metrics.as_dict()["registered"] == 1


async def test_a_server_without_its_stream_says_what_is_missing_and_leaves_nothing_behind(nats_url: str) -> None:
    async with linked(nats_url, stream=False) as link:
        server = ToolServer(Pipeline([Counting()]), link, ServerConfig(**{**QUICK, "stream_tries": 2}), callers=ANYBODY)
        with pytest.raises(Unavailable, match="AGENT"):
            await server.start()
        assert server.health()["state"] == "failed"
        with pytest.raises(Conflict, match="once"):
            await server.start()
        async with served(link, Counting(), create_stream=True):
            assert await caller_of(link).invoke(invocation()) == "found clocks"


def test_a_configuration_that_cannot_work_is_refused() -> None:
    times = ({"ack_wait": 0.0}, {"call_limit": math.nan}, {"redelivery": (1.0, math.nan)}, {"fetch": math.inf})
    for wrong in ({"concurrency": 0}, *times, {"list_subject": "tool.*"}, {"redelivery": ()}):
        with pytest.raises(InvalidInput):
            ServerConfig(**wrong).check()


async def test_nats_is_restarted_while_a_tool_works_and_its_result_arrives(nats_service: Nats) -> None:
    served_tool, begun, go_on = Counting(), asyncio.Event(), asyncio.Event()

    async def slow(call: Invocation, on_output: Any) -> str:
        begun.set()
        await go_on.wait()
        return "kept through it"

    served_tool.do = slow
    async with (
        linked(nats_service.url) as mine,
        linked(nats_service.url) as theirs,
        served(theirs, served_tool) as server,
    ):
        task = asyncio.create_task(caller_of(mine, timeout=50.0).invoke(invocation()))
        async with asyncio.timeout(60):
            await begun.wait()
        await asyncio.to_thread(nats_service.stop)
        await until(lambda: server.health()["state"] == "degraded")
        go_on.set()
        await asyncio.to_thread(nats_service.start)
        assert await task == "kept through it"
        assert len(served_tool.calls) == 1, "what ran is kept, and not run again"
        await until(lambda: server.health()["state"] == "ready")


async def test_two_servers_share_the_work_and_each_call_runs_once(nats_url: str) -> None:
    async with linked(nats_url) as one, linked(nats_url) as two:
        left, right = Counting(), Counting()
        async with served(one, left), served(two, right):
            answers = await asyncio.gather(
                *(caller_of(one).invoke(invocation(call_id=f"call_{n}", arguments={"q": str(n)})) for n in range(30))
            )
    assert answers == [f"found {n}" for n in range(30)]
    ran = [call.call_id for call in (*left.calls, *right.calls)]
    assert len(ran) == len(set(ran)) == 30


def test_messages_stay_the_same_on_the_wire() -> None:
    data = msgspec.json.decode(encode("m1", message(), Meta("foliot", 5, 1, 0, "k")))
    assert data == {
        "id": "m1",
        "type": {"category": "tool_call", "domain": "agentic", "version": "v1"},
        "meta": {"sender": "foliot", "sent_ms": 5, "idempotency_key": "k"},
        "payload": {
            "id": "c1",
            "name": "search",
            "arguments": {"q": "clocks"},
            "request_id": "req-1",
            "execution_id": execution_id("req-1", "c1", 1),
            "call_ordinal": 1,
        },
    }
    known = execution_id("loop-1:req:0:0", "call_001", 1)
    assert known == "tool-exec-v1-j2dzz4odefhutpahzr7chcckhyfdzfr3y3qjgvtghf65jadre3ja"
