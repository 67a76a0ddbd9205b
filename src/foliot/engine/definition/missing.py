"""Parts that are missing: what declared resources name and nobody has, and fields that no answer can have.

    parts = await look_up(store, documents, brings)         what is there of all that the documents name
    found = await judge_stored(store, documents, brings)    what is not, each with its place and what was probably meant

The same look refuses a declaration (catalog/checks.py), and tells of one that was taken all the same: in the status of
the resource, in `foliot doctor`, and in the spec of each run in its scope (run_scope.py), where `trace` and `why` read
it. It is never stored: a part that comes later is not missing any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from foliot.common.pages import read_pages
from foliot.common.threads import unhurried
from foliot.engine.definition.call_conditions import tools_meant
from foliot.engine.definition.providers import check_provider
from foliot.engine.definition.references import Lists
from foliot.errors import InvalidInput
from foliot.resources.checks import find_missing
from foliot.resources.names import tool_token
from foliot.resources.powers import declared_by_operator
from foliot.resources.problems import Problem
from foliot.resources.references import CONDITIONAL, GRANT, Reference, is_name, references
from foliot.store.base import Document, Filter, Key, Owned, Page

Brings: TypeAlias = Callable[[Reference], Awaitable[bool]]
"""Whether this process has the part without a declaration: Python gives it, or a plug-in."""

# Of more problems than these the number is told, and nobody looks for what was probably meant.
MOST_TOLD: Final = 20
# What a document counts for when it is told whether they are many: some hundred are judged beside the event loop.
PER_DOCUMENT: Final = 400
# So many resources are looked up before others have their turn.
_SLICE: Final = 200
# The kinds of `lists_around`.
AROUND: Final = (GRANT, "McpServer")


class Lookups(Lists, Protocol):
    """A store, as far as parts are looked up in it."""

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]: ...


class StoreAfter:
    """A store as it will be when these documents are in it, and these resources are gone."""

    def __init__(self, store: Lookups, gone: Collection[Key], put: Iterable[Document] = ()) -> None:
        self._store = store
        self._gone = frozenset(gone)
        self._put = {key_of(each): each for each in put}

    async def owned(self, keys: Sequence[Key]) -> dict[Key, Owned]:
        found = await self._store.owned([key for key in keys if key not in self._gone and key not in self._put])
        return {**found, **{key: Owned(self._put[key], {}) for key in keys if key in self._put}}

    async def list(self, filter: Filter, *, cursor: str | None = None) -> Page:
        page = await self._store.list(filter, cursor=cursor)
        items = [each for each in page.items if key_of(each) not in self._gone and key_of(each) not in self._put]
        if cursor is None:
            items += [
                each for key, each in self._put.items() if (key.kind, key.namespace) == (filter.kind, filter.namespace)
            ]
        return replace(page, items=items)


@dataclass(frozen=True)
class Parts:
    """The parts that exist beside some documents: `stored`, or brought; and the names that may have been meant.

    `read` takes down the keys of the resources that are looked into, also of those that do not exist.
    """

    stored: Mapping[Key, Document] = field(default_factory=dict[Key, Document])
    brought: Collection[Key] = frozenset()
    listed: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict[tuple[str, str], Collection[str]])
    read: set[Key] = field(default_factory=set[Key])

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        key = Key(kind, namespace, name)
        self.read.add(key)
        return self.stored.get(key)

    def has(self, kind: str, namespace: str, name: str) -> bool:
        key = Key(kind, namespace, name)
        return key in self.stored or key in self.brought

    def names(self, kind: str, namespace: str) -> Collection[str]:
        return self.listed.get((kind, namespace), ())


async def look_up(
    store: Lookups,
    documents: Sequence[Document],
    brings: Brings | None = None,
    *,
    operator: bool | None = None,
    beside: bool = True,
) -> Parts:
    """Look up everything that the documents name, if `beside` only what they do not bring along themselves.

    Variables of the environment are the Secrets of what the `operator` declares; None: as each document says.
    """
    given = {key_of(document) for document in documents if beside}
    wanted = await unhurried(PER_DOCUMENT * len(documents), _wanted, documents)
    meant = {key for document in documents for key in tools_meant(document)}
    stored = await find_stored(store, (wanted.keys() | meant) - given)
    brought: set[Key] = set()
    lacking: set[Key] = set()
    alike: set[Key] = set()
    for index, key in enumerate(wanted.keys() - stored.keys() - given, 1):
        document, reference = wanted[key]
        of_operator = declared_by_operator(document) if operator is None else operator
        if (of_operator and _in_environment(reference)) or (brings is not None and await brings(reference)):
            brought.add(key)
        elif key.namespace == key_of(document).namespace and not (key.kind == "Tool" and is_built_in(key.name)):
            lacking.add(key)
            token = replace(reference, name=tool_token(key.name), said=tool_token(key.name))
            if brings is not None and key.kind == "Tool" and token.name != key.name and await brings(token):
                alike.add(named(token))  # for rules they are the same
        if not index % _SLICE:
            await asyncio.sleep(0)
    listed: dict[tuple[str, str], tuple[str, ...]] = {}
    others = set(lists_around(lacking))
    for kind, space in sorted({(key.kind, key.namespace) for key in lacking} | others):
        found = {key_of(each): each for each in await find_all(store, Filter(kind, space))}
        stored |= {key: each for key, each in found.items() if (kind, space) in others and key not in given}
        names = [key.name for key in (*found, *alike) if (key.kind, key.namespace) == (kind, space)]
        listed[kind, space] = (*names, *(built_in_names() if kind == "Tool" else ()))
    # What came between the two looks is there.
    known = {place: frozenset(names) for place, names in listed.items()}
    came = [key for key in lacking if key.name in known[key.kind, key.namespace]]
    return Parts({**stored, **await find_stored(store, came)}, brought, listed)


def _wanted(documents: Sequence[Document]) -> dict[Key, tuple[Document, Reference]]:
    return {named(each): (document, each) for document in documents for each in references(document)}


def named(reference: Reference) -> Key:
    return Key(reference.kind, reference.namespace, reference.name)


def key_of(document: Document) -> Key:
    metadata = document["metadata"]
    return Key(document["kind"], metadata.get("namespace", "default"), metadata["name"])


def lists_around(lacking: Iterable[Key]) -> Iterator[tuple[str, str]]:
    """The lists (kind, namespace) that say whether what has no declaration is there all the same.

    A tool may come from an MCP server; what a role allows, be in another namespace whose agents have that role.
    """
    yield from ((kind, key.namespace) for key in lacking if key.kind in ("Agent", "Tool") for kind in AROUND)


def is_built_in(tool: str) -> bool:
    from foliot.tools.builtin.catalogue import NAMES

    return tool in NAMES


def built_in_names() -> list[str]:
    """The tools that come with Foliot. They are slow to load, and asked for only when one is named."""
    from foliot.tools.builtin.catalogue import NAMES

    return sorted(NAMES)


async def find_stored(store: Lookups, keys: Iterable[Key]) -> dict[Key, Document]:
    """The resources of these keys that are there. What cannot be a name is nobody's."""
    found: dict[Key, Document] = {}
    wanted = [key for key in keys if is_name(key.name) and is_name(key.namespace)]
    for start in range(0, len(wanted), _SLICE):
        found |= {key: each.document for key, each in (await store.owned(wanted[start : start + _SLICE])).items()}
        await asyncio.sleep(0)
    return found


async def find_all(store: Lookups, filter: Filter) -> list[Document]:
    """Reads a whole list. Others have their turn between its pages."""
    found: list[Document] = []
    async for page in read_pages(store.list, filter):
        found += page.items
        await asyncio.sleep(0)
    return found


def problems_of(document: Document, parts: Parts, *, suggest: bool = True) -> Iterator[Problem]:
    """Yields what a document names and is not there, and fields in its conditions that there cannot be."""
    yield from find_missing(document, {}, parts.has, parts.find, parts.names, is_built_in, suggest=suggest)
    if document["kind"] == "ModelEndpoint":
        yield from check_provider(document)
    if document["kind"] in CONDITIONAL:
        from foliot.engine.definition.conditions import check_fields  # few have one, and it is slow to load

        yield from check_fields(document, parts.find)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The problems of one document, and the keys of the resources that were looked into to find them."""

    problems: list[Problem]
    read: Collection[Key]


def judge(documents: Sequence[Document], parts: Parts) -> list[Judgement]:
    """Finds for each stored document what it names and is not there, and fields of conditions that there cannot be.

    What was probably meant is said of the first `MOST_TOLD`: looking for it among all names takes its time.
    """
    found: list[Judgement] = []
    count = 0
    for document in documents:
        suggest = count < MOST_TOLD
        seen = replace(parts, read=set())
        problems = [*problems_of(document, seen, suggest=suggest)]
        found.append(Judgement(problems, seen.read))
        count += len(problems)
    return found


async def judge_stored(
    store: Lookups, documents: Sequence[Document], brings: Brings | None = None
) -> list[list[Problem]]:
    """Finds what is missing of each stored document now. Many are judged beside the event loop."""
    parts = await look_up(store, documents, brings, beside=False)
    found = await unhurried(PER_DOCUMENT * len(documents), judge, documents, parts)
    return [each.problems for each in found]


def _in_environment(reference: Reference) -> bool:
    if reference.kind != "Secret":
        return False
    from foliot.tools.secrets.secrets import EnvironmentSecrets, SecretRef

    try:
        ref = SecretRef.parse(reference.said.removeprefix("secret:"), reference.namespace)
    except InvalidInput:
        return False
    return any(os.environ.get(variable) for variable in EnvironmentSecrets().variables(ref))


# --- in the status ---------------------------------------------------------------------------------------------------

# Phases of a resource with which nothing is wrong.
_FINE: Final = frozenset({"", "Ready", "Pending"})
_CONDITION: Final = "PartsPresent"


async def add_conditions(store: Lookups, documents: Sequence[Document], brings: Brings | None = None) -> list[Document]:
    """The documents, with a condition in the status of each of which a part is missing; its phase is then Error."""
    found = await judge_stored(store, documents, brings)
    return [_told(each, problems) if problems else each for each, problems in zip(documents, found, strict=True)]


def _told(document: Document, problems: Sequence[Problem]) -> Document:
    message = "; ".join(map(str, problems[:MOST_TOLD]))
    condition = {"type": _CONDITION, "status": "False", "reason": "PartsMissing", "message": message}
    status: dict[str, Any] = document.get("status") or {}
    others = [each for each in status.get("conditions") or () if each.get("type") != _CONDITION]
    fine = status.get("phase", "") in _FINE
    phase = {"phase": "Error", "lastError": message} if fine else {}
    return {**document, "status": {**status, **phase, "conditions": [*others, condition]}}
