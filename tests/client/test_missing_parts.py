"""Whoever declares something that names what is not there is told so, by every way there is, and nothing is stored.

What was taken all the same is told of in its status, by `doctor`, and by each run in its scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from foliot import Agent, Command, ModelEndpoint, ScriptedModel, parse_manifests
from foliot.cli.doctor.boundary import look_at_boundary
from foliot.common.cancellation import stop_tasks
from foliot.engine.explain.trace import trace_of
from foliot.errors import InvalidInput, NotFound
from foliot.kernel.run.events import RunCreated
from foliot.resources.checks import check_references
from foliot.resources.problems import ManifestError
from foliot.resources.references import FIELDS
from foliot.store.base import Document, Filter
from foliot.store.queue.placement import Offer
from tests.client.conftest import Both, Site

DESK = """
kind: ModelEndpoint
metadata: {name: m}
spec: {provider: scripted, default_model: m, script: [{say: '{"category": "bug"}'}]}
---
kind: Tool
metadata: {name: refund}
spec: {type: http, endpoint: "http://127.0.0.1:9/refund"}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: m, tools: ["agent:helper"]}
---
kind: Agent
metadata: {name: helper}
spec: {model_ref: m}
"""
RULE = """
kind: ToolPermission
metadata: {name: guard}
spec: {tool_ref: refnd, operation_rules: [{operation_class: write, verdict: approval_required}]}
"""
SCHEMA = {"type": "object", "properties": {"category": {"enum": ["bug", "idea"]}}}


def system(when: Any, on_failure: str = "fail", schema: Any = SCHEMA, category: str = "bug") -> list[Document]:
    said = f'{{"category": "{category}"}}'
    script = {"provider": "scripted", "default_model": "s", "script": [{"say": said}]}
    edge = {"to": "solver", "when": when, "on_failure": on_failure}
    asker = {"model_ref": "s", **({"output_schema": schema} if schema else {})}
    return [
        {"kind": "ModelEndpoint", "metadata": {"name": "s"}, "spec": script},
        {"kind": "ModelEndpoint", "metadata": {"name": "e"}, "spec": {"provider": "scripted", "script": "echo"}},
        {"kind": "Agent", "metadata": {"name": "triage"}, "spec": asker},
        {"kind": "Agent", "metadata": {"name": "solver"}, "spec": {"model_ref": "e"}},
        {
            "kind": "AgentSystem",
            "metadata": {"name": "team"},
            "spec": {"agents": ["triage", "solver"], "graph": {"triage": {"edges": [edge]}}},
        },
    ]


def named(kind: str, field: str) -> Document:
    """A document in which one field names something; the rest does not matter to what looks for it."""
    spec: Any = "nowhere"
    for step in reversed(field.split(".")):
        spec = {step: spec}
    more = {"standing": True} if (kind, field) == ("ToolApproval", "agent") else {}
    return {"kind": kind, "metadata": {"name": "it", "namespace": "default"}, "spec": {"provider": "x", **spec, **more}}


ROWS = [(kind, field) for kind, rows in FIELDS.items() for field, _, _ in rows]


@pytest.mark.parametrize(("kind", "field"), [row for row in ROWS if row != ("ToolApproval", "task_ref")])
def test_each_field_that_names_something_is_held_against_what_is_there(kind: str, field: str) -> None:
    found = check_references([named(kind, field)], lambda kind, namespace, name: False)
    missing = [problem for _, problem in found if problem.missing]
    assert [(problem.severity, problem.field) for problem in missing] == [("error", f"spec.{field}")]
    there = check_references([named(kind, field)], lambda kind, namespace, name: True)
    assert [problem for _, problem in there if problem.missing] == []


def resource(kind: str, **spec: Any) -> Document:
    return {"kind": kind, "metadata": {"name": "it", "namespace": "default"}, "spec": spec}


def schema_of(*required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"category": {"type": "string"}}, "required": [*required], **more}


HTTP = {"type": "http", "endpoint": "http://127.0.0.1:9/x"}
# Whatever else names something, in words of its own: (document, its place, what was probably meant).
SPOKEN_WRONGLY: list[tuple[Document, str, str]] = [
    (resource("AgentRole", permissions=["tool:refnd:invoke"]), "spec.permissions[0]", "did you mean refund?"),
    (resource("AgentRole", permissions=["Tool: Refnd : invoke"]), "spec.permissions[0]", "did you mean refund?"),
    (resource("AgentRole", permissions=["tool:agent:hepler:invoke"]), "spec.permissions[0]", "did you mean helper?"),
    (resource("AgentRole", permissions=["tol:refund:invoke"]), "spec.permissions[0]", "tool:refund:invoke?"),
    (resource("AgentRole", permissions=["Tools: Refund :invoke"]), "spec.permissions[0]", "tool: Refund :invoke?"),
    (
        resource("ToolPermission", tool_ref="refund", required_permissions=["tool:refund:invoke", "tol:bash:invoke"]),
        "spec.required_permissions[1]",
        "tool:bash:invoke?",
    ),
    (
        resource("ToolPermission", tool_ref="refund", required_permissions=["tool:refnd:invoke"]),
        "spec.required_permissions[0]",
        "did you mean refund?",
    ),
    (
        resource("ReferenceGrant", **{"from": [{"namespace": "b"}], "to": [{"kind": "ModelEndpoint", "name": "mm"}]}),
        "spec.to[0].name",
        "mm",
    ),
    (resource("AgentPolicy", blocked_tools=["re-fund"]), "spec.blocked_tools[0]", "did you mean refund?"),
    (resource("ToolPermission", tool_ref="refund", target_agents=["dsek"]), "spec.target_agents[0]", "mean desk?"),
    (resource("AgentRole", permissions=["tool:docs__search:invoke"]), "spec.permissions[0]", 'tool "docs__search"'),
    (resource("AgentPolicy", target_systems=["default/nosys"]), "spec.target_systems[0]", "nosys"),
    (resource("ToolApproval", standing=True, tool="refund", agent="dsek"), "spec.agent", "did you mean desk?"),
    (resource("ModelEndpoint", provider="opnai", default_model="m"), "spec.provider", "did you mean openai?"),
    (
        resource("ModelEndpoint", provider="openai-compatable", default_model="m"),
        "spec.provider",
        "did you mean openai-compatible?",
    ),
    (
        resource("Agent", model_ref="m", output_schema=schema_of("categry")),
        "spec.output_schema.required[0]",
        "did you mean category?",
    ),
    (
        resource("Tool", **HTTP, input_schema={"type": "object", "properties": {"a": schema_of("categry")}}),
        "spec.input_schema.properties.a.required[0]",
        "did you mean category?",
    ),
]


@pytest.mark.parametrize(("document", "place", "said"), SPOKEN_WRONGLY)
async def test_whatever_names_something_that_is_not_there_is_refused_or_taken_and_told(
    both: Both, document: Document, place: str, said: str
) -> None:
    await both.client.resources.apply(parse_manifests(DESK))
    with pytest.raises(ManifestError) as told:
        await both.client.resources.apply([document])
    assert [(each.severity, each.field) for each in told.value.findings if each.severity == "error"] == [
        ("error", place)
    ]
    assert said in str(told.value)
    assert "allow" in (told.value.hint or "")

    applied = await both.client.resources.apply([document], allow_missing=True)
    assert any(said in warning for warning in applied.warnings)
    status = (await both.client.resources.get(document["kind"], "it"))["status"]
    assert said in status["conditions"][0]["message"]
    assert status["phase"] in ("Error", "Approved", "Pending")


@pytest.mark.parametrize(
    "document",
    [
        resource(
            "AgentRole", permissions=["payments:write", "capability:pay", "tool:refund:invoke", "Tool:REFUND:read"]
        ),
        resource("AgentRole", permissions=["tool:bash:invoke", "tool:Write_File:invoke", "tool:agent:helper:invoke"]),
        # Words of people's own, however much they resemble those that Foliot demands.
        resource(
            "AgentRole", permissions=["pool:resize", "tools:reload", "toolbox:open", "capabilty:pay", "tol:invoke"]
        ),
        resource("AgentRole", permissions=["tool:refund:involve", "pool:north:invoke", "tools:reload:invoke"]),
        resource("ToolPermission", tool_ref="refund", required_permissions=["cool:down", "tool:refund:invok"]),
        # As rules compare them when a call is made.
        resource("ToolPermission", tool_ref="Refund", target_agents=["default/Desk"]),
        resource("AgentPolicy", target_tasks=["nightly", "default/posted-by-hand"], blocked_tools=["agent:Desk"]),
        resource("Agent", model_ref="m", allowed_tools=["REFUND", "Write-File", "Agent:helper"]),
        resource("ReferenceGrant", **{"from": [{"namespace": "b"}], "to": [{"kind": "ModelEndpoint"}]}),
        resource("AgentPolicy", apply_mode="global", allowed_models=["gpt-5"]),
        resource("Agent", model_ref="m", output_schema=schema_of("x", additionalProperties=True)),
        resource("Agent", model_ref="m", output_schema=schema_of("x", patternProperties={"x": {}})),
        resource("Agent", model_ref="m", output_schema=schema_of("x", allOf=[{"properties": {"x": {}}}])),
        resource(
            "Agent",
            model_ref="m",
            output_schema=schema_of("x", **{"$ref": "#/$defs/d", "$defs": {"d": {"properties": {"x": {}}}}}),
        ),
        resource("Agent", model_ref="m", output_schema={"anyOf": [schema_of("x"), {"type": "null"}]}),
        resource("Agent", model_ref="m", output_schema={"type": "object", "required": ["x"]}),
        resource(
            "Tool",
            type="http",
            endpoint="http://127.0.0.1:9/{id}",
            input_schema=schema_of("id") | {"properties": {"id": {}}},
        ),
        resource("Tool", type="http", endpoint="http://127.0.0.1:9/{id}"),
        resource(
            "Tool",
            type="http",
            endpoint="http://127.0.0.1:9/{id}",
            input_schema={"type": "object", "properties": {}, "additionalProperties": True},
        ),
        *(
            resource("Tool", type="http", endpoint="http://127.0.0.1:9/{id}", input_schema=schema_of(**more))
            for more in (
                {"patternProperties": {"^i": {}}},
                {"anyOf": [{"properties": {"id": {}}}]},
                {"oneOf": [{"$ref": "#/$defs/d"}], "$defs": {"d": {"properties": {"id": {}}}}},
                {"allOf": [{"properties": {"id": {}}}]},
            )
        ),
    ],
)
async def test_what_is_there_or_may_be_is_taken(both: Both, document: Document) -> None:
    await both.client.resources.apply(parse_manifests(DESK))
    await both.client.resources.apply([document])


@pytest.mark.parametrize("place", ["endpoint", "http.query.q", "http.headers.X-Id"])
async def test_an_argument_that_a_request_names_is_one_of_the_tool(both: Both, place: str) -> None:
    spec: dict[str, Any] = {"type": "http", "endpoint": "http://127.0.0.1:9/x", "http": {"query": {}, "headers": {}}}
    *path, last = place.split(".")
    inner = spec
    for step in path:
        inner = inner[step]
    inner[last] = "http://127.0.0.1:9/orders/{order.idd}" if place == "endpoint" else "{order.idd}"
    spec["input_schema"] = {"type": "object", "properties": {"order.id": {"type": "string"}}}
    with pytest.raises(ManifestError, match=r"order\.idd") as told:
        await both.client.resources.apply([resource("Tool", **spec)])
    assert "did you mean order.id?" in str(told.value)
    assert "allow" in (told.value.hint or "")
    await both.client.resources.apply([resource("Tool", **spec)], allow_missing=True)
    assert "order.idd" in (await both.client.resources.get("Tool", "it"))["status"]["conditions"][0]["message"]


@pytest.mark.parametrize("name", ["docs--search", "docs__search", "Docs--Search"])
@pytest.mark.parametrize(
    ("kind", "field", "text"),
    [
        ("AgentRole", "permissions", "tool:{}:invoke"),
        ("AgentPolicy", "blocked_tools", "{}"),
        ("Agent", "allowed_tools", "{}"),
    ],
)
async def test_rules_may_name_what_an_mcp_server_will_offer(
    both: Both, name: str, kind: str, field: str, text: str
) -> None:
    server = {"transport": "http", "endpoint": "http://127.0.0.1:9/mcp"}
    await both.client.resources.apply(parse_manifests(DESK))
    document = resource(kind, **{field: [text.format(name)]}, **({"model_ref": "m"} if kind == "Agent" else {}))
    with pytest.raises(ManifestError):
        await both.client.resources.apply([document])
    await both.client.resources.apply([{"kind": "McpServer", "metadata": {"name": "docs"}, "spec": server}])
    await both.client.resources.apply([document])
    assert "conditions" not in (await both.client.resources.get(kind, "it"))["status"]


async def test_a_role_that_is_given_away_may_be_about_tools_of_others(both: Both) -> None:
    def shared(kind: str, name: str, **spec: Any) -> Document:
        return {"kind": kind, "metadata": {"name": name, "namespace": "shared"}, "spec": spec}

    def grant(role: str, namespace: str) -> Document:
        sides = {"from": [{"kind": "Agent", "namespace": namespace}], "to": [{"kind": "AgentRole", "name": role}]}
        return shared("ReferenceGrant", "g", **sides)

    payer = shared("AgentRole", "payer", permissions=["tool:refund:invoke", "tool:agent:desk:invoke"])
    clerk = shared("AgentRole", "clerk", permissions=["tool:refund:invoke"])
    rule = shared("ToolPermission", "rule", tool_ref="refund")
    await both.client.resources.apply(parse_manifests(DESK))
    for at_home in ([payer], [payer, grant("clerk", "default")]):
        with pytest.raises(ManifestError, match="refund"):
            await both.client.resources.apply(at_home)
    await both.client.resources.apply([payer, grant("payer", "default"), shared("AgentRole", "other")])
    await both.client.resources.apply([payer])
    for wrong in (rule, clerk):
        with pytest.raises(ManifestError, match="refund"):
            await both.client.resources.apply([payer, wrong])
    told = (await both.client.resources.get("AgentRole", "payer", namespace="shared"))["status"]
    assert "conditions" not in told


def test_an_endpoint_made_in_python_is_held_to_it_too() -> None:
    with pytest.raises(ManifestError, match="did you mean openai"):
        ModelEndpoint("opnai", "gpt")
    assert ModelEndpoint("openai", "gpt").document["spec"]["provider"] == "openai"


async def test_a_rule_about_a_tool_that_does_not_exist_is_refused_with_all_that_came_with_it(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(DESK))
    role = "\n---\nkind: AgentRole\nmetadata: {name: clerk}\nspec: {permissions: ['tool:refund:invoke']}\n"

    with pytest.raises(InvalidInput) as told:
        await both.client.resources.apply(parse_manifests(RULE + role))

    assert "spec.tool_ref" in str(told.value)
    assert "did you mean refund?" in str(told.value)
    assert "allow" in (told.value.hint or "")
    assert (await both.client.resources.list(Filter("AgentRole", "default"))).items == []


async def test_a_bundle_brings_the_missing_part_in_any_order(both: Both) -> None:
    documents = parse_manifests(DESK + "---" + RULE.replace("refnd", "refund"))
    await both.client.resources.apply(documents[::-1])
    assert (await both.client.resources.get("ToolPermission", "guard"))["status"]["phase"] == "Ready"


async def test_what_is_taken_all_the_same_is_told_in_its_status_until_the_part_comes(both: Both) -> None:
    applied = await both.client.resources.apply(parse_manifests(RULE), allow_missing=True)

    assert any("refnd" in warning for warning in applied.warnings)
    for status in (
        (await both.client.resources.get("ToolPermission", "guard"))["status"],
        (await both.client.resources.list(Filter("ToolPermission", "default"))).items[0]["status"],
    ):
        (condition,) = status["conditions"]
        assert (status["phase"], condition["reason"]) == ("Error", "PartsMissing")
        assert 'references missing tool "refnd"' in condition["message"]

    tool = DESK.split("---")[1].replace("name: refund", "name: refnd")
    await both.client.resources.apply(parse_manifests(tool))
    status = (await both.client.resources.get("ToolPermission", "guard"))["status"]
    assert (status["phase"], status.get("conditions")) == ("Ready", None)


async def test_each_run_in_its_scope_says_what_is_missing_and_so_does_doctor(both: Both) -> None:
    helper = DESK.removesuffix("{model_ref: m}\n") + "{model_ref: m, tools: [rfund]}\n"
    await both.client.resources.apply(parse_manifests(helper + "---" + RULE), allow_missing=True)

    run = await both.runtime.run("desk", "hello", run_id="told")

    assert run.phase == "succeeded"
    events = await both.work.runs.events("told")
    created = events[0][1]
    assert isinstance(created, RunCreated)
    assert ["refnd" in text or "rfund" in text for text in created.missing] == [True, True]
    assert [mark.kind for mark in trace_of("told", events).before] == ["missing", "missing"]
    why = await both.work.runs.why("told")
    assert any("refnd" in line for line in why.way)
    inside = both.runtime.inside
    findings = [each async for each in look_at_boundary(inside.settings, inside.resources, lambda: 0.0)]
    assert sum(each.check == "boundary.missing" and each.level == "warning" for each in findings) == 2

    await both.client.resources.delete("ToolPermission", "guard")
    await both.runtime.run("desk", "hello", run_id="later")
    created = (await both.work.runs.events("later"))[0][1]
    assert isinstance(created, RunCreated)
    assert len(created.missing) == 1


async def test_a_change_elsewhere_is_not_refused_for_a_part_that_was_missing_before(both: Both) -> None:
    await both.client.resources.apply(parse_manifests(RULE), allow_missing=True)
    document = await both.client.resources.get("ToolPermission", "guard")

    document["spec"]["action"] = "read"
    document.pop("status")
    assert (await both.client.resources.replace(document)).action == "updated"

    document = await both.client.resources.get("ToolPermission", "guard")
    document["spec"]["tool_ref"] = "refudn"
    document.pop("status")
    with pytest.raises(InvalidInput, match="refudn"):
        await both.client.resources.replace(document)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ('value.categroy == "bug"', "did you mean category?"),
        ('value.category == "bgu"', "did you mean bug?"),
        ({"category": "idae"}, "did you mean idea?"),
        ({"kind": "bug"}, "it has category"),
    ],
)
async def test_a_condition_on_what_no_answer_can_have_is_refused(both: Both, when: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match="graph") as told:
        await both.client.resources.apply(system(when))
    assert said in str(told.value)
    await both.client.resources.apply(system('value.category == "bug"'))


async def test_the_fields_of_an_agent_without_a_schema_are_never_there(both: Both) -> None:
    with pytest.raises(InvalidInput, match="has no output_schema"):
        await both.client.resources.apply(system("value.category == 'bug'", schema=None))


# An open schema: nobody can know before whether the field comes.
OPEN = {"type": "object", "additionalProperties": True, "properties": {"category": {"type": "string"}}}


@pytest.mark.parametrize("on_failure", ["fail", "forward", "skip"])
async def test_a_condition_that_cannot_be_evaluated_is_never_no(site: Site, on_failure: str) -> None:
    await site.runtime.resources.apply(system("value.urgency > 3", on_failure, OPEN))
    inside = site.runtime.inside
    async with _working(site):
        await site.runtime.tasks.submit(Command("system", "team", message="it broke", name="t"))
        task = await site.runtime.tasks.wait("t", timeout=60)

    why = await site.runtime.tasks.why("t")
    told = f"{await site.runtime.tasks.events('t')} {task.summary} {why}"
    assert "the condition 'value.urgency > 3' of the edge triage -> solver cannot be evaluated" in told
    match on_failure:
        case "fail":
            assert task.phase == "dead_lettered"
            assert "condition_failed" in str(task.summary)
        case "forward":
            assert task.phase == "succeeded"
        case _:
            assert task.phase == "succeeded"
            assert "every branch was skipped" in told
    runs = await inside.runs.journal.list(namespace="default", limit=10)
    assert len([info for info in runs if info.agent == "triage"]) == 1  # it is not tried again


async def test_over_http_a_single_declaration_is_refused_and_an_older_one_is_taken_and_told(site: Site) -> None:
    document = {"kind": "Agent", "metadata": {"name": "a"}, "spec": {"model_ref": "nowhere"}}
    async with _http(site) as http:
        refused = await http.post("/v1/agents", json={"apiVersion": "foliot.dev/v1", **document})
        assert refused.status == 422, await refused.text()
        assert "did you mean" not in await refused.text()
        assert (await refused.json())["errors"][0]["field"] == "spec.model_ref"
        assert (await http.get("/v1/agents/a")).status == 404

        taken = await http.post("/v1/agents", json={"apiVersion": "orloj.dev/v1", **document})
        assert taken.status == 201, await taken.text()
        status = (await (await http.get("/v1/agents/a")).json())["status"]
        assert (status["phase"], status["conditions"][0]["reason"]) == ("Error", "PartsMissing")

        asked = await http.post(
            "/v1/agents?allowMissing=true",
            json={**document, "apiVersion": "foliot.dev/v1", "metadata": {"name": "b"}},
        )
        assert asked.status == 201
        assert "nowhere" in asked.headers["Warning"]


async def test_the_answer_to_a_declaration_is_what_is_stored(site: Site) -> None:
    spec = {"model_ref": "nowhere"}
    async with _http(site) as http:
        for version, query in (("orloj.dev/v1", ""), ("foliot.dev/v1", "?allowMissing=true")):
            for verb, more in (("post", {}), ("put", {"description": "more"}), ("patch", {"description": "less"})):
                body: Any = {"spec": {**spec, **more}}
                path, headers = "/v1/agents", {"If-Match": "*"}
                if verb != "post":
                    path = "/v1/agents/a"
                if verb == "patch":
                    headers["Content-Type"] = "application/merge-patch+json"
                else:
                    body |= {"apiVersion": version, "kind": "Agent", "metadata": {"name": "a"}}
                if verb == "post":
                    headers = {}
                else:
                    headers["If-Match"] = (await (await http.get("/v1/agents/a")).json())["metadata"]["resourceVersion"]
                answer = await http.request(verb, path + query, json=body, headers=headers)
                assert answer.status in (200, 201), await answer.text()
                told = (await answer.json())["status"]
                assert (told["phase"], told["conditions"][0]["type"]) == ("Error", "PartsPresent"), (verb, version)
                for where in ("/v1/agents/a", "/v1/agents/a/status"):
                    assert (await (await http.get(where)).json())["status"] == told, (verb, version, where)


async def test_the_outcome_of_apply_is_what_is_stored(both: Both) -> None:
    (outcome,) = (await both.client.resources.apply([resource("Agent", model_ref="no")], allow_missing=True)).outcomes
    assert outcome.document["status"] == (await both.client.resources.get("Agent", "it"))["status"]
    assert outcome.document["status"]["phase"] == "Error"
    document = outcome.document
    document["spec"]["description"] = "changed"
    document.pop("status")
    changed = await both.client.resources.replace(document)
    assert changed.document["status"] == (await both.client.resources.get("Agent", "it"))["status"]
    assert changed.document["status"]["phase"] == "Error"


async def test_a_template_for_what_does_not_exist_is_refused_on_every_way(site: Site) -> None:
    def template(version: str = "foliot.dev/v1", **spec: Any) -> Document:
        task = {"kind": "Task", "metadata": {"name": "t"}, "spec": {"mode": "template", **spec}}
        return {"apiVersion": version, **task}

    nowhere, schedule = template(system="nosys"), {"task_ref": "t", "schedule": "@daily"}
    on_it = {"apiVersion": "foliot.dev/v1", "kind": "TaskSchedule", "metadata": {"name": "s"}, "spec": schedule}
    async with _http(site) as http:
        for ways in ("/v1/tasks", "/v1/tasks?dryRun=true", "/v1/apply"):
            refused = await http.post(ways, json=nowhere)
            assert refused.status == 422, await refused.text()
            assert (await refused.json())["errors"][0]["field"] == "spec.system"
        assert (await http.post("/v1/task-schedules", json=on_it)).status == 422

        await site.runtime.resources.apply(parse_manifests(DESK))
        made = await http.post("/v1/tasks", json=template(agent="desk"))
        assert made.status == 201, await made.text()
        version = {"If-Match": (await made.json())["metadata"]["resourceVersion"]}
        assert (await http.put("/v1/tasks/t", json=nowhere, headers=version)).status == 422
        patch = {"spec": {"agent": "dsek"}}
        refused = await http.patch("/v1/tasks/t", json=patch, headers={"Content-Type": "application/merge-patch+json"})
        assert refused.status == 422, await refused.text()
        assert "did you mean desk?" in await refused.text()

        taken = await http.put("/v1/tasks/t?allowMissing=true", json=nowhere, headers=version)
        assert taken.status == 200, await taken.text()
        assert (await taken.json())["status"]["phase"] == "Error"
        # Work is accepted, and fails: docs/tasks.md, "In any order".
        work = {**nowhere, "metadata": {"name": "w"}, "spec": {"mode": "run", "system": "nosys"}}
        assert (await http.post("/v1/tasks", json=work)).status == 201


async def test_a_secret_of_the_environment_is_there_for_what_the_operator_declares(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = "{provider: openai, default_model: x, auth: {secretRef: shop-key}}"
    manifest = f"kind: ModelEndpoint\nmetadata: {{name: m}}\nspec: {spec}\n"
    with pytest.raises(ManifestError, match="missing secret"):
        await site.runtime.resources.apply(parse_manifests(manifest))

    monkeypatch.setenv("FOLIOT_SECRET_SHOP_KEY", "k")
    await site.runtime.resources.apply(parse_manifests(manifest))


@pytest.mark.parametrize("name", ["", "  "])
async def test_a_blank_tool_name_is_invalid_before_anything_is_asked(both: Both, name: str) -> None:
    with pytest.raises(InvalidInput, match="names no tool"):
        await both.work.tools.call(name, {})
    with pytest.raises(InvalidInput):
        await both.work.tools.accept("nowhere", name, "0" * 64, {})


@asynccontextmanager
async def _working(site: Site) -> AsyncGenerator[None]:
    inside = site.runtime.inside
    worker = inside.tasking.worker(Offer("here", inside.runs.worker, capacity=2))
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await stop_tasks(task)


@asynccontextmanager
async def _http(site: Site) -> AsyncGenerator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {await site.token()}"}
    async with aiohttp.ClientSession(site.url, headers=headers, trust_env=False) as session:
        yield session


async def test_python_is_told_of_a_tool_that_its_agents_do_not_have(site: Site) -> None:
    await site.runtime.resources.apply(parse_manifests(DESK))
    model = ScriptedModel("echo")
    with pytest.raises(NotFound, match="refnd") as told:
        await site.runtime.run(Agent("clerk", model=model, tools=["refnd"]), "go")
    assert told.value.hint == "did you mean refund?"

    helper = Agent("aide", model=model, tools=["refnd"])
    with pytest.raises(ManifestError, match="did you mean refund") as refused:
        await site.runtime.run(Agent("boss", model=model, tools=[helper]), "go", run_id="boss")
    assert [each.field for each in refused.value.findings] == ["spec.tools[0]"]
