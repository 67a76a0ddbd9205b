"""The verbs on runs, tasks, approvals and questions, on a runtime in this process; see groups/work.py."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from msgspec.structs import replace

from foliot.common.cursors import read_key, write_cursor
from foliot.common.pages import Part, read_all, read_first
from foliot.common.process import is_gone
from foliot.common.suggestions import check_word, read_phases
from foliot.common.threads import unhurried
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.approval.service import Decision
from foliot.engine.definition.run_options import UNCHANGED, RunOptions
from foliot.engine.driver.journal import FACT, read_run, summary_of
from foliot.engine.explain.below import asking_below
from foliot.engine.explain.replay import branch
from foliot.engine.explain.trace import read_trace
from foliot.engine.explain.why import Explanation, Holder, RunLiveness, explain
from foliot.engine.live.hub import Interleaved, Live, Recorded
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.errors import KernelError
from foliot.kernel.identity import NOBODY, Identity, acting
from foliot.kernel.messages import Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import Event, Fork, UnknownDecided
from foliot.kernel.run.state import Call, State
from foliot.runtime.agent import Agent
from foliot.runtime.answers import Answered, Input, Replayed, RunStanding
from foliot.runtime.delegation import children_of
from foliot.runtime.groups.work import ApprovalGroup, QuestionGroup, RunGroup, Settled, TaskGroup
from foliot.runtime.inputs import RunInput
from foliot.runtime.inside import Inside
from foliot.runtime.local.groups import whoami
from foliot.runtime.results import result_of
from foliot.store.base import Document
from foliot.store.journal.base import ALL_PHASES, TERMINAL, RunInfo, Signal, TransactionBody
from foliot.store.journal.chain import JournalChanged
from foliot.store.journal.memory import MemoryJournal
from foliot.store.ledger.doubts import DoubtPage, LateDecision, page_of, position_of
from foliot.store.queue.queue import unattended
from foliot.store.tasks import ENDED
from foliot.tools.backends.agent import RUNNING_CODE
from foliot.tools.builtin.results import RESULT_PAGE, CallResult, ResultPage, result_page, results_of
from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
from foliot.work.views.events import Batch
from foliot.work.views.story import TaskStory
from foliot.work.views.why import TaskExplanation

if TYPE_CHECKING:
    from foliot.runtime.composition import Tasking

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
NEAR: Final = 5
PAGE: Final = 500
# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class _Waking:
    """The base of these groups. `caller` uses them: recorded beside the person in whose name a decision is made.

    `wakes`: a run that was told something goes on in the background of this runtime. A command that ends at once, and
    a server that has its own way, leave that to whoever takes the run up.
    """

    def __init__(self, inside: Inside, *, caller: Identity = NOBODY, wakes: bool = True) -> None:
        self._inside = inside
        self._caller = caller
        self._wakes = wakes

    def _person(self, by: str) -> str:
        """Returns who decides: `by`, else the caller, else the person whose process this is."""
        return by or self._caller.user or whoami()

    async def _wake(self, info: RunInfo, message: Signal | None) -> RunInfo:
        """Lets the run hear what is stored for it; `info` is the run before that. Never raises."""
        return await self._inside.background.woken(info, message, here=self._wakes)


class LocalRuns(_Waking, RunGroup):
    """Implements `RunGroup`."""

    async def start(
        self,
        agent: Agent | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
        options: RunOptions | None = None,
    ) -> RunInfo:
        return await self._inside.background.start(
            agent,
            input,
            run_id=run_id or self._inside.new_run_id(),
            namespace=namespace,
            labels=labels,
            identity=self._identity(user),
            history=history,
            after=after,
            options=options or UNCHANGED,
        )

    def _identity(self, user: str) -> Identity:
        return acting(user, self._caller.user, self._caller.via or "python")

    async def get(self, run_id: str, *, messages: bool = False) -> RunStanding:
        info, state, facts = await read_run(self._inside.runs.journal, run_id)
        trace = await read_trace(run_id, facts)
        # The structured answer as it is stored: whoever reads it far away does not know the type of the agent.
        result = replace(result_of(state, info.phase), value=getattr(state.ended, "value", None))
        return RunStanding(
            replace(info, phase=result.phase),
            result if messages else replace(result, messages=()),
            state.seq,
            state.now,
            state.spent.tool_calls,
            sum(call.ok for call in trace.calls),
            {call.id: (call.name, call.arguments) for call in state.calls},
            await asking_below(self._inside.runs.journal, state, self._inside.clock()),
        )

    async def find(self, word: str) -> RunInfo:
        journal = self._inside.runs.journal
        try:
            return await journal.find(word)
        except Conflict:
            raise several(word, await journal.alike(word, limit=NEAR)) from None

    async def list(
        self,
        *,
        namespace: str | None = "default",
        agent: str | None = None,
        phases: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
    ) -> Rows[RunInfo]:
        named = read_phases(phases, ALL_PHASES)
        journal = self._inside.runs.journal
        last = None if before is None else (await journal.get(before)).key
        found = await journal.list(namespace=namespace, agent=agent, phases=named, limit=limit, before=last)
        return [await as_it_stands(self._inside, info) for info in found]

    async def events(self, run_id: str) -> Rows[tuple[float, Event]]:
        facts = await self._inside.runs.facts(run_id)
        if not facts:
            await self._inside.runs.journal.get(run_id)  # raises: every journal has a first event
        return [*facts]

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        journal = self._inside.runs.journal
        stirred = asyncio.Event()
        with self._inside.watch(run_id, elsewhere=True) as reader:
            reader.call(stirred.set)
            pieces = Interleaved(reader, after)
            while True:
                stirred.clear()
                next_change = self._inside.next_change()
                # In this order: what ended it is among what is read afterwards.
                info = await journal.get(run_id)
                entries = await journal.read(run_id, after=after, limit=PAGE)
                for item in pieces.among([Recorded(run_id, e.seq, e.at, decode(e.data)) for e in entries]):
                    yield item
                if entries:
                    after = entries[-1].seq
                elif info.phase in TERMINAL:
                    return
                else:
                    await self._inside.changed(stirred, next_change)

    async def why(self, run_id: str) -> Explanation:
        info, state, facts = await read_run(self._inside.runs.journal, run_id)
        signals = await self._inside.runs.journal.signals([run_id]) if info.phase == "waiting" else []
        asking = await asking_below(self._inside.runs.journal, state, self._inside.clock())
        holder = _holder(info, self._inside.runs.lease_clock())
        if asking and info.worker == self._inside.runs.worker:
            holder = "nobody"  # this process, which need not stay for that
        told = tuple(decode(each.data) for each in signals)
        standing = RunLiveness(
            info.phase, holder, told, below=bool(asking), lacks=self._inside.type_not_here(state.spec)
        )
        trace = await read_trace(run_id, facts)
        told = await unhurried(FACT * len(facts), explain, trace, standing, state.spec, self._inside.clock())
        # What a child does that is under way, a program for example, is what its agent does.
        asked: Rows[str] = []
        for call in state.calls:
            for child in children_of(state, call) if call.phase == "running" else ():
                with suppress(NotFound):
                    inner = await self.why(child)
                    what = "program" if call.name == RUNNING_CODE else call.name
                    asked += [f"its {what}, run {child}: {inner.headline}", *inner.chain]
                    told.next = [*inner.next, *told.next]
        if asking:  # then what they ask is why nothing goes on
            asked += [told.headline, *told.chain] if holder == "gone" else told.chain
            told.headline, told.chain = (await self.why(asking[0])).headline, []
        told.chain += asked
        return told

    async def results(self, run_id: str) -> Rows[CallResult]:
        return await results_of(self._inside.runs.journal, run_id)

    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        return await result_page(self._inside.runs.journal, run_id, call_id, offset=offset, most=RESULT_PAGE)

    async def content(self, run_id: str, digest: str) -> bytes:
        await self._inside.runs.journal.get(run_id)
        return await self._inside.runs.journal.get_blob(digest, run_id=run_id)

    async def resume(self, run_id: str) -> RunInfo:
        return await self._inside.background.resume(await self._inside.runs.journal.get(run_id))

    async def fork_point(self, run_id: str, *, at: int) -> Fork:
        await self._inside.runs.journal.get(run_id)
        return (await branch(self._inside.runs, run_id, at=at)).fork

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        prompt: str | None = None,
        model: str | None = None,
        input: str | None = None,
        new_id: str | None = None,
        user: str = "",
    ) -> RunInfo:
        return await self._inside.background.fork(
            await self._inside.runs.journal.get(run_id),
            at=at,
            new_id=new_id or self._inside.new_run_id(),
            identity=self._identity(user),
            prompt=prompt,
            model=model,
            input=input,
        )

    async def replay(self, run_id: str) -> Replayed:
        found = await self._inside.replay(run_id)
        return Replayed(found.events, found.decided, found.state.ended is not None, found.difference)

    async def cancel(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        return await self._inside.cancel(run_id, by=self._person(by), reason=reason)

    async def say(
        self, run_id: str, text: str, *, mode: str = "steer", by: str = "", key: str | None = None
    ) -> RunInput:
        person = self._person(by)
        return await self._inside.inputs.say(run_id, text, mode=mode, by=person, key=key, here=self._wakes)

    async def settle(
        self,
        run_id: str,
        call: str,
        decision: Settled,
        *,
        attempt: int | None = None,
        result: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> RunInfo:
        inside, person = self._inside, self._person(by)
        info = await inside.runs.journal.get(run_id)
        said: dict[str, Any] = {"attempt": attempt, "result": result, "by": person, "reason": reason}
        message = await leave_settled(inside, run_id, call, decision, **said)
        return await self._wake(info, message)

    async def unknown(
        self, *, namespace: str | None = "default", ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        calls, behind = self._inside.unknown_calls, position_of(after)
        found = await calls.open(namespace, ended=ended, limit=limit + 1, after=behind)
        return page_of(found, limit, await calls.count(namespace, ended=ended))

    async def interrupted(self, *, namespace: str | None = "default") -> Rows[RunInfo]:
        """Lists interrupted runs, also those with a timer that went off, or a signal, that no process has handled."""
        runs = self._inside.runs
        if isinstance(runs.journal, MemoryJournal):
            found = await runs.journal.list(namespace=namespace, phases=("pending", "running"), limit=sys.maxsize)
            return [info for info in reversed(found) if runs.is_left_alone(info)]
        spaces = () if namespace is None else (namespace,)
        return await read_all(interrupted_runs, self._inside, spaces, limit=PAGE)


async def as_it_stands(inside: Inside, info: RunInfo) -> RunInfo:
    """Returns a run with its summary as of now: that of one under way is stored when its phase changes.

    One that was released because it only waits for a run below it waits for what that one does. One that cannot be
    read is listed all the same, and so are those above it; `why` and `trace` say what is wrong with it.
    """
    if info.phase not in ("pending", "running") or (state := await _readable(inside, info.id)) is None:
        return info
    summary = summary_of(state)
    waits = info.phase == "pending"
    asking = await asking_below(inside.runs.journal, state, inside.clock()) if waits else ()
    if asking and (below := await _readable(inside, asking[0])) is not None:
        summary["waiting"] = {**summary_of(below).get("waiting", {}), "run": asking[0]}
    return replace(info, summary=summary)


async def _readable(inside: Inside, run_id: str) -> State | None:
    """Loads a run as far as it can be read: it may be gone, changed in the store, or of a newer version."""
    try:
        return (await inside.runs.load(run_id))[1]
    except (NotFound, JournalChanged, KernelError):
        return None


async def leave_settled(
    inside: Inside,
    run_id: str,
    call: str,
    decision: Settled,
    *,
    attempt: int | None = None,
    result: str | None = None,
    by: str = "",
    reason: str = "",
    in_transaction: TransactionBody | None = None,
) -> Signal | None:
    """Do as `RunGroup.settle`, and leave word of it for who resumes the run. `in_transaction`: see `Journal.signal`."""
    check_word("decision", decision, get_args(Settled))
    if result is not None and decision != "happened":
        raise InvalidInput("a result goes with a call that happened")
    info, state = await inside.runs.load(run_id)
    said: dict[str, Any] = {"attempt": attempt, "result": result, "by": by, "reason": reason}
    said["in_transaction"] = in_transaction
    if info.phase in TERMINAL:
        if decision not in get_args(LateDecision):
            raise Conflict(
                f"Run {info.id} has ended ({info.phase}): nothing of it is run or ended any more.",
                hint="Say whether the call happened: `happened` or `not_happened`.",
            )
        await inside.unknown_calls.settle_ended(info.id, call, cast("LateDecision", decision), **said)
        return None
    if decision == "not_happened":
        raise Conflict(f"Run {info.id} has not ended.", hint="`run` says that it did not happen, and has it run.")
    found = await _undecided(inside, info, state, call)
    return await inside.settle(state, found, decision, **said)


class LocalTasks(_Waking, TaskGroup):
    """Implements `TaskGroup`."""

    async def submit(self, command: Command) -> Accepted:
        return await self._tasking.tasks.accept(command, may_fail=True)

    @property
    def _tasking(self) -> Tasking:
        return self._inside.tasking

    async def get(self, name: str, *, namespace: str = "default") -> TaskInfo:
        return await self._tasking.tasks.get(namespace, name)

    async def find(self, word: str, *, namespace: str = "default") -> TaskInfo:
        return await self._tasking.tasks.find(namespace, word)

    async def list(
        self,
        *,
        namespace: str | None = "default",
        target: str | None = None,
        phases: tuple[str, ...] = (),
        labels: dict[str, str] | None = None,
        lane: str | None = None,
        created_after: float | None = None,
        created_before: float | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Rows[TaskInfo], str | None]:
        async def ask(*, cursor: str | None, limit: int) -> Part[TaskInfo]:
            page = await self._tasking.tasks.list(
                namespace=namespace,
                target=target,
                phases=phases,
                labels=labels,
                lane=lane,
                created_after=created_after,
                created_before=created_before,
                archived=archived,
                limit=limit,
                cursor=cursor,
            )
            return Part(*page)

        return await read_first(limit, ask, cursor=cursor)

    async def cancel(self, name: str, *, namespace: str = "default", by: str = "", reason: str = "") -> TaskInfo:
        return await self._tasking.tasks.cancel(namespace, name, by=self._person(by), reason=reason)

    async def retry(
        self, name: str, *, namespace: str = "default", by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        return await self._tasking.tasks.requeue(namespace, name, by=self._person(by), payloads=payloads)

    async def archive(self, name: str, *, namespace: str = "default", by: str = "") -> TaskInfo:
        return await self._tasking.tasks.archive(namespace, name, by=self._person(by))

    async def delete(self, name: str, *, namespace: str = "default") -> None:
        await self._tasking.tasks.delete(namespace, name)

    async def story(self, name: str, *, namespace: str = "default", looks: bool = True) -> TaskStory:
        return await self._tasking.stories.of(namespace, name, looks=looks, whole=True)

    async def records(self, name: str, *, namespace: str = "default", after: int = 0) -> Rows[TaskRecord]:
        return await self._tasking.stories.records(namespace, name, after=after)

    async def events(self, name: str, *, namespace: str = "default", cursor: str | None = None) -> Batch:
        return await self._tasking.stories.happenings(namespace, name, cursor=cursor)

    async def follow(
        self, name: str, *, namespace: str = "default", cursor: str | None = None
    ) -> AsyncGenerator[Batch]:
        while True:
            seen = self._tasking.database.change_mark()
            # In this order: what ended it is among what is read afterwards.
            ended = (await self.get(name, namespace=namespace)).phase in ENDED
            batch = await self.events(name, namespace=namespace, cursor=cursor)
            cursor = batch.cursor
            yield batch
            if ended:
                return
            await self._tasking.database.wait_for_change(seen, timeout=LOOK_EVERY)

    async def changed(self, name: str, *, namespace: str = "default", cursor: str | None, timeout: float) -> None:
        seen = self._tasking.database.change_mark()
        await self.get(name, namespace=namespace)  # raises for one that is not there, as a server does
        if not (await self.events(name, namespace=namespace, cursor=cursor)).events:
            await self._tasking.database.wait_for_change(seen, timeout=timeout)

    async def why(self, name: str, *, namespace: str = "default") -> TaskExplanation:
        return await self._tasking.stories.why(namespace, name)


class LocalApprovals(_Waking, ApprovalGroup):
    """Implements `ApprovalGroup`."""

    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[Document]:
        """Lists approvals, after creating those that a crash has left out."""
        await self._inside.approvals.repair(namespace, run=run)
        return [document async for document in self._inside.approvals.list(namespace, run=run)]

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        service = self._inside.approvals
        try:
            return await service.find(name, namespace=namespace)
        except NotFound:
            await service.repair(namespace)  # a crash may have kept it from being made
            return await service.find(name, namespace=namespace)

    async def _decide(
        self,
        name: str,
        decision: Decision,
        *,
        namespace: str,
        by: str,
        comment: str,
        digest: str,
        arguments: dict[str, Any] | None = None,
    ) -> Answered:
        decided = await self._inside.approvals.decide(
            name,
            decision,
            by=self._person(by),
            namespace=namespace,
            comment=comment,
            arguments=arguments,
            digest=digest,
            actor=self._caller.user,
        )
        if decided.signal is not None:
            await self._inside.background.wake(decided.run_id, decided.signal, here=self._wakes)
        return Answered(decided.document, decided.run_id)

    async def grant(
        self,
        tool: str,
        *,
        seconds: float,
        namespace: str = "default",
        by: str = "",
        agent: str = "",
        when: str = "",
        max_uses: int | None = None,
        comment: str = "",
    ) -> Document:
        return await self._inside.approvals.grant(
            by=self._person(by),
            tool=tool,
            seconds=seconds,
            namespace=namespace,
            brings=self._inside.brings,
            actor=self._caller.user,
            agent=agent,
            when=when,
            max_uses=max_uses,
            comment=comment,
        )

    async def revoke(self, name: str, *, namespace: str = "default", by: str = "") -> Document:
        actor = self._caller.user
        return await self._inside.approvals.revoke(name, by=self._person(by), namespace=namespace, actor=actor)


class LocalQuestions(_Waking, QuestionGroup):
    """Implements `QuestionGroup`."""

    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[OpenQuestion]:
        return await self._inside.questions.open(namespace, run=run)

    async def answer(self, run_id: str, text: str, *, call: str | None = None, by: str = "") -> RunInfo:
        info, actor = await self._inside.runs.journal.get(run_id), self._caller.user
        message = await self._inside.questions.answer(run_id, call, text, by=self._person(by), actor=actor)
        return await self._wake(info, message)


async def interrupted_runs(
    inside: Inside, namespaces: Sequence[str] = (), *, cursor: str | None = None, limit: int
) -> Part[RunInfo]:
    """Returns a page of the runs that could go on and that nobody drives, oldest first; of some namespaces, or of all.

    Raises `InvalidInput` for a cursor that was not given out.
    """
    after = 0 if cursor is None else read_key(cursor, kind="interrupted")
    now = inside.runs.lease_clock()
    found = await unattended(inside.database, now=now, is_gone=is_gone, namespaces=namespaces, after=after)
    page = await inside.runs.journal.many([each.run_id for each in found[:limit]])
    page = [await as_it_stands(inside, info) for info in page]
    return Part(page, write_cursor(found[limit - 1].key, kind="interrupted") if len(found) > limit else None)


def several(word: str, alike: Sequence[RunInfo]) -> Conflict:
    """Builds the error for a text that begins the ids of several runs."""
    listed = "\n".join(f"{info.id}  {info.agent}  {info.phase}" for info in alike)
    return Conflict(f"Several runs begin with {word!r}:\n{listed}", hint="Give more of the id.")


async def _undecided(inside: Inside, info: RunInfo, state: State, word: str) -> Call:
    """The call that is meant: by id, or else by its tool's name. Raises `NotFound`, `Conflict`.

    The name does when no other call of the tool was settled: said a second time, it would settle the next question.
    """
    open_calls = [call for call in state.calls if _is_unknown(info, call)]
    if not open_calls:
        raise Conflict(f"Run {info.id} ({info.phase}) waits for no decision.", hint=f"`foliot why {info.id}`")
    found = [call for call in open_calls if call.id == word] or [call for call in open_calls if call.name == word]
    listed = "\n".join(f"{call.id}  {call.name}" for call in open_calls)
    if len(found) == 1 and word != found[0].id:
        names = {call.id: call.name for message in state.transcript for call in message.calls}
        facts = [fact for _, fact in await inside.runs.facts(info.id) if isinstance(fact, UnknownDecided)]
        if any(fact.call_id != found[0].id and names.get(fact.call_id) == word for fact in facts):
            hint = "Give the id of the call that is meant."
            raise Conflict(f"A call of {word} was settled before. This one waits for a decision:\n{listed}", hint=hint)
    if len(found) == 1:
        return found[0]
    if found:
        raise Conflict(f"Several calls of {word} wait for a decision:\n{listed}", hint="Give the id of one.")
    raise NotFound(f"No call {word!r} waits for a decision. These do:\n{listed}")


def _is_unknown(info: RunInfo, call: Call) -> bool:
    """Also a call whose worker is gone without anybody having noticed yet: taking the run up will say the same."""
    if call.phase == "unknown":
        return True
    asked = call.rule is not None and call.rule.effect == "once" and call.rule.on_unknown == "ask"
    return call.phase == "running" and asked and info.phase == "running" and is_gone(info.worker)


def _holder(info: RunInfo, now: float) -> Holder:
    if info.worker is None:
        return "nobody"
    left = is_gone(info.worker) or (info.lease_until is not None and info.lease_until < now)
    return "gone" if left else "alive"
