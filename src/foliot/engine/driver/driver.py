"""Drives one run under one lease, to its end or to its next wait.

The order of things is the whole point:

1. `decide` says what to do; the facts it comes with are recorded (folded in, and kept to be written).
2. Before anything acts on the world, everything recorded so far is made durable in one append. So an answer and the
   starts of the tools it asked for share one append, and so do their results and the start of the next step.
3. What comes back is recorded, and it begins again.

Effects run as tasks of their own and report through a mailbox, so a cancellation, an input or a decision is taken in at
any moment, whatever is under way. Whoever loses the lease stops at once and writes nothing more. A store that does not
answer is not a lost lease: what is to be written is tried again until the lease ends (appends.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from foliot.common.cancellation import stop_tasks
from foliot.common.waits import Waits
from foliot.engine.approval.questions import answer_id
from foliot.engine.approval.records import SYSTEM, DecisionLog, DecisionRecord, call_document
from foliot.engine.approval.requests import ApprovalRequests
from foliot.engine.base import ASKING, Clock, EstimatesQuestions, KeepsPlaces, Models, Settlement, Watcher
from foliot.engine.budgets.declared import BudgetRule
from foliot.engine.budgets.run_budget import Asked, RunBudget
from foliot.engine.compaction.compactor import compact, not_compacted
from foliot.engine.definition.governance import ModelGate, token_limits
from foliot.engine.driver.appends import LeaseClock, append_again, claimed, entry_of, persist, recorded
from foliot.engine.driver.attachments import FetchesFiles, with_files
from foliot.engine.driver.doubts import Doubts, both, doubts_of, noting
from foliot.engine.driver.effects import ShownText, ask_model, call_tool, given_up, in_place_of, left_behind
from foliot.engine.driver.intake import admit_calls, caller_of, check_output, mistaken_calls, rejected_output
from foliot.engine.driver.journal import Conversation, Conversations, Specs, load_state, phase_of, summary_of
from foliot.engine.hooks.run_hooks import Due, RunHooks
from foliot.engine.runners.profile import RUNNER, has_begun_program
from foliot.engine.workspaces.folders import UserFolders, WorkedOut
from foliot.errors import FoliotError, NotFound, Unavailable
from foliot.kernel.errors import IllegalEvent, NewerEvent, Unencodable, UnknownEvent
from foliot.kernel.graph.retry import POLICY
from foliot.kernel.messages import ModelRequest, Usage
from foliot.kernel.run import feedback
from foliot.kernel.run.actions import (
    Action,
    AskModel,
    Await,
    CallIntent,
    CallTools,
    CheckOutput,
    Compact,
    End,
    Note,
    Stop,
    Wait,
)
from foliot.kernel.run.budget import Spent
from foliot.kernel.run.codec import decode, type_of
from foliot.kernel.run.events import (
    ApprovalDecided,
    BudgetExceeded,
    CancelRequested,
    CutReason,
    Event,
    FolderKept,
    HookDecided,
    ModelCut,
    ModelFailed,
    ModelResponded,
    OutputAccepted,
    QuestionAnswered,
    RunDeadLettered,
    RunResumed,
    RunSucceeded,
    SessionNotCompacted,
    StepStarted,
    Terminal,
    ToolFinished,
    ToolStarted,
    UnknownReason,
)
from foliot.kernel.run.hooks import was_refused
from foliot.kernel.run.loop import apply, decide, is_interrupted, may_ask_again, room_left, take_back_end
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import Call, State
from foliot.models.routing import usage as spending
from foliot.models.routing.limits import ASKER
from foliot.models.routing.usage import AnswerUsage
from foliot.store.base import Document
from foliot.store.folders import FolderMoved
from foliot.store.journal.base import (
    TERMINAL,
    CancelPending,
    Entry,
    Journal,
    Lease,
    LeaseLost,
    Phase,
    Signal,
    SignalsPending,
    TransactionBody,
)
from foliot.store.journal.cancelling import CANCEL, ends_with_parent
from foliot.store.ledger.doubts import NewDoubt
from foliot.tools.backends.agent import child_id
from foliot.tools.base import Admitted, ChecksOutput, KeepsRecords, OutputCheck, Toolbox, ToolDefinition
from foliot.tools.workspaces import WORKSPACE_RULES, CallFiles

log = logging.getLogger(__name__)

T = TypeVar("T")

# How soon a lease that is over is asked for again while somebody keeps its row locked.
ASK_AGAIN = 0.05
# What an append of nothing but facts says beside them.
_NOTHING_ELSE: dict[str, Any] = {}
_NONE_NOTED: dict[str, NewDoubt] = {}


@cache
def _waits(lease_seconds: float) -> Waits:
    """The bounds of leases of this length: the same for all runs of a process."""
    return Waits(lease_seconds)


class _AtOnce:
    """An awaitable that is done already."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_AT_ONCE = _AtOnce()


def begin(effect: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start an effect as a task of its own. Where Python can (3.12), it runs at once up to its first wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(effect, loop=asyncio.get_running_loop(), eager_start=True)
    return asyncio.Task(effect, loop=asyncio.get_running_loop())


class Driver:
    """One run in the hands of one process. `state` is the fold of its journal, and of what is about to be added.

    It is the `AskingRun` of its questions, and the `MayAct` of its calls.
    """

    __slots__ = (
        "_alarm",
        "_answered",
        "_asking",
        "_below",
        "_broken",
        "_caller",
        "_calling",
        "_cancelled",
        "_claim",
        "_clock",
        "_conversations",
        "_deaf",
        "_decisions",
        "_doubts",
        "_doubts_noted",
        "_entries",
        "_expired",
        "_facts",
        "_fetch",
        "_folders",
        "_gate",
        "_halted",
        "_hooking",
        "_hooks",
        "_inquiry",
        "_journal",
        "_lease_clock",
        "_lease_seconds",
        "_left_by",
        "_loop",
        "_lost",
        "_mail",
        "_models",
        "_noted",
        "_observing",
        "_parking",
        "_purse",
        "_released",
        "_releases",
        "_returned",
        "_seen",
        "_settlement",
        "_shown",
        "_stopping",
        "_stream",
        "_taken",
        "_tenure",
        "_tools",
        "_unreadable",
        "_waits",
        "_watcher",
        "lease",
        "state",
    )

    def __init__(
        self,
        lease: Lease,
        state: State,
        *,
        journal: Journal,
        models: Models,
        tools: Toolbox,
        watcher: Watcher,
        clock: Clock,
        lease_clock: Clock | None = None,
        parking: ApprovalRequests | None = None,
        decisions: DecisionLog | None = None,
        purse: RunBudget | None = None,
        gate: ModelGate | None = None,
        doubts: Doubts | None = None,
        folders: UserFolders | None = None,
        settlement: Settlement | None = None,
        fetch: FetchesFiles | None = None,
        conversations: Conversations | None = None,
        below: Callable[[str], Iterable[Driver]] | None = None,
        stream: bool = False,
        claim: bool = True,
        left_by: UnknownReason = "process_died",
        lease_seconds: float = 30.0,
    ) -> None:
        """`claim`: this attempt is not in the journal yet. What an earlier one had under way is over.

        `below` gives the drivers of the runs that a run has started, as far as they are driven here.
        `left_by` says how that one came to leave it. `lease_clock` is the one that leases are judged by, if it is not
        `clock`.
        """
        self.lease = lease
        self.state = state
        self._journal = journal
        self._models = models
        self._tools = tools
        self._watcher = watcher
        self._clock = clock
        self._parking = parking
        self._decisions = decisions or DecisionLog()
        self._purse = purse
        self._gate = gate
        self._doubts = doubts
        self._folders = folders
        self._hooks: RunHooks | None = None
        # What the list of doubts says of this run: its rows are written with the facts that bring calls into doubt.
        self._noted = doubts_of(state) if doubts is not None and (state.calls or state.unsettled) else _NONE_NOTED
        self._doubts_noted = state.doubts
        self._settlement = settlement
        self._fetch = fetch
        self._conversations = conversations or Conversations(journal)
        self._below = below
        self._halted = False  # it was told to end: nothing is begun any more
        self._stream = stream
        self._claim = claim
        self._left_by: UnknownReason = left_by
        self._lease_seconds = lease_seconds
        self._waits = _waits(lease_seconds)
        self._lease_clock = lease_clock or clock
        self._tenure = LeaseClock(lease.until, clock=self._lease_clock, seconds=lease_seconds)
        self._caller = None if state.created is None else caller_of(state)
        # What is recorded and not yet written: the facts, and beside them what is stored of each.
        self._facts: list[Event] = []
        self._entries: list[Entry] = []
        # What most runs never have is a tuple, of which all have the same empty one.
        self._taken: tuple[str, ...] = ()
        self._answered = len(state.taken)  # of its inputs, as far as their rows say so
        self._expired: tuple[Document, ...] = ()  # what the next append has to put into the audit log
        self._seen: dict[str, None] | None = None  # ids of signals
        self._mail: list[tuple[Event, str | None]] = []
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.Future[None] | None = None  # what is waited for
        self._asking: asyncio.Task[None] | None = None
        self._shown: ShownText | None = None  # of the last question
        self._hooking: asyncio.Task[None] | None = None
        self._observing: tuple[asyncio.Task[None], ...] = ()  # hooks that are told of what is over
        self._returned: dict[str, Event] | None = None  # results that hooks look at before they are recorded
        self._calling: dict[str, asyncio.Task[None]] = {}
        self._stopping: tuple[asyncio.Task[None], ...] = ()
        self._cancelled: tuple[asyncio.Task[None], ...] = ()
        self._deaf: tuple[asyncio.Task[None] | None, ...] = ()  # questions that did not stop when they were told to
        self._inquiry: asyncio.Task[None] | None = None
        self._releases: tuple[Callable[[], Awaitable[None]], ...] = ()
        self._lost = ""  # why the lease is gone
        self._released = False  # it was given back: the run has ended, or waits
        self._unreadable: NewerEvent | None = None  # a signal for whoever knows its type
        self._broken: Exception | None = None  # what an effect, or whoever brought it something, did not expect

    async def drive(self, hooks: RunHooks | None = None) -> State:
        """Go on until the run ends or waits. Raises `LeaseLost`, and what the journal raises.

        Raises `NewerEvent` for a signal that only a newer version knows, once nothing is under way any more. `hooks`
        are asked about what it does meanwhile.
        """
        self._hooks = hooks
        self._tenure.watch(self._lapsed)
        try:
            if self._claim:
                lease = self.lease
                self._record(claimed(self.state, lease))
                for call in self.state.calls:
                    if call.phase == "unknown" and call.unknown is None and call.attempts:
                        over = self._clock() if _is_here(self._tools.definition(call.name)) else None
                        self._record(left_behind(call, self._left_by, over))
            waiting = self.state.waiting
            if waiting is not None and waiting.until is not None and waiting.until <= self._clock():
                self._record(RunResumed("timer"))
            elif waiting is not None and waiting.reason == "budget":
                self._record(RunResumed("budget"))  # whoever takes it up wants it to look again
            while True:
                try:
                    await self._go_on()
                except CancelPending:
                    await self._hear_cancel()
                else:
                    break
            if self._hooks is not None:
                await self._tell_of_end(self._hooks)
            return self.state
        except (FoliotError, UnknownEvent):
            raise
        except Exception as error:
            await self._give_up(error)
            return self.state
        finally:
            if self._inquiry is not None:
                await stop_tasks(self._inquiry)
            self._tenure.close()
            await self._stop_effects()
            for release in self._releases:
                await release()
            if self._purse is not None:
                self._purse.close()

    def deliver(self, signal: Signal) -> None:
        """Takes a signal from outside the run: an input, a decision, a cancellation.

        It is handled at the next opportunity.
        """
        if self._seen is None:
            self._seen = {}
        if signal.id in self._seen:
            return
        self._seen[signal.id] = None
        try:
            event = decode(signal.data)
        except UnknownEvent as error:
            if isinstance(error, NewerEvent) and self.lease.queued:  # a newer worker may take up the run of a task
                self._unreadable = error
                self._wake()
                return
            # It is taken all the same: left where it is, it would keep the run from ever being let go to wait.
            log.warning("run %s: a signal was dropped: %s", self.lease.run_id, error)
            self._taken += (signal.id,)
            self._wake()
            return
        self._post(event, signal.id)
        if isinstance(event, CancelRequested):
            self._halt()

    def _halt(self) -> None:
        """Have nothing begin any more, in this run and in all below it, from this moment on.

        What is recorded of it comes later: to write that takes a while, and to reach a child through the store as well.
        """
        self._halted = True
        for task in (self._asking, *self._calling.values()):
            if task is not None:
                self._cancel(task)
        for driver in () if self._below is None else self._below(self.lease.run_id):
            driver.deliver(ends_with_parent(driver.lease.run_id, self._clock()))

    @property
    def parent(self) -> str:
        """The run that has started this one; blank for one that nobody delegated."""
        return "" if self.state.created is None else self.state.created.parent

    @property
    def is_ending(self) -> bool:
        """Whether the run has ended or is about to, so that nothing may begin in it or below it."""
        return self._halted or self.state.ending is not None or self.state.ended is not None

    def on_release(self, release: Callable[[], Awaitable[None]]) -> None:
        self._releases += (release,)

    def renewed(self, until: float, ends: float) -> None:
        """The lease was prolonged until then, by the wall clock and by that of the event loop."""
        self._tenure.renewed(until, ends)

    def lose(self, why: str = "") -> None:
        """The lease is gone: stop at once, even while a write is under way."""
        self._lost = self._lost or why or f"run {self.lease.run_id} is no longer held by {self.lease.worker}"
        this = asyncio.current_task()
        for task in self._effects():
            # Not who asked whether it may act, and is about to hear that it may not.
            if task is not this:
                self._cancel(task)
        self._wake()

    @property
    def is_over(self) -> bool:
        """Whether the lease was lost or given back: what is still under way comes to its end without it."""
        return self._released or bool(self._lost)

    def under_way(self) -> list[asyncio.Task[None]]:
        """Calls that have not ended, each named after its tool: whether told to stop or not, they may still act."""
        return [task for task in (*self._calling.values(), *self._stopping) if not task.done()]

    def fail(self, error: Exception) -> None:
        """Ends the driver after an unexpected error: a lease that is renewed must not hold the run for ever."""
        self._broken = self._broken or error
        self._wake()

    def _lapsed(self, slept: bool) -> None:
        """The lease is over and was not renewed. Who was awake has tried to; who slept can still ask.

        But not with a call under way that must not happen twice: it would go on meanwhile, beside whoever took over.
        """
        if not slept:
            self.lose(f"the lease of run {self.lease.run_id} ended, and the store did not answer in time to renew it")
        elif any(call.phase == "running" and call.effect == "once" for call in self.state.calls):
            self.lose(f"the lease of run {self.lease.run_id} ended while this process slept")
        else:
            self._inquiry = begin(self._ask_again())

    async def _ask_again(self) -> None:
        try:
            async with asyncio.timeout(self._waits.inquiry):
                kept = await self.may_act()
        except TimeoutError:
            self.lose(f"the lease of run {self.lease.run_id} ended while this process slept")
        else:
            if kept:
                self._tenure.watch(self._lapsed)

    async def _go_on(self) -> None:
        """One decision after the other, until the run has ended or waits."""
        while True:
            while self._mail:
                self._take(*self._mail.pop(0))
            if self._broken is not None:
                raise self._broken
            if self._unreadable is not None and not self._effects():
                await self._write()  # what came back meanwhile is not lost
                raise self._unreadable
            if self._folders is not None and self.state.workspace is not None and self.state.folder_due:
                await self._keep_folder(self._folders)
                continue
            # An interrupt ends an answer. A summary is for the question that follows it, whatever is said meanwhile.
            stops = self.state.ending is not None or (self.state.asking and is_interrupted(self.state))
            if self._asking is not None and stops:
                await self._stop_asking(self._asking)
                continue
            action = decide(self.state)
            if self._hooks is not None and (due := self._hooks.due(self.state, action)) is not None:
                await self._ask_hooks(self._hooks, action, due)
                continue
            if isinstance(action, End):
                self._withhold_unasked(action.terminal)
                if await self._end(action):
                    return None
                continue
            refused = mistaken_calls(self.state, action.events, self._caller) if type(action) is Note else ()
            for event in action.events:
                self._record(event)
            if isinstance(action, Await | AskModel | Compact):
                if self._has_only_facts():
                    # As `_write` does, without a frame of its own: it would be there in all runs that wait here.
                    try:
                        await self._journal.append(self.lease, self._entries)
                    except Unavailable as error:
                        await self._append_again(error)
                    self._appended()
                else:
                    await self._write()
                if self._halted and self._mail:
                    continue  # it was told to end while that was written
            match action:  # in the order of how often they come
                case Await():
                    if action.stop:
                        self._ask_to_stop(action.calls)
                    await self._mail_comes()
                case AskModel():
                    # In no variable of this frame: what it holds would be kept until the next question.
                    self._asking = begin(self._watched(self._ask, action))
                    if self._asking.done():
                        self._asking = None
                    await self._mail_comes()  # the kernel starts nothing else meanwhile
                case CallTools():
                    if await self._start_calls(action):
                        await self._mail_comes()
                case Note():
                    self._expire(action.events)
                    self._stop_answered(action.events)
                    if refused and isinstance(keeper := self._tools, KeepsRecords):
                        for call, result in refused:
                            await keeper.refused(call, result)
                case CheckOutput():
                    fact = check_output(action)
                    check = self._tools.output_check if isinstance(self._tools, ChecksOutput) else None
                    if check is None or not isinstance(fact, OutputAccepted):
                        self._record(fact)
                    else:
                        await self._ask_type(check, action)
                case Compact():
                    if self._asking is None:  # or it is in progress, and something else came meanwhile
                        # No event says that it begins, so no append is refused: what waits for it is looked for.
                        for signal in await self._signals():
                            self.deliver(signal)
                        if self._mail:
                            continue
                        self._asking = begin(self._watched(self._compact, action))
                        if self._asking.done():
                            self._asking = None
                    await self._mail_comes()
                case Wait():
                    if await self._let_go():
                        return None
                case Stop():
                    return await self._finish(phase_of(action.terminal))

    # --- recording -----------------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        """Fold the event in, and keep it for the next append."""
        self._entries.append(recorded(self.state, event, self._clock()))
        self._facts.append(event)

    def _expire(self, events: Sequence[Event]) -> None:
        """Have it recorded what nobody decided in time: the kernel answers in the place of people only then."""
        for event in events:
            if isinstance(event, ApprovalDecided | QuestionAnswered) and (call := self.state.call(event.call_id)):
                if isinstance(event, ApprovalDecided):
                    name, why = event.approval_id, "nobody decided in time"
                else:
                    default = "" if event.answer is None else ": the default was taken"
                    name, why = answer_id(self.lease.run_id, call.id), f"nobody answered in time{default}"
                self._expired += (call_document(self.state, call, name, reason=why),)

    def _take(self, event: Event, signal_id: str | None) -> None:
        """Record what came in. What has no place any more (a result after its call was stopped) is dropped."""
        try:
            self._record(event)
        except Unencodable as error:
            call_id = event.result.call_id if isinstance(event, ToolFinished) else ""
            self._record(in_place_of(event, error, self.state.call(call_id)))
        except IllegalEvent as error:
            log.info("run %s: %s came too late: %s", self.lease.run_id, type_of(event), error)
        if signal_id is not None:
            self._taken += (signal_id,)

    async def _let_go(self) -> bool:
        """Wait without holding the lease, unless a signal is there that nobody else would take."""
        try:
            if self._doubts is not None and self.state.doubts != self._doubts_noted:
                await self._write()  # somebody may have settled what this run is about to ask
                if self._mail:
                    return False
            waiting = self.state.waiting
            await self._write("waiting", due=waiting.until if waiting is not None else None)
        except SignalsPending:
            for signal in await self._signals():
                self.deliver(signal)
            return False
        return True

    async def _signals(self) -> Sequence[Signal]:
        look = partial(self._journal.signals, [self.lease.run_id])
        try:
            return await look()
        except Unavailable as error:
            return await self._persist(look, error)

    async def _hear_cancel(self) -> None:
        """An append was refused because the run was told to end: what it would have begun does not begin.

        What else it holds stays, and is written with the cancel.
        """
        if any(isinstance(fact, ToolStarted | StepStarted) for fact in self._facts):
            await self._take_back_starts()
        under_way = {signal_id for _, signal_id in self._mail}
        for signal in await self._signals():
            seen = self._seen is not None and signal.id in self._seen
            if signal.type == CANCEL and seen and signal.id not in under_way and signal.id not in self._taken:
                self._taken += (signal.id,)  # it was heard in this process before it was stored
            self.deliver(signal)

    async def _take_back_starts(self) -> None:
        """Undo the fold of starts that were not stored, and of what follows them."""
        started = next(n for n, fact in enumerate(self._facts) if isinstance(fact, ToolStarted | StepStarted))
        look = partial(load_state, self._journal, Specs(), self.lease.run_id, conversations=self._conversations)
        try:
            state = await look()
        except Unavailable as error:
            state = await self._persist(look, error)
        del self._facts[started:], self._entries[started:]
        for fact, entry in zip(self._facts, self._entries, strict=True):
            apply(state, fact, entry.at)
            state.link = entry.link
        self.state.become(state)

    def _persist(self, attempt: Callable[[], Awaitable[T]], error: Unavailable) -> Awaitable[T]:
        """Do again what a store that is away has kept from being done, for as long as the lease lasts."""
        log.info("run %s waits for a store that does not answer: %s", self.lease.run_id, error.message)
        return persist(attempt, error, run_id=self.lease.run_id, tenure=self._tenure)

    async def _give_up(self, error: Exception) -> None:
        """End the run for a fault of Foliot itself, with what is known of it. Raises the fault if that fails too."""
        log.error("run %s broke and is ended", self.lease.run_id, exc_info=error)
        try:
            self._withhold_unasked()
            self._record(RunDeadLettered("internal", f"Foliot itself failed: {type(error).__name__}: {error}"))
            await self._write("failed")
        except (FoliotError, IllegalEvent, Unencodable) as again:
            raise error from again

    async def _end(self, action: End) -> bool:
        """End a run, unless its task wants another attempt of it. False when something was said before it could."""
        *before, terminal = action.events
        for event in before:
            self._record(event)
        retry = None if self._settlement is None else self._settlement.instead(self.state, action.terminal)
        link, waiting = self.state.link, self.state.waiting
        self._record(retry or terminal)
        try:
            await self._finish("pending" if retry else phase_of(action.terminal), due=retry.due if retry else None)
        except SignalsPending:
            take_back_end(self.state, waiting)
            self.state.link = link
            self._entries.pop()
            self._facts.pop()
            for signal in await self._signals():
                self.deliver(signal)
            return False
        return True

    async def _finish(self, phase: Phase, *, due: float | None = None) -> None:
        # Who hears that the run has ended may rely on it: what it had under way has come to its end before.
        for task in self._calling.values():
            if not task.cancelling():
                self._cancel(task)
        if stopping := self.under_way():
            await asyncio.wait(stopping, timeout=self._waits.stop)
        await self._write(phase, due=due)
        if self.state.was_delayed and isinstance(keeper := self._models, KeepsPlaces):
            await keeper.leave(self.lease.run_id)  # or others would wait until its turn has passed

    def _has_only_facts(self) -> bool:
        """Whether what is to be written is nothing but facts, and nobody has to wait for anything afterwards."""
        return (
            bool(self._entries)
            and not (self._lost or self._taken or self._expired)
            and len(self.state.taken) == self._answered
            and (self._doubts is None or not (self._noted or self.state.doubts != self._doubts_noted))
            and (self._parking is None or not self._parking.is_concerned(self._facts))
        )

    async def _append_again(self, error: Unavailable) -> None:
        """Bring an append of nothing but facts to its end, which the store was away for."""
        journal, lease, entries = self._journal, self.lease, self._entries
        again = partial(journal.append, lease, entries)
        await append_again(again, error, journal=journal, lease=lease, entries=entries, phase=None, tenure=self._tenure)

    def _appended(self) -> None:
        """Tells whoever attends that the facts are durable. Raises `LeaseLost` for a lease that went meanwhile."""
        entries, facts, run_id = self._entries, self._facts, self.lease.run_id
        self._entries, self._facts = [], []
        if self._watcher.attends(run_id):
            for entry, event in zip(entries, facts, strict=True):
                self._watcher.recorded(run_id, entry.seq, entry.at, event)
        if self._lost:
            raise LeaseLost(self._lost)

    async def _write(self, phase: Phase | None = None, *, due: float | None = None) -> None:
        """Make everything recorded durable; only then is it told to anyone."""
        if self._lost:
            raise LeaseLost(self._lost)
        entries, facts, expired = self._entries, self._facts, self._expired
        taken = self._taken
        rest: dict[str, Any] = _NOTHING_ELSE
        in_conversation = len(self.state.taken)
        if phase is not None:
            rest = {
                "phase": phase,
                "summary": summary_of(self.state, self.lease.name),
                "due": due,
                "in_transaction": self._transaction_body(phase),
            }
        elif not entries and not taken:
            return
        if (phase is not None or in_conversation != self._answered) and (answered := self._inputs_done(phase, taken)):
            rest = {**rest, "answered": answered}
        noted = self._noted
        if self._doubts is not None and (noted or self.state.doubts != self._doubts_noted):
            noted = doubts_of(self.state, noted)
            if (written := noting(self._noted, noted, facts, self.state)) is not None:
                rest = {**rest, "in_transaction": both(rest.get("in_transaction"), written)}
        records: tuple[DecisionRecord, ...] = ()
        for document in expired:
            before = rest.get("in_transaction")
            record = self._decisions.new("expired", SYSTEM, self._clock(), in_transaction=before)
            rest = {**rest, "in_transaction": record.body_for(document)}
            records += (record,)
        journal, lease = self._journal, self.lease
        try:
            await journal.append(lease, entries, taken=taken, **rest)
        except Unavailable as error:
            again = partial(journal.append, lease, entries, taken=taken, **rest)
            tenure = self._tenure
            await append_again(again, error, journal=journal, lease=lease, entries=entries, phase=phase, tenure=tenure)
        self._entries, self._facts = [], []  # nothing is recorded while something is written
        self._released = phase is not None
        self._answered = in_conversation
        if noted is not self._noted:
            await self._hear_of(noted)
        if taken:
            self._taken = self._taken[len(taken) :]
        if records:
            self._expired = self._expired[len(records) :]
            for record in records:
                record.tell()
        if self._watcher.attends(lease.run_id):
            for entry, event in zip(entries, facts, strict=True):
                self._watcher.recorded(lease.run_id, entry.seq, entry.at, event)
        if self._parking is not None and self._parking.is_concerned(facts):
            await self._parking.recorded(facts)
        if phase is None:
            if self._lost:  # while this was being written
                raise LeaseLost(self._lost)
        elif self._settlement is not None:
            await self._settlement.settled()

    def _inputs_done(self, phase: Phase | None, taken: Sequence[str]) -> Sequence[str]:
        """The inputs that no longer wait once this is written: they are in the conversation, or the run has ended."""
        done = self.state.taken[self._answered :]
        if phase in TERMINAL and (taken or self.state.inputs):
            return [*done, *(each.input_id for each in self.state.inputs), *taken]
        return done

    async def _keep_folder(self, folders: UserFolders) -> None:
        """Bring what the run has changed in `data/` into the folder of its user, with the event that says so.

        The folder is one that others change too: when it is another by then, the change is worked out again.
        """
        await self._write()
        while True:
            work_out = partial(folders.work_out, self.state)
            try:
                event, body = await work_out()
            except Unavailable as error:
                event, body = await self._persist(work_out, error)
            except FoliotError as error:
                event, body = _not_kept(self.state, error)
            try:
                return await self._append_alone(event, body)
            except FolderMoved:
                continue
            except NotFound as error:  # content of it has been purged
                return await self._append_alone(_not_kept(self.state, error).event, None)

    async def _append_alone(self, event: Event, body: TransactionBody | None) -> None:
        """Append one event that is a fact only if `body` is done, and fold it in when both are durable."""
        if self._lost:
            raise LeaseLost(self._lost)
        assert not self._entries, "what came before is written"
        state, journal, lease, at = self.state, self._journal, self.lease, self._clock()
        entry = entry_of(state, event, at)
        append = partial(journal.append, lease, [entry], in_transaction=body)
        try:
            await append()
        except Unavailable as error:
            tenure = self._tenure
            await append_again(append, error, journal=journal, lease=lease, entries=[entry], phase=None, tenure=tenure)
        apply(state, event, at)
        state.link = entry.link
        if self._watcher.attends(lease.run_id):
            self._watcher.recorded(lease.run_id, entry.seq, at, event)

    async def _hear_of(self, noted: dict[str, NewDoubt]) -> None:
        """Take note of calls that came into doubt; of those made by others, somebody may have spoken meanwhile."""
        assert self._doubts is not None, "without it nothing is noted"
        known, calls = self._noted, self.state.calls
        new = [call.earlier.key for call in calls if call.earlier and call.earlier.key not in known]
        self._noted, self._doubts_noted = noted, self.state.doubts
        if new and not self._released:
            with contextlib.suppress(FoliotError):  # a person is asked anyway
                for fact in await self._doubts.settled(self.state, new):
                    self._post(fact)

    def _transaction_body(self, phase: Phase) -> TransactionBody | None:
        return None if self._settlement is None else self._settlement.settle(self.state)

    # --- hooks ---------------------------------------------------------------------------------------------------

    async def _ask_hooks(self, hooks: RunHooks, action: Action, due: Due) -> None:
        """Have hooks decide about an act, beside the mailbox. They act on the world: what they see is durable."""
        if self._hooking is None:
            await self._write()
            asking = begin(self._watched(self._hook, hooks, action, due))
            self._hooking = None if asking.done() else asking
        await self._mail_comes()

    async def _hook(self, hooks: RunHooks, action: Action, due: Due) -> None:
        facts = await hooks.before(self.state, action, due)
        self._hooking = None
        for fact in facts:
            self._post(fact)

    async def _ask_type(self, check: OutputCheck, action: CheckOutput) -> None:
        """Have an answer looked at by code of others, beside the mailbox. It may be slow: the answer is kept before."""
        if self._hooking is None:
            await self._write()
            asking = begin(self._watched(self._check_answer, check, action))
            self._hooking = None if asking.done() else asking
        await self._mail_comes()

    async def _check_answer(self, check: OutputCheck, action: CheckOutput) -> None:
        answer, deadline = self.state.answer, self.state.deadline
        left = None if deadline is None else max(0.0, deadline - self._clock())
        checked = await check(self.lease.run_id, action.output, left)
        self._hooking = None
        if self.state.answer is not answer:  # something was said meanwhile, and there will be another one
            self._wake()
        elif checked.problems:
            self._post(rejected_output(checked.problems))
        else:
            self._post(OutputAccepted(checked.value))

    def _withhold_unasked(self, terminal: Terminal | None = None) -> None:
        """Record that no hook was asked about what was said, before the run ends without an answer to it."""
        if self._hooks is not None and not isinstance(terminal, RunSucceeded):
            for fact in self._hooks.unasked(self.state):
                self._record(fact)

    def _observe(self, telling: Coroutine[Any, Any, HookDecided | None]) -> None:
        """Tell hooks of what is over. The run goes on meanwhile; one that must end for their failure ends then."""

        async def tell() -> None:
            if (fact := await telling) is not None:
                self._post(fact)

        task = begin(self._watched(tell))
        if not task.done():
            self._observing += (task,)
            task.add_done_callback(self._observed)

    def _observed(self, task: asyncio.Task[None]) -> None:
        self._observing = tuple(each for each in self._observing if each is not task)

    async def _tell_of_end(self, hooks: RunHooks) -> None:
        """The run has ended, or waits: nothing of it waits for hooks any more but who asked for its result."""
        if self._observing:
            await asyncio.wait(self._observing)  # each has its time limit
        if self.state.ended is not None:
            await hooks.after_run(self.state)

    # --- effects -------------------------------------------------------------------------------------------------

    async def _watched(self, effect: Callable[..., Awaitable[None]], *args: Any) -> None:
        """An effect whose failure is heard: a task that ends with nobody listening would leave the run waiting."""
        try:
            await effect(*args)
        except Exception as error:
            self.fail(error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if not self._loop.is_closed():  # who closes a loop with work in it wants nothing more
                broken = RuntimeError(f"{type(error).__name__} ended an effect")
                broken.__cause__ = error
                self.fail(broken)
            raise

    async def _ask(self, action: AskModel) -> None:
        if not self.holds() and not await self.may_act():
            return
        run_id = self.lease.run_id
        if self.state.files:
            try:
                action = replace(action, request=await with_files(action.request, self._fetch))
            except FoliotError as error:
                self._asking = None
                message = f"the files of the conversation cannot be read: {error.message}"
                self._post(ModelFailed(action.step, "other", message, retryable=True))
                return
        ASKER.set((run_id, self.state.was_delayed))
        ASKING.set(self)
        shown = self._stream or self._watcher.wanted(run_id)
        heard = ShownText(partial(self._watcher.streamed, run_id, action.step)) if shown else None
        self._shown = heard
        models, spec, clock = self._models, self._asked_spec(action), self._clock
        account = spending.count()
        if self.state.lost_asks and isinstance(models, EstimatesQuestions):
            account.lose(self.state.lost_asks, await models.question(spec, action.request))
        limits = spec.limits
        if limits.max_tokens is not None or limits.max_cost_usd is not None:
            account.checks += (partial(self._leaves_room, account),)
            self._bound(account)
        if account.lost and not may_ask_again(self.state, account.usage):
            message = "what questions took whose process ended before their answer came leaves no room for another"
            self._asking = None
            self._post(ModelFailed(action.step, "tokens", message, usage=account.usage))
            return
        files = self._files() if RUNNER in spec.extra else None
        free = self._purse is None or self._purse.is_free
        if free and (self._gate is None or self._gate.is_open(spec.namespace)):
            asking = ask_model(models, spec, action, on_delta=heard, clock=clock, account=account, files=files)
        else:
            ask = partial(ask_model, models, spec, action, on_delta=heard, clock=clock, account=account, files=files)
            asking = self._ask_governed(action, ask)
        try:
            fact = await asking
        except asyncio.CancelledError:
            if files is not None:
                files.drop()
            used = account.usage
            interrupted = not self.is_ending and is_interrupted(self.state) and not self.is_over
            if asyncio.current_task() in self._deaf:
                raise  # another question may be asked by now: what this one used is lost to the account
            self._cut(action.step, heard, "interrupted" if interrupted else "stopped")
            if interrupted:
                self._post(ModelFailed(action.step, "interrupted", "someone interrupted the answer", usage=used))
            elif used.total_tokens:
                self._post(ModelFailed(action.step, "cancelled", "the question was given up", usage=used))
            raise
        if files is not None and not isinstance(fact, ModelResponded):
            files.drop()
        if self._deaf and asyncio.current_task() in self._deaf:
            return
        self._asking = None
        if not isinstance(fact, ModelResponded):
            self._cut(action.step, heard, "failed")
        self._post(fact)
        if self._hooks is not None:
            self._observe(self._hooks.after_model(self.state, fact, action.step, action.request.model))

    def _asked_spec(self, action: AskModel) -> RunSpec:
        """The spec by which a question is asked and judged: a hook may have named another model."""
        spec, model = self.state.spec, action.request.model
        return spec if model == spec.model else replace(spec, model=model)

    def _cut(self, step: int, heard: ShownText | None, why: CutReason) -> None:
        """Have it recorded what people saw of an answer that does not come."""
        if heard is not None and (text := heard.text):
            self._post(ModelCut(step, text, why))

    async def _compact(self, action: Compact) -> None:
        if not self.holds() and not await self.may_act():
            return
        state, after = self.state, self.state.created.after if self.state.created is not None else ""
        spent = Spent()
        ask = partial(self._ask_aside, action, count(1), spent)
        try:
            if was_refused(state, "before_compaction", str(action.step)):
                fact = not_compacted(action, "a hook refused it")
            else:
                before = await self._conversations.read(after) if after else Conversation()
                fact = await compact(action, state, ask=ask, before=before, spent=spent)
        except asyncio.CancelledError:
            if spent.tokens:
                self._post(SessionNotCompacted("it was given up", action.cause, spent.usage()))
            raise
        self._asking = None
        self._post(fact)
        if self._hooks is not None:
            self._observe(self._hooks.after_compaction(state, fact))

    async def _ask_aside(
        self, action: Compact, numbers: Iterator[int], spent: Spent, spec: RunSpec, request: ModelRequest
    ) -> Asked | BudgetExceeded:
        """Ask a question beside those of the run itself: held to the same rules and limits, and paid for by it."""
        ASKER.set((self.lease.run_id, False))
        asked = AskModel(action.step, request, (), action.deadline)
        account = spending.count()
        ask = partial(ask_model, self._models, spec, asked, on_delta=None, clock=self._clock, account=account)
        limits = spec.limits
        if limits.max_tokens is not None or limits.max_cost_usd is not None:
            account.checks += (partial(self._leaves_room, account),)
            self._bound(account)
        try:
            return await self._ask_governed(asked, ask, spec, f"aside/{self.state.seq}/{next(numbers)}")
        except asyncio.CancelledError:
            spent.add(account.usage)
            raise

    async def _leaves_room(self, account: AnswerUsage, _: Usage) -> bool:
        self._bound(account)
        return may_ask_again(self.state, account.usage)

    def _bound(self, account: AnswerUsage) -> None:
        """Let the next attempt at an answer have no more than the limits of the run leave for it."""
        room, used, own = room_left(self.state), account.usage, self.state.spec.settings.max_output_tokens
        if room.cost_usd is not None:
            account.max_cost = max(0.0, room.cost_usd - (used.cost_usd or 0.0))
        if room.tokens is not None:
            left = max(1, room.tokens - used.total_tokens)
            account.bound("the max_tokens of the run", left, lowered=own is not None and own > left)

    async def _stop_asking(self, asking: asyncio.Task[None]) -> None:
        """Have the question given up before the run ends, or hears an interrupt: what it has used is accounted for."""
        self._asking = None
        self._cancel(asking)
        self._stopping += (asking,)
        _, deaf = await asyncio.wait((asking,), timeout=self._waits.stop)
        if deaf and self.state.ending is None:
            self._deaf += (asking,)
            self._cut(self.state.step, self._shown, "interrupted")
            self._post(ModelFailed(self.state.step, "interrupted", "someone interrupted the answer"))

    async def _ask_governed(
        self, action: AskModel, ask: Callable[[], Awaitable[Asked]], spec: RunSpec | None = None, name: str = ""
    ) -> Asked | BudgetExceeded:
        """Ask, if the policies allow it now and leave tokens for it, and budgets leave money.

        `spec` is that of a question beside those of the run, and `name` tells its payment from theirs.
        """
        gate, spec, purse = self._gate, spec or self._asked_spec(action), self._purse
        limits: Sequence[BudgetRule] = ()
        if gate is not None:
            try:
                rules = await gate.rules(spec.namespace)
                if rules.policies or rules.broken:
                    caller = self._caller or caller_of(self.state)
                    caller = caller if caller.model == spec.model else replace(caller, model=spec.model)
                    verdict = await gate.judge(spec, caller, rules)
                    if verdict.outcome == "deny":
                        return ModelFailed(action.step, POLICY, f"{verdict.reason} ({verdict.rule})")
                    limits = token_limits(rules, caller)
            except FoliotError as error:
                # What governs it cannot be looked up: nothing is asked, and the kernel tries again after a while.
                message = f"the policies of namespace {spec.namespace!r} cannot be looked up: {error.message}"
                return ModelFailed(action.step, "other", message, retryable=True)
        if purse is None:
            return await ask()
        # The look at the rules may have shown that no budget has changed either.
        own = partial(purse.ask, action, ask, spec=spec, name=name) if name else partial(purse.ask, action, ask)
        paid = ask if purse.is_free else own
        return await (purse.ask_within(limits, action, paid, name=name) if limits else paid())

    async def _start_calls(self, action: CallTools) -> bool:
        """Refused calls are answered at once; the starts of the others become durable, then they act.

        Returns whether a result is the next thing to happen. Who waits for it is the caller, without this frame.
        """
        if self._doubts is not None and _acts_once(action.calls):
            look = partial(self._doubts.hold, self.state, action.calls, self.lease.worker)
            try:
                held = await look()
            except Unavailable as error:
                held = await self._persist(look, error)
            for fact in held:
                self._record(fact)
            if held:
                await self._write()
                return False  # others of them may be made: the kernel says which
        admitted, refused = await admit_calls(self._tools, self.state, action, self._caller, self._persist)
        for fact in refused:
            self._take(fact, None)
        if not admitted and not refused:
            # Each of these calls comes after one that is under way: that one's result is the next thing to happen.
            await self._write()
            return True
        if not admitted or self.state.ending is not None or self._halted:
            return False  # a refusal can end the run: then nothing is started any more
        for intent, call in admitted:
            started = intent.started()
            grant, giver = getattr(call, "standing", ("", ""))
            self._record(replace(started, standing=grant, granted_by=giver) if grant else started)
        if self._has_only_facts():
            try:
                await self._journal.append(self.lease, self._entries)
            except Unavailable as error:
                await self._append_again(error)
            self._appended()
        else:
            await self._write()
        if self._halted:  # it was told to end while that was written
            for intent, _ in admitted:
                self._post(feedback.not_run(intent.call_id, intent.name, "cancelled", started=False))
            return False
        for intent, call in admitted:
            task = begin(self._watched(self._call, intent, call, action.deadline))
            if not task.done():
                task.set_name(intent.name)
                self._calling[intent.call_id] = task
        return not refused  # the kernel would say so too: what was asked for is under way

    async def _call(self, intent: CallIntent, call: Admitted, deadline: float | None) -> None:
        if not self.holds() and not await self.may_act():
            return
        run_id = self.lease.run_id
        shown = self._stream or self._watcher.wanted(run_id)
        heard = partial(self._watcher.output, run_id, intent.call_id) if shown else None
        definition = self._tools.definition(intent.name)
        first = self.state.spec.tool_use_behavior == "stop_on_first_tool"
        ends_run = first or (definition is not None and definition.ends_run)
        fact = await call_tool(
            intent,
            call,
            on_output=heard,
            deadline=deadline,
            clock=self._clock,
            ends_run=ends_run,
            may_act=self,
            here=_is_here(definition),
            files=self._files(),
        )
        facts: Sequence[Event] = (fact,)
        if self._hooks is not None:
            if self._returned is None:
                self._returned = {}
            self._returned[intent.call_id] = fact
            facts = await self._hooks.after_tool(self.state, intent, fact)
            if self._returned.pop(intent.call_id, None) is None:
                return  # it was told to stop meanwhile, and its result is recorded as it was
        self._calling.pop(intent.call_id, None)
        for each in facts:
            self._post(each)

    def _files(self) -> CallFiles:
        state = self.state
        rules = state.spec.extra.get(WORKSPACE_RULES, _NOTHING_ELSE)
        return CallFiles(self.lease.run_id, self.lease.epoch, state.workspace, rules)

    def holds(self) -> bool:
        """Whether the lease is certainly in force."""
        return not self._lost and self._tenure.in_force()

    async def may_act(self) -> bool:
        """Checks the lease before acting: a process that slept past it (a suspended machine) renews it or loses the
        run.
        """
        ends_at = self._loop.time() + self._waits.answer
        while not self._lost and not self._tenure.in_force():
            until, ends = self._lease_clock() + self._lease_seconds, self._loop.time() + self._lease_seconds
            try:
                renewal = await self._journal.renew([self.lease], until=until)
            except FoliotError as error:
                self.lose(f"the lease of run {self.lease.run_id} is over and cannot be renewed: {error.message}")
            else:
                if renewal.lost:
                    self.lose()
                elif not renewal.passed_by:
                    self.renewed(until, ends)
                elif self._loop.time() < ends_at:
                    await asyncio.sleep(ASK_AGAIN)
                else:
                    self.lose(f"the lease of run {self.lease.run_id} is over, and somebody keeps its row locked")
        return not self._lost

    __call__ = may_act

    def _ask_to_stop(self, calls: Sequence[str]) -> None:
        for call_id in calls:
            task = self._calling.pop(call_id, None)
            if task is not None:
                self._cancel(task)
                self._stopping += (task,)
            call = self.state.call(call_id)
            if self._returned and (returned := self._returned.pop(call_id, None)) is not None:
                self._post(returned)  # it has ended, whatever its hooks would have said
            elif call is not None and self._has_not_acted(call):
                self._post(feedback.stopped_before_acting(call.id, call.name))
            elif call is not None:
                self._post(given_up(call, interrupted=self.state.ending is None))

    def _has_not_acted(self, call: Call) -> bool:
        """Whether a call under way is an agent that was told to end and has begun nothing: nor does it any more."""
        definition = self._tools.definition(call.name)
        if self._below is None or definition is None or definition.type != "agent":
            return False
        child = child_id(self.state.spec.namespace, self.lease.run_id, call.id)
        return any(
            driver.lease.run_id == child
            and driver.is_ending
            and not (driver.state.spent.tool_calls or has_begun_program(driver.state))
            for driver in self._below(self.lease.run_id)
        )

    def _stop_answered(self, events: Sequence[Event]) -> None:
        """Stop calls under way that the kernel has given a result: they only read, and were interrupted."""
        if not self._calling:
            return
        for event in events:
            if isinstance(event, ToolFinished) and (task := self._calling.pop(event.result.call_id, None)) is not None:
                self._cancel(task)
                self._stopping += (task,)

    def _effects(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._asking, self._hooking, *self._calling.values()) if task is not None]

    async def _stop_effects(self) -> None:
        running = self._effects()
        for task in running:
            if not task.cancelling():  # by whomever: see `lose`
                self._cancel(task)
        for task in self._observing:
            self._cancel(task)
        tasks = [task for task in (*running, *self._stopping) if not task.done()]
        if not tasks:
            return
        _, deaf = await asyncio.wait(tasks, timeout=self._waits.stop)
        if deaf:
            log.warning("run %s: %d calls were told to stop and did not", self.lease.run_id, len(deaf))

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Tell an effect to stop, once: a second time would interrupt what it does to come to an end."""
        if task not in self._cancelled:
            self._cancelled += (task,)
            task.cancel()

    # --- the mailbox ---------------------------------------------------------------------------------------------

    def _post(self, event: Event, signal_id: str | None = None) -> None:
        self._mail.append((event, signal_id))
        alarm, self._alarm = self._alarm, None  # as `_wake` does
        if alarm is not None and not alarm.done():
            alarm.set_result(None)

    def _wake(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None and not alarm.done():
            alarm.set_result(None)

    def _mail_comes(self) -> Awaitable[None]:
        """Waits until something is in the mailbox or the lease is lost. Effects keep their own deadlines."""
        if self._mail or self._lost or self._broken is not None:
            return _AT_ONCE
        self._alarm = asyncio.Future(loop=self._loop)  # as the loop would make it, without a call
        return self._alarm


def _not_kept(state: State, error: FoliotError) -> WorkedOut:
    data = None if state.workspace is None else state.workspace.data
    assert data is not None, "there was something to keep"
    log.warning("run %s: what it left in data/ is not kept for its user: %s", state.run_id, error.message)
    return WorkedOut(FolderKept(data.now, refused=error.message))


def _acts_once(calls: Sequence[CallIntent]) -> bool:
    for intent in calls:  # noqa: SIM110 - asked for every step, and a generator costs more than the loop
        if intent.rule.effect == "once":
            return True
    return False


def _is_here(tool: ToolDefinition | None) -> bool:
    """Whether a tool is a function of the process that calls it: it ends with that process."""
    return tool is not None and tool.type == "function"
