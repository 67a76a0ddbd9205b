"""Which process this is, and whether another one that held a run is still alive.

A process is a host since its last boot, a PID namespace, a number in that namespace, and the moment of its start. Each
part is needed: two containers with one host name have different processes under the same numbers, and the kernel gives
a number again after its process has ended. Of a process in another namespace nothing can be said, so it counts as
alive, and only its lease decides.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Final

UNKNOWN: Final = "-"
# Dead, although the number is still taken: nobody has asked for its exit code yet.
_DEAD_STATES: Final = "ZX"


@cache
def host() -> str:
    """This machine since its last boot: a process id means nothing on another one, or after a restart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        boot = UNKNOWN
    return f"{socket.gethostname()}.{boot}"


def pid_namespace() -> str:
    """The number of the PID namespace of this process; `-` where there are none, or it cannot be seen.

    The kernel gives a number again only when every process of the namespace has ended.
    """
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return UNKNOWN


def identity() -> str:
    """A name for this process that no other one has, or will have: `host.boot/namespace/pid/start`."""
    return f"{host()}/{pid_namespace()}/{os.getpid()}/{_stat('self')[1]}"


def in_words(worker: str) -> str:
    """`host.boot/4026531836/4711/123` as people say it."""
    name, *rest = worker.split("/")
    if len(rest) < 2:
        return worker or "another process"
    return f"process {rest[-2]} on {name.partition('.')[0]}"


def is_gone(worker: str | None) -> bool:
    """True when the worker was a process that this one would see, and certainly no longer runs; False when in doubt."""
    if worker is None:
        return True
    where, _, started = worker.rpartition("/")
    where, _, pid = where.rpartition("/")
    here = pid_namespace()
    if where != f"{host()}/{here}" or not pid.isdigit() or (here == UNKNOWN and sys.platform == "linux"):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # it lives, and belongs to someone else; or it is no number of a process
    if not _proc_is_ours():
        return False
    state, found = _stat(pid)
    if state == UNKNOWN:
        return False  # it has just ended, or is hidden: the next look says
    return state in _DEAD_STATES or (UNKNOWN not in (started, found) and started != found)


def _proc_is_ours() -> bool:
    """Whether /proc shows the namespace of this process. In a new one it stays the old one until it is mounted anew."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _stat(pid: str) -> tuple[str, str]:
    """The state of a process, and when it started in clock ticks since boot: tells apart two with one number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return UNKNOWN, UNKNOWN
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], fields[19]
