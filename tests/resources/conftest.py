"""One full specimen of every kind, in the emitted spelling."""

from __future__ import annotations

import copy
from typing import Any

import pytest

SPECS: dict[str, dict[str, Any]] = {
    "Agent": {
        "model_ref": "shared/gpt",
        "model_name": "gpt-mini",
        "model_settings": {"temperature": 0.5, "max_output_tokens": 100, "extra": {"topK": 3}},
        "fallbacks": ["spare"],
        "prompt": "Be brief.\n",
        "tools": ["search", "fetch"],
        "allowed_tools": ["search"],
        "allowed_commands": ["git log *"],
        "sandbox": {
            "network": [{"hosts": ["api.example"], "ports": [443], "methods": ["GET"], "deny": False}],
            "limits": {"memory": "256Mi"},
        },
        "roles": ["reader"],
        "memory": {"ref": "notes", "allow": ["read", "write"]},
        "execution": {
            "profile": "contract",
            "tool_sequence": ["search"],
            "required_output_markers": ["DONE"],
            "duplicate_tool_call_policy": "deny",
            "on_contract_violation": "observe",
            "tool_use_behavior": "run_llm_again",
        },
        "limits": {
            "max_steps": 4,
            "max_tokens": 9000,
            "max_cost_usd": 0.5,
            "max_tool_calls": 0,
            "timeout": "1h30m",
        },
        "output_schema": {"type": "object", "properties": {"maxSize": {"type": "integer"}}},
        "execution_policy": {
            "host": "sandbox",
            "security": "allowlist",
            "ask": "on-miss",
            "runtime_type": "runc",
            "workspace_access": "ro",
            "network_enabled": False,
            "interactive": True,
            "resources": {"cpu": 500, "memory": 1073741824},
            "retry": {"max_attempts": 3, "delay_ms": 250},
        },
    },
    "AgentSystem": {
        "agents": ["triage", "bug", "feature", "done"],
        "graph": {
            "triage": {
                "edges": [
                    {"to": "bug", "when": {"route": "bug"}, "on_failure": "skip", "labels": {"colour": "red"}},
                    {"to": "feature", "when": "otherwise", "policy": {"maxCost": 1}},
                ]
            },
            "bug": {"next": "done"},
            "feature": {"next": "done"},
            "done": {
                "join": {
                    "mode": "quorum",
                    "quorum_count": 1,
                    "quorum_percent": 0,
                    "on_failure": "skip",
                    "timeout": "5m",
                }
            },
        },
        "max_turns": 6,
    },
    "ModelEndpoint": {
        "provider": "openai-compatible",
        "base_url": "https://models.example.com/v1",
        "default_model": "big",
        "options": {"api_version": "2024-06-01"},
        "auth": {"secretRef": "keys/openai:token"},
        "fallbacks": ["spare"],
        "rate_limit": {"requests": 60, "per": "1m", "burst": 10, "concurrency": 4, "tokens": 90000},
        "timeouts": {"connect": "5s", "idle": "1m", "total": "10m"},
        "pricing": {"input": 1.0, "output": 2.5, "cache_read": 0.1, "request": 0.0},
    },
    "Tool": {
        "type": "http",
        "version": "1.2.3-rc.1+build.5",
        "category": "network",
        "description": "Looks things up.",
        "endpoint": "https://tools.example.com/search",
        "input_schema": {"type": "object", "properties": {"maxHits": {"type": "integer"}}, "required": []},
        "effect": "read",
        "on_unknown": "retry",
        "capabilities": ["web"],
        "operation_classes": ["read", "write"],
        "risk_level": "medium",
        "requires": ["fetch", "secret:proxy", "capability:web"],
        "requires_prior": ["login"],
        "after": ["fetch"],
        "rate_limit": {"requests": 5, "per": "1s"},
        "runtime": {
            "timeout": "1m",
            "timeouts": {"attempt": "10s", "idle": "5s"},
            "isolation_mode": "container",
            "retry": {"max_attempts": 3, "backoff": "250ms", "max_backoff": "30s", "jitter": "equal"},
        },
        "auth": {
            "profile": "oauth2_client_credentials",
            "secretRef": "oauth",
            "tokenURL": "https://auth.example.com/token",
            "scopes": ["a", "b"],
        },
    },
    "Secret": {"data": {"value": "aHVudGVyMg==", "kept": "***"}},
    "Memory": {
        "type": "vector",
        "provider": "pgvector",
        "embedding_model": "embedder",
        "endpoint": "postgres://db.example.com/memory",
        "auth": {"secretRef": "db"},
    },
    "Skill": {
        "name": "pdf-forms",
        "description": "Fills forms.",
        "status": "active",
        "created_at": "2026-01-31T12:00:00Z",
        "disable_model_invocation": True,
        "body": "Run scripts/fill.py.",
        "files": {"scripts/fill.py": "print()"},
        "allow": "sha256:" + "a" * 64,
        "origin": "https://skills.example",
        "user": "ann",
    },
    "McpServer": {
        "transport": "stdio",
        "command": "mcp-files",
        "args": ["--root", "/srv"],
        "env": [{"name": "MODE", "value": " ro "}, {"name": "TOKEN", "secretRef": "files:token"}],
        "isolation": "sandboxed",
        "sandbox": {
            "network": [{"hosts": ["files.example"], "ports": [443], "methods": ["GET"], "deny": False}],
            "mounts": [{"source": "/srv", "target": "/srv", "writable": False}],
            "limits": {"memory": "256Mi"},
        },
        "tool_filter": {"include": ["read_file"]},
        "reconnect": {"max_attempts": 0, "backoff": "2s"},
    },
    "AgentPolicy": {
        "max_tokens_per_run": 5000,
        "allowed_models": ["gpt"],
        "blocked_tools": ["shell"],
        "sandbox": {
            "isolation": "sandboxed",
            "network": [{"hosts": ["*.example"], "ports": [443, 80], "methods": ["GET"], "deny": False}],
            "workspace": "read_only",
            "mounts": ["/srv/data"],
            "limits": {"memory": "256Mi", "cpus": 0.5, "processes": 32},
            "require": ["memory", "seccomp"],
        },
        "apply_mode": "global",
        "target_systems": ["desk"],
        "target_tasks": ["weekly"],
    },
    "AgentRole": {"description": "May read.", "permissions": ["tool:search:invoke", "capability:web"]},
    "ToolPermission": {
        "tool_ref": "search",
        "action": "invoke",
        "required_permissions": ["tool:search:invoke"],
        "match_mode": "any",
        "apply_mode": "scoped",
        "target_agents": ["writer"],
        "operation_rules": [{"operation_class": "delete", "verdict": "approval_required"}],
    },
    "ToolApproval": {
        "task_ref": "default/weekly",
        "tool": "shell",
        "operation_class": "write",
        "agent": "writer",
        "input": '{"cmd": "ls"}',
        "reason": "rule",
        "ttl": "10m",
    },
    "Task": {
        "system": "desk",
        "mode": "template",
        "input": {"topic": " spaces stay "},
        "priority": "high",
        "max_turns": 3,
        "idempotency_key": "order-7",
        "retry": {"max_attempts": 2, "backoff": "1s"},
        "message_retry": {
            "max_attempts": 4,
            "backoff": "2s",
            "max_backoff": "24h",
            "jitter": "none",
            "non_retryable": ["no such"],
        },
        "requirements": {"region": "eu", "gpu": True, "model": "big"},
        "execution_policy": {"security": "deny", "resources": {"gpu": 1}, "network_enabled": True},
    },
    "TaskSchedule": {
        "task_ref": "weekly",
        "schedule": "0 9 * * mon-fri",
        "time_zone": "Europe/Berlin",
        "suspend": True,
        "starting_deadline_seconds": 60,
        "concurrency_policy": "replace",
        "missed": "all",
        "catch_up_limit": 3,
        "jitter": "30s",
        "input": {"topic": "Report of {{ slot_date }}"},
        "successful_history_limit": 0,
        "failed_history_limit": 0,
    },
    "TaskWebhook": {
        "task_ref": "ops/weekly",
        "suspend": False,
        "auth": {
            "profile": "generic",
            "secret_ref": "hook",
            "secret_refs": ["hook:old"],
            "signature_header": "X-Sig",
            "signature_prefix": "v1=",
            "encoding": "base64",
            "timestamp_header": "X-Time",
            "max_skew_seconds": 10,
        },
        "idempotency": {
            "event_id_header": "X-Id",
            "event_id_path": "$.id",
            "dedupe_window_seconds": 0,
            "same_signature": "duplicate",
        },
        "payload": {"mode": "json", "input_key": "body", "inputs": {"title": "$.pull_request.title"}},
        "filter": 'event == "push"',
        "rate_limit": {"requests": 5, "per": "1s", "burst": 2},
        "delivery_history_limit": 7,
    },
    "Worker": {
        "region": "eu",
        "capabilities": {"gpu": True, "supported_models": ["big"]},
        "max_concurrent_tasks": 4,
    },
    "Budget": {
        "scope": {"agent": "clerk", "user": "*", "labels": {"team": "support"}},
        "window": "month",
        "time_zone": "Europe/Berlin",
        "limit": {"amount": "250.00", "currency": "USD", "tokens": 9000000},
        "warn": [50, 80],
        "on_exceeded": "fail",
        "unpriced": "allow",
    },
    "ReferenceGrant": {
        "from": [{"namespace": "team-b", "kind": "Agent"}, {"namespace": "*"}],
        "to": [{"kind": "ModelEndpoint", "name": "paid"}, {"kind": "Secret"}],
    },
}


@pytest.fixture
def specimens() -> dict[str, dict[str, Any]]:
    """A normalised document with every part of its spec filled in, by kind."""
    documents: dict[str, dict[str, Any]] = {}
    for kind, spec in SPECS.items():
        documents[kind] = {
            "apiVersion": "foliot.dev/v1",
            "kind": kind,
            "metadata": {
                "name": "it",
                "namespace": "team-a",
                "labels": {"example.com/tier": "gold"},
                "annotations": {"note": "any text"},
                "uid": "u-1",
                "resourceVersion": "42",
                "generation": 3,
                "createdAt": "2026-01-02T03:04:05Z",
            },
            "spec": copy.deepcopy(spec),
            "status": {"phase": "Approved" if kind == "ToolApproval" else "Ready"},
        }
    return documents
