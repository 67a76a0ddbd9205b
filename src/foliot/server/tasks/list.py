"""Tasks as one list: the work, newest first, namespace by namespace, then what is declared and not work.

Work is not a resource: a schedule makes it, a webhook, an agent, somebody by hand. Resources of the kind Task are the
templates, and tasks of mode `run` that could not be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foliot.common.cursors import read_cursor, write_cursor
from foliot.errors import NotFound
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES, WAITING, TaskPhase
from foliot.runtime.local.declared_work import is_work
from foliot.server.auth.guard import DEFAULT
from foliot.server.auth.identity import Caller
from foliot.server.context import Services
from foliot.server.cursors import is_sealed
from foliot.server.errors import BadParameter
from foliot.server.http.names import CURSOR_HINT
from foliot.server.http.names import place_of as of_resources
from foliot.store.base import Document, Filter, Key, Requirement
from foliot.store.resources.selectors import holds, matches
from foliot.work.tasks.base import TaskInfo
from foliot.work.tasks.list import cursor_of
from foliot.work.views.document import outline

# Fields of a task by which the store finds it.
_FILTERS: Final = {
    "spec.agent": "target",
    "spec.system": "target",
    "spec.lane": "lane",
    "status.parent": "parent",
    "status.spawnedBy": "spawned_by",
}
# An offset is paid for by reading what it passes over.
FURTHEST: Final = 10_000
ROUND: Final = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks. `filter` holds for their documents; what else there is narrows the work alone."""

    filter: Filter
    phases: tuple[str, ...] = ()
    target: str | None = None
    archived: bool = False
    lane: str | None = None
    created_after: float | None = None
    created_before: float | None = None
    mode: str | None = None

    @property
    def only_work(self) -> bool:
        timed = self.created_after is not None or self.created_before is not None
        narrowed = self.phases or self.target or self.archived or self.lane or timed
        return self.mode == "run" or bool(narrowed)

    @property
    def is_searched(self) -> bool:
        """Whether more may have to be looked at than is shown."""
        return bool(self.filter.labels or self.filter.fields)


async def list_tasks(
    services: Services, caller: Caller, wanted: Wanted, *, limit: int, cursor: str | None, skip: int = 0
) -> tuple[list[Document], str | None]:
    """A page, and the cursor of the next. Raises `InvalidInput` for a cursor or phase that does not exist."""
    while skip:
        passed, cursor = await list_tasks(services, caller, wanted, limit=min(skip, ROUND), cursor=cursor)
        skip -= len(passed)
        if cursor is None:
            return [], None
    spaces = _spaces(caller, wanted)
    stage, inner = _place(cursor)
    found: list[Document] = []
    while stage < len(spaces):
        more, inner = await _work(services, wanted, spaces[stage], limit - len(found), inner)
        found += more
        if inner is None:
            stage += 1
        if len(found) >= limit:
            place = write_cursor([stage, inner])
            if inner is None and not (await list_tasks(services, caller, wanted, limit=1, cursor=place))[0]:
                return found, None  # it was the last one
            return found, place
    if wanted.only_work:
        return found, None
    more, inner = await _declared(services, caller, wanted, limit - len(found), inner)
    found += more
    return found, None if inner is None else write_cursor([stage, inner])


async def place_of(services: Services, caller: Caller, wanted: Wanted, after: str | None) -> str | None:
    """The cursor for what a client says it has seen: a cursor, or `name` or `namespace/name` of the last task.

    Raises `BadParameter` for a name that there is not.
    """
    if not after or is_sealed(after):
        return await services.cursors.open(after)
    given, _, name = after.rpartition("/")
    space = given or wanted.filter.namespace or DEFAULT
    spaces = _spaces(caller, wanted)
    if caller.sees(space):
        try:
            info = await services.runtime.inside.tasking.tasks.get(space, name)
        except NotFound:
            pass
        else:
            return write_cursor([spaces.index(space) if space in spaces else 0, cursor_of(info.key)])
        filter = caller.narrowed(wanted.filter)
        if filter is not None and await _is_declared(services, space, name):
            return write_cursor([len(spaces), await of_resources(services, filter, f"{space}/{name}")])
    raise BadParameter(f"after: there is no task {name[:60]!r}", hint=CURSOR_HINT)


async def _is_declared(services: Services, namespace: str, name: str) -> bool:
    try:
        await services.resources.get(Key("Task", namespace, name))
    except NotFound:
        return False
    return True


def _spaces(caller: Caller, wanted: Wanted) -> Sequence[str | None]:
    """Returns the namespaces to search, one after the other; None is everywhere."""
    if wanted.mode == "template":
        return []
    named = (each.values[0] for each in wanted.filter.fields if each.key == "metadata.namespace" and each.op == "=")
    space = wanted.filter.namespace or next(named, None)
    if space is not None:
        return [space] if caller.sees(space) else []
    return caller.namespaces or ((None,) if caller.namespaces is None else ())


async def _work(
    services: Services, wanted: Wanted, space: str | None, limit: int, cursor: str | None
) -> tuple[list[Document], str | None]:
    narrowed = _narrowed(wanted)
    found: list[Document] = []
    while narrowed is not None:
        page, cursor = await services.runtime.inside.tasking.tasks.list(
            namespace=space,
            selector=wanted.filter.labels,
            archived=wanted.archived,
            created_after=wanted.created_after,
            created_before=wanted.created_before,
            limit=limit - len(found),
            cursor=cursor,
            **narrowed,
        )
        found += map(outline, page)
        if cursor is None or len(found) >= limit:
            return found, cursor
    return [], None


def _words(phase: TaskPhase) -> tuple[str, ...]:
    """The words that documents have for a phase."""
    return (API_PHASES[phase], WAITING) if phase == "waiting" else (API_PHASES[phase],)


def _narrowed(wanted: Wanted) -> dict[str, Any] | None:
    """Returns the filters of the store for the clauses on fields, and `fits` for what it has none for.

    None where nothing can fulfil them.
    """
    phases: Sequence[TaskPhase] = [phase for phase in TASK_PHASES if not wanted.phases or phase in wanted.phases]
    given: dict[str, Any] = {"target": wanted.target, "lane": wanted.lane}
    names: set[str] | None = None
    rest: list[Requirement] = []
    for each in wanted.filter.fields:
        if each.key == "status.phase":
            phases = [phase for phase in phases if any(holds(word, each) for word in _words(phase))]
            if each.op in ("!=", "notin"):  # of the two words of one phase, the one that is shown
                rest.append(each)
        elif each.key == "metadata.name" and each.op in ("=", "in"):
            names = set(each.values) if names is None else names & set(each.values)
        else:
            rest.append(each)
            name = _FILTERS.get(each.key)
            if name and each.op in ("=", "in") and len(each.values) == 1 and each.values[0]:
                given[name] = given.get(name) or each.values[0]
    if not phases or names == set():
        return None
    fits = partial(_fits, Filter("Task", fields=tuple(rest))) if rest else None
    return {**given, "phases": phases, "names": sorted(names or ()), "fits": fits}


def _fits(filter: Filter, info: TaskInfo) -> bool:
    return matches(outline(info), filter)


async def _declared(
    services: Services, caller: Caller, wanted: Wanted, limit: int, cursor: str | None
) -> tuple[list[Document], str | None]:
    filter = caller.narrowed(wanted.filter)
    if filter is None:
        return [], None
    page = await services.resources.list(filter, limit=max(1, limit), cursor=cursor)
    return [each for each in page.items if not is_work(each) or not await is_accepted(services, each)], page.cursor


async def is_accepted(services: Services, document: Document) -> bool:
    """Returns whether there is work of the name of a declared Task."""
    metadata = document["metadata"]
    try:
        await services.runtime.inside.tasking.tasks.get(metadata["namespace"], metadata["name"])
    except NotFound:
        return False
    return True


def _place(cursor: str | None) -> tuple[int, str | None]:
    if not cursor:
        return 0, None
    stage, inner = read_cursor(cursor, tuple[int, str | None])
    return max(0, stage), inner
