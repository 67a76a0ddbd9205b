"""Somebody writes the template that another's schedule, webhook or command makes tasks after, and would approve what it
orders: by the clock, by a delivery, by hand, and in a task that somebody else asks for."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import way_of
from foliot.kernel.graph.events import TaskDeadLettered
from foliot.kernel.identity import Identity
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.server.http.serve import HttpServer, Listen
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.queue.placement import Offer
from foliot.store.tasks import ENDED
from foliot.work.tasks.commands import ordered_after
from foliot.work.triggers.schedule import decode_order
from foliot.work.triggers.scheduler import Scheduler
from foliot.work.triggers.signatures import sign
from foliot.work.triggers.webhook import read_webhook

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN = 60.0
SPACE = "team-a"
SECRET = b"correct-horse-battery"
WORLD = """
kind: ModelEndpoint
metadata: {name: brain}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {agent: payer}
      turns: [{call: {pay: {}}}, {say: done}]
    - match: {agent: boss}
      turns: [{call: {"agent:payer": {input: pay}}}, {say: done}]
    - match: {agent: fragile, input: full}
      turns: [{say: pay full}]
    - match: {agent: fragile}
      turns: [{fail: auth}]
    - match: {agent: harmless}
      turns: [{say: nothing}]
---
kind: Agent
metadata: {name: payer}
spec: {model_ref: brain, prompt: Pay., tools: [pay]}
---
kind: Agent
metadata: {name: boss}
spec: {model_ref: brain, prompt: Have it paid., tools: ["agent:payer"]}
---
kind: Agent
metadata: {name: fragile}
spec: {model_ref: brain, prompt: Fail.}
---
kind: AgentSystem
metadata: {name: desk}
spec: {agents: [fragile, payer], graph: {fragile: {edges: [{to: payer}]}}}
---
kind: Agent
metadata: {name: harmless}
spec: {model_ref: brain, prompt: Say nothing.}
---
kind: Secret
metadata: {name: hook}
spec: {stringData: {value: correct-horse-battery}, hosts: [webhook]}
---
kind: ToolPermission
metadata: {name: pay}
spec: {tool_ref: pay, operation_rules: [{operation_class: "*", verdict: approval_required}], four_eyes: true}
"""


@dataclass
class Place:
    runtime: Runtime
    http: httpx.AsyncClient
    tokens: dict[str, dict[str, str]]
    known: set[str] = field(default_factory=set[str])
    count: itertools.count[int] = field(default_factory=itertools.count)

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=self.tokens[who], params={"namespace": SPACE}, **more)

    async def template(self, who: str, agent: str = "payer", name: str = "") -> str:
        name = name or f"form-{next(self.count)}"
        spec = {"agent": agent, "mode": "template", "input": {"topic": "pay"}}
        made = {"kind": "Task", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}
        answer = await self.ask(who, "POST", "/v1/tasks", json=made)
        assert answer.status_code in (200, 201), answer.text
        return name

    async def trigger(self, who: str, kind: str, form: str, **spec: Any) -> str:
        name = f"x-{next(self.count)}"
        made = {"kind": kind, "metadata": {"name": name, "namespace": SPACE}, "spec": {"task_ref": form, **spec}}
        path = "/v1/task-schedules" if kind == "TaskSchedule" else "/v1/task-webhooks"
        answer = await self.ask(who, "POST", path, json=made)
        assert answer.status_code == 201, answer.text
        return name

    async def waiting(self) -> tuple[str, Identity]:
        """The next call that waits for consent, and whose order it is."""
        async with asyncio.timeout(WITHIN):
            while True:
                async for each in self.runtime.inside.approvals.list(namespace=SPACE):
                    if (name := each["metadata"]["name"]) not in self.known:
                        self.known.add(name)
                        return name, (await self.runtime.inside.runs.load(each["spec"]["run"]))[1].identity
                await self.runtime.inside.next_change()()

    async def tick(self) -> None:
        tasking, later = self.runtime.inside.tasking, time.time() + 61
        await Scheduler(tasking.database, self.runtime.inside.resources, tasking.tasks, clock=lambda: later).tick(later)

    async def approves(self, who: str, name: str) -> int:
        return (await self.ask(who, "POST", f"/v1/tool-approvals/{name}/approve", json={})).status_code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """One server for all that is tried on SQLite."""
    async with opened({"home": str(tmp_path_factory.mktemp("templates") / "home")}) as found:
        yield found


@asynccontextmanager
async def opened(given: dict[str, str]) -> AsyncGenerator[Place]:
    settings = load_settings({**given, "request_rate": "0"}, {})

    def pay() -> str:
        """Pay."""
        return "paid"

    async with Runtime(settings=settings, tools=[pay]) as runtime:
        tokens, held = SqlTokens(runtime.inside.tasking.database), dict[str, dict[str, str]]()
        people = ("operator", "author", "approver")
        roles = {"root": ("*", ("admin",)), "boss": ("*", ("admin",)), "full": (SPACE, people), "ann": (SPACE, people)}
        roles["third"] = (SPACE, ("approver",))
        for name, (space, role) in roles.items():
            _, text = await tokens.create(name, namespaces=[space], roles=role, now=time.time())
            held[name] = {"Authorization": f"Bearer {text}"}
        auth = TokenAuth(runtime.inside.tasking.database, local=True)
        worker = runtime.inside.tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=4), grace=0)
        working = asyncio.create_task(worker.run())
        async with (
            HttpServer(create_app(runtime, settings=settings, auth=auth), Listen("127.0.0.1", 0), grace=5) as server,
            httpx.AsyncClient(base_url=server.url, timeout=WITHIN) as http,
        ):
            found = Place(runtime, http, held)
            made = await found.ask("root", "POST", "/v1/apply", content=WORLD)
            assert made.status_code == 200, made.text
            yield found
            worker.drain()
            await working
        await auth.close()


Way = Callable[[Place, str, str], Awaitable[Callable[[], Awaitable[None]]]]


async def clock(place: Place, who: str, form: str) -> Callable[[], Awaitable[None]]:
    name = await place.trigger(who, "TaskSchedule", form, schedule="* * * * *")

    async def fire() -> None:
        await place.tick()
        await place.ask("root", "DELETE", f"/v1/task-schedules/{name}")

    return fire


async def delivery(place: Place, who: str, form: str) -> Callable[[], Awaitable[None]]:
    name = await place.trigger(who, "TaskWebhook", form, auth={"profile": "generic", "secret_ref": "hook"})

    async def fire() -> None:
        document = (await place.ask(who, "GET", f"/v1/task-webhooks/{name}")).json()
        body = json.dumps({"x": 1}).encode()
        signed = sign(read_webhook(document).scheme, SECRET, body, now=time.time(), event_id=name)
        answer = await place.http.post(document["status"]["endpointPath"], content=body, headers=dict(signed))
        assert answer.status_code == 202, answer.text

    return fire


async def refused(place: Place, approval: str, *who: str) -> None:
    for name in who:
        assert await place.approves(name, approval) == 403, name
    document = await place.runtime.inside.approvals.get(approval, namespace=SPACE)
    assert document["status"]["phase"] == "Pending"


@pytest.mark.parametrize("way", [clock, delivery])
async def test_a_trigger_of_the_operator_acts_for_who_wrote_its_template(place: Place, way: Way) -> None:
    form = await place.template("root", "harmless")
    fire = await way(place, "root", form)
    change = {"spec": {"agent": "payer", "input": {"topic": "PAY 900 TO FULL"}}}
    assert (await place.ask("full", "PATCH", f"/v1/tasks/{form}", json=change)).status_code in (200, 409)
    await place.template("full", name=form)

    await fire()

    approval, identity = await place.waiting()
    assert (identity.user, identity.ordered_by) == ("full", ("root",))
    await refused(place, approval, "full", "root")
    shown = (await place.ask("full", "GET", f"/v1/tool-approvals/{approval}")).json()
    assert shown["spec"]["asked_by"] == "full (ordered by root)"
    assert await place.approves("third", approval) == 200


@pytest.mark.parametrize("way", [clock, delivery])
@pytest.mark.parametrize("author", ["full", "root"])
async def test_a_trigger_of_somebody_else_acts_for_them_by_whoevers_template(
    place: Place, way: Way, author: str
) -> None:
    form = await place.template(author)
    fire = await way(place, "ann", form)

    await fire()

    approval, identity = await place.waiting()
    assert (identity.user, identity.ordered_by) == ("ann", (author,))
    await refused(place, approval, "ann", author)
    assert await place.approves("third", approval) == 200


@pytest.mark.parametrize("way", [clock, delivery])
async def test_the_operators_own_template_is_the_operators_order(place: Place, way: Way) -> None:
    form = await place.template("root")
    fire = await way(place, "root", form)

    await fire()

    approval, identity = await place.waiting()
    assert (identity.user, identity.ordered_by) == ("root", ())
    await refused(place, approval, "root")
    assert await place.approves("full", approval) == 200, "who has no part in the order decides as before"


async def test_of_two_operators_the_one_who_declared_the_trigger_acts(place: Place) -> None:
    fire = await clock(place, "root", await place.template("boss"))
    await fire()
    approval, identity = await place.waiting()
    assert (identity.user, identity.ordered_by) == ("root", ("boss",))
    await refused(place, approval, "root", "boss")


@pytest.mark.parametrize("agent", ["payer", "boss"])
async def test_who_wrote_the_template_does_not_approve_what_another_asks_for(place: Place, agent: str) -> None:
    form = await place.template("full", agent)
    order: dict[str, Any] = {"target_kind": "agent", "target": agent, "message": "pay", "template": f"{SPACE}/{form}"}
    order["identity"] = {"user": "root", "ordered_by": ["third"]}  # nobody keeps others from deciding by naming them
    answer = await place.ask("ann", "POST", "/v1/tasks/submit", json={**order, "namespace": SPACE})
    assert answer.status_code == 201, answer.text

    approval, identity = await place.waiting()
    assert (identity.user, identity.ordered_by) == ("ann", ("full",))
    await refused(place, approval, "ann", "full")
    assert await place.approves("third", approval) == 200


async def test_a_trigger_that_somebody_runs_by_hand_is_the_order_of_three(place: Place) -> None:
    form = await place.template("full")
    hook = await place.trigger("ann", "TaskWebhook", form, auth={"profile": "generic", "secret_ref": "hook"})
    timed = await place.trigger("ann", "TaskSchedule", form, schedule="0 0 1 1 *")
    body: dict[str, Any] = {"body": base64.b64encode(b"{}").decode(), "event_id": "e1", "headers": {}}
    for path, said in ((f"task-webhooks/{hook}/send-test", body), (f"task-schedules/{timed}/run", {})):
        answer = await place.ask("root", "POST", f"/v1/{path}", json=said)
        assert answer.status_code < 300, answer.text
        approval, identity = await place.waiting()
        assert (identity.user, identity.ordered_by) == ("root", ("ann", "full"))
        await refused(place, approval, "root", "ann", "full")


async def test_who_puts_other_words_into_a_task_that_is_tried_again_orders_it(place: Place) -> None:
    order = {"target_kind": "system", "target": "desk", "message": "nothing", "namespace": SPACE}
    task = (await place.ask("ann", "POST", "/v1/tasks/submit", json=order)).json()["metadata"]["name"]
    tasks = place.runtime.inside.tasking.tasks
    async with asyncio.timeout(WITHIN):
        while (await tasks.get(SPACE, task)).phase not in ENDED:
            await place.runtime.inside.next_change()()
    (failed,) = [each.event for each in await tasks.events(SPACE, task) if isinstance(each.event, TaskDeadLettered)]
    said = {"payloads": {failed.message_id: "PAY 900 TO FULL"}}
    answer = await place.ask("full", "POST", f"/v1/tasks/{task}/requeue", json=said)
    assert answer.status_code == 200, answer.text

    approval, identity = await place.waiting()  # of the agent behind the one that was told so
    assert (identity.user, identity.ordered_by) == ("ann", ("full",))
    await refused(place, approval, "ann", "full")


async def test_a_standing_grant_of_who_wrote_the_template_answers_nothing(place: Place) -> None:
    fire = await clock(place, "ann", await place.template("full"))
    approvals = place.runtime.inside.approvals
    grants = [await approvals.grant(by=giver, tool="pay", seconds=60, namespace=SPACE) for giver in ("full", "ann")]
    place.known |= {each["metadata"]["name"] for each in grants}
    await fire()
    approval, _ = await place.waiting()
    await refused(place, approval, "full", "ann")
    for each in grants:
        await approvals.revoke(each["metadata"]["name"], by="root", namespace=SPACE)


async def test_nothing_is_done_for_the_writer_of_a_template_who_may_do_nothing_any_more(place: Place) -> None:
    tokens = SqlTokens(place.runtime.inside.tasking.database)
    _, text = await tokens.create("gone", namespaces=[SPACE], roles=["author", "operator"], now=time.time())
    place.tokens["gone"] = {"Authorization": f"Bearer {text}"}
    form = await place.template("gone")
    name = await place.trigger("root", "TaskSchedule", form, schedule="* * * * *")
    await tokens.revoke("gone", now=time.time())

    await place.tick()

    status = (await place.ask("root", "GET", f"/v1/task-schedules/{name}")).json()["status"]
    assert "the token gone is revoked, and declared the template" in status["lastError"]
    assert "lastTriggeredTask" not in status
    await place.ask("root", "DELETE", f"/v1/task-schedules/{name}")


async def test_both_names_are_in_the_audit_log_and_in_why(place: Place) -> None:
    fire = await clock(place, "root", await place.template("full"))
    await fire()
    approval, _ = await place.waiting()
    assert await place.approves("third", approval) == 200
    run = (await place.runtime.inside.approvals.get(approval, namespace=SPACE))["spec"]["run"]
    trace = trace_of(run, await place.runtime.inside.runs.facts(run))
    assert "it acts for full, and root ordered it too" in way_of(trace)
    audit = (await place.ask("root", "GET", "/v1/audit")).json()
    callers = [each["body"].get("caller", {}) for each in audit["records"]]
    assert ("full", ["root"]) in [(each.get("user"), each.get("ordered_by")) for each in callers]


async def test_on_postgres_the_same(postgres_url: str, tmp_path: Path) -> None:
    async with opened({"home": str(tmp_path), "store": postgres_url}) as place:
        form = await place.template("full")
        for way, who, expected in ((clock, "root", ("full", ("root",))), (delivery, "ann", ("ann", ("full",)))):
            fire = await way(place, who, form)
            await fire()
            approval, identity = await place.waiting()
            assert (identity.user, identity.ordered_by) == expected
            await refused(place, approval, *identity.people)


async def test_what_older_versions_stored_goes_on_as_before() -> None:
    old = {"metadata": {"name": "form", "uid": "u"}, "spec": {}}
    assert ordered_after(Identity("ann", via="schedule:x"), old, by_operator=True) == Identity("ann", via="schedule:x")
    command = '{"target_kind": "agent", "target": "", "identity": {"user": "ann"}}'
    order = decode_order(f'{{"ref": "a/b", "command": {command}}}')
    assert (order.by_operator, order.command.identity) == (False, Identity("ann"))
