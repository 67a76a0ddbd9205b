"""The verbs of Foliot, in groups: the same on a `Runtime` in this process and on a `Client` of a server.

    await rt.approvals.approve(name, by="ann")  # or client.approvals.approve(name)

A name comes first; `namespace` and `by` are keywords everywhere. In lists `namespace=None` is all namespaces. Who acts
is `by` on a runtime; on a server it is whoever the token belongs to, whatever `by` says.

Implemented by: runtime/local/ on a store in this process, client/remote*.py over HTTP.
Invariant:      both have the signatures and docstrings of this module (tests/client/test_groups.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from foliot.engine.live.hub import Live
    from foliot.kernel.messages import Message
    from foliot.runtime.agent import Agent
    from foliot.runtime.answers import Input
    from foliot.runtime.groups.folders import FolderGroup
    from foliot.runtime.groups.sessions import SessionGroup
    from foliot.runtime.groups.store import (
        AuditGroup,
        BudgetGroup,
        ChannelGroup,
        PolicyGroup,
        ResourceGroup,
        ScheduleGroup,
        WebhookGroup,
        WorkerGroup,
    )
    from foliot.runtime.groups.work import ApprovalGroup, QuestionGroup, RunGroup, TaskGroup, ToolGroup
    from foliot.runtime.results import RunResult, Value


class StoreGroups(ABC):
    """The groups that need a store and no engine."""

    @property
    @abstractmethod
    def resources(self) -> ResourceGroup:
        """Resources: what is declared."""

    @property
    @abstractmethod
    def schedules(self) -> ScheduleGroup:
        """Schedules, which make tasks at given times."""

    @property
    @abstractmethod
    def webhooks(self) -> WebhookGroup:
        """Webhooks, which make tasks of what others deliver."""

    @property
    @abstractmethod
    def channels(self) -> ChannelGroup:
        """Channels, by which people outside talk to agents."""

    @property
    @abstractmethod
    def audit(self) -> AuditGroup:
        """The audit log: who decided and did what."""

    @property
    @abstractmethod
    def budgets(self) -> BudgetGroup:
        """Budgets as they stand."""

    @property
    @abstractmethod
    def policies(self) -> PolicyGroup:
        """Rules on tool calls, explained and tried."""

    @property
    @abstractmethod
    def workers(self) -> WorkerGroup:
        """Workers, the limits on what they do at once, and kinds of runs that keep failing."""


class Groups(StoreGroups):
    """Every verb."""

    @property
    @abstractmethod
    def runs(self) -> RunGroup:
        """Runs: one agent at work."""

    @property
    @abstractmethod
    def tasks(self) -> TaskGroup:
        """Tasks: work that an agent or a system of agents is asked for, done by workers."""

    @property
    @abstractmethod
    def approvals(self) -> ApprovalGroup:
        """Approvals: calls that wait for a person, and grants that approve calls in advance."""

    @property
    @abstractmethod
    def questions(self) -> QuestionGroup:
        """Questions that runs ask people."""

    @property
    @abstractmethod
    def sessions(self) -> SessionGroup:
        """Sessions: conversations with agents that last."""

    @property
    @abstractmethod
    def folders(self) -> FolderGroup:
        """Folders: what agents keep for users over all sessions and runs."""

    @property
    @abstractmethod
    def tools(self) -> ToolGroup:
        """Tools outside any run."""


class Conveniences(Groups):
    """Every verb, and the few that do several at once. Open it with `async with`."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    async def run(
        self,
        agent: Agent[Value] | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
        check: bool = True,
    ) -> RunResult[Value]:
        """Run an agent until it ends or waits for a person. Raises `RunFailedError` when it fails, if `check`.

        `user` is the person it is run for, as budgets, conditions and records name them. `after` is an earlier run of
        theirs, which has ended: its conversation goes on, and is not stored again. `history` is what was said before
        elsewhere, as messages.

        An existing run with this `run_id` is resumed: calling again after a crash is always right. One that this
        process or the server drives already is waited for. Raises `RunTaken`, a `Conflict`, when it is a run of another
        namespace, agent or user, or began with another input; on a runtime `Held` when another process drives it.
        """

    def run_sync(
        self,
        agent: Agent[Value] | str,
        input: Input,
        *,
        namespace: str = "default",
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str = "",
        history: Sequence[Message] = (),
        after: str = "",
        check: bool = True,
    ) -> RunResult[Value]:
        """Run an agent as `run` does, in a program without an event loop: opens, runs, and closes again.

        Raises `UsageError` where an event loop is running: there, `await` is right.
        """
        import asyncio

        from foliot.errors import UsageError

        async def opened() -> RunResult[Value]:
            async with self:
                return await self.run(
                    agent,
                    input,
                    namespace=namespace,
                    run_id=run_id,
                    labels=labels,
                    user=user,
                    history=history,
                    after=after,
                    check=check,
                )

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # as it should be; what fails below must not look like a consequence of it
        else:
            raise UsageError("run_sync cannot be called inside an event loop", hint="`await` it: `await rt.run(…)`")
        return asyncio.run(opened())

    @abstractmethod
    def stream(
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
    ) -> AsyncGenerator[Live]:
        """Run an agent and yield what happens: `Recorded` events, `Streamed` pieces of answers, `Output` of tools.

        The last event says how it ended, a failure too; `resume` with its `run_id` then gives the whole result. An
        existing run with this `run_id` is resumed, and its earlier events come first. Leaving the loop early stops the
        run on a runtime, and `resume` takes it up again; on a server it goes on. Wrap the stream in
        `contextlib.aclosing` to know when it was released. Raises as `run`.
        """

    @abstractmethod
    async def resume(self, run_id: str, *, agent: Agent[Value] | None = None, check: bool = True) -> RunResult[Value]:
        """Resume a run that was interrupted or waits; return its result when it ends or waits again.

        A run that has ended just gives its result; one that this process or the server drives already is waited for.
        `agent` is needed only on a runtime, when the model or the tools are Python objects that this runtime has not
        seen yet. Raises `NotFound`, `RunFailedError` if `check`; on a runtime `Held` when another process drives it.
        """
