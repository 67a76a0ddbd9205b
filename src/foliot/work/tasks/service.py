"""Tasks as a service: accepted, listed, cancelled, tried again.

Accepting is one transaction: the task, its first events and its first runs are there together or not at all, and a
second request with the same key finds the first. Everything that happens later begins with `tell` (advance.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from foliot.bus.base import Ticket, Transport
from foliot.common.times import iso
from foliot.engine.base import Clock
from foliot.engine.driver.ids import new_run_id
from foliot.engine.driver.journal import Specs, load_state
from foliot.engine.telemetry.context import callers_trace
from foliot.errors import Conflict, Denied, FoliotError, NotFound, Unavailable
from foliot.kernel.errors import IllegalEvent, KernelError
from foliot.kernel.graph.advance import GraphState, Moves, advance, apply, decode_state, encode_state, new_state
from foliot.kernel.graph.events import (
    TaskAccepted,
    TaskCancelRequested,
    TaskEvent,
    TaskFailed,
    TaskRequeued,
    TimerWentOff,
    decode_fact,
    encode_fact,
    fact_type,
)
from foliot.kernel.graph.lifecycle import API_PHASES
from foliot.kernel.graph.plan import Plan
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.run.calls import unsettled_of
from foliot.kernel.run.events import Unsettled
from foliot.kernel.traces import new_trace, read_context
from foliot.resources.references import Origin
from foliot.resources.wording import WRITTEN_AS
from foliot.store import tasks as rows
from foliot.store.access.tokens import SqlTokens
from foliot.store.base import Database, Document, Key
from foliot.store.journal.database import SqlJournal
from foliot.store.ledger.doubts import DoubtTable
from foliot.store.queue import queue
from foliot.store.resources.documents import decode, key_text
from foliot.store.tasks import ENDED, NewTask, fact_of
from foliot.store.transaction import Row, Tx, alone_with, one, run
from foliot.work.tasks.advance import InDoubt, TaskRef, begin_runs, deadline_of, earliest, summary_of, tell, tell_locked
from foliot.work.tasks.base import (
    PRIORITIES,
    Accepted,
    Command,
    Definitions,
    NewTaskParts,
    TaskBody,
    TaskInfo,
    TaskRecord,
)
from foliot.work.tasks.commands import (
    asks_the_same,
    command_of,
    content_digest,
    decode_command,
    encode_command,
    from_template,
    is_declared_by,
    normalise,
    owned_key,
    spec_of,
)
from foliot.work.tasks.list import LIVE, TaskList, no_task
from foliot.work.tasks.plan import Bundles, Pinned, Pinner, first_words, without_target

if TYPE_CHECKING:
    from foliot.engine.telemetry.metrics import TaskCounts

log = logging.getLogger(__name__)

# Why a task failed whose system or agent was not there when it was accepted.
TARGET_MISSING: Final = "target_missing"
# How many tasks one look at the timers deals with.
TIMERS_AT_ONCE = 100
CHILDREN_AT_ONCE = 200
# Whoever deletes a Task ends its work at once. After this time others do.
ENDING_SECONDS = 10.0


class TaskService(TaskList):
    """The `Tasks` of one database. `wake` ends runs that were asked to stop and that nobody holds.

    `hear` has the runs that this process drives hear at once what was signalled to them.
    """

    def __init__(
        self,
        database: Database,
        bundles: Bundles,
        definitions: Definitions,
        transport: Transport,
        *,
        clock: Clock,
        wake: Callable[[str], Awaitable[None]] | None = None,
        hear: Callable[[], Awaitable[None]] | None = None,
        new_id: Callable[[float], str] = new_run_id,
    ) -> None:
        super().__init__(database)
        self._bundles = bundles
        self._definitions = definitions
        self._pinner = Pinner(definitions)
        self._transport = transport
        self._clock = clock
        self._wake = wake
        self._hear = hear
        self._new_id = new_id
        # Whether tasks that are accepted here are traced, unless who asks for one says so.
        self.traced = False
        # Counts what becomes of messages and tasks, while somebody measures.
        self.counts: TaskCounts | None = None
        self._unreadable: set[int] = set()  # tasks whose timers this process cannot deal with, and has said so

    # --- accepting -----------------------------------------------------------------------------------------------

    async def accept(
        self,
        command: Command,
        *,
        in_transaction: TaskBody | None = None,
        keyed_by: str = "",
        may_fail: bool = False,
        content: str | None = None,
    ) -> Accepted:
        """Accepts a task, durably; see `Tasks.accept`."""
        if content is None:
            command = normalise(command)
            content = content_digest(command)
        stored_key = owned_key(keyed_by, command.idempotency_key)
        missing: NotFound | None = None
        try:
            pinned, data = await self._pinner.pin(command)
        except FoliotError as error:
            # What it was pinned to when it was accepted may be gone by now.
            if (known := await self._known(command, content, stored_key)) is not None:
                return known
            if not may_fail or not isinstance(error, NotFound):
                raise
            missing = error
            pinned, data = without_target(command)
        made = await self._add(command, content, stored_key, pinned, data, in_transaction, missing=missing)
        if made is not None:
            return made
        # It was accepted before, or the key or the name is another task's.
        known = await self._known(command, content, stored_key)
        if known is None:
            raise Conflict(f"there is already a task {command.name!r}", hint="choose another name, or none")
        if missing is None and _is_unbegun(known.task):
            return await self._begin_after_all(known.task, in_transaction)
        return known

    async def _add(
        self,
        command: Command,
        content: str,
        stored_key: str | None,
        pinned: Pinned,
        data: bytes,
        in_transaction: TaskBody | None,
        *,
        missing: NotFound | None = None,
        instead_of: int | None = None,
    ) -> Accepted | None:
        """Stores a task with what it is pinned to, and begins it; None when its name or its key is taken.

        `missing`: its target is not there, and it fails. `instead_of` is the task of this name that was never begun.
        """
        self._bundles.keep(pinned)
        now = self._clock()
        uid = self._new_id(now)
        name = command.name or f"{command.target}-{uid}"
        # A trace that is no trace is dropped: it must not keep work from being done.
        given = read_context(command.trace or callers_trace())
        trace = str(given or (new_trace(uid) if self.traced else ""))
        command = msgspec.structs.replace(command, name=name, trace=trace)
        plan = pinned.plan_for(f"{command.namespace}/{name}")
        state = new_state()
        accepting = TaskAccepted(first_words(command), command.input, command.by)
        if missing is None:
            moves = advance(plan, state, accepting, now)
        else:
            moves = _failed_at_once(plan, state, accepting, missing, now)
        timer = None if missing else earliest(moves.timer, deadline_of(command, now), command.expires_at)
        task = NewTask(
            uid=uid,
            namespace=command.namespace,
            name=name,
            target_kind=command.target_kind,
            target=command.target,
            idempotency_key=stored_key,
            digest=content,
            priority=PRIORITIES[command.priority],
            lane=command.lane,
            spawned_by=command.spawned_by,
            parent=command.parent,
            labels=command.labels,
            command=encode_command(command),
            plan=pinned.digest,
            graph=encode_state(state),
            summary=summary_of({}, moves),
            timer_at=timer,
            now=now,
        )
        facts = [(fact_type(fact), encode_fact(fact)) for fact in moves.facts]

        def body() -> Tx[tuple[int, list[Ticket]] | None]:
            if instead_of is not None and not (yield from _forget_unbegun(instead_of)):
                return None
            key = yield from rows.add_task(task, facts)
            if key is None:
                return None
            if missing is not None:
                yield from rows.end_task(key, "failed", now)
            ref = TaskRef(key, uid, command.namespace, name, task.priority, task.lane, command, pinned)
            tickets = yield from begin_runs(ref, moves.activate, now, definitions={pinned.digest: data})
            if in_transaction is not None:
                yield from in_transaction(name, uid)
            return key, tickets

        made = await self._db.write(alone_with(in_transaction, body))
        if made is None:
            return None
        key, tickets = made
        await self._transport.publish(tickets)
        if self.counts is not None:
            self.counts.messages_sent(ticket.agent for ticket in tickets)
            if missing is not None:
                self.counts.task_ended(command.namespace, command.target, "failed", 0.0)
        if missing is not None:
            return Accepted(await self.get(command.namespace, name), duplicate=False)
        begun = NewTaskParts(command, plan, state, moves.facts, tickets)
        return Accepted(_accepted(key, task, command, len(facts)), duplicate=False, begun=begun)

    async def accept_template(
        self, ref: str, command: Command, *, origin: Origin, by_operator: bool = False
    ) -> Accepted:
        """Accepts a task from a template, in the namespace of the template; see `Tasks.accept_template`."""
        try:
            template = await self._definitions.template(ref, origin)
        except NotFound as missing:
            raise NotFound(f'task template "{ref.rpartition("/")[2]}" not found', hint=missing.hint) from missing
        made = from_template(template, command, by_operator=by_operator)
        user = made.identity.user
        if user != command.acts_as.user and (why := await SqlTokens(self._db).withdrawn(user)):
            raise Denied(
                f"{why}, and declared the template {made.template}", hint="somebody else has to declare it anew"
            )
        return await self.accept(made)

    async def accept_declared(
        self, document: dict[str, Any], *, identity: Identity = NOBODY, in_transaction: TaskBody | None = None
    ) -> Accepted | None:
        """The task that a Task resource asks for; None for a template. Applying it again finds the same task."""
        if document.get("spec", {}).get("mode", "run") == "template":
            return None
        asked = command_of(document)
        words: dict[str, Any] = document["metadata"].get(WRITTEN_AS) or {}
        command = msgspec.structs.replace(asked, by=identity.actor, identity=identity, written=words)

        def unchanged(name: str, uid: str) -> Tx[None]:
            # Whoever changes a resource holds this lock, and finds the task once we let go of it.
            yield from one("revision_lock")
            stored = yield from one("resource_get", key=key_text(Key("Task", command.namespace, name)))
            if stored is None:
                raise Conflict(f"there is no Task {name!r}, or no longer", hint="apply it, then have it done")
            if not _declares(decode(stored["document"]), asked):
                raise Conflict(f"the Task {name!r} was changed meanwhile", hint="read it again, and apply it again")
            if in_transaction is not None:
                yield from in_transaction(name, uid)

        # A manifest is shared: whoever applies it again finds the task of the first, whatever its labels are by now.
        try:
            return await self.accept(command, in_transaction=unchanged, keyed_by="manifest", may_fail=True)
        except Conflict:
            found = await self._db.read("task_identity", namespace=command.namespace, name=command.name)
            if not found or not is_declared_by(found[0], asked):
                raise
            return Accepted(await self.get(command.namespace, command.name), duplicate=True)

    async def _known(self, command: Command, content: str, stored_key: str | None) -> Accepted | None:
        """The task that was accepted for this key, or under this name. Raises `Conflict` when it is another one."""
        found: list[Row] = []
        if stored_key is not None:
            found = await self._db.read(
                "task_by_command",
                namespace=command.namespace,
                target_kind=command.target_kind,
                target=command.target,
                idempotency_key=stored_key,
            )
            if found and found[0]["digest"] != content:
                raise Conflict(
                    "idempotency_key reused with different payload",
                    hint=f"task {found[0]['name']} was accepted for {command.idempotency_key!r}",
                )
        elif command.name:
            found = await self._db.read("task_identity", namespace=command.namespace, name=command.name)
            if found and found[0]["digest"] != content:
                raise Conflict(
                    f"there is already a task {command.name!r} that asks for something else",
                    hint="choose another name, or delete that task first",
                )
        if not found:
            return None
        place = {"namespace": found[0]["namespace"], "name": found[0]["name"]}
        if await self._db.read("task_ending_find", **place):
            raise Conflict(
                f"task {place['name']!r} is being deleted, and has not ended yet",
                hint="a worker is ending it; ask again in a moment",
            )
        return Accepted(await self.get(**place), duplicate=True)

    # --- what people ask of a task -------------------------------------------------------------------------------

    async def cancel(
        self, namespace: str, name: str, *, by: str = "", reason: str = "", in_transaction: TaskBody | None = None
    ) -> TaskInfo:
        """Cancels a task and its child tasks; see `Tasks.cancel`."""
        await self._tell(
            namespace, name, TaskCancelRequested(by, reason or "cancelled by user"), "cancelled", in_transaction
        )
        await self._cancel_below(namespace, name, by)
        return await self.get(namespace, name)

    async def _cancel_below(self, namespace: str, name: str, by: str) -> None:
        asked, above = {name}, [name]
        for parent in above:  # which grows; a name may be another task's by now, so a chain can lead back to its start
            async for child in self._live_children(namespace, parent):
                if child in asked:
                    continue
                asked.add(child)
                above.append(child)
                told = TaskCancelRequested(by, f"its parent {parent} was cancelled")
                try:
                    await self._tell(namespace, child, told, "cancelled", None)
                except (Conflict, NotFound):
                    continue  # it has ended, or was deleted, since it was listed

    async def _live_children(self, namespace: str, parent: str) -> AsyncIterator[str]:
        """The names of all tasks under this one that have not ended."""
        cursor: str | None = None
        while True:
            page, cursor = await self.list(
                namespace=namespace,
                parent=parent,
                phases=sorted(LIVE),
                archived=True,
                limit=CHILDREN_AT_ONCE,
                cursor=cursor,
            )
            for child in page:
                yield child.name
            if cursor is None:
                return

    async def requeue(
        self,
        namespace: str,
        name: str,
        *,
        by: str = "",
        payloads: dict[str, str] | None = None,
        in_transaction: TaskBody | None = None,
    ) -> TaskInfo:
        """Queues an ended task again as a new attempt; see `Tasks.requeue`."""
        info = await self.get(namespace, name)
        if info.phase not in ENDED:  # what its runs have made is not known before
            raise _cannot("retried", info)
        if _is_unbegun(info):
            return (await self._begin_after_all(info, in_transaction)).task
        again = TaskRequeued(info.attempt + 1, by, payloads=payloads or {})
        await self._tell(namespace, name, again, "retried", in_transaction, await self.in_doubt(namespace, name))
        return await self.get(namespace, name)

    async def _begin_after_all(self, task: TaskInfo, in_transaction: TaskBody | None) -> Accepted:
        """Begins a task that failed because its target was not there. Raises `NotFound` when it still is not."""
        found = await self._db.read("task_content", namespace=task.namespace, name=task.name)
        if found:
            (row,) = found
            command = decode_command(row["command"])
            pinned, data = await self._pinner.pin(command)
            made = await self._add(
                command, row["digest"], row["idempotency_key"], pinned, data, in_transaction, instead_of=row["key"]
            )
            if made is not None:
                return made
        return Accepted(await self.get(task.namespace, task.name), duplicate=True)  # somebody else was faster

    async def in_doubt(self, namespace: str, name: str) -> InDoubt:
        """Calls of a task that has ended which may have acted, by agent: a new run must not make them beside that.

        Raises `Conflict` for a run that cannot be read or was forgotten: what it has done is not known.
        """
        (forgotten,) = await self._db.read("task_runs_forgotten", namespace=namespace, name=name)
        if forgotten["runs"]:
            raise Conflict(
                f"{forgotten['runs']} runs of task {name} were forgotten: what their calls may have done is not known",
                hint="hand the work in as a new task; `retention_runs` says for how long runs are kept",
            )
        journal, specs = SqlJournal(self._db), Specs()
        found: dict[str, dict[tuple[str, str], Unsettled]] = {}
        for row in await self._db.read("task_runs", namespace=namespace, name=name):
            try:
                state = await load_state(journal, specs, row["run_id"])
            except KernelError as error:
                raise Conflict(f"what run {row['run_id']} has done cannot be read: {error}") from error
            mine = found.setdefault(row["agent"], {})
            for each in state.created.unsettled if state.created is not None else ():
                mine.pop((each.tool, each.key), None)  # settled there, unless it says so again
            mine.update({(each.tool, each.key): each for each in unsettled_of(state)})
        keys = {key for calls in found.values() for _, key in calls}
        # What people have said since the runs ended: the same call finds that by itself (engine/driver/doubts.py).
        known = await DoubtTable(self._db).of_keys(namespace, keys) if keys else []
        settled = {each.key for each in known if each.decision} - {each.key for each in known if not each.decision}
        left = {agent: [each for each in calls.values() if each.key not in settled] for agent, calls in found.items()}
        return {agent: tuple(calls) for agent, calls in left.items() if calls}

    async def archive(
        self, namespace: str, name: str, *, by: str = "", in_transaction: TaskBody | None = None
    ) -> TaskInfo:
        """Archives a task. A live one is cancelled and marked in the same transaction; it ends as its runs do."""
        info = await self.get(namespace, name)
        if info.archived_at is not None:
            return info
        key, uid, now = info.key, info.uid, self._clock()

        def mark(name: str, uid: str) -> Tx[None]:
            yield from run("task_archive", key=key, now=now)
            if in_transaction is not None:
                yield from in_transaction(name, uid)

        if info.phase not in ENDED:
            try:
                return await self.cancel(namespace, name, by=by, reason="archived", in_transaction=mark)
            except Conflict:
                if (await self.get(namespace, name)).phase not in ENDED:
                    raise
        await self._db.write(mark, name, uid)
        return await self.get(namespace, name)

    async def end(
        self, namespace: str, name: str, *, by: str = "", in_transaction: TaskBody | None = None, wait: float = 0.0
    ) -> TaskInfo:
        """Delete the work of a Task that was deleted; a live one is cancelled first. Raises `NotFound`.

        What `in_transaction` writes is stored with the first of what is done. A worker that has it may need a moment to
        end it, for which this waits up to `wait` seconds. Until all is done the store keeps a note of it
        (`task_ending_add`), by which `timers` does it again.
        """
        info = await self.get(namespace, name)
        if info.phase == "cancelled":
            await self._cancel_below(namespace, name, by)  # whoever cancelled it may not have come so far
        elif info.phase not in ENDED and not await self._is_ending(namespace, name):
            at, recorded = iso(self._clock()), in_transaction

            def noted(name: str, uid: str) -> Tx[None]:
                yield from one("revision_lock")
                yield from run("task_ending_add", namespace=namespace, name=name, at=at)
                if recorded is not None:
                    yield from recorded(name, uid)

            try:
                info = await self.cancel(namespace, name, by=by, reason="its Task was deleted", in_transaction=noted)
                in_transaction = None
            except Conflict:
                info = await self.get(namespace, name)
                if info.phase not in ENDED:
                    raise
        loop = asyncio.get_running_loop()
        latest = loop.time() + wait
        seen: object = None  # the first look comes at once: it was read before anything was marked
        while info.phase not in ENDED and (left := latest - loop.time()) > 0:
            await self._db.wait_for_change(seen, timeout=left)
            seen = self._db.change_mark()
            info = await self.get(namespace, name)
        if info.phase in ENDED:
            await self._delete_with_its_task(info, in_transaction)
        return info  # one that has not ended stays in the lists until then, and the note with it

    async def _delete_with_its_task(self, info: TaskInfo, in_transaction: TaskBody | None) -> None:
        key = key_text(Key("Task", info.namespace, info.name))

        def unless_declared(name: str, uid: str) -> Tx[None]:
            yield from one("revision_lock")
            if (yield from one("resource_get", key=key)) is not None:
                raise _DeclaredAgain
            yield from run("task_ending_done", uid=uid)
            if in_transaction is not None:
                yield from in_transaction(name, uid)

        try:
            await self.delete(info.namespace, info.name, in_transaction=unless_declared)
        except _DeclaredAgain:
            await self._db.write(_ended_with_its_task, info.uid)

    async def delete(self, namespace: str, name: str, *, in_transaction: TaskBody | None = None) -> None:
        """Deletes a task that has ended; raises `Conflict` for a live one."""
        info = await self.get(namespace, name)

        def body() -> Tx[None]:
            row = yield from rows.turn(info.key)
            if row is None:
                raise no_task(namespace, name)
            if row["phase"] not in ENDED:
                raise Conflict(f"task {name} has not ended ({row['phase']})", hint="cancel it first")
            yield from rows.forget([info.key])
            if in_transaction is not None:
                yield from in_transaction(name, info.uid)

        await self._db.write(body)

    async def _tell(
        self,
        namespace: str,
        name: str,
        fact: TaskEvent,
        done: str,
        in_transaction: TaskBody | None,
        in_doubt: InDoubt | None = None,
    ) -> None:
        ref = await self.ref(namespace, name)
        now = self._clock()

        def body() -> Tx[list[Ticket]]:
            tickets = yield from tell(ref, fact, now, in_doubt=in_doubt)
            if in_transaction is not None:
                yield from in_transaction(name, ref.uid)
            return tickets

        try:
            tickets = await self._db.write(alone_with(in_transaction, body))
        except IllegalEvent as wrong:
            raise _cannot(done, await self.get(namespace, name)) from wrong
        if self._hear is not None:
            await self._hear()  # before anybody is told that it is done: nothing of a cancelled task begins here then
        await self._transport.publish(tickets)
        await self._end_idle_runs(namespace, name)

    async def _end_idle_runs(self, namespace: str, name: str) -> None:
        """Runs that were told to stop and that nobody holds have nobody to stop them: it is done here."""
        if self._wake is None:
            return
        for row in await self._db.read("task_runs_to_stop", namespace=namespace, name=name):
            try:
                await self._wake(row["run_id"])
            except FoliotError as error:  # a worker was faster, or will find it
                log.debug("run %s is left to a worker: %s", row["run_id"], error.message)

    # --- timers --------------------------------------------------------------------------------------------------

    async def timers(self, now: float) -> float | None:
        """Deal with tasks whose time has come, and runs that nobody woke; when to look again, if there are more."""
        if unheard := await queue.wake_unheard(self._db, now):
            log.warning("%d runs waited although they had been told something, and go on now", unheard)
        await self._end_deleted(now)
        at, key, dealt_with = 0.0, 0, 0
        while rows := await self._db.read("task_timers", now=now, at=at, key=key, count=TIMERS_AT_ONCE):
            for row in rows:
                dealt_with += await self._deal_with(row["key"], now)
            at, key = rows[-1]["timer_at"], rows[-1]["key"]
            if dealt_with >= TIMERS_AT_ONCE:
                return now
        following = await self._db.read("task_next_timer", now=now)
        return following[0]["at"] if following else None

    async def _end_deleted(self, now: float) -> None:
        """End and delete the work of Tasks that were deleted by somebody who did not live, or wait, to do it."""
        place: dict[str, Any] = {"before": iso(now - ENDING_SECONDS), "count": TIMERS_AT_ONCE}
        after = ""
        while rows := await self._db.read("task_endings", after=after, **place):
            for row in rows:
                after = row["uid"]
                try:
                    if row["name"] is not None:
                        if await self._is_ending(row["namespace"], row["name"]):
                            continue
                        await self.end(row["namespace"], row["name"])
                        log.info("the Task of %s/%s was deleted: its work ends now", row["namespace"], row["name"])
                    else:
                        await self._db.write(_ended_with_its_task, row["uid"])
                except Unavailable:
                    raise
                except Exception as error:  # such as a plan of a newer version: others may be able to
                    log.debug("work whose Task was deleted is left to others: %s", error)

    async def _is_ending(self, namespace: str, name: str) -> bool:
        """Whether a task was told to end, and its workers are at it."""
        if (await self.get(namespace, name)).phase in ENDED:
            return False
        facts = [each.event for each in await self.events(namespace, name)]
        tried = max((place for place, fact in enumerate(facts) if isinstance(fact, TaskRequeued)), default=0)
        return any(isinstance(fact, TaskCancelRequested) for fact in facts[tried:])

    async def _deal_with(self, key: int, now: float) -> bool:
        """Whether the timer of this task was dealt with. One that cannot be is left for others, and holds up nobody."""
        try:
            found = await self._db.read("task_by_key", key=key)
            if found:
                await self._overdue(await self.ref(found[0]["namespace"], found[0]["name"]), now)
            self._unreadable.discard(key)
        except Unavailable:
            raise
        except Exception as error:  # a plan or a state of a newer version, for example, or content that is gone
            level = logging.DEBUG if key in self._unreadable else logging.WARNING
            self._unreadable.add(key)
            log.log(level, "the timer of task %s is left to others: %s", key, error)
            return False
        return True

    async def _overdue(self, task: TaskRef, now: float) -> None:
        command = task.command

        def body() -> Tx[list[Ticket]]:
            row = yield from rows.lock(task.key)
            if row["phase"] in ENDED or row["timer_at"] is None or row["timer_at"] > now:
                return []
            deadline = deadline_of(command, decode_state(row["graph"]).since or row["created_at"])
            fact: TaskEvent = TimerWentOff()
            if deadline is not None and deadline <= now:
                fact = TaskCancelRequested("timer", f"it took longer than {command.timeout:g} s")
            elif (yield from _has_expired(row, command, now)):
                fact = TaskCancelRequested("timer", "expired: nobody began it in time")
            return (yield from tell_locked(task, row, fact, now))

        await self._transport.publish(await self._db.write(body))
        await self._end_idle_runs(task.namespace, task.name)

    # --- reading -------------------------------------------------------------------------------------------------

    async def ref(self, namespace: str, name: str) -> TaskRef:
        """Reads what a transaction about the task needs. Raises `NotFound`."""
        found = await self._db.read("task_content", namespace=namespace, name=name)
        if not found:
            raise no_task(namespace, name)
        row = found[0]
        pinned, command = await self._bundles.get(row["plan"]), decode_command(row["command"])
        return TaskRef(row["key"], row["uid"], namespace, name, row["priority"], row["lane"], command, pinned)

    async def events(self, namespace: str, name: str, *, after: int = 0, limit: int = 500) -> list[TaskRecord]:
        """Reads the events of a task behind `after`. Raises `NotFound`."""
        found = await self._db.read("task_event_read", namespace=namespace, name=name, after=after, count=limit)
        if not found:  # which may be all that is there, or no task at all
            await self.get(namespace, name)
        return [TaskRecord(row["seq"], row["at"], decode_fact(fact_of(row))) for row in found]


def _declares(document: Document, command: Command) -> bool:
    """Whether a Task still asks for this."""
    return document["spec"].get("mode", "run") != "template" and asks_the_same(command_of(document), command)


def _has_expired(row: Row, command: Command, now: float) -> Tx[bool]:
    """Whether the time to begin is over, and nobody has begun."""
    if row["phase"] != "queued" or command.expires_at is None or command.expires_at > now:
        return False
    return (yield from one("task_begun", key=row["key"])) is None


def _failed_at_once(plan: Plan, state: GraphState, accepted: TaskAccepted, missing: NotFound, now: float) -> Moves:
    """Returns the facts of a task whose target is not there: it is accepted, and fails before anything began."""
    failed = TaskFailed("not_found", TARGET_MISSING, f"{missing.message}; declare it, then retry the task")
    for fact in (accepted, failed):
        apply(plan, state, fact, now)
    return Moves([accepted, failed], [], [], None, failed)


def _cannot(done: str, task: TaskInfo) -> Conflict:
    shown = API_PHASES[task.phase]  # type: ignore[index]  # the store holds no other
    hint = "only a task that has ended can be retried, and none that succeeded" if done == "retried" else None
    return Conflict(f"task {task.name} cannot be {done}: its phase is {shown}", hint=hint)


def _is_unbegun(task: TaskInfo) -> bool:
    """Whether it failed because its target was not there, so that nothing of it was ever begun."""
    return task.phase == "failed" and task.summary.get("reason") == TARGET_MISSING


def _forget_unbegun(key: int) -> Tx[bool]:
    """Forgets such a task, so that it can be accepted anew. False when somebody else just did."""
    row = yield from rows.turn(key)
    if row is None or row["phase"] != "failed":
        return False
    yield from rows.forget([key])
    return True


def _accepted(key: int, task: NewTask, command: Command, revision: int) -> TaskInfo:
    """The task as it was in the moment in which it was accepted."""
    return TaskInfo(
        key=key,
        uid=task.uid,
        namespace=task.namespace,
        name=task.name,
        target_kind=command.target_kind,
        target=task.target,
        phase="queued",
        revision=revision,
        attempt=1,
        priority=task.priority,
        lane=task.lane,
        spawned_by=task.spawned_by,
        parent=task.parent,
        labels=task.labels,
        summary=task.summary,
        timer_at=task.timer_at,
        created_at=task.now,
        updated_at=task.now,
        started_at=None,
        ended_at=None,
        archived_at=None,
        spec=spec_of(command),
        written=command.written,
    )


class _DeclaredAgain(Exception):
    """A Task of this name was declared before the work of the deleted one was: that work is its own now."""


def _ended_with_its_task(uid: str) -> Tx[None]:
    yield from one("revision_lock")
    yield from run("task_ending_done", uid=uid)
