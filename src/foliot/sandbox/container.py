"""The sandbox of containers: each program in a container of its own, made by podman or docker from a pinned image.

One container for each program, not for each session: so each has its own `/tmp`, sees no other, and all that it started
is gone when the container is. A container is not removed by its engine (`--rm`) but here, after the engine has said how
it ended: the exit code of `run` alone does not tell a program that ended with 125 from an engine that failed.

Only its engine holds a container, so it would outlive its owner. A *watchdog* stands against that: a shell that
waits on a pipe, which closes when the owner is gone, however it went, and then removes what the owner left. If the
watchdog is killed together with its owner, the next `sweep` on this host does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, Struct, json, structs

from foliot.common.call_processes import outlives_call
from foliot.common.process import host, identity, is_gone
from foliot.common.threads import on_thread
from foliot.sandbox import container_cli, seccomp_profile
from foliot.sandbox.base import (
    FEATURES,
    KIB,
    MIB,
    EndedBy,
    Enforced,
    Enforcement,
    Finished,
    Limits,
    Mount,
    SandboxError,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    SandboxUnavailable,
    check_policy,
)
from foliot.sandbox.container_cli import NOBODY, OWNER_LABEL, RUNSC, ContainerCli, EngineInfo, State
from foliot.sandbox.program import ON_TERMINAL, Descriptors, Ended
from foliot.sandbox.session import Running, Session, check_host, undisturbed

log = logging.getLogger(__name__)

NAMES: Final = "foliot-"
_PROBE_IMAGE: Final = "localhost/foliot-probe:1"
_PROBE_SECONDS: Final = 60.0
# How often a container that does not go is killed, and how long each time is waited for it.
_KILLS: Final = 20
_BETWEEN_KILLS: Final = 0.5
_BETWEEN_LOOKS: Final = 0.1
# What the init processes of podman and docker say when there is no such program.
_NOT_STARTED: Final = re.compile(
    r"\A(?:ERROR \(catatonit:\d+\): failed to exec pid1|\[FATAL tini \(\d+\)\] exec .* failed): (?P<why>[^\n]*)\n\Z"
)
# Waits until its owner has said that it is done, or is gone. Containers that were being made just then come late.
_WATCHDOG: Final = """
trap '' HUP INT TERM
read -r word && exit 0
label=$1; shift
for round in 1 2 3 4 5 6 7 8 9 10; do
  for each in $("$@" ps --all --quiet --no-trunc --filter "label=$label"); do
    "$@" rm --force --volumes "$each" || "$@" kill "$each"
  done
  sleep 1
done
"""


class ContainerSandbox:
    """Programs in containers. Must be used from the thread of one event loop, which lives as long as they do."""

    def __init__(self, *, cli: str = "", runtime: str = "", runtime_flags: Sequence[str] = (), image: str = "") -> None:
        """`cli` is podman or docker, by name or path: whichever there is, when empty. `runtime` is the OCI runtime that
        must run them: with `runsc` this is the sandbox `gvisor`. `image` is for policies that name none.
        """
        self.name = "gvisor" if runtime == RUNSC else "container"
        self._wanted = cli
        self._runtime, self._runtime_flags = runtime, tuple(runtime_flags)
        self._image = image
        self._cli: ContainerCli | None = None
        self._info: EngineInfo | None = None
        self._enforcement: Enforcement | None = None
        self._looking: asyncio.Lock | None = None
        self._images: dict[str, tuple[str, ...]] = {}
        self._sessions: set[ContainerSession] = set()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._filters: dict[bool, int] = {}
        self.owner = identity()

    async def enforces(self) -> Enforcement:
        """Say what this machine really enforces: a container is made and looked at from inside. Never raises.

        Remembered once it works: an engine may be started later.
        """
        if self._looking is None:
            self._looking = asyncio.Lock()
        async with self._looking:
            if self._enforcement is None:
                try:
                    found = await self._look()
                except SandboxError as error:
                    return Enforcement(self.name, False, why=error.message, hint=error.hint or "")
                if not found.available:
                    return found
                self._enforcement = found
        return self._enforcement

    async def check(self, policy: SandboxPolicy) -> None:
        """Raises `SandboxPolicyRefused`; `SandboxUnavailable`, also when the image is not on this machine."""
        enforcement = await self.enforces()
        check_policy(policy, enforcement)
        check_host(policy)
        self._check_image(policy.image or self._image)
        _check_writable(policy)
        if policy.network == "broker" and self.name == "gvisor" and not self._carries_sockets():
            raise SandboxPolicyRefused(
                "network",
                "gVisor does not let programs reach a socket of the host",
                hint="give its runtime the flag host-uds=open (older ones: fsgofer-host-uds)",
            )
        await self._volumes(policy.image or self._image)

    async def open(self, policy: SandboxPolicy) -> ContainerSession:
        """Open a session. Nothing is pulled for it. Raises as `check`."""
        await self.check(policy)
        image = policy.image or self._image
        session = self._opened(structs.replace(policy, image=image), await self._volumes(image))
        if policy.broker_socket and not os.geteuid():
            os.chown(policy.broker_socket, NOBODY, NOBODY)
        return session

    async def sweep(self) -> int:
        """Kill and remove containers whose owner is dead, or was of an earlier boot. How many there were."""
        left = [each for each in await self.cli.containers() if self._is_orphan(each)]
        for each in left:
            await self.cli.remove(each.name)
        return len(left)

    async def close(self) -> None:
        for session in list(self._sessions):
            await session.close()
        for kept in self._filters.values():
            os.close(kept)
        self._filters.clear()
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            assert watchdog.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                watchdog.stdin.write(b"done\n")
                watchdog.stdin.close()
            await undisturbed(on_thread(watchdog.wait))

    @property
    def cli(self) -> ContainerCli:
        """Raises `SandboxUnavailable` when there is neither podman nor docker."""
        if self._cli is None:
            path = container_cli.find(self._wanted)
            if path is None:
                what = f"{self._wanted} is not" if self._wanted else "neither podman nor docker is"
                raise SandboxUnavailable(
                    f"{what} installed", hint="install podman, or name an engine: the setting container_cli"
                )
            self._cli = ContainerCli(path, runtime=self._runtime, runtime_flags=self._runtime_flags)
        return self._cli

    def forget(self, session: ContainerSession) -> None:
        self._sessions.discard(session)

    def watch(self) -> None:
        """Start the watchdog, before the first container is. Raises `SandboxUnavailable`."""
        if self._watchdog is not None and self._watchdog.poll() is None:
            return
        try:
            with outlives_call():
                self._watchdog = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHDOG, "foliot-watchdog", f"{OWNER_LABEL}={self.owner}", *self.cli.line()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self.cli.environment,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise SandboxUnavailable(f"the watchdog of containers cannot be started: {error.strerror}") from None

    def _opened(self, policy: SandboxPolicy, volumes: Sequence[str]) -> ContainerSession:
        assert self._info is not None
        try:
            profile = self._profile(policy.connects())
        except OSError as error:
            raise SandboxError(f"a container cannot be opened: {error.strerror}") from None
        session = ContainerSession(self, policy, container_cli.walls(self.cli, self._info, policy, profile, volumes))
        self._sessions.add(session)
        return session

    def _profile(self, connects: bool) -> str:
        """The path of the filter of system calls, which is only in memory. The engine reads it with its program."""
        if connects not in self._filters:
            made = seccomp_profile.profile(connects=connects)
            assert made is not None, "looked at before the first container"
            with Descriptors() as own:
                kept = own.take(os.memfd_create("seccomp", os.MFD_CLOEXEC))
                os.write(kept, made)
                own.pop_all()
            self._filters[connects] = kept
        return f"/proc/{os.getpid()}/fd/{self._filters[connects]}"

    def _is_orphan(self, container: container_cli.Container) -> bool:
        if is_gone(container.owner):
            return True
        name, _, boot = container.owner.partition("/")[0].rpartition(".")
        here, _, now = host().rpartition(".")
        # Of an earlier boot of this host: it does not run any more, nor does its owner.
        return name == here and boot != now and not container.runs

    # --- images -------------------------------------------------------------------------------------------------------

    def _check_image(self, image: str) -> None:
        if not image:
            raise SandboxPolicyRefused("image", "a container needs an image", hint="name it, as NAME@sha256:DIGEST")
        if not container_cli.is_pinned(image):
            raise SandboxPolicyRefused(
                "image",
                f"{image[:200]} names no digest, so what it is can change",
                hint=f"pin it, as {image[:100]}@sha256:…: `{self.cli.kind} image ls --digests` shows it",
            )

    async def _volumes(self, image: str) -> tuple[str, ...]:
        """The folders that an image declares as volumes. Raises `SandboxUnavailable` when it is not on this machine."""
        known = self._images.get(image)
        if known is not None:
            return known
        answer = await self.cli.ask("image", "inspect", image)
        if answer.code:
            raise SandboxUnavailable(
                f"the image {image} is not on this machine, and nothing is pulled for a call",
                hint=f"{self.cli.kind} pull {image}",
            )
        try:
            (found,) = json.decode(answer.stdout, type=list[_Image])
        except (DecodeError, ValueError):
            raise SandboxError(f"{self.cli.kind} says of the image {image} what is not understood") from None
        # podman goes by the digest alone: another name must not be a way to an image that was not meant.
        if "@" in image and not any(each == image or each.endswith(f"/{image}") for each in found.repo_digests or ()):
            raise SandboxPolicyRefused("image", f"the image of this digest has another name than {image}")
        self._images[image] = volumes = tuple((found.config.volumes or {}) if found.config else ())
        return volumes

    def _carries_sockets(self) -> bool:
        return any(flag.startswith(("host-uds=", "fsgofer-host-uds")) for flag in self.cli.runtime_flags)

    # --- what this machine enforces -----------------------------------------------------------------------------------

    async def _look(self) -> Enforcement:
        if not sys.platform.startswith("linux"):
            raise SandboxUnavailable("it needs Linux", hint="run workers on Linux, or in a Linux VM")
        if seccomp_profile.profile() is None:
            why = f"there is no filter of system calls for {platform.machine()}"
            raise SandboxUnavailable(why, hint="it runs on x86-64 and arm64")
        self._info = info = await self.cli.info()
        if self.cli.kind == "docker" and self._runtime and self._runtime not in info.runtimes:
            raise SandboxUnavailable(
                f"docker has no runtime {self._runtime!r}", hint="add it to `runtimes` of /etc/docker/daemon.json"
            )
        await self.sweep()
        if (await self.cli.ask("image", "inspect", _PROBE_IMAGE)).code:
            # An archive of two empty blocks: an image without a file.
            made = await self.cli.ask("import", "-", _PROBE_IMAGE, stdin=b"\0" * 1024)
            if made.code:
                raise SandboxUnavailable(f"{self.cli.kind} cannot make the image of the probe: {made.said}")
        seen = await self._probed()
        if seen.exit_code != 0:
            said = seen.stderr.decode(errors="replace").strip()[-300:] or f"it ended with {seen.exit_code}"
            raise SandboxUnavailable(f"a first container failed: {said}", hint=self._hint(said))
        return self._judged(info, seen.stdout.decode(errors="replace"))

    async def _probed(self) -> Finished:
        policy = SandboxPolicy(
            mounts=tuple(Mount(each, each) for each in _system()), limits=_PROBED, image=_PROBE_IMAGE
        )
        session = self._opened(policy, ())
        try:
            seen = await session.exec(["/bin/sh", "-c", _PROBE, "sh", *(f"/sys/fs/cgroup/{path}" for path in _GROUPS)])
            if self.name == "gvisor" and not seen.exit_code:  # which shows its own groups inside, not those of the host
                waiting = await session.start(["/bin/cat"])
                found = await on_thread(_groups_of, await self._pid())
                await waiting.kill()
                seen = structs.replace(seen, stdout=seen.stdout + found.encode())
            return seen
        except SandboxError as error:
            raise SandboxUnavailable(
                f"a first container failed: {error.message}", hint=self._hint(error.message)
            ) from None
        finally:
            await session.close()

    async def _pid(self) -> int:
        """The first process of the container of this owner that runs now."""
        for _ in range(_KILLS):
            own = [each.name for each in await self.cli.containers() if each.owner == self.owner]
            for name in own:
                state = await self.cli.state(name)
                if state is not None and state.pid:
                    return state.pid
            await asyncio.sleep(_BETWEEN_KILLS)
        return 0

    def _hint(self, said: str) -> str:
        if self.name == "gvisor":
            return "see whether `runsc` is installed; no other runtime is taken instead"
        if "cgroup" in said:
            return "another OCI runtime may do, such as runc: the setting container_runtime"
        if "init" in said and "not found" in said:
            return "install catatonit, the first process of containers"
        return f"`{self.cli.kind} run --rm` with any image shows more"

    def _judged(self, info: EngineInfo, seen: str) -> Enforcement:
        """Hold what a program saw of itself against what the fence promises."""
        status = dict(re.findall(r"^(\w+):\s*(.*)$", seen, re.MULTILINE))
        interfaces = set(re.findall(r"^\s*([\w.@-]+):(?:\s+\d+){16}", seen, re.MULTILINE))
        mounts = {
            place: options.split(",")
            for place, options in re.findall(r"^\S+ (/\S*) \S+ (\S+) \d+ \d+$", seen, re.MULTILINE)
        }
        bounds = dict(re.findall(r"^bound (\w+) (\w+)$", seen, re.MULTILINE))
        namespace = "".join(re.findall(r"^namespace (\S+)$", seen, re.MULTILINE))
        gvisor = self.name == "gvisor"
        user, _ = container_cli.user_inside()
        plain = int(status.get("CapEff", "1"), 16) == 0 == int(status.get("CapBnd", "1"), 16)
        plain = plain and (gvisor or status.get("NoNewPrivs") == "1")
        walls = {
            "filesystem": Enforced(
                "ro" in mounts.get("/", []), "the image, read-only, and what is mounted", "the root can be written"
            ),
            "network": Enforced(interfaces <= {"lo"}, "network namespace", f"interfaces: {sorted(interfaces)}"),
            "processes": Enforced(
                namespace not in ("", _own_namespace()), "PID, IPC and UTS namespaces", "the PID namespace is not new"
            ),
            "user": Enforced(
                plain and status.get("Uid", "").startswith(f"{user}\t"),
                f"user {user}, no capabilities, no new privileges",
                "the program holds capabilities",
            ),
            "seccomp": Enforced(
                gvisor or status.get("Seccomp") == "2",
                "calls are answered by gVisor, not by the kernel" if gvisor else "a filter of system calls of our own",
                "the engine loaded no filter of system calls",
            ),
        }
        broken = {name: found.why for name, found in walls.items() if not found.enforced}
        if broken:
            why = "; ".join(f"{name}: {found}" for name, found in broken.items())
            return Enforcement(
                self.name, False, why=f"the fence does not hold here ({why})", hint="see the settings of the engine"
            )
        features = {name: Enforced(True, found.how) for name, found in walls.items()}
        features["landlock"] = Enforced(False, why="the image leaves nothing to restrict; it is not used")
        features["owner"] = Enforced(True, "a watchdog process; if that is killed as well, the next sweep on this host")
        sized = any(option.startswith("size=") for option in mounts.get("/tmp", []))
        features["tmp_size"] = Enforced(
            sized, "file systems in memory of that size", "" if sized else "the size of /tmp is not bounded"
        )
        for feature, expected in _PROBED_BOUNDS.items():
            held = bounds.get(feature) in expected
            why = "" if held else f"the runtime has set {bounds.get(feature, 'nothing')}"
            features[feature] = Enforced(held, "rlimit of each process", why)
        for feature in ("memory", "pids", "cpu"):
            features[feature] = self._counted(feature, getattr(info, feature), seen)
        assert features.keys() == FEATURES.keys()
        return Enforcement(self.name, True, features={name: features[name] for name in FEATURES})

    def _counted(self, feature: str, can: bool, seen: str) -> Enforced:
        """Whether a limit of the whole container is in the files of its control group, as they are seen inside."""
        if feature == "pids" and self.name == "gvisor":
            return Enforced(False, why="gVisor has threads of its own among them; memory bounds what can be started")
        if can and _PROBED_GROUPS[feature].search(seen):
            return Enforced(True, "control group of the container")
        weaker = "; only the memory of each process is bounded" if feature == "memory" and not can else ""
        why = "its control group does not show the limit" if can else f"{self.cli.kind} cannot limit it here{weaker}"
        return Enforced(False, why=f"{why}; the engine needs control groups that it may divide")


class _Config(Struct, frozen=True, rename="pascal"):
    volumes: dict[str, Any] | None = None


class _Image(Struct, frozen=True, rename="pascal"):
    """The description of an image, as engines give it."""

    repo_digests: tuple[str, ...] | None = None
    config: _Config | None = None


# Limits that nobody else has by chance, so that they are known again.
_PROBED: Final = Limits(
    memory=203 * MIB,
    processes=97,
    cpus=0.73,
    cpu_seconds=71,
    file_size=17 * MIB,
    open_files=93,
    tmp_size=1203 * KIB,
    seconds=_PROBE_SECONDS,
)
# Shells count the size of files in blocks of 512 bytes, some in those of 1,024.
_PROBED_BOUNDS: Final = {"file_size": ("34816", "17408"), "open_files": ("93",), "cpu_seconds": ("71",)}
_PROBE: Final = """
cat /proc/self/status /proc/net/dev /proc/self/mounts || exit
echo > /tmp/mine || exit
echo "namespace $(readlink /proc/self/ns/pid)"
echo "bound file_size $(ulimit -f)"; echo "bound open_files $(ulimit -n)"; echo "bound cpu_seconds $(ulimit -t)"
cat "$@" 2>/dev/null
exit 0
"""
_GROUPS: Final = (
    "memory.max", "pids.max", "cpu.max", "memory/memory.limit_in_bytes", "pids/pids.max", "cpu/cpu.cfs_quota_us",
)  # fmt: skip
_PROBED_GROUPS: Final = {
    "memory": re.compile(rf"^{_PROBED.memory}$", re.MULTILINE),
    "pids": re.compile(rf"^{_PROBED.processes}$", re.MULTILINE),
    "cpu": re.compile(r"^73000(?: 100000)?$", re.MULTILINE),
}


def _groups_of(pid: int) -> str:
    """The limits of the control groups that a process is in, and of those above them, as the host has them."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            for name in names.split(",") if names else [""]:
                root = Path("/sys/fs/cgroup", name)
                for folder in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
                    if folder.is_relative_to(root):
                        found += [text for group in _GROUPS if (text := _text(folder / group.rpartition("/")[2]))]
    return "\n".join(["", *found, ""])


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _own_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _system() -> list[str]:
    """Folders of the host that the probe, whose image is empty, runs a program of."""
    return [path for path in ("/usr", "/bin", "/lib", "/lib64") if os.path.isdir(path)]


def _check_writable(policy: SandboxPolicy) -> None:
    """Refuse to show a folder for writing that the user inside cannot write to. Raises `SandboxPolicyRefused`."""
    if os.geteuid():
        return
    shown = [(f"mounts[{number}].source", each.source) for number, each in enumerate(policy.mounts) if each.writable]
    if policy.shows_workspace and policy.workspace_access == "read_write":
        assert policy.workspace is not None
        shown.append(("workspace", policy.workspace))
    for field, path in shown:
        found = os.stat(path)
        if found.st_uid != NOBODY and not found.st_mode & 0o002:
            raise SandboxPolicyRefused(
                field,
                f"{path} cannot be written by the user inside, who is {NOBODY} when the worker is root",
                hint=f"run the worker as an ordinary user, or: chown -R {NOBODY}:{NOBODY} {path}",
            )


class ContainerSession(Session):
    """A policy, and the containers that run now by it."""

    def __init__(self, sandbox: ContainerSandbox, policy: SandboxPolicy, walls: Sequence[str]) -> None:
        super().__init__(policy)
        self._sandbox = sandbox
        self._walls = tuple(walls)
        self._file_owner = None if os.geteuid() else NOBODY

    async def close(self) -> None:
        """Kill and remove its containers."""
        await self.kill()
        self._sandbox.forget(self)

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
    ) -> ContainerProgram:
        self._sandbox.watch()
        cli, owner = self._sandbox.cli, self._sandbox.owner
        name = f"{NAMES}{os.getpid()}-{secrets.token_hex(8)}"
        words = [
            "run", "--interactive", f"--name={name}", f"--label={OWNER_LABEL}={owner}", *self._walls,
            *(["--tty"] if terminal else []), *(f"--env={key}={value}" for key, value in environment.items()),
            f"--workdir={folder}", "--entrypoint=", self._policy.image, *argv,
        ]  # fmt: skip
        try:
            return ContainerProgram(cli, name, words, stdin=stdin, stdout=stdout, stderr=stderr, terminal=terminal)
        except (FileNotFoundError, PermissionError) as error:
            raise SandboxUnavailable(f"{cli.path} cannot be started: {error.strerror}") from None

    def _failure(self, program: Running, argv: Sequence[str], stderr: bytes) -> SandboxError | None:
        assert isinstance(program, ContainerProgram)
        said = stderr.decode(errors="replace")
        ended = program.ended.result()
        if program.not_gone:
            return SandboxError(f"the container {program.name} cannot be removed: {program.not_gone}")
        if ended.exit_code in (1, 126, 127) and not ended.ended_by and (found := _NOT_STARTED.match(said)):
            return SandboxStartFailed(
                f"{argv[0]!r} cannot be started in the container: {found['why']}", program=argv[0]
            )
        if ended.exit_code is not None:
            return None
        text = (said.strip().splitlines() or [program.said])[-1].removeprefix("Error: ")
        if "workdir" in text or "chdir" in text:
            return SandboxStartFailed("the working folder cannot be entered: it is not in the container")
        if "executable file" in text or "exec:" in text:
            return SandboxStartFailed(f"{argv[0]!r} cannot be started in the container: {text}", program=argv[0])
        return SandboxError(f"the container cannot be made: {text or 'the engine ended without a word'}")


class ContainerProgram:
    """One container, by the `run` that made it. It has ended when the container is removed."""

    def __init__(
        self,
        cli: ContainerCli,
        name: str,
        words: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        terminal: bool,
    ) -> None:
        """Raises `OSError`."""
        self.name = name
        self.said = ""
        # Why the container is still there, if so.
        self.not_gone = ""
        self._cli = cli
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._killed_by: EndedBy = ""
        self._killing: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        line = cli.line(*words)
        if terminal:
            line = [sys.executable, "-I", "-S", "-c", ON_TERMINAL, *line]
        with outlives_call():  # who has the session ends it, also for a call that is made here
            self._run = subprocess.Popen(
                line, env=cli.environment, cwd="/", stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        self._settling: asyncio.Task[None] | None = None
        self._watch()

    def _watch(self) -> None:
        """Hear of the end of `run`. It runs already: where it cannot be heard of, it is looked for."""
        self._watched: int | None = None
        with contextlib.suppress(OSError), Descriptors() as own:
            watched = own.take(os.pidfd_open(self._run.pid))
            self._loop.add_reader(watched, self._run_ended)
            own.pop_all()
            self._watched = watched
        if self._watched is None:
            self._look()

    def _look(self) -> None:
        if self._run.poll() is None:
            self._loop.call_later(_BETWEEN_LOOKS, self._look)
        else:
            self._run_ended()

    def kill(self, by: EndedBy) -> None:
        """Have the engine kill it. `ended` is set when it is gone."""
        if self.ended.done() or self._killed_by or self._over.is_set():
            return
        self._killed_by = by
        self._killing = asyncio.ensure_future(self._kill())

    async def _kill(self) -> None:
        """Kill the container until `run` has ended, which may be about to make it."""
        for _ in range(_KILLS):
            with contextlib.suppress(Exception):  # whatever it was, it is tried again
                await self._cli.remove(self.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BETWEEN_KILLS):
                    await self._over.wait()
                return
        self._run.kill()

    def _run_ended(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            os.close(self._watched)
        self._run.wait()
        self._over.set()
        self._settling = asyncio.ensure_future(self._settle())

    async def _settle(self) -> None:
        """Ask how it ended, and remove it. Whatever happens, `ended` is set: who closes the session waits for that."""
        state: State | None = None
        self.not_gone = "removing it was broken off"
        try:
            if self._killing is not None:
                await self._killing
            state = None if self._killed_by else await self._cli.state(self.name)
            self.not_gone = "" if await self._cli.remove(self.name) else "the engine still lists it"
        except SandboxError as error:
            self.not_gone = error.message
        except Exception as error:
            log.exception("the container %s was not removed", self.name)
            self.not_gone = f"{type(error).__name__}: {error}"
        finally:
            if not self.ended.done():
                self.ended.set_result(self._judged(state))

    def _judged(self, state: State | None) -> Ended:
        seconds = time.monotonic() - self._began
        if self._killed_by:
            return Ended(128 + signal.SIGKILL, self._killed_by, seconds)
        if state is None or not state.started:
            self.said = state.error if state is not None else ""
            return Ended(None, "", seconds)
        if not state.is_over:  # somebody else ended `run`
            return Ended(128 + signal.SIGKILL, "killed", seconds)
        by: EndedBy = "memory" if state.oom_killed and state.exit_code else ""
        return Ended(state.exit_code, by, seconds)
