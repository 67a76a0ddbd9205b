"""Who this process is, and whether another one that held a run is still alive."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


@cache
def host() -> str:
    """This machine since its last boot: a process id means nothing on another one, or after a restart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        boot = "-"
    return f"{socket.gethostname()}.{boot}"


def identity() -> str:
    """A name for this process that no other one has, or will have."""
    pid = os.getpid()
    return f"{host()}/{pid}/{_started(pid)}"


def in_words(worker: str) -> str:
    """`host.boot/4711/123` as people say it."""
    name, _, rest = worker.partition("/")
    pid = rest.partition("/")[0]
    return f"process {pid} on {name.partition('.')[0]}" if pid else worker or "another process"


def is_gone(worker: str | None) -> bool:
    """True when the worker was a process of this machine that certainly no longer runs; False when in doubt."""
    if worker is None:
        return True
    where, _, rest = worker.rpartition("/")
    where, _, pid = where.rpartition("/")
    if where != host() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it lives, and belongs to someone else
    return _started(int(pid)) != rest


def _started(pid: int) -> str:
    """When the process started, in clock ticks since boot; tells apart two processes with one number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "-"
    return stat[stat.rindex(")") + 2 :].split()[19]
