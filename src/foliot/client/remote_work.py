"""The verbs on runs, tasks, approvals and questions, over the connection to a server; see runtime/groups/work.py.

Who did something is whom the server knows the caller for, whatever `by` says.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.client import wire
from foliot.client.http import RemoteGroup, new_key
from foliot.common.pages import Part, read_all, read_first
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.approval.service import Decision, only_alike
from foliot.engine.definition.run_options import UNCHANGED, RunOptions
from foliot.engine.driver.ids import new_run_id
from foliot.engine.explain.why import Explanation
from foliot.engine.live.hub import Live, Output, Recorded, Streamed
from foliot.errors import NotFound, UsageError
from foliot.kernel.messages import Delta, Message
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import Event, Fork
from foliot.runtime.answers import Answered, ForkOrder, Input, Replayed, RunContent, RunOrder, RunStanding, messages_of
from foliot.runtime.groups.work import ApprovalGroup, QuestionGroup, RunGroup, Settled, TaskGroup
from foliot.runtime.inputs import RunInput
from foliot.store.base import Document
from foliot.store.journal.base import RunInfo
from foliot.store.ledger.doubts import Doubt, DoubtPage
from foliot.tools.builtin.results import RESULT_PAGE, CallResult, ResultPage
from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
from foliot.work.views.events import Batch
from foliot.work.views.story import TaskStory
from foliot.work.views.why import TaskExplanation

if TYPE_CHECKING:
    from foliot.runtime.agent import Agent

TASKS: Final = "/v1/tasks"
RUNS: Final = "/v1/runs"
APPROVALS: Final = "/v1/tool-approvals"
# How many events of a journal are asked for at once.
EVENTS: Final = 1000
# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class _Results(Struct, frozen=True):
    items: list[CallResult]


class _Questions(Struct, frozen=True):
    items: list[OpenQuestion]
    cursor: str | None = msgspec.field(default=None, name="continue")


class _Event(Struct, frozen=True):
    type: str
    run: str
    seq: int
    at: float
    data: dict[str, Any]


class _Journal(Struct, frozen=True):
    events: list[_Event]


class _Piece(Struct, frozen=True):
    step: int
    delta: Delta


class _Output(Struct, frozen=True):
    call: str
    text: str


class _RunAsking(RemoteGroup):
    async def _changed_run(self, run_id: str, verb: str, body: Any, *, repeatable: bool = False) -> RunInfo:
        found = await self._post(f"{_at(run_id)}/{verb}", body, Document, repeatable=repeatable)
        return wire.read_runs([found])[0]


class RemoteRuns(_RunAsking, RunGroup):
    """Implements `RunGroup`. Runs are driven by the server, whoever watches: none stops with this process."""

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
        name = declared_name(agent)
        messages = messages_of(input, history)
        order = RunOrder(
            name,
            input if isinstance(input, str) else "",
            run_id or _new_id(),
            namespace,
            dict(labels or {}),
            user,
            () if isinstance(input, str) else _sent(messages),
            _sent(history),
            after,
            options or UNCHANGED,
        )
        found = await self._post(RUNS, order, Document, namespace=namespace, repeatable=True)
        return wire.read_runs([found])[0]

    async def get(self, run_id: str, *, messages: bool = False) -> RunStanding:
        found = await self._get(f"{_at(run_id)}/state", Document, messages=messages or None)
        (info,) = wire.read_runs([found.pop("run", {})])
        return msgspec.convert({**found, "info": info}, RunStanding, from_attributes=True)

    async def find(self, word: str) -> RunInfo:
        return wire.read_runs([await self._get(_at(word), Document, alike=True)])[0]

    async def list(
        self,
        *,
        namespace: str | None = "default",
        agent: str | None = None,
        phases: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
    ) -> Rows[RunInfo]:
        filters = {"namespace": namespace, "agent": agent, "phase": ",".join(phases) or None}
        if before is not None:
            await self._get(_at(before), Document)  # raises when there is none: the list takes cursors too
        found = await read_first(limit, self._page, RUNS, behind="after", cursor=before, **filters)
        return wire.read_runs(found.items)

    async def events(self, run_id: str) -> Rows[tuple[float, Event]]:
        facts: Rows[tuple[float, Event]] = []
        while True:
            page = await self._get(f"{_at(run_id)}/journal", _Journal, after=len(facts), limit=EVENTS)
            recorded = [_recorded(each) for each in page.events]
            facts += [(each.at, each.event) for each in recorded]
            if len(recorded) < EVENTS:
                return facts

    async def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        path, seq = f"{_at(run_id)}/events", after
        async with aclosing(self._http.stream(path, after=str(after))) as events:
            async for event in events:
                match event.name:
                    case "event":
                        recorded = _recorded(wire.read(event.data, _Event))
                        seq = recorded.seq
                        yield recorded
                    case "delta":
                        piece = wire.read(event.data, _Piece)
                        yield Streamed(run_id, piece.step, piece.delta, seq)
                    case "output":
                        printed = wire.read(event.data, _Output)
                        yield Output(run_id, printed.call, printed.text, seq)
                    case _:
                        pass

    async def why(self, run_id: str) -> Explanation:
        return await self._get(f"{_at(run_id)}/why", Explanation)

    async def results(self, run_id: str) -> Rows[CallResult]:
        found = await self._get(f"{_at(run_id)}/results", _Results)
        return found.items

    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        place = f"{_at(run_id)}/results/{quote(call_id, safe='')}"
        return await self._get(place, ResultPage, offset=offset, limit=RESULT_PAGE)

    async def content(self, run_id: str, digest: str) -> bytes:
        found = await self._get(f"{_at(run_id)}/content/{quote(digest, safe='')}", RunContent)
        return found.data

    async def resume(self, run_id: str) -> RunInfo:
        return await self._changed_run(run_id, "resume", {}, repeatable=True)

    async def fork_point(self, run_id: str, *, at: int) -> Fork:
        return await self._get(f"{_at(run_id)}/fork", Fork, at=at)

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
        order = ForkOrder(at, new_id or _new_id(), prompt, model, input, user)
        return await self._changed_run(run_id, "fork", order, repeatable=True)

    async def replay(self, run_id: str) -> Replayed:
        return await self._get(f"{_at(run_id)}/replay", Replayed)

    async def cancel(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        return await self._changed_run(run_id, "cancel", {"reason": reason})

    async def say(
        self, run_id: str, text: str, *, mode: str = "steer", by: str = "", key: str | None = None
    ) -> RunInput:
        body = {"message": text, "mode": mode, "key": key}
        found = await self._post(f"{_at(run_id)}/say", body, Document, repeatable=key is not None)
        return wire.read_run_input(found)

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
        body: dict[str, Any] = {"call": call, "decision": decision, "result": result, "by": by, "reason": reason}
        if attempt is not None:
            body["attempt"] = attempt
        return await self._changed_run(run_id, "settle", body)

    async def unknown(
        self, *, namespace: str | None = "default", ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """Lists calls of unknown outcome, in pages: a server gives a thousand at most with one answer."""
        total = 0

        async def ask(*, cursor: str | None, limit: int) -> Part[Doubt]:
            nonlocal total
            asked = {"ended": str(ended).lower(), "limit": str(limit), "after": cursor}
            page = await self._get("/v1/unknown-calls", DoubtPage, namespace=namespace, **asked)
            total = page.total
            return Part(page.calls, page.cursor)

        found = await read_first(limit, ask, cursor=after)
        return DoubtPage(found.items, total, found.cursor)

    async def interrupted(self, *, namespace: str | None = "default") -> Rows[RunInfo]:
        return wire.read_runs(await self._all("/v1/interrupted-runs", namespace))


def declared_name(agent: Agent | str) -> str:
    """The name of the agent. Raises `UsageError` for an object, which is nowhere but in this process."""
    if isinstance(agent, str):
        return agent
    raise UsageError(
        "a server runs agents that are declared there",
        hint="apply its manifest with client.resources.apply([agent.document]), and give its name",
    )


def _sent(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    return msgspec.convert(msgspec.to_builtins(messages), tuple[dict[str, Any], ...])


def _new_id() -> str:
    return new_run_id(time.time())


def _at(run_id: str) -> str:
    return f"{RUNS}/{quote(run_id, safe='')}"


def _recorded(told: _Event) -> Recorded:
    return Recorded(told.run, told.seq, told.at, decode(msgspec.json.encode({"type": told.type, **told.data})))


class RemoteTasks(RemoteGroup, TaskGroup):
    """Implements `TaskGroup`."""

    async def submit(self, command: Command) -> Accepted:
        """Submits a task. A command without a name and a key is given a key, so that a retry is safe."""
        if not command.name and not command.idempotency_key:
            command = replace(command, idempotency_key=f"client-{secrets.token_hex(16)}")
        params, body = {"namespace": command.namespace}, msgspec.json.encode(command)
        answer = await self._http.ask("POST", f"{TASKS}/submit", params=params, body=body, repeatable=True)
        (task,) = wire.read_tasks([wire.read(answer.body, Document)])
        return Accepted(task, duplicate=answer.status == 200)

    async def get(self, name: str, *, namespace: str = "default") -> TaskInfo:
        return wire.read_tasks([await self._get(_task(name), Document, namespace=namespace, outline=True)])[0]

    async def find(self, word: str, *, namespace: str = "default") -> TaskInfo:
        found = await self._get(_task(word), Document, namespace=namespace, outline=True, alike=True)
        return wire.read_tasks([found])[0]

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
        found = await read_first(
            limit,
            self._page,
            TASKS,
            cursor=cursor,
            namespace=namespace,
            mode="run",
            target=target,
            phase=",".join(phases) or None,
            labelSelector=",".join(f"{key}={value}" for key, value in (labels or {}).items()) or None,
            lane=lane,
            createdAfter=created_after,
            createdBefore=created_before,
            archived=archived,
        )
        return wire.read_tasks(found.items), found.cursor

    async def _changed(self, name: str, verb: str, body: Any, namespace: str, *, repeatable: bool = False) -> TaskInfo:
        path = f"{_task(name)}/{verb}"
        found = await self._post(path, body, Document, namespace=namespace, repeatable=repeatable)
        return wire.read_tasks([found])[0]

    async def cancel(self, name: str, *, namespace: str = "default", by: str = "", reason: str = "") -> TaskInfo:
        return await self._changed(name, "cancel", {"reason": reason}, namespace)

    async def retry(
        self, name: str, *, namespace: str = "default", by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        return await self._changed(name, "retry", {"payloads": payloads or {}}, namespace)

    async def archive(self, name: str, *, namespace: str = "default", by: str = "") -> TaskInfo:
        return await self._changed(name, "archive", {}, namespace, repeatable=True)

    async def delete(self, name: str, *, namespace: str = "default") -> None:
        await self._http.ask("POST", f"{_task(name)}/delete", params={"namespace": namespace}, headers=new_key())

    async def story(self, name: str, *, namespace: str = "default", looks: bool = True) -> TaskStory:
        found = await self._get(f"{_task(name)}/story", wire.StoryWire, namespace=namespace, looks=looks)
        return wire.story_from_wire(found)

    async def records(self, name: str, *, namespace: str = "default", after: int = 0) -> Rows[TaskRecord]:
        found = await self._get(f"{_task(name)}/records", Rows[wire.FactWire], namespace=namespace, after=after)
        return wire.records_from_wire(found)

    async def events(self, name: str, *, namespace: str = "default", cursor: str | None = None) -> Batch:
        found = await self._get(f"{_task(name)}/changes", wire.BatchWire, namespace=namespace, cursor=cursor)
        return wire.batch_from_wire(found)

    async def follow(
        self, name: str, *, namespace: str = "default", cursor: str | None = None
    ) -> AsyncGenerator[Batch]:
        stream = self._http.stream(f"{_task(name)}/watch", params={"namespace": namespace}, after=cursor)
        async with aclosing(stream) as events:
            async for event in events:
                if event.name == "events":
                    yield wire.batch_from_wire(wire.read(event.data, wire.BatchWire))

    async def changed(self, name: str, *, namespace: str = "default", cursor: str | None, timeout: float) -> None:
        """Waits for a change. The server answers when there is one."""
        path = f"{_task(name)}/changes"
        await self._get(path, wire.BatchWire, namespace=namespace, cursor=cursor, wait=min(timeout, 10.0))

    async def why(self, name: str, *, namespace: str = "default") -> TaskExplanation:
        return await self._get(f"{_task(name)}/why", TaskExplanation, namespace=namespace)


def _task(name: str) -> str:
    return f"{TASKS}/{quote(name, safe='')}"


class RemoteApprovals(RemoteGroup, ApprovalGroup):
    """Implements `ApprovalGroup`."""

    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[Document]:
        return await self._all(APPROVALS, namespace, fieldSelector=None if run is None else f"spec.run={run}")

    async def get(self, name: str, *, namespace: str = "default") -> Document:
        try:
            return await self._get(f"{APPROVALS}/{quote(name, safe='')}", Document, namespace=namespace)
        except NotFound:
            return only_alike(name, await self.list(namespace=namespace), namespace)

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
        body: dict[str, Any] = {"reason": comment, "digest": digest}
        if arguments is not None or decision == "edit":
            body["arguments"] = arguments
        path = f"{APPROVALS}/{quote(name, safe='')}/{decision}"
        document = await self._post(path, body, Document, namespace=namespace)
        return Answered(document, document["spec"].get("run", ""))

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
        scope = {"agent": agent, "when": when, "max_uses": max_uses, "comment": comment}
        body = {"by": by, "tool": tool, "seconds": seconds, "scope": scope}
        return await self._post(f"{APPROVALS}/grants", body, Document, namespace=namespace)

    async def revoke(self, name: str, *, namespace: str = "default", by: str = "") -> Document:
        path = f"{APPROVALS}/{quote(name, safe='')}/revoke"
        return await self._post(path, {"by": by}, Document, namespace=namespace)


class RemoteQuestions(_RunAsking, QuestionGroup):
    """Implements `QuestionGroup`."""

    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[OpenQuestion]:
        async def ask(*, cursor: str | None = None) -> _Questions:
            return await self._get("/v1/questions", _Questions, namespace=namespace, run=run, **{"continue": cursor})

        return sorted(await read_all(ask), key=lambda each: each.since)

    async def answer(self, run_id: str, text: str, *, call: str | None = None, by: str = "") -> RunInfo:
        return await self._changed_run(run_id, "answer", {"call_id": call, "text": text})
