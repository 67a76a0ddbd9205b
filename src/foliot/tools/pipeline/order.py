"""The order of the calls in one step: which run side by side, and which one after another.

Two calls must follow each other when the tool of one declares `after` the other's, or when both touch the same thing
(a resource key with the arguments filled in) and at least one of them may change it; then the model's order decides.
A call whose fence shows the files of its run touches all of them, whatever its tool declares, and one whose fence can
write changes them. Everything else runs in parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foliot.errors import InvalidInput
from foliot.tools.base import ToolDefinition
from foliot.tools.pipeline.gates import qualified

_SLOT: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class OrderedCall:
    """One call as the planner sees it. `id` is unique in the step."""

    id: str
    definition: ToolDefinition
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OrderEdge:
    """`later` runs after `earlier`. `declared` by `after`: then a failure of the earlier one keeps it from running."""

    earlier: str
    later: str
    declared: bool


def edges(steps: Sequence[OrderedCall]) -> list[OrderEdge]:
    """Returns the order constraints.

    A cycle of `after` inside one step cannot be kept: the model's order decides it.
    """
    found: list[OrderEdge] = []
    keys = [resource_keys(step.definition, step.arguments) for step in steps]
    for at, step in enumerate(steps):
        for before, other in enumerate(steps):
            if other.definition.name in step.definition.after and before != at:
                mutual = step.definition.name in other.definition.after
                if not mutual or before < at:
                    found.append(OrderEdge(other.id, step.id, True))
            elif before < at and step.definition.name not in other.definition.after:
                reads = step.definition.effect == "read" and other.definition.effect == "read"
                meet = not reads and _overlap(keys[at], keys[before])
                if meet or _share_files(step.definition, other.definition):
                    found.append(OrderEdge(other.id, step.id, False))
    return found


def waves(steps: Sequence[OrderedCall]) -> list[list[str]]:
    """The calls in groups: each group runs when the one before it is done, its members side by side."""
    waiting: dict[str, set[str]] = {step.id: set() for step in steps}
    for edge in edges(steps):
        waiting[edge.later].add(edge.earlier)
    planned: list[list[str]] = []
    while waiting:
        ready = [name for name, before in waiting.items() if not before & waiting.keys()]
        # Longer cycles (of three and more) are broken the same way: the first of the model's order goes ahead.
        wave = ready or [next(iter(waiting))]
        for name in wave:
            del waiting[name]
        planned.append(wave)
    return planned


def resource_keys(definition: ToolDefinition, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Returns the keys of what a call touches. A key whose argument is missing stands for all of its kind: `file:*`."""
    return frozenset(_filled(key, arguments) for key in definition.resource_keys)


def _overlap(some: frozenset[str], others: frozenset[str]) -> bool:
    return not some.isdisjoint(others) or any(_covers(a, b) or _covers(b, a) for a in some for b in others)


def _share_files(one: ToolDefinition, other: ToolDefinition) -> bool:
    """Whether the fence of one shows all files of the run, and either may change files that the other sees."""
    if one.fence_access == other.fence_access == "none":
        return False  # what they declare of single files decides
    return one.touches_files and other.touches_files and (one.changes_files or other.changes_files)


def touch_each_other(definitions: Iterable[ToolDefinition | None]) -> bool:
    """Whether the order of calls of these tools can matter at all."""
    return any(each is not None and (each.after or each.resource_keys or each.touches_files) for each in definitions)


def _covers(key: str, other: str) -> bool:
    """Whether `file:*` stands for `file:/etc/hosts`. What is behind the star does not count: rather too careful."""
    start, star, _ = key.partition("*")
    return bool(star) and other.startswith(start)


def _filled(key: str, arguments: Mapping[str, Any]) -> str:
    return _SLOT.sub(lambda slot: str(arguments.get(slot[1], "*")), key)


def check_requirements(definitions: Sequence[ToolDefinition]) -> None:
    """Raises `InvalidInput`, with every gap, for tools that need others or capabilities which none of them has.

    Secrets are looked for when the tool is called: they may be there by then.
    """
    offered = {f"tool:{each.name}" for each in definitions}
    offered |= {f"capability:{name}" for each in definitions for name in each.capabilities}
    gaps = [
        f"{each.name} needs {need}"
        for each in definitions
        for need in map(qualified, each.requires)
        if not need.startswith("secret:") and need not in offered
    ]
    if gaps:
        raise InvalidInput(f"the tools do not fit together: {'; '.join(gaps)}", hint="give the agent what is missing")


def check_order(definitions: Iterable[ToolDefinition]) -> None:
    """Raises `InvalidInput` for tools that wait for each other by `after` or `requires_prior` for ever."""
    waits = {each.name: {*each.after, *each.requires_prior} for each in definitions}
    settled: set[str] = set()
    for start in waits:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                settled.add(name)
            elif name in path:
                cycle = " -> ".join([*path[path.index(name) :], name])
                raise InvalidInput(f"tools wait for each other: {cycle}", hint="take one of them out of after")
            elif name in waits and name not in settled:
                path.append(name)
                stack.append((name, True))
                stack.extend((before, False) for before in sorted(waits[name]))
