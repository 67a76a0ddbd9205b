"""Parts that are missing: what declared resources name and nobody has, and fields that no answer can have.

    parts = await look_up(store, documents, brings)         what is there of all that the documents name
    problems = missing_in(document, parts)                  what is not, each with its place and what was probably meant

The same look refuses a declaration (catalog/checks.py), and tells of one that was taken all the same: in the status of
the resource, in `foliot doctor`, and in the spec of each run in its scope, where `trace` and `why` read it. It is never
stored: a part that comes later is not missing any more.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from foliot.common.pages import read_all
from foliot.engine.definition.call_conditions import tools_meant
from foliot.engine.definition.providers import check_provider
from foliot.errors import InvalidInput
from foliot.resources.checks import find_missing
from foliot.resources.powers import declared_by_operator
from foliot.resources.problems import Problem
from foliot.resources.references import CONDITIONAL, FIELDS, Reference, is_name, references
from foliot.store.base import Document, Filter, Key, ResourceStore

if TYPE_CHECKING:
    from foliot.kernel.run.spec import RunSpec

Brings: TypeAlias = Callable[[Reference], Awaitable[bool]]
"""Whether this process has the part without a declaration: Python gives it, or a plug-in."""

# Where the spec of a run keeps what was missing around it when it began; of more, the number is told.
MISSING_PARTS: Final = "missing_parts"
MOST_TOLD: Final = 20
# What holds for every run of its namespace, whatever its agent names.
_RULES: Final = ("AgentPolicy", "Budget", "ToolPermission")
# What a run goes on to from its agent.
_FOLLOWED: Final = frozenset({"Agent", "AgentRole", "McpServer", "ModelEndpoint", "Tool"})


@dataclass(frozen=True)
class Parts:
    """The parts that exist beside some documents: `stored`, or brought; and the names that may have been meant."""

    stored: Mapping[Key, Document] = field(default_factory=dict[Key, Document])
    brought: Collection[Key] = frozenset()
    listed: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict[tuple[str, str], Collection[str]])

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        return self.stored.get(Key(kind, namespace, name))

    def has(self, kind: str, namespace: str, name: str) -> bool:
        key = Key(kind, namespace, name)
        return key in self.stored or key in self.brought

    def names(self, kind: str, namespace: str) -> Collection[str]:
        return self.listed.get((kind, namespace), ())


async def look_up(
    store: ResourceStore,
    documents: Sequence[Document],
    brings: Brings | None = None,
    *,
    operator: bool | None = None,
    beside: bool = True,
) -> Parts:
    """Look up everything that the documents name, if `beside` only what they do not bring along themselves.

    Variables of the environment are the Secrets of what the `operator` declares; None: as each document says.
    """
    given = {_key(document) for document in documents if beside}
    wanted = {
        Key(each.kind, each.namespace, each.name): (document, each)
        for document in documents
        for each in references(document)
    }
    # A tool named server--tool may come from the MCP server, which is therefore looked for as well.
    servers = {Key("McpServer", key.namespace, key.name.partition("--")[0]) for key in wanted if "--" in key.name}
    meant = {key for document in documents for key in tools_meant(document)}
    stored = await find_stored(store, (wanted.keys() | servers | meant) - given)
    brought: set[Key] = set()
    lacking: set[tuple[str, str]] = set()
    for key, (document, reference) in wanted.items():
        if key in given or key in stored:
            continue
        of_operator = declared_by_operator(document) if operator is None else operator
        if (of_operator and _in_environment(reference)) or (brings is not None and await brings(reference)):
            brought.add(key)
        elif key.namespace == _key(document).namespace and not (key.kind == "Tool" and is_built_in(key.name)):
            lacking.add((key.kind, key.namespace))
    listed = {
        (kind, space): [_key(each).name for each in await read_all(store.list, Filter(kind, space))]
        for kind, space in sorted(lacking)
    }
    for kind, space in listed:
        listed[kind, space] += built_in_names() if kind == "Tool" else ()
    return Parts(stored, brought, listed)


def is_built_in(tool: str) -> bool:
    return tool in built_in_names()


def built_in_names() -> list[str]:
    """The tools that come with Foliot. They are slow to load, and asked for only when one is named."""
    from foliot.tools.builtin.catalogue import NAMES

    return sorted(NAMES)


async def find_stored(store: ResourceStore, keys: Iterable[Key]) -> dict[Key, Document]:
    """The resources of these keys that are there. What cannot be a name is nobody's."""
    named = sorted(key for key in keys if is_name(key.name) and is_name(key.namespace))
    return {key: each.document for key, each in (await store.owned(named)).items()} if named else {}


def missing_in(document: Document, parts: Parts) -> Iterator[Problem]:
    """Yields what a stored document names and is not there, and fields in its conditions that there cannot be."""
    yield from find_missing(document, {}, parts.has, parts.find, parts.names, is_built_in)
    if document["kind"] == "ModelEndpoint":
        yield from check_provider(document)
    if document["kind"] in CONDITIONAL:
        from foliot.engine.definition.conditions import check_fields  # few have one, and it is slow to load

        yield from check_fields(document, parts.find)


async def find_missing_parts(
    store: ResourceStore, documents: Sequence[Document], brings: Brings | None = None
) -> list[tuple[int, Problem]]:
    """Finds what is missing of stored documents, each with the index of its document."""
    parts = await look_up(store, documents, brings, beside=False)
    return [(index, each) for index, document in enumerate(documents) for each in missing_in(document, parts)]


def _in_environment(reference: Reference) -> bool:
    if reference.kind != "Secret":
        return False
    from foliot.tools.secrets.secrets import EnvironmentSecrets, SecretRef

    try:
        ref = SecretRef.parse(reference.said.removeprefix("secret:"), reference.namespace)
    except InvalidInput:
        return False
    return any(os.environ.get(variable) for variable in EnvironmentSecrets().variables(ref))


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", "default"), metadata["name"])


# --- of a run --------------------------------------------------------------------------------------------------------


class MissingParts:
    """The missing parts around the runs of each agent, looked at anew only when something has changed."""

    def __init__(
        self,
        store: ResourceStore | None,
        brings: Brings | None = None,
        given: Callable[[str, str], Document | None] = lambda namespace, name: None,
    ) -> None:
        """`given` finds the document of an agent that Python gives, by namespace and name."""
        self._given = given
        self._store = store
        self._brings = brings
        self._revision: int | None = None
        self._known: dict[tuple[str, str, str], tuple[str, ...]] = {}

    async def around(self, document: Document, mark: str = "") -> tuple[str, ...]:
        """Sentences on what is missing in the scope of an agent: of itself, of whom it may call, of the rules there.

        `mark` tells agents of one name apart, which Python gives one after the other.
        """
        if self._store is None:
            return ()
        await self._follow(self._store)
        key = _key(document)
        place = (key.namespace, key.name, mark)
        if place not in self._known:
            scope = await self._scope(self._store, document)
            found = await find_missing_parts(self._store, scope, self._brings)
            texts = [f"{_title(scope[index], key.namespace)}: {problem}" for index, problem in found]
            more = [f"and {len(texts) - MOST_TOLD} more"] if len(texts) > MOST_TOLD else []
            self._known[place] = (*texts[:MOST_TOLD], *more)
        return self._known[place]

    async def _follow(self, store: ResourceStore) -> None:
        revision = await store.revision()
        if self._revision == revision:
            return
        since = None if self._revision is None else await store.changed(self._revision, _KINDS)
        if since is None or since.changes or since.revision < revision:
            self._known.clear()
        self._revision = revision

    async def _scope(self, store: ResourceStore, agent: Document) -> list[Document]:
        scope = {_key(agent): agent}
        for kind in _RULES:
            for rule in await read_all(store.list, Filter(kind, _key(agent).namespace)):
                scope[_key(rule)] = rule
        todo: list[Document] = [agent]
        while todo:
            named = {Key(each.kind, each.namespace, each.name) for document in todo for each in references(document)}
            fresh = {key for key in named - scope.keys() if key.kind in _FOLLOWED}
            found = await find_stored(store, fresh)
            for key in fresh - found.keys():
                if key.kind == "Agent" and (own := self._given(key.namespace, key.name)) is not None:
                    found[key] = own
            scope |= found
            todo = list(found.values())
        return list(scope.values())


# Of these a change can bring or take a part.
_KINDS: Final = tuple(sorted({*FIELDS, *(kind for rows in FIELDS.values() for _, kind, _ in rows)} - {"Task"}))


def _title(document: Document, namespace: str) -> str:
    key = _key(document)
    return f"{key.kind}/{key.name}" if key.namespace == namespace else f"{key.kind}/{key.namespace}/{key.name}"


def parts_missing_in(spec: RunSpec) -> tuple[str, ...]:
    """Returns what was missing around a run when it began, in sentences."""
    return msgspec.convert(spec.extra.get(MISSING_PARTS, ()), tuple[str, ...])


def with_missing_parts(spec: RunSpec, texts: Sequence[str]) -> RunSpec:
    """The spec of a run that begins although something is missing around it."""
    return replace(spec, extra={**spec.extra, MISSING_PARTS: list(texts)}) if texts else spec


def missing_condition(problems: Sequence[Problem]) -> dict[str, Any]:
    """The condition in the status of a resource whose parts are missing."""
    message = "; ".join(map(str, problems[:MOST_TOLD]))
    return {"type": "PartsPresent", "status": "False", "reason": "PartsMissing", "message": message}


async def with_missing_told(
    store: ResourceStore, documents: Sequence[Document], brings: Brings | None = None
) -> list[Document]:
    """The documents, with a condition in the status of each of which a part is missing; its phase is then Error."""
    told: dict[int, list[Problem]] = {}
    for index, each in await find_missing_parts(store, documents, brings):
        told.setdefault(index, []).append(each)
    return [_told(each, told[index]) if index in told else each for index, each in enumerate(documents)]


# Phases of a resource with which nothing is wrong.
_FINE: Final = frozenset({"", "Ready", "Pending"})


def _told(document: Document, problems: Sequence[Problem]) -> Document:
    status: dict[str, Any] = document.get("status") or {}
    condition = missing_condition(problems)
    others = [each for each in status.get("conditions") or () if each.get("type") != condition["type"]]
    fine = status.get("phase", "") in _FINE
    phase = {"phase": "Error", "lastError": condition["message"]} if fine else {}
    return {**document, "status": {**status, **phase, "conditions": [*others, condition]}}
