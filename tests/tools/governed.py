"""Calls, definitions and rules for tests of the pipeline, with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from foliot.tools.base import Caller, Invocation, ToolDefinition
from foliot.tools.governance.reader import read_rules
from foliot.tools.governance.rules import Rules


def definition(name: str = "refund", **fields: Any) -> ToolDefinition:
    return ToolDefinition(name, **fields)


def call(
    tool: str = "refund", arguments: dict[str, Any] | None = None, *, caller: Any = None, **fields: Any
) -> Invocation:
    given = {"run_id": "r1", "call_id": "c1", "idempotency_key": "r1/c1", **fields}
    return Invocation(tool=tool, arguments=arguments or {}, caller=caller or Caller(agent="desk"), **given)


def role(name: str, *permissions: str, namespace: str = "default") -> dict[str, Any]:
    return {
        "kind": "AgentRole",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"permissions": list(permissions)},
    }


def permission(name: str = "refund", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {"kind": "ToolPermission", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def policy(name: str = "house", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {
        "kind": "AgentPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"apply_mode": "global", **spec},
    }


def rules(*documents: dict[str, Any], **options: Any) -> Rules:
    return read_rules("default", documents, **options)


class FakeTime:
    """A clock that only moves when somebody sleeps, or a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
