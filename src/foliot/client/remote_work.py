"""The verbs on tasks, runs and approvals over the connection to a server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.client import wire
from foliot.client.http import Asking
from foliot.client.run_state import ForkOrder, Replayed, RunOrder, RunStanding
from foliot.client.work import Answered, Settled
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.approval.service import Decision
from foliot.engine.explain.why import Explanation
from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.kernel.messages import Delta
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import Event
from foliot.store.base import Document
from foliot.store.journal.base import Phase, RunInfo
from foliot.store.ledger.doubts import Doubt, DoubtPage
from foliot.tools.builtin.results import RESULT_PAGE, CallResult, ResultPage
from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
from foliot.work.views.events import Batch
from foliot.work.views.story import TaskStory
from foliot.work.views.why import TaskExplanation

TASKS: Final = "/v1/work/tasks"
RUNS: Final = "/v1/work/runs"
APPROVALS: Final = "/v1/work/approvals"
QUESTIONS: Final = "/v1/questions"


class _Results(msgspec.Struct):
    items: list[CallResult]


class RemoteWork(Asking):
    """Implements `Work`. Who did something is whom the server knows the caller for, whatever `by` says."""

    # --- tasks ---------------------------------------------------------------------------------------------------

    async def submit(self, command: Command) -> Accepted:
        """See `Work`. A command without a name and a key is given a key, so that asking again does it once."""
        if not command.name and not command.idempotency_key:
            command = replace(command, idempotency_key=f"client-{secrets.token_hex(16)}")
        return await self._post(TASKS, command, Accepted, namespace=command.namespace, repeatable=True)

    async def task(self, namespace: str, name: str) -> TaskInfo:
        return await self._get(_task(name), TaskInfo, namespace=namespace)

    async def find_task(self, namespace: str, word: str) -> TaskInfo:
        return await self._get(_task(word), TaskInfo, namespace=namespace, alike=True)

    async def tasks(
        self,
        *,
        namespace: str | None = None,
        target: str | None = None,
        phases: tuple[str, ...] = (),
        labels: dict[str, str] | None = None,
        lane: str | None = None,
        created_after: float | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[TaskInfo], str | None]:
        """See `Work`."""
        found = await self._get(
            TASKS,
            wire.TaskPage,
            namespace=namespace,
            target=target,
            phases=",".join(phases) or None,
            labels=msgspec.json.encode(labels).decode() if labels else None,
            lane=lane,
            createdAfter=created_after,
            archived=archived,
            limit=limit,
            after=cursor,
        )
        return found.items, found.cursor

    async def cancel_task(self, namespace: str, name: str, *, by: str = "", reason: str = "") -> TaskInfo:
        body = {"by": by, "reason": reason}
        return await self._post(f"{_task(name)}/cancel", body, TaskInfo, namespace=namespace)

    async def archive_task(self, namespace: str, name: str, *, by: str = "") -> TaskInfo:
        body = {"by": by}
        return await self._post(f"{_task(name)}/archive", body, TaskInfo, namespace=namespace, repeatable=True)

    async def requeue_task(
        self, namespace: str, name: str, *, by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        body = {"by": by, "payloads": payloads}
        return await self._post(f"{_task(name)}/requeue", body, TaskInfo, namespace=namespace)

    async def delete_task(self, namespace: str, name: str) -> None:
        await self._http.ask("DELETE", _task(name), params={"namespace": namespace})

    async def story(self, namespace: str, name: str, *, looks: bool = True) -> TaskStory:
        found = await self._get(f"{_look(name)}/story", wire.StoryWire, namespace=namespace, looks=looks)
        return wire.story_from_wire(found)

    async def records(self, namespace: str, name: str, *, after: int = 0) -> list[TaskRecord]:
        found = await self._get(f"{_look(name)}/records", list[wire.FactWire], namespace=namespace, after=after)
        return wire.records_from_wire(found)

    async def happenings(self, namespace: str, name: str, *, cursor: str | None = None) -> Batch:
        found = await self._get(f"{_look(name)}/happenings", wire.BatchWire, namespace=namespace, cursor=cursor)
        return wire.batch_from_wire(found)

    async def follow(self, namespace: str, name: str, *, cursor: str | None = None) -> AsyncGenerator[Batch]:
        """See `Work`."""
        stream = self._http.stream(f"{_look(name)}/watch", params={"namespace": namespace}, after=cursor)
        async with aclosing(stream) as events:
            async for event in events:
                if event.name == "happenings":
                    yield wire.batch_from_wire(wire.read(event.data, wire.BatchWire))

    async def changed(self, namespace: str, name: str, *, cursor: str | None, timeout: float) -> None:
        """See `Work`. The server answers when there is something."""
        path = f"{_look(name)}/happenings"
        await self._get(path, wire.BatchWire, namespace=namespace, cursor=cursor, wait=min(timeout, 10.0))

    async def why_task(self, namespace: str, name: str) -> TaskExplanation:
        return await self._get(f"{_task(name)}/why", TaskExplanation, namespace=namespace)

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
        shown = ",".join(phases) or None
        return await self._get(RUNS, list[RunInfo], namespace=namespace, agent=agent, phases=shown, limit=limit)

    async def find_run(self, word: str) -> RunInfo:
        return await self._get(f"{RUNS}/{quote(word, safe='')}", RunInfo)

    async def facts(self, run_id: str) -> list[tuple[float, Event]]:
        return wire.facts_from_wire(await self._get(f"{_at(run_id)}/facts", list[wire.FactWire]))

    async def results(self, run_id: str) -> list[CallResult]:
        found = await self._get(f"/v1/runs/{quote(run_id, safe='')}/results", _Results)
        return found.items

    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        place = f"/v1/runs/{quote(run_id, safe='')}/results/{quote(call_id, safe='')}"
        return await self._get(place, ResultPage, offset=offset, limit=RESULT_PAGE)

    async def why_run(self, run_id: str) -> Explanation:
        return await self._get(f"{_at(run_id)}/why", Explanation)

    async def cancel_run(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        return await self._post(f"{RUNS}/{quote(run_id, safe='')}/cancel", {"by": by, "reason": reason}, RunInfo)

    # --- what people are asked -----------------------------------------------------------------------------------

    async def approvals(self, namespace: str | None = None, *, run: str | None = None) -> list[Document]:
        return await self._get(APPROVALS, list[Document], namespace=namespace, run=run)

    async def approval(self, word: str, *, namespace: str) -> Document:
        return await self._get(f"{APPROVALS}/{quote(word, safe='')}", Document, namespace=namespace)

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
        """See `Work`. The run goes on where the server is."""
        body = {"by": by, "decision": decision, "comment": comment, "arguments": arguments, "digest": digest}
        return await self._post(f"{APPROVALS}/{quote(name, safe='')}/decide", body, Answered, namespace=namespace)

    async def grant(self, *, by: str, tool: str, seconds: float, namespace: str, **scope: Any) -> Document:
        body = {"by": by, "tool": tool, "seconds": seconds, "scope": scope}
        return await self._post("/v1/tool-approvals/grants", body, Document, namespace=namespace)

    async def revoke(self, name: str, *, by: str, namespace: str) -> Document:
        path = f"/v1/tool-approvals/{quote(name, safe='')}/revoke"
        return await self._post(path, {"by": by}, Document, namespace=namespace)

    async def questions(self, namespace: str | None = None) -> list[OpenQuestion]:
        return await self._get(QUESTIONS, list[OpenQuestion], namespace=namespace)

    async def answer(self, run_id: str, call: str | None, text: str, *, by: str = "") -> str:
        body = {"by": by, "call": call, "text": text}
        return (await self._post(f"{RUNS}/{quote(run_id, safe='')}/answer", body, RunInfo)).id


def _task(name: str) -> str:
    return f"{TASKS}/{quote(name, safe='')}"


def _look(name: str) -> str:
    return f"/v1/tasks/{quote(name, safe='')}"


# --- remote runs -----------------------------------------------------------------------------------------------------

# Runs that a server drives: begun and taken up there, and watched from here while they go on.


class Left(Struct, frozen=True):
    runs: list[RunInfo]


class _Event(Struct, frozen=True):
    type: str
    run: str
    seq: int
    at: float
    data: dict[str, Any]


class _Piece(Struct, frozen=True):
    step: int
    delta: Delta


class _Output(Struct, frozen=True):
    call: str
    text: str


class RemoteRuns(Asking):
    """What is only asked of a server: in this process a runtime does it."""

    async def begin_run(self, order: RunOrder) -> RunInfo:
        """Have an agent do something; the run is durable on return, and goes on there whoever watches.

        A run of this id that exists already is gone on with. Raises `NotFound` (the agent), `Conflict` when the id
        belongs to other work, `InvalidInput`.
        """
        return await self._post("/v1/runs", order, RunInfo, namespace=order.namespace, repeatable=True)

    async def resume_run(self, run_id: str) -> RunInfo:
        """Have a run go on that nobody drives. One that has ended, or that is driven, stays as it is."""
        return await self._post(f"{_at(run_id)}/resume", {}, RunInfo, repeatable=True)

    async def live(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        """What happens to a run behind the event `after`, until it has ended: each event once, whatever breaks.

        Pieces of answers and of output come between, when the run is driven by the server that answers.
        """
        path = f"/v1/runs/{quote(run_id, safe='')}/events"
        async with aclosing(self._http.stream(path, after=str(after))) as events:
            async for event in events:
                match event.name:
                    case "event":
                        yield _recorded(wire.read(event.data, _Event))
                    case "delta":
                        piece = wire.read(event.data, _Piece)
                        yield Streamed(run_id, piece.step, piece.delta)
                    case "output":
                        printed = wire.read(event.data, _Output)
                        yield Output(run_id, printed.call, printed.text)
                    case _:
                        pass

    async def standing(self, run_id: str) -> RunStanding:
        return await self._get(f"{_at(run_id)}/standing", RunStanding)

    async def fork_run(self, run_id: str, order: ForkOrder) -> RunInfo:
        """Begin a run that shares the past of another; durable on return. Raises `NotFound`, `InvalidInput`."""
        return await self._post(f"{_at(run_id)}/fork", order, RunInfo, repeatable=True)

    async def replay_run(self, run_id: str) -> Replayed:
        return await self._get(f"{_at(run_id)}/replay", Replayed)

    async def interrupted(self, namespace: str | None = None) -> list[RunInfo]:
        return (await self._get("/v1/interrupted-runs", Left, namespace=namespace)).runs

    async def unknown_calls(
        self, namespace: str | None = None, *, ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """See `Work`. A server gives a thousand at most with one answer: more are asked for one after another."""
        calls: list[Doubt] = []
        while True:
            asked = {"ended": str(ended).lower(), "limit": str(limit - len(calls)), "after": after}
            page = await self._get("/v1/unknown-calls", DoubtPage, namespace=namespace, **asked)
            calls += page.calls
            if len(calls) >= limit or page.cursor is None:
                return DoubtPage(calls, page.total, page.cursor)
            after = page.cursor

    async def settle_call(
        self,
        run_id: str,
        call: str,
        decision: Settled,
        *,
        result: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> RunInfo:
        """See `Work`."""
        body = {"call": call, "decision": decision, "result": result, "by": by, "reason": reason}
        return await self._post(f"{_at(run_id)}/settle", body, RunInfo)


def _at(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def _recorded(told: _Event) -> Recorded:
    return Recorded(told.run, told.seq, told.at, decode(msgspec.json.encode({"type": told.type, **told.data})))
