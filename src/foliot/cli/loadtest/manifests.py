"""What a load test declares for itself: a pipeline of three agents, a system too slow, one with a bad tool."""

from __future__ import annotations

from typing import Any, Final

from foliot.store.base import Document

LABEL: Final = "foliot.dev/loadtest"
SYSTEM: Final = "loadtest-pipeline"
TIMEOUT_SYSTEM: Final = "loadtest-timeout-system"
TIMEOUT_AGENT: Final = "loadtest-timeout-agent"
TOOL_SYSTEM: Final = "loadtest-tool-system"
_MODEL: Final = "loadtest-model"
_TOOL: Final = "loadtest-broken-tool"
_PIPELINE: Final = ("loadtest-planner", "loadtest-researcher", "loadtest-writer")


def broken_tool() -> str:
    """Fails whenever it is called."""
    raise RuntimeError("this tool fails on purpose")


def baseline(namespace: str, *, timeout: str) -> list[Document]:
    """Everything, as documents that can be applied. `timeout` is how long the agent has that is too slow for it."""
    script: list[dict[str, Any]] = [
        {"match": {"agent": list(_PIPELINE)}, "turns": [{"say": "{agent} on {input}"}]},
        {"match": {"agent": TIMEOUT_AGENT}, "turns": [{"say": "too late", "after": "1s"}]},
        {
            "match": {"agent": "loadtest-tool-agent"},
            "turns": [{"call": _TOOL}, {"say": "Done, although the tool said: {last_result}"}],
        },
    ]
    agents = [_agent(namespace, name) for name in _PIPELINE]
    agents.append(_agent(namespace, TIMEOUT_AGENT, limits={"timeout": timeout, "max_steps": 2}))
    agents.append(_agent(namespace, "loadtest-tool-agent", tools=[_TOOL]))
    return [
        _document(
            "ModelEndpoint",
            namespace,
            _MODEL,
            {"provider": "scripted", "default_model": "scripted", "script": script},
        ),
        _document(
            "Tool",
            namespace,
            _TOOL,
            {"type": "function", "function": f"{__name__}:broken_tool", "effect": "read"},
        ),
        *agents,
        _document("AgentSystem", namespace, SYSTEM, {"agents": list(_PIPELINE)}),
        _document("AgentSystem", namespace, TIMEOUT_SYSTEM, {"agents": [TIMEOUT_AGENT]}),
        _document("AgentSystem", namespace, TOOL_SYSTEM, {"agents": ["loadtest-tool-agent"]}),
    ]


def _agent(namespace: str, name: str, **spec: Any) -> Document:
    return _document("Agent", namespace, name, {"model_ref": _MODEL, "prompt": "Answer in one line.", **spec})


def _document(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> Document:
    return {
        "apiVersion": "foliot.dev/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "foliot-loadtest"}},
        "spec": spec,
    }
