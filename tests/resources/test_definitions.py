"""Defaults and rules of every kind, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from foliot.resources.kinds import KINDS, phase_of, with_phase
from foliot.resources.validate import validate_document

DEFAULTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "Agent",
        {"model_ref": "m"},
        {
            "model_ref": "m",
            "active": True,
            "execution": {
                "profile": "dynamic",
                "duplicate_tool_call_policy": "short_circuit",
                "on_contract_violation": "non_retryable_error",
                "tool_use_behavior": "run_llm_again",
            },
            "limits": {"max_steps": 10},
        },
    ),
    ("AgentSystem", {"agents": ["a"]}, {"agents": ["a"]}),
    (
        "ModelEndpoint",
        {"default_model": "m"},
        {"provider": "openai", "base_url": "https://api.openai.com/v1", "default_model": "m"},
    ),
    (
        "ModelEndpoint",
        {"provider": "Anthropic", "default_model": "m"},
        {"provider": "anthropic", "base_url": "https://api.anthropic.com/v1", "default_model": "m"},
    ),
    (
        "ModelEndpoint",
        {"provider": "ollama", "default_model": "m"},
        {"provider": "ollama", "base_url": "http://127.0.0.1:11434", "default_model": "m"},
    ),
    (
        "ModelEndpoint",
        {"provider": "scripted", "script": [{"say": " kept "}]},
        {"provider": "scripted", "default_model": "scripted", "script": [{"say": " kept "}]},
    ),
    ("ModelEndpoint", {"provider": "mock"}, {"provider": "mock", "default_model": "mock"}),
    (
        "Tool",
        {},
        {
            "type": "http",
            "version": "0.1.0",
            "category": "uncategorised",
            "effect": "once",
            "on_unknown": "ask",
            "operation_classes": ["write"],
            "risk_level": "low",
            "runtime": {
                "timeout": "30s",
                "isolation_mode": "none",
                "retry": {"max_attempts": 1, "backoff": "0s", "max_backoff": "30s", "jitter": "none"},
            },
        },
    ),
    ("Secret", {"stringData": {"value": "x y"}}, {"data": {"value": "eCB5"}}),
    ("Memory", {}, {"provider": "in-memory"}),
    (
        "McpServer",
        {"transport": "http", "endpoint": "https://mcp.example.com"},
        {
            "transport": "http",
            "endpoint": "https://mcp.example.com",
            "reconnect": {"max_attempts": 3, "backoff": "2s"},
        },
    ),
    ("AgentPolicy", {}, {"max_tokens_per_run": 0, "apply_mode": "scoped"}),
    (
        "Budget",
        {"limit": {"amount": 25.5}},
        {
            "window": "total",
            "time_zone": "UTC",
            "limit": {"amount": "25.50", "currency": "USD"},
            "on_exceeded": "pause",
            "unpriced": "refuse",
        },
    ),
    (
        "ReferenceGrant",
        {"from": [{"namespace": "b", "kind": "taskschedule"}], "to": [{"kind": "task", "name": "t"}]},
        {"from": [{"namespace": "b", "kind": "TaskSchedule"}], "to": [{"kind": "Task", "name": "t"}]},
    ),
    ("AgentRole", {"permissions": [" a ", "A", "", "b"]}, {"permissions": ["a", "b"]}),
    ("ToolPermission", {}, {"tool_ref": "it", "action": "invoke", "match_mode": "all", "apply_mode": "global"}),
    ("ToolApproval", {"task_ref": "t", "tool": "x"}, {"task_ref": "t", "tool": "x", "ttl": "72h"}),
    ("ToolApproval", {"tool": "x", "standing": True}, {"tool": "x", "standing": True, "ttl": "72h"}),
    (
        "ToolApproval",
        {"tool": "x", "run": "r", "callId": "c", "argumentsDigest": "sha256:1", "standing": False},
        {"tool": "x", "run": "r", "call_id": "c", "arguments_digest": "sha256:1", "ttl": "72h"},
    ),
    (
        "Task",
        {"system": "s", "retry": {"max_attempts": 3, "backoff": "90s"}},
        {
            "system": "s",
            "mode": "run",
            "priority": "normal",
            "max_turns": 0,
            "retry": {"max_attempts": 3, "backoff": "1m30s"},
            "message_retry": {"max_attempts": 3, "backoff": "1m30s", "max_backoff": "24h", "jitter": "full"},
            "requirements": {"gpu": False},
        },
    ),
    (
        "TaskSchedule",
        {"task_ref": "t", "schedule": "@daily", "starting_deadline_seconds": 0},
        {
            "task_ref": "t",
            "schedule": "@daily",
            "time_zone": "UTC",
            "suspend": False,
            "starting_deadline_seconds": 300,
            "concurrency_policy": "forbid",
            "missed": "skip",
            "catch_up_limit": 10,
            "jitter": "0s",
            "successful_history_limit": 10,
            "failed_history_limit": 3,
        },
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s"}},
        {
            "task_ref": "t",
            "suspend": False,
            "auth": {
                "profile": "generic",
                "secret_ref": "s",
                "signature_header": "X-Signature",
                "signature_prefix": "sha256=",
                "timestamp_header": "X-Timestamp",
                "max_skew_seconds": 300,
            },
            "idempotency": {"event_id_header": "X-Event-Id", "dedupe_window_seconds": 86400},
            "payload": {"mode": "raw", "input_key": "webhook_payload"},
        },
    ),
    ("Worker", {}, {"capabilities": {"gpu": False}, "max_concurrent_tasks": 1}),
]


@pytest.mark.parametrize(("kind", "given", "expected"), DEFAULTS)
def test_defaults_are_filled_in(kind: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": "it"}, "spec": given})
    assert problems == []
    assert document is not None
    assert document["spec"] == expected


GITHUB = {"profile": "GitHub", "secretRef": "s"}
NORMALISED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("Agent", {"model_ref": "m", "tools": ["a", "b", "a"]}, "tools", ["a", "b"]),
    ("Agent", {"model_ref": "m", "allowed_tools": ["Search", "search"]}, "allowed_tools", ["Search"]),
    ("Agent", {"model_ref": "m", "roles": "reader"}, "roles", ["reader"]),
    ("Agent", {"model_ref": "m", "prompt": "  kept \n"}, "prompt", "  kept \n"),
    ("Agent", {"model_ref": "m", "memory": {"ref": "n", "allow": ["memory.READ", "read"]}}, "memory.allow", ["read"]),
    ("Agent", {"model_ref": "m", "limits": {"max_steps": 0}}, "limits.max_steps", 10),
    ("Agent", {"model_ref": "m", "limits": {"max_tool_calls": 0}}, "limits.max_tool_calls", 0),
    ("Agent", {"model_ref": "m", "limits": {"max_cost_usd": 1}}, "limits.max_cost_usd", 1.0),
    ("AgentSystem", {"graph": {"a": {"edges": ["b"]}}}, "graph.a.edges", [{"to": "b"}]),
    ("AgentSystem", {"graph": {"a": {"edges": [{"next": "b"}]}}}, "graph.a.edges", [{"to": "b"}]),
    ("AgentSystem", {"graph": {"a": {"edges": [{"to": " "}, {"to": "b"}]}}}, "graph.a.edges", [{"to": "b"}]),
    ("AgentSystem", {"graph": {"a": {"edges": [{"to": "b", "when": {"n": 1}}]}}}, "graph.a.edges.0.when", {"n": "1"}),
    (
        "AgentSystem",
        {"graph": {"a": {"edges": [{"to": "b", "when": "Otherwise"}]}}},
        "graph.a.edges.0.when",
        "otherwise",
    ),
    ("AgentSystem", {"graph": {"a": {"join": {}}}}, "graph.a.join.mode", "wait_for_all"),
    ("AgentSystem", {"graph": {"a": {"join": {"onFailure": "SKIP"}}}}, "graph.a.join.on_failure", "skip"),
    ("ModelEndpoint", {"default_model": "m", "options": {" Max_Tokens ": 100}}, "options", {"max_tokens": "100"}),
    ("Tool", {"risk_level": "High", "effect": "read"}, "operation_classes", ["write"]),
    ("Tool", {"risk_level": "medium", "effect": "READ"}, "operation_classes", ["read"]),
    ("Tool", {"effect": "idempotent"}, "operation_classes", ["write"]),
    ("Tool", {"effect": "once", "operation_classes": ["read"]}, "operation_classes", ["read"]),
    ("Tool", {"risk_level": "critical"}, "runtime.isolation_mode", "sandboxed"),
    ("Tool", {"risk_level": "critical", "runtime": {"isolationMode": "none"}}, "runtime.isolation_mode", "none"),
    ("Tool", {"auth": {"secret_ref": "k"}}, "auth", {"profile": "bearer", "secretRef": "k"}),
    ("Tool", {"operation_classes": ["READ", "read", "admin"]}, "operation_classes", ["read", "admin"]),
    ("Tool", {"runtime": {"timeouts": {"total": "2m"}}}, "runtime.timeout", "2m"),
    ("Tool", {"type": "function", "function": "shop.tools:refund"}, "function", "shop.tools:refund"),
    ("Tool", {"http": {"headers": {"Accept": "text/csv"}}}, "http.method", "POST"),
    (
        "Tool",
        {"http": {"method": "put", "query": {"v": 2}}},
        "http",
        {"method": "PUT", "query": {"v": "2"}, "body": "json"},
    ),
    ("Tool", {"http": {"method": "delete"}}, "http", {"method": "DELETE", "body": "none"}),
    ("Tool", {"type": "grpc", "endpoint": "localhost:50051"}, "endpoint", "localhost:50051"),
    ("Secret", {"data": {"k": "YQ=="}, "string_data": {"k": "b", "p": "***"}}, "data", {"k": "Yg==", "p": "***"}),
    ("Secret", {"data": {"k": "YWFh\nYWFh\n"}}, "data.k", "YWFhYWFh"),
    ("McpServer", {"transport": "STDIO", "command": "x", "args": [1, "b", True]}, "args", ["1", "b", "true"]),
    ("AgentPolicy", {"apply_mode": "Global"}, "apply_mode", "global"),
    ("Tool", {"price_usd": 0.005}, "price_usd", "0.005"),
    ("Budget", {"limit": {"amount": "1e-6"}}, "limit.amount", "0.000001"),
    ("Budget", {"limit": {"amount": 3, "currency": "usd"}}, "limit", {"amount": "3.00", "currency": "USD"}),
    ("Budget", {"limit": {"tokens": 5}, "warn": [80, 50, 80]}, "warn", [50, 80]),
    ("Budget", {"limit": {"tokens": 5}, "scope": {"user": 17, "agent": "*"}}, "scope", {"agent": "*", "user": "17"}),
    ("Budget", {"limit": {"tokens": 5}, "window": "Week"}, "window", "week"),
    ("ToolPermission", {"operation_rules": [{}]}, "operation_rules", [{"operation_class": "*", "verdict": "allow"}]),
    ("Task", {"agent": "a", "input": {"n": 3, "on": True}}, "input", {"n": "3", "on": "true"}),
    ("Task", {"system": "s", "priority": "Urgent"}, "priority", "critical"),
    (
        "Task",
        {"system": "s", "message_retry": {"non_retryable": ["No Such", "no such"]}},
        "message_retry.non_retryable",
        ["no such"],
    ),
    (
        "TaskSchedule",
        {"task_ref": "t", "schedule": "0 9 * * MON", "concurrency_policy": "Allow"},
        "concurrency_policy",
        "allow",
    ),
    ("TaskWebhook", {"task_ref": "t", "auth": GITHUB}, "auth.signature_header", "X-Hub-Signature-256"),
    ("TaskWebhook", {"task_ref": "t", "auth": GITHUB}, "idempotency.event_id_header", "X-GitHub-Delivery"),
    ("TaskWebhook", {"task_ref": "t", "auth": GITHUB}, "idempotency.dedupe_window_seconds", 259200),
    ("Worker", {"max_concurrent_tasks": 0}, "max_concurrent_tasks", 1),
]


@pytest.mark.parametrize(("kind", "given", "place", "expected"), NORMALISED)
def test_values_are_brought_into_one_form(kind: str, given: dict[str, Any], place: str, expected: Any) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": "it"}, "spec": given})
    assert problems == []
    assert document is not None
    value: Any = document["spec"]
    for step in place.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    assert value == expected


def test_github_has_no_timestamp_header() -> None:
    document, _ = validate_document(
        {"kind": "TaskWebhook", "metadata": {"name": "it"}, "spec": {"task_ref": "t", "auth": GITHUB}}
    )
    assert document is not None
    assert "timestamp_header" not in document["spec"]["auth"]


BEGINS = {
    **dict.fromkeys(
        ("Channel", "McpServer", "Task", "TaskHook", "TaskSchedule", "TaskWebhook", "ToolApproval"), "Pending"
    ),
    "Worker": "NotReady",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [None, {}, {"phase": ""}, {"lastError": "x"}])
def test_a_resource_is_in_the_phase_that_its_kind_begins_with(kind: str, status: dict[str, Any] | None) -> None:
    document = {"kind": kind, "metadata": {"name": "it"}, "spec": {}, "status": status}
    assert with_phase(document)["status"] == {**(status or {}), "phase": BEGINS.get(kind, "Ready")}
    assert document["status"] == status
    said = {**document, "status": {"phase": "Error"}}
    assert (phase_of(said), with_phase(said)) == ("Error", said)
    assert phase_of({**document, "spec": {"suspend": True}}) == "Suspended"


def test_an_approval_begins_pending_and_keeps_its_fields_in_snake_case() -> None:
    raw: dict[str, Any] = {"kind": "ToolApproval", "metadata": {"name": "it"}, "spec": {"task_ref": "t", "tool": "x"}}
    document, _ = validate_document(raw)
    assert document is not None
    assert document["status"] == {"phase": "Pending"}
    document, _ = validate_document({**raw, "status": {"phase": "Approved", "decidedBy": "ann", "expires_at": "z"}})
    assert document is not None
    assert document["status"] == {"phase": "Approved", "decided_by": "ann", "expires_at": "z"}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Agent", {}, "spec.model_ref is required"),
    ("Agent", {"model_ref": "m", "model": "x"}, "spec.model has been removed; use spec.model_ref"),
    ("Agent", {"model_ref": "a/b/c"}, 'invalid spec.model_ref "a/b/c": expected name or namespace/name'),
    (
        "Agent",
        {"model_ref": "m", "memory": {"ref": "n", "allow": ["x"]}},
        'invalid spec.memory.allow: invalid memory operation "x": expected read, write, search, list, or ingest',
    ),
    (
        "Agent",
        {"model_ref": "m", "memory": {"allow": ["read"]}},
        "spec.memory.ref is required when spec.memory.allow is set",
    ),
    (
        "Agent",
        {"model_ref": "m", "execution": {"profile": "x"}},
        'invalid spec.execution.profile "x": expected dynamic or contract',
    ),
    (
        "Agent",
        {"model_ref": "m", "execution": {"profile": "contract"}},
        "spec.execution.tool_sequence is required when spec.execution.profile=contract",
    ),
    ("Agent", {"model_ref": "m", "limits": {"max_steps": -1}}, "invalid spec.limits.max_steps -1: expected >= 0"),
    ("Agent", {"model_ref": "m", "limits": {"max_cost_usd": 0}}, "invalid spec.limits.max_cost_usd 0: expected > 0"),
    ("Agent", {"model_ref": "m", "limits": {"timeout": "0s"}}, "spec.limits.timeout must be longer than 0s"),
    (
        "Agent",
        {"model_ref": "m", "limits": {"timeout": 30}},
        'invalid spec.limits.timeout "30": a duration needs a unit',
    ),
    ("Agent", {"model_ref": "m", "tools": ["a b"]}, 'invalid spec.tools[0] "a b"'),
    (
        "Agent",
        {"model_ref": "m", "output_schema": {"type": "objekt"}},
        "spec.output_schema.type is not a valid JSON Schema",
    ),
    ("Agent", {"model_ref": "m", "output_schema": {"$schema": "urn:x"}}, "the value of $schema is not a known draft"),
    ("Agent", {"model_ref": "m", "model_settings": {"top_p": 2}}, "invalid spec.model_settings.top_p 2: expected <= 1"),
    (
        "Agent",
        {"model_ref": "m", "model_settings": {"reasoning_effort": "huge"}},
        'invalid spec.model_settings.reasoning_effort "huge": expected none, minimal, low, medium, high, xhigh, or max',
    ),
    (
        "Agent",
        {"model_ref": "m", "tools": ["search@^1"], "model_settings": {"tool_choice": "serch"}},
        'spec.model_settings.tool_choice "serch" is no tool of spec.tools',
    ),
    (
        "Agent",
        {"model_ref": "m", "model_settings": {"tool_choice": "a b"}},
        'invalid spec.model_settings.tool_choice "a b"',
    ),
    (
        "Agent",
        {"model_ref": "m", "model_settings": {"strict_tools": "maybe"}},
        "spec.model_settings.strict_tools must be true or false",
    ),
    ("AgentSystem", {"agents": ["a", ""]}, 'invalid spec.agents[1] ""'),
    (
        "AgentSystem",
        {"graph": {"a": {"join": {"mode": "x"}}}},
        'invalid spec.graph.a.join.mode "x": expected wait_for_all or quorum',
    ),
    (
        "AgentSystem",
        {"graph": {"a": {"join": {"quorum_percent": 101}}}},
        "invalid spec.graph.a.join.quorum_percent 101: expected <= 100",
    ),
    (
        "AgentSystem",
        {"graph": {"a": {"join": {"quorum_count": -1}}}},
        "invalid spec.graph.a.join.quorum_count -1: expected >= 0",
    ),
    (
        "AgentSystem",
        {"graph": {"a": {"edges": [{"to": "b", "when": 3}]}}},
        "spec.graph.a.edges[0].when is no condition",
    ),
    ("AgentSystem", {"graph": {"a": {"edges": ["b c"]}}}, 'invalid spec.graph.a.edges[0] "b c"'),
    ("AgentSystem", {"max_turns": 0}, "invalid spec.max_turns 0: expected >= 1"),
    ("ModelEndpoint", {}, "spec.default_model is required"),
    (
        "ModelEndpoint",
        {"provider": "azure-openai", "default_model": "m"},
        "spec.base_url is required when spec.provider is azure-openai",
    ),
    (
        "ModelEndpoint",
        {"provider": "azure", "default_model": "m"},
        "spec.base_url is required when spec.provider is azure",
    ),
    (
        "ModelEndpoint",
        {"default_model": "m", "base_url": "ftp://x"},
        "spec.base_url must be a URL: expected http://… or https://…",
    ),
    ("ModelEndpoint", {"default_model": "m", "script": []}, "spec.script is only for spec.provider scripted"),
    ("ModelEndpoint", {"provider": "scripted"}, "spec.script is required when spec.provider is scripted"),
    (
        "ModelEndpoint",
        {"default_model": "m", "pricing": {"input": 1}},
        "spec.pricing.output is required (0 means free)",
    ),
    (
        "ModelEndpoint",
        {"default_model": "m", "rate_limit": {"burst": 1}},
        "spec.rate_limit.requests is required when burst is set",
    ),
    (
        "Tool",
        {"type": "x"},
        'invalid spec.type "x": expected http, external, grpc, queue, webhook-callback, mcp, wasm, function, or cli',
    ),
    ("Tool", {"type": "mcp", "mcp_tool_name": "x"}, "spec.mcp_server_ref is required when spec.type=mcp"),
    ("Tool", {"type": "mcp", "mcp_server_ref": "x"}, "spec.mcp_tool_name is required when spec.type=mcp"),
    ("Tool", {"type": "function"}, "spec.function is required when spec.type=function"),
    (
        "Tool",
        {"type": "function", "function": "no colon"},
        'invalid spec.function "no colon": expected package.module:name',
    ),
    ("Tool", {"function": "a:b"}, "spec.function is only for spec.type=function"),
    (
        "Tool",
        {"type": "mcp", "mcp_server_ref": "s", "mcp_tool_name": "t", "http": {"method": "GET"}},
        "spec.http is only",
    ),
    ("Tool", {"http": {"method": "TRACE"}}, 'invalid spec.http.method "TRACE"'),
    ("Tool", {"http": {"method": "GET", "body": "json"}}, "spec.http.body: a GET request has no body"),
    ("Tool", {"http": {"headers": {"a b": "x"}}}, '"a b" is not the name of an HTTP header'),
    ("Tool", {"http": {"headers": {"Host": "x"}}}, "Host is set by Foliot itself"),
    ("Tool", {"http": {"headers": {"X-A": "x\r\nX-B: y"}}}, "the value of a header is one line"),
    ("Tool", {"endpoint": "tools.example.com"}, "spec.endpoint must be a URL: expected http://… or https://…"),
    ("Tool", {"type": "grpc", "endpoint": "http://x"}, "spec.endpoint must be host:port when spec.type=grpc"),
    ("Tool", {"version": "1.0"}, 'invalid spec.version "1.0": expected a version such as 1.4.0'),
    ("Tool", {"category": "Two Words"}, 'invalid spec.category "two words"'),
    ("Tool", {"effect": "twice"}, 'invalid spec.effect "twice": expected read, idempotent, or once'),
    ("Tool", {"on_unknown": "x"}, 'invalid spec.on_unknown "x": expected ask, fail, or retry'),
    ("Tool", {"risk_level": "x"}, 'invalid spec.risk_level "x": expected low, medium, high, or critical'),
    (
        "Tool",
        {"operation_classes": ["x"]},
        'invalid spec.operation_classes[0] "x": expected read, write, delete, or admin',
    ),
    ("Tool", {"input_schema": {"type": "array"}}, "spec.input_schema.type must be object: arguments have names"),
    ("Tool", {"requires": ["disk:big"]}, "spec.requires[0] does not say what is required"),
    ("Tool", {"after": ["it"]}, "a tool cannot wait for itself"),
    ("Tool", {"runtime": {"timeout": "soon"}}, 'invalid spec.runtime.timeout "soon": not a duration'),
    (
        "Tool",
        {"runtime": {"timeouts": {"attempt": "31s"}}},
        "spec.runtime.timeouts.attempt is longer than runtime.timeout (30s)",
    ),
    (
        "Tool",
        {"runtime": {"timeout": "5s", "timeouts": {"total": "6s"}}},
        "spec.runtime.timeouts.total says something else than runtime.timeout",
    ),
    (
        "Tool",
        {"runtime": {"retry": {"jitter": "x"}}},
        'invalid spec.runtime.retry.jitter "x": expected none, full, or equal',
    ),
    ("Tool", {"auth": {"profile": "bearer"}}, "spec.auth.secretRef is required when auth.profile is set"),
    (
        "Tool",
        {"auth": {"profile": "api_key_header", "secretRef": "k"}},
        "spec.auth.headerName is required when auth.profile is api_key_header",
    ),
    (
        "Tool",
        {"auth": {"profile": "oauth2_client_credentials", "secretRef": "k"}},
        "spec.auth.tokenURL is required when auth.profile is oauth2_client_credentials",
    ),
    ("Secret", {"data": {"k": ""}}, "spec.data.k is empty"),
    ("Secret", {"data": {"k": "not base64!"}}, "spec.data.k must be valid base64"),
    ("Secret", {"data": {"k": "YQ"}}, "spec.data.k must be valid base64"),
    ("Secret", {"stringData": {"k": ""}}, "spec.stringData.k is empty"),
    ("Memory", {"provider": "redis"}, 'invalid spec.provider "redis": expected in-memory, pgvector, or http'),
    ("Memory", {"provider": "http"}, "spec.endpoint is required when spec.provider is http"),
    (
        "Memory",
        {"provider": "pgvector", "endpoint": "postgres://h/d"},
        "spec.embedding_model is required when spec.provider is pgvector",
    ),
    ("Memory", {"provider": "http", "endpoint": "h:80"}, "spec.endpoint must be a URL"),
    ("McpServer", {}, "spec.transport is required (stdio or http)"),
    ("McpServer", {"transport": "stdio"}, "spec.command is required when spec.transport=stdio"),
    ("McpServer", {"transport": "http"}, "spec.endpoint is required when spec.transport=http"),
    (
        "McpServer",
        {"transport": "stdio", "command": "x", "env": [{"name": "A", "value": "v", "secretRef": "s"}]},
        "value and secretRef exclude each other",
    ),
    ("McpServer", {"transport": "stdio", "command": "x", "env": [{"value": "v"}]}, "spec.env[0].name is required"),
    (
        "McpServer",
        {"transport": "stdio", "command": "x", "env": [{"name": "A"}, {"name": "A"}]},
        'the variable "A" is given twice',
    ),
    ("AgentPolicy", {"apply_mode": "x"}, 'unsupported spec.apply_mode "x": expected scoped or global'),
    ("AgentPolicy", {"max_tokens_per_run": -1}, "invalid spec.max_tokens_per_run -1: expected >= 0"),
    ("Budget", {}, "spec.limit: field required"),
    ("ReferenceGrant", {"to": [{"kind": "Task"}]}, "spec.from: field required"),
    ("ReferenceGrant", {"from": [{"namespace": "b"}]}, "spec.to: field required"),
    ("ReferenceGrant", {"from": [{"kind": "Agent"}], "to": [{"kind": "Task"}]}, "spec.from[0].namespace is required"),
    ("ReferenceGrant", {"from": [{"namespace": "b"}], "to": [{"name": "t"}]}, "spec.to[0].kind is required"),
    (
        "ReferenceGrant",
        {"from": [{"namespace": "b"}], "to": [{"kind": "Agent"}]},
        'unsupported spec.to[0].kind "Agent": no resource of that kind is named from another namespace',
    ),
    ("ReferenceGrant", {"from": [{"namespace": "b/c"}], "to": [{"kind": "Task"}]}, "invalid spec.from[0].namespace"),
    ("Budget", {"limit": {"currency": "USD"}}, "spec.limit.amount is required, or tokens"),
    ("Budget", {"limit": {"amount": "many"}}, 'invalid spec.limit.amount "many": it is not a decimal number'),
    ("Budget", {"limit": {"amount": -1}}, 'invalid spec.limit.amount "-1": it is below 0'),
    ("Budget", {"limit": {"amount": "nan"}}, 'invalid spec.limit.amount "nan": it is not a decimal number'),
    ("Budget", {"limit": {"amount": "0.0000001"}}, "it has more than six decimal places"),
    ("Budget", {"limit": {"amount": "1e30"}}, "it is more than a billion dollars"),
    ("Budget", {"limit": {"amount": 1, "currency": "EUR"}}, "spec.limit.currency"),
    ("Budget", {"limit": {"amount": 1, "tokens": 0}}, "invalid spec.limit.tokens 0"),
    ("Budget", {"limit": {"tokens": 1}, "warn": [100]}, "invalid spec.warn[0] 100"),
    ("Budget", {"limit": {"tokens": 1}, "window": "hour"}, 'invalid spec.window "hour"'),
    ("Budget", {"limit": {"tokens": 1}, "time_zone": "Europe/Berlim"}, "did you mean Europe/Berlin?"),
    ("Budget", {"limit": {"tokens": 1}, "scope": {"agent": "a b"}}, 'invalid spec.scope.agent "a b"'),
    ("Budget", {"limit": {"tokens": 1}, "unpriced": "maybe"}, 'invalid spec.unpriced "maybe"'),
    ("Tool", {"price_usd": "-1"}, 'invalid spec.price_usd "-1": it is below 0'),
    ("ToolPermission", {"apply_mode": "scoped"}, "spec.target_agents is required when spec.apply_mode=scoped"),
    ("ToolPermission", {"match_mode": "x"}, 'invalid spec.match_mode "x": expected all or any'),
    (
        "ToolPermission",
        {"operation_rules": [{"verdict": "x"}]},
        'invalid spec.operation_rules[0].verdict "x": expected allow, deny, or approval_required',
    ),
    ("ToolApproval", {"tool": "x"}, "spec.task_ref is required"),
    ("ToolApproval", {"task_ref": "x"}, "spec.tool is required"),
    ("ToolApproval", {"tool": "x", "run": "r"}, "spec.call_id is required when spec.run is set"),
    ("ToolApproval", {"tool": "x", "run": "r", "call_id": "c"}, "spec.arguments_digest is required"),
    ("ToolApproval", {"tool": "x", "task_ref": "t", "max_uses": 2}, "spec.max_uses is only for a standing grant"),
    ("ToolApproval", {"tool": "x", "standing": True, "run": "r"}, "spec.standing cannot be set for a call"),
    ("Task", {}, "spec.system is required"),
    ("Task", {"system": "s", "agent": "a"}, "spec.agent and spec.system exclude each other"),
    ("Task", {"system": "s", "mode": "x"}, 'invalid spec.mode "x": expected run or template'),
    ("Task", {"system": "s", "max_turns": -1}, "invalid spec.max_turns -1: expected >= 0"),
    ("Task", {"system": "s", "retry": {"backoff": "x"}}, 'invalid spec.retry.backoff "x"'),
    ("Task", {"system": "s", "priority": "x"}, 'invalid spec.priority "x": expected low, normal, high, or critical'),
    ("Task", {"system": "s", "input": {"a": {"b": 1}}}, "spec.input.a must be a string, not a mapping"),
    ("TaskSchedule", {"schedule": "@daily"}, "spec.task_ref is required"),
    ("TaskSchedule", {"task_ref": "t"}, "spec.schedule is required"),
    (
        "TaskSchedule",
        {"task_ref": "/t", "schedule": "@daily"},
        'invalid spec.task_ref "/t": expected name or namespace/name',
    ),
    ("TaskSchedule", {"task_ref": "t", "schedule": "61 * * * *"}, 'invalid spec.schedule "61 * * * *": the minute 61'),
    (
        "TaskSchedule",
        {"task_ref": "t", "schedule": "@daily", "time_zone": "Mars"},
        'invalid spec.time_zone "Mars": unknown time zone',
    ),
    (
        "TaskSchedule",
        {"task_ref": "t", "schedule": "@daily", "failed_history_limit": -1},
        "invalid spec.failed_history_limit -1: expected >= 0",
    ),
    ("TaskSchedule", {"task_ref": "t", "schedule": "@daily", "at": "2027-01-31"}, "spec.at and spec.schedule exclude"),
    ("TaskSchedule", {"task_ref": "t", "schedule": "@daily", "at": "soon"}, 'invalid spec.at "soon": not a time'),
    (
        "TaskSchedule",
        {"task_ref": "t", "schedule": "@daily", "input": {"a": "{{ slott }}"}},
        "spec.input.a holds {{ slott }}, which nothing fills",
    ),
    ("TaskWebhook", {"auth": {"secret_ref": "s"}}, "spec.task_ref is required"),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s"}, "filter": "body.ref =="},
        "invalid spec.filter: not a CEL expression",
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s"}, "payload": {"inputs": {"a": "$.x["}}},
        'spec.payload.inputs.a: invalid path "$.x["',
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s"}, "payload": {"inputs": {"a": "by {{ who }}"}}},
        "spec.payload.inputs.a: nothing fills {{ who }}",
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {**GITHUB, "encoding": "base64"}},
        "spec.auth.encoding is fixed for the profile github",
    ),
    ("TaskWebhook", {"task_ref": "t"}, "spec.auth.secret_ref is required"),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"profile": "x", "secret_ref": "s"}},
        (
            'invalid spec.auth.profile "x": expected generic, github, gitlab, stripe, slack, standard-webhooks, '
            "linear, or shopify"
        ),
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s", "max_skew_seconds": -1}},
        "invalid spec.auth.max_skew_seconds -1: expected >= 0",
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s", "signature_header": "a b"}},
        "spec.auth.signature_header is not the name of an HTTP header",
    ),
    (
        "TaskWebhook",
        {"task_ref": "t", "auth": {"secret_ref": "s"}, "payload": {"mode": "xml"}},
        'invalid spec.payload.mode "xml": expected raw or json',
    ),
    ("Worker", {"max_concurrent_tasks": -1}, "invalid spec.max_concurrent_tasks -1: expected >= 0"),
    ("Worker", {"capabilities": {"gpu": "yes"}}, "spec.capabilities.gpu must be true or false, not text"),
]


@pytest.mark.parametrize(("kind", "given", "message"), REFUSED)
def test_what_breaks_a_rule_is_refused_in_these_words(kind: str, given: dict[str, Any], message: str) -> None:
    document, problems = validate_document({"kind": kind, "metadata": {"name": "it"}, "spec": given})
    assert document is None
    assert len(problems) == 1, problems
    assert message in problems[0].message


def test_a_model_that_is_named_as_in_python_comes_with_advice() -> None:
    raw = {"kind": "Agent", "metadata": {"name": "it"}, "spec": {"model_ref": "openai:gpt-5"}}
    _, (problem,) = validate_document(raw)
    assert problem.hint == "to ask provider:model, declare a ModelEndpoint and name that"


def test_an_approval_in_an_unknown_phase_is_refused() -> None:
    raw = {
        "kind": "ToolApproval",
        "metadata": {"name": "a"},
        "spec": {"task_ref": "t", "tool": "x"},
        "status": {"phase": "approved"},
    }
    _, (problem,) = validate_document(raw)
    assert problem.message == 'invalid status.phase "approved": expected Pending, Approved, Denied, or Expired'
