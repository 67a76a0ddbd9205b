"""Targets that callers can name: the agents and systems of the namespaces that they see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from foliot.common.pages import read_pages
from foliot.errors import InvalidInput, NotFound
from foliot.resources.references import target_of
from foliot.server.auth.identity import Caller
from foliot.store.base import Document, Filter, Key, ResourceStore

TargetKind: TypeAlias = Literal["agent", "system"]
KINDS: Final[dict[TargetKind, str]] = {"agent": "Agent", "system": "AgentSystem"}
# A person can name the kind, where an agent and a system have the same name.
_PREFIXES: Final[dict[str, TargetKind]] = {"agent:": "agent", "system:": "system"}


@dataclass(frozen=True, slots=True)
class WorkTarget:
    """An agent or a system that can be given work."""

    kind: TargetKind
    document: Document

    @property
    def namespace(self) -> str:
        return self.document["metadata"].get("namespace", "default")

    @property
    def name(self) -> str:
        return self.document["metadata"]["name"]

    @property
    def description(self) -> str:
        spec: dict[str, Any] = self.document["spec"]
        return str(spec.get("description", ""))

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The shape that an agent's answers have; systems have none."""
        return self.document["spec"].get("output_schema") if self.kind == "agent" else None


async def find_target(store: ResourceStore, caller: Caller, word: str, namespace: str = "default") -> WorkTarget:
    """The target `name`, `namespace/name`, or `agent:name`, `system:name`. An agent comes before a system.

    Raises `NotFound`, in the same words whether it is missing or not theirs to see.
    """
    given, slash, name = word.strip().rpartition("/")
    kinds: tuple[TargetKind, ...] = ("agent", "system")
    for prefix, kind in _PREFIXES.items():
        if name.startswith(prefix):
            kinds = (kind,)
            name = name.removeprefix(prefix)
    try:
        _, space, name = target_of("Agent", f"{given}{slash}{name}", namespace)
    except InvalidInput:
        kinds = ()
        space = ""
    if caller.sees(space):
        for kind in kinds:
            try:
                return WorkTarget(kind, await store.get(Key(KINDS[kind], space, name)))
            except NotFound:
                continue
    raise NotFound(f"there is no agent or system {word!r}", hint="GET /v1/models lists those that you can use")


async def list_targets(store: ResourceStore, caller: Caller, namespace: str | None = None) -> AsyncIterator[WorkTarget]:
    """All agents, then all systems, that the caller sees."""
    for kind, resource in KINDS.items():
        wanted = caller.narrowed(Filter(resource, namespace))
        if wanted is None:
            continue
        async for page in read_pages(store.list, wanted):
            for document in page.items:
                yield WorkTarget(kind, document)
