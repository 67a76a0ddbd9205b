"""Somebody on the bus who forges, changes, repeats and intercepts: who calls is only what can be verified.

On a real NATS server, where everybody may publish and hear everything. What may not work is tried as a program without
Foliot would try it: with the NATS client and JSON.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from foliot import Runtime
from foliot.bus.nats_link import NatsLink
from foliot.catalog.apply import apply_documents
from foliot.errors import FoliotError, InvalidInput
from foliot.resources.reader import parse_text
from foliot.resources.validate import validate_document
from foliot.runtime.tools import ToolCaller
from foliot.settings.settings import load_settings
from foliot.store.audit.log import AuditFilter, SqlAuditLog
from foliot.store.base import DeclaredBy, Put
from foliot.tools.backends.nats import NatsTool
from foliot.tools.base import Caller, Invocation, ToolDefinition, ToolDenied, ToolError, ToolTimeout
from foliot.tools.governance.cel import Expression
from foliot.tools.governance.rules import FixedRules, Permission, RuleCondition, Rules
from foliot.tools.nats_worker.callers import BusCallerEntry, Signer, load_callers, new_callers
from foliot.tools.nats_worker.server import ServerConfig, ToolServer, ensure_stream
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.serving.bus import QUICK, envelope, invocation, linked, served, settled, until

pytestmark = pytest.mark.services
DESK, EVIL = (bytes(random.Random(number).randbytes(32)) for number in (11, 12))
KEYS = {"desk": DESK, "evil": EVIL}
ENTRIES = {
    "desk": BusCallerEntry(key=base64.b64encode(DESK).decode(), namespace="team-a", agent="finder", user="ann"),
    "evil": BusCallerEntry(key=base64.b64encode(EVIL).decode(), namespace="team-b", tools=("ping",)),
}


class Seen:
    """A tool that keeps what it was called with."""

    def __init__(self, name: str = "search", effect: Any = "once", **fields: Any) -> None:
        self.definition = ToolDefinition(name, effect=effect, **fields)
        self.calls: list[Invocation] = []

    async def invoke(self, call: Invocation, *, on_output: Any = None) -> Any:
        self.calls.append(call)
        if on_output is not None:
            on_output("working")
        return f"found {call.arguments['q']}"


@pytest.fixture
async def link(nats_url: str) -> AsyncIterator[NatsLink]:
    async with linked(nats_url) as opened:
        yield opened


def order(name: str = "search", id: str = "c1", **payload: Any) -> dict[str, Any]:
    """A call as any program would write it."""
    call = {"id": id, "name": name, "arguments": {"q": "clocks"}, "request_id": "r", "execution_id": f"e-{id}"}
    return {
        "id": "m1",
        "type": {"domain": "agentic", "category": "tool_call", "version": "v1"},
        "meta": {},
        "payload": {**call, "call_ordinal": 1, **payload},
    }


def signed(
    data: bytes, *, caller: str = "desk", key: bytes | None = None, subject: str = "tool.execute.search", **said: Any
) -> dict[str, str]:
    """The example of docs/tools.md, without Foliot."""
    now = int(time.time() * 1000)
    at, until_ms = str(said.get("at", now)), str(said.get("expires", now + 60_000))
    lines = ("foliot-nats-v1", said.get("kind", "call"), subject, caller, at, until_ms, sha256(data).hexdigest())
    signature = hmac.new(key or KEYS[caller], "\n".join(lines).encode(), sha256).hexdigest()
    return {
        "Foliot-Caller": caller,
        "Foliot-Time": at,
        "Foliot-Expires": until_ms,
        "Foliot-Signature": f"v1={signature}",
    }


class Bus:
    """Hears every result, and publishes whatever it likes."""

    def __init__(self, link: NatsLink) -> None:
        self._link = link
        self.results: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    async def listen(self, subject: str = "tool.result.*") -> Bus:
        client: Any = await self._link.reached()

        async def hear(msg: Any) -> None:
            self.results.append((msg.subject, dict(msg.headers or {}), json.loads(msg.data)["payload"]))

        await client.subscribe(subject, cb=hear)
        await settled(client)
        return self

    async def publish(self, data: bytes, headers: dict[str, str] | None, subject: str = "tool.execute.search") -> None:
        js: Any = await self._link.jetstream()
        await js.publish(subject, data, headers=headers)

    async def ask(
        self, data: bytes, headers: dict[str, str] | None, subject: str = "tool.execute.search"
    ) -> dict[str, Any]:
        """The next result that comes after this was published."""
        heard = len(self.results)
        await self.publish(data, headers, subject)
        await until(lambda: len(self.results) > heard)
        return self.results[-1][2]


@pytest.fixture
async def bus(link: NatsLink) -> Bus:
    return await Bus(link).listen()


async def test_a_signed_call_acts_as_the_caller_that_the_operator_declared(link: NatsLink, bus: Bus) -> None:
    tool = Seen()
    claims = {
        "agent.name": "root",
        "agent.roles": ["admin"],
        "agent.run_id": "somebody-elses-run",
        "user": "boss",
    }
    data = json.dumps(order(metadata=claims, loop_id="somebody-elses-run", approved_by="ap-1")).encode()
    async with served(link, tool, callers=new_callers(ENTRIES)):
        said = await bus.ask(data, signed(data))

    assert said["content"] == "found clocks"
    (call,) = tool.calls
    assert call.caller == Caller("team-a", "finder", user="ann", via="nats")
    assert (call.run_id, call.grant) == ("", "")


@pytest.mark.parametrize(
    ("namespaces", "made_in", "taken"),
    [
        ((), "team-a", True),
        ((), "team-b", False),
        (("team-b",), "team-b", True),
        (("team-b",), "team-a", False),
        (("*",), "team-b", True),
    ],
)
async def test_one_key_of_many_namespaces_speaks_for_the_one_that_the_call_was_made_in(
    link: NatsLink, namespaces: tuple[str, ...], made_in: str, taken: bool
) -> None:
    """An installation has one key. Its author in team-b does not get to be judged by the rules of team-a."""
    tool = Seen()
    callers = new_callers({"desk": replace(ENTRIES["desk"], namespaces=namespaces)})
    caller = NatsTool(ToolDefinition("search", type="queue", timeout=20.0), link, signer=Signer("desk", DESK))
    asked = invocation(deadline=time.time() + 20, caller=Caller(made_in, "agent", ()))
    async with served(link, tool, callers=callers):
        if taken:
            assert await caller.invoke(asked) == "found clocks"
        else:
            with pytest.raises(ToolError, match="not taken from this caller"):  # and it is told so, signed
                await caller.invoke(asked)
    assert [call.caller.namespace for call in tool.calls] == (["team-a"] if taken else [])


async def test_an_author_publishes_nowhere_but_on_the_subject_of_his_tool(nats_url: str, tmp_path: Path) -> None:
    given = {"FOLIOT_HOME": str(tmp_path), "FOLIOT_NATS": nats_url, "FOLIOT_NATS_SUBJECTS": "ours.>"}
    subjects = ("team-a.tool.execute.pay", "billing.refund", "tool.execute.pay", "$JS.API.STREAM.NAMES", "ours.$SYS.x")
    heard: list[str] = []
    async with linked(nats_url, stream=False) as link, Runtime(settings=load_settings({}, given)) as runtime:
        client: Any = await link.reached()

        async def hear(msg: Any) -> None:
            heard.append(msg.subject)

        for subject in ("*.tool.execute.>", "billing.>", "tool.execute.>", "ours.>"):
            await client.subscribe(subject, cb=hear)
        await settled(client)
        for number, subject in enumerate((*subjects, "ours.last", "")):
            spec = {"type": "queue", "endpoint": subject, "runtime": {"timeout": "1s"}}
            made, problems = validate_document({"kind": "Tool", "metadata": {"name": f"q{number}"}, "spec": spec})
            assert made is not None, problems
            await runtime.inside.resources.write([Put(made)], by=DeclaredBy("mallory", operator=False))
            if subject in subjects:
                with pytest.raises(FoliotError, match="may not be published"):
                    await runtime.inside.tools.call(f"q{number}", {}, ToolCaller("default"))
            else:
                await runtime.inside.tools.call(f"q{number}", {}, ToolCaller("default"))
        await until(lambda: "tool.execute.q6" in heard)
    assert set(heard) == {"ours.last", "tool.execute.q6"}


ATTACKS: dict[str, Any] = {
    "unsigned": lambda data: (data, None),
    "unknown caller": lambda data: (data, signed(data, caller="nobody", key=b"k" * 32)),
    "another's key": lambda data: (data, signed(data, key=EVIL)),
    "another's name on one's own signature": lambda data: (
        data,
        {**signed(data, caller="evil"), "Foliot-Caller": "desk"},
    ),
    "altered": lambda data: (data.replace(b"clocks", b"wheels"), signed(data)),
    "one byte more": lambda data: (data + b" ", signed(data)),
    "signed as a result": lambda data: (data, signed(data, kind="result")),
    "signed for another subject": lambda data: (data, signed(data, subject="tool.execute.ping")),
    "expired": lambda data: (data, signed(data, expires=int(time.time() * 1000) - 1)),
    "later expiry": lambda data: (data, {**signed(data), "Foliot-Expires": "99999999999999"}),
    "signed for a year": lambda data: (data, signed(data, expires=int((time.time() + 3e7) * 1000))),
    "signed in the future": lambda data: (data, signed(data, at=int((time.time() + 9e3) * 1000))),
    "times that are no numbers": lambda data: (data, signed(data, at="now", expires="later")),
    "no signature but a name": lambda data: (data, {"Foliot-Caller": "desk"}),
    "empty signature": lambda data: (data, {**signed(data), "Foliot-Signature": ""}),
    "signature of another scheme": lambda data: (data, {**signed(data), "Foliot-Signature": "v0=" + "0" * 64}),
}


async def test_whoever_cannot_prove_it_is_refused_and_nothing_runs(link: NatsLink, bus: Bus) -> None:
    tool = Seen()
    async with served(link, tool, Seen("ping"), callers=new_callers(ENTRIES)) as server:
        for number, (name, attack) in enumerate(ATTACKS.items()):
            data, headers = attack(json.dumps(order(id=f"c{number}")).encode())
            said = await bus.ask(data, headers)
            assert said["error_kind"] == "policy_denied", name
            assert "not known" in said["error"], name
        assert tool.calls == []
        assert server.metrics.value("rejections_total", reason="unidentified") == len(ATTACKS)

        data = json.dumps(order(id="good")).encode()
        assert (await bus.ask(data, signed(data)))["content"] == "found clocks"


async def test_random_changes_of_a_signed_call_never_run(link: NatsLink, bus: Bus) -> None:
    chance = random.Random(20261116)
    tool = Seen()
    data = json.dumps(order()).encode()
    headers = signed(data)
    async with served(link, tool, callers=new_callers(ENTRIES)) as server:
        for _ in range(40):
            changed, other = bytearray(data), dict(headers)
            if chance.random() < 0.6:
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            else:
                name = chance.choice(list(other))
                place = chance.randrange(len(other[name]))
                letter = chance.choice([each for each in "0123456789abcdefxyz" if each != other[name][place]])
                other[name] = other[name][:place] + letter + other[name][place + 1 :]
            await bus.publish(bytes(changed), other)
        await bus.publish(data, headers)
        await until(lambda: bool(tool.calls))
        seen = lambda: server.metrics.value("rejections_total") + server.metrics.value("poison_total")  # noqa: E731
        await until(lambda: seen() >= 40)
    assert len(tool.calls) == 1


async def test_a_replayed_call_is_not_run_again(link: NatsLink, bus: Bus) -> None:
    tool = Seen()
    data = json.dumps(order()).encode()
    async with served(link, tool, callers=new_callers(ENTRIES)):
        headers = signed(data)
        for _ in range(3):
            assert (await bus.ask(data, headers))["content"] == "found clocks"
    assert len(tool.calls) == 1


async def test_nobody_gets_the_outcome_of_another_s_call_by_its_id(link: NatsLink, bus: Bus) -> None:
    """The same payload under another key is another call: no result leaks, no id is taken away."""
    entries = {**ENTRIES, "evil": replace(ENTRIES["evil"], tools=())}
    tool = Seen()
    data = json.dumps(order()).encode()
    async with served(link, tool, callers=new_callers(entries)):
        await bus.ask(data, signed(data, caller="evil"))
        await bus.ask(data, signed(data))
    assert [call.caller.namespace for call in tool.calls] == ["team-b", "team-a"]
    assert len({call.idempotency_key for call in tool.calls}) == 2


async def test_the_subject_says_which_tool_it_is(link: NatsLink, bus: Bus) -> None:
    """Permissions in NATS go by subject: a message on one subject cannot call the tool of another."""
    ping, search = Seen("ping"), Seen()
    callers = new_callers({"anybody": BusCallerEntry(anonymous=True)})
    async with served(link, ping, search, callers=callers):
        said = await bus.ask(json.dumps(order("search")).encode(), None, "tool.execute.ping")
        assert "subject" in said["error"]
    assert (ping.calls, search.calls) == ([], [])


async def test_a_prefix_binds_a_caller_and_results_go_back_under_it(nats_url: str) -> None:
    entries = {"team-b": BusCallerEntry(prefix="team-b", namespace="team-b"), **ENTRIES}
    tool = Seen()
    async with linked(nats_url, stream=False) as link:
        callers = new_callers(entries)
        await ensure_stream(await link.jetstream(), prefixes=callers.prefixes)
        bus = await Bus(link).listen(">")
        async with served(link, tool, callers=callers):
            client = NatsTool(ToolDefinition("search", type="queue", endpoint="team-b.tool.execute.search"), link)
            assert await client.invoke(invocation(caller=Caller("team-a", "root", ("admin",)))) == "found clocks"
            assert tool.calls[0].caller == Caller("team-b", user="team-b", via="nats")

            data = json.dumps(order(id="signed")).encode()
            await bus.publish(data, signed(data, subject="team-b.tool.execute.search"), "team-b.tool.execute.search")
            await bus.publish(json.dumps(order(id="nowhere")).encode(), None, "tool.execute.search")
            await until(lambda: sum("error" in each[2] for each in bus.results if "payload" not in each) >= 2)
    assert len(tool.calls) == 1
    subjects = {subject for subject, _, _ in bus.results if ".result." in subject}
    assert any(subject.startswith("team-b.tool.result.") for subject in subjects)


async def test_a_forged_result_does_not_end_a_call_and_a_signed_one_does(link: NatsLink) -> None:
    tool = Seen()
    caller = NatsTool(ToolDefinition("search", type="queue", timeout=20.0), link, signer=Signer("desk", DESK))
    call = invocation(deadline=time.time() + 20, caller=Caller("team-a", "finder"))
    message = caller.message(call)
    forged = envelope({"call_id": message.id, "execution_id": message.execution_id, "content": "forged"})
    subject = f"tool.result.{message.id}"
    heard: list[str] = []
    client: Any = await link.reached()
    asked = asyncio.create_task(caller.invoke(call, on_output=heard.append))
    for _ in range(5):
        for headers in (None, signed(forged, caller="evil", subject=subject, kind="result"), {"Foliot-Caller": "desk"}):
            await client.publish(subject, forged, headers=headers)
        await settled(client)
    assert not asked.done()
    # In the stream too, where a caller looks after a reconnect.
    await (await link.jetstream()).publish(subject, forged)
    async with served(link, tool, callers=new_callers(ENTRIES), consumer_suffix="late"):
        await (await link.jetstream()).publish("tool.execute.search", b"{}")
        fresh = NatsTool(ToolDefinition("search", type="queue", timeout=20.0), link, signer=Signer("desk", DESK))
        assert await fresh.invoke(replace(call, call_id="call_2"), on_output=heard.append) == "found clocks"
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert heard == ["working"]


async def test_a_result_of_another_call_is_not_taken_even_if_it_is_signed(link: NatsLink) -> None:
    """Whoever records a signed result cannot play it for another call, or on another subject."""
    signer = Signer("desk", DESK)
    caller = NatsTool(ToolDefinition("search", type="queue", timeout=0.8), link, signer=signer, look_every=0.1)
    message = caller.message(invocation())
    subject = f"tool.result.{message.id}"
    other = envelope({"call_id": message.id, "execution_id": "tool-exec-v1-other", "content": "old"})
    bare = envelope({"call_id": message.id, "content": "old"})
    client: Any = await link.reached()

    asked = asyncio.create_task(caller.invoke(invocation()))
    for _ in range(5):
        await client.publish(subject, other, headers=signer.sign("result", subject, other))
        await client.publish(subject, bare, headers=signer.sign("result", subject, bare))
        await client.publish(subject, bare, headers=signer.sign("result", "tool.result.else", bare))
        await settled(client)
    with pytest.raises(ToolTimeout):
        await asked


async def test_rules_tools_and_conditions_hold_for_the_verified_caller(link: NatsLink, bus: Bus) -> None:
    only_ann = Permission("only", "search", conditions=(RuleCondition(Expression('caller.user == "ann"'), "allow"),))
    rules = FixedRules(Rules("default", permissions={"search": (only_ann,)}))
    ping, search = Seen("ping"), Seen()
    pipeline = Pipeline([ping, search], PipelineParts(rules=rules))
    here = {name: replace(entry, namespace="default") for name, entry in ENTRIES.items()}
    entries = {**here, "evil": replace(here["evil"], tools=("ping", "search"), user="ann2")}
    async with served(link, pipeline=pipeline, callers=new_callers(entries)):
        for id, metadata in (("a", {}), ("b", {"user": "ann"}), ("c", {"agent.tools.advertised": ["search"]})):
            data = json.dumps(order(id=id, metadata=metadata)).encode()
            assert (await bus.ask(data, signed(data, caller="evil")))["error_kind"] == "policy_denied"
        data = json.dumps(order(id="d")).encode()
        assert (await bus.ask(data, signed(data)))["content"] == "found clocks"
    entries = {**here, "evil": replace(here["evil"], user="ann")}
    async with served(link, pipeline=pipeline, callers=new_callers(entries)):
        data = json.dumps(order(id="e", metadata={"agent.tools.advertised": ["search", "ping"]})).encode()
        said = await bus.ask(data, signed(data, caller="evil"))
        assert said["error_kind"] in ("policy_denied", "permission"), "evil has ping only"
    assert len(search.calls) == 1


async def test_acting_for_somebody_needs_the_operator_s_word_and_both_names_are_kept(link: NatsLink, bus: Bus) -> None:
    entries = {**ENTRIES, "desk": replace(ENTRIES["desk"], on_behalf=True, agent="", user="desk")}
    tool = Seen()
    claims = {"namespace": "team-a", "agent.name": "scout", "agent.roles": ["admin"], "user": "bob"}
    data = json.dumps(order(metadata=claims)).encode()
    async with served(link, tool, callers=new_callers(entries)):
        await bus.ask(data, signed(data))
    assert tool.calls[0].caller == Caller("team-a", "scout", user="bob", by="desk", via="nats")


async def test_nobody_is_acted_for_whose_name_cannot_be_shown(link: NatsLink, bus: Bus) -> None:
    entries = {**ENTRIES, "desk": replace(ENTRIES["desk"], on_behalf=True, agent="", user="desk")}
    tool = Seen()
    data = json.dumps(order(metadata={"user": "bob\u202e"})).encode()
    async with served(link, tool, callers=new_callers(entries)):
        assert "printable" in (await bus.ask(data, signed(data)))["error"]
    assert tool.calls == []


WORLD = """\
kind: AgentRole
metadata: {name: reader}
spec: {permissions: ["tool:search:invoke"]}
---
kind: Budget
metadata: {name: ann}
spec: {scope: {user: ann}, limit: {amount: "0.02"}, window: day, on_exceeded: fail}
---
kind: Agent
metadata: {name: finder}
spec: {model_ref: none, tools: [search], roles: [reader]}
"""


@asynccontextmanager
async def governed(
    tmp_path: Path, link: NatsLink, tool: Seen, entries: dict[str, BusCallerEntry]
) -> AsyncIterator[Runtime]:
    """A server of tools as `foliot tools serve` puts it together: rules, limits and budgets of a store."""
    async with Runtime(tmp_path / "foliot.db") as runtime:
        bundle = parse_text(WORLD, "world.yaml")
        bundle.raise_for_errors()
        await apply_documents(runtime.inside.resources, [item.document for item in bundle.items], allow_missing=True)
        pipeline = runtime.inside._assembly.pipeline_of([tool], "default")
        callers, agents = new_callers(entries), runtime.inside.tools.rights_of
        server = ToolServer(pipeline, link, ServerConfig(**QUICK), callers=callers, agents=agents)
        await server.start()
        try:
            yield runtime
        finally:
            await server.stop(within=5.0)


async def test_a_call_that_is_turned_away_is_recorded_once_a_minute(tmp_path: Path, link: NatsLink, bus: Bus) -> None:
    tool = Seen()
    async with governed(tmp_path, link, tool, {"desk": replace(ENTRIES["desk"], namespace="default")}) as runtime:
        for number in range(3):
            data = json.dumps(order(id=f"k{number}")).encode()
            await bus.ask(data, signed(data, key=EVIL))
        data = json.dumps(order(id="unsigned")).encode()
        await bus.ask(data, None)
        data = json.dumps(order(id="hidden", metadata={"agent.tools.advertised": ["ping"]})).encode()
        await bus.ask(data, signed(data))
        await runtime.inside.audit.flush()
        records = [
            each.body for each in await SqlAuditLog(runtime.inside.tasking.database).find(AuditFilter(tool="search"))
        ]
    told = sorted((each["call_id"], each["outcome"], each["decision"]["layer"]) for each in records)
    assert told == [
        ("hidden", "denied", "advertised"),
        ("k0", "denied", "caller"),
        ("unsigned", "denied", "caller"),
    ]
    assert tool.calls == []


async def test_budgets_and_records_hold_over_nats(tmp_path: Path, link: NatsLink, bus: Bus) -> None:
    tool = Seen(price=10_000)
    entries = {
        "desk": replace(ENTRIES["desk"], namespace="default"),
        "ghost": BusCallerEntry(key=base64.b64encode(EVIL).decode(), agent="not-declared"),
    }
    async with governed(tmp_path, link, tool, entries) as runtime:
        said = []
        for number in range(4):
            claims = {"user": f"rich-{number}", "agent.run_id": f"run-{number}"}
            data = json.dumps(order(id=f"c{number}", metadata=claims, loop_id=f"run-{number}")).encode()
            said.append(await bus.ask(data, signed(data)))
        data = json.dumps(order(id="ghost")).encode()
        ghost = await bus.ask(data, signed(data, caller="ghost", key=EVIL))
        await runtime.inside.audit.flush()
        with closing(apsw.Connection(str(tmp_path / "foliot.db"))) as database:
            records = [json.loads(data) for (data,) in database.execute("SELECT data FROM audit")]
    assert ["content" in each for each in said] == [True, True, False, False], said
    assert said[3]["metadata"]["failure"]["kind"] == "budget_exceeded"
    assert "content" not in ghost, "an agent that is not there has no tools"
    assert [call.caller.roles for call in tool.calls] == [("reader",)] * 2
    assert {(each["caller"]["user"], each["run_id"]) for each in records if "tool" in each and each.get("caller")} == {
        ("ann", ""),
        ("ghost", ""),
    }


def test_a_file_of_callers_that_others_can_read_or_that_proves_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "callers.toml"
    key = base64.b64encode(DESK).decode()

    def refused(text: str, mode: int = 0o600) -> str:
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(InvalidInput) as caught:
            load_callers(path)
        assert key not in str(caught.value)
        return str(caught.value)

    assert "open to other users" in refused(f'[desk]\nkey = "{key}"\n', 0o644)
    assert "nothing shows who" in refused("[desk]\n")
    assert "32 bytes" in refused('[desk]\nkey = "c2hvcnQ="\n')
    assert "neither key nor prefix" in refused(f'[desk]\nanonymous = true\nkey = "{key}"\n')
    assert "on_behalf" in refused('[desk]\nprefix = "x"\non_behalf = true\n')
    assert "cannot begin a subject" in refused('[desk]\nprefix = "a.>"\n')
    assert "another caller" in refused('[a]\nprefix = "x"\n[b]\nprefix = "x"\n')
    assert "unknown field" in refused(f'[desk]\nkey = "{key}"\nadmin = true\n')
    assert "TOML" in refused("[desk")


async def test_without_callers_nobody_is_let_in(link: NatsLink, bus: Bus) -> None:
    tool = Seen()
    data = json.dumps(order()).encode()
    async with served(link, tool, callers=new_callers({})):
        assert "not known" in (await bus.ask(data, None))["error"]
        with pytest.raises(ToolDenied, match="not known"):
            await NatsTool(ToolDefinition("search", type="queue"), link).invoke(invocation())
    assert tool.calls == []
