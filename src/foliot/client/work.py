"""The verbs on tasks, runs and approvals: `LocalWork` on a runtime in this process, `RemoteWork` on a server.

Both tell the same stories from the same facts; nothing in `cli/` can tell them apart. What follows from a verb happens
where the store is: a run that an answer lets go on is taken up by the workers there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from foliot.client.run_state import Replayed, RunStanding
from foliot.engine.approval.questions import OpenQuestion
from foliot.engine.approval.service import Decision
from foliot.engine.explain.why import Explanation
from foliot.kernel.run.events import Event
from foliot.store.base import Document
from foliot.store.journal.base import Phase, RunInfo
from foliot.store.ledger.doubts import DoubtPage
from foliot.tools.builtin.results import CallResult, ResultPage
from foliot.work.tasks.base import Accepted, Command, TaskInfo, TaskRecord
from foliot.work.views.events import Batch
from foliot.work.views.story import TaskStory
from foliot.work.views.why import TaskExplanation

Settled: TypeAlias = Literal["happened", "run", "fail", "not_happened"]
"""The words that settle a call which may have acted; the last one once its run has ended."""


class Answered(Struct, frozen=True):
    """A decision that was taken: the approval as it is now, and the run that goes on with it."""

    document: Document
    run_id: str


class Work(Protocol):
    # --- tasks ---------------------------------------------------------------------------------------------------

    async def submit(self, command: Command) -> Accepted:
        """Have something done. Durable on return. Raises `InvalidInput`, `NotFound` (the target), `Conflict`."""
        ...

    async def task(self, namespace: str, name: str) -> TaskInfo:
        """Raises `NotFound`."""
        ...

    async def find_task(self, namespace: str, word: str) -> TaskInfo:
        """The task of this name, or the only one that begins or ends so. Raises `NotFound`, `InvalidInput`."""
        ...

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
        """Newest first, and the cursor of the next page."""
        ...

    async def cancel_task(self, namespace: str, name: str, *, by: str = "", reason: str = "") -> TaskInfo: ...

    async def archive_task(self, namespace: str, name: str, *, by: str = "") -> TaskInfo: ...

    async def requeue_task(
        self, namespace: str, name: str, *, by: str = "", payloads: dict[str, str] | None = None
    ) -> TaskInfo: ...

    async def delete_task(self, namespace: str, name: str) -> None: ...

    async def story(self, namespace: str, name: str, *, looks: bool = True) -> TaskStory:
        """A task as it stands. `looks`: into the journals of its live runs as well. Raises `NotFound`."""
        ...

    async def records(self, namespace: str, name: str, *, after: int = 0) -> list[TaskRecord]:
        """The facts of the task itself behind `after`."""
        ...

    async def happenings(self, namespace: str, name: str, *, cursor: str | None = None) -> Batch:
        """What has happened behind the cursor, to the task and its runs. Returns at once."""
        ...

    def follow(self, namespace: str, name: str, *, cursor: str | None = None) -> AsyncGenerator[Batch]:
        """As `happenings`, and on until the task has ended: each fact once, whatever breaks in between."""
        ...

    async def changed(self, namespace: str, name: str, *, cursor: str | None, timeout: float) -> None:
        """Return when something may have happened behind the cursor, or after `timeout` seconds."""
        ...

    async def why_task(self, namespace: str, name: str) -> TaskExplanation: ...

    # --- runs ----------------------------------------------------------------------------------------------------

    async def runs(
        self,
        *,
        namespace: str | None = None,
        agent: str | None = None,
        phases: Sequence[Phase] = (),
        limit: int = 50,
    ) -> list[RunInfo]:
        """Newest first, the summaries of those under way folded anew."""
        ...

    async def find_run(self, word: str) -> RunInfo:
        """The run of this id, or the only one that begins so. Raises `NotFound`, `Conflict` with the candidates."""
        ...

    async def facts(self, run_id: str) -> list[tuple[float, Event]]:
        """What happened in a run, with when. Raises `NotFound`."""
        ...

    async def results(self, run_id: str) -> list[CallResult]:
        """List the results of a run's calls, in their order. Raises `NotFound`."""
        ...

    async def result(self, run_id: str, call_id: str, *, offset: int = 0) -> ResultPage:
        """A page of what a call gave, also of what was cut. Raises `NotFound`."""
        ...

    async def why_run(self, run_id: str) -> Explanation: ...

    async def standing(self, run_id: str) -> RunStanding:
        """How a run stands, and what it has done so far. Raises `NotFound`."""
        ...

    async def interrupted(self, namespace: str | None = None) -> list[RunInfo]:
        """Runs outside of tasks that could go on and that nobody drives, oldest first."""
        ...

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
        """Say what became of a call that may have acted, by its id or the name of its tool.

        `run` and `fail` are for a run that waits, `not_happened` for one that has ended. Raises `NotFound`, `Conflict`
        when there is none such, or several.
        """
        ...

    async def unknown_calls(
        self, namespace: str | None = None, *, ended: bool = False, limit: int = 100, after: str | None = None
    ) -> DoubtPage:
        """Calls that may have acted and that nobody has settled, oldest first. `ended`: of runs that have ended.

        `after` is the `cursor` of the page before. Raises `InvalidInput`.
        """
        ...

    async def replay_run(self, run_id: str) -> Replayed:
        """Decide a whole run again from its journal, where that is, and compare byte for byte. Raises `NotFound`."""
        ...

    async def cancel_run(self, run_id: str, *, by: str = "", reason: str = "") -> RunInfo: ...

    # --- what people are asked -----------------------------------------------------------------------------------

    async def approvals(self, namespace: str | None = None, *, run: str | None = None) -> list[Document]: ...

    async def approval(self, word: str, *, namespace: str) -> Document:
        """Finds an approval by its name, or the beginning of it. Raises `NotFound`, `Conflict`."""
        ...

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
        """Decide about a parked call. Raises `Conflict` when somebody was faster, `Denied`, `InvalidInput`."""
        ...

    async def grant(self, *, by: str, tool: str, seconds: float, namespace: str, **scope: Any) -> Document: ...

    async def revoke(self, name: str, *, by: str, namespace: str) -> Document: ...

    async def questions(self, namespace: str | None = None) -> list[OpenQuestion]:
        """What runs ask people."""
        ...

    async def answer(self, run_id: str, call: str | None, text: str, *, by: str = "") -> str:
        """Answer what a run asks; the id of the run. Raises `Conflict`, `NotFound`, `InvalidInput`."""
        ...
