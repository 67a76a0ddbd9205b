"""The parts of an open runtime, and how runs are driven with them: for the rooms of Foliot, as `runtime.inside`.

Programs use the verbs of `Runtime`; nothing here is promised to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from foliot.common.cancellation import stop_tasks
from foliot.common.threads import unhurried
from foliot.engine.approval.questions import Questions
from foliot.engine.approval.records import DecisionLog
from foliot.engine.approval.service import ApprovalService, Decision
from foliot.engine.approval.unknown_calls import UnknownCalls
from foliot.engine.audit.log import AuditTrail
from foliot.engine.budgets.wakeups import is_short
from foliot.engine.definition.grants import OperatorGrants
from foliot.engine.definition.run_options import UNCHANGED, RunOptions, check_excluded
from foliot.engine.definition.skills import SKILLS
from foliot.engine.driver.driver import Driver
from foliot.engine.driver.ids import new_run_id
from foliot.engine.driver.journal import FACT, check_definition, signal
from foliot.engine.driver.runs import Runs
from foliot.engine.explain.below import asking_below
from foliot.engine.explain.replay import Replay, branch, replay
from foliot.engine.hooks.base import Hook, distinct
from foliot.engine.live.hub import Live, Reader, Recorded, RunHub
from foliot.engine.workspaces.assets import Assets
from foliot.errors import Conflict, InvalidInput, NotFound, UsageError
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import CancelRequested, CompactionRequested, RunCreated
from foliot.kernel.run.spec import RunSpec, decode_spec
from foliot.kernel.run.state import Call, State
from foliot.resources.names import check_labels
from foliot.runtime.agent import Agent, as_tool, named
from foliot.runtime.answers import Input, messages_of
from foliot.runtime.assembly import Assembly
from foliot.runtime.background import BackgroundRuns, taken
from foliot.runtime.composition import RuntimeParts, compose
from foliot.runtime.inputs import Inputs
from foliot.runtime.results import RunFailedError, RunResult, Value, result_of, typed_result
from foliot.runtime.turns import SessionTurns
from foliot.runtime.warm_state import WarmState
from foliot.sessions.chat import Chat
from foliot.settings.settings import Settings, load_settings
from foliot.store.base import Database, ResourceStore
from foliot.store.journal.base import TASK_LABEL, TERMINAL, RunHeld, RunInfo, RunTaken, Signal, TransactionBody
from foliot.store.journal.chain import changed_journal
from foliot.store.journal.chain import check as check_chain
from foliot.store.sessions.assets import SqlAssets
from foliot.tools.base import Tool

if TYPE_CHECKING:
    from foliot.engine.definition.backends import Backends
    from foliot.engine.definition.endpoints import RunModels
    from foliot.engine.definition.missing import Brings
    from foliot.engine.plugins import Plugins
    from foliot.runtime.composition import Tasking
    from foliot.runtime.tools import ToolCatalog
    from foliot.sessions.base import NewTurn
    from foliot.sessions.service import SessionService
    from foliot.tools.backends.callbacks import Callbacks
    from foliot.tools.backends.http import Web
    from foliot.tools.fences import Fences


# --- runtime ---------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

Adjust = Callable[[RunSpec], RunSpec]
# How often a process that stays with a waiting run looks, when the store does not tell it of changes.
LOOK_EVERY = 1.0
# So many ids that were made and not used yet are known to be new; others are looked for in the store.
MOST_MADE = 1024


class Inside:
    """The inside of one runtime; its arguments are those of `Runtime`."""

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        settings: Settings | None = None,
        workspace: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] | None = None,
        lease_seconds: float | None = None,
        store_wait: float = 0.0,
        hooks: Iterable[Hook] = (),
        allow_missing: bool = False,
    ) -> None:
        self._allow_missing = allow_missing
        self._hooks = distinct(hooks, "the runtime")
        self._url = os.fspath(store) if store is not None else None
        self._settings = settings
        self._workspace = Path(workspace) if workspace is not None else None
        self._tools = [as_tool(item) for item in tools]
        self._given_clock = clock
        self._lease_seconds = lease_seconds
        self._store_wait = store_wait
        self._hub = RunHub()
        self._parts: RuntimeParts | None = None
        self._opening = False
        self._made: dict[str, None] = {}  # the last ids that were made here, and no run was begun with
        self.background = BackgroundRuns(self)
        self.inputs = Inputs(self)
        self.warm = WarmState(self)
        self._turns = SessionTurns(self)
        self._chat: Chat | None = None

    # --- opening and closing -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and put everything together. Raises `UsageError` when it is open already."""
        if self._opening or self._parts is not None:
            raise UsageError(
                "the runtime is open already",
                hint="one `async with` opens it: use it inside that block, or make another Runtime",
            )
        self._opening = True
        try:
            self._parts = await compose(
                self._url,
                self._settings,
                tools=self._tools,
                workspace=self._workspace,
                watcher=self._hub,
                next_change=self.next_change,
                turns=self._turns,
                clock=self._given_clock,
                lease_seconds=self._lease_seconds,
                store_wait=self._store_wait,
                hooks=self._hooks,
            )
            self._parts.assembly.allow_missing = self._allow_missing
            if (settings := self._parts.settings) is not None:
                await self._parts.plugins.use(settings.plugins)
        finally:
            self._opening = False

    async def close(self) -> None:
        """Release the runs that are driven here, and close everything."""
        if self._parts is not None:
            if self._parts.sessions is not None:
                await self._parts.sessions.close()
            await self.background.close()
            parts, self._parts = self._parts, None
            await parts.close()

    @property
    def clock(self) -> Callable[[], float]:
        """The time by the store, which processes on several machines agree on."""
        return self._open().clock

    @property
    def runs(self) -> Runs:
        """The engine below, for callers that need more than the verbs here."""
        return self._open().runs

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with."""
        return self._open().settings or self._settings or load_settings()

    @property
    def database(self) -> Database:
        """The database below everything. Raises `UsageError` for a runtime in memory."""
        database = self._open().database
        if database is None:
            raise UsageError("a runtime in memory has no database", hint="give the runtime a store, such as a path")
        return database

    @property
    def tasking(self) -> Tasking:
        """Tasks, and whoever does their runs here. Raises `UsageError` for a runtime in memory."""
        return self._open().tasking

    @property
    def keeps(self) -> bool:
        """Whether there is a database: what is said and done outlives the process."""
        return self._open().database is not None

    async def session_of(self, run_id: str) -> str:
        """Returns the session that a run is a turn of; blank for none."""
        facts = await self.runs.facts(run_id, limit=1)
        return created.session if facts and isinstance(created := facts[0][1], RunCreated) else ""

    @property
    def sessions(self) -> SessionService:
        """Conversations. Raises `UsageError` for a runtime in memory."""
        sessions = self._open().sessions
        if sessions is None:
            raise UsageError("a runtime in memory keeps no sessions", hint="give the runtime a store, such as a path")
        return sessions

    @property
    def chat(self) -> Chat:
        """The streams of sessions. Raises `UsageError` for a runtime in memory."""
        sessions = self.sessions
        if self._chat is None or self._chat.sessions is not sessions:  # one for all readers: they share their looks
            self._chat = Chat(sessions, self.runs.journal, self, masker=self.approvals.masker)
        return self._chat

    @property
    def resources(self) -> ResourceStore:
        """The store of declared resources. Raises `UsageError` for a runtime in memory."""
        resources = self._open().resources
        if resources is None:
            raise UsageError("a runtime in memory keeps no resources", hint="give the runtime a store, such as a path")
        return resources

    @property
    def audit(self) -> AuditTrail:
        """The log of what was decided and done. Raises `UsageError` for a runtime in memory."""
        audit = self._open().audit
        if audit is None:
            raise UsageError("a runtime in memory keeps no audit", hint="give the runtime a store, such as a path")
        return audit

    @property
    def callbacks(self) -> Callbacks:
        """The results that tools push to this process."""
        return self._assembly.backends.web.callbacks

    @property
    def web(self) -> Web:
        """The guarded HTTP client of this runtime, and the secrets that go with its requests."""
        return self._assembly.backends.web

    @property
    def backends(self) -> Backends:
        """The ways to tools that are not functions of this process."""
        return self._assembly.backends

    @property
    def brings(self) -> Brings:
        """Tells the parts that Python and plug-ins give to this runtime without a declaration."""
        return self._assembly.brings

    @property
    def grants(self) -> OperatorGrants:
        """The operator's grants to resources that others declare."""
        return self._assembly.backends.grants

    @property
    def fences(self) -> Fences:
        """The sandboxes of tool calls and of MCP servers that are programs."""
        return self._assembly.backends.fences

    @property
    def approvals(self) -> ApprovalService:
        """The questions that runs have asked, and who decided them. Raises `UsageError` for a runtime in memory."""
        approvals = self._open().approvals
        if approvals is None:
            raise UsageError("a runtime in memory keeps no approvals", hint="give the runtime a store, such as a path")
        return approvals

    @property
    def assets(self) -> Assets:
        """The files that people send to sessions."""
        stored = SqlAssets(self.database) if self._open().database is not None else None
        return Assets(self.runs.journal, stored, clock=self.clock)

    @property
    def questions(self) -> Questions:
        """The open questions of runs to people."""
        return self._open().questions

    @property
    def plugins(self) -> Plugins:
        """The plug-ins that are enabled here."""
        return self._open().plugins

    @property
    def models(self) -> RunModels:
        """Embeddings, rankings and transcripts, at the endpoints that agents ask for answers."""
        return self._assembly.models

    @property
    def tools(self) -> ToolCatalog:
        """The catalog of tools: what there is, whether it can be called here, and calls outside any run."""
        from foliot.runtime.tools import ToolCatalog  # runs do not need it

        return ToolCatalog(self._assembly, self.clock, lambda: self.database)

    @property
    def _assembly(self) -> Assembly:
        return self._open().assembly

    def _open(self) -> RuntimeParts:
        if self._parts is None:
            raise UsageError("the runtime is not open", hint="use it inside `async with Runtime() as rt:`")
        return self._parts

    # --- running -------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: Agent[Value] | str,
        input: Input,
        *,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        identity: Identity | None = None,
        history: Sequence[Message] = (),
        after: str = "",
        options: RunOptions = UNCHANGED,
        adjust: Adjust | None = None,
        turn: NewTurn | None = None,
        stream: bool = False,
        check: bool = True,
        in_transaction: TransactionBody | None = None,
    ) -> RunResult[Value]:
        """Run an agent until it ends, or waits for a person. Raises `RunFailedError` when it fails, if `check`.

        `user` is who it is run for, as budgets, conditions and records name him; a program that acts for callers of its
        own gives the whole `identity`. `history` is what was said before; `after` is the run of the same user whose
        conversation it goes on with.
        `options` are what is different in this one run: its model, its prompt, tools that it and all below it lack.
        `adjust` changes in any other way what it is pinned to. `stream` lets whoever watches see answers as they are
        written. `turn` is the turn of a session that it is.
        What `in_transaction` writes is stored together with a run that is new, or not at all.

        A run that exists already with this `run_id` is resumed: calling again after a crash is always right.
        Raises `RunTaken`, a `Conflict`, when it is other work: see `is_begun`.
        """
        run_id = self.new_run_id() if run_id is None else run_id
        driver = await self.started(
            agent,
            input,
            run_id=run_id,
            labels=labels,
            identity=identity or Identity(user, via="python"),
            history=history,
            after=after,
            options=options,
            adjust=adjust,
            turn=turn,
            stream=stream,
            in_transaction=in_transaction,
        )
        if driver is None:
            return await self.resume(run_id, stream=stream, check=check)
        # As `_finish` does, without a frame of its own: it would be there, and be passed at every step, in all runs.
        state = await self.runs.drive(driver)
        return await self.at_rest(state, check, stream=stream)

    async def compact(
        self,
        agent: Agent | str,
        *,
        after: str,
        run_id: str | None = None,
        user: str = "",
        identity: Identity | None = None,
        labels: Mapping[str, str] | None = None,
        turn: NewTurn | None = None,
        check: bool = True,
        in_transaction: TransactionBody | None = None,
    ) -> RunResult[Any]:
        """Compact the conversation that ends with the run `after`, in a run of its own: a turn that answers nothing.

        Whatever goes on with the conversation does so after this run. Its output says what came of it, also when there
        was nothing to gain. Raises as `run`.
        """
        run_id = self.new_run_id() if run_id is None else run_id
        driver = await self.started(
            agent,
            (),
            run_id=run_id,
            labels=labels,
            identity=identity or Identity(user, via="python"),
            history=(),
            after=after,
            turn=turn,
            stream=False,
            compacts=True,
            in_transaction=in_transaction,
        )
        if driver is None:
            return await self.resume(run_id, check=check)
        return await self._finish(driver, check)

    async def request_compaction(self, run_id: str, *, by: str = "") -> RunInfo:
        """Ask a live run to compact its conversation before its next question. Raises `NotFound`, `Conflict`."""
        info = await self.runs.journal.get(run_id)
        message = signal(run_id, CompactionRequested(by), self.clock())
        await self.runs.journal.signal(message)
        return await self.background.woken(info, message, stay=True)

    async def started(
        self,
        agent: Agent | str,
        input: Input,
        *,
        run_id: str,
        labels: Mapping[str, str] | None,
        identity: Identity,
        history: Sequence[Message],
        after: str = "",
        options: RunOptions = UNCHANGED,
        adjust: Adjust | None = None,
        turn: NewTurn | None = None,
        stream: bool = False,
        compacts: bool = False,
        in_transaction: TransactionBody | None = None,
    ) -> Driver | None:
        """Store a new run, held by this process; None when it was started before, and is to be resumed.

        The coroutine that gets the driver drives it at once: a task between the two could be cancelled before it
        begins, and the run would be held without a driver. Raises `RunTaken`, `NotFound`, `InvalidInput`.
        """
        if after and history:
            raise InvalidInput("a run continues another one, or has a history of its own: `after` and `history`")
        if not self.is_new(run_id) and await self.is_begun(run_id, agent, input, identity, history, after):
            return None
        known = await self._assembly.agent(agent)
        if after:
            await self._check_may_follow(after, known.namespace, identity)
        prepared, tools = await self._assembly.prepare(known)
        if after and (await self.runs.conversations.read(after)).summarised:
            prepared, tools = await self._assembly.with_recall(prepared, tools)
        spec = await self._assembly.with_skills_of(prepared, identity.user)
        spec = spec if options == UNCHANGED else await self._assembly.adjusted(spec, options)
        spec = spec if adjust is None else adjust(spec)
        if spec is not prepared and _tools_in(spec) != _tools_in(prepared):
            tools = await self._assembly.pipeline(spec)
        assets = () if turn is None else await self.sessions.files.of_inputs(turn.session, turn.inputs)
        self._made.pop(run_id, None)
        try:
            return await self.runs.start(
                spec,
                () if compacts else messages_of(input, history),
                run_id=run_id,
                history=history,
                after=after,
                session=turn.session.id if turn is not None else "",
                turn=turn.number if turn is not None else 0,
                inputs=turn.inputs if turn is not None else (),
                assets=assets,
                instead=turn.instead if turn is not None else "",
                definitions=known.pins,
                labels=labels,
                identity=identity,
                tools=tools,
                stream=stream,
                compacts=compacts,
                in_transaction=in_transaction,
            )
        except Conflict:
            if await self.is_begun(run_id, agent, input, identity, history, after):  # somebody else was faster
                return None
            raise

    def known(self, agent: Agent | str) -> Agent | None:
        return agent if isinstance(agent, Agent) else self._assembly.known(*named(agent))

    def known_agent(self, namespace: str, name: str) -> Agent | None:
        """Returns the agent of this name that is an object of this process; None when there is none."""
        return self._assembly.known(namespace, name)

    async def stream(
        self,
        agent: Agent | str,
        input: Input,
        *,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        identity: Identity | None = None,
        history: Sequence[Message] = (),
        after: str = "",
        options: RunOptions = UNCHANGED,
    ) -> AsyncGenerator[Live]:
        """Run an agent and yield what happens: `Recorded` events, `Streamed` pieces of answers, `Output` of tools.

        The last event says how it ended, a failure too; `resume` with its `run_id` then gives the whole result.
        A `run_id` that exists already is resumed, and its earlier events come first. Leaving the loop early releases
        the run, and `resume` takes it up again; `contextlib.aclosing` tells when it was released.
        """
        check_labels(labels or {})
        run_id = self.new_run_id() if run_id is None else run_id
        ours = asyncio.Event()
        before: list[Recorded] = []

        async def drive() -> RunResult:
            driver = await self.started(
                agent,
                input,
                run_id=run_id,
                labels=labels,
                identity=identity or Identity(user, via="python"),
                history=history,
                after=after,
                options=options,
                stream=True,
            )
            if driver is not None:
                ours.set()
                return await self._finish(driver, False, stream=True)
            entries = await self.runs.journal.read(run_id)
            before.extend(Recorded(run_id, each.seq, each.at, decode(each.data)) for each in entries)
            ours.set()
            return await self.resume(run_id, stream=True, check=False)

        with self._hub.read(run_id) as reader:
            task = asyncio.create_task(drive())
            task.add_done_callback(lambda _: reader.close())
            beginning = asyncio.create_task(ours.wait())
            try:
                await asyncio.wait({task, beginning}, return_when=asyncio.FIRST_COMPLETED)
                if not ours.is_set():
                    await task  # raises why there is no run; of somebody else's run nothing is shown
                for item in before:
                    yield item
                async for item in reader:
                    if not isinstance(item, Recorded) or item.seq > len(before):
                        yield item
                await task
            finally:
                await stop_tasks(task, beginning)

    async def resume(
        self,
        run_id: str,
        *,
        agent: Agent[Value] | None = None,
        stream: bool = False,
        check: bool = True,
        joins: bool = True,
    ) -> RunResult[Value]:
        """Resume a run that was interrupted or waits. An ended one just gives its result.

        `agent` is needed only when its model or tools are Python objects that this runtime has not seen yet.
        One that this process drives is waited for, if `joins`. Raises `RunHeld` when another process drives it.
        """
        if agent is not None:
            self._assembly.know(agent)
        _, state = await self.runs.load(run_id)
        if state.ended is None:
            try:
                driver = await self._take(state, stream=stream)
            except Conflict:
                ended = (await self.runs.journal.get(run_id)).phase in TERMINAL
                if not ended and not (joins and self.runs.has(run_id)):
                    raise
                state = await self._as_left(run_id, stream=stream)
            else:
                state = await self.runs.drive(driver)
        return await self.at_rest(state, check, stream=stream)

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        prompt: str | None = None,
        model: str | None = None,
        input: Input | None = None,
        new_id: str | None = None,
        user: str = "",
        identity: Identity | None = None,
        stream: bool = False,
        check: bool = True,
        in_transaction: TransactionBody | None = None,
    ) -> RunResult:
        """A new run that shares the past of another before step `at`, with another prompt, endpoint or input.

        `new_id` is the id of the new run, so that it can be watched from its first event. It acts for `user`, or as the
        whole `identity` says: whoever forks a run does not become the one that it was run for.
        """
        said = None if input is None else messages_of(input)
        base = await branch(self.runs, run_id, at=at, prompt=prompt, input=said)
        await self._assembly.check_active(base.spec)
        spec = base.spec if model is None else await self._assembly.with_model(base.spec, model)
        self._made.pop(new_id or "", None)
        driver = await self.runs.start(
            spec,
            base.input,
            run_id=new_id,
            history=base.history,
            definitions=base.created.definitions,
            labels=base.labels,
            fork=base.fork,
            workspace=base.workspace,
            unsettled=base.unsettled
            if self.runs.doubts is None
            else await self.runs.doubts.still_open(spec.namespace, base.unsettled),
            depth=base.created.depth,
            identity=(identity or Identity(user, via="python")).also_ordered_by(*base.created.identity.ordered_by),
            task=base.created.task,
            system=base.created.system,
            template=base.created.template,
            root=base.created.root,  # what it uses counts to the same task; of a run on its own it is a run on its own
            ancestors=base.created.ancestors,
            tools=await self._assembly.pipeline(spec),
            stream=stream,
            in_transaction=in_transaction,
        )
        return await self._finish(driver, check, stream=stream)

    async def replay(self, run_id: str) -> Replay:
        """Decide a whole run again from its journal, offline, and compare byte for byte.

        Raises `JournalChanged` for an event that was changed in the store since it was recorded: nothing can be
        decided from it.
        """
        info = await self.runs.journal.get(run_id)
        entries = await self.runs.journal.read(run_id)
        size = FACT * len(entries)
        if changed := (await unhurried(size, check_chain, run_id, entries)).changed:
            raise changed_journal(run_id, changed)
        first = decode(entries[0].data) if entries else None
        if not isinstance(first, RunCreated):
            raise changed_journal(run_id, 1)
        check_definition(info, first)
        spec = decode_spec(await self.runs.journal.get_blob(first.spec))
        return await unhurried(size, replay, spec, run_id, entries, await self.runs.history(first))

    def watch(self, run_id: str, *, elsewhere: bool = False) -> AbstractContextManager[Reader]:
        """Read along from now on what happens to a run while this runtime drives it: `with rt.watch(id) as reader`.

        Pieces of answers come when whoever drives it asked for a stream. Nothing ends the reader but its `close`.
        With `elsewhere` they come from other processes too, where PostgreSQL or NATS connects them, from the next step
        on; events are then read from the journal.
        """
        relay = self._open().relay if elsewhere else None
        return self._hub.read(run_id) if relay is None else relay.read(run_id)

    def drives(self, run_id: str) -> bool:
        """Whether this process drives the run now."""
        driver = self.runs.local(run_id)
        return driver is not None and not driver.is_over

    async def is_asked(self, namespace: str, approval: str) -> bool:
        """Whether there is an approval of this name."""
        try:
            await self.approvals.get(approval, namespace=namespace)
        except NotFound:
            return False
        return True

    async def only_waits_below(self, run_id: str) -> bool:
        """Whether all that a run does is to wait for runs below it, which wait for people or a budget."""
        _, state = await self.runs.load(run_id)
        return bool(await asking_below(self.runs.journal, state, self.clock()))

    def share(self) -> None:
        """Let other processes read along what this runtime drives. Workers do so by themselves."""
        if (relay := self._open().relay) is not None:
            relay.start()

    # --- from outside --------------------------------------------------------------------------------------------

    async def cancel(
        self, run_id: str, *, by: str = "", reason: str = "", in_transaction: TransactionBody | None = None
    ) -> RunInfo:
        """Ask a run to end, wherever it is driven. One that nobody holds is ended here and now.

        What `in_transaction` writes, here and below, is stored together with what is asked, or not at all.
        """
        message = signal(run_id, CancelRequested(by, reason), self.clock())
        driver = self.runs.local(run_id)
        heard = driver is not None and not driver.is_ending and in_transaction is None
        if driver is not None and heard:
            driver.deliver(message)  # first: nothing begins while it is stored
        info = await self.runs.journal.get(run_id)
        try:
            await self.runs.journal.signal(message, in_transaction=in_transaction)
        except Conflict:
            if not heard:
                raise
        return await self.background.woken(info, message, stay=True)

    async def settle_call(
        self,
        run_id: str,
        call_id: str,
        decision: Literal["happened", "run", "fail"],
        *,
        result: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> RunInfo:
        """Say what became of a call that may have acted: it `happened` (with its `result`), `run` it, or `fail`."""
        _, state = await self.runs.load(run_id)
        waiting = state.waiting.calls if state.waiting and state.waiting.reason == "unknown_effect" else ()
        call = state.call(call_id)
        if call is None or call_id not in waiting:
            listed = ", ".join(waiting) or "none"
            raise NotFound(f"run {run_id} has no call {call_id!r} to decide about", hint=f"open calls: {listed}")
        message = await self.settle(state, call, decision, result=result or "", by=by, reason=reason)
        return await self._wake(run_id, message)

    async def settle(
        self,
        state: State,
        call: Call,
        decision: Literal["happened", "run", "fail"],
        *,
        attempt: int | None = None,
        result: str | None = None,
        by: str = "",
        reason: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> Signal:
        """Leave word for a run of what became of a call of it, as `settle_call` does, for whoever takes the run up.

        Its record is stored with it. Raises `Conflict` when somebody was faster.
        """
        return await self.unknown_calls.settle(
            state,
            call,
            decision,
            attempt=attempt,
            result=result,
            by=by,
            reason=reason,
            in_transaction=in_transaction,
        )

    @property
    def unknown_calls(self) -> UnknownCalls:
        """Calls that may have acted, also of runs that have ended."""
        return UnknownCalls(self.runs, DecisionLog(self._open().audit), clock=self.clock)

    async def decide_approval(
        self,
        approval: str,
        decision: Decision,
        *,
        by: str,
        namespace: str = "default",
        comment: str = "",
        arguments: dict[str, Any] | None = None,
        digest: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> RunInfo:
        """Decide about a parked call (`approve`, `deny`, or `edit` its arguments), and go on with its run.

        Raises as `ApprovalService.decide`: `Conflict` when somebody was faster, `Denied`, `InvalidInput`, `NotFound`.
        """
        decided = await self.approvals.decide(
            approval,
            decision,
            by=by,
            namespace=namespace,
            comment=comment,
            arguments=arguments,
            digest=digest,
            in_transaction=in_transaction,
        )
        if decided.signal is None:
            return await self.runs.journal.get(decided.run_id)
        return await self._wake(decided.run_id, decided.signal)

    async def answer_question(
        self,
        run_id: str,
        call_id: str | None,
        text: str,
        *,
        by: str = "",
        in_transaction: TransactionBody | None = None,
    ) -> RunInfo:
        """Answer what a run asks, and go on with it. Raises as `Questions.answer`."""
        return await self._wake(
            run_id, await self.questions.answer(run_id, call_id, text, by=by, in_transaction=in_transaction)
        )

    async def attend(self, run_id: str, *, stream: bool = False, check: bool = True) -> RunResult:
        """Stay with a run that waits for an approval, an answer or a budget; go on here as soon as there is one.

        Returns when it has ended, wherever that was, or waits for something else, another approval for example.
        """
        while True:
            next_change = self.next_change()
            info, state = await self.runs.load(run_id)
            if state.ended is None and info.phase == "waiting" and not _asks(state):
                return result_of(state, info.phase)
            if state.ended is not None or await self._may_go_on(info, state):
                with contextlib.suppress(RunHeld):  # whoever decided was faster, and drives it
                    result = await self.resume(run_id, stream=stream, check=check)
                    if result.waiting != state.waiting or result.waiting is None:
                        return result
            await next_change()

    async def _may_go_on(self, info: RunInfo, state: State) -> bool:
        if info.phase != "waiting":
            return self.runs.is_left_alone(info)
        approvals = self._open().approvals
        if approvals is not None:
            await approvals.attend(state, self.runs.worker)
        decided = [] if approvals is None else await approvals.answers(state)
        return bool(decided) or await self.runs.may_go_on(state)

    def next_change(self) -> Callable[[], Awaitable[None]]:
        """Returns how to wait until something may have happened in the store, from now on. One of `NextChange`."""
        database = self._open().database
        if database is None:
            return partial(asyncio.sleep, LOOK_EVERY)
        return partial(database.wait_for_change, database.change_mark(), timeout=LOOK_EVERY)

    async def changed(self, stirred: asyncio.Event, next_change: Callable[[], Awaitable[None]]) -> None:
        """Return when the event is set, or something may have happened in the store."""
        waits = asyncio.create_task(stirred.wait()), asyncio.ensure_future(next_change())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop_tasks(*waits)

    async def agent(self, agent: Agent | str) -> Agent:
        """Returns the agent, looked up when it is a name. Raises `NotFound`, `InvalidInput`."""
        return await self._assembly.agent(agent)

    async def check_turn(self, agent: Agent | str, options: RunOptions, files: Sequence[str]) -> None:
        """Raises unless a run of the agent may have these options, and its model reads files of these media types.

        Raises `NotFound`, `Denied`, `InvalidInput`.
        """
        spec = await self.spec_of(agent)
        check_excluded(spec, options.exclude_tools)
        spec = await self._assembly.adjusted(spec, options)
        if unread := await self.models.unread(spec, files):
            raise InvalidInput(
                f"the model {spec.model} of agent {spec.agent!r} does not read {', '.join(unread)}",
                hint="say it in words, or choose a model that reads such files",
            )

    async def spec_of(self, agent: Agent | str) -> RunSpec:
        """Returns the spec that a run of the agent is pinned to now. Raises `NotFound`, `Denied`, `InvalidInput`."""
        return (await self._assembly.prepare(await self._assembly.agent(agent)))[0]

    def type_not_here(self, spec: RunSpec) -> str:
        """Returns the Python type that the answers of a run are values of, if it is not known here; blank otherwise."""
        return self._assembly.type_not_here(spec)

    async def kept_tail(self, agent: Agent | str) -> int:
        """How many of the newest messages of a conversation the agent has word for word after a compaction."""
        return max(0, (await self.spec_of(agent)).compaction_rules.keep_tail)

    def know(self, agent: Agent) -> None:
        """Remember the Python objects of an agent, for runs of it that are resumed here."""
        self._assembly.know(agent)

    def new_run_id(self) -> str:
        """An id for a run that is about to be started, so that starting it again after a crash finds it."""
        made = new_run_id(self.clock())
        if len(self._made) >= MOST_MADE:
            self._made.pop(next(iter(self._made)))
        self._made[made] = None
        return made

    def is_new(self, run_id: str) -> bool:
        """Whether the id was made here and no run was begun with it: then the store need not be asked for it."""
        return run_id in self._made

    # --- how it is done ------------------------------------------------------------------------------------------

    async def _wake(self, run_id: str, message: Signal) -> RunInfo:
        return await self.background.woken(await self.runs.journal.get(run_id), message, stay=True)

    async def _check_may_follow(self, run_id: str, namespace: str, identity: Identity) -> None:
        """Raises `NotFound` unless the run is of this namespace and user, `Conflict` while it has not ended."""
        facts = await self.runs.facts(run_id, limit=1)
        created = facts[0][1] if facts else None
        whose = (created.namespace, created.identity.user) if isinstance(created, RunCreated) else None
        if whose != (namespace, identity.user):
            raise NotFound(f"there is no run {run_id!r} to continue", hint="`foliot runs` lists them")
        info = await self.runs.journal.get(run_id)
        if info.phase not in TERMINAL:
            raise Conflict(f"run {run_id} has not ended ({info.phase})", hint="`foliot say` tells it something")

    async def is_begun(
        self,
        run_id: str,
        agent: Agent | str,
        input: Input,
        identity: Identity,
        history: Sequence[Message] = (),
        after: str = "",
    ) -> bool:
        """Whether there is a run of this id, of this agent in its namespace, for this user, with this input.

        Raises `RunTaken` when it is another one. Of other work it says nothing: it may be somebody else's.
        """
        if isinstance(agent, Agent):
            self._assembly.know(agent)
        facts = await self.runs.facts(run_id, limit=1)
        if not facts:
            return False
        created = facts[0][1]
        assert isinstance(created, RunCreated), "every journal begins with it"
        if (created.namespace, created.agent, created.identity.user) != (*named(agent), identity.user):
            raise taken(run_id)
        said = msgspec.json.encode(() if created.compacts and not input else messages_of(input, history))
        if created.after != after or msgspec.json.encode(created.input) != said:
            raise RunTaken(
                f"run {run_id} began with another input",
                hint=f'choose another run_id, or go on with that run: resume("{run_id}")',
            )
        return True

    async def _take(self, state: State, *, stream: bool) -> Driver:
        """Take up a run as it was pinned; the task of one that has a task hears of its end. Raises as `Runs.take`."""
        tools, settlement = await self.runs.toolbox(state, self._assembly.pipeline), self._open().settlement
        return await self.runs.take(state.run_id, tools=tools, stream=stream, settlement=settlement)

    async def _finish(self, driver: Driver, check: bool, *, stream: bool = False) -> RunResult:
        """Drive until the run ends or waits for someone; a wait for a timer is slept through."""
        return await self.at_rest(await self.runs.drive(driver), check, stream=stream)

    async def at_rest(self, state: State, check: bool, *, stream: bool = False) -> RunResult:
        """The result of a run that was driven: once it has ended, or waits for someone."""
        while state.ended is None and state.waiting is not None and is_short(state.waiting, self.clock()):
            assert state.waiting.until is not None, "a timer knows when it goes off"
            try:
                await self._sleep(state.run_id, state.waiting.until)
                driver = await self._take(state, stream=stream)
            except Conflict:  # someone else took it up meanwhile, to cancel it for example
                state = await self._as_left(state.run_id, stream=stream)
            else:
                state = await self.runs.drive(driver)
        # One that neither ended nor waits was released for the workers of its task.
        result = await typed_result(state, "pending", self._assembly.output_type(state.spec))
        return self._checked(result) if check else result

    def _checked(self, result: RunResult) -> RunResult:
        """Returns the result of a run that did not fail. Raises `RunFailedError`, with a hint that works here."""
        try:
            return result.check()
        except RunFailedError:
            if self._open().database is None:
                raise RunFailedError(result, kept=False) from None
            raise

    async def _sleep(self, run_id: str, until: float) -> None:
        """Waits until the timer of a waiting run goes off, or it is signalled.

        Raises `RunHeld` as soon as the run no longer waits.
        """
        pause = LOOK_EVERY
        while (left := until - self.clock()) > 0:
            await asyncio.sleep(min(left, pause))
            pause = min(1.5 * pause, 5 * LOOK_EVERY)  # thousands may wait here
            if (await self.runs.journal.get(run_id)).phase != "waiting":
                raise RunHeld(f"run {run_id} was taken up meanwhile")
            if await self.runs.journal.signals([run_id]):
                return

    async def _as_left(self, run_id: str, *, stream: bool) -> State:
        """The run as its driver leaves it: ended, or waiting. One that is released before that is taken up here."""
        while True:
            next_change = self.next_change()
            info = await self.runs.journal.get(run_id)
            if info.phase not in ("pending", "running") or self.runs.is_left_alone(info):
                _, state = await self.runs.load(run_id)
                if state.ended is not None or (info.phase == "waiting" and state.waiting is not None):
                    return state
                if self.runs.is_left_alone(info) and TASK_LABEL not in info.labels:
                    with contextlib.suppress(Conflict):  # somebody else was faster
                        driver = await self._take(state, stream=stream)
                        return await self.runs.drive(driver)
            await next_change()


def _asks(state: State) -> bool:
    return state.waiting is not None and state.waiting.reason in ("approval", "input", "budget")


def _tools_in(spec: RunSpec) -> tuple[object, ...]:
    """Returns what the toolbox of a run is made of."""
    return spec.tools, spec.extra.get(SKILLS), spec.output_schema
