"""A tenant names what belongs to another: in every field of every kind that can, declared and used, in odd spellings.

Mallory has every role in team-b and none in team-a. What is watched is team-a: its runs and tasks, the models that are
asked, the secrets that are opened.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import BaseModel

from foliot.engine.definition.endpoints import RunModels
from foliot.engine.definition.freeze import ENDPOINT
from foliot.engine.driver.runs import user_message
from foliot.errors import Denied, FoliotError, InvalidInput
from foliot.kernel.messages import ModelRequest
from foliot.kernel.run.spec import RunSpec
from foliot.models.base import ModelError
from foliot.models.scripted.model import ScriptedModel
from foliot.resources.base import Model
from foliot.resources.kinds import KINDS
from foliot.resources.names import snake
from foliot.resources.references import FIELDS, ORIGINS, SPOKEN, TARGETS, WORDS, Form, foreign
from foliot.resources.validate import validate_document
from foliot.runtime.local.resources import LocalResources
from foliot.runtime.runtime import Runtime
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import Settings, load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Delete, Document, Key, Put, Revealed
from foliot.store.resources.database import SqlResourceStore
from foliot.store.resources.documents import encode, key_text
from foliot.store.transaction import Tx, run
from foliot.tools.secrets.secrets import SecretRef
from tests.taking_missing import TAKES_MISSING

SEED = random.randrange(2**32) if os.environ.get("FOLIOT_CHAOS") else 20261116
VALUE = "theirs-and-nobody-elses"
HOSTS = ["tool.example.com", "mcp.example.com", "webhook"]

# What each kind needs beside the reference that is tried.
BASE: dict[str, dict[str, Any]] = {
    "Agent": {"model_ref": "own", "prompt": "Steal."},
    "ModelEndpoint": {"provider": "scripted", "script": "echo"},
    "Tool": {"type": "http", "endpoint": "https://tool.example.com"},
    "Memory": {},
    "McpServer": {"transport": "http", "endpoint": "https://mcp.example.com"},
    "ToolApproval": {"task_ref": "own", "tool": "pay", "standing": True},
    "TaskSchedule": {"task_ref": "own", "schedule": "@yearly"},
    "TaskWebhook": {"task_ref": "own", "auth": {"secret_ref": "own"}},
    "TaskHook": {"task_ref": "own", "source": "mail"},
    "Channel": {
        "type": "webhook",
        "agent": "worker",
        "endpoint": "https://tool.example.com",
        "auth": {"secretRef": "own"},
    },
}
# What team-a has, one of each kind that can be named.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "ModelEndpoint": ("paid", {"provider": "scripted", "script": "echo"}),
    "Secret": ("key", {"data": {"value": base64.b64encode(VALUE.encode()).decode()}, "hosts": HOSTS}),
    "AgentRole": ("boss", {"permissions": ["tool:pay:invoke"]}),
    "McpServer": ("mcp", {"transport": "http", "endpoint": "https://mcp.example.com"}),
    "Task": ("tmpl", {"agent": "worker", "mode": "template", "input": {"topic": "theirs"}}),
}


@dataclass(frozen=True)
class Case:
    """One field of one kind that names something: `spec` has `text` there."""

    kind: str
    path: str
    target: str
    form: Form

    def __str__(self) -> str:
        return f"{self.kind}.{self.path}"

    def text(self, namespace: str = "team-a", name: str = "") -> str:
        return f"{namespace}/{name or THEIRS[self.target][0]}"

    def spec(self, text: str) -> dict[str, Any]:
        spec = json.loads(json.dumps(BASE[self.kind]))
        match self.path:
            case "requires":
                spec["requires"] = [f"secret:{text}"]
            case "env.secretRef":
                spec |= {"transport": "stdio", "command": "server", "env": [{"name": "X", "secretRef": text}]}
                del spec["endpoint"]
            case "sandbox.secrets.secretRef" | "runner.sandbox.secrets.secretRef":
                rules = {
                    "network": [{"hosts": HOSTS[:2]}],
                    "secrets": [{"secretRef": text, "hosts": HOSTS[:2]}],
                }
                match self.kind:
                    case "McpServer":
                        spec = {"transport": "stdio", "command": "server", "sandbox": rules}
                    case "Tool":
                        fence = {"isolation_mode": "sandboxed"}
                        spec = {"type": "cli", "cli": {"command": ["server"]}, "runtime": fence, "sandbox": rules}
                    case _ if self.path.startswith("runner"):
                        program = {"type": "command", "command": ["server"], "sandbox": rules}
                        spec = {"model_ref": "", "runner": program}
                    case _:
                        spec["sandbox"] = rules
            case "hooks.http.secretRef":
                http = {"url": f"https://{HOSTS[0]}/hook", "secretRef": text}
                spec["hooks"] = [{"name": "h", "points": ["before_tool"], "http": http}]
            case "mcp_server_ref":
                spec = {"type": "mcp", "mcp_server_ref": text, "mcp_tool_name": "t"}
            case "fallbacks":
                spec["fallbacks"] = [text]
            case "delegation.presets.model":
                spec["delegation"] = {"presets": [{"name": "p", "description": "A preset.", "model": text}]}
            case "roles":
                spec |= {"roles": [text], "tools": ["pay"]}
            case "auth.secret_refs":
                spec["auth"]["secret_refs"] = [text]
            case path:
                first, _, rest = path.partition(".")
                spec = {**spec, first: {**spec.get(first, {}), rest: text} if rest else text}
        return spec

    def document(self, text: str, name: str = "thief") -> Document:
        metadata = {"name": name, "namespace": "team-b"}
        return {"apiVersion": "foliot.dev/v1", "kind": self.kind, "metadata": metadata, "spec": self.spec(text)}


CASES = [
    *(Case(kind, path, target, form) for kind, rows in FIELDS.items() for path, target, form in rows if form != "name"),
    Case("Tool", "requires", "Secret", "secret"),
]
CASES = [case for case in CASES if case.form in ("ref", "secret")]
EDITED = [case for case in CASES if case.kind != "ToolApproval"]


@dataclass
class House:
    """The server with both tenants in it, and what was done with what belongs to team-a."""

    runtime: Runtime
    root: httpx.AsyncClient
    mallory: httpx.AsyncClient
    revealed: list[Key] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def declare(self, kind: str, name: str, spec: dict[str, Any], namespace: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        answer = await self.root.post(
            f"/v1/{KINDS[kind].plural}", json={"kind": kind, "metadata": metadata, "spec": spec}
        )
        assert answer.status_code < 300, answer.text

    async def grant(self, given_to: dict[str, str], given: dict[str, str], *, home: str = "team-a") -> None:
        await self.declare("ReferenceGrant", "share", {"from": [given_to], "to": [given]}, home)

    async def revoke(self, home: str = "team-a") -> None:
        await self.runtime.inside.resources.write([Delete(Key("ReferenceGrant", home, "share"), expect="any")])

    async def plant(self, case: Case, text: str) -> None:
        """Into the database, past every check, as an older version would have left it there."""
        made, problems = validate_document(case.document("team-z/marker"))
        local, _ = validate_document({**case.document(""), "spec": BASE[case.kind]})
        assert made is not None, problems
        assert local is not None
        (written,) = await self.runtime.inside.resources.write([Put(local)])
        spec = json.loads(json.dumps(made["spec"]).replace('team-z/marker"', json.dumps(text)[1:]))
        key = Key(case.kind, "team-b", "thief")
        stored = {**written.document, "spec": spec}
        version = int(written.document["metadata"]["resourceVersion"])

        def body() -> Tx[None]:
            yield from run("resource_update", key=key_text(key), version=version, document=encode(stored), owners="{}")

        await self.runtime.inside.tasking.database.write(body)

    async def worked(self) -> list[str]:
        """The work of team-a, and what of its was used elsewhere."""
        runs = [info.id for info in await self.runtime.inside.runs.journal.list(namespace="team-a", limit=10)]
        tasks = [info.id for info in (await self.runtime.inside.tasking.tasks.list(namespace="team-a"))[0]]
        secrets = [str(key) for key in self.revealed if key.namespace == "team-a"]
        return [*runs, *tasks, *secrets, *self.asked]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"home": str(tmp_path / "home")}, {"FOLIOT_MCP_COMMANDS": "X=* server"})


@pytest.fixture
async def house(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    async with Runtime(settings=settings) as runtime:
        auth = TokenAuth(runtime.inside.tasking.database, local=True, settings=settings)
        app = create_app(runtime, settings=settings, auth=auth)
        tokens = SqlTokens(runtime.inside.tasking.database)

        async def caller(name: str, space: str) -> httpx.AsyncClient:
            token = (await tokens.create(name, namespaces=(space,), roles=("admin",), now=time.time()))[1]
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://test", headers=headers, event_hooks=TAKES_MISSING
            )

        async with await caller("root", "*") as root, await caller("mallory", "team-b") as mallory:
            house = House(runtime, root, mallory)
            await _furnish(house)
            _watch(house, monkeypatch)
            yield house
        await auth.close()


async def _furnish(house: House) -> None:
    for kind, (name, spec) in THEIRS.items():
        await house.declare(kind, name, spec, "team-a")
    await house.declare("Agent", "worker", {"model_ref": "paid", "prompt": "Theirs."}, "team-a")
    own: dict[str, dict[str, Any]] = {
        "ModelEndpoint": {"provider": "scripted", "script": "echo"},
        "Secret": {"data": {"value": base64.b64encode(b"mine-and-long-enough").decode()}},
        "Task": {"agent": "own", "mode": "template", "input": {"topic": "mine"}},
        "Agent": {"model_ref": "own"},
    }
    for kind, spec in own.items():
        await house.declare(kind, "own", spec, "team-b")


def _watch(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write down which secrets are opened, and which questions reach a model of team-a. Nothing is replaced."""
    reveal, respond = SqlResourceStore.reveal, ScriptedModel.respond

    async def revealing(self: SqlResourceStore, key: Key) -> Revealed:
        house.revealed.append(key)
        return await reveal(self, key)

    async def responding(self: ScriptedModel, request: Any, **more: Any) -> Any:
        said = "".join(message.text for message in request.messages)
        answer = await respond(self, request, **more)
        house.asked += [said] if "team-a asked" in said or request.system.startswith("Theirs") else []
        return answer

    monkeypatch.setattr(SqlResourceStore, "reveal", revealing)
    monkeypatch.setattr(ScriptedModel, "respond", responding)


# --- the table is whole ------------------------------------------------------------------------------------------

# Fields that are called like something that is named, and name nothing of the store.
NO_REFERENCES = {
    "Agent.model_name",  # a model's own name at its endpoint
    "Agent.memory.type",
    "Agent.delegation.presets.name",  # what tasks call it
    "Agent.hooks.name",  # in traces
    "Channel.plugin",
    "Agent.hooks.plugin",  # code of the operator's, by the name that it has there
    "ModelEndpoint.default_model",
    "AgentSystem.graph.*.edges.policy",
    "Tool.mcp_tool_name",  # the name that the server gives it
    "McpServer.sandbox.limits.memory",
    "Tool.sandbox.limits.memory",
    "Agent.sandbox.limits.memory",
    "Agent.runner.sandbox.limits.memory",
    "AgentPolicy.sandbox.limits.memory",
    "Tool.resource_keys",
    "Task.requirements.model",  # held against what workers say of themselves
    "Worker.capabilities.supported_models",
    "ReferenceGrant.from.namespace",
    "ReferenceGrant.from.kind",
    "ReferenceGrant.to.kind",
}
NAMING = ("ref", "refs", "agent", "agents", "tool", "tools", "system", "systems", "task", "tasks", "secret", "model")
NAMING += (
    "permissions",
    "models",
    "server",
    "memory",
    "role",
    "roles",
    "fallbacks",
    "endpoint_ref",
    "requires",
    "after",
    "run",
    "to",
)
TYPED = ("check_ref", "check_secret_ref", "check_tool_request", "check_tool_name", "check_name")


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, Any]]:
    for name, info in model.model_fields.items():
        emitted = info.serialization_alias or name
        path = f"{prefix}{emitted}"
        inner = _inner(info.annotation)
        if inner is not None:
            through = "*." if "dict" in str(info.annotation) else ""
            yield from _fields(inner, f"{path}.{through}")
        else:
            yield path, name, info


def _inner(annotation: Any) -> type[Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for each in getattr(annotation, "__args__", ()) if (found := _inner(each))), None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_names_something_is_in_the_table(kind: str) -> None:
    spec = KINDS[kind].model().model_fields["spec"].annotation
    assert spec is not None
    known = {path for path, _, _ in FIELDS.get(kind, ())} | {*WORDS.get(kind, ()), *SPOKEN.get(kind, ())}
    walked = list(_fields(spec, ""))
    assert known <= {path for path, _, _ in walked}, "the table names fields that there are not"
    for path, name, info in walked:
        if "str" not in str(info.annotation):
            continue
        words = snake(name).split("_")
        typed = any(rule in f"{info.annotation} {info.metadata}" for rule in TYPED)
        named = words[-1] in NAMING or (words[-1] == "prior" and words[0] == "requires")
        if (typed or named) and f"{kind}.{path}" not in NO_REFERENCES:
            assert path in known, f"{kind}.{path} names something and is not in resources/references.py"


def test_everything_that_can_cross_is_tried_here() -> None:
    assert {case.target for case in CASES} == set(TARGETS) == set(THEIRS)
    assert {case.kind for case in CASES} == set(ORIGINS) == set(BASE)


# --- declared ----------------------------------------------------------------------------------------------------


async def _ways(house: House, case: Case, text: str) -> AsyncIterator[tuple[str, httpx.Response]]:
    """Every way of writing a resource over HTTP, each tried by Mallory."""
    plural, document = KINDS[case.kind].plural, case.document(text)
    http, here = house.mallory, {"namespace": "team-b"}
    yield "POST", await http.post(f"/v1/{plural}", json=document)
    yield "POST in a namespace", await http.post(f"/v1/{plural}", json=document, params=here)
    yield "dry POST", await http.post(f"/v1/{plural}", json=document, params={"dryRun": "true"})
    yield "apply", await http.post("/v1/apply", json=document)
    yield "dry apply", await http.post("/v1/apply", json=document, params={"dryRun": "true"})
    if case.kind == "ToolApproval":  # is not edited
        return
    local = {**document, "spec": BASE[case.kind]}
    await house.runtime.inside.resources.write([Put(validate_document(local)[0] or local)])
    there = f"/v1/{plural}/thief"
    yield "PUT", await http.put(there, json=document, params=here, headers={"If-Match": "*"})
    yield "PATCH", await http.patch(there, json={"spec": document["spec"]}, params=here)
    kept = await house.runtime.inside.resources.get(Key(case.kind, "team-b", "thief"))
    assert foreign(kept) == []
    await house.runtime.inside.resources.write([Delete(Key(case.kind, "team-b", "thief"))])


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_nothing_of_another_namespace_is_named_without_its_grant(house: House, case: Case) -> None:
    async for way, answer in _ways(house, case, case.text()):
        assert answer.status_code == 403, (way, answer.text)
        problem = answer.json()
        assert "ReferenceGrant" in problem["detail"], way
        assert f"namespace: team-b, kind: {case.kind}" in problem["hint"], way
        assert f"kind: {case.target}" in problem["hint"], way
    assert await house.worked() == []


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_refusal_does_not_tell_what_is_there(house: House, case: Case) -> None:
    there = {way: answer async for way, answer in _ways(house, case, case.text())}
    name = THEIRS[case.target][0]
    other = "x" * len(name)
    missing = {way: answer async for way, answer in _ways(house, case, case.text(name=other))}
    for way, answer in there.items():
        told, untold = answer.json(), missing[way].json()
        for each in ("status", "title", "detail", "hint"):
            assert told.get(each) == json.loads(json.dumps(untold.get(each)).replace(other, name)), way


WRONG: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("another namespace", {"namespace": "team-c"}, {}),
    ("a namespace that only looks alike", {"namespace": "Team-B"}, {}),
    ("another kind that refers", {"namespace": "team-b", "kind": "-"}, {}),
    ("another name", {"namespace": "team-b"}, {"name": "else"}),
    ("another kind", {"namespace": "team-b"}, {"kind": "-"}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_only_the_grant_for_it_lets_it_in(house: House, case: Case) -> None:
    for why, given_to, given in WRONG:
        by = next(kind for kind in ORIGINS if kind != case.kind)
        of = next(kind for kind in TARGETS if kind != case.target)
        said = {**given_to, **({"kind": by} if given_to.get("kind") == "-" else {})}
        what = {"kind": case.target, **given, **({"kind": of} if given.get("kind") == "-" else {})}
        await house.grant(said, what)
        answer = await house.mallory.post("/v1/apply", json=case.document(case.text()))
        assert answer.status_code == 403, why
    await house.revoke()
    await house.grant({"namespace": "team-b"}, {"kind": case.target}, home="team-c")
    answer = await house.mallory.post("/v1/apply", json=case.document(case.text()))
    assert answer.status_code == 403, "the grant of a third namespace"
    for number, (given_to, given) in enumerate(
        [
            ({"namespace": "team-b", "kind": case.kind}, {"name": THEIRS[case.target][0]}),
            ({"namespace": "*"}, {}),
        ]
    ):
        await house.grant(given_to, {"kind": case.target, **given})
        name = "guest" if case.kind == "Channel" else f"guest-{number}"  # two channels never share a key
        answer = await house.mallory.post("/v1/apply", json=case.document(case.text(), name))
        assert answer.status_code == 200, answer.text
    await house.revoke()
    again = await house.mallory.post("/v1/apply", json=case.document(case.text(), "late"))
    assert again.status_code == 403


async def test_only_an_admin_of_the_namespace_gives_it_away(house: House, settings: Settings) -> None:
    theirs = {"from": [{"namespace": "team-c"}], "to": [{"kind": "Secret"}]}
    tokens, roles = SqlTokens(house.runtime.inside.tasking.database), ("author", "operator", "approver")
    token = (await tokens.create("author", namespaces=("team-b",), roles=roles, now=time.time()))[1]
    for namespace in ("team-a", "team-b"):
        grant = {"kind": "ReferenceGrant", "metadata": {"name": "g", "namespace": namespace}, "spec": theirs}
        for path in ("/v1/reference-grants", "/v1/apply"):
            headers = {"Authorization": f"Bearer {token}"}
            answer = await house.mallory.post(path, json=grant, headers=headers)
            assert answer.status_code in (403, 404), answer.text
    # In one bundle with what needs it, the grant is no more theirs than alone.
    grant = {"kind": "ReferenceGrant", "metadata": {"name": "g", "namespace": "team-a"}, "spec": theirs}
    thief = CASES[0].document(CASES[0].text())
    answer = await house.mallory.post("/v1/apply", json={"kind": "List", "items": [grant, thief]})
    assert answer.status_code == 404, answer.text


async def test_a_grant_counts_together_with_what_needs_it(house: House) -> None:
    case = CASES[0]
    spec = {"from": [{"namespace": "team-b"}], "to": [{"kind": case.target}]}
    grant = {"kind": "ReferenceGrant", "metadata": {"name": "share", "namespace": "team-a"}, "spec": spec}
    bundle = {"kind": "List", "items": [case.document(case.text()), grant]}
    answer = await house.root.post("/v1/apply", json=bundle)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("case", EDITED, ids=str)
async def test_python_and_the_local_client_are_held_to_it_too(house: House, case: Case) -> None:
    made, problems = validate_document(case.document(case.text()))
    assert made is not None, problems
    store = house.runtime.inside.resources
    with pytest.raises(Denied, match="ReferenceGrant"):
        await store.write([Put(made)])
    plain = {"runner": {"type": "command", "command": ["server"]}} if "runner" in case.path else BASE[case.kind]
    local, _ = validate_document({**made, "spec": plain})
    assert local is not None
    (written,) = await store.write([Put(local)])

    client = LocalResources(store)
    with pytest.raises(Denied, match="ReferenceGrant"):
        await client.replace({**written.document, "spec": made["spec"]})
    with pytest.raises(Denied, match="ReferenceGrant"):
        await client.apply([made], force_conflicts=True, allow_missing=True)


# --- odd spellings -----------------------------------------------------------------------------------------------

ODD = [
    "{a}/{x}/y",
    "/{x}",
    "{a}/",
    "{a}//{x}",
    "./{a}/{x}",
    "../{a}/{x}",
    "{a}/./{x}",
    "{a}/../{a}/{x}",
    "team-b/../{a}/{x}",
    "{a}%2F{x}",
    "{a}%2f{x}",
    "{A}/{x}",
    "Team-A/{x}",
    "*/{x}",
    "{a}/*",
    "{a}\\{x}",
    "{a}∕{x}",
    "{a}／{x}",
    "{a}⁄{x}",
    "{a}/{x}\u200b",
    "\u200b{a}/{x}",
    "{a}:{x}",
    "{a}/{x}@1",
    "agent:{a}/{x}",
    "{a}.{x}",
    "{a}/{x}?",
    "{a}/{x}#",
    "//{a}/{x}",
    "{a}/{x}/",
]
ODD += [" {a}/{x}", "{a} /{x}", "{a}/ {x}", "{a}/{x}\x00", "{a}/{x}\n", "\t{a}/{x}", "{a}\u2028/{x}", "{a}/{x}\x7f"]


def _spelt(odd: str, case: Case) -> str:
    return odd.format(a="team-a", A="TEAM-A", x=THEIRS[case.target][0])


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_no_spelling_goes_around_it(house: House, case: Case) -> None:
    for number, odd in enumerate(ODD):
        text = _spelt(odd, case)
        answer = await house.mallory.post("/v1/apply", json=case.document(text, f"odd-{number}"))
        assert answer.status_code < 500, (text, answer.text)
        if answer.status_code < 300:
            assert case.path == "requires" or "/" not in text, text
            stored = await house.runtime.inside.resources.get(Key(case.kind, "team-b", f"odd-{number}"))
            assert foreign(stored) == [], text
            _reaches_nothing(case, text)
    assert await house.worked() == []


def _reaches_nothing(case: Case, text: str) -> None:
    """What was taken as a name of its own namespace is one when it is used, too."""
    if case.form != "secret":
        return
    with contextlib.suppress(InvalidInput):
        assert SecretRef.parse(text, "team-b").namespace == "team-b", text


async def test_random_spellings_mean_their_own_namespace_or_nothing(house: House) -> None:
    choices = random.Random(SEED)
    alphabet = ["team-a", "team-b", "paid", "key", "/", "//", ":", "@", " ", ".", "..", "%2F", "\u2215", "*", "A", "-"]
    for number in range(400 if os.environ.get("FOLIOT_CHAOS") else 60):
        case = choices.choice(CASES)
        text = "".join(choices.choices(alphabet, k=choices.randint(1, 6)))
        answer = await house.mallory.post("/v1/apply", json=case.document(text, f"random-{number}"))
        assert answer.status_code < 500, (SEED, text, answer.text)
        if answer.status_code < 300:
            stored = await house.runtime.inside.resources.get(Key(case.kind, "team-b", f"random-{number}"))
            assert foreign(stored) == [], (SEED, str(case), text)
    assert await house.worked() == [], SEED


# --- used --------------------------------------------------------------------------------------------------------


async def _ask(house: House, agent: str = "thief") -> tuple[int, str]:
    body = {"model": f"team-b/{agent}", "messages": [{"role": "user", "content": "team-a asked"}]}
    answer = await house.mallory.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.text


async def _fire(house: House) -> tuple[int, str]:
    answer = await house.mallory.post("/v1/task-schedules/thief/run", params={"namespace": "team-b"}, json={})
    return (200 if answer.status_code == 200 and answer.json().get("task") else 403), answer.text


async def _deliver(house: House) -> tuple[int, str]:
    event = f"e-{time.monotonic_ns()}"
    trial = {"body": base64.b64encode(json.dumps({"event": event}).encode()).decode(), "event_id": event}
    where = "/v1/task-webhooks/thief/send-test"
    answer = await house.mallory.post(where, params={"namespace": "team-b"}, json=trial)
    if answer.status_code != 200:
        return answer.status_code, answer.text
    return (200 if answer.json()["status"] == 202 else 403), answer.text


async def _explain(house: House) -> tuple[int, str]:
    question = {"agent": "thief", "tool": "pay", "arguments": {}}
    answer = await house.mallory.post("/v1/policies/explain", params={"namespace": "team-b"}, json=question)
    assert answer.status_code == 200, answer.text
    return (200 if answer.json()["judgement"]["outcome"] == "allow" else 403), answer.text


async def _needs(house: House) -> tuple[int, str]:
    """What the gate before a call says of the secrets that the tool requires."""
    answer = await house.mallory.post("/v1/tools/thief/test", params={"namespace": "team-b"}, json={})
    assert answer.status_code == 200, answer.text
    found = {each["layer"]: each["outcome"] for each in answer.json()["verdicts"]}
    return (200 if found.get("secrets") == "allow" else 403), answer.text


async def _call(house: House) -> tuple[int, str]:
    """A call that gets as far as the address of the server, which nobody answers, or not that far."""
    answer = await house.mallory.post("/v1/tools/thief/call", params={"namespace": "team-b"}, json={})
    refused = "may not refer" in answer.text or "malformed" in answer.text
    return (403 if refused else 200), answer.text


USES = {
    "Agent.model_ref": _ask,
    "Agent.roles": _explain,
    "Agent.compaction.model": _ask,
    "ModelEndpoint.auth.secretRef": _ask,
    "Tool.mcp_server_ref": _call,
    "Tool.auth.secretRef": _call,
    "Tool.requires": _needs,
    "TaskSchedule.task_ref": _fire,
    "TaskWebhook.task_ref": _deliver,
    "TaskWebhook.auth.secret_ref": _deliver,
}
# Nothing follows these yet, or only after another failed, or in a process that is started: tried apart, below.
UNUSED = {
    "Memory.embedding_model",
    "Memory.auth.secretRef",
    "ToolApproval.task_ref",
    "Agent.fallbacks",
    "Agent.delegation.models",
    "Agent.delegation.presets.model",
    "ModelEndpoint.fallbacks",
    "McpServer.env.secretRef",
    "McpServer.sandbox.secrets.secretRef",
    "Tool.sandbox.secrets.secretRef",
    "Agent.sandbox.secrets.secretRef",
    "Agent.runner.sandbox.secrets.secretRef",
    "Agent.hooks.http.secretRef",
    "McpServer.auth.secretRef",
    "TaskWebhook.auth.secret_refs",
    "TaskHook.task_ref",
    "Channel.auth.secretRef",
}


def test_every_field_that_crosses_is_used_here_or_named() -> None:
    assert {str(case) for case in CASES} == {*USES, *UNUSED}


async def _prepare(house: House, case: Case) -> None:
    """What Mallory needs beside the thief to use it."""
    if str(case) == "ModelEndpoint.auth.secretRef":
        await house.declare("Agent", "thief", {"model_ref": "thief"}, "team-b")
    if str(case) == "Agent.roles":
        rule = {"tool_ref": "pay", "required_permissions": ["tool:pay:invoke"]}
        await house.declare("ToolPermission", "pay", rule, "team-b")


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in USES], ids=str)
async def test_what_was_granted_ends_with_the_grant(house: House, case: Case) -> None:
    await _prepare(house, case)
    use = USES[str(case)]
    await house.grant({"namespace": "team-b", "kind": case.kind}, {"kind": case.target})
    await house.declare(case.kind, "thief", case.spec(case.text()), "team-b")
    status, told = await use(house)
    assert status == 200, told
    await house.revoke()
    before = await house.worked()
    status, told = await use(house)
    assert status != 200, told
    assert await house.worked() == before, "nothing more was done in team-a, asked of its model, or read"


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in USES], ids=str)
async def test_what_got_into_the_store_without_a_grant_is_not_followed(house: House, case: Case) -> None:
    await _prepare(house, case)
    use = USES[str(case)]
    for text in (case.text(), *(_spelt(odd, case) for odd in ODD[:12])):
        await house.plant(case, text)
        status, told = await use(house)
        assert status != 200 or case.path == "requires", (text, told)
        assert VALUE not in told
        assert await house.worked() == [], text
        await house.grant({"namespace": "team-c"}, {"kind": case.target})  # others have been granted it


async def test_a_fallback_of_another_namespace_is_asked_only_while_it_is_granted(house: House) -> None:
    """Of an agent, and of an endpoint: when the first fails, the next one is a reference like any other."""
    busy = {"provider": "scripted", "script": [{"fail": "rate_limit", "retry_after": 3600, "repeat": 9}]}
    await house.declare("ModelEndpoint", "busy", busy, "team-b")
    await house.grant({"namespace": "team-b"}, {"kind": "ModelEndpoint"})
    await house.declare("ModelEndpoint", "chain", {**busy, "fallbacks": ["team-a/paid"]}, "team-b")
    models = RunModels(house.runtime.inside.resources, clock=time.time, environ={})
    request = ModelRequest(model="", system="", messages=(user_message("team-a asked"),))
    specs = [
        RunSpec("one", "m", namespace="team-b", fallbacks=("team-a/paid",), extra={ENDPOINT: "team-b/busy"}),
        RunSpec("two", "m", namespace="team-b", extra={ENDPOINT: "team-b/chain"}),
        RunSpec("three", "m", namespace="team-b", extra={ENDPOINT: "team-a/paid"}),
    ]
    for spec in specs:
        assert (await models.ask(spec, request)).endpoint == "team-a/paid"
    await house.revoke()
    del house.asked[:]
    for spec in specs:
        with pytest.raises(ModelError):
            await models.ask(spec, request)
        assert len(await models.models_of(spec)) == 1, "nothing is told of what may not be asked"
    assert await house.worked() == []
    await models.close()


async def test_a_task_that_was_accepted_asks_no_more_once_the_grant_is_gone(house: House) -> None:
    """A task is pinned to its definitions when it is accepted, and not to the leave to follow them."""
    await house.grant({"namespace": "team-b"}, {"kind": "ModelEndpoint"})
    await house.declare("Agent", "thief", {"model_ref": "team-a/paid"}, "team-b")
    order = {"target_kind": "agent", "target": "thief", "namespace": "team-b", "message": "team-a asked"}
    answer = await house.mallory.post("/v1/tasks/submit", params={"namespace": "team-b"}, json=order)
    assert answer.status_code == 201, answer.text
    await house.revoke()
    (row,) = await house.runtime.inside.runs.journal.list(namespace="team-b", limit=5)
    await house.runtime.inside.tasking._end_here(row.id)  # a worker, for one run
    _, state = await house.runtime.inside.runs.load(row.id)
    assert state.spent.usage().total_tokens == 0
    assert await house.worked() == []


# --- named in a request ------------------------------------------------------------------------------------------


async def test_nobody_has_work_done_in_a_namespace_by_naming_it(house: House) -> None:
    here = {"namespace": "team-b"}
    http = house.mallory
    said = {"messages": [{"role": "user", "content": "hi"}]}
    begun = (await http.post("/v1/chat/completions", json={"model": "team-b/own", **said})).headers["X-Foliot-Run"]
    asks: list[tuple[str, dict[str, Any]]] = []
    for name in ("team-a/worker", "../team-a/worker", "team-a//worker", "team-a%2Fworker", "team-b/../team-a/worker"):
        asks += [
            ("/v1/chat/completions", {"model": name, **said}),
            ("/v1/responses", {"model": name, "input": "hi"}),
            ("/v1/runs", {"agent": name, "namespace": "team-b", "run_id": "run-x", "input": "hi"}),
            ("/v1/tasks/submit", {"target_kind": "agent", "target": name, "namespace": "team-b", "message": "hi"}),
            ("/v1/tasks/submit", {"target_kind": "system", "target": name, "namespace": "team-b", "message": "hi"}),
            ("/v1/policies/explain", {"agent": name, "tool": "pay", "arguments": {}}),
            (f"/v1/runs/{begun}/fork", {"at": 1, "new_id": "run-y", "model": name.replace("worker", "paid")}),
        ]
    asks.append((f"/v1/runs/{begun}/fork", {"at": 1, "new_id": "run-z", "model": "openai:gpt-5"}))
    for path, body in asks:
        answer = await http.post(path, params=here, json=body)
        assert 400 <= answer.status_code < 500, (path, body, answer.status_code, answer.text)
    assert await house.worked() == []


async def test_what_is_missing_is_not_looked_for_in_other_namespaces(house: House) -> None:
    await house.declare("Budget", "theirs", {"limit": {"tokens": 5}}, "team-a")
    here = {"namespace": "team-b"}
    question = {"agent": "worker", "tool": "pay", "arguments": {}}
    for answer in (
        await house.mallory.post("/v1/policies/explain", params=here, json=question),
        await house.mallory.get("/v1/budget-usage", params={**here, "name": "theirs"}),
        await house.mallory.get("/v1/agents/worker", params=here),
        await house.mallory.get("/v1/task-schedules/worker", params=here),
    ):
        assert "team-a" not in answer.text, answer.text


# --- the command line --------------------------------------------------------------------------------------------


def test_the_command_line_is_held_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from foliot.cli.main import cli

    monkeypatch.setenv("FOLIOT_HOME", str(tmp_path / "home"))
    runner = CliRunner()

    def apply(*documents: Document) -> tuple[int, str]:
        (tmp_path / "m.json").write_text(json.dumps({"kind": "List", "items": documents}))
        done = runner.invoke(cli, ["apply", "--allow-missing", "-f", str(tmp_path / "m.json")])
        return done.exit_code, done.output

    for case in CASES:
        code, told = apply(case.document(case.text()))
        assert (code, "ReferenceGrant" in told) == (Denied.exit_code, True), (str(case), told)
        spec = {"from": [{"namespace": "team-b"}], "to": [{"kind": case.target}]}
        grant = {"kind": "ReferenceGrant", "metadata": {"name": "share", "namespace": "team-a"}, "spec": spec}
        code, told = apply(grant, case.document(case.text()))
        assert code == 0, (str(case), told)
        assert runner.invoke(cli, ["-n", "team-a", "delete", "reference-grant", "share"]).exit_code == 0
        code, told = apply(case.document(case.text(), "late"))
        assert code == Denied.exit_code, (str(case), told)


def test_the_kind_is_listed_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from foliot.cli.main import cli

    monkeypatch.setenv("FOLIOT_HOME", str(tmp_path / "home"))
    told = CliRunner().invoke(cli, ["explain", "reference-grant.spec.from"])
    assert told.exit_code == 0, told.output
    assert "namespace" in told.output


def test_what_is_refused_is_a_foliot_error() -> None:
    assert issubclass(Denied, FoliotError)
