"""The presets that come with Foliot: kinds of helpers that an agent can give a task to. A declared one replaces them.

A preset names tools that its agent may lack: a helper has those of them that the agent has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from foliot.tools.backends.agent import Preset

# The preset of a task that names neither an agent nor a preset.
GENERAL: Final = "general"

BUILT_IN: Final = (
    Preset(
        GENERAL,
        "Any piece of work that can be described completely in the task, with all of your tools.",
        "You work on one task for another agent, which sees nothing of your work but your last answer. Nobody answers "
        "questions. Do the task with what you have, and end with everything that was asked for.",
    ),
    Preset(
        "explore",
        "Finding out something: reads, searches and reports, and changes nothing.",
        "You find things out for another agent, which sees nothing of your work but your last answer. Read and search; "
        "change nothing. Answer with what you found and where, such as files with line numbers, and say what you could "
        "not find.",
        tools=("read", "glob", "grep", "http_get", "read_result", "list_tools", "memory.read", "memory.search"),
    ),
    Preset(
        "review",
        "Judging a piece of work: reads it critically and reports what is wrong.",
        "You review the work of another agent, which sees nothing but your last answer. Look at the work itself, not "
        "only at what is said of it. List what is wrong or missing, the worst first, each with its place and why. If "
        "nothing is, say so plainly.",
        tools=("read", "glob", "grep", "read_result"),
    ),
)


def merged(*layers: Iterable[Preset]) -> tuple[Preset, ...]:
    """Returns the presets of all layers, in rising priority: one of the same name replaces the earlier in its place."""
    found: dict[str, Preset] = {}
    for layer in layers:
        found.update((each.name, each) for each in layer)
    return tuple(found.values())
