"""Reading what the story of a task is told from: its events, its runs, the journals of those under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from foliot.common.threads import unhurried
from foliot.engine.base import Clock
from foliot.engine.driver.journal import FACT
from foliot.engine.driver.runs import Runs
from foliot.engine.explain.below import asking_below
from foliot.engine.explain.trace import trace_of
from foliot.errors import FoliotError
from foliot.kernel.errors import UnknownEvent
from foliot.store.base import Database
from foliot.store.queue.claims import read_bounds
from foliot.store.queue.limits import list_classes, list_limits
from foliot.store.queue.workers import list_workers, loads_of
from foliot.store.tasks import ENDED
from foliot.work.tasks.base import TaskRecord
from foliot.work.tasks.service import TaskService
from foliot.work.views.events import Batch, Happening, Place, RunHappening, TaskHappening, decode_cursor, encode_cursor
from foliot.work.views.story import AskingRun, LiveRun, MessageStory, RunRow, TaskStory, live_run, tell_story
from foliot.work.views.why import Cause, Surroundings, TaskExplanation, why

PAGE: Final = 500
# Of a task with more runs under way, only so many are looked into: who asks wants to know why, not everything.
LOOKED_INTO: Final = 40


def looked_into(rows: Sequence[RunRow], *, whole: bool) -> list[str]:
    """Returns the runs whose journals a story is told from: those under way, and with `whole` the newest that ended."""
    under_way = [row.run_id for row in rows if not row.ended]
    ended = [row.run_id for row in reversed(rows) if row.ended] if whole else []
    return [*under_way, *ended][:LOOKED_INTO]


class Stories:
    """Stories of the tasks of one store."""

    def __init__(self, tasks: TaskService, runs: Runs, database: Database, *, clock: Clock) -> None:
        self._tasks = tasks
        self._runs = runs
        self._db = database
        self._clock = clock

    async def of(self, namespace: str, name: str, *, looks: bool = True, whole: bool = False) -> TaskStory:
        """The story of one task. `looks`: into the journals of its live runs as well; `whole`: also of ended ones.

        Raises `NotFound`.
        """
        ref = await self._tasks.ref(namespace, name)
        records = await self.records(namespace, name)
        rows = await self.rows(namespace, name)
        live: dict[str, LiveRun] = {}
        if looks:
            chosen = looked_into(rows, whole=whole)
            found = await asyncio.gather(*map(self._live_if_known, chosen))
            live = {run_id: each for run_id, each in zip(chosen, found, strict=True) if each is not None}
        info = await self._tasks.get(namespace, name)
        return tell_story(info, ref.command, ref.pinned.plan_for(ref.id), records, rows, live, now=self._clock())

    async def records(self, namespace: str, name: str, *, after: int = 0) -> list[TaskRecord]:
        """Every fact behind `after`."""
        found: list[TaskRecord] = []
        while True:
            page = await self._tasks.events(namespace, name, after=after, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1].seq

    async def rows(self, namespace: str, name: str) -> list[RunRow]:
        """The runs of a task, oldest first."""
        return [_row(row) for row in await self._tasks.runs(namespace, name)]

    async def _live_if_known(self, run_id: str) -> LiveRun | None:
        try:
            return await self.live(run_id)
        except UnknownEvent:
            return None  # a newer version has written it: the rest of the story can be told

    async def live(self, run_id: str) -> LiveRun:
        """Reads the state of a live run from its journal."""
        facts = await self._runs.facts(run_id)
        return await unhurried(FACT * len(facts), lambda: live_run(trace_of(run_id, facts), facts))

    async def happenings(self, namespace: str, name: str, *, cursor: str | None = None) -> Batch:
        """Reads the events behind the cursor, of the task and of all its runs, in the order of time.

        It returns at once; nothing new gives an empty batch. Raises `NotFound`, `InvalidInput` for a cursor that was
        not given out here.
        """
        place = decode_cursor(cursor)
        # In this order: the sending of every message whose run is listed is among the records, and a run that is
        # listed as ended gives all it has.
        rows = await self.rows(namespace, name)
        records = await self.records(namespace, name, after=place.seq)
        found: list[Happening] = [TaskHappening(record.at, record.seq, record.event) for record in records]
        seen: dict[str, int] = {}
        known = [row.run_id for row in rows]
        # A run that is not listed any more was purged, and those before it with it.
        for row in rows[known.index(place.finished) + 1 if place.finished in known else 0 :]:
            after = place.runs.get(row.run_id, 0)
            entries = await self._runs.journal.read(row.run_id, after=after)
            found += (RunHappening.of(row.agent, row.run_id, entry) for entry in entries)
            seen[row.run_id] = entries[-1].seq if entries else after
        found.sort(key=lambda each: each.at)
        finished = list(takewhile(lambda row: row.ended, rows))
        for row in finished:
            seen.pop(row.run_id, None)
        upto = records[-1].seq if records else place.seq
        last = finished[-1].run_id if finished else place.finished
        return Batch(found, encode_cursor(Place(upto, last, seen)))

    async def why(self, namespace: str, name: str) -> TaskExplanation:
        """Why the task is where it is. Raises `NotFound`."""
        story = await self.of(namespace, name)
        for each in story.live[:LOOKED_INTO]:
            each.asking = await self._asking_below(each)
        running: dict[tuple[str, str], int] = {}
        limits = await list_limits(self._db)
        for limit in limits:
            space, _, rest = limit.name.partition("/")
            names: dict[str, Any] = (
                {"namespace": space} if limit.scope == "namespace" else {"namespace": space, "name": rest}
            )
            found = await self._db.read(f"limit_running_{limit.scope}", **names)
            running[limit.scope, limit.name] = int(found[0]["running"])
        for agent in {each.message.to for each in story.live if each.run is not None and each.run.max_running}:
            found = await self._db.read("limit_running_agent", namespace=namespace, name=agent)
            running["definition", f"{namespace}/{agent}"] = int(found[0]["running"])
        ref = await self._tasks.ref(namespace, name)
        around = Surroundings(
            workers=await list_workers(self._db),
            own=await loads_of(self._db, namespace),
            shared=(await read_bounds(self._db)).shared,
            limits=limits,
            running=running,
            classes=await list_classes(self._db),
            specs={agent: spec for agent, (_, _, spec) in ref.pinned.specs.items()},
        )
        told = why(story, around, self._clock())
        if story.info.phase in ENDED and story.info.phase != "succeeded":
            told.causes.extend(await self._in_doubt(namespace, name))
        return told

    async def _asking_below(self, each: MessageStory) -> list[AskingRun]:
        """Returns the runs that a run waits for, when they wait for people and it does nothing else."""
        if each.run is None or each.live is None or each.run.phase == "waiting":
            return []
        _, state = await self._runs.load(each.run.run_id)
        found: list[AskingRun] = []
        for run_id in await asking_below(self._runs.journal, state, self._clock()):
            _, below = await self._runs.load(run_id)
            facts = await self._runs.facts(run_id)
            trace = await unhurried(FACT * len(facts), trace_of, run_id, facts)
            found.append(AskingRun(run_id, trace, below.spec))
        return found

    async def _in_doubt(self, namespace: str, name: str) -> list[Cause]:
        """Returns the calls of an ended task that may have acted: to be known before it is requeued."""
        try:
            found = await self._tasks.in_doubt(namespace, name)
        except FoliotError as error:
            return [Cause("failed", f"whether a call of it may have acted is not known: {error.message}")]
        end = "may have taken effect, and nobody has settled it; after a retry a person is asked first"
        return [
            Cause("failed", f"{call.tool} {end}", 1, agent, run_id=call.key.rpartition("/")[0])
            for agent, calls in found.items()
            for call in calls
        ]


def _row(row: dict[str, Any]) -> RunRow:
    return RunRow(
        message=row["message"],
        run_id=row["run_id"],
        agent=row["agent"],
        phase=row["phase"],
        worker=row["worker"],
        lease_until=row["lease_until"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        summary=row["summary"],
        due_at=row["due_at"],
        held=bool(row["held"]),
        requirements=row["requirements"] or "",
        class_key=row["class"] or "",
        max_running=row["max_running"] or 0,
        by=row["worker_name"] or "",
        heartbeat_at=row["heartbeat_at"],
    )
