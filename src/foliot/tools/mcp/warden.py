"""The small process between Foliot and an MCP server that it starts: nothing of the server outlives Foliot.

Run as a script (`python -I -S warden.py LIFELINE COMMAND ARGUMENT…`), so it imports only a few modules of the standard
library. The server inherits stdin, stdout and stderr and talks to Foliot directly; no byte passes through here.
LIFELINE is the reading end of a pipe whose writing end only Foliot holds: when it closes, because Foliot asks for it or
because Foliot died in whatever way, the server and everything it started is ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

GRACE = 1.0
CANNOT_START = 127
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MOST_ROUNDS = 200


def prctl(option: int, value: int) -> None:
    """Linux only, and best effort: without it the process group is still ended."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def start(command: list[str], lifeline: int) -> int:
    """Start the server in a session of its own; its process id, which is also its group."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.close(lifeline)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(each, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def adopted() -> list[int]:
    """Returns the children of this process, including orphans of its server (Linux; elsewhere none are seen)."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def reap() -> dict[int, int]:
    """Exit codes of the children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_all(server: int) -> None:
    """End the server's group and whatever left it: politely, then for certain."""
    signal_group(server, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        reap()
        try:
            os.killpg(server, 0)
        except (ProcessLookupError, PermissionError):
            break
        time.sleep(0.01)
    signal_group(server, signal.SIGKILL)
    # Who left the group becomes our child as its parents die, one generation after the other.
    for _ in range(MOST_ROUNDS):
        reap()
        strays = adopted()
        if not strays:
            return
        for stray in strays:
            try:
                os.kill(stray, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def let_go_of_streams() -> None:
    """The pipes belong to the server alone; held here as well, nobody would see that it closed them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def watch(server: int, lifeline: int, wakeup: int, asked: list[int]) -> int:
    """The server's exit code once it has ended: by itself, or because the lifeline closed or a signal asked for it."""
    code = 0
    while True:
        ready, _, _ = select.select([lifeline, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 512)
        ended = reap()
        code = ended.get(server, code)
        if lifeline in ready or asked or server in ended:
            end_all(server)
            return code


def main() -> None:
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    asked: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, _: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    server = start(command, lifeline)
    let_go_of_streams()
    code = watch(server, lifeline, wakeup, asked)
    os._exit(code if 0 <= code < 256 else 128 - code)


if __name__ == "__main__":
    main()
