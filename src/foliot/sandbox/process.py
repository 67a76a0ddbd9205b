"""The sandbox of processes: each program in namespaces of its own, made by bubblewrap.

Nothing lives between two programs of a session but its control group and its folder: each has its own `/tmp`, sees no
other process, and is over when all that it started is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import resource
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from foliot.common.threads import on_thread
from foliot.sandbox import bubblewrap, landlock
from foliot.sandbox.base import (
    LAUNCHER,
    Enforced,
    Enforcement,
    Limits,
    Mount,
    SandboxError,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    SandboxUnavailable,
    check_policy,
)
from foliot.sandbox.cgroups import Cgroups, Group
from foliot.sandbox.program import Descriptors, Ended, Program
from foliot.sandbox.seccomp import filter_for
from foliot.sandbox.session import Running, Session, check_host, undisturbed

_PROBE_SECONDS: Final = 20.0
# The kernel counts processes by user namespace since then (RLIMIT_NPROC).
_COUNTS_BY_NAMESPACE: Final = (5, 14)
_OWN_ERROR: Final = b"bwrap: "


class ProcessSandbox:
    """Programs fenced by bubblewrap. Must be used from the thread of one event loop, which lives as long as they do."""

    name = "process"

    def __init__(self, *, command: str | None = None, cgroups: Cgroups | None = None) -> None:
        """`command` is the path of bubblewrap; by default that of the wheel or of the system."""
        self._command = command
        self._cgroups = cgroups
        self._enforcement: Enforcement | None = None
        self._looking: asyncio.Lock | None = None
        self._sessions: set[ProcessSession] = set()
        self._descriptors: dict[str, int] = {}
        # Groups of closed sessions in which the last process has not ended yet. It has been killed.
        self._left: list[Group] = []

    async def enforces(self) -> Enforcement:
        """Say what this machine really enforces: a program is fenced and looked at from inside. Never raises."""
        if self._looking is None:
            self._looking = asyncio.Lock()
        async with self._looking:
            if self._enforcement is None:
                try:
                    self._enforcement = await self._look()
                except SandboxError as error:  # it broke, which may pass: it is looked at again
                    return Enforcement(self.name, False, why=error.message, hint=error.hint or "")
        return self._enforcement

    async def check(self, policy: SandboxPolicy) -> None:
        """Raises `SandboxPolicyRefused`, `SandboxUnavailable`."""
        check_policy(policy, await self.enforces())
        if policy.image:
            raise SandboxPolicyRefused(
                "image", "programs of this sandbox run on the system of the host", hint="images are for containers"
            )
        check_host(policy)

    async def open(self, policy: SandboxPolicy) -> ProcessSession:
        """Open a session. Raises as `check`."""
        await self.check(policy)
        return self._opened(policy)

    async def sweep(self) -> int:
        """Remove the control groups of owners that are dead, with what is in them. How many there were.

        Programs end with their owner by themselves.
        """
        return await on_thread(self.cgroups.sweep)

    async def close(self) -> None:
        for session in list(self._sessions):
            await session.close()
        left, self._left = self._left, []
        for group in left:
            await undisturbed(on_thread(group.remove))
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    @property
    def cgroups(self) -> Cgroups:
        if self._cgroups is None:
            self._cgroups = Cgroups()
        return self._cgroups

    @property
    def command(self) -> str:
        if self._command is None:
            self._command = bubblewrap.find() or ""
        return self._command

    def forget(self, session: ProcessSession, group: Group | None) -> None:
        """Let a closed session go, and its group as soon as that is empty: waiting for it would take milliseconds."""
        self._sessions.discard(session)
        self._left = [each for each in (*self._left, *([group] if group else [])) if not each.is_removed()]

    def fresh(self, name: str, data: bytes) -> int:
        """A descriptor from which a process reads `data`, from its beginning: each has a place of its own in it."""
        kept = self._descriptors.get(name)
        if kept is None:
            with Descriptors() as own:
                kept = own.take(os.memfd_create(name, os.MFD_CLOEXEC))
                os.write(kept, data)
                own.pop_all()
            self._descriptors[name] = kept
        return os.open(f"/proc/self/fd/{kept}", os.O_RDONLY | os.O_CLOEXEC)

    def _opened(self, policy: SandboxPolicy) -> ProcessSession:
        limits = policy.limits
        try:
            group = self.cgroups.make(memory=limits.memory, processes=limits.processes, cpus=limits.cpus)
        except OSError as error:
            raise SandboxError(f"the control group of a sandbox cannot be made: {error.strerror}") from None
        try:
            session = ProcessSession(self, policy, group)
        except BaseException as error:
            if group is not None:
                group.is_removed()  # nothing has run in it
            if isinstance(error, OSError):
                raise SandboxError(f"a sandbox cannot be opened: {error.strerror}") from None
            raise
        self._sessions.add(session)
        return session

    # --- what this machine enforces ---------------------------------------------------------------------------------

    async def _look(self) -> Enforcement:
        if not sys.platform.startswith("linux"):
            return Enforcement(self.name, False, why="it needs Linux", hint="run workers on Linux, or in a Linux VM")
        if not self.command:
            return Enforcement(self.name, False, why="bubblewrap is not installed", hint=bubblewrap.INSTALL)
        if filter_for() is None:
            why = f"there is no filter of system calls for {platform.machine()}"
            return Enforcement(self.name, False, why=why, hint="it runs on x86-64 and arm64")
        await self.sweep()
        session = self._opened(SandboxPolicy(limits=Limits(seconds=_PROBE_SECONDS)))
        try:
            seen = await session.exec(["/bin/cat", "/proc/self/status", "/proc/net/dev", "/proc/self/mounts"])
        except SandboxUnavailable as error:
            return Enforcement(self.name, False, why=error.message, hint=error.hint or "")
        finally:
            await session.close()
        if seen.exit_code != 0:
            why = f"a first program in it failed: {seen.stderr.decode(errors='replace').strip()[:200]}"
            return Enforcement(self.name, False, why=why, hint="`foliot sandbox run -- true` shows more")
        return self._judged(seen.stdout.decode(errors="replace"))

    def _judged(self, seen: str) -> Enforcement:
        """Hold what a program saw of itself against what the fence promises."""
        status = dict(re.findall(r"^(\w+):\s*(.*)$", seen, re.MULTILINE))
        interfaces = set(re.findall(r"^\s*([\w.@-]+):(?:\s+\d+){16}", seen, re.MULTILINE))
        mounts = dict(re.findall(r"^\S+ (/\S*) \S+ (\S+) \d+ \d+$", seen, re.MULTILINE))
        read_only = all("ro" in mounts.get(place, "").split(",") for place in ("/", "/proc", "/dev"))
        plain = status.get("NoNewPrivs") == "1" and int(status.get("CapBnd", "1"), 16) == 0
        walls = {
            "filesystem": Enforced(read_only, "mount namespace, read-only system", "the root or /proc can be written"),
            "network": Enforced(interfaces == {"lo"}, "network namespace", f"interfaces: {sorted(interfaces)}"),
            "processes": Enforced(
                status.get("NSpid", "").split()[-1:] == [status.get("Pid", "-")] and int(status.get("Pid", "999")) < 9,
                "PID, IPC and UTS namespaces",
                "the PID namespace is not new",
            ),
            "user": Enforced(
                plain and status.get("Uid", "").startswith(f"{bubblewrap.USER}\t"),
                "user namespace, no capabilities, no new privileges" + _as_root(),
                "the program holds capabilities",
            ),
            "seccomp": Enforced(status.get("Seccomp") == "2", "filter of system calls", "the filter was not loaded"),
            "owner": Enforced(True, "PDEATHSIG and the PID namespace"),
        }
        broken = {name: found.why for name, found in walls.items() if not found.enforced}
        if broken:
            why = "; ".join(f"{name}: {found}" for name, found in broken.items())
            return Enforcement(self.name, False, why=f"the fence does not hold here ({why})", hint="please report this")
        features = {name: Enforced(True, found.how) for name, found in walls.items()}
        each = Enforced(True, "rlimit of each process")
        features |= {"cpu_seconds": each, "file_size": each, "open_files": each}
        features["tmp_size"] = Enforced(True, "file systems in memory of that size")
        known = landlock.version()
        features["landlock"] = (
            Enforced(True, f"rules on files, signals and abstract sockets, version {known}")
            if known
            else Enforced(False, why=landlock.why_not())
        )
        for feature, controller in (("memory", "memory"), ("pids", "pids"), ("cpu", "cpu")):
            features[feature] = self._counted(feature, controller)
        return Enforcement(self.name, True, features=features)

    def _counted(self, feature: str, controller: str) -> Enforced:
        version = self.cgroups.version(controller)
        if version is not None:
            return Enforced(True, f"control group, version {version}")
        why = self.cgroups.missing.get(controller, "")
        if feature == "pids" and os.geteuid() != 0 and _kernel() >= _COUNTS_BY_NAMESPACE:
            return Enforced(True, "RLIMIT_NPROC in the user namespace, for each call")
        weaker = {"memory": "; only the memory of each process is bounded", "pids": "", "cpu": ""}[feature]
        return Enforced(
            False,
            why=f"{why}{weaker}; start the worker where it may divide its control group, such as a systemd service "
            "with Delegate=yes and DelegateSubgroup=worker",
        )


class ProcessSession(Session):
    """A policy, its control group, and the programs that run now."""

    def __init__(self, sandbox: ProcessSandbox, policy: SandboxPolicy, group: Group | None) -> None:
        super().__init__(policy)
        self._sandbox = sandbox
        self._group = group
        self._walls = bubblewrap.arguments(policy)
        self._connects = policy.connects()
        self._rules = landlock.rules_of(policy, landlock.version()) if landlock.version() else []

    async def close(self) -> None:
        """Kill it and remove its control group."""
        await self.kill()
        group, self._group = self._group, None
        self._sandbox.forget(self, group)

    def unlinked(self, device: int) -> int:
        """How much its programs hold in files without a name: those that they have open or mapped."""
        found: dict[int, int] = {}
        for program in [*self._programs]:
            assert isinstance(program, Program)
            for pid in _descendants(program.inside):
                _add_unlinked(pid, device, found)
        return sum(found.values())

    # --- programs -----------------------------------------------------------------------------------------------------

    def _started(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        terminal: bool,
    ) -> Program:
        words = list(self._walls)
        for name, value in environment.items():
            words += ["--setenv", name, value]
        words += ["--chdir", folder]
        with Descriptors() as own, Descriptors() as given:
            opened = _opened_exactly(self._policy.mounts, given)
            report, shown = None, [*opened.values()]
            if self._rules:
                report, write = own.pipe_from(given, os.O_NONBLOCK)
                paths = _candidates(argv[0], {**bubblewrap.ENVIRONMENT, **self._policy.environment, **environment})
                launcher = landlock.launcher(self._rules, paths, write, landlock.version())
                shown += [write, given.take(_in_memory(launcher))]
                words += ["--perms", "0555", "--file", str(shown[-1]), LAUNCHER]
                argv = [LAUNCHER, *argv]
            for path, text in bubblewrap.FILES.items():
                shown.append(given.take(self._sandbox.fresh(path, text.encode())))
                words += ["--file", str(shown[-1]), path]
            words += bubblewrap.shown(self._policy, opened)
            program = filter_for(connects=self._connects)
            assert program is not None, "checked when the session was opened"
            shown.append(given.take(self._sandbox.fresh(f"seccomp-{self._connects}", program)))
            words += [*bubblewrap.SEALED, "--seccomp", str(shown[-1])]
            try:
                made = Program(
                    [self._sandbox.command],
                    words,
                    argv,
                    shown,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    hold=self._hold,
                    terminal=terminal,
                    report=report,
                )
            except (FileNotFoundError, PermissionError) as error:
                raise SandboxUnavailable(f"bubblewrap cannot be started: {error.strerror}") from None
            own.pop_all()
        made.killed_before = self._killed()
        return made

    def _hold(self, pid: int) -> None:
        """Put the limits on the first process inside, which waits for that. Raises `OSError`."""
        limits = self._policy.limits
        if self._group is not None:
            self._group.add(pid)
        counted = self._group.controllers if self._group is not None else frozenset[str]()
        bounds = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: limits.cpu_seconds,
            resource.RLIMIT_FSIZE: limits.file_size,
            resource.RLIMIT_NOFILE: limits.open_files,
            resource.RLIMIT_NPROC: limits.processes,
            # What a process can write to, of its own; not the addresses it reserves, as many runtimes do.
            resource.RLIMIT_DATA: None if "memory" in counted else limits.memory,
        }
        for kind, value in bounds.items():
            if value is not None:
                hard = resource.prlimit(pid, kind)[1]
                most = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.prlimit(pid, kind, (most, most))

    def _killed(self) -> int:
        return self._group.out_of_memory() if self._group is not None else 0

    def _judged(self, program: Running, ended: Ended) -> Ended:
        assert isinstance(program, Program)
        if not ended.ended_by and ended.exit_code and self._killed() > program.killed_before:
            return Ended(ended.exit_code, "memory", ended.seconds)
        return ended

    def _failure(self, program: Running, argv: Sequence[str], stderr: bytes) -> SandboxError | None:
        assert isinstance(program, Program)
        if program.not_held is not None:
            return SandboxError(f"the limits of the sandbox could not be set, so nothing was run: {program.not_held}")
        if program.refused:
            return _not_started(argv, os.strerror(program.refused))
        # bubblewrap says a code only once the program has begun.
        return _failed(stderr, argv) if program.ended.result().exit_code is None else None


def _descendants(pid: int) -> Iterator[int]:
    """A process and all that came of it; those of a PID namespace all come of its first."""
    left = [pid] if pid else []
    while left:
        yield (parent := left.pop())
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                left += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())


def _add_unlinked(pid: int, device: int, found: dict[int, int]) -> None:
    """Add the files without a name on one file system that a process has open or mapped: bytes, by inode."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_dev == device:
                    found[status.st_ino] = max(status.st_size, status.st_blocks * 512)
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            words = line.split(maxsplit=5)
            if len(words) == 6 and words[5].endswith(" (deleted)") and words[3] == number:
                begin, _, end = words[0].partition("-")
                found.setdefault(int(words[4]), int(end, 16) - int(begin, 16))


def _failed(stderr: bytes, argv: Sequence[str]) -> SandboxError:
    text = stderr.decode(errors="replace").strip().removeprefix(_OWN_ERROR.decode())
    if text.startswith("execvp "):
        return _not_started(argv, text.rpartition(": ")[2])
    if text.startswith("Can't chdir"):
        return SandboxStartFailed(f"the working folder cannot be entered: {text.rpartition(': ')[2]}")
    if "namespace" in text or "uid map" in text or "loopback" in text or "Operation not permitted" in text:
        return SandboxUnavailable(f"this system does not let bubblewrap make a sandbox: {text}", hint=_hint())
    return SandboxError(f"the sandbox cannot be set up: {text or 'bubblewrap ended without a word'}")


def _not_started(argv: Sequence[str], why: str) -> SandboxStartFailed:
    return SandboxStartFailed(f"{argv[0]!r} cannot be started in the sandbox: {why}", program=argv[0])


def _candidates(program: str, environment: Mapping[str, str]) -> list[str]:
    """The paths at which a program is looked for, as a shell does."""
    if "/" in program:
        return [program]
    return [f"{folder or '.'}/{program}" for folder in environment["PATH"].split(":")]


def _opened_exactly(mounts: Sequence[Mount], given: Descriptors) -> dict[str, int]:
    """Descriptors of the sources that must not go through a link, by target. Raises `SandboxPolicyRefused`.

    What was looked at by its path may be another thing by now; what is open stays what it is.
    """
    opened: dict[str, int] = {}
    for mount in mounts:
        if mount.exact:
            opened[mount.target] = descriptor = given.take(_opened(mount))
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            if place != mount.source or stat.S_ISLNK(os.fstat(descriptor).st_mode):
                raise SandboxPolicyRefused("mounts", f"what is shown at {mount.target} was exchanged meanwhile")
    return opened


def _opened(mount: Mount) -> int:
    try:
        return os.open(mount.source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = f"what is shown at {mount.target} cannot be opened: {error.strerror}"
        raise SandboxPolicyRefused("mounts", why) from None


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("launcher", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _hint() -> str:
    """The setting that keeps this user from making namespaces, and how to change it."""
    for name, value, change in (
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        with contextlib.suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == value:
                return f"an administrator allows user namespaces with: sysctl -w {name}={change}"
    return (
        "user namespaces are needed; in a container, run it with a seccomp profile that allows them "
        "and with its own /proc (docker: --security-opt with seccomp=unconfined, apparmor=unconfined, "
        "systempaths=unconfined)"
    )


def _as_root() -> str:
    return "; the worker is root: better run it as an ordinary user" if os.geteuid() == 0 else ""


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
