"""Jobs: commands that go on between the calls of their run, and `job`, the tool that looks after them.

A job has a fence of its own and belongs to the run that started it: no other run sees it. It ends by itself, by its
time limit, by `job kill`, when its run ends or goes to another process, and when this process dies. Of what it prints
the end is kept in memory.

The call that starts a job is a `once` effect, and its journal is what remembers jobs: one that it knows and this
process does not is listed as `lost`. The id of a job is made of the id of that call.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from foliot.errors import NotFound
from foliot.kernel.messages import ToolCall
from foliot.sandbox.base import WORKSPACE_FULL, Finished, SandboxError, SandboxSession, Stream
from foliot.sandbox.program import Tail
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolRateLimited,
)
from foliot.tools.builtin.arguments import object_schema, optional, optional_text, text, whole_number
from foliot.tools.builtin.journal import History, past_of
from foliot.tools.builtin.output import TIMED_OUT, duration, tail_of
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.declared_fences import AGENT_LIMITS
from foliot.tools.fences import FenceRequest, Fences, fence_of

JOB_SECONDS: Final = 600
LONGEST_JOB: Final = int(AGENT_LIMITS.seconds or 0)
# How many run at once: in all, and of one run.
MOST: Final = 64
MOST_OF_ONE: Final = 8
# How many that have ended are kept with their output, of one run and in all. The journal knows the older ones.
MOST_ENDED: Final = 16
MOST_ENDED_IN_ALL: Final = 256
# How much of its output is kept, of both streams together.
KEPT: Final = 128 * 1024
LONGEST_COMMAND: Final = 200
LONGEST_WAIT: Final = 120
LOST: Final = "its process, or its worker, has ended or lost the run; whether it got to its end is not known"


class Job:
    """One command that was started in the background. It is ended after `bound` seconds."""

    def __init__(self, id: str, command: str, session: SandboxSession, bound: float) -> None:
        self.id = id
        self.command = command
        self.session = session
        self.bound = bound
        self.began = time.monotonic()
        self.output = Tail("stdout", KEPT, None)
        self.lines = 0
        self.finished: Finished | None = None
        self.problem = ""
        self.running: asyncio.Task[None] | None = None
        # Whether its command runs, and whether it is to be ended: so it is cancelled once, and not while it cleans up.
        self.executing = False
        self.ending = False

    def heard(self, stream: Stream, data: bytes) -> None:
        """Keep a piece of output, in the order in which it came."""
        self.lines += data.count(b"\n")
        self.output.add(data)

    @property
    def status(self) -> str:
        """running, done, failed, timed_out or killed."""
        if self.running is not None and not self.running.done():
            return "running"
        if self.finished is None:
            return "failed"
        if self.finished.ended_by in ("killed", "cancelled", "workspace"):
            return "killed"
        if self.finished.ended_by == "timeout":
            return "timed_out"
        return "failed" if self.finished.exit_code else "done"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began if self.finished is None else self.finished.seconds

    @property
    def exit_code(self) -> int | None:
        if self.finished is None:
            return None
        return TIMED_OUT if self.finished.ended_by == "timeout" else self.finished.exit_code

    def shown(self) -> str:
        """The end of what it has printed so far, and how it stands."""
        printed = self.output.kept.decode("utf-8", "replace").removesuffix("\n")
        tail = tail_of(printed, self.lines, self.output.size, cut=self.output.truncated)
        how = self.status
        if how in ("done", "failed", "timed_out"):
            how = f"exit:{self.exit_code}" if self.finished is not None else f"failed: {self.problem}"
        if self.finished is not None and self.finished.ended_by == "memory":
            how += ", it used too much memory"
        if self.finished is not None and self.finished.ended_by == "workspace":
            how += f": {WORKSPACE_FULL}"
        return f"{tail}[{how} | {duration(self.seconds)}]"


class Jobs:
    """The jobs of all runs of one process. Belongs to one event loop."""

    def __init__(self, fences: Fences, *, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._fences = fences
        self._most = most
        self._most_of_one = most_of_one
        self._of_runs: dict[str, dict[str, Job]] = {}
        # Those that are about to start, by run: their places are taken.
        self._starting: dict[str, set[str]] = {}

    def of(self, run_id: str) -> Sequence[Job]:
        """The jobs of a run that this process knows, in the order in which they began."""
        return list(self._of_runs.get(run_id, {}).values())

    def starting(self, run_id: str) -> frozenset[str]:
        """The ids of jobs of a run that are about to start."""
        return frozenset(self._starting.get(run_id, ()))

    @property
    def runs(self) -> frozenset[str]:
        """The runs that have jobs here."""
        return frozenset(self._of_runs)

    async def start(self, call: Invocation, wanted: FenceRequest, command: str, seconds: float) -> Job:
        """Start a command as a job of the run that calls. It may take so many seconds, or fewer if its fence says so.

        Raises `ToolRateLimited` when there are as many as may be, and as `Fences.open`.
        """
        run_id, owner, id = call.run_id, fence_of(call), job_id(call.call_id)
        self._check_room(run_id)
        starting = self._starting.setdefault(run_id, set())
        starting.add(id)
        try:
            session = await self._fences.open(wanted, owner)
            job = Job(id, command, session, session.policy.limits.seconds_of(seconds) or seconds)
            job.running = asyncio.create_task(self._run(job))
            self._of_runs.setdefault(run_id, {})[id] = job
        finally:
            starting.discard(id)
            if not starting:
                self._starting.pop(run_id, None)
        self._forget_oldest(run_id)
        try:
            # The call is over: from now on the job works on the folder beside the calls that follow.
            gone = self._fences.resides(session.policy, owner, partial(_end, job), firm=True)
            job.running.add_done_callback(lambda _: gone())
            await self._fences.changed(session.policy, owner)
        except BaseException:
            await _end(job)
            raise
        return job

    async def kept(self, call: Invocation, job: Job) -> None:
        """Keep what a job has changed in the workspace by now. Raises as `WorkspaceFolders.changed`."""
        owner = fence_of(call)
        await self._fences.workspace(job.session.policy.workspace_access, owner)
        await self._fences.changed(job.session.policy, owner)

    async def kill(self, run_id: str, id: str) -> None:
        """End a job with all that it started. One that has ended stays as it is."""
        job = self._of_runs.get(run_id, {}).get(id)
        if job is not None:
            await _end(job)

    def end(self, run_id: str) -> Coroutine[Any, Any, None]:
        """Forget all jobs of a run at once; they have ended when what is returned was awaited."""
        return _end_all(self._of_runs.pop(run_id, {}).values())

    async def close(self) -> None:
        """End all jobs."""
        await asyncio.gather(*(self.end(run_id) for run_id in list(self._of_runs)))

    async def _run(self, job: Job) -> None:
        """Run the command to its end. Whatever happens, its fence is closed, and how it ended is known."""
        try:
            job.executing = True
            if job.ending:
                raise asyncio.CancelledError
            done = await job.session.exec(["sh", "-c", job.command], seconds=job.bound, on_output=job.heard)
            # The end of both streams is kept in the order in which it came; once is enough.
            job.finished = replace(done, stdout=b"", stderr=b"")
        except SandboxError as error:
            job.problem = error.message
        except asyncio.CancelledError:  # by `_end`
            job.finished = Finished(137, 9, seconds=job.seconds, ended_by="killed")
        finally:
            job.executing = False
            job.output.trim()
            if job.finished is None and not job.problem:
                job.problem = "it broke off"
            await job.session.close()

    def _check_room(self, run_id: str) -> None:
        running = {each: sum(job.status == "running" for job in jobs.values()) for each, jobs in self._of_runs.items()}
        of_run = running.get(run_id, 0) + len(self._starting.get(run_id, ()))
        if of_run >= self._most_of_one:
            raise ToolRateLimited(
                f"bash: {of_run} jobs of this run are running, and more are not allowed",
                hint="wait for one with `job`, or kill it",
                retryable=False,
            )
        if sum(running.values()) + sum(map(len, self._starting.values())) >= self._most:
            raise ToolRateLimited(
                f"bash: this worker runs {self._most} jobs, and more are not allowed",
                hint="run the command without background, or try again later",
                retryable=False,
            )

    def _forget_oldest(self, run_id: str) -> None:
        jobs = self._of_runs.get(run_id, {})
        ended = [job.id for job in jobs.values() if job.status != "running"]
        for id in ended[: max(0, len(ended) - MOST_ENDED)]:
            del jobs[id]
        over = [(each, job) for each, jobs in self._of_runs.items() for job in jobs.values() if job.status != "running"]
        for each, job in sorted(over, key=lambda found: found[1].began)[: max(0, len(over) - MOST_ENDED_IN_ALL)]:
            del self._of_runs[each][job.id]
            if not self._of_runs[each]:
                del self._of_runs[each]


async def _end_all(jobs: Iterable[Job]) -> None:
    await asyncio.gather(*map(_end, jobs))


async def _end(job: Job) -> None:
    if job.running is not None and not job.running.done():
        if job.executing and not job.ending:
            job.running.cancel()
        job.ending = True
        await asyncio.wait([job.running])


def job_id(call_id: str) -> str:
    """The id of the job that a call starts. It is made of the call's own, so that the journal alone tells it."""
    return f"job_{hashlib.sha256(call_id.encode()).hexdigest()[:8]}"


class KnownJob(Struct, frozen=True, omit_defaults=True):
    """One job as it is listed. `exit_code` and the rest only where they are known."""

    id: str
    status: str
    command: str
    seconds: float | None = None
    exit_code: int | None = None
    output_bytes: int = 0
    note: str = ""


class JobTool:
    """`list` and `output` read, `wait` does no more, and to kill what is killed changes nothing."""

    definition = ToolDefinition(
        name="job",
        description=(
            "Looks after commands that bash started in the background. list: all jobs of this run. output: the end of "
            "what one has printed so far. wait: the same once it has ended, or when the seconds are over. kill: ends "
            "it with all that it started. A job that is lost ended with its worker: look at the files before you "
            "start it again."
        ),
        schema=object_schema(
            {
                "action": text("What to do.", enum=["list", "output", "wait", "kill"]),
                "id": optional("string", "The id of the job; for all actions but list."),
                "seconds": optional(
                    "integer", f"How long to wait; 30 when not given, {LONGEST_WAIT} at most.", minimum=1
                ),
            },
            ["action"],
        ),
        effect="idempotent",
        repeats=True,
        category="inspect",
        timeout=LONGEST_WAIT + 10.0,
        breaker=False,
        resource_keys=("job:*",),
    )

    def __init__(self, jobs: Jobs | None, history: History | None) -> None:
        self._jobs = jobs
        self._history = history

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolNothingThere` for a job that this run does not have."""
        action = call.arguments.get("action")
        if action not in ("list", "output", "wait", "kill"):
            raise ToolArgumentsInvalid("job: action must be list, output, wait or kill", field="action")
        if not call.run_id:
            raise ToolArgumentsInvalid("job: jobs belong to a run, and this call is made outside of any")
        if action == "list":
            return {"jobs": [msgspec.to_builtins(job) for job in await self._listed(call.run_id)]}
        id = optional_text(call, "id")
        if not id:
            raise ToolArgumentsInvalid(f"job: id is required to {action}", field="id")
        job = next((each for each in self._here(call.run_id) if each.id == id), None)
        if job is None or self._jobs is None:
            return await self._gone(call.run_id, id)
        if action == "kill":
            await self._jobs.kill(call.run_id, id)
        elif action == "wait" and job.running is not None:
            seconds = whole_number(call, "seconds", 30, least=1, most=LONGEST_WAIT)
            await asyncio.wait([job.running], timeout=seconds)
        await self._jobs.kept(call, job)
        return job.shown()

    def _here(self, run_id: str) -> Sequence[Job]:
        return () if self._jobs is None else self._jobs.of(run_id)

    async def _listed(self, run_id: str) -> list[KnownJob]:
        """Lists all jobs of a run. One that the journal knows and this process does not is lost."""
        starting = self._jobs.starting(run_id) if self._jobs is not None else ()
        here = {id: KnownJob(id, "starting", "") for id in starting}
        here |= {job.id: _known(job) for job in self._here(run_id)}
        found = [
            here.pop(id, None) or KnownJob(id, "lost", _cut(command), note=LOST)
            for id, command in (await self._recorded(run_id)).items()
        ]
        return [*found, *here.values()]

    async def _recorded(self, run_id: str) -> dict[str, str]:
        """The jobs that calls of the run have started, or may have, by the journal: id and command."""
        if self._history is None:
            return {}
        try:
            past = await past_of(self._history, run_id)
        except NotFound:
            return {}
        found: dict[str, str] = {}
        for call in past.calls.values():
            if (command := background_command(call)) is not None and past.may_have_acted(call.id):
                found[job_id(call.id)] = command
        return found

    async def _gone(self, run_id: str, id: str) -> str:
        recorded = await self._recorded(run_id)
        if id not in recorded:
            raise ToolNothingThere(f"job: this run has no job {id!r}", id=id)
        return f"[lost: {LOST}] {_cut(recorded[id])}"


def background_command(call: ToolCall) -> str | None:
    """The command that a call of `bash` starts in the background; None for any other call."""
    if call.name != "bash":
        return None
    try:
        arguments = msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    command = arguments.get("command")
    return command if arguments.get("background") is True and isinstance(command, str) else None


def _known(job: Job) -> KnownJob:
    return KnownJob(
        job.id, job.status, _cut(job.command), round(job.seconds, 1), job.exit_code, job.output.size, job.problem
    )


def _cut(command: str) -> str:
    return command if len(command) <= LONGEST_COMMAND else f"{command[:LONGEST_COMMAND]}…"
