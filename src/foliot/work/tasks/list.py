"""Tasks as lists show them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from foliot.common.cursors import read_key, write_cursor
from foliot.common.suggestions import read_phases
from foliot.common.threads import on_thread
from foliot.engine.driver.journal import load_run
from foliot.engine.explain.below import asking_below
from foliot.errors import FoliotError, InvalidInput, NotFound, ReadTooLong
from foliot.kernel.graph.lifecycle import API_PHASES, TASK_PHASES
from foliot.store.base import Database, Requirement
from foliot.store.journal.database import SqlJournal
from foliot.store.key_pages import LONGEST, LONGEST_STRIDE, NEWEST, KeySource, key_source, keys_array, matching_keys
from foliot.store.resources.selectors import matches_labels
from foliot.store.tasks import label_hint, label_text
from foliot.store.transaction import Row
from foliot.work.tasks.base import TaskInfo
from foliot.work.tasks.commands import decode_command, spec_of

P = ParamSpec("P")
T = TypeVar("T")

FOREVER = 1e15
# By its end a name is looked for among so many of the newest tasks of its namespace: no index knows it.
FOUND_BY_END: Final = 5_000
# Of a label that may have one of more values, all tasks are looked at in place of each value.
LOOKED_UP: Final = 20
# More tasks than these are put together beside the event loop.
FEW: Final = 50
MOST = 200
STORED_LIVE = {"queued", "running"}
LIVE = {*STORED_LIVE, "waiting"}
BEGUN = {"running", "waiting"}
# The query for each of these filters, and its field: over all namespaces, or within one (of all, `…_everywhere`).
_ANYWHERE: Final = (("task_keys_of_spawner", "spawned_by"), ("task_keys_of_parent", "parent"))
_IN_NAMESPACE: Final = (("task_keys_of_target", "target"), ("task_keys_of_lane", "lane"))


class TaskList:
    """Reads tasks. Whether one is queued, running or waiting is read off its runs, and not written anywhere."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells how long a list has taken."""
        self._db = database
        self._clock = clock

    async def get(self, namespace: str, name: str) -> TaskInfo:
        """Raises `NotFound`."""
        found = await self._db.read("task_named", namespace=namespace, name=name)
        if not found:
            raise no_task(namespace, name)
        return (await self._shown(found))[0]

    async def find(self, namespace: str, prefix: str) -> TaskInfo:
        """The task of this name, or whose name begins so, or else one of the newest whose name ends so.

        Raises `NotFound`, `InvalidInput`.
        """
        if found := await self._db.read("task_named", namespace=namespace, name=prefix):
            return (await self._shown(found))[0]
        alike = await self._db.read("task_find", namespace=namespace, name=prefix, high=prefix + "\U0010ffff")
        alike = alike or await self._db.read("task_find_end", namespace=namespace, name=prefix, count=FOUND_BY_END)
        if len(alike) > 1:
            names = ", ".join(row["name"] for row in alike[:5])
            raise InvalidInput(f"several tasks are called like {prefix!r}: {names}", hint="give more of the name")
        return await self.get(namespace, alike[0]["name"] if alike else prefix)

    async def list(
        self,
        *,
        namespace: str | None = None,
        target: str | None = None,
        phases: str | Sequence[str] = (),
        names: Sequence[str] = (),
        labels: dict[str, str] | None = None,
        selector: Sequence[Requirement] = (),
        fits: Callable[[TaskInfo], bool] | None = None,
        lane: str | None = None,
        spawned_by: str | None = None,
        parent: str | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[TaskInfo], str | None]:
        """Lists tasks, newest first, a page at a time.

        `names` and `labels` are looked up; so is a clause of the label `selector` that names values. For other clauses
        the labels of all tasks are read that the rest leaves, and for `fits` all of them.
        Raises `InvalidInput` for a cursor or a phase that does not exist.
        """
        sets: dict[str, tuple[str, ...]] = {name: (value,) for name, value in (labels or {}).items()}
        for each in selector:
            if each.op in ("=", "in") and len(each.values) <= LOOKED_UP:
                sets.setdefault(each.key, each.values)
        exact = {name: values[0] for name, values in sets.items() if len(values) == 1}
        unknown = [each for each in selector if each.values != (exact.get(each.key),) or each.op not in ("=", "in")]
        wanted = set(read_phases(phases, TASK_PHASES, API_PHASES) or TASK_PHASES)
        count = MOST if limit > MOST else limit if limit > 0 else 50
        bounds = {
            "after_time": created_after if created_after is not None else 0.0,
            # Times are shown cut to the millisecond, and who passes one on means the task that it was read off.
            "before_time": created_before + 0.000999 if created_before is not None else FOREVER,
            "archived": 1 if archived else 0,
        }
        match = {
            "namespace": namespace or "",
            "target": target or "",
            "lane": lane or "",
            "spawned_by": spawned_by or "",
            "parent": parent or "",
            "labels": _array([label_text(name, value) for name, value in sorted(exact.items())]),
            "phases": _array(sorted({*wanted, *STORED_LIVE} if wanted & LIVE else wanted)),
        }
        walks = _walks(match, names, sets, wanted, bounds)
        narrowed = bool(names) or _is_narrowed(match, sets, wanted)
        matching = KeySource("task_keys_matching", match) if narrowed else None
        fitting = partial(self._labelled, unknown) if unknown else None
        shown: list[TaskInfo] = []
        before, asked = NEWEST if cursor is None else _place(cursor), count + 1
        began = self._clock()
        while True:
            keys = await matching_keys(self._db, walks, matching, before=before, count=asked, fitting=fitting)
            for start in range(0, len(keys), MOST + 1):  # what was asked of a task may be long
                # Which phase a task is in shows only when one looks at its runs.
                tasks = [task for task in await self.many(keys[start : start + MOST + 1]) if task.phase in wanted]
                shown += reversed(tasks if fits is None else await _beside(len(tasks), _those, fits, tasks))
                if len(shown) > count:
                    shown = shown[:count]
                    return shown, cursor_of(shown[-1].key)
            if len(keys) < asked:
                return shown, None
            if (took := self._clock() - began) > LONGEST:
                raise ReadTooLong.of("a list of tasks", took)
            before, asked = keys[-1], min(2 * asked, LONGEST_STRIDE)

    async def _labelled(self, selector: Sequence[Requirement], keys: Sequence[int]) -> list[int]:
        """Returns those of the keys, in their order, whose tasks have the labels that are wanted."""
        rows = await self._db.read("task_labels", keys=keys_array(keys))
        held = await _beside(len(rows), _with_labels, rows, selector)
        return [key for key in keys if key in held]

    async def many(self, keys: Sequence[int]) -> list[TaskInfo]:
        """Returns the tasks of these keys that exist, archived or not, in the order of their keys."""
        if not keys:
            return []
        return await self._shown(await self._db.read("task_feed_tasks", keys=keys_array(keys)))

    async def runs(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The runs of a task, oldest first: message, run, agent, phase, who has it, when it is due."""
        found = await self._db.read("task_runs", namespace=namespace, name=name)
        return [{**row, "summary": msgspec.json.decode(row["summary"])} for row in found]

    async def _shown(self, found: Sequence[Row]) -> list[TaskInfo]:
        unfinished = [row["key"] for row in found if row["phase"] in STORED_LIVE]
        live: dict[int, Row] = {}
        if unfinished:
            rows = await self._db.read("task_live", tasks=keys_array(unfinished))
            live = {row["task"]: row for row in rows}
            live |= await self._waiting_below(live)
            if without := [key for key in unfinished if key not in live]:
                # A task without a run that is live may have ended since its row was read.
                now = {row["key"]: row for row in await self._db.read("task_feed_tasks", keys=keys_array(without))}
                found = [now.get(row["key"], row) for row in found]
        return await _beside(len(found), _infos, found, live)

    async def _waiting_below(self, live: Mapping[int, Row]) -> dict[int, Row]:
        """Returns the rows of tasks whose runs only wait, those at work for runs below them that ask people.

        Whether a run does anything else is told by its journal: only those are looked at below which somebody asks.
        """
        at_work = [key for key, row in live.items() if row["begun"] and row["waiting"] < row["runs"]]
        found = await self._db.read("task_asking_below", tasks=keys_array(at_work)) if at_work else []
        asks = {row["id"]: row["summary"] for row in found}
        of_task: dict[int, list[Row]] = {row["task"]: [] for row in found}
        for row in await self._db.read("task_live_runs", tasks=keys_array([*of_task])) if found else ():
            of_task[row["task"]].append(row)
        waiting: dict[int, Row] = {}
        for key, runs in of_task.items():
            below: list[str] = []
            for run in runs:
                if run["phase"] != "waiting":
                    asking = await self._asking_below(run["id"])
                    if not asking:
                        break
                    below += asking
            else:
                told = [asks[run] for run in below if run in asks]
                own = live[key]["asks"]
                said = min([*told, *([own] if own else [])], default=None)  # a word about an approval is the first
                waiting[key] = {**live[key], "waiting": live[key]["runs"], "asks": said}
        return waiting

    async def _asking_below(self, run_id: str) -> Sequence[str]:
        journal = SqlJournal(self._db)
        try:
            _, state = await load_run(journal, run_id)
            return await asking_below(journal, state, self._db.clock())
        except FoliotError:  # it has ended and is gone, or cannot be read: `why` says what is wrong with it
            return ()


def _walks(
    match: Mapping[str, str],
    names: Sequence[str],
    labels: Mapping[str, Sequence[str]],
    wanted: Set[str],
    bounds: Mapping[str, Any],
) -> list[list[KeySource]]:
    """Returns the queries that find the tasks by each of the filters alone."""
    namespace = match["namespace"]
    where = {**bounds, "namespace": namespace} if namespace else bounds
    reach = "" if namespace else "_everywhere"
    if names:  # nothing else leaves fewer
        return [[KeySource(f"task_keys_named{reach}", {**where, "names": _array(names)})]]
    phases = [] if wanted >= set(TASK_PHASES) else [[_in_phases(where, wanted)]]
    if wanted <= BEGUN:
        return phases  # those that a worker has begun with are few, and not told apart by what the others look at
    walks = phases + [[KeySource(query, {**bounds, name: match[name]})] for query, name in _ANYWHERE if match[name]]
    given = [[key_source(query, {**where, name: match[name]})] for query, name in _IN_NAMESPACE if match[name]]
    given += [
        [KeySource(f"task_keys_of_label{reach}", {**where, "label": label_hint(name, value)}) for value in values]
        for name, values in sorted(labels.items())
    ]
    if namespace:
        return [*walks, *given] or [[KeySource("task_keys", where)]]
    # Of what is frequent, enough is soon met among the newest tasks of all namespaces.
    newest = [] if walks and not given else [[KeySource("task_keys_everywhere", bounds)]]
    return [*newest, *walks, *given]


def _in_phases(where: Mapping[str, Any], wanted: Set[str]) -> KeySource:
    """Returns the query that finds the tasks in these phases, of a namespace or of all."""
    stored = wanted - {"waiting"}
    begun = bool(wanted & BEGUN) and not stored >= STORED_LIVE
    flags = {"begun": int(begun), "held": int(begun), "phases": _array(sorted(stored))}
    return KeySource(
        "task_keys_in_phases" if "namespace" in where else "task_keys_in_phases_everywhere", {**where, **flags}
    )


async def _beside(count: int, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Calls `work` on so many tasks; beside the event loop when they are many."""
    return work(*given, **named) if count <= FEW else await on_thread(work, *given, **named)


def _infos(found: Sequence[Row], live: Mapping[int, Row]) -> list[TaskInfo]:
    return [_info(row, live.get(row["key"])) for row in found]


def _those(fits: Callable[[TaskInfo], bool], tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    return [task for task in tasks if fits(task)]


def _with_labels(rows: Sequence[Row], selector: Sequence[Requirement]) -> set[int]:
    return {row["key"] for row in rows if matches_labels(msgspec.json.decode(row["labels"]), selector)}


def _is_narrowed(match: Mapping[str, str], labels: Mapping[str, Any], wanted: Set[str]) -> bool:
    """Whether one walk does not do: several filters hold, or one that its query does not answer exactly."""
    own = sum(1 for _, name in _IN_NAMESPACE if match[name])
    anywhere = sum(1 for _, name in _ANYWHERE if match[name])
    filters = own + anywhere + (0 if wanted >= set(TASK_PHASES) else 1)
    return bool(labels) or filters > 1 or bool(anywhere and match["namespace"]) or bool(own and not match["namespace"])


def no_task(namespace: str, name: str) -> NotFound:
    """Returns the error for a task that does not exist."""
    return NotFound(f"there is no task {name!r} in namespace {namespace!r}", hint="`foliot task list` shows them")


def _info(row: Row, live: Row | None) -> TaskInfo:
    """Builds the info of a task from its row, corrected by the state of its runs: claimed or not, waiting or not."""
    fields = dict(row)
    fields["labels"] = msgspec.json.decode(fields["labels"])
    fields["summary"] = msgspec.json.decode(fields["summary"])
    command = decode_command(fields.pop("command"))
    fields["spec"], fields["written"] = spec_of(command), command.written
    if live is not None:
        if live["begun"]:
            fields["phase"] = "running"
            fields["started_at"] = fields["started_at"] or live["claimed_at"]
            if live["worker"]:
                fields["claimed_by"], fields["lease_until"] = live["worker"], live["lease_until"]
                fields["heartbeat_at"] = live["heartbeat_at"]
            elif live["let_go"] and (worker := msgspec.json.decode(live["let_go"]).get("worker")):
                fields["summary"]["worker"] = worker
            fields["next_attempt_at"] = live["next_at"]
        if live["waiting"] == live["runs"]:
            waits = live["asks"] or live["let_go"]
            fields["summary"]["waiting"] = msgspec.json.decode(waits).get("waiting") if waits else None
            if live["paused"] < live["runs"]:  # otherwise there is nobody for whom it waits
                fields["phase"] = "waiting"
    return TaskInfo(**fields)


def _array(texts: Sequence[str]) -> str:
    return msgspec.json.encode(list(texts)).decode()


def cursor_of(key: int) -> str:
    """The cursor behind the task of this key."""
    return write_cursor(key, kind="task")


def _place(cursor: str) -> int:
    return read_key(cursor, kind="task")
