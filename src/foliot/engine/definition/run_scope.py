"""The parts that are missing in the scope of a run: of its agent, of what that goes on to, and of the rules around it.

    texts = await missing.around(document)      sentences, for the spec of a run that begins
    texts = missing_in(spec)                    the same, of a run that has begun

The rules of a namespace are judged once for all of its agents, and after a change only those that it concerns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from foliot.common.threads import unhurried
from foliot.engine.definition.missing import (
    AROUND,
    MOST_TOLD,
    PER_DOCUMENT,
    Brings,
    Parts,
    find_all,
    find_stored,
    judge,
    key_of,
    lists_around,
    look_up,
    named,
)
from foliot.kernel.run.spec import RunSpec
from foliot.resources.problems import Problem
from foliot.resources.references import FIELDS, references
from foliot.store.base import Change, Document, Filter, Key, ResourceStore

# Where the spec of a run keeps what was missing around it when it began.
_MISSING: Final = "missing_parts"
# What holds for every run of its namespace, whatever its agent names.
_RULES: Final = ("AgentPolicy", "Budget", "ToolPermission")
# What a run goes on to from its agent.
_FOLLOWED: Final = frozenset({"Agent", "AgentRole", "McpServer", "ModelEndpoint", "Tool"})
# Of these a change can bring or take a part.
_KINDS: Final = tuple(
    sorted(
        {*_RULES, *_FOLLOWED, *AROUND}.union(
            kind for one in (*_RULES, *_FOLLOWED) for _, kind, _ in FIELDS.get(one, ())
        )
    )
)
# So many agents of a namespace are remembered.
_MOST_SCOPES: Final = 1000
# In the place of a name, any: the names of a kind in a namespace have changed.
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The parts that are missing of one document.

    It holds until one of `read` changes, or one of `named` comes or goes.
    """

    document: Document
    problems: tuple[Problem, ...]
    read: frozenset[Key]
    named: frozenset[Key]


@dataclass(frozen=True, slots=True)
class _Scope:
    """The parts that are missing of an agent and of what it goes on to, as one verdict on it.

    `given` are the agents among them that Python gives.
    """

    verdict: _Verdict
    given: Mapping[Key, Document]
    texts: tuple[str, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class _Space:
    """The parts that are missing in a namespace at a revision: of its rules, and of agents that were asked about.

    Whatever is put here was looked up after the revision was noted. Who follows the changes since then hears of all
    that may have come too late for it, and who looks at another revision does not take it.
    """

    revision: int
    generation: int
    rules: Mapping[Key, _Verdict]
    texts: tuple[str, ...]
    scopes: dict[Key, _Scope] = field(default_factory=dict[Key, _Scope])
    turns: dict[Key, asyncio.Lock] = field(default_factory=dict[Key, asyncio.Lock])


class _Changes:
    """The keys that changes concern: documents by key, the last change of each, and what came or went."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.last = {key_of(change.document): change for change in changes}
        self._read = frozenset(self.last)
        moved = {key_of(change.document) for change in changes if change.action != "updated"}
        self._named = frozenset(moved | set(map(_any, moved)))

    def concern(self, verdict: _Verdict) -> bool:
        return not (verdict.read.isdisjoint(self._read) and verdict.named.isdisjoint(self._named))


def _any(key: Key) -> Key:
    return Key(key.kind, key.namespace, _ANY)


class MissingParts:
    """The missing parts around the runs of each agent. Only what a change concerns is looked up and judged again."""

    def __init__(
        self,
        store: ResourceStore | None,
        brings: Brings | None = None,
        given: Callable[[str, str], Document | None] = lambda namespace, name: None,
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        """`given` finds the document of an agent that Python gives, by namespace and name. `generation` grows whenever
        this process may have got a part that it had not before.
        """
        self._store = store
        self._brings = brings
        self._given = given
        self._generation = generation
        self._spaces: dict[str, _Space] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def around(self, document: Document) -> tuple[str, ...]:
        """Tells what is missing in the scope of an agent: of itself, of whom it may call, of the rules there."""
        if self._store is None:
            return ()
        key = key_of(document)
        space = await self._space(self._store, key.namespace)
        scope = space.scopes.get(key)
        if scope is None or not self._holds(scope, document):
            # Of many runs of an agent that begin after a change, the first looks for all of them.
            async with space.turns.setdefault(key, asyncio.Lock()):
                scope = space.scopes.get(key)
                if scope is None or not self._holds(scope, document):
                    scope = space.scopes[key] = await self._scope(self._store, document)
                    if len(space.scopes) > _MOST_SCOPES:
                        space.scopes.pop(next(iter(space.scopes)))
                space.turns.pop(key, None)
        texts = (*scope.texts, *space.texts)
        return texts if len(texts) <= MOST_TOLD else (*texts[:MOST_TOLD], f"and {len(texts) - MOST_TOLD} more")

    def _holds(self, scope: _Scope, document: Document) -> bool:
        """Whether it is about this agent, and about what Python gives by now; it takes back nothing that it gave."""
        return (
            scope.verdict.document == document
            and (not scope.texts or scope.generation == self._generation())
            and all(self._given(key.namespace, key.name) == each for key, each in scope.given.items())
        )

    async def _space(self, store: ResourceStore, namespace: str) -> _Space:
        revision = await store.revision()
        if (known := self._spaces.get(namespace)) is not None and self._is_of(known, revision):
            return known
        # Of many that ask after a change, the first judges the rules for all of them.
        async with self._turns.setdefault(namespace, asyncio.Lock()):
            revision = await store.revision()
            known = self._spaces.get(namespace)
            if known is None or not self._is_of(known, revision):
                known = None if known is None else await self._followed(store, namespace, known, revision)
                known = self._spaces[namespace] = known or await self._read(store, namespace, revision)
            return known

    def _is_of(self, space: _Space, revision: int) -> bool:
        return space.revision == revision and (not space.texts or space.generation == self._generation())

    async def _read(self, store: ResourceStore, namespace: str, revision: int) -> _Space:
        generation = self._generation()
        rules = [rule for kind in _RULES for rule in await find_all(store, Filter(kind, namespace))]
        verdicts = await self._judged(store, rules)
        return _Space(revision, generation, verdicts, _texts(verdicts, namespace))

    async def _followed(self, store: ResourceStore, namespace: str, known: _Space, revision: int) -> _Space | None:
        """The namespace after all that was changed since, at this revision or a later one; None: it is to be read."""
        generation = self._generation()
        changes, reached = _Changes(()), revision
        if known.revision != revision:
            since = await store.changed(known.revision, _KINDS)
            if since is None or since.revision < revision:
                return None
            changes, reached = _Changes(since.changes), since.revision
        anew = {key: verdict.document for key, verdict in known.rules.items() if changes.concern(verdict)}
        if generation != known.generation:
            anew |= {key: verdict.document for key, verdict in known.rules.items() if verdict.problems}
        gone: set[Key] = set()
        for key, change in changes.last.items():
            if change.action == "deleted":
                gone.add(key)
                anew.pop(key, None)
            elif key.namespace == namespace and key.kind in _RULES:
                anew[key] = change.document
        rules, texts = known.rules, known.texts
        if anew or not gone.isdisjoint(rules):
            judged = await self._judged(store, [*anew.values()])
            rules = {key: verdict for key, verdict in rules.items() if key not in gone} | judged
            texts = _texts(rules, namespace)
        scopes = {key: scope for key, scope in known.scopes.items() if not changes.concern(scope.verdict)}
        return _Space(reached, generation, rules, texts, scopes)

    async def _scope(self, store: ResourceStore, agent: Document) -> _Scope:
        generation = self._generation()
        found: dict[Key, Document] = {}
        given: dict[Key, Document] = {}
        todo = {key_of(agent): agent}
        while todo:
            found |= todo
            fresh = {named(each) for document in todo.values() for each in references(document)} - found.keys()
            fresh = {key for key in fresh if key.kind in _FOLLOWED}
            todo = await find_stored(store, fresh)
            for key in fresh - todo.keys():
                if key.kind == "Agent" and (own := self._given(key.namespace, key.name)) is not None:
                    given[key] = todo[key] = own
        verdicts = await self._judged(store, [*found.values()])
        read = frozenset(key for verdict in verdicts.values() for key in verdict.read)
        asked = frozenset(key for verdict in verdicts.values() for key in verdict.named)
        texts = _texts(verdicts, key_of(agent).namespace)
        return _Scope(_Verdict(agent, (), read, asked), given, texts, generation)

    async def _judged(self, store: ResourceStore, documents: Sequence[Document]) -> dict[Key, _Verdict]:
        parts = await look_up(store, documents, self._brings, beside=False)
        return await unhurried(PER_DOCUMENT * len(documents), _verdicts, documents, parts)


def _verdicts(documents: Sequence[Document], parts: Parts) -> dict[Key, _Verdict]:
    found: dict[Key, _Verdict] = {}
    for document, judged in zip(documents, judge(documents, parts), strict=True):
        key = key_of(document)
        keys = {named(each) for each in references(document)}
        # One that is not stored may be there by the name of another one, or because of what is around it.
        lacking = {each for each in keys if not parts.has(each.kind, each.namespace, each.name)}
        around = set(lists_around(lacking))
        lists = set(map(_any, lacking)) | {Key(kind, space, _ANY) for kind, space in around}
        near = {Key(kind, space, name) for kind, space in around for name in parts.names(kind, space)}
        # What a condition can ask for follows from the tool that it is about, however the rule spells it.
        read = frozenset({key, *near, *judged.read})
        found[key] = _Verdict(document, tuple(judged.problems), read, frozenset(keys | lists))
    return found


def _texts(verdicts: Mapping[Key, _Verdict], namespace: str) -> tuple[str, ...]:
    return tuple(
        f"{_title(key, namespace)}: {problem}" for key, verdict in verdicts.items() for problem in verdict.problems
    )


def _title(key: Key, namespace: str) -> str:
    return f"{key.kind}/{key.name}" if key.namespace == namespace else f"{key.kind}/{key.namespace}/{key.name}"


# --- of a run --------------------------------------------------------------------------------------------------------


def missing_in(spec: RunSpec) -> tuple[str, ...]:
    """Returns what was missing around a run when it began, in sentences."""
    return msgspec.convert(spec.extra.get(_MISSING, ()), tuple[str, ...])


def with_missing(spec: RunSpec, texts: Sequence[str]) -> RunSpec:
    """The spec of a run that begins although something is missing around it."""
    return replace(spec, extra={**spec.extra, _MISSING: list(texts)}) if texts else spec
