"""What documents point to: which field of which kind names what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from foliot.resources.problems import Path

Form: TypeAlias = Literal["name", "ref", "secret", "tool"]


@dataclass(frozen=True, slots=True)
class Reference:
    """One mention of another resource. `said` is how it is written; `path` where."""

    path: Path
    kind: str
    namespace: str
    name: str
    said: str


# (field, kind it names, how). `name` is in the same namespace; `ref` is [namespace/]name; `secret` may add :key,
# `tool` @version.
_SECRET: Final = ("auth.secretRef", "Secret", "secret")
_FIELDS: Final[Mapping[str, tuple[tuple[str, str, Form], ...]]] = {
    "Agent": (
        ("model_ref", "ModelEndpoint", "ref"),
        ("fallbacks", "ModelEndpoint", "ref"),
        ("tools", "Tool", "tool"),
        ("allowed_tools", "Tool", "name"),
        ("execution.tool_sequence", "Tool", "name"),
        ("roles", "AgentRole", "ref"),
        ("memory.ref", "Memory", "name"),
    ),
    "AgentSystem": (("agents", "Agent", "name"),),
    "ModelEndpoint": (("fallbacks", "ModelEndpoint", "ref"), _SECRET),
    "Tool": (
        ("mcp_server_ref", "McpServer", "ref"),
        ("requires", "Tool", "name"),
        ("requires_prior", "Tool", "name"),
        ("after", "Tool", "name"),
        _SECRET,
    ),
    "Memory": (("embedding_model", "ModelEndpoint", "ref"), _SECRET),
    "McpServer": (("env.secretRef", "Secret", "secret"), _SECRET),
    "AgentPolicy": (("target_systems", "AgentSystem", "name"),),
    "Budget": (("scope.agent", "Agent", "name"),),
    "ToolPermission": (("tool_ref", "Tool", "tool"), ("target_agents", "Agent", "name")),
    "ToolApproval": (("task_ref", "Task", "ref"), ("tool", "Tool", "name")),
    "Task": (("system", "AgentSystem", "name"), ("agent", "Agent", "name")),
    "TaskSchedule": (("task_ref", "Task", "ref"),),
    "TaskWebhook": (
        ("task_ref", "Task", "ref"),
        ("auth.secret_ref", "Secret", "secret"),
        ("auth.secret_refs", "Secret", "secret"),
    ),
}


def references(document: Mapping[str, Any]) -> Iterator[Reference]:
    """Every mention of another resource in a normalised document."""
    namespace = document["metadata"].get("namespace", "default")
    for field, kind, form in _FIELDS.get(document["kind"], ()):
        for path, said in _values(document.get("spec", {}), field.split("."), ("spec",)):
            yield from _reference(path, kind, form, namespace, said)


def _reference(path: Path, kind: str, form: Form, namespace: str, said: str) -> Iterator[Reference]:
    if path[1] == "requires":
        what, colon, name = said.partition(":")
        if colon and what == "capability":
            return
        kind, said = ("Secret", name) if what == "secret" and colon else ("Tool", name if colon else said)
        form = "secret" if kind == "Secret" else "name"
    if form == "tool" and said.startswith("agent:"):  # an agent that this one may call
        yield Reference(path, "Agent", namespace, said.removeprefix("agent:"), said)
        return
    if said == "*":  # each of them, and none by its name
        return
    bare = said.partition(":")[0] if form == "secret" else said.partition("@")[0] if form == "tool" else said
    where, slash, name = bare.rpartition("/") if form in ("ref", "secret") else ("", "", bare)
    yield Reference(path, kind, where if slash else namespace, name, said)


def _values(value: Any, steps: Sequence[str], path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _values(item, steps, (*path, index))
    elif not steps:
        if isinstance(value, str):
            yield path, value
    elif isinstance(value, dict):
        inner = cast("dict[str, Any]", value).get(steps[0])
        yield from _values(inner, steps[1:], (*path, steps[0]))
