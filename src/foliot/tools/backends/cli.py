"""Command line tools: a program in a sandbox of its own for each call, with arguments that no shell reads.

`spec.cli` of the Tool says the command, what is on standard input and what the output is, `spec.sandbox` the fence.
Without a word there is no network and no workspace; a credential is never inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from foliot.errors import InvalidInput
from foliot.resources.command_template import filled_command, filled_input
from foliot.sandbox.base import MIB, WORKSPACE_FULL, Finished, Limits, SandboxError, SandboxStartFailed
from foliot.tools.base import (
    Caller,
    Invocation,
    OnOutput,
    ToolAnswerLost,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolPolicyInvalid,
    before_effect,
)
from foliot.tools.builtin.output import CommandFailed, CommandTimedOut
from foliot.tools.contract import ToolResponse, normalise_response, request_id, request_of
from foliot.tools.fences import FenceRequest, Fences, fence_of
from foliot.tools.isolation import IsolatedCall, Isolation, no_credential, sandbox_failure
from foliot.tools.workspaces import FenceOwner

# How much of what a failed program said is shown.
TAIL: Final = 4_000
SLACK: Final = 5.0


class CliTool:
    """A `Tool` whose calls are programs."""

    def __init__(self, definition: ToolDefinition, isolation: Isolation) -> None:
        self._definition = definition
        self._fence = isolation
        self.isolation = isolation.mode

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolArgumentsInvalid`, `CommandFailed`, `CommandTimedOut`, `ToolIsolationMissing`."""
        definition = self._definition
        request = structs.replace(request_of(call, definition, mode="cli", id=request_id("cli", call)), input_raw="")
        seconds = definition.attempt_timeout or definition.timeout
        response = await self._fence.execute(
            IsolatedCall(definition, request, seconds=seconds, owner=fence_of(call)), on_output=on_output
        )
        return response.output["result"]


class CliFence:
    """Runs the programs of command line tools, of those that declare its `mode`."""

    def __init__(self, fences: Callable[[], Fences], mode: str = "sandboxed") -> None:
        self._fences = fences
        self.mode = mode

    def check(self, definition: ToolDefinition) -> None:
        """Raises `ToolPolicyInvalid` for a tool that needs a credential."""
        if not definition.options.get("cli"):
            raise ToolPolicyInvalid(f"the tool {definition.name!r} names no command", field="spec.cli")
        no_credential(definition)

    async def execute(self, call: IsolatedCall, *, on_output: OnOutput | None = None) -> ToolResponse:
        """Run the program to its end; see `Isolation`."""
        definition, fences = call.definition, self._fences()
        arguments = call.request.input or {}
        with before_effect():
            self.check(definition)
            spec: Mapping[str, Any] = definition.options["cli"]
            try:
                argv = filled_command(spec["command"], arguments)
            except InvalidInput as error:
                raise ToolArgumentsInvalid(error.message, **error.details) from None
            given = filled_input(spec.get("stdin", ""), arguments)
        wanted: FenceRequest = definition.options["sandbox"]
        owner = call.owner or FenceOwner(definition.name, Caller(definition.namespace))
        found = await fences.narrowed(wanted, owner.caller)
        try:
            async with fences.entered(found, owner) as session:
                policy = session.policy
                if found.request.workspace != "none" and not policy.shows_workspace:
                    raise _no_workspace(definition)
                # Who calls has the bound that counts, and cancels; this one is for a caller that does not.
                bound = None if call.seconds is None else call.seconds + SLACK
                done = await session.exec(argv, stdin=given, seconds=bound)
        except SandboxError as error:
            failure = sandbox_failure(error)
            failure.before_effect = failure.before_effect or isinstance(error, SandboxStartFailed)
            raise failure from None
        result = _result(done, spec.get("output", "text"), argv[0], policy.limits)
        return normalise_response(ToolResponse(status="ok", output={"result": result}), call.request)

    async def close(self) -> None:
        """Do nothing: each call has ended what it started."""


def _no_workspace(definition: ToolDefinition) -> ToolPolicyInvalid:
    missing = ToolPolicyInvalid(
        f"the tool {definition.name!r} works on the workspace, and there is none for this call",
        hint="call it in a run of an agent that may use its workspace, or set FOLIOT_WORKSPACE",
        field="spec.sandbox.workspace",
    )
    missing.before_effect = True
    return missing


def _result(done: Finished, form: str, program: str, limits: Limits) -> Any:
    """The value of a program that succeeded. Raises `CommandFailed`, `CommandTimedOut`, `ToolAnswerLost`."""
    if done.ended_by == "timeout":
        raise CommandTimedOut(f"{program} took more than {done.seconds:.0f} seconds, and was ended{_said(done)}")
    if done.exit_code or done.ended_by:
        why = f"ended with the code {done.exit_code}"
        if done.ended_by == "memory":
            why = f"was ended because it used more than {(limits.memory or 0) // MIB} MiB of memory"
        elif done.ended_by:
            why = f"was ended: {WORKSPACE_FULL}" if done.ended_by == "workspace" else "was ended"
        raise CommandFailed(f"{program} {why}{_said(done)}", exit_code=done.exit_code, ended_by=done.ended_by)
    if form == "json":
        if "stdout" in done.truncated:
            raise ToolAnswerLost(f"{program} printed {done.stdout_size:,} bytes, which is too much", retryable=False)
        try:
            return msgspec.json.decode(done.stdout)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ToolAnswerLost(f"{program} did not print JSON: {error}", retryable=False) from None
    text = done.stdout.decode("utf-8", "replace")
    if "stdout" in done.truncated:
        return f"[The last {len(done.stdout):,} of {done.stdout_size:,} bytes]\n{text}"
    return text


def _said(done: Finished) -> str:
    """The end of what it printed on standard error, or else on standard output."""
    said = (done.stderr.strip() or done.stdout.strip())[-TAIL:].decode("utf-8", "replace")
    return f":\n{said}" if said else ""
