"""The command lines of podman and docker: which one there is, what it says of itself, and a policy as its arguments.

Both take the same words for nearly everything; where they differ stands here and nowhere else. The program gets a short
environment, in which nothing of a policy is, so that nothing of a policy is loaded into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import DecodeError, Struct, json

from foliot.common.call_processes import outlives_call
from foliot.sandbox.base import BROKER_SOCKET, WORKSPACE, SandboxError, SandboxPolicy, SandboxUnavailable

Kind: TypeAlias = Literal["podman", "docker"]
KINDS: Final[tuple[Kind, ...]] = ("podman", "docker")
# How long a question to the engine may take.
ANSWER_SECONDS: Final = 60.0
OWNER_LABEL: Final = "dev.foliot.owner"
# Who runs inside when the worker is root: a number that is no person, and has no rights.
NOBODY: Final = 65532
ENVIRONMENT: Final[Mapping[str, str]] = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": "agent",
    "LOGNAME": "agent",
    "LANG": "C.UTF-8",
}
# All that the engine's program needs to find its settings, its storage and its daemon.
_KEPT: Final = re.compile(r"PATH|HOME|USER|TMPDIR|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|DOCKER_\w+|CONTAINERS?_\w+")
_PINNED: Final = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}@)?sha256:[0-9a-f]{64}")
RUNSC: Final = "runsc"


class Answer(Struct, frozen=True):
    """The answer of the engine to one question."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        """The complaint of the engine, in one line."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"it ended with {self.code}").removeprefix("Error: ")[:500]


class State(Struct, frozen=True, rename="pascal"):
    """The state of a container, as the engine says it. One that was never started has no time of start."""

    status: str = ""
    exit_code: int = 0
    oom_killed: bool = False
    started_at: str = ""
    error: str = ""
    # The first process, as the host sees it.
    pid: int = 0

    @property
    def started(self) -> bool:
        return bool(self.started_at) and not self.started_at.startswith("0001-")

    @property
    def is_over(self) -> bool:
        return self.status in ("exited", "stopped", "dead")


class EngineInfo(Struct, frozen=True):
    """The description of an engine by itself: which of the limits it can set, and whether it runs without root."""

    version: str = ""
    rootless: bool = False
    memory: bool = False
    pids: bool = False
    cpu: bool = False
    runtimes: frozenset[str] = frozenset()


class ContainerCli:
    """One engine by its program. `runtime` is the name of the OCI runtime that it must use; its own when empty."""

    def __init__(self, path: str, *, runtime: str = "", runtime_flags: Sequence[str] = ()) -> None:
        self.path = path
        self.kind: Kind = "docker" if os.path.basename(path).startswith("docker") else "podman"
        self.runtime = runtime
        self.runtime_flags = tuple(runtime_flags)
        if not runtime_flags and runtime == RUNSC and self.kind == "podman":
            # docker has the flags of a runtime in the settings of its daemon.
            self.runtime_flags = ("network=none",)

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}

    def line(self, *words: str) -> list[str]:
        """The command line of a question, or of an order."""
        front: list[str] = []
        if self.kind == "podman" and self.runtime:
            front = ["--runtime", self.runtime, *(f"--runtime-flag={flag}" for flag in self.runtime_flags)]
        return [self.path, *front, *words]

    async def ask(self, *words: str, stdin: bytes = b"", seconds: float = ANSWER_SECONDS) -> Answer:
        """Run it to its end. Raises `SandboxUnavailable` when it cannot be started, or does not answer."""
        try:
            with outlives_call():  # what it removes has to go also when the call is over
                process = await asyncio.create_subprocess_exec(
                    *self.line(*words),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=self.environment,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise SandboxUnavailable(f"{self.path} cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(seconds):
                stdout, stderr = await process.communicate(stdin)
        except TimeoutError:
            raise SandboxUnavailable(
                f"{self.kind} has not answered within {seconds:g} seconds ({words[0]})",
                hint=f"see whether `{self.kind} info` answers",
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
        return Answer(process.returncode or 0, stdout, stderr)

    async def info(self) -> EngineInfo:
        """Raises `SandboxUnavailable` when the engine cannot be used at all."""
        answer = await self.ask("info", "--format", "{{json .}}")
        said = answer.said
        with contextlib.suppress(DecodeError):
            if self.kind == "podman" and not answer.code:
                return _podman_info(json.decode(answer.stdout, type=_Podman))
            if self.kind == "docker":
                found = json.decode(answer.stdout, type=_Docker)
                if not found.server_errors and not answer.code:
                    return _docker_info(found)
                said = (found.server_errors or (said,))[0]
        hint = f"see what `{self.kind} info` says"
        if self.runtime:
            hint = f"install the runtime {self.runtime!r} where {self.kind} finds it; no other one is taken instead"
        elif self.kind == "docker":
            hint = "start the daemon, and let this user use it (group docker)"
        raise SandboxUnavailable(f"{self.kind} cannot be used: {said}", hint=hint)

    async def state(self, name: str) -> State | None:
        """The state of a container; None when there is none of this name."""
        answer = await self.ask("container", "inspect", "--format", "{{json .State}}", name)
        if answer.code:
            return None
        try:
            return json.decode(answer.stdout, type=State)
        except DecodeError:
            raise SandboxError(f"{self.kind} says of a container what is not understood") from None

    async def remove(self, *names: str) -> bool:
        """Kill and remove containers; whether none of them is there any more."""
        if not names:
            return True
        at_once = ["--time", "0"] if self.kind == "podman" else []
        answer = await self.ask("rm", "--force", "--volumes", *at_once, *names)
        return not answer.code or {each.name for each in await self.containers()}.isdisjoint(names)

    async def containers(self) -> list[Container]:
        """All containers that a Foliot made, those that have ended too. Raises `SandboxUnavailable`."""
        template = '{{.Names}}\t{{.State}}\t{{index .Labels "%s"}}' % OWNER_LABEL  # noqa: UP031
        if self.kind == "docker":
            template = '{{.Names}}\t{{.State}}\t{{.Label "%s"}}' % OWNER_LABEL  # noqa: UP031
        answer = await self.ask("ps", "--all", "--no-trunc", "--filter", f"label={OWNER_LABEL}", "--format", template)
        if answer.code:
            raise SandboxUnavailable(f"{self.kind} does not say which containers there are: {answer.said}")
        rows = [line.split("\t") for line in answer.stdout.decode(errors="replace").splitlines()]
        return [Container(*row) for row in rows if len(row) == 3]


class Container(Struct, frozen=True):
    """A container that some Foliot made, and whose it is."""

    name: str
    state: str
    owner: str

    @property
    def runs(self) -> bool:
        """Whether it runs or is paused: docker says `running`, podman how long it is up."""
        return self.state.lower().startswith(("running", "up ", "paused"))


def find(wanted: str = "") -> str | None:
    """The program: the one that is wanted, by name or path; else podman, else docker. None when it is not there."""
    if wanted:
        return shutil.which(wanted)
    return next((found for kind in KINDS if (found := shutil.which(kind))), None)


def is_pinned(image: str) -> bool:
    """Whether it names one content for ever: `name@sha256:…`, or the id of an image, `sha256:…`."""
    return _PINNED.fullmatch(image) is not None


# --- what an engine says of itself ------------------------------------------------------------------------------------


class _Security(Struct, frozen=True):
    rootless: bool = False


class _Runtime(Struct, frozen=True):
    name: str = ""


class _Host(Struct, frozen=True, rename="camel"):
    security: _Security = _Security()
    cgroup_controllers: tuple[str, ...] | None = None
    cgroup_version: str = ""
    oci_runtime: _Runtime = _Runtime()


class _Version(Struct, frozen=True, rename="pascal"):
    version: str = ""


class _Podman(Struct, frozen=True):
    host: _Host = _Host()
    version: _Version = _Version()


class _Docker(Struct, frozen=True, rename="pascal"):
    server_version: str = ""
    security_options: tuple[str, ...] | None = None
    memory_limit: bool = False
    pids_limit: bool = False
    cpu_cfs_quota: bool = False
    runtimes: dict[str, Any] | None = None
    # What is wrong, with an exit code of 0.
    server_errors: tuple[str, ...] | None = None


def _podman_info(found: _Podman) -> EngineInfo:
    here = found.host
    # Without root, groups of version 1 cannot be divided, whatever controllers there are.
    usable = not (here.security.rootless and here.cgroup_version == "v1")
    memory, pids, cpu = (usable and name in (here.cgroup_controllers or ()) for name in ("memory", "pids", "cpu"))
    return EngineInfo(
        found.version.version, here.security.rootless, memory, pids, cpu, frozenset({here.oci_runtime.name})
    )


def _docker_info(found: _Docker) -> EngineInfo:
    return EngineInfo(
        found.server_version,
        any("rootless" in each for each in found.security_options or ()),
        found.memory_limit,
        found.pids_limit,
        found.cpu_cfs_quota,
        frozenset(found.runtimes or ()),
    )


# --- a policy as arguments --------------------------------------------------------------------------------------------


def user_inside() -> tuple[int, int]:
    """The user and the group inside: those of the worker, so that the workspace is theirs on both sides; never root."""
    return (os.getuid(), os.getgid()) if os.geteuid() else (NOBODY, NOBODY)


def walls(
    cli: ContainerCli, info: EngineInfo, policy: SandboxPolicy, profile: str, volumes: Sequence[str] = ()
) -> list[str]:
    """The arguments of `run` that make the fence.

    `profile` is the file with the filter of system calls; `volumes` are folders that the image would write to disk.
    """
    limits = policy.limits
    user, group = user_inside()
    words = [
        "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--security-opt=seccomp={profile}",
        "--read-only", "--ipc=private", "--init", "--hostname=fence", "--pull=never", "--log-driver=none",
        "--no-healthcheck", f"--user={user}:{group}", f"--shm-size={limits.tmp_size}",
        *(_tmpfs(cli, place, limits.tmp_size) for place in ("/tmp", *volumes)),
        *_bounds(cli, info, policy),
    ]  # fmt: skip
    if cli.kind == "podman":
        words += ["--read-only-tmpfs=false", "--http-proxy=false", "--no-hosts", "--systemd=false"]
        words += ["--userns=keep-id"] if info.rootless else []
    elif cli.runtime:
        words += [f"--runtime={cli.runtime}"]
    if policy.shows_workspace:
        assert policy.workspace is not None
        words += _mount(policy.workspace, WORKSPACE, policy.workspace_access == "read_write")
    for each in sorted(policy.mounts, key=lambda each: each.target):
        words += _mount(each.source, each.target, each.writable)
    if policy.broker_socket:
        words += _mount(policy.broker_socket, BROKER_SOCKET, False)
    for name, value in {**ENVIRONMENT, **policy.environment}.items():
        words.append(f"--env={name}={value}")
    return words


def _tmpfs(cli: ContainerCli, place: str, size: int) -> str:
    # podman would copy what the image has there; and some runtimes give the folder the rights that it has in the image.
    empty = ",notmpcopyup,U" if cli.kind == "podman" else ""
    return f"--tmpfs={place}:rw,exec,nosuid,nodev,mode=1777,size={size}{empty}"


def _mount(source: str, target: str, writable: bool) -> list[str]:
    # A field of the list is quoted as in CSV, so no path can bring in another field.
    fields = ["type=bind", f"source={source}", f"target={target}", *([] if writable else ["readonly"])]
    quoted = ['"' + field.replace('"', '""') + '"' if set(field) & set(',"\n') else field for field in fields]
    return [f"--mount={','.join(quoted)}"]


def _bounds(cli: ContainerCli, info: EngineInfo, policy: SandboxPolicy) -> Iterator[str]:
    limits = policy.limits
    if limits.memory is not None:
        if info.memory:
            yield f"--memory={limits.memory}b"
            yield f"--memory-swap={limits.memory}b"
        else:
            yield f"--ulimit=data={limits.memory}:{limits.memory}"
    # gVisor has threads of its own in the control group, and ends when it may not have them.
    if limits.processes is not None and info.pids and cli.runtime != RUNSC:
        yield f"--pids-limit={limits.processes}"
    if limits.cpus is not None and info.cpu:
        yield f"--cpus={limits.cpus:g}"
    for name, value in (("cpu", limits.cpu_seconds), ("fsize", limits.file_size), ("nofile", limits.open_files)):
        if value is not None:
            yield f"--ulimit={name}={value}:{value}"
    yield "--ulimit=core=0:0"
    if cli.kind == "podman":
        # podman would raise it to millions, for which some hosts do not give it the right.
        yield f"--ulimit=nproc={(most := _most_processes())}:{most}"


def _most_processes() -> int:
    """The number of processes that this user, or the machine, can have anyway."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        most = int(file.read())
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
