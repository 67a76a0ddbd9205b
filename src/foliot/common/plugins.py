"""Plug-ins that installed packages offer, by their entry points. Nothing of them is imported here.

    [project.entry-points."foliot.hooks"]
    acme = "acme_foliot:hooks"

A plug-in is a name in one or more of the groups below, of one package. It is active once the operator has named it in
the setting `plugins`; what is only installed does nothing, not even load.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS: Final = {
    "tools": "foliot.tools",
    "hooks": "foliot.hooks",
    "models": "foliot.models",
    "channels": "foliot.channels",
}
# The plug-ins that this process may load, as its settings name them: set by whoever has read the settings.
ENABLED: Final[set[str]] = set()


def enable(names: tuple[str, ...]) -> None:
    """Let this process load these plug-ins, and no others."""
    ENABLED.clear()
    ENABLED.update(names)


@dataclass(frozen=True, slots=True)
class OfferedPlugin:
    """A plug-in as its package describes it: `entries` are by kind."""

    name: str
    package: str
    version: str
    entries: dict[str, EntryPoint] = field(default_factory=dict[str, "EntryPoint"], compare=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted(self.entries))


def installed() -> list[OfferedPlugin]:
    """Every plug-in of every installed package, by name. Never raises: a package that cannot be read offers nothing."""
    from importlib.metadata import entry_points  # every start would pay for it

    importlib.invalidate_caches()  # somebody may have installed one since
    found: dict[tuple[str, str], OfferedPlugin] = {}
    for kind, group in GROUPS.items():
        for entry in entry_points(group=group):
            package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("?", "?")
            offered = found.setdefault((entry.name, package), OfferedPlugin(entry.name, package, version))
            offered.entries[kind] = entry
    return [found[key] for key in sorted(found)]
