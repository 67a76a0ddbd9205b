"""The tools behind the names that an agent lists: given in Python, declared in the store, or built in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from foliot.errors import NotFound
from foliot.store.base import Document, Key, ResourceStore
from foliot.tools.backends.agent import PREFIX
from foliot.tools.base import Tool, ToolDefinition
from foliot.tools.registry import Registry
from foliot.tools.versions import parse_version, split_request

MakeTool: TypeAlias = Callable[[Document], Tool]
"""The backend of a declared tool; see backends.py."""
BuiltinTools: TypeAlias = Callable[[str, str, Callable[[], Iterable[ToolDefinition]]], Tool | None]
"""A built-in tool by namespace and name, given all tools of its run; None when there is none of that name."""
AgentTools: TypeAlias = Callable[[str, str], Awaitable[Tool | None]]
"""The tool in front of an agent, by namespace and name; None when there is no such agent."""


class Found(NamedTuple):
    """`declared` are the names of those among `tools` that come from the store, the same for every process."""

    tools: list[Tool]
    declared: list[str]


async def tools_of(
    requests: Sequence[str],
    namespace: str,
    given: Registry,
    store: ResourceStore | None,
    agent: str,
    make: MakeTool,
    agents: AgentTools | None = None,
    builtin: BuiltinTools | None = None,
    pinned: Collection[str] = (),
) -> Found:
    """The tools that an agent asks for, each as `name` or `name@version`, in that order; `agent:name` is an agent.

    `pinned` are the names that were `declared` when the run began.
    Raises `NotFound` naming every one that is missing or has no such version, `InvalidInput`. The error says what this
    process `lacks` if another one may have it: what was declared and is no longer is gone for all of them.
    """
    found: list[Tool] = []
    declared: list[str] = []
    missing: list[str] = []
    for request in requests:
        name, constraint = split_request(request)
        if name in given:
            found.append(given.resolve(request))
        elif name.startswith(PREFIX) and agents is not None:
            if (delegated := await agents(namespace, name.removeprefix(PREFIX))) is None:
                missing.append(name)
            else:
                found.append(delegated)
        elif (document := await _declared(store, namespace, name)) is None:
            made = builtin(namespace, name, lambda: [each.definition for each in found]) if builtin else None
            if made is None:
                missing.append(name)
            elif constraint.allows(parse_version(version := made.definition.version)):
                found.append(made)
            else:
                missing.append(f"{request} (there is {version})")
        elif constraint.allows(parse_version(version := document["spec"]["version"])):
            found.append(make(document))
            declared.append(name)
        else:
            missing.append(f"{request} (there is {version})")
    if missing:
        error = NotFound(
            f"agent {agent!r} uses tools that are not there: {', '.join(missing)}",
            hint="apply a Tool of that name, or give the function to the Runtime",
        )
        if not any(name in pinned for name in missing):
            error.details["lacks"] = f"tool {', '.join(missing)}"
        raise error
    return Found(found, declared)


async def _declared(store: ResourceStore | None, namespace: str, name: str) -> Document | None:
    if store is None:
        return None
    try:
        return await store.get(Key("Tool", namespace, name))
    except NotFound:
        return None
