"""The processes that a call starts, and what they start in turn: they end with the call.

All ways to start one from Python lead through a few functions of the standard library. Those are wrapped, once in a
process and when the first call is made: whoever starts something inside a call has it noted there, and what is started
finds a mark in its environment that its own children inherit. So those are found too that left their parents, groups
and sessions. A process that clears its environment and leaves its parent as well is not found; nor is one that was
started by a thread of the tool's own making, which does not know of the call. Without `/proc` (not Linux) only the
processes that the tool itself started are ended, and not what these started.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct

from foliot.common.call_processes import NOTING

log = logging.getLogger(__name__)

# How long a process that was asked to end may take until it is killed, and how long that may take.
GRACE: Final = 1.0
GONE_WITHIN: Final = 2.0
LOOK_EVERY: Final = 0.01
_LOOKS_AT_ENVIRONMENT: Final = 5
# Where the environment stands among the arguments of `_posixsubprocess.fork_exec`, in every Python since 3.8.
_ENVIRONMENT: Final = 5
_LINUX: Final = sys.platform.startswith("linux")


class _Process(Struct, frozen=True):
    """A process by its number and its start, which tell it from a later one with the same number."""

    pid: int
    started: str
    parent: int = 0
    group: int = 0
    session: int = 0


class Processes:
    """The processes that one call has started."""

    def __init__(self) -> None:
        self.mark = f"FOLIOT_CALL_{secrets.token_hex(8)}"
        self._roots: dict[int, str] = {}
        self._before = set(_pids())

    def note(self, pid: int) -> None:
        found = _look(pid)
        self._roots[pid] = found.started if found is not None else ""

    def ask_to_end(self) -> None:
        """Ask those that the call itself started. Costs little, and whoever waits for one of them goes on."""
        shared = _shared()
        for pid, started in self._roots.items():
            if pid != shared and (found := _look(pid)) is not None and found.started == started:
                _signal(pid, signal.SIGTERM)

    def end(self) -> int:
        """End all that live: politely, then for certain. How many lived. Blocks for a while, if any did."""
        alive = self._alive()
        count = len(alive)
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GONE_WITHIN)):
            until = time.monotonic() + seconds
            asked: set[_Process] = set()
            while alive and time.monotonic() < until:
                for each in alive - asked:  # also what was started meanwhile
                    _signal(each.pid, number)
                asked |= alive
                time.sleep(LOOK_EVERY)
                alive = self._alive()
        if alive:
            log.warning("%d processes of a call did not end when they were killed", len(alive))
        return count

    def _alive(self) -> set[_Process]:
        shared = _shared()
        roots = self._roots.keys() - {shared}
        if not _LINUX:
            return {each for pid in roots if (each := _look(pid)) is not None}
        apart = self._before | {shared}
        new = [each for pid in _pids() if pid not in apart and (each := _look(pid)) is not None]
        mark = self.mark.encode()
        found = {
            each
            for each in new
            if self._roots.get(each.pid) == each.started
            or each.group in roots
            or each.session in roots
            or mark in _environment(each.pid)
        }
        while more := {each for each in new if each.parent in {known.pid for known in found}} - found:
            found |= more
        return found


# The processes of the call that is made here. Filled when it starts one: a call that starts none pays nothing.
Note = Callable[[], "Processes | None"]


def note_for(note: Note) -> Any:
    """Have processes that are started here, and in what is begun here, noted by what `note` gives. Returns a token."""
    if not _wrapped:
        _wrap()
    return NOTING.set(note)


def forget(token: Any) -> None:
    """Note no longer. Raises `ValueError` in another context than the one it began in."""
    NOTING.reset(token)


def _current() -> Processes | None:
    note: Note | None = NOTING.get()
    return note() if note is not None else None


# --- what is wrapped ------------------------------------------------------------------------------------------------

_wrapped: list[str] = []


def _wrap() -> None:
    import _posixsubprocess as below

    fork_exec = _starting(below.fork_exec)
    for module, name, wrapped in (
        (below, "fork_exec", fork_exec),
        (subprocess, "_fork_exec", fork_exec),
        (os, "fork", _forking(os.fork, lambda made: made)),
        (os, "forkpty", _forking(os.forkpty, lambda made: made[0])),
        (os, "posix_spawn", _spawning(os.posix_spawn)),
        (os, "posix_spawnp", _spawning(os.posix_spawnp)),
        (os, "system", _system(os.system)),  # pyright: ignore[reportDeprecated] - whoever uses it
    ):
        if hasattr(module, name):
            setattr(module, name, wrapped)
            _wrapped.append(name)


def _starting(fork_exec: Any) -> Any:
    def start(*given: Any) -> int:
        processes = _current()
        if processes is None:
            return fork_exec(*given)
        words = list(given)
        environment = cast("Iterable[bytes] | None", words[_ENVIRONMENT])
        if environment is None:
            environment = [name + b"=" + value for name, value in os.environb.items()]
        words[_ENVIRONMENT] = [*environment, f"{processes.mark}=1".encode()]
        pid = fork_exec(*words)
        processes.note(pid)
        return pid

    return start


def _spawning(spawn: Any) -> Any:
    def start(path: Any, argv: Any, env: Any, /, *given: Any, **named: Any) -> int:
        processes = _current()
        if processes is None:
            return spawn(path, argv, env, *given, **named)
        pid = spawn(path, argv, {**(os.environ if env is None else env), processes.mark: "1"}, *given, **named)
        processes.note(pid)
        return pid

    return start


def _forking(fork: Any, pid_of: Callable[[Any], int]) -> Any:
    def start() -> Any:
        processes = _current()
        made = fork()
        if processes is not None and (pid := pid_of(made)):
            processes.note(pid)
        return made

    return start


def _system(system: Any) -> Any:
    def start(command: Any) -> int:
        if _current() is None:
            return system(command)
        code = subprocess.call(command, shell=True)
        return code << 8 if code >= 0 else -code

    return start


# --- what the system knows ------------------------------------------------------------------------------------------


def _shared() -> int | None:
    """The resource tracker of `multiprocessing`: whoever needs it first starts it, and all of this process use it."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return getattr(tracker, "_pid", None)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if _LINUX else []


def _look(pid: int) -> _Process | None:
    """A process that lives; None when it has ended, whether or not anybody has asked how."""
    if not _LINUX:
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return None  # not ours, or no longer
        return _Process(pid, "") if ended is None else None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()
    if words[0] in (b"Z", b"X"):
        return None
    return _Process(pid, words[19].decode(), int(words[1]), int(words[2]), int(words[3]))


def _environment(pid: int) -> bytes:
    """The environment of a process. While it becomes another program there is none for a moment: that is waited out."""
    for _ in range(_LOOKS_AT_ENVIRONMENT):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found = file.read()
        except OSError:
            return b""  # somebody else's, or gone
        if found:
            return found
        time.sleep(LOOK_EVERY / 5)
    return b""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
