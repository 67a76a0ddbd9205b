"""Agents made in Python, held against what is there: what they name and nobody has is an error when they are run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from foliot.engine.definition.missing import MOST_TOLD, Brings, look_up, problems_of
from foliot.resources.problems import Finding, ManifestError
from foliot.store.base import Filter, Key, Owned, Page, ResourceStore

if TYPE_CHECKING:
    from foliot.runtime.agent import Agent

ALLOWED = "declare it, or take it as it is with Runtime(allow_missing=True): its runs tell what is missing"


class _Nothing:
    """The store of a runtime in memory: it has nothing."""

    async def owned(self, keys: Iterable[Key]) -> Mapping[Key, Owned]:
        return {}

    async def list(self, filter: Filter, *, limit: int = 500, cursor: str | None = None) -> Page:
        return Page([], None, 0)


def with_helpers(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """An agent, and all that were given to it as tools, each once."""
    seen: dict[int, Agent[Any]] = {}
    todo = [agent]
    while todo:
        each = todo.pop(0)
        if id(each) not in seen:
            seen[id(each)] = each
            yield each
            todo += each.agents


async def missing_of(
    agent: Agent[Any], store: ResourceStore | None, brings: Brings, tools: Iterable[str] = ()
) -> list[Finding]:
    """Finds what an agent and its helpers name and is not there. `tools` may have been meant, besides their own."""
    documents = [each.document for each in with_helpers(agent)]
    parts = await look_up(store or cast("ResourceStore", _Nothing()), documents, brings, operator=True, beside=False)
    own = [*tools, *(tool.definition.name for each in with_helpers(agent) for tool in each.tools)]
    listed = {place: [*own, *names] if place[0] == "Tool" else names for place, names in parts.listed.items()}
    parts = replace(parts, listed=listed)
    return [
        Finding(problem, f"Agent({document['metadata']['name']!r})", kind="Agent", name=document["metadata"]["name"])
        for document in documents
        for problem in problems_of(document, parts)
    ]


def check_missing(found: Sequence[Finding]) -> None:
    """Raises `ManifestError` when something is missing, as it would be for a manifest."""
    if found:
        raise ManifestError(list(found), hint=ALLOWED)


def told(found: Sequence[Finding]) -> tuple[str, ...]:
    """Sentences on what is missing, for the run that begins all the same."""
    texts = [f"Agent/{each.name}: {each.problem}" for each in found]
    return (*texts[:MOST_TOLD], *([f"and {len(texts) - MOST_TOLD} more"] if len(texts) > MOST_TOLD else []))
