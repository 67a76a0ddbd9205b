"""`bash`: a shell command in the workspace, inside a fence. Without a sandbox it is declared, offered and refused.

A command with `background: true` becomes a job of its run, which goes on between calls: see jobs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from foliot.sandbox.base import MIB, WORKSPACE_FULL, Finished, Limits, SandboxError
from foliot.tools.base import Invocation, OnOutput, ToolArgumentsInvalid, ToolDefinition, ToolIsolationMissing
from foliot.tools.builtin.arguments import given, object_schema, optional, text, whole_number
from foliot.tools.builtin.files import MOST_BYTES
from foliot.tools.builtin.jobs import JOB_SECONDS, LONGEST_JOB, Jobs
from foliot.tools.builtin.output import (
    MOST_OF_FAILED,
    TIMED_OUT,
    CommandFailed,
    CommandTimedOut,
    Heard,
    duration,
    tail_of,
)
from foliot.tools.declared_fences import AGENT_LIMITS, agent_fence
from foliot.tools.fences import Fences, fence_of
from foliot.tools.isolation import sandbox_failure
from foliot.tools.workspaces import DATA_NOTE, MAKE_DATA

LONGEST: Final = 120
LIMITS: Final = replace(AGENT_LIMITS, seconds=float(LONGEST))


class Bash:
    """Each call has a fence of its own; the workspace of the run is what they share."""

    data_note: ClassVar = f"{DATA_NOTE} {MAKE_DATA}"
    definition = ToolDefinition(
        name="bash",
        description=(
            "Runs a shell command inside a sandbox and shows the end of what it printed, its exit code and how long it "
            "took. Files in /workspace are kept from call to call; /tmp, processes and variables are not. There is no "
            "network unless this agent was given one. With background: true it goes on while you do other things; look "
            "after it with the tool job."
        ),
        schema=object_schema(
            {
                "command": text("The command, as for sh -c.", minLength=1),
                "timeout": optional(
                    "integer",
                    f"Seconds it may take: up to {LONGEST}, with background: true {LONGEST_JOB}. More is refused.",
                    minimum=1,
                    maximum=LONGEST_JOB,
                ),
                "background": optional("boolean", "Start it and answer at once with the id of a job."),
            },
            ["command"],
        ),
        effect="once",
        repeats=True,
        category="inspect",
        risk="high",
        isolation="sandboxed",
        command_argument="command",
        timeout=LONGEST + 10.0,
        breaker=False,
        resource_keys=("file:*",),
    )

    def __init__(
        self, fences: Fences | None = None, jobs: Jobs | None = None, granted_mounts: Sequence[str] = ()
    ) -> None:
        """`granted_mounts` are the folders of the machine that agents of others than the operator may show."""
        self._fences = fences
        self._jobs = jobs
        self._mounts = granted_mounts
        # The pipeline refuses a tool that does not run in the isolation which it declares.
        self.isolation = "none" if fences is None else "sandboxed"

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolIsolationMissing` where nothing can be fenced, `CommandFailed`, `CommandTimedOut`."""
        command = call.arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            raise ToolArgumentsInvalid("bash: command is required", field="command")
        if self._fences is None:
            missing = ToolIsolationMissing("bash runs only in a sandbox, and there is none here", wanted="sandboxed")
            missing.before_effect = True
            raise missing
        if given(call, "background", False) is True:
            return await self._begun(call, command)
        seconds = whole_number(call, "timeout", LONGEST, least=1, most=LONGEST_JOB)
        if seconds > LONGEST:
            raise ToolArgumentsInvalid(
                f"bash: timeout is {seconds}, and a command may take {LONGEST} seconds without background: true",
                hint=f"start it with background: true, which may take {LONGEST_JOB} seconds, or give a shorter timeout",
                field="timeout",
            )
        heard = Heard(on_output)
        async with self._fences.opened(agent_fence(call.caller, LIMITS, self._mounts), fence_of(call)) as session:
            try:
                done = await session.exec(["sh", "-c", command], seconds=seconds, on_output=heard)
            except SandboxError as error:
                raise sandbox_failure(error) from None
            limits = session.policy.limits
        return _answer(done, heard, limits.seconds_of(seconds), limits)

    async def _begun(self, call: Invocation, command: str) -> str:
        if self._jobs is None or not call.run_id:
            raise ToolArgumentsInvalid(
                "bash: a background job belongs to a run, and this call is made outside of any", field="background"
            )
        seconds = whole_number(call, "timeout", JOB_SECONDS, least=1, most=LONGEST_JOB)
        fence = agent_fence(call.caller, AGENT_LIMITS, self._mounts)
        job = await self._jobs.start(call, fence, command, float(seconds))
        return f"Started {job.id}. It may take {job.bound:g} seconds, and ends with this run at the latest."


def _answer(done: Finished, heard: Heard, seconds: float | None, limits: Limits) -> str:
    """Returns what the model is shown of a command that succeeded. Raises `CommandFailed`, `CommandTimedOut`."""
    parts = [each.decode("utf-8", "replace") for each in (done.stdout, done.stderr) if each]
    output = "\n".join(part.removesuffix("\n") for part in parts)
    code = TIMED_OUT if done.ended_by == "timeout" else done.exit_code
    most = MOST_OF_FAILED if code else MOST_BYTES
    shown = tail_of(output, heard.lines, done.stdout_size + done.stderr_size, most=most, cut=bool(done.truncated))
    shown += f"[exit:{code} | {duration(done.seconds)}]"
    if done.ended_by == "timeout":
        raise CommandTimedOut(f"bash: command timed out after {seconds:g} seconds\n{shown}", exit_code=code)
    if code == 0:
        return shown
    why = f"bash: exit code {code}"
    if done.ended_by == "memory":
        why += f": it was ended because it used more than {(limits.memory or 0) // MIB} MiB of memory"
    elif done.ended_by:
        why = f"bash: {WORKSPACE_FULL}" if done.ended_by == "workspace" else "bash: command aborted"
    raise CommandFailed(f"{why}\n{shown}", exit_code=code, ended_by=done.ended_by)
