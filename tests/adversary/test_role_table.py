"""The table of powers, row by row, through HTTP: who may declare what, by every way there is to declare it.

The table is `foliot/resources/powers.py`. Every kind is declared, changed, patched, applied and deleted, for real and
as a dry run, with every role; every field that lifts a rule is lifted by somebody whom the rule binds; everything
that the operator grants is asked for by somebody who has no grant.
"""

from __future__ import annotations

import json
import re
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from foliot.errors import FoliotError
from foliot.resources.base import Model, emitted_key
from foliot.resources.definitions.tool import ToolSpec
from foliot.resources.kinds import KINDS
from foliot.resources.powers import KIND_POWERS, Field, acting_fields, declared_addresses, table, user_table
from foliot.resources.validate import validate_document
from foliot.runtime.local.resources import LocalResources
from foliot.runtime.runtime import Runtime
from foliot.runtime.tools import ToolCaller
from foliot.server.app import create_app
from foliot.server.auth.authentication import TokenAuth
from foliot.settings.settings import load_settings
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import DeclaredBy, Filter, Key, Put
from foliot.store.resources.database import SqlResourceStore
from foliot.tools.base import ToolError
from foliot.tools.mcp.process import server_spec
from tests.taking_missing import TAKES_MISSING
from tests.tools.mcp.conftest import fenced_connections, seen_at

URL = "http://localhost"
SPACE = "team"
SAMPLES: dict[str, dict[str, Any]] = {
    "Agent": {"model_ref": "talker"},
    "AgentSystem": {"agents": ["greeter"]},
    "ModelEndpoint": {"provider": "mock"},
    "Tool": {"type": "http", "endpoint": "https://api.example/x"},
    "Secret": {"stringData": {"value": "sesame"}},
    "Memory": {},
    "Skill": {"description": "x"},
    "McpServer": {"transport": "http", "endpoint": "https://mcp.example/mcp"},
    "AgentPolicy": {"blocked_tools": ["x"]},
    "AgentRole": {"permissions": ["tool:x:invoke"]},
    "ToolPermission": {"tool_ref": "x"},
    "ToolApproval": {"tool": "x", "standing": True},
    "Budget": {"limit": {"amount": "5"}, "window": "day"},
    "ReferenceGrant": {"from": [{"namespace": "elsewhere"}], "to": [{"kind": "Secret"}]},
    "Task": {"agent": "greeter", "mode": "template"},
    "TaskSchedule": {"task_ref": "t", "schedule": "@daily"},
    "TaskWebhook": {"task_ref": "t", "auth": {"profile": "generic", "secret_ref": "s"}},
    "TaskHook": {"task_ref": "t", "source": "mail"},
    "Channel": {
        "type": "webhook",
        "agent": "greeter",
        "endpoint": "https://hooks.example/x",
        "auth": {"secretRef": "s"},
    },
    "Worker": {},
}
CALLERS: dict[str, tuple[str, ...]] = {
    "reader": ("reader",),
    "operator": ("operator",),
    "approver": ("approver",),
    "author": ("author",),
    "author and operator": ("author", "operator"),
    "admin": ("admin",),
}
UNEDITED = {"ToolApproval"}
DIGEST = "sha256:" + "5" * 64


class Site:
    """A server, and tokens for callers of every kind."""

    def __init__(self, http: httpx.AsyncClient, runtime: Runtime) -> None:
        self.http = http
        self.runtime = runtime
        self.tokens: dict[str, dict[str, str]] = {}

    async def call(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {**self.tokens[who], **more.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, params=more.pop("params", {}), **more)

    async def exists(self, kind: str, name: str) -> bool:
        answer = await self.call("root", "GET", f"/v1/{KINDS[kind].plural}/{name}", params={"namespace": SPACE})
        return answer.status_code == 200

    async def stored(self, kind: str, name: str, spec: dict[str, Any], *, by: str = "root") -> None:
        answer = await self.call(by, "POST", f"/v1/{KINDS[kind].plural}", json=document(kind, name, spec))
        assert answer.status_code in (200, 201), answer.text


def document(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    if kind == "Channel" and (spec.get("auth") or {}).get("secretRef") == "s":  # two channels never share a key
        spec = {**spec, "auth": {"secretRef": f"s:{name}"}}
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": SPACE, **metadata},
        "spec": spec,
    }


@pytest.fixture
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """On SQLite, unless a test asks for PostgreSQL by its parameter."""
    granted = {
        "FOLIOT_TOOL_MODULES": "desk, acme.tools.*",
        "FOLIOT_MCP_COMMANDS": "python, ZONE=* npx -y @acme/search --root /srv, uvx acme-time *",
        "FOLIOT_OUTBOUND_ALLOW": "10.1.0.0/16, intranet.example",
        "FOLIOT_WASM_MODULES": "/srv/modules, /opt/acme/resize.wasm",
        "FOLIOT_WASM_FOLDERS": "/srv/data",
        "FOLIOT_SANDBOX_MOUNTS": "/srv/data, /srv/out:rw",
        "FOLIOT_SANDBOX_LIMITS": "processes=512, cpus=2, cpu_seconds=600, seconds=3600, quota=4Gi",
        "FOLIOT_CONTAINER_IMAGES": f"registry.example/team/*, tools.example/curl@{DIGEST}",
        "FOLIOT_WORKSPACE_SOURCES": "/srv/data",
        "FOLIOT_NATS_SUBJECTS": "{namespace}.tool.execute.*, billing.tool.*, shared.>",
    }
    flags = {"home": str(tmp_path)}
    if getattr(request, "param", "sqlite") == "postgres":
        flags["store"] = request.getfixturevalue("postgres_url")
    settings = load_settings(flags, granted)
    async with Runtime(settings=settings) as runtime:
        auth = TokenAuth(runtime.inside.tasking.database, local=True)
        app = create_app(runtime, settings=settings, auth=auth)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", event_hooks=TAKES_MISSING
        ) as http:
            made = Site(http, runtime)
            tokens = SqlTokens(runtime.inside.tasking.database)
            for name, roles in [*CALLERS.items(), ("root", ("admin",))]:
                spaces = ("*",) if name == "root" else (SPACE,)
                _, text = await tokens.create(name.replace(" ", "-"), namespaces=spaces, roles=roles, now=0.0)
                made.tokens[name] = {"Authorization": f"Bearer {text}"}
            yield made
        await auth.close()


def ways(
    kind: str, name: str, spec: dict[str, Any], *, patch: dict[str, Any] | None = None
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every request that would declare this, for real and dry. What replaces or patches needs something to change."""
    path = f"/v1/{KINDS[kind].plural}"
    one = document(kind, name, spec)
    for dry in ({"dryRun": "All"}, {}):
        yield "POST", path, {"json": one, "params": dict(dry)}
        # As whoever stored it with a POST, and by force: the name of a manager gives no right.
        owner = {"fieldManager": "foliot-put", "forceConflicts": "true"}
        yield "POST", "/v1/apply", {"json": one, "params": {**owner, **dry}}
        if kind not in UNEDITED:
            there = {"params": {"namespace": SPACE, **dry}, "headers": {"If-Match": "*"}}
            yield "PUT", f"{path}/{name}", {"json": one, **there}
            yield "PATCH", f"{path}/{name}", {"json": {"spec": patch or spec}, **there}


# --- the kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(KIND_POWERS))
async def test_a_kind_is_declared_by_its_roles_and_by_nobody_else(site: Site, kind: str) -> None:
    path, spec = f"/v1/{KINDS[kind].plural}", SAMPLES[kind]
    needed = {*KIND_POWERS[kind].roles, *(("author",) if kind == "Task" else ())}
    await site.stored(kind, "there", spec)
    for who, roles in CALLERS.items():
        may = "admin" in roles or needed <= set(roles)
        name = f"new-{who.replace(' ', '-')}"
        for method, where, more in [*ways(kind, name, spec), *ways(kind, "there", spec)]:
            new = method in ("PUT", "PATCH") and where.endswith(name)
            if new and may:
                continue
            answer = await site.call(who, method, where, **more)
            if may:
                assert answer.status_code in (200, 201), (who, method, where, answer.text)
            else:
                assert answer.status_code in ((403, 404) if new else (403,)), (who, method, where, answer.text)
        assert await site.exists(kind, name) == may, who
        if not may and not {*KIND_POWERS[kind].roles} <= set(roles):
            for dry in ({"dryRun": "All"}, {}):
                gone = await site.call(who, "DELETE", f"{path}/there", params={"namespace": SPACE, **dry})
                assert gone.status_code == 403, (who, gone.text)
    assert await site.exists(kind, "there")


@pytest.mark.parametrize("kind", sorted(UNEDITED))
async def test_what_is_not_edited_is_not_declared_over_either(site: Site, kind: str) -> None:
    """A question of a run shows people what they decide about: no way to declare writes it, for nobody."""
    path, labels = f"/v1/{KINDS[kind].plural}", {"app": "desk"}
    asked = {"run": "r1", "call_id": "c1", "tool": "pay", "arguments": {"to": "eve"}, "arguments_digest": "sha256:1"}
    made = document(kind, "there", asked, labels=labels)
    made["status"] = {"phase": "Pending"}
    await site.runtime.inside.resources.write([Put(made, own=True), Put(made, only="status")])
    before = await site.runtime.inside.resources.get(Key(kind, SPACE, "there"))
    forged = {**asked, "arguments": {"to": "charity"}}
    there = {"params": {"namespace": SPACE}, "headers": {"If-Match": "*"}}
    for who in [*CALLERS, "root"]:
        for spec in (forged, {"tool": "pay", "task_ref": "t"}, {"tool": "pay", "standing": True}):
            for method, where, more in ways(kind, "there", spec):
                answer = await site.call(who, method, where, **more)
                assert answer.status_code == 403, (who, method, where, answer.text)
            for method, body in (("PUT", document(kind, "there", spec)), ("PATCH", {"spec": spec})):
                answer = await site.call(who, method, f"{path}/there", json=body, **there)
                assert answer.status_code in (403, 405), (who, method, answer.text)
        for method, where, more in ways(kind, "new", forged):
            answer = await site.call(who, method, where, **more)
            assert answer.status_code == 403, (who, method, where, answer.text)
        gone = await site.call(who, "DELETE", f"{path}/there", params={"namespace": SPACE})
        assert gone.status_code == 403, (who, gone.text)
        empty = document("Agent", "a", {"model_ref": "m"}, labels=labels)
        query = {"prune": "app=desk", "namespace": SPACE}
        await site.call(who, "POST", "/v1/apply", json=empty, params=query)
    assert await site.runtime.inside.resources.get(Key(kind, SPACE, "there")) == before


async def test_prune_takes_the_roles_of_what_it_deletes(site: Site) -> None:
    labelled = document("AgentPolicy", "rule", {"blocked_tools": ["x"]}, labels={"app": "desk"})
    assert (await site.call("root", "POST", "/v1/apply", json=labelled)).status_code == 200
    agent = document("Agent", "a", {"model_ref": "m"}, labels={"app": "desk"})
    query = {"prune": "app=desk", "namespace": SPACE}
    refused = await site.call("author", "POST", "/v1/apply", json=agent, params=query)
    assert refused.status_code == 403, refused.text
    assert await site.exists("AgentPolicy", "rule")
    assert not await site.exists("Agent", "a")


async def test_work_is_not_had_by_declaring_it(site: Site) -> None:
    """Neither a schedule, nor a webhook, nor a Task in a bundle does work for somebody who may not have it done."""
    task = document("Task", "t", {"agent": "greeter", "input": {"topic": "x"}})
    for path in ("/v1/tasks", "/v1/tasks/declared", "/v1/apply"):
        answer = await site.call("author", "POST", path, json=task, params={"run": "true"} if "apply" in path else {})
        assert answer.status_code == 403, (path, answer.text)


async def test_who_may_not_have_work_done_does_not_get_to_sign_for_a_webhook(site: Site) -> None:
    await site.stored("Secret", "hook", {"stringData": {"value": "theirs"}})
    await site.stored("TaskWebhook", "push", {"task_ref": "t", "auth": {"profile": "generic", "secret_ref": "hook"}})
    for method, where, more in ways("Secret", "hook", {"stringData": {"value": "mine"}}):
        answer = await site.call("author", method, where, **more)
        assert answer.status_code == 403, (method, where, answer.text)
    moved = await site.call("author", "POST", "/v1/task-webhooks/push/rotate", json={}, params={"namespace": SPACE})
    assert moved.status_code == 403, moved.text
    await site.stored("Secret", "hook", {"stringData": {"value": "mine"}}, by="author and operator")


RISKY: dict[str, Any] = {**SAMPLES["Tool"], "effect": "once", "risk_level": "critical"}
TAME: dict[str, Any] = {**SAMPLES["Tool"], "effect": "read", "risk_level": "low"}
SIGNED: dict[str, Any] = {"task_ref": "t", "auth": {"profile": "generic", "secret_ref": "s"}}
SENDS: dict[str, Any] = {**SAMPLES["Tool"], "auth": {"profile": "bearer", "secretRef": "s"}}
BOUND: dict[str, Any] = {"stringData": {"value": "sesame"}, "hosts": ["api.example"]}
# What an author asks for, what an admin does between the look at it and the write, and what there is before and after.
OVERTAKEN: dict[str, tuple[list[Any], list[Any], tuple[str, str, Any, dict[str, str]], tuple[str, str]]] = {
    "a tool is deleted that a rule names by now": (
        [("Tool", "x", TAME)],
        [("AgentPolicy", "p", {"blocked_tools": ["x"]})],
        ("DELETE", "/v1/tools/x", None, {}),
        ("Tool", "x"),
    ),
    "a tool is made tame that was not there": (
        [],
        [("Tool", "x", RISKY)],
        ("POST", "/v1/tools", ("Tool", "x", TAME), {}),
        ("Tool", "x"),
    ),
    "a tool is made tame that must be there": (
        [],
        [("Tool", "x", RISKY)],
        ("POST", "/v1/tools", ("Tool", "x", TAME), {"If-Match": "*"}),
        ("Tool", "x"),
    ),
    "a tool is made tame at a version that is to come": (
        [("Tool", "x", TAME)],
        [("Tool", "x", RISKY)],
        ("PUT", "/v1/tools/x", ("Tool", "x", {**TAME, "description": "mine"}), {"If-Match": "NEXT"}),
        ("Tool", "x"),
    ),
    "a tool is applied that became risky": (
        [("Tool", "x", TAME)],
        [("Tool", "x", RISKY)],
        ("POST", "/v1/apply", ("Tool", "x", {**TAME, "description": "mine"}), {}),
        ("Tool", "x"),
    ),
    "a secret gets a value that a webhook is signed with by now": (
        [("Secret", "s", BOUND)],
        [("TaskWebhook", "w", SIGNED)],
        ("POST", "/v1/secrets", ("Secret", "s", {**BOUND, "stringData": {"value": "mine"}}), {}),
        ("Secret", "s"),
    ),
    "a tool sends a secret that is no longer bound to its host": (
        [("Secret", "s", BOUND)],
        [("Secret", "s", {**BOUND, "hosts": ["other.example"]})],
        ("POST", "/v1/tools", ("Tool", "x", SENDS), {}),
        ("Secret", "s"),
    ),
}


@pytest.mark.parametrize("site", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)], indirect=True)
@pytest.mark.parametrize("case", sorted(OVERTAKEN))
async def test_what_is_judged_is_what_is_stored(site: Site, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Between the look and the write somebody else is faster: with what is written, or with what it is judged by."""
    before, between, (method, path, body, headers), (kind, name) = OVERTAKEN[case]
    for each in before:
        await site.stored(*each)
    write = SqlResourceStore.write
    happened: list[Any] = []

    async def slower(self: SqlResourceStore, changes: Any, **more: Any) -> Any:
        if (by := more.get("by")) is not None and by.user == "author" and not happened:
            for each in between:
                happened.append(each)
                await site.stored(*each)
        return await write(self, changes, **more)

    monkeypatch.setattr(SqlResourceStore, "write", slower)
    if headers.get("If-Match") == "NEXT":
        headers = {"If-Match": str(await site.runtime.inside.resources.revision() + 1)}
    more: dict[str, Any] = {"json": document(*body)} if body else {"params": {"namespace": SPACE}}
    if method == "PUT":
        more["params"] = {"namespace": SPACE}
    answer = await site.call("author", method, path, headers=headers, **more)

    assert happened == between, answer.text
    assert answer.status_code in (403, 412), (case, answer.text)
    assert await site.exists(kind, name)
    if kind == "Tool" and method != "DELETE":
        found = await site.runtime.inside.resources.get(Key("Tool", SPACE, name))
        assert found["spec"]["risk_level"] == "critical"


async def test_rules_are_read_once_for_a_whole_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [document("ToolPermission", f"p{number}", {"tool_ref": f"t{number}"}) for number in range(20)]
    assert (await site.call("root", "POST", "/v1/apply", json={"kind": "List", "items": rules})).status_code == 200
    listed: list[str | None] = []
    list_ = SqlResourceStore.list

    async def listing(self: SqlResourceStore, filter: Filter, **more: Any) -> Any:
        listed.append(filter.kind)
        return await list_(self, filter, **more)

    monkeypatch.setattr(SqlResourceStore, "list", listing)
    counts: list[int] = []
    for size in (1, 20):
        listed.clear()
        tools = [document("Tool", f"t{number}", {**TAME, "description": str(size)}) for number in range(size)]
        answer = await site.call("author", "POST", "/v1/apply", json={"kind": "List", "items": tools})
        assert answer.status_code == 200, answer.text
        counts.append(listed.count("ToolPermission"))
    assert counts[0] == counts[1]


async def test_a_model_without_an_endpoint_is_asked_for_the_operator_alone(site: Site) -> None:
    await site.stored("ModelEndpoint", "talker", {"provider": "mock", "default_model": "m", "script": [{"say": "hi"}]})
    await site.stored("Agent", "greeter", {"model_ref": "talker"})
    begun = {"agent": "greeter", "namespace": SPACE, "input": "hi", "run_id": "run-1"}
    answer = await site.call("root", "POST", "/v1/runs", json=begun, params={"namespace": SPACE})
    assert answer.status_code in (200, 201), answer.text
    for who, expected in (("operator", 403), ("author and operator", 403), ("admin", 403), ("root", 200)):
        order = {"at": 1, "new_id": f"run-{who.replace(' ', '-')}", "model": "mock:x"}
        answer = await site.call(who, "POST", "/v1/runs/run-1/fork", json=order)
        assert answer.status_code == expected, (who, answer.text)


async def test_a_tool_that_a_rule_names_is_not_declared_anew_by_somebody_whom_it_binds(site: Site) -> None:
    await site.stored("Tool", "pay", {**SAMPLES["Tool"], "operation_classes": ["delete"]})
    await site.stored("Tool", "other", SAMPLES["Tool"])
    rule = {"tool_ref": "pay", "operation_rules": [{"operation_class": "delete", "verdict": "approval_required"}]}
    await site.stored("ToolPermission", "careful", rule)
    gone = await site.call("author", "DELETE", "/v1/tools/pay", params={"namespace": SPACE})
    assert gone.status_code == 403, gone.text
    gone = await site.call("author", "DELETE", "/v1/tools/other", params={"namespace": SPACE})
    assert gone.status_code == 204, gone.text


# --- fields that lift a rule -----------------------------------------------------------------------------------------

PROGRAM: dict[str, Any] = {"command": ["uvx", "acme-time"]}
LIFTED: dict[tuple[str, str], tuple[dict[str, Any] | None, dict[str, Any], dict[str, Any]]] = {
    # (kind, field): what is there, what lifts, what does not
    ("Agent", "model_settings.extra"): (
        None,
        {"model_ref": "m", "model_settings": {"extra": {"tools": [{"type": "mcp", "require_approval": "never"}]}}},
        {"model_ref": "m", "model_settings": {"extra": {"top_k": 3, "metadata": {"team": "clocks"}}}},
    ),
    ("Skill", "allow"): ({"description": "d"}, {"description": "d", "allow": DIGEST}, {"description": "e"}),
    ("ModelEndpoint", "options"): (
        None,
        {**SAMPLES["ModelEndpoint"], "options": {"extra": {"mcp_servers": [{"url": "https://x.example"}]}}},
        {**SAMPLES["ModelEndpoint"], "options": {"extra": {"top_k": 3}}},
    ),
    ("Agent", "allowed_tools"): (None, {"model_ref": "m", "allowed_tools": ["pay"]}, {"model_ref": "m"}),
    ("Agent", "allowed_commands"): (None, {"model_ref": "m", "allowed_commands": ["rm *"]}, {"model_ref": "m"}),
    ("Agent", "roles"): (
        {"model_ref": "m", "roles": ["careful"]},
        {"model_ref": "m"},
        {"model_ref": "other", "roles": ["careful"]},
    ),
    ("Agent", "runner.turn_cost_usd"): (
        {"runner": {**PROGRAM, "turn_cost_usd": 2}},
        {"runner": {**PROGRAM, "turn_cost_usd": 0.01}},
        {"runner": {**PROGRAM, "turn_cost_usd": 2}, "description": "Tells the time."},
    ),
    ("Agent", "runner.sandbox.runtime"): (
        {"runner": {**PROGRAM, "sandbox": {"runtime": "gvisor"}}},
        {"runner": {**PROGRAM, "sandbox": None}},
        {"runner": {**PROGRAM, "sandbox": {"runtime": "gvisor"}}, "description": "Tells the time."},
    ),
    ("Secret", "hosts"): (
        {"stringData": {"value": "sesame"}, "hosts": ["api.example"]},
        {"data": {"value": "***"}, "hosts": ["evil.example"]},
        {"stringData": {"value": "mine"}, "hosts": ["mine.example"]},
    ),
    **{
        ("ModelEndpoint", f"pricing.{each}"): (
            None,
            {"provider": "mock", "pricing": {"input": 1, "output": 1, each: {"flex": 2} if each == "tiers" else 2}},
            {"provider": "mock", "default_model": "m"},
        )
        for each in (
            "input",
            "output",
            "cache_read",
            "cache_write",
            "cache_write_1h",
            "request",
            "web_search",
            "file_search",
            "search",
            "audio_hour",
            "tiers",
        )
    },
    ("Tool", "sandbox.runtime"): (
        {"type": "function", "function": "desk:find", "sandbox": {"runtime": "gvisor"}},
        {"type": "function", "function": "desk:find", "runtime": {"isolation_mode": "container"}},
        {"type": "function", "function": "desk:find", "sandbox": {"runtime": "gvisor"}, "description": "Finds."},
    ),
    ("Task", "mode"): (None, {"agent": "a", "mode": "template"}, {"agent": "a", "mode": "run"}),
    **{
        ("Tool", field): ({**SAMPLES["Tool"], **before}, {**SAMPLES["Tool"], **after}, {**SAMPLES["Tool"], **before})
        for field, before, after in (
            ("category", {"category": "money"}, {"category": "harmless"}),
            ("capabilities", {"capabilities": ["pay"]}, {}),
            ("operation_classes", {"operation_classes": ["delete", "read"]}, {"operation_classes": ["read"]}),
            (
                "risk_level",
                {"risk_level": "high", "operation_classes": ["write"], "runtime": {"isolation_mode": "sandboxed"}},
                {"risk_level": "low", "operation_classes": ["write"], "runtime": {"isolation_mode": "sandboxed"}},
            ),
            ("effect", {"effect": "once"}, {"effect": "read"}),
            ("on_unknown", {"on_unknown": "ask"}, {"on_unknown": "retry"}),
            ("record", {"record": "required"}, {"record": "best_effort"}),
            ("price_usd", {"price_usd": "2"}, {"price_usd": "0.01"}),
            (
                "runtime.isolation_mode",
                {"runtime": {"isolation_mode": "sandboxed"}},
                {"runtime": {"isolation_mode": "none"}},
            ),
        )
    },
}


def lifting() -> list[tuple[str, Field]]:
    return [(kind, field) for kind, powers in KIND_POWERS.items() for field in powers.fields if field.lifts]


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in lifting()}))
async def test_who_is_bound_by_a_rule_does_not_lift_it(site: Site, kind: str) -> None:
    bound = "operator" if kind == "Task" else "author"
    for number, path in enumerate(field.path for of, field in lifting() if of == kind):
        before, lifts, harmless = LIFTED[kind, path]
        name, patch = f"x-{number}", lifts
        if before is not None:
            await site.stored(kind, name, before)
            stored = await site.runtime.inside.resources.get(Key(kind, SPACE, name))
            patch = {**dict.fromkeys(stored["spec"]), **lifts}
        for method, where, more in ways(kind, name, lifts, patch=patch):
            if before is None and method in ("PUT", "PATCH"):
                continue
            answer = await site.call(bound, method, where, **more)
            assert answer.status_code == 403, (method, where, answer.text)
            named = "author" if kind == "Task" else f"spec.{path.partition('.')[0]}"
            assert named in answer.json()["detail"], answer.text
        if kind == "Task":
            continue
        await site.stored(kind, name, harmless, by=bound)
        await site.stored(kind, name, lifts, by="admin")
        query = {"namespace": SPACE, "limit": "200"}
        records = (await site.call("root", "GET", "/v1/audit", params=query)).json()["records"]
        of_it = [each["body"]["resource"] for each in records if each["body"].get("resource", {}).get("name") == name]
        assert any(f"spec.{path}" in each.get("lifted", {}) for each in of_it), (path, of_it)


# What is there until somebody deletes it, for fields where LIFTED has nothing, or what a Tool is by default.
DELETED: dict[tuple[str, str], dict[str, Any]] = {
    (kind, path): {**SAMPLES["ModelEndpoint"], **lifts} if before is None else before
    for (kind, path), (before, lifts, _) in LIFTED.items()
}
# Fields that nobody lifts by deleting: what they gave is gone, and giving it again needs the role again. Of the effect
# of a Tool rules speak that have a test of their own; nothing goes by `on_unknown` but the tool's own calls.
UNLIFTED_BY_DELETING = {
    ("Agent", "allowed_tools"),
    ("Agent", "allowed_commands"),
    ("Agent", "model_settings.extra"),
    ("ModelEndpoint", "options"),
    ("Secret", "hosts"),
    ("Skill", "allow"),
    ("Task", "mode"),
    ("Tool", "effect"),
    ("Tool", "on_unknown"),
}


@pytest.mark.parametrize(
    ("kind", "path"),
    [(kind, field.path) for kind, field in lifting() if (kind, field.path) not in UNLIFTED_BY_DELETING],
)
async def test_who_is_bound_by_a_rule_does_not_delete_it_away(site: Site, kind: str, path: str) -> None:
    await site.stored(kind, "bound", DELETED[kind, path])
    where = f"/v1/{KINDS[kind].plural}/bound"
    for dry in ({"dryRun": "All"}, {}):
        gone = await site.call("author", "DELETE", where, params={"namespace": SPACE, **dry})
        assert gone.status_code == 403, gone.text
        assert "spec." in gone.json()["detail"], gone.text  # more than one field may bind
    labelled = document(kind, "bound", DELETED[kind, path], labels={"app": "desk"})
    assert (await site.call("root", "POST", "/v1/apply", json=labelled)).status_code == 200
    other = document("Memory", "other", {}, labels={"app": "desk"})
    pruned = await site.call(
        "author", "POST", "/v1/apply", json=other, params={"prune": "app=desk", "namespace": SPACE}
    )
    assert pruned.status_code == 403, pruned.text
    assert await site.exists(kind, "bound")
    gone = await site.call("admin", "DELETE", where, params={"namespace": SPACE})
    assert gone.status_code == 204, gone.text
    records = (await site.call("root", "GET", "/v1/audit", params={"namespace": SPACE})).json()["records"]
    acts = [each["body"] for each in records if each["body"].get("resource", {}).get("name") == "bound"]
    (deleted,) = (each["resource"] for each in acts if each["outcome"] == "deleted")
    assert deleted["lifted"][f"spec.{path}"][1] is None, deleted


@pytest.mark.parametrize("policy", [{"read_only": True}, {"allowed_categories": ["harmless"]}])
async def test_a_tool_that_a_policy_refuses_for_what_it_is_is_not_declared_anew(
    site: Site, policy: dict[str, Any]
) -> None:
    await site.stored("Tool", "refused", SAMPLES["Tool"])
    await site.stored("Tool", "fine", {**SAMPLES["Tool"], "effect": "read"})
    await site.stored("AgentPolicy", "p", {**policy, "apply_mode": "global"})
    gone = await site.call("author", "DELETE", "/v1/tools/refused", params={"namespace": SPACE})
    assert gone.status_code == 403, gone.text
    assert "AgentPolicy/p" in gone.text
    gone = await site.call("author", "DELETE", "/v1/tools/fine", params={"namespace": SPACE})
    assert gone.status_code == (204 if "read_only" in policy else 403), gone.text


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in lifting()}))
async def test_what_binds_nobody_is_deleted_by_whoever_declares_it(site: Site, kind: str) -> None:
    bound = "author and operator"
    await site.stored(kind, "plain", SAMPLES[kind], by=bound)
    gone = await site.call(bound, "DELETE", f"/v1/{KINDS[kind].plural}/plain", params={"namespace": SPACE})
    assert gone.status_code == 204, gone.text


async def test_a_rule_that_is_changed_or_deleted_is_recorded_with_what_it_said(site: Site) -> None:
    await site.stored("AgentPolicy", "p", {"blocked_tools": ["pay"]})
    await site.stored("AgentPolicy", "p", {"blocked_tools": ["other"]}, by="admin")
    gone = await site.call("admin", "DELETE", "/v1/agent-policies/p", params={"namespace": SPACE})
    assert gone.status_code == 204
    records = (await site.call("root", "GET", "/v1/audit", params={"namespace": SPACE})).json()["records"]
    acts = [each["body"].get("resource", {}) for each in records]
    told = [each["lifted"]["spec"] for each in acts if each.get("lifted")]
    assert sorted((old["blocked_tools"], new and new["blocked_tools"]) for old, new in told) == [
        (["other"], None),
        (["pay"], ["other"]),
    ]


# --- what the operator grants ----------------------------------------------------------------------------------------

MCP = {"transport": "stdio"}
WASM: dict[str, Any] = {"digest": "sha256:" + "0" * 64}
OPENAI = {"provider": "openai", "default_model": "m"}
FENCED: dict[str, Any] = {"type": "function", "function": "desk:find"}
AGENT: dict[str, Any] = {"model_ref": "m"}
PYTHON: dict[str, Any] = {"transport": "stdio", "command": "python"}


def reaching(*hosts: str) -> dict[str, Any]:
    return {"network": [{"hosts": list(hosts)}]}


def sending(secret: str, *hosts: str) -> dict[str, Any]:
    return {**reaching("*"), "secrets": [{"secretRef": secret, "hosts": list(hosts)}]}


def showing(source: str, *, writable: bool = False) -> dict[str, Any]:
    return {"mounts": [{"source": source, "target": "/data", "writable": writable}]}


def taking(limit: str, value: Any) -> dict[str, Any]:
    return {"limits": {limit: value}}


# Beyond the default of a fence or what the operator grants, and at it: `processes`, `cpus` and the times are granted.
LIMITS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("limits.memory", taking("memory", "512Gi"), taking("memory", "512Mi")),
    ("limits.processes", taking("processes", 1_000_000), taking("processes", 512)),
    ("limits.cpus", taking("cpus", 64), taking("cpus", 2)),
    ("limits.file_size", taking("file_size", "2Gi"), taking("file_size", "1Gi")),
    ("limits.tmp_size", taking("tmp_size", "64Gi"), taking("tmp_size", "256Mi")),
    ("limits.open_files", taking("open_files", 1_000_000), taking("open_files", 1024)),
    ("limits.output", taking("output", "1Gi"), taking("output", "256Ki")),
    ("limits.cpu_seconds", taking("cpu_seconds", 1_000_000), taking("cpu_seconds", 60)),
    ("limits.seconds", taking("seconds", 1_000_000), taking("seconds", 600)),
]
# The fence of a tool or of the program of an agent.
FENCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("network.hosts", reaching("127.0.0.1"), reaching("10.1.2.3")),
    ("network.hosts", reaching("localhost"), reaching("intranet.example")),
    ("network.hosts", reaching("api.example", "169.254.169.254"), reaching("api.example", "*.example")),
    ("network.hosts", reaching("::1"), reaching("8.8.8.8")),
    ("secrets.secretRef", sending("signing", "api.example"), sending("s", "api.example")),
    ("secrets.hosts", sending("s", "evil.example"), sending("s", "api.example")),
    ("secrets.hosts", sending("s", "api.example", "*.example"), sending("s:other", "api.example")),
    ("mounts.source", showing("/etc"), showing("/srv/data/cities")),
    ("mounts.source", showing("/srv/database"), showing("/srv/out")),
    ("mounts.writable", showing("/srv/data", writable=True), showing("/srv/out/a", writable=True)),
    ("image", {"image": f"evil.example/x@{DIGEST}"}, {"image": f"registry.example/team/x@{DIGEST}"}),
    ("image", {"image": f"registry.example/team@{DIGEST}"}, {"image": f"tools.example/curl@{DIGEST}"}),
    ("env", {"env": {"PYTHONPATH": "/tmp"}}, {}),
    *LIMITS,
]
# What is not granted, and beside it what is.
GRANTED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("TaskHook", "path", {"task_ref": "t", "path": "/etc"}, {"task_ref": "t", "path": "/srv/data"}),
    (
        "Channel",
        "endpoint",
        {"type": "telegram", "agent": "a", "endpoint": "http://127.0.0.1:1", "auth": {"secretRef": "signing"}},
        {"type": "telegram", "agent": "a", "endpoint": "https://api.example", "auth": {"secretRef": "s"}},
    ),
    (
        "Channel",
        "auth.secretRef",
        {"type": "webhook", "agent": "a", "endpoint": "https://evil.example", "auth": {"secretRef": "s"}},
        {"type": "webhook", "agent": "a", "endpoint": "https://api.example", "auth": {"secretRef": "s"}},
    ),
    (
        "Tool",
        "function",
        {"type": "function", "function": "subprocess:getoutput"},
        {"type": "function", "function": "desk:find"},
    ),
    (
        "Tool",
        "function",
        {"type": "function", "function": "acme.toolsmith:x"},
        {"type": "function", "function": "acme.tools.io:x"},
    ),
    *(
        ("Tool", field, {"type": "wasm", "wasm": WASM | refused}, {"type": "wasm", "wasm": WASM | granted})
        for field, refused, granted in (
            ("wasm.module", {"module": "/etc/passwd"}, {"module": "/srv/modules/a/b.wasm"}),
            ("wasm.module", {"module": "/srv/modules/../x.wasm"}, {"module": "x.wasm"}),
            ("wasm.module", {"module": "../x.wasm"}, {"module": "/opt/acme/resize.wasm"}),
            ("wasm.module", {"module": "/srv/modules-other/x.wasm"}, {}),
            ("wasm.digest", {"module": "/srv/x.wasm"}, {"digest": "sha256:" + "1" * 64}),
            ("wasm.entrypoint", {"module": "/srv/x.wasm", "entrypoint": "go"}, {"entrypoint": "go"}),
            ("wasm.max_memory_bytes", {"max_memory_bytes": 2**32}, {"max_memory_bytes": 2**26}),
            ("wasm.folders", {"folders": {"/data": "/etc"}}, {"folders": {"/data": "/srv/data/cities"}}),
        )
    ),
    *(
        (
            "Agent",
            "workspace.source",
            {"model_ref": "m", "workspace": {"source": refused}},
            {"model_ref": "m", "workspace": {"source": granted}},
        )
        for refused, granted in (("/etc", "/srv/data"), ("/srv/database", "/srv/data/cities"))
    ),
    (
        "Tool",
        "cli.command",
        {"type": "cli", "cli": {"command": ["sh", "-c", "id"]}},
        {"type": "cli", "cli": {"command": ["uvx", "acme-time", "--zone={zone}"]}},
    ),
    (
        "Tool",
        "cli.command",
        {"type": "cli", "cli": {"command": ["uvx", "{program}"]}},
        {"type": "cli", "cli": {"command": ["uvx", "acme-time", "--", "{program}"]}},
    ),
    (
        "Tool",
        "cli.env",
        {"type": "cli", "cli": {"command": ["python"], "env": {"PYTHONPATH": "/tmp"}}},
        {"type": "cli", "cli": {"command": ["python"]}},
    ),
    *(
        ("Tool", f"sandbox.{field}", {**FENCED, "sandbox": refused}, {**FENCED, "sandbox": granted})
        for field, refused, granted in FENCES
    ),
    *(
        ("Agent", f"runner.{field}", {"runner": {**PROGRAM, **refused}}, {"runner": {**PROGRAM, **granted}})
        for field, refused, granted in (
            *((f"sandbox.{name}", {"sandbox": wrong}, {"sandbox": right}) for name, wrong, right in FENCES),
            ("type", {"type": "claude_code", "command": []}, {"type": "command"}),
            ("command", {"command": ["sh", "-c", "id"]}, {"command": ["uvx", "acme-time", "--zone={model}"]}),
            ("command", {"command": ["uvx", "other"]}, {}),
            ("command", {"command": ["uvx acme-time"]}, {"command": ["uvx", "acme-time", "in Rome"]}),
            ("command", {"command": ["uvx acme-time", "x"]}, {}),
            ("resume", {"command": ["python"], "resume": ["-c", "import os"]}, {"resume": ["--resume={session}"]}),
            ("resume_latest", {"command": ["python"], "resume_latest": ["evil.py"]}, {"resume_latest": ["--again"]}),
            ("env", {"command": ["python"], "env": {"PYTHONPATH": "/tmp"}}, {"command": ["python"]}),
        )
    ),
    *(
        ("Agent", f"sandbox.{field}", {**AGENT, "sandbox": refused}, {**AGENT, "sandbox": granted})
        for field, refused, granted in (
            ("network.hosts", reaching("127.0.0.1"), reaching("10.1.2.3")),
            ("network.hosts", reaching("169.254.169.254"), reaching("*.example")),
            ("secrets.secretRef", sending("signing", "api.example"), sending("s", "api.example")),
            ("secrets.hosts", sending("s", "evil.example"), sending("s", "api.example")),
            ("mounts.source", showing("/etc"), showing("/srv/data/cities")),
            ("mounts.writable", showing("/srv/data", writable=True), showing("/srv/out/a", writable=True)),
            *LIMITS,
            ("limits.memory", taking("memory", "3Gi"), taking("memory", "2Gi")),
        )
    ),
    *(
        ("Agent", f"workspace.{field}", {**AGENT, "workspace": refused}, {**AGENT, "workspace": granted})
        for field, refused, granted in (
            ("quota", {"quota": 1024**4}, {"quota": 4 * 1024**3}),
            ("max_files", {"max_files": 1_000_000}, {"max_files": 100_000}),
        )
    ),
    (
        "Tool",
        "sandbox.env",
        {"type": "cli", "cli": {"command": ["python"]}, "sandbox": {"env": {"PYTHONPATH": "/tmp"}}},
        {"type": "cli", "cli": {"command": ["python"]}},
    ),
    ("Tool", "endpoint", {"endpoint": "http://127.0.0.1:1/"}, {"endpoint": "http://10.1.2.3/"}),
    ("Tool", "endpoint", {"endpoint": "http://localhost:1/"}, {"endpoint": "http://intranet.example/"}),
    ("Tool", "endpoint", {"endpoint": "http://169.254.169.254/latest"}, {"endpoint": "https://api.example/{id}"}),
    ("Tool", "endpoint", {"endpoint": "http://[::ffff:127.0.0.1]/"}, {"endpoint": "https://8.8.8.8/"}),
    ("Tool", "endpoint", {"endpoint": "http://2130706433/"}, {"endpoint": "https://api.example/"}),
    ("Tool", "endpoint", {"endpoint": "http://0.0.0.0:1/"}, {"endpoint": "https://api.example/"}),
    ("Tool", "endpoint", {"endpoint": "http://u:p@api.example/"}, {"endpoint": "https://api.example/"}),
    (
        "Tool",
        "endpoint",
        {"type": "grpc", "endpoint": "127.0.0.1:50051"},
        {"type": "grpc", "endpoint": "grpc.example:443"},
    ),
    *(
        ("Tool", "endpoint", {"type": "queue", "endpoint": subject}, {"type": "queue", "endpoint": granted})
        for subject, granted in (
            ("team-a.tool.execute.pay", "team.tool.execute.pay"),
            ("billing.refund", "billing.tool.search"),
            ("billing.tool.search.more", "billing.tool.find"),
            ("tool.execute.pay", "shared.tool.execute.pay"),
            ("$JS.API.STREAM.PURGE.A", "shared.a.b.c"),
            ("shared.$SYS.x", ""),
            ("shared", "shared.a"),
        )
    ),
    (
        "Tool",
        "auth.tokenURL",
        {
            "endpoint": "https://api.example/",
            "auth": {"profile": "oauth2_client_credentials", "secretRef": "s", "tokenURL": "http://127.0.0.1:1/t"},
        },
        {
            "endpoint": "https://api.example/",
            "auth": {"profile": "oauth2_client_credentials", "secretRef": "s", "tokenURL": "https://api.example/t"},
        },
    ),
    (
        "Tool",
        "auth.secretRef",
        {"endpoint": "https://evil.example/", "auth": {"profile": "bearer", "secretRef": "s"}},
        {"endpoint": "https://api.example/", "auth": {"profile": "bearer", "secretRef": "s"}},
    ),
    (
        "ModelEndpoint",
        "base_url",
        {**OPENAI, "base_url": "http://127.0.0.1:1/v1"},
        {**OPENAI, "base_url": "http://10.1.0.9/v1"},
    ),
    (
        "ModelEndpoint",
        "base_url",
        {"provider": "ollama", "default_model": "m"},
        {"provider": "openai", "default_model": "m"},
    ),
    (
        "ModelEndpoint",
        "auth.secretRef",
        {**OPENAI, "base_url": "https://evil.example/v1", "auth": {"secretRef": "s"}},
        {**OPENAI, "base_url": "https://api.example/v1", "auth": {"secretRef": "s"}},
    ),
    (
        "ModelEndpoint",
        "auth.secretRef",
        {**OPENAI, "base_url": "https://api.example.evil.example", "auth": {"secretRef": "s:other"}},
        {**OPENAI, "auth": {"secretRef": "s"}},
    ),
    ("ModelEndpoint", "provider", {"provider": "os:system", "default_model": "m"}, OPENAI),
    ("ModelEndpoint", "provider", {"provider": "pydantic-ai:openai:gpt-5", "default_model": "m"}, OPENAI),
    (
        "Memory",
        "endpoint",
        {"provider": "http", "endpoint": "http://127.0.0.1:1"},
        {"provider": "http", "endpoint": "https://api.example"},
    ),
    (
        "Memory",
        "auth.secretRef",
        {"provider": "http", "endpoint": "https://evil.example", "auth": {"secretRef": "s"}},
        {"provider": "http", "endpoint": "https://api.example", "auth": {"secretRef": "s"}},
    ),
    ("McpServer", "command", {**MCP, "command": "python", "args": ["-c", "print()"]}, {**MCP, "command": "python"}),
    ("McpServer", "isolation", {**MCP, "command": "python", "isolation": "none"}, {**MCP, "command": "python"}),
    *(
        ("McpServer", f"sandbox.{field}", {**PYTHON, "sandbox": refused}, {**PYTHON, "sandbox": granted})
        for field, refused, granted in FENCES
    ),
    (
        "McpServer",
        "args",
        {**MCP, "command": "npx", "args": ["-y", "evil"]},
        {**MCP, "command": "npx", "args": ["-y", "@acme/search", "--root", "/srv"]},
    ),
    (
        "McpServer",
        "args",
        {**MCP, "command": "npx -y @acme/search --root /"},
        {**MCP, "command": "npx -y @acme/search --root /srv"},
    ),
    (
        "McpServer",
        "args",
        {**MCP, "command": "uvx", "args": ["evil"]},
        {**MCP, "command": "uvx", "args": ["acme-time", "--utc"]},
    ),
    (
        "McpServer",
        "env.name",
        {
            **MCP,
            "command": "npx -y @acme/search --root /srv",
            "env": [{"name": "NODE_OPTIONS", "value": "--require=/tmp/x"}],
        },
        {**MCP, "command": "npx -y @acme/search --root /srv", "env": [{"name": "ZONE", "value": "C"}]},
    ),
    (
        "McpServer",
        "env.value",
        {**MCP, "command": "python", "env": [{"name": "PYTHONPATH", "value": "/tmp"}]},
        {**MCP, "command": "npx -y @acme/search --root /srv", "env": [{"name": "ZONE", "value": "C"}]},
    ),
    (
        "McpServer",
        "env.secretRef",
        {**MCP, "command": "python", "env": [{"name": "TOKEN", "secretRef": "s"}]},
        {**MCP, "command": "npx -y @acme/search --root /srv", "env": [{"name": "ZONE", "secretRef": "s"}]},
    ),
    (
        "McpServer",
        "endpoint",
        {"transport": "http", "endpoint": "http://[::1]:1/mcp"},
        {"transport": "http", "endpoint": "https://mcp.example"},
    ),
    (
        "McpServer",
        "auth.secretRef",
        {"transport": "http", "endpoint": "https://evil.example", "auth": {"profile": "bearer", "secretRef": "s"}},
        {"transport": "http", "endpoint": "https://api.example", "auth": {"profile": "bearer", "secretRef": "s"}},
    ),
    (
        "McpServer",
        "auth.tokenURL",
        {
            "transport": "http",
            "endpoint": "https://api.example",
            "auth": {"profile": "oauth2_client_credentials", "secretRef": "s", "tokenURL": "http://10.9.9.9/t"},
        },
        {
            "transport": "http",
            "endpoint": "https://api.example",
            "auth": {"profile": "oauth2_client_credentials", "secretRef": "s", "tokenURL": "https://api.example/t"},
        },
    ),
    *(
        (
            "Agent",
            path,
            {"model_ref": "m", "hooks": [{"name": "h", "points": ["before_tool"], "http": refused}]},
            {
                "model_ref": "m",
                "hooks": [
                    {"name": "h", "points": ["before_tool"], "http": {"url": "https://api.example/", "secretRef": "s"}}
                ],
            },
        )
        for path, refused in (
            ("hooks.http.url", {"url": "http://10.9.9.9/hook"}),
            ("hooks.http.secretRef", {"url": "https://thief.example/hook", "secretRef": "s"}),
        )
    ),
    (
        "TaskWebhook",
        "auth.secret_ref",
        {"task_ref": "t", "auth": {"profile": "gitlab", "secret_ref": "s"}},
        {"task_ref": "t", "auth": {"profile": "gitlab", "secret_ref": "signing"}},
    ),
    (
        "TaskWebhook",
        "auth.secret_refs",
        {"task_ref": "t", "auth": {"profile": "gitlab", "secret_ref": "signing", "secret_refs": ["s:value"]}},
        {"task_ref": "t", "auth": {"profile": "gitlab", "secret_ref": "signing", "secret_refs": ["signing:value"]}},
    ),
]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Tool", {"endpoint": "https://api.example/", "auth": {"profile": "bearer", "secretRef": "vault"}}),
        ("Tool", {**FENCED, "sandbox": sending("vault", "api.example")}),
        ("Agent", {**AGENT, "sandbox": sending("vault", "api.example")}),
        ("ModelEndpoint", {**OPENAI, "base_url": "https://api.example/v1", "auth": {"secretRef": "vault"}}),
        ("TaskWebhook", {"task_ref": "t", "auth": {"profile": "generic", "secret_ref": "vault"}}),
    ],
)
async def test_a_secret_of_the_environment_is_refused_when_declared_as_when_used(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: str, spec: dict[str, Any]
) -> None:
    """Only the operator sends them: nobody has bound them to a host."""
    made = document(kind, "x", spec)
    taken = await site.call("author and operator", "POST", "/v1/apply", json=made, params={"dryRun": "true"})
    assert taken.status_code == 200, "there is no such secret: it may be declared later"
    monkeypatch.setenv("FOLIOT_SECRET_VAULT", "sesame")
    for method, where, more in ways(kind, "x", spec):
        if method == "POST":
            answer = await site.call("author and operator", method, where, **more)
            assert (answer.status_code, "vault" in answer.text) == (403, True), answer.text
    answer = await site.call("root", "POST", "/v1/apply", json=made)
    assert answer.status_code == 200, answer.text


def test_every_grant_of_the_table_is_tried() -> None:
    wanted = {(kind, field.path) for kind, powers in KIND_POWERS.items() for field in powers.fields if field.grant}
    assert wanted == {(kind, path) for kind, path, *_ in GRANTED}
    assert {(kind, field.path) for kind, field in lifting()} == set(LIFTED)


@pytest.mark.parametrize("kind", sorted({row[0] for row in GRANTED}))
async def test_what_reaches_outside_is_granted_by_the_operator_and_not_by_declaring_it(site: Site, kind: str) -> None:
    triggers = dict.fromkeys(("TaskWebhook", "TaskHook"), "author and operator")
    who = {"McpServer": "admin", "Channel": "admin", **triggers}.get(kind, "author")
    await site.stored("Secret", "signing", {"stringData": {"value": "sesame-sesame"}, "hosts": ["webhook"]})
    await site.stored("Secret", "s", {"stringData": {"value": "sesame", "other": "x"}, "hosts": ["api.example"]})
    for number, (refused, granted) in enumerate(row[2:] for row in GRANTED if row[0] == kind):
        name = f"x-{number}"
        await site.stored(kind, name, granted, by=who)
        key = Key(kind, SPACE, name)
        patch = {**dict.fromkeys((await site.runtime.inside.resources.get(key))["spec"]), **refused}
        for method, where, more in ways(kind, name, refused, patch=patch):
            answer = await site.call(who, method, where, **more)
            assert answer.status_code == 403, (refused, method, where, answer.text)
            assert "operator" in (answer.json().get("hint") or "") or "spec.hosts" in answer.text, answer.text
        assert (await site.runtime.inside.resources.get(key))["metadata"]["declaredBy"]["operator"] is False
        await site.stored(kind, name, refused)  # the operator of the installation may
        assert (await site.runtime.inside.resources.get(key))["metadata"]["declaredBy"]["operator"] is True


# --- the table itself ------------------------------------------------------------------------------------------------


def leaves(model: type[Model], before: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        path = before + emitted_key(model, name)
        inner = list(_models(info.annotation))
        if not inner:
            yield path
        for each in inner:
            yield from leaves(each, f"{path}.")


def _models(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for each in typing.get_args(annotation):
        yield from _models(each)


def test_every_field_of_every_kind_is_in_the_table() -> None:
    assert set(KIND_POWERS) == set(KINDS)
    for kind in KINDS.values():
        spec = kind.model().model_fields["spec"].annotation
        declared = [field.path for field in KIND_POWERS[kind.name].fields]
        assert sorted(declared) == sorted(set(leaves(typing.cast("type[Model]", spec)))), kind.name


def test_of_every_type_of_tool_it_is_known_what_it_reaches() -> None:
    types: tuple[str, ...] = typing.get_args(ToolSpec.model_fields["type"].annotation)
    assert "queue" in types
    for each in types:
        declared_addresses(document("Tool", "x", {"type": each, "endpoint": "https://api.example"}))
    with pytest.raises(ValueError, match="not known what the endpoint"):
        declared_addresses(document("Tool", "x", {"type": "carrier-pigeon", "endpoint": "https://api.example"}))


def test_the_documentation_shows_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "powers.md").read_text(encoding="utf-8")
    assert table() in text
    assert user_table() in text


# Fields whose name or description speaks of a user or a person without naming one.
NAMES_NOBODY = {
    "limits.timeout", "runner.interactive", "runner.idle", "workspace.data", "execution_policy.ask",
    "execution_policy.interactive", "Memory type", "Skill allow", "AgentPolicy ask", "operation_rules.verdict",
    "conditions.when", "conditions.verdict", "conditions.reason", "required_approvals", "four_eyes", "Channel agents",
    "Channel models", "Channel link", "Channel users", "Channel users.id", "Channel groups", "TaskWebhook auth",
    "session.deliver.recipient", "auth.max_skew_seconds",
}  # fmt: skip


def test_every_field_that_names_a_user_says_what_it_does_with_them() -> None:
    """A new field that speaks of a user is in `Field.user`, or in the list above with a reason to be there."""
    told = re.compile(r"\b(users?|approvers?|person|people|caller|owner|somebody|recipient|asked_by|on_behalf)\b", re.I)
    found: set[str] = set()
    for kind in KINDS.values():
        spec = kind.model().model_fields["spec"].annotation
        named = {field.path for field in KIND_POWERS[kind.name].fields if field.user}
        for path, description in described(typing.cast("type[Model]", spec)):
            last = path.rpartition(".")[2]
            if told.search(f"{last} {last.replace('_', ' ')} {description}") and path not in named:
                short = {path, f"{kind.name} {path}"} & NAMES_NOBODY
                assert short, f"{kind.name}: spec.{path}: {description}"
                found |= short
        assert named <= {path for path, _ in described(typing.cast("type[Model]", spec))}
    assert found == NAMES_NOBODY, found ^ NAMES_NOBODY


def described(model: type[Model], before: str = "") -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        path = before + emitted_key(model, name)
        yield path, info.description or ""
        for each in _models(info.annotation):
            yield from described(each, f"{path}.")


ACTING = [(kind, field.path) for kind, powers in KIND_POWERS.items() for field in powers.fields if field.user == "acts"]
NAMING: dict[tuple[str, str], Callable[[str], dict[str, Any]]] = {
    ("TaskSchedule", "session.user"): lambda user: {
        "schedule": "@daily", "session": {"agent": "a", "message": "x", "user": user},
    },
    ("TaskHook", "session.user"): lambda user: {
        "source": "mail", "session": {"agent": "a", "message": "x", "user": user},
    },
    ("Channel", "users.user"): lambda user: {**SAMPLES["Channel"], "users": [{"id": "z", "user": user}]},
}  # fmt: skip


async def test_two_channels_have_keys_of_their_own(site: Site) -> None:
    spec = {**SAMPLES["Channel"], "auth": {"secretRef": "one:key"}}
    await site.stored("Channel", "first", spec, by="admin")
    for method, where, more in ways("Channel", "second", spec):
        if method in ("POST",):
            refused = await site.call("admin", method, where, **more)
            assert (refused.status_code, "same Secret" in refused.text) == (409, True), refused.text
    both = [document("Channel", name, {**spec, "auth": {"secretRef": "two"}}) for name in ("a", "b")]
    refused = await site.call("admin", "POST", "/v1/apply", json={"kind": "List", "items": both})
    assert refused.status_code in (400, 409), refused.text
    assert not await site.exists("Channel", "a")
    await site.stored("Channel", "first", {**spec, "mode": "queue"}, by="admin")  # itself


@pytest.mark.parametrize(("kind", "path"), ACTING)
async def test_only_who_may_act_for_a_user_declares_a_field_by_which_work_is_done_for_them(
    site: Site, kind: str, path: str
) -> None:
    spec = NAMING[kind, path]
    await site.stored("Secret", "s", {"stringData": {"value": "sesame-sesame"}, "hosts": ["hooks.example"]})
    for method, where, more in ways(kind, "there", spec("alice")):
        if method in ("PUT", "PATCH"):  # there is nothing yet
            continue
        refused = await site.call("admin", method, where, **more)
        assert (refused.status_code, "impersonator" in refused.text) == (403, True), (method, where, refused.text)
    await site.stored(kind, "there", spec("admin"), by="admin")  # oneself
    for method, where, more in ways(kind, "there", spec("alice"), patch=spec("alice")):
        refused = await site.call("admin", method, where, **more)
        assert (refused.status_code, "impersonator" in refused.text) == (403, True), (method, where, refused.text)
    await site.stored(kind, "other", spec("alice"))  # the operator


# --- and when it is used ---------------------------------------------------------------------------------------------


async def test_a_function_that_was_not_granted_is_not_run_wherever_its_tool_came_from(
    site: Site, tmp_path: Path
) -> None:
    """As if it had come from an older server: written into the store in the name of somebody who is no operator."""
    canary = tmp_path / "canary"
    made = document("Tool", "shell", {"type": "function", "function": "subprocess:getoutput"})
    answer = await site.call("root", "POST", "/v1/tools", json=made)
    stored = answer.json()
    changed = {**stored, "spec": {**stored["spec"], "description": "Runs a command."}}
    await site.runtime.inside.resources.write([Put(changed)], by=DeclaredBy("mallory", operator=False))
    called = await site.call(
        "admin",
        "POST",
        "/v1/tools/shell/call",
        json={"arguments": {"cmd": f"touch {canary}"}},
        params={"namespace": SPACE},
    )
    assert "tool_modules" in called.text, called.text
    assert not canary.exists()


@pytest.fixture
def no_desk() -> Iterator[None]:
    """Forget a module of this name that another test has loaded from another folder, until this one is over."""
    before = sys.modules.pop("desk", None)
    yield
    sys.modules.pop("desk", None)
    if before is not None:
        sys.modules["desk"] = before


@pytest.mark.usefixtures("no_desk")
async def test_a_function_is_granted_by_where_it_is_written(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`desk` is granted; what desk imports is not."""
    (tmp_path / "desk.py").write_text("import os\nfrom os import getcwd\ndef find() -> str:\n    return 'found'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in ("desk:os.getcwd", "desk:find.__globals__", "desk:__builtins__"):
        for method, where, more in ways("Tool", "b", {"type": "function", "function": path}):
            if method == "POST":
                answer = await site.call("author", method, where, **more)
                assert answer.status_code == 403, (path, method, where, answer.text)
    # As if they had come from an older server.
    paths = ("desk:find", "desk:getcwd", "desk:os.getcwd", "desk:find.__globals__")
    for name, function, fits in zip("acde", paths, (True, False, False, False), strict=True):
        await site.stored("Tool", name, {"type": "function", "function": function})
        stored = await site.runtime.inside.resources.get(Key("Tool", SPACE, name))
        changed = {**stored, "spec": {**stored["spec"], "description": "Another."}}
        await site.runtime.inside.resources.write([Put(changed)], by=DeclaredBy("mallory", operator=False))
        path, query = f"/v1/tools/{name}/call", {"namespace": SPACE}
        called = await site.call("admin", "POST", path, json={"arguments": {}}, params=query)
        assert ("found" in called.text) == fits, called.text
        assert called.status_code == (200 if fits else 403), called.text


@pytest.mark.parametrize("arguments", ['{"q": 1}', "{}"])
async def test_a_tool_that_an_agent_was_not_given_is_refused_recorded_and_explained_alike(
    site: Site, arguments: str
) -> None:
    schema = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}
    await site.stored("Tool", "pay", {**SAMPLES["Tool"], "input_schema": schema})
    asked = json.loads(arguments)
    script = [{"call": {"pay": asked}}, {"say": "so"}]
    await site.stored("ModelEndpoint", "m", {"provider": "scripted", "default_model": "m", "script": script})
    await site.stored("Agent", "bare", {"model_ref": "m"})
    result = await site.runtime.run("bare", "go", namespace=SPACE)
    await site.runtime.inside.audit.flush()
    query = {"namespace": SPACE, "limit": "200"}
    records = (await site.call("root", "GET", "/v1/audit", params=query)).json()["records"]
    (kept,) = (each["body"] for each in records if each["body"]["tool"] == "pay" and each["body"]["run_id"])
    question = {"agent": "bare", "tool": "pay", "arguments": asked}
    said = await site.call("root", "POST", "/v1/policies/explain", json=question, params={"namespace": SPACE})
    decided = said.json()["judgement"]["decided"]

    assert (kept["moment"], kept["decision"]["layer"]) == ("refused", decided["layer"]) == ("refused", "advertised")
    assert all("there is no tool named 'pay'" in text for text in (kept["decision"]["message"], decided["reason"]))
    assert kept["run_id"] == result.run_id


async def test_a_call_by_hand_that_needs_an_approval_says_what_to_do_and_names_none(site: Site) -> None:
    await site.stored("Tool", "pay", SAMPLES["Tool"])
    await site.stored(
        "ToolPermission", "ask", {"tool_ref": "pay", "operation_rules": [{"verdict": "approval_required"}]}
    )
    called = await site.call(
        "operator", "POST", "/v1/tools/pay/call", json={"arguments": {}}, params={"namespace": SPACE}
    )
    assert called.status_code == 403, called.text
    assert "foliot approvals grant --tool pay" in called.json()["hint"]
    assert "approval_id" not in called.text


@pytest.mark.parametrize(
    "subject", ["team-a.tool.execute.pay", "$JS.API.STREAM.PURGE.A", "tool.execute.pay", "shared.a b"]
)
async def test_nothing_is_published_where_it_was_not_granted_wherever_the_tool_came_from(
    site: Site, subject: str
) -> None:
    made, _ = validate_document(document("Tool", "q", {"type": "queue", "endpoint": subject}))
    assert made is not None
    await site.runtime.inside.resources.write([Put(made)], by=DeclaredBy("mallory", operator=False))
    with pytest.raises(FoliotError, match="may not be published"):
        await site.runtime.inside.tools.call("q", {}, ToolCaller(SPACE))


async def test_a_program_that_was_not_granted_is_not_started_wherever_its_server_came_from(
    tmp_path: Path,
) -> None:
    canary = tmp_path / "canary"
    script = "open('/data/canary', 'w').close()"
    spec = {"transport": "stdio", "command": sys.executable, "args": ["-c", script], "reconnect": {"max_attempts": 0}}
    spec |= {"sandbox": seen_at(tmp_path)}
    for operator in (False, True):
        made = document("McpServer", "m", spec, uid="1", declaredBy={"user": "mallory", "operator": operator})
        valid, problems = validate_document(made)
        assert valid is not None, problems
        async with fenced_connections() as connections:
            with pytest.raises(ToolError):
                await connections.tools(server_spec(valid))
        assert canary.exists() == operator


async def test_a_refusal_names_every_resource_and_every_role_that_it_takes(site: Site) -> None:
    documents = [
        document("TaskSchedule", "nightly", SAMPLES["TaskSchedule"]),
        document("AgentPolicy", "freeze", SAMPLES["AgentPolicy"]),
        document("Agent", "desk", {"model_ref": "talker", "roles": ["clerk"]}),
    ]
    bundle = {"apiVersion": "v1", "kind": "List", "items": documents}
    said: dict[str, str] = {}
    for who in ("author", "operator", "author and operator"):
        answer = await site.call(who, "POST", "/v1/apply", json=bundle)
        assert answer.status_code == 403, answer.text
        said[who] = answer.json()["detail"]
    both = f"TaskSchedule/nightly in namespace '{SPACE}' needs the roles author and operator"
    policy = f"AgentPolicy/freeze in namespace '{SPACE}' needs the role admin"

    assert f"{both}, of which you lack operator; {policy}" in said["author"]
    assert f"{both}, of which you lack author; {policy}" in said["operator"]
    assert f"Agent/desk in namespace '{SPACE}' needs the role author" in said["operator"]
    assert both not in said["author and operator"]
    assert all(
        f"spec.roles of Agent/desk in namespace '{SPACE}' needs the role admin" in each for each in said.values()
    )
    assert not await site.exists("TaskSchedule", "nightly")


# --- what somebody else put into what is applied ---------------------------------------------------------------------

# The manifest of whoever has more rights, what somebody with fewer makes of it, and what must not stay of that.
PLANTED: dict[str, tuple[str, str, str, dict[str, Any], list[dict[str, Any]], str]] = {
    "an address for a key": (
        *("root", "author", "ModelEndpoint"),
        {"provider": "openai", "default_model": "m", "auth": {"secretRef": "key"}},
        [{"auth": None, "base_url": "https://evil.example/v1"}],
        "evil.example",
    ),
    "a host for a value": (
        *("admin", "author", "Secret"),
        {"stringData": {"token": "real"}},
        [{"data": {"token": None}, "stringData": {"pad": "x"}, "hosts": ["evil.example"]}],
        "evil.example",
    ),
    "a variable for a program": (
        *("root", "admin", "McpServer"),
        {"transport": "stdio", "command": "python3", "args": ["server.py"]},
        [
            {"transport": "http", "endpoint": "https://mcp.example/mcp", "command": None, "args": None},
            {"env": [{"name": "PYTHONPATH", "value": "/evil"}]},
        ],
        "/evil",
    ),
    "words for work": (
        *("admin", "author and operator", "TaskSchedule"),
        {"task_ref": "t", "schedule": "@daily"},
        [{"input": {"order": "injected"}}],
        "injected",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("manager", ["foliot", "mine"])
async def test_nobody_declares_what_somebody_else_planted_unsaid(site: Site, what: str, manager: str) -> None:
    victim, rival, kind, spec, patches, planted = PLANTED[what]
    await site.stored("Secret", "key", {"stringData": {"value": "k"}})
    await site.stored("Task", "t", {"agent": "greeter", "mode": "template"})
    manifest = document(kind, "shared", spec)
    applied = {"namespace": SPACE}
    first = await site.call(victim, "POST", "/v1/apply", json=manifest, params=applied)
    assert first.status_code == 200, first.text
    for patch in patches:
        done = await site.call(
            rival,
            "PATCH",
            f"/v1/{KINDS[kind].plural}/shared",
            json={"spec": patch},
            params={"namespace": SPACE, "fieldManager": manager, "takeOver": "true"},
        )
        assert done.status_code == 200, done.text

    again = await site.call(victim, "POST", "/v1/apply", json=manifest, params=applied)
    assert again.status_code == 409 or planted not in json.dumps(again.json()["outcomes"][0]["resource"]["spec"])
    forced = await site.call(victim, "POST", "/v1/apply", json=manifest, params={**applied, "forceConflicts": "true"})
    assert forced.status_code == 200, forced.text
    assert planted not in json.dumps(forced.json()["outcomes"][0]["resource"]["spec"])


# --- what somebody with more rights changes a part of ----------------------------------------------------------------

# Whoever declared it, what they put there, and what somebody else changes of it.
SHARED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ModelEndpoint": (
        "author",
        {"provider": "openai", "default_model": "m", "base_url": "https://evil.example/v1"},
        {"auth": {"secretRef": "key"}},
    ),
    "Tool": (
        "author",
        {"type": "http", "endpoint": "https://evil.example/", "description": "Leaks."},
        {"auth": {"profile": "bearer", "secretRef": "key"}},
    ),
    "Memory": (
        "author",
        {"type": "vector", "provider": "http", "endpoint": "https://evil.example/"},
        {"auth": {"secretRef": "key"}},
    ),
    "McpServer": (
        "admin",
        {"transport": "http", "endpoint": "https://evil.example/mcp"},
        {"auth": {"profile": "bearer", "secretRef": "key"}},
    ),
    "TaskSchedule": (
        "author and operator",
        {"task_ref": "t", "schedule": "@daily", "input": {"order": "injected"}},
        {"schedule": "@hourly"},
    ),
    "TaskWebhook": (
        "author and operator",
        {"task_ref": "t", "auth": {"secret_ref": "mine"}},
        {"rate_limit": {"requests": 5, "per": "1m"}},
    ),
}


# Something else that is no declaration of a secret.
LESS: dict[str, dict[str, Any]] = {"TaskSchedule": {"schedule": "@weekly"}}


async def declared_by(site: Site, kind: str) -> dict[str, Any]:
    return (await site.runtime.inside.resources.get(Key(kind, SPACE, "shared")))["metadata"]["declaredBy"]


async def changed(site: Site, who: str, kind: str, way: str, change: dict[str, Any], **query: str) -> httpx.Response:
    """A part of it changed by `who`, as people do it."""
    where, params = f"/v1/{KINDS[kind].plural}/shared", {"namespace": SPACE, **query}
    if way == "PATCH":
        return await site.call(who, "PATCH", where, json={"spec": change}, params=params)
    read = (await site.call(who, "GET", where, params={"namespace": SPACE})).json()
    read["spec"] |= change
    if way == "POST":
        return await site.call(who, "POST", f"/v1/{KINDS[kind].plural}", json=read, params=params)
    return await site.call(who, "PUT", where, json=read, params=params)


@pytest.mark.parametrize("kind", SHARED)
async def test_a_part_that_the_operator_changes_raises_nothing_that_somebody_else_put_there(
    site: Site, kind: str
) -> None:
    rival, spec, change = SHARED[kind]
    for secret in ("key", "mine"):
        await site.stored("Secret", secret, {"stringData": {"value": "k"}, "hosts": ["webhook"]})
    await site.stored("Task", "t", {"agent": "greeter", "mode": "template"})
    his = {"user": rival.replace(" ", "-"), "operator": False}
    for way in ("PATCH", "PUT", "POST", "edit"):
        await site.stored(kind, "shared", spec, by=rival)
        assert await declared_by(site, kind) == his
        if way == "edit":
            client = LocalResources(site.runtime.inside.resources, by=DeclaredBy("me", operator=True))
            read = await client.get(kind, "shared", namespace=SPACE)
            said = (await client.replace({**read, "spec": {**read["spec"], **change}})).warning
        else:
            answer = await changed(site, "root", kind, way, change)
            assert answer.status_code == 200, answer.text
            said = answer.headers.get("Warning", "")
        assert await declared_by(site, kind) == his, way
        assert "stays declared by" in said, way
    # Labels are nobody's declaration either.
    labels = {"metadata": {"labels": {"seen": "yes"}}}
    where = f"/v1/{KINDS[kind].plural}/shared"
    answer = await site.call("root", "PATCH", where, json=labels, params={"namespace": SPACE})
    assert answer.status_code == 200, answer.text
    assert "Warning" not in answer.headers
    assert await declared_by(site, kind) == his

    taken = await changed(site, "root", kind, "PATCH", {}, takeOver="true")
    assert taken.status_code == 200, taken.text
    assert (await declared_by(site, kind))["operator"] is True
    # And back: whoever has fewer rights lowers it with what they change, whatever way they take.
    for way in ("PATCH", "PUT"):
        lowered = await changed(site, rival, kind, way, {**dict.fromkeys(change), **spec, **LESS.get(kind, {})})
        assert lowered.status_code == 200, lowered.text
        assert await declared_by(site, kind) == his


@pytest.mark.parametrize("kind", SHARED)
async def test_an_apply_that_says_all_of_it_makes_it_the_appliers(site: Site, kind: str) -> None:
    rival, spec, _ = SHARED[kind]
    for secret in ("key", "mine"):
        await site.stored("Secret", secret, {"stringData": {"value": "k"}, "hosts": ["webhook"]})
    await site.stored("Task", "t", {"agent": "greeter", "mode": "template"})
    await site.stored(kind, "shared", spec, by=rival)
    manifest = document(kind, "shared", spec)
    for expected in ("updated", "unchanged"):
        answer = await site.call("root", "POST", "/v1/apply", json=manifest, params={"namespace": SPACE})
        assert answer.status_code == 200, answer.text
        assert answer.json()["outcomes"][0]["action"] == expected
        assert (await declared_by(site, kind))["operator"] is True


@pytest.mark.parametrize(("kind", "way"), [("TaskSchedule", "PATCH"), ("TaskWebhook", "PUT")])
async def test_nobody_acts_in_the_name_of_whoever_changed_a_part(site: Site, kind: str, way: str) -> None:
    rival, spec, change = SHARED[kind]
    await site.stored("Secret", "mine", {"stringData": {"value": "k"}, "hosts": ["webhook"]})
    await site.stored("Task", "t", {"agent": "greeter", "mode": "template"})
    await site.stored(kind, "shared", spec, by=rival)
    his = await declared_by(site, kind)

    refused = await changed(site, "admin", kind, way, change)
    assert refused.status_code == 409, refused.text
    assert "takeOver" in refused.json()["hint"]
    stopped = await changed(site, "admin", kind, way, {"suspend": True})
    assert stopped.status_code == 200, stopped.text
    assert await declared_by(site, kind) == his
    taken = await changed(site, "admin", kind, way, change, takeOver="true")
    assert taken.status_code == 200, taken.text
    assert (await declared_by(site, kind))["user"] != his["user"]


@pytest.mark.parametrize(("who", "way"), [("root", "PATCH"), ("admin", "PUT")])
async def test_a_new_value_does_not_go_where_somebody_else_chose(site: Site, who: str, way: str) -> None:
    await site.stored("Secret", "shared", {"stringData": {"pad": "x"}, "hosts": ["evil.example"]}, by="author")
    value = {"stringData": {"token": "real"}}
    refused = await changed(site, who, "Secret", way, value)
    assert refused.status_code == 409, refused.text
    assert "evil.example" in refused.json()["detail"]
    stored = await site.runtime.inside.resources.reveal(Key("Secret", SPACE, "shared"))
    assert "token" not in stored
    moved = await changed(site, who, "Secret", way, {**value, "hosts": ["api.example"]})
    assert moved.status_code == 200, moved.text
    revealed = await site.runtime.inside.resources.reveal(Key("Secret", SPACE, "shared"))
    assert revealed.hosts == ("api.example",)


async def test_nobody_is_told_whether_a_guess_of_a_secret_is_right(site: Site) -> None:
    await site.stored("Secret", "shared", {"stringData": {"pin": "0142"}}, by="admin")
    where = f"/v1/{KINDS['Secret'].plural}/shared"
    version = (await site.runtime.inside.resources.get(Key("Secret", SPACE, "shared")))["metadata"]["resourceVersion"]
    dry = {"namespace": SPACE, "dryRun": "All"}

    async def told(who: str, guess: str) -> list[Any]:
        made = document("Secret", "shared", {"stringData": {"pin": guess}})
        answers = [
            await site.call(who, "POST", "/v1/apply", json=made, params=dry),
            await site.call(who, "POST", "/v1/apply", json=made, params={**dry, "fieldManager": "zz"}),
            await site.call(
                who, "POST", "/v1/apply", json=made, params={**dry, "fieldManager": "zz", "forceConflicts": "true"}
            ),
            await site.call(who, "PATCH", where, json={"spec": made["spec"]}, params=dry),
            await site.call(who, "PUT", where, json=made, params=dry, headers={"If-Match": f'"{version}"'}),
            await site.call(who, "POST", "/v1/secrets", json=made, params=dry),
        ]
        return [(answer.status_code, answer.json()) for answer in answers]

    assert await told("author", "0142") == await told("author", "0143")
    assert await told("admin", "0142") != await told("admin", "0143")


@pytest.mark.parametrize("body", ["# nothing\n---\n# here either\n", ""])
async def test_an_empty_body_prunes_only_when_that_is_said(site: Site, body: str) -> None:
    labelled = document("Memory", "old", {}, labels={"app": "desk"})
    assert (await site.call("root", "POST", "/v1/apply", json=labelled)).status_code == 200
    query = {"prune": "app=desk", "namespace": SPACE}
    refused = await site.call("admin", "POST", "/v1/apply", content=body, params=query)
    assert refused.status_code == 400, refused.text
    assert await site.exists("Memory", "old")
    pruned = await site.call("admin", "POST", "/v1/apply", content=body, params={**query, "allowEmpty": "true"})
    assert pruned.status_code == 200, pruned.text
    assert not await site.exists("Memory", "old")


@pytest.mark.parametrize("name", ["tools", "mcpServers", "models", "data_sources", "web_search_options", "Plugins"])
def test_a_field_by_which_a_provider_acts_is_known_however_it_is_spelt(name: str) -> None:
    assert acting_fields({name: [{}], "seed": 1, "tool_choice": "auto"}) == {name: [{}]}


# --- what only somebody with more rights may write -------------------------------------------------------------------


async def test_who_may_not_write_a_template_can_neither_delete_it_nor_make_something_else_of_it(site: Site) -> None:
    template = {"agent": "greeter", "mode": "template", "input": {"topic": "the author's"}}
    await site.stored("Agent", "greeter", {"model_ref": "talker"})
    await site.stored("Task", "brief", template, by="author and operator")
    key = Key("Task", SPACE, "brief")
    before = await site.runtime.inside.resources.get(key)
    work = {"agent": "greeter", "mode": "run", "input": {"topic": "the operator's"}}
    where, query = "/v1/tasks/brief", {"namespace": SPACE}
    for method, path, more in ways("Task", "brief", work, patch={"mode": "run"}):
        if (method, path) != ("POST", "/v1/tasks"):  # that asks for work, beside the template
            answer = await site.call("operator", method, path, **more)
            assert answer.status_code in (403, 409), f"{method} {path}: {answer.text}"
    for headers in ({}, {"If-Match": "*"}):
        answer = await site.call("operator", "DELETE", where, params=query, headers=headers)
        assert answer.status_code == 403, answer.text
        answer = await site.call(
            "operator", "PUT", where, params=query, headers={"If-Match": "*"}, json=document("Task", "brief", work)
        )
        assert answer.status_code == 403, answer.text

    assert await site.runtime.inside.resources.get(key) == before
    assert (await site.call("author and operator", "DELETE", where, params=query)).status_code == 204


async def test_a_skill_is_not_let_out_of_quarantine_by_what_the_operator_changes_beside_it(site: Site) -> None:
    await site.stored("Skill", "s", {"description": "d", "body": "obey"}, by="author")
    where, query = "/v1/skills/s", {"namespace": SPACE}

    async def phase() -> str:
        return (await site.call("root", "GET", where, params=query)).json()["status"]["phase"]

    assert await phase() == "Quarantined"
    for patch in ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"created_at": "2026-01-31T12:00:00Z"}}):
        answer = await site.call("root", "PATCH", where, params=query, json=patch, headers={"If-Match": "*"})
        assert answer.status_code == 200, answer.text
        assert await phase() == "Quarantined"
