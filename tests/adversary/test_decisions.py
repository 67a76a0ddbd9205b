"""Every way to decide leaves exactly one record in the audit log, and the record names who decided.

A person may approve, deny, edit, vote, answer, settle what a crash cut off, give a grant and take it back: in Python,
on the command line, over HTTP (both families of routes), in the OpenAI API, in a form of an MCP client. A standing
grant decides when it is used, and the rule itself when nobody did so in time. Names that a request says of itself do
not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import mcp_types as types
import pytest
from click.testing import CliRunner
from mcp import Client

from foliot.catalog.apply import apply_documents
from foliot.cli.main import cli
from foliot.engine.driver.runs import user_message
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.arguments import arguments_digest
from foliot.resources.reader import parse_text
from foliot.runtime.local.groups import whoami
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.identity import Caller, granted
from foliot.settings.settings import Settings, load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from tests.server.mcp.conftest import served

HOUR = 3600.0
WORLD = f"""\
kind: ModelEndpoint
metadata: {{name: model}}
spec:
  provider: scripted
  default_model: scripted
  script:
    - match: {{agent: desk}}
      turns: [{{call: {{pay: {{amount: 5}}}}}}, {{say: done}}]
    - match: {{agent: board}}
      turns: [{{call: {{invest: {{amount: 5}}}}}}, {{say: done}}]
    - match: {{agent: shop}}
      turns: [{{call: {{charge: {{}}}}}}, {{say: done}}]
    - match: {{agent: asker}}
      turns: [{{call: {{ask_user: {{question: "Which?"}}}}}}, {{say: done}}]
    - match: {{agent: guesser}}
      turns: [{{call: {{ask_user: {{question: "Which?", default: red, timeout_seconds: 60}}}}}}, {{say: done}}]
---
kind: Tool
metadata: {{name: pay}}
spec: {{type: function, function: "{__name__}:pay", effect: once}}
---
kind: Tool
metadata: {{name: invest}}
spec: {{type: function, function: "{__name__}:pay", effect: once}}
---
kind: Tool
metadata: {{name: charge}}
spec: {{type: function, function: "{__name__}:charge", effect: once}}
---
kind: ToolPermission
metadata: {{name: payments}}
spec: {{tool_ref: pay, operation_rules: [{{verdict: approval_required}}]}}
---
kind: ToolPermission
metadata: {{name: investments}}
spec: {{tool_ref: invest, required_approvals: 2, operation_rules: [{{verdict: approval_required}}]}}
---
kind: Agent
metadata: {{name: desk}}
spec: {{model_ref: model, tools: [pay]}}
---
kind: Agent
metadata: {{name: board}}
spec: {{model_ref: model, tools: [invest]}}
---
kind: Agent
metadata: {{name: shop}}
spec: {{model_ref: model, tools: [charge]}}
---
kind: Agent
metadata: {{name: asker}}
spec: {{model_ref: model, tools: [ask_user]}}
---
kind: Agent
metadata: {{name: guesser}}
spec: {{model_ref: model, tools: [ask_user]}}
"""
INVESTED = arguments_digest({"amount": 5})
REACHED: list[asyncio.Event] = []


def pay(amount: int) -> str:
    """Pay somebody."""
    return f"{amount} paid"


async def charge() -> str:
    """Charge a card, on a terminal that hangs."""
    REACHED[0].set()
    await asyncio.Event().wait()
    return "charged"


class ByHeader:
    """An `Authenticator` that believes a header; mona is who sends none."""

    async def identify(self, scope: MutableMapping[str, Any]) -> Caller:
        name = dict(scope["headers"]).get(b"x-who", b"mona").decode()
        return Caller(name, "token", granted(["*"], ["admin"]))

    async def describe(self) -> str:
        return "a header"


@dataclass(frozen=True)
class Decided:
    """One record: what was decided, in whose name, and by whom when that is somebody else."""

    outcome: str
    by: str
    actor: str = ""


class House:
    """A store, a server on it, and the command line."""

    def __init__(self, settings: Settings, runtime: Runtime, http: httpx.AsyncClient, url: str) -> None:
        self.settings = settings
        self.runtime = runtime
        self.http = http
        self.url = url
        self._runs = (f"r{number}" for number in itertools.count(1))

    # --- what is to be decided -----------------------------------------------------------------------------------

    async def waiting(self, agent: str) -> str:
        """A run of this agent that waits."""
        run = next(self._runs)
        result = await self.runtime.run(agent, "go", run_id=run, user="ann", check=False)
        assert result.phase == "waiting", result
        return run

    async def approval(self, agent: str = "desk") -> str:
        run = await self.waiting(agent)
        (document,) = [each async for each in self.runtime.inside.approvals.list(run=run)]
        return document["metadata"]["name"]

    async def grant(self) -> str:
        """A standing grant. Calls of agents that there are do not rest on it."""
        given = await self.runtime.inside.approvals.grant(by="gina", tool="pay", agent="nobody", seconds=HOUR)
        return given["metadata"]["name"]

    async def lost(self) -> str:
        """A run whose worker died in the middle of a call that must not happen twice."""
        run, REACHED[:] = next(self._runs), [asyncio.Event()]
        runtime = self.runtime
        spec = await runtime.inside._assembly.freeze(await runtime.inside._assembly.agent("shop"))
        tools = await runtime.inside._assembly.pipeline(spec)
        driver = await runtime.inside.runs.start(spec, (user_message("go"),), run_id=run, tools=tools)
        driving = asyncio.create_task(driver.drive())
        await asyncio.wait_for(REACHED[0].wait(), 60)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        async with self.later(HOUR) as later:
            assert (await later.resume(run, check=False)).phase == "waiting"
        return run

    @asynccontextmanager
    async def later(self, seconds: float) -> AsyncIterator[Runtime]:
        async with Runtime(settings=self.settings, clock=lambda: time.time() + seconds) as runtime:
            yield runtime

    # --- how it is decided ---------------------------------------------------------------------------------------

    async def foliot(self, *words: str) -> None:
        """The command line, as it is typed on the machine of the store."""
        log = logging.getLogger()
        handlers, level = list(log.handlers), log.level
        typed = ["--home", str(self.settings.home), *words]
        try:
            result = await asyncio.to_thread(CliRunner().invoke, cli, typed, prog_name="foliot")
        finally:
            log.handlers[:] = handlers
            log.setLevel(level)
        assert result.exit_code == 0, result.output

    async def post(self, path: str, who: str = "hugo", **body: Any) -> Any:
        answer = await self.http.post(path, json=body, headers={"X-Who": who})
        assert answer.is_success, answer.text
        return answer.json()

    async def form(self, agent: str, **content: Any) -> None:
        """The user of an MCP client fills in what the call of an agent asks."""

        async def fill(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content=content)

        async with Client(f"{self.url}/mcp", elicitation_callback=fill) as client:
            await client.call_tool(f"agent-{agent}", {"message": "go"})

    # --- what is recorded ----------------------------------------------------------------------------------------

    async def records(self, after: int = 0, **wanted: Any) -> list[dict[str, Any]]:
        await self.runtime.inside.audit.flush()
        log = SqlAuditLog(self.runtime.inside.tasking.database)
        found = await log.find(AuditFilter(**wanted), limit=500)
        return [each.body for each in reversed(found) if each.seq > after]

    async def last(self) -> int:
        return max((each["seq"] for each in await self.records()), default=0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    async with Runtime(settings=settings) as runtime:
        bundle = parse_text(WORLD, "world.yaml")
        bundle.raise_for_errors()
        await apply_documents(runtime.inside.resources, [item.document for item in bundle.items])
        app = create_app(runtime, settings=settings, auth=ByHeader())
        async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=110) as http:
            yield House(settings, runtime, http, url)


# --- the ways of deciding ----------------------------------------------------------------------------------------

Step = Callable[[House, str], Awaitable[Any]]
NEW_ARGUMENTS = {"amount": 3}
ME = whoami()
MANY: tuple[tuple[str, Callable[[House], Awaitable[str]], Step, Decided], ...] = (
    # In Python.
    (
        "approve",
        House.approval,
        lambda h, it: h.runtime.inside.decide_approval(it, "approve", by="ann"),
        Decided("approved", "ann"),
    ),
    (
        "deny",
        House.approval,
        lambda h, it: h.runtime.inside.decide_approval(it, "deny", by="ann"),
        Decided("denied", "ann"),
    ),
    (
        "edit",
        House.approval,
        lambda h, it: h.runtime.inside.decide_approval(it, "edit", by="ann", arguments=NEW_ARGUMENTS),
        Decided("edited", "ann"),
    ),
    (
        "vote",
        lambda h: h.approval("board"),
        lambda h, it: h.runtime.inside.approvals.decide(it, "approve", by="bob", digest=INVESTED),
        Decided("voted", "bob"),
    ),
    (
        "for another",
        House.approval,
        lambda h, it: h.runtime.inside.approvals.decide(it, "approve", by="ann", actor="bot"),
        Decided("approved", "ann", "bot"),
    ),
    (
        "answer",
        lambda h: h.waiting("asker"),
        lambda h, it: h.runtime.inside.answer_question(it, None, "red", by="ann"),
        Decided("answered", "ann"),
    ),
    (
        "settle",
        House.lost,
        lambda h, it: h.runtime.inside.settle_call(it, "call_1_1", "happened", result="ok", by="ann"),
        Decided("happened", "ann"),
    ),
    (
        "grant",
        House.last,
        lambda h, _: h.runtime.inside.approvals.grant(by="ann", tool="pay", agent="nobody", seconds=HOUR),
        Decided("granted", "ann"),
    ),
    ("revoke", House.grant, lambda h, it: h.runtime.inside.approvals.revoke(it, by="ann"), Decided("revoked", "ann")),
    # On the command line.
    (
        "typed approve",
        House.approval,
        lambda h, it: h.foliot("approvals", "approve", it, "--no-resume"),
        Decided("approved", ME),
    ),
    (
        "typed approve for another",
        House.approval,
        lambda h, it: h.foliot("approvals", "approve", it, "--as", "zoe", "--no-resume"),
        Decided("approved", "zoe", ME),
    ),
    (
        "typed deny",
        House.approval,
        lambda h, it: h.foliot("approvals", "deny", it, "--as", "zoe", "--no-resume"),
        Decided("denied", "zoe", ME),
    ),
    (
        "typed edit",
        House.approval,
        lambda h, it: h.foliot(
            "approvals", "edit", it, "--arguments", json.dumps(NEW_ARGUMENTS), "--as", "zoe", "--no-resume"
        ),
        Decided("edited", "zoe", ME),
    ),
    (
        "typed grant",
        House.last,
        lambda h, _: h.foliot("approvals", "grant", "--tool", "pay", "--agent", "x", "--until", "1h", "--as", "zoe"),
        Decided("granted", "zoe", ME),
    ),
    (
        "typed revoke",
        House.grant,
        lambda h, it: h.foliot("approvals", "revoke", it, "--as", "zoe"),
        Decided("revoked", "zoe", ME),
    ),
    (
        "typed answer",
        lambda h: h.waiting("asker"),
        lambda h, it: h.foliot("answer", it, "red", "--as", "zoe", "--no-resume"),
        Decided("answered", "zoe", ME),
    ),
    (
        "typed decide",
        House.lost,
        lambda h, it: h.foliot("settle", it, "charge", "happened", "--result", "ok"),
        Decided("happened", ME),
    ),
    # Over HTTP. What a body says of who decides is not believed.
    (
        "HTTP approve",
        House.approval,
        lambda h, it: h.post(f"/v1/tool-approvals/{it}/approve", decided_by="root"),
        Decided("approved", "hugo"),
    ),
    ("HTTP deny", House.approval, lambda h, it: h.post(f"/v1/tool-approvals/{it}/deny"), Decided("denied", "hugo")),
    (
        "HTTP edit",
        House.approval,
        lambda h, it: h.post(f"/v1/tool-approvals/{it}/edit", arguments=NEW_ARGUMENTS),
        Decided("edited", "hugo"),
    ),
    (
        "work approve",
        House.approval,
        lambda h, it: h.post(f"/v1/tool-approvals/{it}/approve", decided_by="root"),
        Decided("approved", "hugo"),
    ),
    (
        "work vote",
        lambda h: h.approval("board"),
        lambda h, it: h.post(f"/v1/tool-approvals/{it}/approve", decided_by="root", digest=INVESTED),
        Decided("voted", "hugo"),
    ),
    (
        "work grant",
        House.last,
        lambda h, _: h.post(
            "/v1/tool-approvals/grants", by="root", tool="pay", seconds=HOUR, scope={"agent": "nobody"}
        ),
        Decided("granted", "hugo"),
    ),
    (
        "work revoke",
        House.grant,
        lambda h, it: h.post(f"/v1/tool-approvals/{it}/revoke", by="root"),
        Decided("revoked", "hugo"),
    ),
    (
        "work answer",
        lambda h: h.waiting("asker"),
        lambda h, it: h.post(f"/v1/runs/{it}/answer", text="red"),
        Decided("answered", "hugo"),
    ),
    (
        "work settle",
        House.lost,
        lambda h, it: h.post(f"/v1/runs/{it}/settle", call="charge", decision="fail", by="root"),
        Decided("fail", "hugo"),
    ),
    ("OpenAI", House.last, lambda h, _: _openai(h), Decided("approved", "hugo")),
    # In a form of an MCP client.
    ("MCP approve", House.last, lambda h, _: h.form("desk", decision="approve"), Decided("approved", "mona")),
    ("MCP deny", House.last, lambda h, _: h.form("desk", decision="deny"), Decided("denied", "mona")),
    ("MCP answer", House.last, lambda h, _: h.form("asker", answer="red"), Decided("answered", "mona")),
    # When nobody does.
    ("expired approval", lambda h: h.waiting("desk"), lambda h, it: _expire(h, it), Decided("expired", "system")),
    ("expired votes", lambda h: h.waiting("board"), lambda h, it: _expire(h, it), Decided("expired", "system")),
    ("expired question", lambda h: h.waiting("asker"), lambda h, it: _expire(h, it), Decided("expired", "system")),
    ("default answer", lambda h: h.waiting("guesser"), lambda h, it: _expire(h, it), Decided("expired", "system")),
)


async def _openai(house: House) -> None:
    asked = await house.post("/v1/responses", model="desk", input="go")
    (request,) = [item for item in asked["output"] if item["type"] == "mcp_approval_request"]
    given = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    await house.post("/v1/responses", model="desk", input=[given], previous_response_id=asked["id"])


async def _expire(house: House, run: str) -> None:
    """Two processes find that it is over, and one of them looks again."""
    async with house.later(200 * HOUR) as one, house.later(200 * HOUR) as other:
        await asyncio.gather(*(each.resume(run, check=False) for each in (one, other)), return_exceptions=True)
        with contextlib.suppress(Conflict):
            await one.resume(run, check=False)


async def test_each_decision_has_one_record_which_names_who_made_it(house: House) -> None:
    wrong: list[str] = []
    for name, prepare, decide, expected in MANY:
        about = await prepare(house)
        before = await house.last()
        await decide(house, about)

        records = await house.records(before, moment="decided")
        found = [_decided(each) for each in records]
        if found != [expected]:
            wrong.append(f"{name}: {found} instead of {[expected]}")
        elif records[0]["namespace"] != "default" or (records[0]["run_id"] == "") != (expected.outcome in GRANTS):
            wrong.append(f"{name}: the record does not say what it is about: {records[0]}")
    assert not wrong, "\n".join(wrong)
    assert (await SqlAuditLog(house.runtime.inside.tasking.database).verify()).broken is None


GRANTS = ("granted", "revoked")


def _decided(record: dict[str, Any]) -> Decided:
    caller = record.get("caller", {})
    assert caller.get("user", record["decision"]["by"]) == record["decision"]["by"]
    return Decided(record["outcome"], record["decision"]["by"], caller.get("by", ""))


async def test_each_vote_has_its_record(house: House) -> None:
    name = await house.approval("board")
    before = await house.last()
    for person in ("bob", "eve"):
        await house.runtime.inside.approvals.decide(name, "approve", by=person, digest=INVESTED)
        with pytest.raises(Conflict):
            await house.runtime.inside.approvals.decide(name, "approve", by=person, digest=INVESTED)

    found = [_decided(each) for each in await house.records(before, moment="decided")]
    assert found == [Decided("voted", "bob"), Decided("approved", "eve")]


async def test_of_several_at_once_the_one_who_decides_is_recorded(house: House) -> None:
    approval, asking, lost = await house.approval(), await house.waiting("asker"), await house.lost()
    _, state = await house.runtime.inside.runs.load(lost)
    call, people = state.calls[0], [f"p{number}" for number in range(4)]
    for decide in (
        lambda who: house.runtime.inside.approvals.decide(approval, "approve", by=who),
        lambda who: house.runtime.inside.questions.answer(asking, None, f"said {who}", by=who),
        lambda who: house.runtime.inside.settle(state, call, "fail", by=who),
    ):
        before = await house.last()
        said = await asyncio.gather(*map(decide, people), return_exceptions=True)

        winners = [who for who, each in zip(people, said, strict=True) if not isinstance(each, BaseException)]
        assert all(isinstance(each, Conflict) for each in said if isinstance(each, BaseException)), said
        assert [each["decision"]["by"] for each in await house.records(before, moment="decided")] == winners
        assert len(winners) == 1


async def test_a_call_that_rests_on_a_grant_names_who_gave_it_once(house: House) -> None:
    granted = await house.runtime.inside.approvals.grant(by="gina", tool="pay", agent="desk", seconds=HOUR, max_uses=1)
    before = await house.last()
    used = await house.runtime.run("desk", "go", run_id="uses", user="ann")

    assert used.succeeded
    records = await house.records(before)
    assert [each["moment"] for each in records] == ["admitted", "finished"], "nobody was asked"
    for record in records:
        approval = record["approval"]
        assert (approval["id"], approval["given_by"]) == (granted["metadata"]["name"], "gina")
        assert record["caller"]["user"] == "ann"


async def test_a_decision_that_is_refused_leaves_none(house: House) -> None:
    name, before = await house.approval(), await house.last()
    with pytest.raises(Conflict):
        await house.runtime.inside.approvals.decide(name, "approve", by="ann", digest="sha256:other")
    with pytest.raises(InvalidInput):
        await house.runtime.inside.approvals.decide(name, "approve", by=" ")
    assert await house.records(before, moment="decided") == []
