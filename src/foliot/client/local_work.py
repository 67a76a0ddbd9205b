"""The verbs on tasks, runs and approvals on a runtime in this process."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast, get_args

from msgspec.structs import replace

from foliot.client.run_state import Replayed, RunStanding, standing_of
from foliot.client.work import Answered, Settled
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.approval.service import Decision
from foliot.engine.driver.journal import summary_of
from foliot.engine.driver.process import is_gone
from foliot.engine.explain.trace import trace_of
from foliot.engine.explain.why import Explanation, Holder, Standing, explain
from foliot.errors import Conflict, NotFound
from foliot.kernel.run.events import Event
from foliot.kernel.run.state import Call, State
from foliot.runtime.runtime import Runtime
from foliot.store.base import Document
from foliot.store.journal.base import TASK_LABEL, TERMINAL, Beside, Phase, RunInfo
from foliot.store.ledger.doubts import DoubtPage, LateDecision, page_of, position_of
from foliot.store.tasks import ENDED
from foliot.tools.builtin.results import RESULT_PAGE, CallResult, ResultPage, result_page, results_of
from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
from foliot.work.views.events import Batch
from foliot.work.views.story import TaskStory
from foliot.work.views.why import TaskExplanation

LOOK_EVERY: Final = 1.0
NEAR: Final = 5
LOOKED_AT: Final = 500
MOST_LEFT: Final = 1000


class LocalWork:
    """Implements `Work`. The runtime stays the caller's to close."""

    def __init__(self, runtime: Runtime, *, actor: str = "") -> None:
        """`actor` is who uses it: recorded beside whoever a decision is made in the name of."""
        self._runtime = runtime
        self._actor = actor

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def submit(self, command: Command) -> Accepted:
        return await self._runtime.tasking.tasks.accept(command)

    async def task(self, namespace: str, name: str) -> TaskInfo:
        return await self._runtime.tasking.tasks.get(namespace, name)

    async def find_task(self, namespace: str, word: str) -> TaskInfo:
        return await self._runtime.tasking.tasks.find(namespace, word)

    async def tasks(self, **wanted: Any) -> tuple[list[TaskInfo], str | None]:
        return await self._runtime.tasking.tasks.list(**wanted)

    async def cancel_task(self, namespace: str, name: str, *, by: str = "", reason: str = "") -> TaskInfo:
        return await self._runtime.tasking.tasks.cancel(namespace, name, by=by, reason=reason)

    async def archive_task(self, namespace: str, name: str, *, by: str = "") -> TaskInfo:
        return await self._runtime.tasking.tasks.archive(namespace, name, by=by)

    async def requeue_task(
        self, namespace: str, name: str, *, by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        return await self._runtime.tasking.tasks.requeue(namespace, name, by=by, payloads=payloads)

    async def delete_task(self, namespace: str, name: str) -> None:
        await self._runtime.tasking.tasks.delete(namespace, name)

    async def story(self, namespace: str, name: str, *, looks: bool = True) -> TaskStory:
        return await self._runtime.tasking.stories.of(namespace, name, looks=looks)

    async def records(self, namespace: str, name: str, *, after: int = 0) -> list[TaskRecord]:
        return await self._runtime.tasking.stories.records(namespace, name, after=after)

    async def happenings(self, namespace: str, name: str, *, cursor: str | None = None) -> Batch:
        return await self._runtime.tasking.stories.happenings(namespace, name, cursor=cursor)

    async def follow(self, namespace: str, name: str, *, cursor: str | None = None) -> AsyncGenerator[Batch]:
        """See `Work`."""
        while True:
            # In this order: what ended it is among what is read afterwards.
            ended = (await self.task(namespace, name)).phase in ENDED
            batch = await self.happenings(namespace, name, cursor=cursor)
            cursor = batch.cursor
            yield batch
            if ended:
                return
            await self.changed(namespace, name, cursor=cursor, timeout=LOOK_EVERY)

    async def changed(self, namespace: str, name: str, *, cursor: str | None, timeout: float) -> None:
        await self._runtime.tasking.database.wait_for_change(timeout=timeout)

    async def why_task(self, namespace: str, name: str) -> TaskExplanation:
        return await self._runtime.tasking.stories.why(namespace, name)

    # --- runs ----------------------------------------------------------------------------------------------------

    async def runs(
        self,
        *,
        namespace: str | None = None,
        agent: str | None = None,
        phases: Sequence[Phase] = (),
        limit: int = 50,
    ) -> list[RunInfo]:
        """See `Work`."""
        found = await self._runtime.runs.journal.list(namespace=namespace, agent=agent, phases=phases, limit=limit)
        return [await self._fresh(info) for info in found]

    async def _fresh(self, info: RunInfo) -> RunInfo:
        if info.phase not in ("pending", "running"):
            return info
        _, state = await self._runtime.runs.load(info.id)
        return replace(info, summary=summary_of(state))

    async def find_run(self, word: str) -> RunInfo:
        """See `Work`."""
        journal = self._runtime.runs.journal
        try:
            return await journal.find(word)
        except Conflict:
            alike = [info for info in await journal.list(limit=LOOKED_AT) if info.id.startswith(word)][:NEAR]
            raise several(word, alike) from None

    async def facts(self, run_id: str) -> list[tuple[float, Event]]:
        return [*await self._runtime.runs.facts(run_id)]

    async def results(self, run_id: str) -> list[CallResult]:
        return await results_of(self._runtime.runs.journal, run_id)

    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        return await result_page(self._runtime.runs.journal, run_id, call_id, offset=offset, most=RESULT_PAGE)

    async def why_run(self, run_id: str) -> Explanation:
        """See `Work`."""
        info, state = await self._runtime.runs.load(run_id)
        now = time.time()
        trace = trace_of(run_id, await self._runtime.runs.facts(run_id))
        return explain(trace, Standing(info.phase, _holder(info, now)), state.spec, now)

    async def standing(self, run_id: str) -> RunStanding:
        return await standing_of(self._runtime, run_id)

    async def interrupted(self, namespace: str | None = None) -> list[RunInfo]:
        """See `Work`. Also those whose timer has gone off, or who were signalled, unheard."""
        now = time.time()
        journal = self._runtime.runs.journal
        found = await journal.list(namespace=namespace, phases=("pending", "running", "waiting"), limit=MOST_LEFT)
        live = [info for info in found if TASK_LABEL not in info.labels]  # workers see to the others
        told = {signal.run_id for signal in await journal.signals([i.id for i in live if i.phase == "waiting"])}
        due = [
            info
            for info in live
            if self._runtime.runs.is_left_alone(info) or info.id in told or _timer_is_over(info, now)
        ]
        return sorted(due, key=lambda info: info.created_at)

    async def settle_call(
        self,
        run_id: str,
        call: str,
        decision: Settled,
        *,
        result: str | None = None,
        by: str = "",
        reason: str = "",
        also: Beside | None = None,
    ) -> RunInfo:
        """See `Work`. The run hears of it when it is taken up. `also` is as in `Journal.signal`."""
        info, state = await self._runtime.runs.load(run_id)
        said: dict[str, Any] = {"result": result, "by": by, "reason": reason, "also": also}
        if info.phase in TERMINAL:
            if decision not in get_args(LateDecision):
                raise Conflict(
                    f"Run {info.id} has ended ({info.phase}): nothing of it is run or ended any more.",
                    hint="Say whether the call happened: `happened` or `not_happened`.",
                )
            await self._runtime.unknown_calls.settle_ended(info.id, call, cast("LateDecision", decision), **said)
            return info
        if decision == "not_happened":
            raise Conflict(f"Run {info.id} has not ended.", hint="`run` says that it did not happen, and has it run.")
        found = _undecided(info, state, call)
        await self._runtime.settle(state, found, decision, **said)
        return info

    async def unknown_calls(
        self, namespace: str | None = None, *, ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """See `Work`."""
        calls, behind = self._runtime.unknown_calls, position_of(after)
        found = await calls.open(namespace, ended=ended, limit=limit + 1, after=behind)
        return page_of(found, limit, await calls.count(namespace, ended=ended))

    async def replay_run(self, run_id: str) -> Replayed:
        found = await self._runtime.replay(run_id)
        return Replayed(found.events, found.decided, found.state.ended is not None, found.difference)

    async def cancel_run(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        return await self._runtime.cancel(run_id, by=by, reason=reason)

    # --- what people are asked -----------------------------------------------------------------------------------

    async def approvals(self, namespace: str | None = None, *, run: str | None = None) -> list[Document]:
        """See `Work`. What a crash has kept from being made is made first."""
        await self._runtime.approvals.repair(namespace)
        return [document async for document in self._runtime.approvals.list(namespace, run=run)]

    async def approval(self, word: str, *, namespace: str) -> Document:
        """See `Work`."""
        service = self._runtime.approvals
        try:
            return await service.find(word, namespace=namespace)
        except NotFound:
            await service.repair(namespace)  # a crash may have kept it from being made
            return await service.find(word, namespace=namespace)

    async def decide(
        self,
        name: str,
        decision: Decision,
        *,
        by: str,
        namespace: str,
        comment: str = "",
        arguments: dict[str, Any] | None = None,
        digest: str = "",
    ) -> Answered:
        """See `Work`."""
        decided = await self._runtime.approvals.decide(
            name,
            decision,
            by=by,
            namespace=namespace,
            comment=comment,
            arguments=arguments,
            digest=digest,
            actor=self._actor,
        )
        return Answered(decided.document, decided.run_id)

    async def grant(self, *, by: str, tool: str, seconds: float, namespace: str, **scope: Any) -> Document:
        return await self._runtime.approvals.grant(
            by=by, tool=tool, seconds=seconds, namespace=namespace, actor=self._actor, **scope
        )

    async def revoke(self, name: str, *, by: str, namespace: str) -> Document:
        return await self._runtime.approvals.revoke(name, by=by, namespace=namespace, actor=self._actor)

    async def questions(self, namespace: str | None = None) -> list[OpenQuestion]:
        return await self._runtime.questions.open(namespace)

    async def answer(self, run_id: str, call: str | None, text: str, *, by: str = "") -> str:
        return (await self._runtime.questions.answer(run_id, call, text, by=by, actor=self._actor)).run_id


def several(word: str, alike: Sequence[RunInfo]) -> Conflict:
    """What is said when a text begins the ids of several runs."""
    listed = "\n".join(f"{info.id}  {info.agent}  {info.phase}" for info in alike)
    return Conflict(f"Several runs begin with {word!r}:\n{listed}", hint="Give more of the id.")


def _timer_is_over(info: RunInfo, now: float) -> bool:
    waiting = cast("dict[str, object]", info.summary.get("waiting") or {})
    until = waiting.get("until")
    return info.phase == "waiting" and isinstance(until, int | float) and until <= now


def _undecided(info: RunInfo, state: State, word: str) -> Call:
    """The call that is meant: by id, or else by its tool's name. Raises `NotFound`, `Conflict`."""
    open_calls = [call for call in state.calls if _is_unknown(info, call)]
    if not open_calls:
        raise Conflict(f"Run {info.id} ({info.phase}) waits for no decision.", hint=f"`foliot why {info.id}`")
    found = [call for call in open_calls if call.id == word] or [call for call in open_calls if call.name == word]
    if len(found) == 1:
        return found[0]
    listed = "\n".join(f"{call.id}  {call.name}" for call in open_calls)
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
