"""Starting and taking up runs: everything between a frozen definition and a driver at work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any

import msgspec

from foliot.common.process import identity, in_words, is_gone
from foliot.common.threads import unhurried
from foliot.engine.approval.records import DecisionLog
from foliot.engine.approval.requests import ApprovalRequests
from foliot.engine.base import Approvals, Clock, Models, RunProcesses, Settlement, Silence, Watcher
from foliot.engine.budgets.run_budget import RunBudgets
from foliot.engine.definition.governance import ModelGate
from foliot.engine.definition.run_scope import missing_in
from foliot.engine.driver.appends import recorded
from foliot.engine.driver.attachments import FetchesFiles
from foliot.engine.driver.doubts import Doubts, family
from foliot.engine.driver.driver import Driver
from foliot.engine.driver.ids import check_run_id, new_run_id
from foliot.engine.driver.journal import (
    Conversation,
    Conversations,
    JournalFacts,
    Specs,
    load_run,
    load_state,
    read_facts,
    read_history,
    storable,
    told_by,
)
from foliot.engine.driver.lease_keeper import LeaseKeeper
from foliot.engine.hooks.registry import HookRegistry
from foliot.engine.hooks.run_hooks import RunHooks
from foliot.engine.telemetry.context import callers_trace, log_run
from foliot.engine.workspaces.assets import Asset, left_by, with_assets
from foliot.engine.workspaces.folders import UserFolders, begun_by, key_of, with_data, without_data
from foliot.engine.workspaces.trees import content_of
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.errors import FoliotError, NotFound, Unavailable, UsageError
from foliot.kernel.identity import NOBODY, Identity
from foliot.kernel.messages import Media, Message, Part, Text, ToolResult
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import (
    EQUALITY,
    CancelRequested,
    Event,
    FolderFiles,
    Fork,
    PastEffect,
    RunClaimed,
    RunCreated,
    UnknownReason,
    Unsettled,
    WorkspaceSnapshot,
)
from foliot.kernel.run.spec import RunSpec, digest, encode_spec
from foliot.kernel.run.state import State
from foliot.kernel.traces import new_trace
from foliot.store.journal.base import (
    CONVERSATION_LABEL,
    Entry,
    Journal,
    Lease,
    LeaseLost,
    NewRun,
    RunHeld,
    RunInfo,
    Signal,
    StoreSetBack,
    TransactionBody,
    identity_labels,
)
from foliot.tools.base import Toolbox
from foliot.tools.workspaces import WORKSPACE_RULES

log = logging.getLogger(__name__)


class Runs:
    """The runs of one process. Safe for any number of concurrent ones; each is driven by one `Driver`."""

    def __init__(
        self,
        *,
        journal: Journal,
        models: Models,
        tools: Toolbox,
        watcher: Watcher | None = None,
        clock: Clock = time.time,
        lease_clock: Clock | None = None,
        worker: str | None = None,
        lease_seconds: float = 30.0,
        is_gone: Callable[[str | None], bool] = is_gone,
        approvals: Approvals | None = None,
        decisions: DecisionLog | None = None,
        budgets: RunBudgets | None = None,
        gate: ModelGate | None = None,
        doubts: Doubts | None = None,
        folders: UserFolders | None = None,
        taken_over: Callable[[State, Sequence[tuple[float, Event]]], Awaitable[object]] | None = None,
        set_back: Callable[[str], Awaitable[None]] | None = None,
        hooks: HookRegistry | None = None,
    ) -> None:
        """`is_gone` says whether a worker has certainly died, so that its runs can be taken before its leases end.

        `lease_clock` is the one by which leases are judged, by default `clock`.
        Without `approvals` a parked call is known to its journal alone; without a `gate` every model may be asked.
        `decisions` keeps a record of what nobody decided in time. Without `doubts` a call that may have acted is known
        to its own run alone; without `folders` runs keep nothing for their users. `taken_over` hears of a run that its
        last holder did not let go, with all that is recorded of it; `set_back` keeps it that the store is older than
        what a run here had seen of it. `hooks` are asked about what runs do here.
        """
        self.journal = journal
        self.tools = tools
        self.worker = worker or identity()
        self._models = models
        self._watcher = watcher or Silence()
        self._clock = clock
        self.lease_clock = lease_clock or clock
        self.lease_seconds = lease_seconds
        self._is_gone = is_gone
        self._approvals = approvals
        self._decisions = decisions or DecisionLog()
        self._budgets = budgets
        self._gate = gate
        self.doubts = doubts
        self._folders = folders
        self._taken_over = taken_over
        self._set_back = set_back
        self.hooks = hooks
        # What a run that is taken up has to be told first, by whoever knows of its parent and its children.
        self.taken_up: Callable[[State], Awaitable[Sequence[Signal]]] | None = None
        # What the end of a turn does to its session; without it no turn of a session is driven here.
        self.turn_settlement: Callable[[State], Settlement] | None = None
        # The files that people sent to the session of a turn, for questions to its model.
        self.turn_files: Callable[[State], FetchesFiles] | None = None
        # What lives between the calls of runs, and ends with them; None as long as there is nothing.
        self.processes: Callable[[], RunProcesses | None] = lambda: None
        self.workspaces: RunWorkspaces | None = None
        # Whether runs that begin here are traced, unless who begins one says so.
        self.traced = False
        self._last_spec: tuple[RunSpec | None, tuple[str, bytes]] = None, ("", b"")
        self._specs = Specs()
        self.conversations = Conversations(journal, self._specs)
        self._claiming: Counter[str] = Counter()
        self._keeper = LeaseKeeper(
            journal, clock=self.lease_clock, lease_seconds=lease_seconds, set_back=self._say_set_back
        )

    async def start(
        self,
        spec: RunSpec,
        input: Sequence[Message],
        *,
        run_id: str | None = None,
        history: Sequence[Message] = (),
        after: str = "",
        session: str = "",
        turn: int = 0,
        inputs: tuple[int, ...] = (),
        definitions: dict[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        fork: Fork | None = None,
        workspace: WorkspaceSnapshot | None = None,
        assets: Sequence[Asset] = (),
        instead: str = "",
        unsettled: tuple[Unsettled, ...] = (),
        parent: str = "",
        depth: int = 0,
        trace: str = "",
        identity: Identity = NOBODY,
        task: str = "",
        system: str = "",
        template: str = "",
        root: str = "",
        ancestors: tuple[str, ...] = (),
        past: tuple[PastEffect, ...] = (),
        tools: Toolbox | None = None,
        stream: bool = False,
        compacts: bool = False,
        in_transaction: TransactionBody | None = None,
    ) -> Driver:
        """Store a new run, held by this process. Raises `Conflict` when `run_id` is taken, and `InvalidInput`.

        `after` is the run whose conversation it goes on with, which is not stored again. `session` is the one that it
        is a turn of, `turn` its number there, `inputs` the numbers of what it answers. `parent` is the run that
        delegated to it, `depth` how many such runs stand above it. `trace` is the context it is traced under, by
        default one of its own if this process traces. `identity` is on whose behalf it acts; a delegate has the `task`,
        `system`, `template`, `root`, `ancestors` and `past` of what stands above it. `workspace` are the files that it
        begins with, by default those that the run left which it goes on after; `assets` are put beside them. `instead`
        is a run whose past it shares: it begins with the folder of its user as that one did, as a fork does. One that
        `compacts` answers nothing, and summarises what was said before. `in_transaction` is written with it.
        """
        now = self._clock()
        if run_id is None:
            run_id = new_run_id(now)
        else:
            check_run_id(run_id)
        with storable(f"run {run_id}"):
            name, frozen = self._encoded(spec)
            told = await unhurried(_size(history), msgspec.json.encode, tuple(history)) if history else b""
        content = {name: frozen}
        before, conversation = None, Conversation()
        if after:
            assert not history, "a run that goes on with another has its history"
            conversation = await self.conversations.read(after)
            history = conversation.messages
        elif history:
            before = await unhurried(len(told), digest, told)
            content[before] = told
        if workspace is not None:
            if workspace.data is not None and not _is_folder_of(spec, identity, workspace.data):
                workspace, folders = await without_data(self.journal, workspace)
                content.update(folders)
            # Its folders are content of this run: what they name stays as long as it, whatever becomes of the other.
            content.update(await content_of(self.journal, workspace, content))
        elif after and (left := await left_by(self.journal, after)) is not None:
            # Whose content stays: no turn is forgotten before later ones.
            workspace, folders = await without_data(self.journal, left)
            content.update(folders)
        if (origin := fork.run_id if fork else instead) and (workspace is None or workspace.data is None):
            data = await begun_by(self.journal, origin)
            if data is not None and _is_folder_of(spec, identity, data):
                workspace, folders = await with_data(self.journal, workspace, data, content)
                content.update(folders)
        workspace, folders = await with_assets(self.journal, workspace, assets, content)
        content.update(folders)
        state = State(spec, run_id, history)
        created = RunCreated(
            agent=spec.agent,
            spec=name,
            input=tuple(input),
            namespace=spec.namespace,
            definitions=definitions or {},
            history=before,
            fork=fork,
            workspace=workspace,
            unsettled=unsettled,
            equality=EQUALITY,
            after=after,
            before=len(history) if after else 0,
            base=conversation.base,
            summarised=conversation.summarised,
            sized=conversation.sized if conversation.model == spec.model else 0,
            compacts=compacts,
            missing=missing_in(spec),
            past=past,
            session=session,
            turn=turn,
            inputs=inputs,
            parent=parent,
            depth=depth,
            identity=identity,
            task=task,
            system=system,
            template=template,
            root=root,
            ancestors=ancestors,
            trace=trace or callers_trace() or (str(new_trace(run_id)) if self.traced else ""),
        )
        facts: tuple[Event, ...] = (created, RunClaimed(1, self.worker, 1))
        with storable(f"run {run_id}"):
            entries = await unhurried(_size(input), _all_recorded, state, facts, now)
        private = await self._private(session, fork.run_id if fork else after or parent)
        creating = self.journal.create(
            NewRun(
                id=run_id,
                namespace=spec.namespace,
                agent=spec.agent,
                spec=created.spec,
                created_at=now,
                parent=fork.run_id if fork else parent or None,
                parent_seq=fork.seq if fork else None,
                labels={**(labels or {}), **identity_labels(identity), **private},
                content=content,
                after=after or None,
                root=family(spec.namespace, run_id, task, root).name if root else None,
            ),
            entries,
            worker=self.worker,
            lease_until=self.lease_clock() + self.lease_seconds,
            in_transaction=in_transaction,
        )
        with self._taking(run_id):
            lease = await self._held(creating)
        for seq, event in enumerate(facts, 1):
            self._watcher.recorded(run_id, seq, now, event)
        return self._driver(lease, state, tools, stream, claim=False)

    async def _private(self, session: str, above: str) -> dict[str, str]:
        """The label of a run with words of a session: that of its own, or of the run `above` whose words it has."""
        if not session and above:
            with contextlib.suppress(NotFound):
                session = (await self.journal.get(above)).labels.get(CONVERSATION_LABEL, "")
        return {CONVERSATION_LABEL: session} if session else {}

    def _encoded(self, spec: RunSpec) -> tuple[str, bytes]:
        """The digest and the bytes of a spec. Thousands of runs begin with the same object, so the last is kept."""
        kept, found = self._last_spec
        if kept is not spec:
            frozen = encode_spec(spec)
            found = digest(frozen), frozen
            self._last_spec = spec, found
        return found

    async def take(
        self,
        run_id: str,
        *,
        tools: Toolbox | None = None,
        stream: bool = False,
        settlement: Callable[[Lease], Awaitable[Settlement]] | None = None,
    ) -> Driver:
        """Take up a run that waits, or whose holder died.

        `settlement` gives the work that a queued run belongs to.
        Raises `NotFound`; `RunHeld`; `Conflict` when it has ended, which is a `LeaseLost` if it happened just now.
        """
        with self._taking(run_id):
            lease = await self._claimed(run_id)
            toolbox = tools or self.tools

            async def given(spec: RunSpec) -> Toolbox:
                return toolbox

            try:
                settles = await settlement(lease) if lease.queued and settlement is not None else None
                return await self.adopt(lease, tools=given, stream=stream, settlement=settles)
            except BaseException:
                await self._give_back(lease)  # a newer version, or another process, may take it up at once
                raise

    async def _claimed(self, run_id: str) -> Lease:
        now = self.lease_clock()
        until = now + self.lease_seconds
        try:
            return await self._held(self.journal.claim(run_id, worker=self.worker, now=now, until=until))
        except RunHeld:
            info = await self.journal.get(run_id)
            if not self._is_gone(info.worker):
                hint = f"`foliot why {run_id}` says what it does, `foliot cancel {run_id}` ends it"
                raise RunHeld(f"run {run_id} is at work: {in_words(info.worker or '')} drives it", hint=hint) from None
            # The holder was killed on this machine: waiting for its lease to run out would help nobody. It is named by
            # its epoch, so that of several who find it dead one replaces it, and the others not that one.
            return await self._held(
                self.journal.claim(run_id, worker=self.worker, now=now, until=until, dead=info.epoch)
            )

    async def adopt(
        self,
        lease: Lease,
        *,
        tools: Callable[[RunSpec], Awaitable[Toolbox]] | None = None,
        stream: bool = False,
        told: JournalFacts | None = None,
        quiet: bool = False,
        settlement: Settlement | None = None,
    ) -> Driver:
        """Go on with a run whose lease this process was given. Raises `LeaseLost`, and what `tools` raises.

        Whoever has read the run since the lease was taken gives its whole journal as `told`, and says whether there
        was no signal for it then, `quiet`: one that came later the keeper finds. `settlement` is the work that a queued
        run belongs to: without it the task would not hear of its end.
        """
        if lease.queued and settlement is None:
            await self._give_back(lease)
            raise UsageError(f"run {lease.run_id} belongs to a task, and nothing here knows of tasks")
        told = told or await told_by(lease.run_id, await self.journal.read(lease.run_id))
        state = await load_state(self.journal, self._specs, lease.run_id, told=told, conversations=self.conversations)
        if state.ended is not None:
            # This process slept past its new lease before it read on, and someone else has finished the run.
            raise LeaseLost(f"run {lease.run_id} has been ended by another process")
        if state.held and state.waiting is None and self._taken_over is not None:
            await self._taken_over(state, told.facts)
        toolbox = self.tools if tools is None else await self.toolbox(state, tools)
        driver = self._driver(lease, state, toolbox, stream, claim=True, settlement=settlement)
        first = await self.taken_up(state) if self.taken_up is not None else ()
        signals = () if quiet else await self.journal.signals([lease.run_id])
        for signal in (*signals, *await self._answers(state, toolbox), *first):
            driver.deliver(signal)
        return driver

    async def toolbox(self, state: State, tools: Callable[[RunSpec], Awaitable[Toolbox]]) -> Toolbox:
        """The tools that a run goes on with: none for one that is to end, where its own are not to be had.

        Nothing is begun in it any more, and each open call is given a result by what is recorded of it. Raises what
        `tools` raises.
        """
        try:
            return await tools(state.spec)
        except FoliotError as error:
            signals = await self.journal.signals([state.run_id])
            told = any(isinstance(decode(each.data), CancelRequested) for each in signals)
            if not told and (state.ending is None or state.ending.cancelled is None):
                raise
            log.info("run %s is ended without its tools: %s", state.run_id, error.message)
            return self.tools

    async def _answers(self, state: State, tools: Toolbox) -> list[Signal]:
        """Decisions that nobody signalled, because whoever decided died before he could."""
        if self._approvals is None or not any(call.phase == "parked" for call in state.calls):
            return []
        found = {call.name: tools.definition(call.name) for call in state.calls}
        try:
            return await self._approvals.answers(
                state, {name: definition.classes for name, definition in found.items() if definition}
            )
        except FoliotError as error:
            log.warning("run %s: its approvals could not be looked up: %s", state.run_id, error)
            return []

    async def drive(self, driver: Driver) -> State:
        """Drive to the end or the next wait, with the lease kept alive meanwhile. Raises `LeaseLost`."""
        state = driver.state
        lease, row_epoch = driver.lease, None
        if (processes := self.processes()) is not None:
            processes.taken(lease.run_id, lease.epoch)
        self._keeper.take(driver)
        before = log_run(state)
        try:
            try:
                if self._keeper.orphans(lease.run_id):
                    await self._keeper.stand_alone(driver)
                hooks = self.hooks.take(state.spec) if self.hooks is not None else None
                state = await (driver.drive() if hooks is None else self._hooked(driver, hooks))
                # Who lets a run go writes the next epoch, so that nothing more can be written under its own.
                row_epoch = lease.epoch + 1 if state.ended is None else None
                self.conversations.ended(state)
                return state
            finally:
                if (processes := self.processes()) is not None:
                    await processes.left(lease.run_id, row_epoch, claim=lease.epoch, worker=self.worker)
                if self.workspaces is not None and state.ended is not None:
                    self.workspaces.ended(state.spec.namespace, state.run_id)
        except StoreSetBack as error:
            await self._say_set_back(error)
            raise
        except asyncio.CancelledError:
            await self._give_back(lease)  # another process may go on with it at once
            raise
        finally:
            log_run(before)
            self._keeper.leave(driver)

    async def _hooked(self, driver: Driver, hooks: RunHooks) -> State:
        """Drive with the hooks that are in force now: they stay until the run ends or waits."""
        assert self.hooks is not None, "they were taken from it"
        try:
            return await driver.drive(hooks)
        finally:
            await self.hooks.release(hooks)

    async def _held(self, claiming: Coroutine[Any, Any, Lease | None]) -> Lease:
        """The lease that is being stored. A caller that does not wait for it leaves no run held: it is given back."""
        storing = asyncio.create_task(claiming)
        try:
            lease = await asyncio.shield(storing)
        except asyncio.CancelledError:
            with contextlib.suppress(FoliotError):
                if (unwanted := await asyncio.shield(storing)) is not None:
                    await self._give_back(unwanted)
            raise
        assert lease is not None, "what is stored with a worker is held by it"
        return lease

    async def _give_back(self, lease: Lease) -> None:
        try:
            await asyncio.shield(self.journal.append(lease, [], phase="pending"))
        except LeaseLost:
            log.debug("run %s is somebody else's already, or has ended", lease.run_id)
        except FoliotError as error:
            log.warning("run %s is not given back, and is free when its lease ends: %s", lease.run_id, error.message)

    async def _say_set_back(self, error: StoreSetBack) -> None:
        if self._set_back is None:
            log.error("the store went back in time: %s", error.message)
        else:
            with contextlib.suppress(FoliotError):
                await self._set_back(error.message)

    async def load(self, run_id: str, *, upto: int | None = None, trusting: bool = False) -> tuple[RunInfo, State]:
        """The run and the fold of its journal (of the first `upto` events). Raises `NotFound`, `JournalChanged`.

        `trusting`: as it stands in the store, even when it was changed there.
        """
        return await load_run(self.journal, run_id, upto=upto, trusting=trusting)

    async def facts(self, run_id: str, *, limit: int | None = None) -> list[tuple[float, Event]]:
        return await read_facts(self.journal, run_id, limit=limit)

    async def history(self, created: RunCreated) -> tuple[Message, ...]:
        """Reads the messages that came before the run, in full."""
        return await read_history(self.journal, created, self.conversations)

    async def may_go_on(self, state: State) -> bool:
        """Whether there is something for a waiting run to do: its time has come, somebody signalled, a budget grew."""
        waiting = state.waiting
        if waiting is not None and waiting.until is not None and waiting.until <= self._clock():
            return True
        if await self.journal.signals([state.run_id]):
            return True
        return self._budgets is not None and await self._budgets.may_go_on(state)

    async def sweep(self) -> None:
        """Now and then, find runs that wait although what they wait for has come. Never raises."""
        if self._budgets is not None and self._budgets.sweep is not None:
            await self._budgets.sweep.look_now_and_then()

    def is_left_alone(self, info: RunInfo) -> bool:
        """Whether nobody drives this run although it neither waits nor has ended."""
        if info.phase == "pending":
            return True
        over = info.lease_until is not None and info.lease_until < self.lease_clock()
        return info.phase == "running" and (over or self._is_gone(info.worker))

    @property
    def watcher(self) -> Watcher:
        """The watcher that is notified of the runs this process drives."""
        return self._watcher

    async def hear(self) -> None:
        """Have the runs that this process drives hear what is stored for them now. Otherwise they hear it soon."""
        with contextlib.suppress(Unavailable):
            await self._keeper.deliver_signals()

    def local(self, run_id: str) -> Driver | None:
        """The driver of a run that this process is driving now: of its newest claim."""
        return self._keeper.driver(run_id)

    def has(self, run_id: str) -> bool:
        """Whether this process drives the run, or has just claimed it to drive it."""
        return run_id in self._claiming or self._keeper.driver(run_id) is not None

    @contextlib.contextmanager
    def _taking(self, run_id: str) -> Generator[None]:
        """Around a claim, up to the moment from which `drive` keeps the driver."""
        self._claiming[run_id] += 1
        try:
            yield
        finally:
            self._claiming[run_id] -= 1
            if not self._claiming[run_id]:
                del self._claiming[run_id]

    async def close(self) -> None:
        await self._keeper.close()

    def _driver(
        self,
        lease: Lease,
        state: State,
        tools: Toolbox | None,
        stream: bool,
        *,
        claim: bool,
        settlement: Settlement | None = None,
    ) -> Driver:
        tools = tools or self.tools
        created = state.created
        if settlement is None and created is not None and (created.session or (created.root and not created.task)):
            if self.turn_settlement is not None:
                settlement = self.turn_settlement(state)
            elif created.session:
                raise UsageError(f"run {lease.run_id} is a turn of a session, and nothing here knows of sessions")
        fetch = None
        if self.turn_files is not None and state.created is not None and state.created.session:
            fetch = self.turn_files(state)
        return Driver(
            lease,
            state,
            journal=self.journal,
            models=self._models,
            tools=tools,
            purse=self._budgets.purse(state) if self._budgets is not None else None,
            gate=self._gate,
            doubts=self.doubts,
            folders=self._folders,
            parking=ApprovalRequests(self._approvals, state, tools) if self._approvals is not None else None,
            decisions=self._decisions,
            settlement=settlement,
            fetch=fetch,
            conversations=self.conversations,
            below=self._keeper.below,
            watcher=self._watcher,
            clock=self._clock,
            lease_clock=self.lease_clock,
            stream=stream,
            claim=claim,
            left_by=self._left_by(lease, state),
            lease_seconds=self.lease_seconds,
        )

    def _left_by(self, lease: Lease, state: State) -> UnknownReason:
        """How the attempt before came to leave a run that it had calls under way in: let go, lost, or killed."""
        if not state.calls or lease.released:
            return "cancelled"
        return "process_died" if self._is_gone(state.worker) else "lease_lost"


def _is_folder_of(spec: RunSpec, identity: Identity, data: FolderFiles) -> bool:
    """Whether files that a run begins with have the folder in `data/` that is its own."""
    key = key_of(spec.namespace, spec.agent, identity.user, spec.extra.get(WORKSPACE_RULES, {}))
    return key is not None and key.owner == data.owner


def _all_recorded(state: State, facts: Sequence[Event], now: float) -> list[Entry]:
    return [recorded(state, event, now) for event in facts]


def _size(messages: Sequence[Message]) -> int:
    """About how many characters these are: what is large is in texts, or in files that came with them."""
    return sum(_length(part) for message in messages for part in message.parts)


def _length(part: Part) -> int:
    match part:
        case Text(text=text):
            return len(text)
        case Media(data=data):
            return len(data or "")
        case ToolResult(content=content):
            return sum(map(_length, content))
        case _:
            return 0


def user_message(text: str) -> Message:
    return Message("user", (Text(text),))
