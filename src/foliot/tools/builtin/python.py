"""`python`: code in the fence, with variables, imports and functions kept from call to call of one run.

Each run has one warm interpreter (interpreter.py) in a fence of its own, on the workspace of the run. It is ended with
everything in it when a call is cancelled, takes too long or breaks it, when its run ends or goes to another process,
when it has been idle for a while, and when another run needs its place. Whatever the reason, the first answer of the
next one says that the variables are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import struct
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from foliot.errors import NotFound
from foliot.sandbox.base import (
    MIB,
    WORKSPACE_FULL,
    Finished,
    Limits,
    Mount,
    SandboxError,
    SandboxProcess,
    SandboxSession,
    WorkspaceAccess,
)
from foliot.sandbox.interpreter import own_command, own_mount, system_interpreter
from foliot.sandbox.program import Tail
from foliot.tools.base import (
    Invocation,
    OnOutput,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
    ToolIsolationMissing,
)
from foliot.tools.builtin.arguments import object_schema, optional, text, whole_number
from foliot.tools.builtin.files import MOST_BYTES, encoded
from foliot.tools.builtin.journal import History, past_of
from foliot.tools.builtin.output import MOST_OF_FAILED, CommandFailed, CommandTimedOut, Heard, duration, tail_of
from foliot.tools.builtin.shell import LIMITS, LONGEST
from foliot.tools.declared_fences import agent_fence
from foliot.tools.fences import FenceRequest, Fences, Narrowed, fence_of
from foliot.tools.isolation import sandbox_failure
from foliot.tools.workspaces import DATA_NOTE, MAKE_DATA, FenceOwner, folder_identity, no_resident

# How many interpreters live at once.
MOST: Final = 8
IDLE_SECONDS: Final = 900.0
START_SECONDS: Final = 60.0
LARGEST_CODE: Final = 1024 * 1024
_LARGEST_ANSWER: Final = 1024 * 1024
_KEPT: Final = 256 * 1024
_LENGTH: Final = struct.Struct(">I")
_INSIDE: Final = Path(__file__).with_name("interpreter.py")
RESTARTED: Final = "[The interpreter was restarted{why}: variables, imports and functions of earlier calls are gone.]\n"


class _Answer(Struct, frozen=True):
    """The answer to one piece of code: the value of its last line, or the error."""

    value: str | None = None
    size: int = 0
    error: str | None = None


class _Interpreter:
    """One process in a fence of its own. `opened` is the fence as it was narrowed when it was opened."""

    def __init__(self, session: SandboxSession, process: SandboxProcess, opened: Narrowed) -> None:
        self.session = session
        self.process = process
        self._opened = opened
        where = session.policy.workspace
        self._folder = None if where is None else folder_identity(where)
        self._output = Tail("stdout", _KEPT, None)
        self._heard = Heard(None)
        self._mark = b""
        self.gone = no_resident
        self._read_all = asyncio.Event()
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @property
    def alive(self) -> bool:
        return self.session.alive and self.process.finished is None and not self.process.stdout.at_eof()

    def serves(self, found: Narrowed, access: WorkspaceAccess, folder: Path | None) -> bool:
        """Whether a call may use it whose fence would be this one, with this access to this folder."""
        same = self._opened == found and self.session.policy.workspace_access == access
        return self.alive and same and self._folder == (folder and folder_identity(folder))

    async def answer(self, limit: int = _LARGEST_ANSWER) -> dict[str, Any]:
        """Raises `IncompleteReadError` when it has ended, `ValueError` for what is no answer."""
        (size,) = _LENGTH.unpack(await self.process.stdout.readexactly(_LENGTH.size))
        if size > limit:
            raise ValueError(f"an answer of {size} bytes")
        found = json.loads(await self.process.stdout.readexactly(size))
        if not isinstance(found, dict):
            raise ValueError("an answer of another form")
        return found  # pyright: ignore[reportUnknownVariableType] - JSON

    async def run(self, code: str, on_output: OnOutput | None) -> _Answer:
        """Run code. Raises as `answer`. What it printed is in `printed`."""
        mark = f"\0foliot {secrets.token_hex(16)}\0"
        self._output, self._heard, self._mark = Tail("stdout", _KEPT, None), Heard(on_output), mark.encode()
        self._read_all.clear()
        data = json.dumps({"code": code, "mark": mark}).encode()
        self.process.stdin.write(_LENGTH.pack(len(data)) + data)
        with contextlib.suppress(ConnectionError):  # it has ended, which reading tells
            await self.process.stdin.drain()
        found = await self.answer()
        with contextlib.suppress(TimeoutError):  # code that closed its output leaves no mark
            async with asyncio.timeout(1.0):
                await self._read_all.wait()
        value, size, error = found.get("value"), found.get("size"), found.get("error")
        return _Answer(
            value if isinstance(value, str) else None,
            size if isinstance(size, int) else 0,
            error if isinstance(error, str) else None,
        )

    async def drained(self) -> None:
        """Wait for the rest of what a process that has ended printed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.wait([self._listening])

    def printed(self, most: int) -> str:
        """The end of what the code of the last call printed, as a model is shown it."""
        said = self._output.kept.decode("utf-8", "replace").removesuffix("\n")
        return tail_of(said, self._heard.lines, self._output.size, most=most, cut=self._output.truncated)

    async def end(self) -> None:
        self._listening.cancel()
        await self.session.close()
        self.gone()

    async def _listen(self) -> None:
        """Read what is printed, so that nothing is held back; what comes behind the mark belongs to the next call."""
        stream, held = self.process.stderr, b""
        while stream is not None and (data := await stream.read(65536)):
            data = held + data
            before, found, after = data.partition(self._mark) if self._mark else (data, b"", b"")
            held = b""
            if found:
                self._take(before)
                self._mark = b""
                self._read_all.set()
                data = after
            elif self._mark and (at := _cut_mark(data, self._mark)) is not None:
                data, held = data[:at], data[at:]
            self._take(data)
        self._read_all.set()

    def _take(self, data: bytes) -> None:
        if data:
            self._output.add(data)
            self._heard("stdout", data)


def _cut_mark(data: bytes, mark: bytes) -> int | None:
    """Finds the beginning of a mark at the end of `data`, of which the rest has not come yet."""
    at = data.rfind(mark[:1], max(0, len(data) - len(mark) + 1))
    while at >= 0:
        if mark.startswith(data[at:]):
            return at
        at = data.rfind(mark[:1], max(0, len(data) - len(mark) + 1), at)
    return None


class _Place:
    """The interpreter of one run, or none, and why the last one is gone. `served` is the last call that it had."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.interpreter: _Interpreter | None = None
        self.idle_since = 0.0
        self.gone = ""
        self.served: FenceOwner | None = None


class Interpreters:
    """The interpreters of all runs of one process. Belongs to one event loop."""

    def __init__(
        self, fences: Fences, history: History | None = None, *, most: int = MOST, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._fences = fences
        self._history = history
        self._most = most
        self._idle_seconds = idle_seconds
        # By run; the one that was used longest ago first.
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._free = asyncio.Condition()
        self._taken = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """How many interpreters there are, or are about to be."""
        return self._taken

    @property
    def runs(self) -> frozenset[str]:
        """The runs that have one here."""
        return frozenset(self._places)

    def lives(self, run_id: str) -> bool:
        """Whether the interpreter of a run is there."""
        return (place := self._places.get(run_id)) is not None and place.interpreter is not None

    async def run(
        self, call: Invocation, wanted: FenceRequest, code: str, seconds: int, on_output: OnOutput | None
    ) -> str:
        """Run code in the interpreter of the run that calls; returns what the model is shown.

        Raises `CommandFailed` for code that fails, `CommandTimedOut`, and as `Fences.open`.
        """
        if not call.run_id:  # outside of any run: nothing is kept
            alone = _Place()
            try:
                return await self._called(call, alone, wanted, code, seconds, on_output)
            finally:
                await self._ended(alone, "")
        while True:
            place = self._places.setdefault(call.run_id, _Place())
            async with place.turn:
                if self._places.get(call.run_id) is not place:
                    continue  # the run went to another process and came back meanwhile
                self._places.move_to_end(call.run_id)
                try:
                    return await self._called(call, place, wanted, code, seconds, on_output)
                finally:
                    await self._left(call.run_id, place)

    async def _left(self, run_id: str, place: _Place) -> None:
        place.idle_since = time.monotonic()
        if self._places.get(run_id) is not place:
            await self._ended(place, "")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)
        async with self._free:
            self._free.notify_all()

    def end(self, run_id: str) -> Coroutine[Any, Any, None]:
        """Forget the interpreter of a run at once; it has ended when what is returned was awaited."""
        return self._ended(self._places.pop(run_id, None) or _Place(), "")

    async def close(self) -> None:
        """End all of them."""
        if self._timer is not None:
            self._timer.cancel()
        for run_id in list(self._places):
            await self.end(run_id)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _called(
        self,
        call: Invocation,
        place: _Place,
        wanted: FenceRequest,
        code: str,
        seconds: int,
        on_output: OnOutput | None,
    ) -> str:
        owner, note = fence_of(call), ""
        place.served = owner
        found = await self._fences.narrowed(wanted, call.caller)
        if (used := place.interpreter) is not None:
            folder, access = await self._fences.workspace(found.request.workspace, owner)
            if not used.serves(found, access, folder):
                await self._ended(place, "" if used.alive else " because it had ended")
        if place.interpreter is None:
            if call.run_id and (place.gone or used is not None or await self._had_one(call)):
                note = RESTARTED.format(why=place.gone)
            await self._start(call, place, wanted)
        interpreter = place.interpreter
        assert interpreter is not None
        began = time.monotonic()
        try:
            async with self._fences.working(interpreter.session.policy, owner):
                answer = await self._asked(place, interpreter, code, seconds, on_output, note)
        except asyncio.CancelledError:
            await self._ended(place, " because a call was cancelled")
            raise
        took = duration(time.monotonic() - began)
        if answer.error is not None:
            shown = interpreter.printed(MOST_OF_FAILED - len(answer.error.encode()) - len(note))
            raise CommandFailed(f"python: the code failed\n{note}{shown}{answer.error.rstrip()}\n[error | {took}]")
        value = "" if answer.value is None else f"{answer.value}\n"
        if answer.value is not None and answer.size > len(answer.value):
            value += f"[The first {len(answer.value)} of {answer.size} characters]\n"
        return f"{note}{interpreter.printed(MOST_BYTES - len(value.encode()) - len(note))}{value}[ok | {took}]"

    async def _asked(
        self,
        place: _Place,
        interpreter: _Interpreter,
        code: str,
        seconds: int,
        on_output: OnOutput | None,
        note: str,
    ) -> _Answer:
        """The answer of an interpreter that goes on. One that does not is ended, and said to be."""
        bound = interpreter.session.policy.limits.seconds_of(seconds)
        try:
            async with asyncio.timeout(bound):
                return await interpreter.run(code, on_output)
        except TimeoutError:
            await self._ended(place, " because a call took too long")
            raise CommandTimedOut(
                f"python: the code took more than {bound:g} seconds. The interpreter was ended, and its variables are "
                f"gone.\n{note}{interpreter.printed(MOST_OF_FAILED)}"
            ) from None
        except (asyncio.IncompleteReadError, ValueError) as error:
            finished = await interpreter.process.kill()
            await interpreter.drained()
            await self._ended(place, " because the code ended it")
            how = _how(finished, interpreter.session.policy.limits)
            if isinstance(error, ValueError):
                how = "it wrote where only answers belong"
            raise CommandFailed(
                f"python: the interpreter was ended by its code: {how}. Its variables are gone.\n"
                f"{note}{interpreter.printed(MOST_OF_FAILED)}",
                exit_code=finished.exit_code,
                ended_by=finished.ended_by,
            ) from None

    async def _had_one(self, call: Invocation) -> bool:
        """Whether calls of this run, or of what it was forked from, have run code before, here or elsewhere."""
        if self._history is None:
            return False
        try:
            past = await past_of(self._history, call.run_id)
        except NotFound:
            return False
        return any(
            each.name == call.tool
            and each.id != call.call_id
            and (each.id in past.started or past.may_have_acted(each.id))
            for each in past.calls.values()
        )

    # --- places -------------------------------------------------------------------------------------------------------

    async def _start(self, call: Invocation, place: _Place, wanted: FenceRequest) -> None:
        await self._take_place()
        try:
            # Only now: while it waited for a place, other ceilings may have come to hold.
            place.interpreter = await self._started(call, place, await self._fences.narrowed(wanted, call.caller))
        except BaseException:
            await self._give_up_place()
            raise
        place.gone = ""

    async def _started(self, call: Invocation, place: _Place, found: Narrowed) -> _Interpreter:
        python, mounts = _python(found.request.backend)
        opened = replace(found, request=replace(found.request, parts=mounts))
        session = await self._fences.open_narrowed(opened, fence_of(call), serving=lambda: place.served)
        interpreter = None
        try:
            process = await session.start([*python, "-I", "-c", _INSIDE.read_text()])
            interpreter = _Interpreter(session, process, found)
            interpreter.gone = self._fences.resides(session.policy, fence_of(call), interpreter.end)
            async with asyncio.timeout(START_SECONDS):
                await interpreter.answer()
        except BaseException as error:
            problem = "it did not begin"
            if interpreter is not None and isinstance(error, asyncio.IncompleteReadError):
                await interpreter.drained()
                problem = interpreter.printed(2000).strip() or problem
            await (interpreter.end() if interpreter is not None else session.close())
            if isinstance(error, SandboxError):
                raise sandbox_failure(error) from None
            if isinstance(error, asyncio.IncompleteReadError | TimeoutError | ValueError):
                failure = ToolError(f"python: no interpreter could be started here: {problem}", retryable=False)
                failure.before_effect = True
                raise failure from None
            raise
        return interpreter

    async def _take_place(self) -> None:
        """Wait until there may be one more. One that is idle makes place: the one that was used longest ago."""
        async with self._free:
            while self._taken >= self._most:
                idle = next((one for one in self._places.values() if one.interpreter and not one.turn.locked()), None)
                if idle is None:
                    await self._free.wait()
                    continue
                self._end_soon(idle, " because other runs needed its place")
            self._taken += 1

    async def _give_up_place(self) -> None:
        self._taken -= 1
        async with self._free:
            self._free.notify_all()

    def _end_soon(self, place: _Place, why: str) -> asyncio.Task[None] | None:
        interpreter, place.interpreter, place.gone = place.interpreter, None, why
        if interpreter is None:
            return None
        self._taken -= 1
        task = asyncio.get_running_loop().create_task(interpreter.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _ended(self, place: _Place, why: str) -> None:
        if (ending := self._end_soon(place, why or place.gone)) is not None:
            await asyncio.shield(ending)  # who is cancelled once more leaves nothing half ended
            async with self._free:
                self._free.notify_all()

    def _end_idle(self) -> None:
        """End what has been idle for too long, and look again when the next may have."""
        now, self._timer, wait = time.monotonic(), None, None
        for place in self._places.values():
            if place.interpreter is None or place.turn.locked():
                continue
            left = place.idle_since + self._idle_seconds - now
            if left <= 0:
                self._end_soon(place, f" because it was idle for {duration(self._idle_seconds)}")
            else:
                wait = left if wait is None else min(wait, left)
        if wait is not None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._end_idle)


def _python(backend: str) -> tuple[list[str], tuple[Mount, ...]]:
    """The Python to start inside, and what must be shown for it: that of the image, of the system, or of the worker."""
    if backend != "process":
        return ["python3"], ()
    if (path := system_interpreter()) is not None:
        return [path], ()
    return own_command(), (own_mount(),)


def _how(finished: Finished, limits: Limits) -> str:
    if finished.ended_by == "memory":
        return f"it used more than {(limits.memory or 0) // MIB} MiB of memory"
    if finished.ended_by == "workspace":
        return WORKSPACE_FULL
    if finished.signal:
        names = {each.value: each.name for each in signal.Signals}
        return f"by the signal {names.get(finished.signal, finished.signal)}"
    return f"it ended with the code {finished.exit_code}"


class PythonTool:
    """One interpreter for each run."""

    data_note: ClassVar = f"{DATA_NOTE} {MAKE_DATA}"
    definition = ToolDefinition(
        name="python",
        description=(
            "Runs Python code inside a sandbox and shows the end of what it printed and the value of its last line. "
            "Variables, imports and functions are kept from call to call; when they are gone, the answer says so. "
            "Files are in /workspace, where bash sees them too. There is no network unless this agent was given one."
        ),
        schema=object_schema(
            {
                "code": text("The code. Its last line may be an expression, whose value is shown.", minLength=1),
                "timeout": optional(
                    "integer",
                    f"Seconds it may take; {LONGEST} at most. Then the interpreter is ended.",
                    minimum=1,
                    maximum=LONGEST,
                ),
            },
            ["code"],
        ),
        effect="once",
        repeats=True,
        category="inspect",
        risk="high",
        isolation="sandboxed",
        timeout=LONGEST + START_SECONDS + 10.0,
        breaker=False,
        resource_keys=("file:*",),
    )

    def __init__(self, interpreters: Interpreters | None = None, granted_mounts: Sequence[str] = ()) -> None:
        """`granted_mounts` are the folders of the machine that agents of others than the operator may show."""
        self._interpreters = interpreters
        self._mounts = granted_mounts
        self.isolation = "none" if interpreters is None else "sandboxed"

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolIsolationMissing` where nothing can be fenced, `CommandFailed`, `CommandTimedOut`."""
        code = call.arguments.get("code")
        if not isinstance(code, str) or not code.strip():
            raise ToolArgumentsInvalid("python: code is required", field="code")
        if len(data := encoded(code, "python")) > LARGEST_CODE:
            raise ToolArgumentsInvalid(f"python: code is {len(data)} bytes, more than {LARGEST_CODE}", field="code")
        if self._interpreters is None:
            missing = ToolIsolationMissing("python runs only in a sandbox, and there is none here", wanted="sandboxed")
            missing.before_effect = True
            raise missing
        seconds = whole_number(call, "timeout", LONGEST, least=1, most=LONGEST)
        wanted = agent_fence(call.caller, LIMITS, self._mounts)
        return await self._interpreters.run(call, wanted, code, seconds, on_output)
