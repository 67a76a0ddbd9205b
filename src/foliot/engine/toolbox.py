"""The tools behind the names that an agent lists: functions given in Python, or Tools declared in the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeAlias

from foliot.engine.definition import tool_definition
from foliot.errors import InvalidInput, NotFound
from foliot.store.base import Document, Key, ResourceStore
from foliot.tools.backends.agent import PREFIX
from foliot.tools.base import Tool
from foliot.tools.function import FunctionTool, tool
from foliot.tools.registry import Registry
from foliot.tools.versions import parse_version, split_request

AgentTools: TypeAlias = Callable[[str, str], Awaitable[Tool | None]]
"""The tool in front of an agent, by namespace and name; None when there is no such agent."""


async def tools_of(
    requests: Sequence[str],
    namespace: str,
    given: Registry,
    store: ResourceStore | None,
    agent: str,
    agents: AgentTools | None = None,
) -> list[Tool]:
    """The tools that an agent asks for, each as `name` or `name@version`, in that order; `agent:name` is an agent.

    Raises `NotFound` naming every one that is missing or has no such version, `InvalidInput`.
    """
    found: list[Tool] = []
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
            missing.append(name)
        elif constraint.allows(parse_version(version := document["spec"]["version"])):
            found.append(declared_tool(document))
        else:
            missing.append(f"{request} (there is {version})")
    if missing:
        raise NotFound(
            f"agent {agent!r} uses tools that are not there: {', '.join(missing)}",
            hint="apply a Tool of that name, or give the function to the Runtime",
        )
    return found


async def _declared(store: ResourceStore | None, namespace: str, name: str) -> Document | None:
    if store is None:
        return None
    try:
        return await store.get(Key("Tool", namespace, name))
    except NotFound:
        return None


def declared_tool(document: Document) -> Tool:
    """The backend of a Tool resource. Raises `InvalidInput` for a type that this version cannot call."""
    name, spec = document["metadata"]["name"], document["spec"]
    if spec["type"] != "function":
        raise InvalidInput(
            f"tool {name!r} has the type {spec['type']!r}, which this version of Foliot declares but cannot call yet",
            hint="tools of the type `function` can be called: a Python function by its import path",
        )
    return function_tool(document, _imported(spec["function"], name))


def function_tool(document: Document, function: Callable[..., Any]) -> FunctionTool:
    """A function under the definition of a Tool resource; what the resource leaves open comes from the signature."""
    declared, made = tool_definition(document), tool(name=document["metadata"]["name"])(function)
    # Everything that is declared holds, above all what rules go by: operation classes, capabilities, limits.
    whole = replace(
        declared,
        description=declared.description or made.definition.description,
        schema=made.definition.schema if declared.schema is None else declared.schema,
    )
    return made.with_definition(whole)


def _imported(path: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"the function of tool {name!r} cannot be imported: {path}: {error}",
            hint="the module must be installed, or on PYTHONPATH, where the run is driven",
        ) from error
    if isinstance(found, FunctionTool):
        return found.function
    if not callable(found):
        raise InvalidInput(f"tool {name!r}: {path} is not a function")
    return found
