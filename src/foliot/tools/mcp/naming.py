"""Names of generated Tools: `<server>--<tool>`, made of what every model provider accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

LONGEST: Final = 64
"""The longest name of a function that the large providers take."""

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9-]+")


def base_name(server: str, tool: str) -> str:
    """The name that a tool would like to have. `_`, `.` and everything unusual turn into `-`; long names are cut."""
    name = f"{_plain(server, 'server')}--{_plain(tool, 'tool')}"
    if len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-')}-{mark}"


def assign_names(
    server: str, tools: Iterable[str], *, kept: Mapping[str, str], taken: Collection[str]
) -> dict[str, str]:
    """A name for each tool. `kept` are the names that tools have already; `taken` belong to others.

    Tools that want the same name are numbered in the order of their own names: `a--b`, `a--b-2`. A name once given
    stays with its tool, whatever comes later.
    """
    tools = sorted(set(tools))
    names = {tool: kept[tool] for tool in tools if tool in kept}
    used = {*taken, *kept.values()}
    for tool in tools:
        if tool not in names:
            names[tool] = _free(base_name(server, tool), used)
            used.add(names[tool])
    return names


def _free(wanted: str, used: Collection[str]) -> str:
    name, number = wanted, 1
    while name in used:
        number += 1
        suffix = f"-{number}"
        name = wanted[: LONGEST - len(suffix)].rstrip("-") + suffix
    return name


def _plain(text: str, otherwise: str) -> str:
    return _FOREIGN.sub("-", text.replace("_", "-").replace(".", "-")).strip("-") or otherwise
