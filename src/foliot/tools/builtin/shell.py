"""`bash`: a shell command in the workspace, inside a sandbox. Without a sandbox it is declared, offered and refused."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from typing import Any, Final

from foliot.sandbox.base import MIB, Finished, Limits, Sandbox, SandboxError, SandboxPolicy, Stream
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
    ToolIsolationMissing,
    ToolTimeout,
)
from foliot.tools.builtin.arguments import object_schema, optional, text, whole_number
from foliot.tools.builtin.files import MOST_BYTES, MOST_LINES
from foliot.tools.isolation import sandbox_failure
from foliot.tools.processes import outlives_call

LONGEST: Final = 120
# The message of a failed call is cut at 8,000 characters from its beginning: the end of the output has to be in it.
MOST_OF_FAILED: Final = 7_000
# So much is shown while it runs; whoever watches a flood learns no more from the rest of it.
MOST_SHOWN: Final = 64 * 1024
LIMITS: Final = Limits(memory=2048 * MIB, processes=256, output=256 * 1024, seconds=float(LONGEST))
TIMED_OUT: Final = 124


class CommandFailed(ToolError):
    """The command ended with a code that is not 0, or was ended. What it did before is done."""

    retryable = False


class CommandTimedOut(ToolTimeout):
    """The command took too long and was ended with all that it started, so it is known how it ended."""

    retryable = False
    lost = False


class Bash:
    """Each call has a sandbox of its own; the workspace is what they share."""

    definition = ToolDefinition(
        name="bash",
        description=(
            "Runs a shell command inside a sandbox and shows the end of what it printed, its exit code and how long it "
            "took. Files in /workspace are kept from call to call; /tmp, processes and variables are not. There is no "
            "network."
        ),
        schema=object_schema(
            {
                "command": text("The command, as for sh -c.", minLength=1),
                "timeout": optional("integer", f"Seconds it may take; {LONGEST} at most.", minimum=1, maximum=LONGEST),
            },
            ["command"],
        ),
        effect="once",
        category="inspect",
        operation_classes=("write",),
        risk="high",
        isolation="sandboxed",
        command_argument="command",
        timeout=LONGEST + 10.0,
        breaker=False,
        resource_keys=("file:*",),
    )

    def __init__(
        self, sandbox: Callable[[], Sandbox] | None = None, workspace: str | os.PathLike[str] | None = None
    ) -> None:
        self._sandbox = sandbox
        self._workspace = None if workspace is None else os.path.abspath(workspace)
        # The pipeline refuses a tool that does not run in the isolation which it declares.
        self.isolation = "none" if sandbox is None else "sandboxed"

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolIsolationMissing` where nothing can be fenced, `CommandFailed`, `CommandTimedOut`."""
        command = call.arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            raise ToolArgumentsInvalid("bash: command is required", field="command")
        if self._sandbox is None:
            missing = ToolIsolationMissing("bash runs only in a sandbox, and there is none here", wanted="sandboxed")
            missing.before_effect = True
            raise missing
        seconds = whole_number(call, "timeout", LONGEST, least=1, most=LONGEST)
        policy = SandboxPolicy(workspace=self._workspace, limits=LIMITS)
        heard = _Heard(on_output)
        try:
            session = await self._sandbox().open(policy)
        except SandboxError as error:
            raise sandbox_failure(error) from None
        try:
            with outlives_call():  # the sandbox itself ends what is started in it
                done = await session.exec(["sh", "-c", command], seconds=seconds, on_output=heard)
        except SandboxError as error:
            raise sandbox_failure(error) from None
        finally:
            await session.close()
        return _answer(done, heard, seconds)


class _Heard:
    """Counts lines, and passes on the beginning of what is printed as text."""

    def __init__(self, on_output: OnOutput | None) -> None:
        self._on_output = on_output
        self._left = MOST_SHOWN
        decoder = codecs.getincrementaldecoder("utf-8")
        self._texts = {"stdout": decoder("replace"), "stderr": decoder("replace")}
        self.lines = 0

    def __call__(self, stream: Stream, data: bytes) -> None:
        self.lines += data.count(b"\n")
        if self._on_output is None or self._left <= 0:
            return
        self._left -= len(data)
        if shown := self._texts[stream].decode(data):
            self._on_output(shown)


def _answer(done: Finished, heard: _Heard, seconds: int) -> str:
    """Returns what the model is shown of a command that succeeded. Raises `CommandFailed`, `CommandTimedOut`."""
    parts = [each.decode("utf-8", "replace") for each in (done.stdout, done.stderr) if each]
    output = "\n".join(part.removesuffix("\n") for part in parts)
    code = TIMED_OUT if done.ended_by == "timeout" else done.exit_code
    most = MOST_OF_FAILED if code else MOST_BYTES
    shown = _tail(output, heard.lines, done.stdout_size + done.stderr_size, most, cut=bool(done.truncated))
    shown += f"[exit:{code} | {duration(done.seconds)}]"
    if done.ended_by == "timeout":
        raise CommandTimedOut(f"bash: command timed out after {seconds} seconds\n{shown}", exit_code=code)
    if code == 0:
        return shown
    why = f"bash: exit code {code}"
    if done.ended_by == "memory":
        why += f": it was ended because it used more than {(LIMITS.memory or 0) // MIB} MiB of memory"
    elif done.ended_by:
        why = "bash: command aborted"
    raise CommandFailed(f"{why}\n{shown}", exit_code=code, ended_by=done.ended_by)


def _tail(output: str, count: int, size: int, most: int, *, cut: bool) -> str:
    """The last whole lines that fit, with a line above them that says how many there were. Ends with a line break."""
    if not output:
        return ""
    lines = output.split("\n")
    kept: list[str] = []
    room = most
    for line in reversed(lines[-MOST_LINES:]):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    if len(kept) == len(lines) and not cut:
        return f"{output}\n"
    if not kept:  # one line that does not fit: its end says more than nothing
        kept = [lines[-1].encode()[-most:].decode("utf-8", "ignore")]
    said = f"[The last {len(kept)} of {max(count, len(lines))} lines; {size} bytes in all"
    advice = "write to a file in /workspace and read it to see everything]"
    return "\n".join([f"{said}; {advice}", *reversed(kept)]) + "\n"


def duration(seconds: float) -> str:
    """Returns a length of time as people read it: µs, ms, seconds with one decimal, whole seconds."""
    if seconds < 0.001:
        return f"{round(seconds * 1e6)}µs"
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    return f"{seconds:.1f}s" if seconds < 60 else f"{round(seconds)}s"
