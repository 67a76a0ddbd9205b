"""What `policy explain` says is what happens to the call, by whichever way it comes.

Policies, roles, permissions, conditions, budgets and delegation are made up from a seed; then a real tool is called
through every way in. It writes a line into a file when it acts. A case that fails is named by its seed:
`FOLIOT_CHAOS_SEED=n` plays that one alone; `FOLIOT_CHAOS=1` plays new ones. Ways that need a client or a server of
their own are played with fewer seeds, and numbered in the same way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import pytest
from mcp import Client

from foliot.errors import Denied
from foliot.kernel.identity import Identity
from foliot.kernel.run import events as e
from foliot.resources.references import Origin
from foliot.resources.validate import validate_document
from foliot.runtime.runtime import Runtime
from foliot.runtime.tools import ToolCaller
from foliot.server.app import create_app
from foliot.server.auth.authentication import ANONYMOUS, Anonymous
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import DeclaredBy, Delete, Filter, Key, Put
from foliot.store.queue.placement import Offer
from foliot.tools.base import ToolDenied
from foliot.tools.nats_worker.callers import BusCallerEntry, Signer, new_callers
from foliot.work.tasks.base import Command
from foliot.work.triggers.endpoints import WebhookEndpoints
from foliot.work.triggers.scheduler import Scheduler
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook
from tests.server.mcp.conftest import served
from tests.tools.serving.bus import linked, settled, until
from tests.tools.serving.bus import served as serving

RULES = ("AgentPolicy", "ToolPermission", "AgentRole", "Budget")
ACTED: list[Path] = []
PAY = ("Tool", "default", "pay")
ANYBODY = DeclaredBy("mallory", operator=False)


def pay(amount: int) -> str:
    """Hand over money."""
    with ACTED[0].open("a") as file:
        file.write(f"{amount}\n")
    return "paid"


@dataclass(frozen=True)
class Happened:
    """What became of a call, and by which rule it was refused."""

    outcome: str
    rule: str = ""


@dataclass
class Case:
    """One call, and what is asked about it. `under` are the fields of the question."""

    number: int
    amount: int
    user: str

    @property
    def task(self) -> str:
        return f"nightly-{self.number}"


class Play:
    def __init__(self, runtime: Runtime, http: httpx.AsyncClient, acted: Path, url: str = "") -> None:
        """`url` is where the server can be reached by clients of their own."""
        self.runtime = runtime
        self.http = http
        self.acted = acted
        self.url = url

    # --- what is declared ----------------------------------------------------------------------------------------

    async def declare(
        self, kind: str, name: str, spec: dict[str, Any], *, by: DeclaredBy | None = None, namespace: str = "default"
    ) -> None:
        metadata = {"name": name, "namespace": namespace}
        document, problems = validate_document({"kind": kind, "metadata": metadata, "spec": spec})
        assert document is not None, problems
        await self.runtime.inside.resources.write([Put(document)], by=by)

    async def clear(self) -> None:
        for kind in RULES:
            page = await self.runtime.inside.resources.list(Filter(kind, "default"))
            for each in page.items:
                await self.runtime.inside.resources.write([Delete(Key(kind, "default", each["metadata"]["name"]))])

    async def make(self, chance: Random, case: Case) -> None:
        """A world from chance: most rules let most calls pass, so that each of them decides sometimes."""
        await self.clear()
        model = chance.choice(["m-1", "m-2"])
        script = [{"call": {"pay": {"amount": case.amount}}}, {"say": "done"}]
        # What an endpoint says is believed for a second: another model has another endpoint.
        brain = f"brain-{model}-{case.amount}"
        await self.declare("ModelEndpoint", brain, {"provider": "scripted", "default_model": model, "script": script})
        order = [{"call": {"agent:worker": {"input": "go"}}}, {"say": "so"}]
        await self.declare("ModelEndpoint", "boss", {"provider": "scripted", "default_model": "m-1", "script": order})
        tool = {
            "type": "function",
            "function": f"{__name__}:pay",
            "effect": chance.choice(["read", "idempotent", "once"]),
            "operation_classes": chance.choice([["read"], ["write"], ["write", "delete"]]),
            "category": chance.choice(["money", "uncategorised"]),
            "input_schema": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
            **({"price_usd": "0.01"} if chance.random() < 0.5 else {}),
        }
        await self.declare("Tool", "pay", tool)
        roles = chance.choice([[], [], ["clerk"], ["clerk", "ghost"]])
        agent: dict[str, Any] = {"model_ref": brain, "tools": ["pay"], "roles": roles}
        if chance.random() < 0.15:
            agent["allowed_tools"] = ["pay"]
        await self.declare("Agent", "worker", agent)
        await self.declare("Agent", "boss", {"model_ref": "boss", "tools": ["agent:worker"]})
        await self.declare("AgentSystem", "flow", {"agents": ["worker"]})
        await self.declare("Task", "nightly", {"agent": "worker", "mode": "template", "input": {"topic": "go"}})
        held = chance.choice([["tool:pay:invoke"], ["tool:pay:invoke", "vip"], ["other"]])
        await self.declare("AgentRole", "clerk", {"permissions": held})
        for number in range(chance.choice([0, 1, 1, 2])):
            await self.declare("AgentPolicy", f"policy-{number}", self._policy(chance, case))
        for number in range(chance.choice([0, 0, 1, 2])):
            await self.declare("ToolPermission", f"permission-{number}", self._permission(chance))
        if chance.random() < 0.2:
            limit = {"amount": chance.choice(["0.001", "50"])}
            await self.declare("Budget", "purse", {"limit": limit, "on_exceeded": "fail", "unpriced": "allow"})
        budgets = self.runtime.inside._open().budgets  # pyright: ignore[reportPrivateUsage]
        assert budgets is not None
        await budgets.declared.of("default", anew=True)

    async def take_back(self, chance: Random) -> None:
        """Take back, or never give, something that the call needs and that no rule speaks of."""
        store = self.runtime.inside.resources
        worker, tool = [await store.get(Key(*each)) for each in (("Agent", "default", "worker"), PAY)]
        match chance.choice(["module", "address", "reference", "fallback", "grant"]):
            case "module":
                path = chance.choice(["subprocess:getoutput", "tests.adversary.elsewhere:os.system"])
                await self.declare("Tool", "pay", {**tool["spec"], "function": path}, by=ANYBODY)
            case "address":
                declared = {key: value for key, value in tool["spec"].items() if key != "function"}
                endpoint = chance.choice(["http://127.0.0.1:9/pay", "http://[::1]:9/", "http://169.254.169.254/"])
                spec = {**declared, "type": "http", "endpoint": endpoint}
                await self.declare("Tool", "pay", spec, by=chance.choice([ANYBODY, None]))
            case "reference":
                key = await self._shared_model(worker["spec"]["model_ref"])
                await self.declare("Agent", "worker", {**worker["spec"], "model_ref": "other/paid"})
                if chance.random() < 0.7:
                    await store.write([Delete(key)])
            case "fallback":
                # A policy on models counts the fallback for as long as it may be asked.
                key = await self._shared_model(worker["spec"]["model_ref"])
                await self.declare("Agent", "worker", {**worker["spec"], "fallbacks": ["other/paid"]})
                await self.declare("AgentPolicy", "models", {"apply_mode": "global", "allowed_models": ["m-1", "m-2"]})
                if chance.random() < 0.5:
                    await store.write([Delete(key)])
            case _:
                asking = {
                    "tool_ref": "pay",
                    "operation_rules": [{"operation_class": "*", "verdict": "approval_required"}],
                }
                await self.declare("ToolPermission", "asking", asking)
                given = await self.runtime.inside.approvals.grant(by="eve", tool="pay", seconds=3600, agent="other")
                changed = {**given["spec"], "agent": "worker"}
                await store.write([Put({**given, "spec": changed})])

    async def _shared_model(self, like: str) -> Key:
        """An endpoint of another namespace, which may be named as long as the grant stands."""
        spec = (await self.runtime.inside.resources.get(Key("ModelEndpoint", "default", like)))["spec"]
        key = Key("ReferenceGrant", "other", "to-default")
        await self.declare("ModelEndpoint", "paid", {**spec, "default_model": "m-3"}, namespace="other")
        shared = {"from": [{"namespace": "default"}], "to": [{"kind": "ModelEndpoint"}]}
        await self.declare(key.kind, key.name, shared, namespace="other")
        return key

    def _policy(self, chance: Random, case: Case) -> dict[str, Any]:
        spec: dict[str, Any] = dict(
            chance.choice(
                [
                    {"apply_mode": "global"},
                    {"target_tasks": [case.task.upper()]},
                    {"target_tasks": ["nightly"]},
                    {"target_systems": ["default/flow"]},
                    {},
                ]
            )
        )
        says = [
            {"blocked_tools": ["Pay"]},
            {"blocked_tools": ["p*"]},
            {"blocked_tools": ["agent:worker"]},
            {"allowed_models": ["m-1"]},
            {"allowed_tools": ["pay", "agent:*"]},
            {"allowed_tools": ["other", "agent:*"], "ask": "on-miss"},
            {"allowed_categories": ["money", "orchestration"]},
            {"read_only": True},
            {"ask": "always"},
            {"max_tokens_per_run": 100_000},
        ]
        return {**spec, **chance.choice(says)}

    def _permission(self, chance: Random) -> dict[str, Any]:
        whens = [
            "args.amount > 500",
            'caller.user == "ann"',
            f'caller.user == "{HTTP_USER}"',
            'caller.task.startsWith("default/nightly")',
            'caller.system == "flow"',
            'caller.ancestors.exists(each, each == "boss")',
            "caller.depth > 0",
            'args.missing == "x"',
        ]
        says: list[dict[str, Any]] = [
            {"required_permissions": ["tool:pay:invoke"]},
            {"required_permissions": ["vip", "other"], "match_mode": "any"},
            {"operation_rules": [{"operation_class": "write", "verdict": "approval_required"}]},
            {"operation_rules": [{"operation_class": "delete", "verdict": "deny"}, {"operation_class": "*"}]},
            {"conditions": [{"when": chance.choice(whens), "verdict": chance.choice(["deny", "approval_required"])}]},
            {"conditions": [{"when": chance.choice(whens), "verdict": "allow"}]},
        ]
        scope = {"apply_mode": "scoped", "target_agents": [chance.choice(["Worker", "default/worker", "other"])]}
        return {"tool_ref": "pay", **chance.choice(says), **(scope if chance.random() < 0.3 else {})}

    # --- what is said --------------------------------------------------------------------------------------------

    async def explained(self, agent: str, tool: str, arguments: dict[str, Any], **under: Any) -> Happened:
        body = {"agent": agent, "tool": tool, "arguments": arguments, **under}
        answer = await self.http.post("/v1/policies/explain", json=body)
        assert answer.status_code == 200, answer.text
        judgement = answer.json()["judgement"]
        return Happened(judgement["outcome"], judgement["decided"]["rule"] if judgement["outcome"] == "deny" else "")

    # --- what happens --------------------------------------------------------------------------------------------

    async def happened(self, call: Awaitable[Any]) -> Happened:
        before = {info.id for info in await self.runtime.inside.runs.journal.list(limit=1000)}
        lines = self.lines()
        try:
            await call
        except (Denied, ToolDenied) as denied:
            return Happened("deny", str(denied.details.get("rule", "")))
        begun = [info for info in await self.runtime.inside.runs.journal.list(limit=1000) if info.id not in before]
        facts = [event for info in begun for _, event in await self.runtime.inside.runs.facts(info.id)]
        if self.lines() > lines:
            return Happened("allow")
        if any(isinstance(fact, e.ApprovalRequested) for fact in facts):
            return Happened("ask")
        return Happened("deny", next(filter(None, map(_rule_of, facts)), ""))

    async def judged(self, caller: ToolCaller, arguments: dict[str, Any]) -> Happened:
        """What `tools test` says of a call from outside of runs."""
        judgement = await self.runtime.inside.tools.test("pay", arguments, caller)
        return Happened(judgement.outcome, judgement.decided.rule if judgement.outcome == "deny" else "")

    async def recorded(self, call: Awaitable[Any]) -> Happened:
        """What became of a call from outside of runs, by the audit log."""
        log, lines = SqlAuditLog(self.runtime.inside.tasking.database), self.lines()
        head = await log.head()
        await call
        await self.runtime.inside.audit.flush()
        begun = [each for each in await log.find(AuditFilter(tool="pay")) if head is None or each.seq > head.seq]
        assert begun, "every call is recorded"
        first = begun[-1].body
        outcome = {"admitted": "allow", "parked": "ask", "refused": "deny"}[first["moment"]]
        assert (self.lines() > lines) == (outcome == "allow"), first
        return Happened(outcome, first["decision"].get("rule", ""))

    def lines(self) -> int:
        return len(self.acted.read_text().splitlines())

    async def work(self) -> None:
        offer = Offer("w1", self.runtime.inside.runs.worker, capacity=4)
        await asyncio.wait_for(self.runtime.inside.tasking.worker(offer, once=True).run(), 60)


def _rule_of(fact: e.Event) -> str:
    match fact:
        case e.ToolFinished(result=result) if result.error is not None:
            return str(result.error.details.get("rule", ""))
        case e.ModelFailed(kind="policy", message=message):
            return message.rpartition("(")[2].rstrip(")")
        case e.BudgetExceeded(budget=budget):
            return f"Budget/{budget}" if budget else ""
        case _:
            return ""


def _denied(answer: httpx.Response) -> Denied:
    """The refusal. Its details stay on the server, except for the rule, which the hint names."""
    body = answer.json()
    said = body["error"] if isinstance(body.get("error"), dict) else body
    return Denied("refused", rule=str(said.get("hint") or said.get("message") or "").partition("this is ")[2])


# --- the ways in -------------------------------------------------------------------------------------------------

Way = Callable[[Play, Case], Awaitable[tuple[Happened, Happened]]]
HTTP_USER = ANONYMOUS.name


async def python(play: Play, case: Case) -> tuple[Happened, Happened]:
    said = await play.explained("worker", "pay", {"amount": case.amount}, user=case.user, via="python")
    return said, await play.happened(play.runtime.run("worker", "go", user=case.user, check=False))


async def http_run(play: Play, case: Case) -> tuple[Happened, Happened]:
    async def begin() -> None:
        run = f"r-{case.number}-{secrets.token_hex(6)}"
        body = {"agent": "worker", "input": "go", "run_id": run, "namespace": "default"}
        answer = await play.http.post("/v1/runs", json=body)
        if answer.status_code == 403:
            raise _denied(answer)
        assert answer.status_code == 200, answer.text
        await play.runtime.runs.wait(run)

    said = await play.explained("worker", "pay", {"amount": case.amount})  # of whoever asks
    return said, await play.happened(begin())


async def openai(play: Play, case: Case) -> tuple[Happened, Happened]:
    async def chat() -> None:
        body = {"model": "worker", "messages": [{"role": "user", "content": "go"}]}
        answer = await play.http.post("/v1/chat/completions", json=body)
        if answer.status_code == 403:
            raise _denied(answer)

    said = await play.explained("worker", "pay", {"amount": case.amount}, via="openai")
    return said, await play.happened(chat())


async def task(play: Play, case: Case) -> tuple[Happened, Happened]:
    async def go() -> None:
        await play.runtime.inside.tasking.tasks.accept(
            Command("agent", "worker", name=case.task, message="go", user=case.user)
        )
        await play.work()

    said = await play.explained("worker", "pay", {"amount": case.amount}, user=case.user, task=case.task)
    return said, await play.happened(go())


async def system(play: Play, case: Case) -> tuple[Happened, Happened]:
    async def go() -> None:
        await play.runtime.inside.tasking.tasks.accept(
            Command("system", "flow", name=case.task, message="go", user=case.user)
        )
        await play.work()

    under = {"task": case.task, "system": "flow", "user": case.user}
    return await play.explained("worker", "pay", {"amount": case.amount}, **under), await play.happened(go())


async def template(play: Play, case: Case) -> tuple[Happened, Happened]:
    """As schedules and webhooks make tasks."""

    async def go() -> None:
        given = Command("agent", "", name=case.task, user=case.user)
        await play.runtime.inside.tasking.tasks.accept_template(
            "default/nightly", given, origin=Origin("TaskWebhook", "default")
        )
        await play.work()

    under = {"task": case.task, "template": "nightly", "user": case.user}
    return await play.explained("worker", "pay", {"amount": case.amount}, **under), await play.happened(go())


async def schedule(play: Play, case: Case) -> tuple[Happened, Happened]:
    """A task that a schedule makes now. What explain has to know of it is asked by the name of the task alone."""
    made: list[str] = []

    async def go() -> None:
        answer = await play.http.post("/v1/task-schedules/daily/run", json={})
        if answer.status_code == 403:
            raise _denied(answer)
        assert answer.status_code == 200, answer.text
        made.append(answer.json()["task"])
        await play.work()

    await play.declare("TaskSchedule", "daily", {"task_ref": "nightly", "schedule": "0 0 1 1 *"})
    done = await play.happened(go())
    under = {"task": made[0]} if made else {"template": "nightly"}
    return await play.explained("worker", "pay", {"amount": case.amount}, **under), done


async def child(play: Play, case: Case) -> tuple[Happened, Happened]:
    async def go() -> None:
        await play.runtime.inside.tasking.tasks.accept(
            Command("agent", "boss", name=case.task, message="go", user=case.user)
        )
        await play.work()

    under = {"task": case.task, "user": case.user}
    said = await play.explained("boss", "agent:worker", {"input": "go"}, **under)
    if said.outcome == "allow":
        said = await play.explained("worker", "pay", {"amount": case.amount}, ancestors=["boss"], **under)
        if said.outcome == "ask":
            return said, said  # the parent stays with a child that waits for a person: nothing ends
    return said, await play.happened(go())


async def person(play: Play, case: Case) -> tuple[Happened, Happened]:
    """A tool called by hand, as the agent."""
    body = {"arguments": {"amount": case.amount}, "agent": "worker"}
    lines = play.lines()
    said = (await play.http.post("/v1/tools/pay/test", json=body)).json()
    answer = await play.http.post("/v1/tools/pay/call", json=body)
    done = answer.json()
    rule = said["decided"]["rule"] if said["outcome"] == "deny" else ""
    error = (done.get("result") or {}).get("error") or {}
    asks = answer.status_code == 403 and "needs an approval" in done["detail"]
    outcome = "allow" if play.lines() > lines else "ask" if asks else "deny"
    return Happened(said["outcome"], rule), Happened(outcome, error.get("details", {}).get("rule", ""))


async def webhook(play: Play, case: Case) -> tuple[Happened, Happened]:
    """A delivery that its sender has signed."""
    secret, made = "whsec_" + base64.b64encode(b"correct-horse-battery-staple").decode(), list[str]()
    hook = {"metadata": {"name": "hook"}, "spec": {"stringData": {"value": secret}}}
    answer = await play.http.post("/v1/secrets", json=hook)
    assert answer.is_success, answer.text
    auth = {"profile": "generic", "secret_ref": "hook"}
    await play.declare("TaskWebhook", "orders", {"task_ref": "nightly", "auth": auth})
    document = await play.runtime.inside.resources.get(Key("TaskWebhook", "default", "orders"))
    endpoints = WebhookEndpoints(play.runtime.inside.tasking.database, play.runtime.inside.resources)
    path = (await endpoints.ensure(document))["status"]["endpointPath"]

    async def deliver() -> None:
        event = f"evt-{case.number}-{secrets.token_hex(6)}"
        body = json.dumps({"id": event, "event_id": event}).encode()
        headers = sign(read_webhook(document).scheme, secret.encode(), body, now=time.time(), event_id=event)
        answer = await play.http.post(path, content=body, headers=headers)
        if answer.status_code != 202:
            status = (await play.runtime.inside.resources.get(Key("TaskWebhook", "default", "orders")))["status"]
            raise Denied("refused", rule=_rule_in(json.dumps(status)))
        made.append(answer.json()["task"])
        await play.work()

    done = await play.happened(deliver())
    under = {"task": made[0]} if made else {"template": "nightly"}
    return await play.explained("worker", "pay", {"amount": case.amount}, **under), done


async def slot(play: Play, case: Case) -> tuple[Happened, Happened]:
    """A task that the scheduler makes when its time has come."""
    name, tasking, now = f"every-{case.number}-{secrets.token_hex(3)}", play.runtime.inside.tasking, time.time()
    made: list[str] = []
    scheduler = Scheduler(tasking.database, play.runtime.inside.resources, tasking.tasks, clock=lambda: now)
    await play.declare("TaskSchedule", name, {"task_ref": "nightly", "schedule": "* * * * *"})

    async def fire() -> None:
        await scheduler.tick(now)  # the last slot before it was declared is still in time
        status = (await play.runtime.inside.resources.get(Key("TaskSchedule", "default", name)))["status"]
        if error := status.get("lastError"):
            raise Denied("refused", rule=_rule_in(error))
        made.append(status["lastTriggeredTask"])
        await play.work()

    done = await play.happened(fire())
    await play.runtime.inside.resources.write([Delete(Key("TaskSchedule", "default", name))])
    under = {"task": made[0]} if made else {"template": "nightly"}
    return await play.explained("worker", "pay", {"amount": case.amount}, **under), done


async def mcp_agent(play: Play, case: Case) -> tuple[Happened, Happened]:
    """An agent that a client of MCP calls."""

    async def call() -> None:
        runs = len(await play.runtime.inside.runs.journal.list(limit=1000))
        async with Client(f"{play.url}/mcp") as client:
            result = await client.call_tool("agent-worker", {"message": "go"})
        if result.is_error and len(await play.runtime.inside.runs.journal.list(limit=1000)) == runs:
            raise Denied("refused", rule=_rule_in(str(result.content)))

    said = await play.explained("worker", "pay", {"amount": case.amount}, via="mcp")
    return said, await play.happened(call())


async def mcp_tool(play: Play, case: Case) -> tuple[Happened, Happened]:
    """A tool that a client of MCP calls."""

    async def call() -> None:
        async with Client(f"{play.url}/mcp") as client:
            await client.call_tool("pay", {"amount": case.amount})

    said = await play.judged(ToolCaller(identity=Identity(HTTP_USER, via="mcp")), {"amount": case.amount})
    return said, await play.recorded(call())


def _rule_in(text: str) -> str:
    found = re.search(r"(?:AgentPolicy|ToolPermission|Budget)/[\w-]+", text)
    return found[0] if found else ""


@pytest.mark.parametrize("user", [HTTP_USER, "ann"])
async def test_a_question_that_names_nobody_is_of_whoever_asks(tmp_path: Path, user: str) -> None:
    rule = {"tool_ref": "pay", "conditions": [{"when": f'caller.user == "{user}"', "verdict": "deny"}]}
    async with played(tmp_path) as play:
        case = Case(0, 3, user)
        await play.make(Random(0), case)
        await play.clear()
        await play.declare("Agent", "worker", {"model_ref": "brain-m-2-3", "tools": ["pay"]})
        script = [{"call": {"pay": {"amount": 3}}}, {"say": "done"}]
        brain = {"provider": "scripted", "default_model": "m-2", "script": script}
        await play.declare("ModelEndpoint", "brain-m-2-3", brain)
        call = {"agent": "worker", "tool": "pay", "arguments": {"amount": 3}}
        manifest = {"kind": "ToolPermission", "metadata": {"name": "not-they"}, "spec": rule}
        foretold = await play.http.post(
            "/v1/policies/simulate", json={"manifests": [manifest], "calls": [call, {**call, "user": "bob"}]}
        )
        fates = foretold.json()["fates"]
        assert [each["after"]["outcome"] for each in fates] == ["deny" if user == HTTP_USER else "allow", "allow"]
        assert [each["user"] for each in fates] == [HTTP_USER, "bob"]

        await play.declare("ToolPermission", "not-they", rule)
        answer = (await play.http.post("/v1/policies/explain", json=call)).json()
        assert answer["user"] == HTTP_USER
        said, done = await http_run(play, case)
        assert said == done == (Happened("deny", "ToolPermission/not-they") if user == HTTP_USER else Happened("allow"))


WAYS: tuple[Way, ...] = (python, http_run, openai, task, system, template, schedule, child, person)


# Each of these begins a client, a server or a scheduler.
DEAR_WAYS: tuple[Way, ...] = (webhook, slot, mcp_agent, mcp_tool)


def cases(ways: int = len(WAYS), each: int = 6) -> list[int]:
    """Seeds, so many for each of the ways; the way is the rest of the division by how many there are."""
    if seed := os.environ.get("FOLIOT_CHAOS_SEED"):
        return [int(seed)]
    if os.environ.get("FOLIOT_CHAOS"):
        return [secrets.randbelow(2**31) for _ in range(ways * 44)]
    return list(range(ways * each))


@asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Play]:
    settings = load_settings({"home": str(folder / "home")}, {})
    acted = folder / "acted"
    acted.touch()
    ACTED[:] = [acted]
    async with Runtime(settings=settings) as runtime:
        app = create_app(runtime, settings=settings, auth=Anonymous())
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with (
            served(app) as url,
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=110) as http,
        ):
            yield Play(runtime, http, acted, url)


async def compare(play: Play, ways: tuple[Way, ...], seeds: list[int], *, taken_back: bool = False) -> None:
    outcomes: set[str] = set()
    wrong: list[str] = []
    for number, seed in enumerate(seeds):
        chance = Random(seed)
        case = Case(number, chance.choice([3, 501]), chance.choice(["ann", "bob"]))
        await play.make(chance, case)
        if taken_back:
            await play.take_back(chance)
        way = ways[seed % len(ways)]
        said, done = await way(play, case)
        outcomes.add(done.outcome)
        if said != done:
            wrong.append(f"FOLIOT_CHAOS_SEED={seed} ({way.__name__}): explained {said}, happened {done}")
    assert not wrong, "\n".join(wrong)
    assert len(outcomes) == 3 or len(seeds) == 1, f"the cases are too much alike: {outcomes}"


@pytest.mark.timeout(600)
async def test_what_is_explained_is_what_happens(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        await compare(play, WAYS, cases())


@pytest.mark.timeout(600)
async def test_what_is_explained_is_what_happens_without_what_was_taken_back(tmp_path: Path) -> None:
    """Standing grants that were changed, modules and addresses without a grant, references that were withdrawn."""
    ways = (python, http_run, openai, task, system)
    async with played(tmp_path) as play:
        await compare(play, ways, cases(len(ways), each=4), taken_back=True)


@pytest.mark.timeout(600)
async def test_what_is_explained_is_what_happens_to_deliveries_slots_and_clients_of_mcp(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        await compare(play, DEAR_WAYS, cases(len(DEAR_WAYS)))


@pytest.mark.timeout(600)
async def test_what_is_explained_is_what_happens_to_signed_calls_over_nats(tmp_path: Path, nats_url: str) -> None:
    """Tools served as `foliot tools serve` does, to a caller whom the operator lets call as the agent."""
    key = secrets.token_bytes(32)
    signer, subject = Signer("desk", key), "tool.execute.pay"
    async with played(tmp_path) as play, linked(nats_url) as link:

        async def nats(play: Play, case: Case) -> tuple[Happened, Happened]:
            user, id = case.user or "desk", secrets.token_hex(8)
            entry = BusCallerEntry(key=base64.b64encode(key).decode(), user=user, agent="worker")
            document = await play.runtime.inside.resources.get(Key("Tool", "default", "pay"))
            tools, client = await play.runtime.inside.tools.served([document], "default"), await link.reached()
            heard: list[Any] = []

            async def hear(message: Any) -> None:
                heard.append(message)

            async def call() -> None:
                payload = {"id": id, "name": "pay", "arguments": {"amount": case.amount}, "request_id": "r"}
                kind = {"domain": "agentic", "category": "tool_call", "version": "v1"}
                payload |= {"execution_id": f"e-{id}", "call_ordinal": 1}
                data = json.dumps({"id": "m", "type": kind, "meta": {}, "payload": payload}).encode()
                await (await link.jetstream()).publish(subject, data, headers=signer.sign("call", subject, data))
                await until(lambda: bool(heard))

            subscription = await client.subscribe(f"tool.result.{id}", cb=hear)
            await settled(client)
            said = await play.judged(
                ToolCaller(agent="worker", identity=Identity(user, via="nats")), {"amount": case.amount}
            )
            rights = play.runtime.inside.tools.rights_of
            async with serving(link, pipeline=tools, callers=new_callers({"desk": entry}), agents=rights):
                done = await play.recorded(call())
            await subscription.unsubscribe()
            return said, done

        await compare(play, (nats,), cases(1, each=24))
