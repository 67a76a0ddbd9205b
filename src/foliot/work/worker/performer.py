"""Doing the work of one claimed run: from the lease to the moment it is given back."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import MsgspecError, Struct

from foliot.bus.base import Transport
from foliot.common.durations import duration
from foliot.engine.base import Clock
from foliot.engine.driver.appends import LeaseClock, append_again, claimed, recorded
from foliot.engine.driver.doubts import both, doubts_of, noting
from foliot.engine.driver.journal import JournalFacts, phase_of, told_by
from foliot.engine.driver.runs import Runs
from foliot.errors import FoliotError, NotFound, NotHere, Unavailable
from foliot.kernel.errors import UnknownEvent
from foliot.kernel.run.events import Event, RunDeadLettered, RunFailed
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.store.base import Database
from foliot.store.journal.base import Entry, Lease, LeaseLost, Phase, TransactionBody
from foliot.store.journal.stored_events import entry_of
from foliot.store.queue.queue import leave_to_others
from foliot.store.transaction import Row
from foliot.tools.base import Toolbox
from foliot.work.tasks.advance import TaskRef
from foliot.work.tasks.base import Command
from foliot.work.tasks.plan import Bundles
from foliot.work.tasks.settlement import TaskSettlement

if TYPE_CHECKING:
    from foliot.engine.telemetry.metrics import TaskCounts

# --- briefing --------------------------------------------------------------------------------------------------------

# What a worker must know of the runs that it has claimed, read at once for all of them.
#
# A run that was only just queued has one event, and its task and its message never change. So one query replaces three
# for each run, and a run of a task that was at work here before does not read even that anew.

log = logging.getLogger(__name__)

MOST_TASKS = 1024
_commands = msgspec.json.Decoder(Command)


class Brief(Struct, frozen=True):
    """The task and the message of a leased run.

    `told` is the whole journal of a run that was never begun, and None for one whose journal must be read. `quiet`:
    nothing had been signalled to the run when this was read.
    """

    epoch: int
    task: TaskRef
    message_id: str
    told: JournalFacts | None = None
    quiet: bool = False


class Briefs:
    """The briefs of runs that are about to be done here."""

    def __init__(self, database: Database, bundles: Bundles) -> None:
        self._db = database
        self._bundles = bundles
        self._briefs: dict[str, Brief] = {}
        self._tasks: OrderedDict[int, TaskRef] = OrderedDict()

    async def read(self, leases: Sequence[Lease]) -> None:
        """Reads the briefs of leases that were just taken: no one else can write to their runs.

        Raises `Unavailable`.
        """
        run_ids = msgspec.json.encode([lease.run_id for lease in leases]).decode()
        found = {row["run_id"]: row for row in await self._db.read("queue_brief", run_ids=run_ids)}
        for lease in leases:
            if (row := found.get(lease.run_id)) is not None:
                try:
                    self._briefs[lease.run_id] = await self._brief(lease, row)
                except (UnknownEvent, msgspec.MsgspecError) as error:
                    # It is read once more when its turn comes, and given back: the others do not wait for it.
                    log.debug("run %s cannot be read here: %s", lease.run_id, error)

    def of(self, lease: Lease) -> Brief | None:
        brief = self._briefs.get(lease.run_id)
        return brief if brief is not None and brief.epoch == lease.epoch else None

    def forget(self, lease: Lease) -> None:
        self._briefs.pop(lease.run_id, None)

    async def task(self, row: Row) -> TaskRef:
        """The task of a row; what stands in it besides the key is the same for ever. Raises `NotFound`."""
        key: int = row["key"]
        if (known := self._tasks.get(key)) is not None and known.uid == row["uid"]:
            return known
        task = TaskRef(
            key=key,
            uid=row["uid"],
            namespace=row["namespace"],
            name=row["name"],
            priority=row["priority"],
            lane=row["lane"],
            command=_commands.decode(row["command"]),
            pinned=await self._bundles.get(row["plan"]),
        )
        self._tasks[key] = task
        if len(self._tasks) > MOST_TASKS:
            self._tasks.popitem(last=False)
        return task

    async def _brief(self, lease: Lease, row: Row) -> Brief:
        task = await self.task(row)
        if row["last_seq"] != 1 or row["blob"]:
            return Brief(lease.epoch, task, row["message"])
        told = await told_by(lease.run_id, [entry_of(row)])
        return Brief(lease.epoch, task, row["message"], told, not row["told"])


# --- performing ------------------------------------------------------------------------------------------------------

# A run whose attempts all vanish (it makes its process run out of memory, for example) would take the workers down with
# it for ever.
MOST_FRUITLESS = 25
# How long a run rests whose tools or definitions could not be reached.
REST = 5.0
# How long a process leaves runs to others that need something which it has not. It may be installed meanwhile.
LACK_REST = 30.0


class CrashLoop(FoliotError):
    """Attempt after attempt of a run has ended without leaving anything but its beginning."""

    code = "crash_loop"


def _subject(lease: Lease, brief: Brief | None, state: State) -> str:
    """Names a run, its agent and its task for the log, which says nothing of their content."""
    task = f" of task {brief.task.id}" if brief is not None else ""
    return f"run {lease.run_id} ({state.spec.agent}){task}"


def _outcome(state: State) -> str:
    match state.ended:
        case None:
            return f"waits ({state.waiting.reason})" if state.waiting is not None else "is handed back"
        case RunFailed(code=code):
            return f"failed ({code})"
        case ended:
            return phase_of(ended)


class TaskPerformer:
    """A `Performer`. `toolbox` gives the tools that a run of a spec may call.

    `stream` lets whoever watches a run here see answers as they are written; it may be changed at any time.
    """

    def __init__(
        self,
        database: Database,
        runs: Runs,
        bundles: Bundles,
        transport: Transport,
        *,
        toolbox: Callable[[RunSpec], Awaitable[Toolbox]],
        clock: Clock,
        stream: bool = False,
    ) -> None:
        self._db = database
        self._runs = runs
        self._briefs = Briefs(database, bundles)
        self._transport = transport
        self._toolbox = toolbox
        self._clock = clock
        self._lacks: dict[str, float] = {}  # what this process has not, and until when it is not asked again
        self.stream = stream
        # Counts what becomes of messages and tasks, while somebody measures.
        self.counts: TaskCounts | None = None

    async def perform(self, lease: Lease) -> None:
        """Drives the claimed run to its end or its next wait.

        When cancelled, it gives the run back for other workers.
        """
        try:
            brief = self._briefs.of(lease)
            driver = await self._runs.adopt(
                lease,
                tools=self._tools,
                stream=self.stream,
                told=brief.told if brief is not None else None,
                quiet=brief is not None and brief.quiet,
                settlement=await self.settlement(lease),
            )
            if driver.state.fruitless >= MOST_FRUITLESS:
                raise CrashLoop(f"{MOST_FRUITLESS} attempts in a row ended without a word: it may kill its workers")
            if self.counts is not None:
                self.counts.message_begun(driver.state.spec.agent)
            began = self._clock()
            what = _subject(lease, brief, driver.state)
            log.info("%s is claimed: attempt %d", what, driver.state.next_attempt)
            state = await self._runs.drive(driver)
            log.info("%s %s after %s", what, _outcome(state), duration(max(0.0, self._clock() - began)))
        except LeaseLost as lost:
            log.info("%s", lost.message)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(lease, None))
            raise
        except (UnknownEvent, MsgspecError) as error:
            log.warning("run %s is left to a newer worker: %s", lease.run_id, error)
            await self._leave_to_others(lease)
        except NotHere as error:
            log.warning("run %s is left to others for %g s: %s", lease.run_id, LACK_REST, error.message)
            lacks = str(error.details.get("lacks") or error.message)
            self._lacks[lacks] = self._clock() + LACK_REST
            await self._leave_to_others(lease, lacks)
        except Unavailable as error:
            log.warning("run %s rests for %g s: %s", lease.run_id, REST, error.message)
            await self._give_back(lease, self._clock() + REST, patient=True)
        except FoliotError as error:
            await self._give_up(lease, error)
        finally:
            self._briefs.forget(lease)

    async def prepare(self, leases: Sequence[Lease]) -> None:
        """Reads the claimed runs in one go. Runs that could not be read are read one by one later."""
        try:
            await self._briefs.read(leases)
        except FoliotError as error:
            log.debug("claimed runs could not be read together: %s", error.message)

    async def settlement(self, lease: Lease) -> TaskSettlement:
        """Returns the settlement of this run with its task. Raises `NotFound`."""
        if (brief := self._briefs.of(lease)) is not None:
            return TaskSettlement(brief.task, brief.message_id, self._transport, clock=self._clock, counts=self.counts)
        found = await self._db.read("task_of_run", run_id=lease.run_id)
        if not found:
            raise NotFound(f"run {lease.run_id} belongs to no task")
        task = await self._briefs.task(found[0])
        return TaskSettlement(task, found[0]["message"], self._transport, clock=self._clock, counts=self.counts)

    async def _give_back(self, lease: Lease, due: float | None, *, patient: bool = False) -> None:
        """Let others have the run from `due` on; None: at once, in the place that it had.

        Harmless when the driver has done so already, or the lease is lost.

        `patient`: as soon as the store answers, if that is not later than others would take the run by themselves.
        """
        try:
            await self._append(lease, [], "pending", due=due, patient=patient)
        except FoliotError as error:
            log.debug("run %s was not given back: %s", lease.run_id, error.message)

    async def _tools(self, spec: RunSpec) -> Toolbox:
        """The tools of a run. Raises `NotHere` for one that others may have, `NotFound` for one that nobody has."""
        try:
            return await self._toolbox(spec)
        except NotFound as error:
            if "lacks" not in error.details:
                raise
            raise NotHere(error.message, hint=error.hint, lacks=error.details["lacks"]) from error

    def lacking(self, now: float) -> frozenset[str]:
        """Returns what this process lacks, as far as it found out lately."""
        if not self._lacks:
            return frozenset()
        self._lacks = {what: until for what, until in self._lacks.items() if until > now}
        return frozenset(self._lacks)

    async def _leave_to_others(self, lease: Lease, lacks: str = "") -> None:
        """This process cannot do the run: whoever can goes on. No attempt of it is counted."""
        elsewhere = partial(leave_to_others, lease.key, lease.worker, lacks)
        try:
            await self._append(lease, [], "pending", due=self._clock(), in_transaction=elsewhere, patient=True)
        except FoliotError as error:
            log.warning("run %s was not given back: %s", lease.run_id, error.message)

    async def _give_up(self, lease: Lease, error: FoliotError) -> None:
        """The run cannot even begin here (a tool or a definition is gone): it ends, and its task hears why."""
        log.warning("run %s is given up: %s", lease.run_id, error.message)
        try:
            _, state = await self._runs.load(lease.run_id, trusting=True)
            if state.ended is not None:
                return
            before = doubts_of(state)
            facts: tuple[Event, ...] = (
                claimed(state, lease),
                RunDeadLettered(error.code, error.message),
            )
            entries = [recorded(state, fact, self._clock()) for fact in facts]
            settlement = await self.settlement(lease)
            in_transaction = settlement.settle(state)
            if (written := noting(before, doubts_of(state, before), facts, state)) is not None:
                in_transaction = both(in_transaction, written)
            await self._append(lease, entries, "failed", in_transaction=in_transaction, patient=True)
            await settlement.settled()
        except FoliotError as again:
            log.warning(
                "run %s could not be given up either, and is tried again later: %s", lease.run_id, again.message
            )

    async def _append(
        self,
        lease: Lease,
        entries: Sequence[Entry],
        phase: Phase,
        *,
        due: float | None = None,
        in_transaction: TransactionBody | None = None,
        patient: bool,
    ) -> None:
        journal = self._runs.journal
        append = partial(journal.append, lease, entries, phase=phase, due=due, in_transaction=in_transaction)
        try:
            await append()
        except Unavailable as error:
            if not patient:
                raise
            # Nothing acts any more, and the fence says whose the run is: so much patience is only a bound.
            seconds = self._runs.lease_seconds
            clock = self._runs.lease_clock
            tenure = LeaseClock(clock() + seconds, clock=clock, seconds=seconds)
            await append_again(append, error, journal=journal, lease=lease, entries=entries, phase=phase, tenure=tenure)
