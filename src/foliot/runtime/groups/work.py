"""The verbs on runs, tasks, approvals, questions and tools; see groups.py."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from foliot.runtime.groups.arguments import Group, time_limit

if TYPE_CHECKING:
    from foliot.engine.approval.questions import OpenQuestion
    from foliot.engine.approval.service import Decision
    from foliot.engine.definition.run_options import RunOptions
    from foliot.engine.explain.trace import Trace
    from foliot.engine.explain.why import Explanation
    from foliot.engine.live.hub import Live
    from foliot.engine.workspaces.history import StepFiles
    from foliot.engine.workspaces.trees import WorkspaceTree
    from foliot.kernel.messages import Message
    from foliot.kernel.run.events import Event, Fork
    from foliot.runtime.agent import Agent
    from foliot.runtime.answers import Answered, Called, Input, Replayed, RunStanding, Toolset
    from foliot.runtime.inputs import RunInput
    from foliot.runtime.results import RunResult
    from foliot.store.base import Document
    from foliot.store.journal.base import RunInfo
    from foliot.store.ledger.doubts import DoubtPage
    from foliot.tools.builtin.results import CallResult, ResultPage
    from foliot.tools.governance.judge import Judgement
    from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
    from foliot.work.views.events import Batch
    from foliot.work.views.story import TaskStory
    from foliot.work.views.why import TaskExplanation

Settled: TypeAlias = Literal["happened", "run", "fail", "not_happened"]
"""The words that settle a call of unknown outcome; the last one once its run has ended."""

# Where a verb is called `list`, the type of that name is hidden.
Rows = list


class RunGroup(Group):
    """Runs: one agent at work."""

    @abstractmethod
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
        """Start a run. It is durable on return and goes on in the background; `wait` gives its result.

        An existing run with this `run_id` is resumed, so calling again after a crash is always right. `user` is the
        person it is run for; `after` and `history` are as in `run`. `options` are what is different in this run: its
        model, its prompt, the shape of its answer, tools that it and all runs below it lack. An `Agent` object needs a
        runtime; a server takes names, and another model or prompt from authors.
        Raises `NotFound` (the agent), `Conflict` when the id belongs to other work, `InvalidInput`.
        """

    async def prompt(
        self,
        prompt: Input,
        *,
        agent: Agent | str = "",
        model: str = "",
        system: str = "",
        namespace: str = "default",
        run_id: str | None = None,
        user: str = "",
        timeout: float | None = None,
    ) -> RunResult:
        """Ask one question and return the answer: of an agent without its tools, or of a model by itself.

        It is a run like any other. Raises `RunFailedError`, `NotFound`, `InvalidInput`, `TimeoutError`.
        """
        return await self._prompt(prompt, agent, model, system, None, namespace, run_id, user, timeout)

    async def object(
        self,
        prompt: Input,
        *,
        schema: Mapping[str, Any] | str | bytes,
        agent: Agent | str = "",
        model: str = "",
        system: str = "",
        namespace: str = "default",
        run_id: str | None = None,
        user: str = "",
        timeout: float | None = None,
    ) -> RunResult:
        """Ask one question whose answer is JSON of this schema: `value` of the result; `output` is the text of it.

        An answer that does not fit goes back with what is wrong, up to two times. Then `SchemaMismatch` is raised, with
        the `raw_text`. Raises as `prompt` besides.
        """
        from foliot.engine.definition.run_options import read_schema

        return await self._prompt(prompt, agent, model, system, read_schema(schema), namespace, run_id, user, timeout)

    async def _prompt(
        self,
        prompt: Input,
        agent: Agent | str,
        model: str,
        system: str,
        schema: dict[str, Any] | None,
        namespace: str,
        run_id: str | None,
        user: str,
        timeout: float | None,
    ) -> RunResult:
        from foliot.engine.definition.run_options import EVERY_TOOL, RunOptions
        from foliot.errors import Conflict, InvalidInput

        if agent == "" and not model.strip():
            raise InvalidInput("no language model: there is neither an agent nor a model", hint="name one of them")
        options = RunOptions((EVERY_TOOL,), system, model, schema)
        info = await self.start(agent, prompt, namespace=namespace, run_id=run_id, user=user, options=options)
        result = await self.wait(info.id, timeout=timeout)
        if result.phase == "failed" and schema is not None:
            await self._check_shape(result)
        if result.waiting is not None:
            raise Conflict(
                f"run {info.id} waits ({result.waiting.reason}): {result.waiting.message}",
                hint=f"`foliot why {info.id}` says for whom",
            )
        return result.check()

    async def _check_shape(self, result: RunResult) -> None:
        """Raises `SchemaMismatch` for a run that failed by the shape of its answers."""
        from foliot.kernel.run.events import ModelResponded, RunFailed
        from foliot.runtime.results import SchemaMismatch

        facts = [event for _, event in await self.events(result.run_id)]
        if any(isinstance(event, RunFailed) and event.code == "schema_mismatch" for event in facts):
            said = [event.response.message.text for event in facts if isinstance(event, ModelResponded)]
            raise SchemaMismatch(result, said[-1] if said else "")

    @abstractmethod
    async def get(self, run_id: str, *, messages: bool = False) -> RunStanding:
        """Return how a run stands and what it has done so far, with its `messages` if asked. Raises `NotFound`."""

    @abstractmethod
    async def find(self, word: str) -> RunInfo:
        """Return the run of this id, or the only one that begins so.

        Raises `NotFound`, and `Conflict` with the candidates.
        """

    @abstractmethod
    async def list(
        self,
        *,
        namespace: str | None = "default",
        agent: str | None = None,
        phases: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
    ) -> Rows[RunInfo]:
        """List runs, newest first, with summaries of those under way as of now.

        `before` is the id of a run: those that were stored earlier are listed. Raises `InvalidInput`, and `NotFound`
        for a run that does not exist.
        """

    @abstractmethod
    async def events(self, run_id: str) -> Rows[tuple[float, Event]]:
        """List the events of a run with their times, oldest first. Raises `NotFound`."""

    @abstractmethod
    def watch(self, run_id: str, *, after: int = 0) -> AsyncGenerator[Live]:
        """Yield what happens to a run behind the event number `after`, until it has ended. Raises `NotFound`.

        Each event (`Recorded`) comes once, whatever breaks in between. Pieces of answers (`Streamed`) and of what tools
        print (`Output`) come between them where whoever drives the run can be heard.
        """

    async def trace(self, run_id: str) -> Trace:
        """Return a run step by step: answers, calls, what they took. Raises `NotFound`."""
        from foliot.engine.explain.trace import read_trace

        return await read_trace(run_id, await self.events(run_id))

    @abstractmethod
    async def why(self, run_id: str) -> Explanation:
        """Explain why a run waits, failed, or cost what it cost. Raises `NotFound`."""

    @abstractmethod
    async def results(self, run_id: str) -> Rows[CallResult]:
        """List the results of a run's calls, in their order. Raises `NotFound`."""

    @abstractmethod
    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        """Return a page of the result of a call, also of what was cut before the model saw it. Raises `NotFound`."""

    @abstractmethod
    async def content(self, run_id: str, digest: str) -> bytes:
        """Return content that a run keeps, by its digest: the files of its workspace. Raises `NotFound`."""

    async def files(self, run_id: str) -> Rows[StepFiles]:
        """List the snapshots of a run's workspace: as each step left it, from step 0 on. Raises `NotFound`."""
        from foliot.engine.workspaces.history import files_by_step

        return files_by_step(await self.events(run_id))

    async def tree(self, run_id: str, *, at: int | None = None) -> WorkspaceTree:
        """Return the workspace of a run as step `at` left it, or the last one. Raises `NotFound`."""
        from functools import partial

        from foliot.engine.workspaces.history import files_at, tree_of

        snapshot = files_at(run_id, await self.files(run_id), at)
        return await tree_of(partial(self.content, run_id), snapshot)

    async def wait(self, run_id: str, *, timeout: float | None = None) -> RunResult:
        """Wait until a run has ended or waits for a person; return how it stands, without its messages.

        Raises `NotFound`, and `TimeoutError` after `timeout` seconds; 0 looks once.
        """
        stands = await self.get(run_id)
        if not stands.is_settled:
            async with time_limit(timeout, f"run {run_id} has neither ended nor asked a person"):
                stands = await self._settled(run_id, stands)
        return stands.result

    async def _settled(self, run_id: str, stands: RunStanding) -> RunStanding:
        from contextlib import aclosing

        from foliot.engine.live.hub import Recorded
        from foliot.kernel.run.events import RunWaiting

        async with aclosing(self.watch(run_id, after=stands.seq)) as live:
            while not stands.is_settled:
                async for item in live:
                    if isinstance(item, Recorded) and isinstance(item.event, RunWaiting):
                        break  # the run may have been resumed since: look again
                stands = await self.get(run_id)
        return stands

    @abstractmethod
    async def resume(self, run_id: str) -> RunInfo:
        """Have a run that nobody drives go on in the background. One that has ended, or is driven, stays as it is.

        Raises `NotFound`, and what keeps it from going on.
        """

    @abstractmethod
    async def fork_point(self, run_id: str, *, at: int) -> Fork:
        """Return where a fork from step `at` would branch off, and start nothing.

        Its `effects` are the calls from there on that the run has made, and that a fork may make a second time; calls
        of tools that only read are left out. Raises `NotFound` for a step that the run never had.
        """

    @abstractmethod
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
        """Start a run that shares the past of another before step `at`, with another prompt, endpoint or input.

        It is durable on return, acts for `user`, and not for whom the first one was run. Raises `NotFound`, `Conflict`,
        `InvalidInput`.
        """

    @abstractmethod
    async def replay(self, run_id: str) -> Replayed:
        """Decide a whole run again from its journal and compare byte for byte. Nothing is called. Raises `NotFound`."""

    @abstractmethod
    async def cancel(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo:
        """Ask a run to end, wherever it is driven. Raises `NotFound`."""

    @abstractmethod
    async def say(
        self, run_id: str, text: str, *, mode: str = "steer", by: str = "", key: str | None = None
    ) -> RunInput:
        """Say something to a run: `mode` is steer, followup, collect, queue, steer-backlog or interrupt.

        The same `key` twice is one input with one outcome. A run that has ended is restarted: another one goes on after
        it. Raises `NotFound`, `Conflict` when the key belongs to other words, `InvalidInput`.
        """

    @abstractmethod
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
        """Say what became of a call of unknown outcome, named by its id or its tool; the run goes on with that.

        `attempt` is the number of the attempt that is meant, as `unknown` lists it. It has to be named once a decision
        had the call made again.

        It `happened` (with its `result`), `run` it, or `fail`: for a run that waits. `happened` and `not_happened` are
        for one that has ended. Raises `NotFound`, `Conflict` when no call is open, or several are meant, `InvalidInput`
        for any other word.
        """

    @abstractmethod
    async def unknown(
        self, *, namespace: str | None = "default", ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """List calls of unknown outcome that nobody has settled, oldest first; with `ended` those of ended runs.

        `after` is the `cursor` of the page before. Raises `InvalidInput`.
        """

    @abstractmethod
    async def interrupted(self, *, namespace: str | None = "default") -> Rows[RunInfo]:
        """List all runs outside of tasks that could go on and that nobody drives, oldest first."""


class TaskGroup(Group):
    """Tasks: work that an agent or a system of agents is asked for, done by workers."""

    @abstractmethod
    async def submit(self, command: Command) -> Accepted:
        """Submit a task; durable on return. Raises `InvalidInput`, `Conflict`.

        A task whose target is not there is accepted, and has failed with that reason.
        """

    @abstractmethod
    async def get(self, name: str, *, namespace: str = "default") -> TaskInfo:
        """Return a task. Raises `NotFound`."""

    @abstractmethod
    async def find(self, word: str, *, namespace: str = "default") -> TaskInfo:
        """Return the task of this name, or the only one that begins or ends so. Raises `NotFound`, `InvalidInput`."""

    @abstractmethod
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
        """List tasks, newest first, with the cursor of the next page. Times are in seconds since 1970.

        Raises `InvalidInput`.
        """

    async def wait(self, name: str, *, namespace: str = "default", timeout: float | None = None) -> TaskInfo:
        """Wait until a task has ended. Raises `NotFound`, and `TimeoutError` after `timeout` seconds; 0 looks once."""
        from contextlib import aclosing

        from foliot.store.tasks import ENDED

        task = await self.get(name, namespace=namespace)
        if task.phase in ENDED:
            return task
        limit = time_limit(timeout, f"task {name} has not ended")
        async with limit, aclosing(self.follow(name, namespace=namespace)) as batches:
            async for _ in batches:
                pass
        return await self.get(name, namespace=namespace)

    @abstractmethod
    async def cancel(self, name: str, *, namespace: str = "default", by: str = "", reason: str = "") -> TaskInfo:
        """Ask a task to end. Raises `NotFound`, `Conflict` when it has ended."""

    @abstractmethod
    async def retry(
        self, name: str, *, namespace: str = "default", by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo:
        """Retry a task that ended badly; `payloads` are other texts for failed messages, by their ids.

        Raises `NotFound`, `Conflict`.
        """

    @abstractmethod
    async def archive(self, name: str, *, namespace: str = "default", by: str = "") -> TaskInfo:
        """Hide a task from lists; a live one is cancelled first. Raises `NotFound`."""

    @abstractmethod
    async def delete(self, name: str, *, namespace: str = "default") -> None:
        """Delete an ended task with its events. Raises `NotFound`, `Conflict`."""

    @abstractmethod
    async def story(self, name: str, *, namespace: str = "default", looks: bool = True) -> TaskStory:
        """Return a task as it stands: plan, messages, runs; with `looks` also what live runs do. Raises `NotFound`."""

    @abstractmethod
    async def records(self, name: str, *, namespace: str = "default", after: int = 0) -> Rows[TaskRecord]:
        """List the events of the task itself behind the number `after`. Raises `NotFound`."""

    @abstractmethod
    async def events(self, name: str, *, namespace: str = "default", cursor: str | None = None) -> Batch:
        """Return what has happened to the task and its runs behind the cursor, at once. Raises `NotFound`."""

    @abstractmethod
    def follow(self, name: str, *, namespace: str = "default", cursor: str | None = None) -> AsyncGenerator[Batch]:
        """Yield what happens to the task and its runs until it has ended: each event once, whatever breaks."""

    @abstractmethod
    async def changed(self, name: str, *, namespace: str = "default", cursor: str | None, timeout: float) -> None:
        """Return when something may have happened behind the cursor, or after `timeout` seconds."""

    @abstractmethod
    async def why(self, name: str, *, namespace: str = "default") -> TaskExplanation:
        """Explain why a task is where it is. Raises `NotFound`."""


class ApprovalGroup(Group):
    """Approvals: calls that wait for a person, and grants that approve calls in advance."""

    @abstractmethod
    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[Document]:
        """List approvals and standing grants; with `run` those of one run."""

    @abstractmethod
    async def get(self, name: str, *, namespace: str = "default") -> Document:
        """Return the approval of this name, or the only one that begins so. Raises `NotFound`, `Conflict`."""

    async def approve(
        self, name: str, *, namespace: str = "default", by: str = "", comment: str = "", digest: str = ""
    ) -> Answered:
        """Approve a call that waits; its run goes on.

        `digest` is that of the arguments which were looked at: needed where several must approve, or somebody has
        edited them. Raises `Conflict` when it was decided before, `Denied`, `NotFound`.
        """
        return await self._decide(name, "approve", namespace=namespace, by=by, comment=comment, digest=digest)

    async def deny(
        self, name: str, *, namespace: str = "default", by: str = "", comment: str = "", digest: str = ""
    ) -> Answered:
        """Deny a call that waits; its run goes on with the refusal. Raises as `approve`."""
        return await self._decide(name, "deny", namespace=namespace, by=by, comment=comment, digest=digest)

    async def edit(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        namespace: str = "default",
        by: str = "",
        comment: str = "",
        digest: str = "",
    ) -> Answered:
        """Approve a call that waits, with other arguments. Raises as `approve`, and `InvalidInput`."""
        return await self._decide(
            name, "edit", namespace=namespace, by=by, comment=comment, digest=digest, arguments=arguments
        )

    @abstractmethod
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
    ) -> Answered: ...

    @abstractmethod
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
        """Approve calls of a tool in advance, for so many seconds; `when` is a CEL condition. Raises `InvalidInput`."""

    @abstractmethod
    async def revoke(self, name: str, *, namespace: str = "default", by: str = "") -> Document:
        """End a standing grant. Raises `NotFound`, `Conflict`."""


class QuestionGroup(Group):
    """Questions that runs ask people."""

    @abstractmethod
    async def list(self, *, namespace: str | None = "default", run: str | None = None) -> Rows[OpenQuestion]:
        """List all open questions, oldest first, or those of one run. Raises `NotFound` (the run)."""

    @abstractmethod
    async def answer(self, run_id: str, text: str, *, call: str | None = None, by: str = "") -> RunInfo:
        """Answer what a run asks; it goes on. `call` says which question when it asks several.

        Raises `NotFound`, `InvalidInput`, `Conflict` when it was answered before.
        """


class ToolGroup(Group):
    """Tools outside any run."""

    @abstractmethod
    async def list(self, *, namespace: str = "default") -> Toolset:
        """List all tools by name, whether or not they can be called there, and what the deployment has."""

    @abstractmethod
    async def get(self, name: str, *, namespace: str = "default") -> Document:
        """Return a tool with its limits, its schema, and the rules that speak of it. Raises `NotFound`."""

    @abstractmethod
    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        *,
        namespace: str = "default",
        agent: str = "",
        user: str = "",
        key: str = "",
        on_output: Callable[[str], None] | None = None,
    ) -> Called:
        """Call a tool, governed and recorded as any call; with `agent` it has the roles and tools of that agent.

        Calls with one `key` are one call for a day: it is made once, and its result returned again; a call that was
        refused leaves its key free. `on_output` hears pieces as they come where the tool runs in this process; from a
        server they are `printed`. Raises `NotFound`, `Conflict` for a tool that cannot be called there and for the key
        of another call, `OutcomeUnknown` when the call with that key broke off and may have taken effect, `Denied` when
        a rule asks for an approval that nobody gave in advance: the call is not made.
        """

    @abstractmethod
    async def test(
        self, name: str, arguments: dict[str, Any], *, namespace: str = "default", agent: str = "", user: str = ""
    ) -> Judgement:
        """Return what would become of that call. Nothing is run. Raises as `call`."""

    @abstractmethod
    async def offered(self, server: str, *, namespace: str = "default") -> Rows[Document]:
        """List the tools that an McpServer offers right now, compared with what was accepted.

        Nothing is stored. Raises `NotFound`, `Conflict` when it cannot be asked.
        """

    @abstractmethod
    async def accept(
        self, server: str, tool: str, digest: str, levels: Mapping[str, Any], *, namespace: str = "default"
    ) -> str:
        """Agree to the definition of this digest of a tool that an McpServer offers; return the name of the Tool.

        `levels` (`risk_level`, `effect`, `isolation_mode`, `operation_classes`) are the least that the Tool has to say.
        Raises `NotFound`, `Conflict` when it offers another definition, `InvalidInput`.
        """
