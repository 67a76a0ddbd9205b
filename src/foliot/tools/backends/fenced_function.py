"""Python functions in a fence: each tool has processes of its own, which stay warm from call to call.

A process serves one call at a time. It is ended with everything in it when a call is cancelled, takes too long or
breaks it, after a number of calls, and when it has been idle for a while. What the code keeps in its module is there
for later calls of the same tool that the same process happens to serve, and for no other tool; what it left running
there can see them.

Inside are the interpreter, the installed packages, Foliot itself, and of the folder that the module lies in the Python
files and packages: nothing else of it, no environment of ours, and no workspace and no network unless `spec.sandbox`
says so. No credential goes inside. In a container the interpreter and Foliot are those of the image.

A process stays warm only for callers of one namespace whose ceilings leave the same fence. Its connections to the
network end with the call that made them, so while it serves no call nothing leaves it. One that sees a workspace serves
one call: the files are those of that run, as they are then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from foliot.common.threads import on_thread
from foliot.kernel.messages import Media, Text
from foliot.sandbox.base import MIB, WORKSPACE_FULL, Limits, Mount, SandboxError, SandboxProcess, SandboxSession
from foliot.sandbox.bubblewrap import SYSTEM
from foliot.sandbox.session import undisturbed
from foliot.tools.backends.function_worker import LARGEST, LENGTH, MARKS, READY
from foliot.tools.base import (
    Caller,
    Invocation,
    OnOutput,
    ToolAnswerLost,
    ToolArgumentsInvalid,
    ToolDefinition,
    ToolError,
    ToolPolicyInvalid,
    ToolTimeout,
    before_effect,
)
from foliot.tools.contract import (
    ToolResponse,
    decode_response,
    encode_request,
    request_id,
    request_of,
    response_error,
)
from foliot.tools.fences import FenceRequest, Fences, Narrowed, fence_of, lies_in
from foliot.tools.isolation import IsolatedCall, Isolation, no_credential, sandbox_failure
from foliot.tools.workspaces import FenceOwner

# How many processes there are at once: in all, and for one tool.
MOST: Final = 8
MOST_OF_ONE: Final = 4
# After so many calls a process makes place for a new one, so that what leaks does not add up.
MOST_CALLS: Final = 1_000
IDLE_SECONDS: Final = 300.0
# Importing a module may take long, above all when many do so at once.
START_SECONDS: Final = 60.0
# Who calls bounds the time; see `IsolatedCall.seconds`.
NO_FENCE: Final = FenceRequest(limits=Limits(seconds=None))
# How much of what the code printed last is shown when it broke its process.
TAIL: Final = 2_000
# More neighbours than that are not a project: then only the module itself is shown.
MOST_NEIGHBOURS: Final = 256
# Where the code is inside.
CODE: Final = "/opt/foliot-code"
_BOOT: Final = (
    "import sys; sys.path[:0] = filter(None, sys.argv[3].split('\\n')); "
    "from foliot.tools.backends.function_worker import main; main(sys.argv[1], sys.argv[2])"
)
_PYTHON: Final = os.path.realpath(sys.executable)
_Parts = tuple[Text | Media, ...]


@dataclass(frozen=True, slots=True)
class FencedCode:
    """The function of a tool: `path` is `module:name`, `root` the folder that its outermost module lies in.

    `check_module` is given the module that the function says it was written in, and raises if that is not allowed.
    """

    path: str
    root: str = ""
    check_module: Callable[[str], None] | None = None


class FunctionCrashed(ToolError):
    """The process of the function ended in the middle of a call."""

    kind = "internal"
    retryable = False
    lost = True


class FencedFunction:
    """A `Tool` whose function runs in a fence."""

    def __init__(self, definition: ToolDefinition, isolation: Isolation) -> None:
        self._definition = definition
        self._fence = isolation
        self.isolation = isolation.mode

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> Any:
        """Raises `ToolError` as the function raised it, `FunctionCrashed`, `ToolTimeout`, `ToolIsolationMissing`."""
        definition = self._definition
        request = request_of(call, definition, mode="function", id=request_id("fn", call))
        # The arguments once are enough.
        request = structs.replace(request, input_raw="")
        seconds = definition.attempt_timeout or definition.timeout
        response = await self._fence.execute(
            IsolatedCall(definition, request, seconds=seconds, owner=fence_of(call)), on_output=on_output
        )
        if (error := response_error(response)) is not None:
            for mark in MARKS:
                setattr(error, mark, getattr(error, mark) or response.output.get(mark) is True)
            after = response.output.get("retry_after")
            error.retry_after = float(after) if isinstance(after, int | float) else error.retry_after
            raise error
        try:
            return msgspec.convert(response.output.get("content"), _Parts)
        except msgspec.ValidationError as error:
            raise ToolAnswerLost(f"the process of the function answered with something else: {error}") from None


class FunctionFence:
    """The processes of all fenced functions of a runtime that declare its `mode`. Belongs to one event loop."""

    def __init__(
        self,
        fences: Callable[[], Fences],
        mode: str = "sandboxed",
        *,
        most: int = MOST,
        most_of_one: int = MOST_OF_ONE,
        most_calls: int = MOST_CALLS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._fences = fences
        self.mode = mode
        self._most = most
        self._most_of_one = min(most, most_of_one)
        self._most_calls = most_calls
        self._idle_seconds = idle_seconds
        # How many places are taken by each tool: by processes, and by those that are about to be one.
        self._taken: dict[_Key, int] = {}
        # Those that wait for a call, the one that has waited longest first.
        self._idle: deque[_Worker] = deque()
        # Calls that wait for a process of their tool. The tool whose turn is next comes first.
        self._waiting: dict[_Key, deque[asyncio.Future[_Worker | _Place | None]]] = {}
        self._workers: set[_Worker] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self._workers)

    def check(self, definition: ToolDefinition) -> None:
        """Raises `ToolPolicyInvalid` for a tool that needs a credential."""
        no_credential(definition)
        if not isinstance(definition.options.get("function"), FencedCode):
            raise ToolPolicyInvalid(f"the tool {definition.name!r} names no function", field="spec.function")

    async def execute(self, call: IsolatedCall, *, on_output: OnOutput | None = None) -> ToolResponse:
        """Run it in a process of its tool. Raises `ToolError`; see `Isolation`."""
        definition, fences = call.definition, self._fences()
        owner = call.owner or FenceOwner(definition.name, Caller(definition.namespace))
        wanted: FenceRequest = definition.options.get("sandbox", NO_FENCE)
        with before_effect():
            self.check(definition)
            found = await fences.narrowed(wanted, owner.caller)
            worker = await self._taken_worker(definition, found, owner)
        # An answer that was made before this call cannot be taken for its own. Code of the tool that still runs in the
        # process can read this call, and answer it: a tool is trusted with all calls of that tool.
        request = structs.replace(call.request, request_id=secrets.token_hex(16))
        data = encode_request(request)
        seconds = worker.policy.limits.seconds_of(call.seconds)
        try:
            if len(data) > LARGEST:
                with before_effect():
                    raise ToolArgumentsInvalid(f"the arguments have {len(data):,} bytes; {LARGEST:,} are the most")
            async with asyncio.timeout(seconds):
                response = await worker.asked(data)
            if response.request_id != request.request_id:
                raise ToolAnswerLost("the process of the function gave an answer to no request", retryable=False)
        except TimeoutError:
            await self._end(worker)
            raise ToolTimeout(f"the function took more than {seconds:g} seconds, and was ended") from None
        except asyncio.IncompleteReadError:
            crash = await worker.crash()
            await self._end(worker)
            raise crash from None
        except GeneratorExit:  # the call is closed: it waits for nothing more
            self._end_soon(worker)
            raise
        except BaseException:
            # It comes to its end also when the call is closed meanwhile.
            await undisturbed(self._end_soon(worker))
            raise
        if found.request.workspace != "none":
            await self._end(worker)
            await fences.changed(worker.policy, owner)
        else:
            await self._leave(worker)
            self._give_back(worker)
        return response

    async def close(self) -> None:
        """End all processes. Calls that wait for one are refused."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiter in chain.from_iterable(self._waiting.values()):
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        for worker in list(self._workers):
            await self._end(worker)
        if self._ending:
            await asyncio.wait(self._ending)

    # --- places -------------------------------------------------------------------------------------------------------

    async def _taken_worker(self, definition: ToolDefinition, found: Narrowed, owner: FenceOwner) -> _Worker:
        """A process that serves the tool and nobody else uses now. Waits for one when there are as many as may be."""
        key = _key(definition, found, owner)
        granted = None if self._closed else self._granted(key) or await self._turn(key)
        if granted is None:
            raise ToolError("the runtime is closing", retryable=False)
        if isinstance(granted, _Place):
            return await self._started(key, definition, found, owner)
        granted.served.owner = owner
        return granted

    def _granted(self, key: _Key) -> _Worker | _Place | None:
        """Take an idle process, or else a place for a new one, which is counted from now on; None when all is taken."""
        for worker in [each for each in reversed(self._idle) if each.key == key]:  # the warmest first
            self._idle.remove(worker)
            if worker.alive:
                return worker
            self._end_soon(worker)
        if not self._has_place(key):
            return None
        self._taken[key] = self._taken.get(key, 0) + 1
        return _PLACE

    def _has_place(self, key: _Key) -> bool:
        """Whether another process may be started. One of another tool that is idle makes place for it."""
        if self._taken.get(key, 0) >= self._most_of_one:
            return False
        if sum(self._taken.values()) < self._most:
            return True
        if not self._idle:
            return False
        self._end_soon(self._idle.popleft())
        return True

    async def _turn(self, key: _Key) -> _Worker | _Place | None:
        """Wait until it is this call's turn; None when the runtime closes."""
        waiter: asyncio.Future[_Worker | _Place | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and (granted := waiter.result()) is not None:
                self._pass_on(key, granted)  # it was this one's turn
            raise

    def _pass_on(self, key: _Key, granted: _Worker | _Place) -> None:
        if isinstance(granted, _Place):
            self._free(key)
        else:
            self._give_back(granted)

    def _wake(self) -> None:
        """Give what is free to those that wait: to each of the tools in turn, in each to who came first.

        No other call is woken. What cannot be given to anybody who waits is there for whoever comes.
        """
        again = True
        while again:
            again = False
            for key in list(self._waiting):
                if not self._idle and sum(self._taken.values()) >= self._most:
                    return
                again = self._wake_next(key) or again

    def _wake_next(self, key: _Key) -> bool:
        """Give one call of this tool its turn, if there is one to give; the others of it come after other tools."""
        queue = self._waiting[key]
        while queue and queue[0].done():  # cancelled meanwhile
            queue.popleft()
        granted = self._granted(key) if queue else None
        if granted is not None:
            queue.popleft().set_result(granted)
        if granted is not None or not queue:
            del self._waiting[key]
            if queue:
                self._waiting[key] = queue
        return granted is not None

    async def _started(self, key: _Key, definition: ToolDefinition, found: Narrowed, owner: FenceOwner) -> _Worker:
        """Start a process in a place that is taken for it. The place is free again when that fails."""
        code: FencedCode = definition.options["function"]
        try:
            own = found.request.backend == "process"
            mounts, paths = await on_thread(shown if own else shown_in_image, code)
            cwd = "/tmp" if found.request.workspace == "none" else ""
            request = structs.replace(found.request, parts=mounts, cwd=cwd)
            argv = [_PYTHON, "-I", "-S"] if own else ["python3", "-I"]
            argv += ["-c", _BOOT, code.path, definition.name, "\n".join(paths)]
            served = _Served(owner)
            session = await self._fences().open_narrowed(
                structs.replace(found, request=request), owner, serving=lambda: served.owner
            )
            worker = await _Worker.start(session, argv, key, code, served)
        except BaseException as error:
            self._free(key)
            if isinstance(error, SandboxError):
                raise sandbox_failure(error) from None
            raise
        self._workers.add(worker)
        return worker

    def _free(self, key: _Key) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        self._wake()

    async def _leave(self, worker: _Worker) -> None:
        """End what a call has opened to the network, before another one may be served."""
        worker.served.owner = None
        try:
            await worker.disconnect()
        except BaseException:
            await self._end(worker)
            raise

    def _give_back(self, worker: _Worker) -> None:
        worker.calls += 1
        worker.served.owner = None
        if worker.calls >= self._most_calls or self._closed or not worker.alive:
            self._end_soon(worker)
            return
        worker.idle_since = time.monotonic()
        self._idle.append(worker)
        self._wake()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        """End what has been idle for too long, and look again when the next may have."""
        now, self._timer = time.monotonic(), None
        while self._idle and now - self._idle[0].idle_since >= self._idle_seconds:
            self._end_soon(self._idle.popleft())
        if self._idle:
            wait = self._idle[0].idle_since + self._idle_seconds - now
            self._timer = asyncio.get_running_loop().call_later(wait, self._end_idle)

    def _end_soon(self, worker: _Worker) -> asyncio.Task[None]:
        """End it while others go on. Its place is free at once."""
        task = asyncio.get_running_loop().create_task(self._end(worker))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _end(self, worker: _Worker) -> None:
        """End it with everything in it. Doing so twice is harmless."""
        if worker in self._workers:
            self._workers.discard(worker)
            with contextlib.suppress(ValueError):
                self._idle.remove(worker)
            self._free(worker.key)
        await worker.end()


_Key = tuple[str, ...]


class _Place:
    """A place for a process that is to be started."""


_PLACE: Final = _Place()


def _key(definition: ToolDefinition, found: Narrowed, owner: FenceOwner) -> _Key:
    """A process serves calls of one key: a tool, its declaration, and what is left of its fence for the caller."""
    code: FencedCode = definition.options["function"]
    checked = "checked" if code.check_module is not None else ""
    fence = msgspec.json.encode((found.request, found.within), order="deterministic").decode()
    once = secrets.token_hex(8) if found.request.workspace != "none" else ""
    tool = (definition.namespace, definition.name, definition.version)
    return *tool, code.path, code.root, checked, owner.caller.namespace, fence, once


class _Served:
    """The call that a process serves now."""

    __slots__ = ("owner",)

    def __init__(self, owner: FenceOwner) -> None:
        self.owner: FenceOwner | None = owner


class _Worker:
    """One process in a fence of its own."""

    def __init__(self, session: SandboxSession, process: SandboxProcess, key: _Key, served: _Served) -> None:
        self._session = session
        self.served = served
        self.policy = session.policy
        self._process = process
        self.key = key
        self.calls = 0
        self.idle_since = 0.0
        self._said = bytearray()
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def start(
        cls, session: SandboxSession, argv: list[str], key: _Key, code: FencedCode, served: _Served
    ) -> _Worker:
        """Start it, and wait until it has imported the function. Raises `SandboxError`, `ToolError`."""
        try:
            worker = cls(session, await session.start(argv), key, served)
        except BaseException:
            await session.close()
            raise
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await worker._response()
            if ready.request_id != READY:
                raise ToolError("the process of the function did not begin as it should", retryable=False)
            if (failure := response_error(ready)) is not None:
                raise ToolError(f"{code.path} cannot be imported in the sandbox: {failure.message}", retryable=False)
            if code.check_module is not None:
                code.check_module(str(ready.output.get("module")))
        except BaseException as error:
            known = await worker._not_started(error)
            await worker.end()
            raise known from None
        return worker

    @property
    def alive(self) -> bool:
        return self._process.finished is None and not self._process.stdout.at_eof()

    async def asked(self, data: bytes) -> ToolResponse:
        """Send a request, and wait for the response. Raises `IncompleteReadError` when the process has ended."""
        stdin = self._process.stdin
        stdin.write(LENGTH.pack(len(data)))
        stdin.write(data)
        with contextlib.suppress(ConnectionError):  # it has ended, which reading tells
            await stdin.drain()
        return await self._response()

    async def _response(self) -> ToolResponse:
        (size,) = LENGTH.unpack(await self._process.stdout.readexactly(LENGTH.size))
        if size > LARGEST:
            raise ToolAnswerLost(f"the process of the function answered with {size:,} bytes", retryable=False)
        return decode_response(await self._process.stdout.readexactly(size))

    async def crash(self) -> FunctionCrashed:
        """Say how the process ended, with the end of what it printed."""
        try:
            async with asyncio.timeout(1.0):
                finished = await self._process.wait()
        except TimeoutError:  # it lives, and has closed the way to answer
            finished = await self._process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.wait([self._listening])
        if finished.ended_by == "memory":
            how = f"it used more than {(self.policy.limits.memory or 0) // MIB} MiB of memory"
        elif finished.ended_by == "workspace":
            how = WORKSPACE_FULL
        elif finished.signal:
            names = {each.value: each.name for each in signal.Signals}
            how = f"it was ended by the signal {names.get(finished.signal, finished.signal)}"
        else:
            how = f"it ended with the code {finished.exit_code}"
        said = bytes(self._said[-TAIL:]).decode("utf-8", "replace").strip()
        printed = f"; it printed last:\n{said}" if said else ""
        return FunctionCrashed(
            f"the process of the function broke off: {how}{printed}",
            exit_code=finished.exit_code,
            ended_by=finished.ended_by,
        )

    async def _not_started(self, error: BaseException) -> BaseException:
        if isinstance(error, asyncio.IncompleteReadError):
            error = await self.crash()
        elif isinstance(error, TimeoutError):
            error = ToolError(f"the function was not imported within {START_SECONDS:g} seconds", retryable=False)
        if isinstance(error, ToolError):
            error.before_effect = True
        return error

    async def disconnect(self) -> None:
        """End the connections of the call that it has served: no other call may use them."""
        await self._session.disconnect()

    async def end(self) -> None:
        self._listening.cancel()
        await self._session.close()

    async def _listen(self) -> None:
        """Read what the code prints, so that it is not held back. The end of it is kept."""
        stderr = self._process.stderr
        while stderr is not None and (data := await stderr.read(65536)):
            self._said += data
            if len(self._said) > 16 * TAIL:
                del self._said[:-TAIL]


# --- what is shown inside --------------------------------------------------------------------------------------------


def shown(code: FencedCode) -> tuple[tuple[Mount, ...], list[str]]:
    """The mounts that the function needs, all read-only, and the folders inside to import from."""
    packages = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    packages = [path for path in packages if os.path.isdir(path)]
    home = os.fspath(Path(__file__).absolute().parents[2])
    interpreter = os.path.dirname(os.path.dirname(_PYTHON))
    mounts: dict[str, Mount] = {}
    for path in sorted({interpreter, sys.base_prefix, *packages, home}, key=len):
        if not lies_in(path, (*SYSTEM, *mounts)):
            mounts[path] = Mount(path, path)
    paths = [*packages, os.path.dirname(home)]
    if not code.root or lies_in(code.root, (*SYSTEM, *mounts)):
        return tuple(mounts.values()), paths
    return (*mounts.values(), *_own_code(code)), [CODE, *paths]


def shown_in_image(code: FencedCode) -> tuple[tuple[Mount, ...], list[str]]:
    """The same for a container, whose image brings Python, Foliot and packages: the module, if it is none of them."""
    if not code.root or os.path.basename(code.root) in ("site-packages", "dist-packages"):
        return (), []
    return tuple(_own_code(code)), [CODE]


def _own_code(code: FencedCode) -> list[Mount]:
    module = code.path.partition(":")[0].partition(".")[0]
    return [Mount(os.fspath(each), f"{CODE}/{each.name}") for each in _python_in(code.root, module)]


def _python_in(root: str, module: str) -> list[Path]:
    """The Python files and packages of a folder, which is all of it that is shown."""
    found = [
        each
        for each in islice(Path(root).iterdir(), 10 * MOST_NEIGHBOURS)
        if not each.name.startswith(".") and (each.suffix in (".py", ".so") or (each / "__init__.py").is_file())
    ]
    if len(found) > MOST_NEIGHBOURS:
        found = [each for each in found if each.name.partition(".")[0] == module]
    own = Path(root, module)
    if own.is_dir() and own not in found:  # a package without `__init__.py`
        found.append(own)
    return found


def with_code(definition: ToolDefinition, code: FencedCode) -> ToolDefinition:
    """The definition with the function that it stands for."""
    return replace(definition, options={**definition.options, "function": code})
