"""The protocol of sandboxes: a policy that does not change, a session that runs programs by it, and what they left.

A backend enforces a policy whole, or refuses it and names the field: nothing weaker ever stands in for what was asked.
`Limits` are enforced where the machine can, and `SandboxPolicy.require` names those without which nothing may run;
`Sandbox.enforces` says what this machine really enforces.

Inside are a read-only system, the workspace at `/workspace`, an empty private `/tmp`, and the mounts of the policy.
There is no network; with `network: broker` there is one Unix socket, at `BROKER_SOCKET`, behind which a broker outside
decides what may be reached. **No credential ever goes inside**: `environment` is readable by whatever runs there.

Every process that a session started, however it tried to leave, is gone when `exec` returns or `SandboxProcess.wait`
does, when the session is killed or closed, and when the process that owns the sandbox dies, also by SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from foliot.common.mounts import LAUNCHER as LAUNCHER
from foliot.common.mounts import WORKSPACE as WORKSPACE
from foliot.common.mounts import target_problems
from foliot.errors import FoliotError

BROKER_SOCKET: Final = "/run/foliot/broker.sock"

# Said of a program that was ended by "workspace".
WORKSPACE_FULL: Final = "it wrote more than the workspace may hold (spec.workspace of the agent): that was undone"

WorkspaceAccess: TypeAlias = Literal["none", "read_only", "read_write"]
Network: TypeAlias = Literal["none", "broker"]
EndedBy: TypeAlias = Literal["", "timeout", "cancelled", "memory", "workspace", "killed"]
Stream: TypeAlias = Literal["stdout", "stderr"]
OnOutput: TypeAlias = Callable[[Stream, bytes], None]

KIB: Final = 1024
MIB: Final = 1024 * KIB


class Mount(Struct, frozen=True):
    """A file or folder of the host, `source`, that is seen inside at `target`. Both are absolute paths.

    `exact`: the source was looked at and goes through no link; if it does when it is opened, it is refused. `part`: it
    is something that Foliot itself needs inside, with no sockets of others in it.
    """

    source: str
    target: str
    writable: bool = False
    exact: bool = False
    part: bool = False


class Limits(Struct, frozen=True):
    """The bounds of one session. Sizes are in bytes; None for no bound of its own.

    `memory` and `processes` hold for everything in the session together, `cpu_seconds`, `file_size` and `open_files`
    for each process, `tmp_size` for `/tmp` and `/dev/shm` each, `output` for what is kept of each stream of a call (the
    end of it), `seconds` for each call, whatever it asks for. `cpus` is a share of processors: 0.5 is half of one.
    """

    memory: int | None = 512 * MIB
    processes: int | None = 256
    cpu_seconds: int | None = None
    cpus: float | None = None
    file_size: int | None = 1024 * MIB
    tmp_size: int = 256 * MIB
    open_files: int | None = 1024
    output: int = 1 * MIB
    seconds: float | None = 120.0

    def seconds_of(self, asked: float | None) -> float | None:
        """The time of a call that asked for so much. None for no bound."""
        return min((each for each in (self.seconds, asked) if each is not None), default=None)


# What `SandboxPolicy.require` may name: limits, and the walls themselves.
FEATURES: Final[Mapping[str, str]] = {
    "filesystem": "only what the policy names can be seen",
    "network": "there is no network",
    "processes": "processes outside can be neither seen nor signalled",
    "user": "no rights of an administrator inside, and no way to get any",
    "seccomp": "system calls that a program does not need are refused",
    "landlock": "Landlock rules on top",
    "memory": "memory of all processes together is bounded",
    "pids": "the number of processes is bounded",
    "cpu": "the share of processors is bounded",
    "cpu_seconds": "processor time of each process is bounded",
    "file_size": "the size of each file is bounded",
    "tmp_size": "the size of /tmp is bounded",
    "open_files": "open files of each process are bounded",
    "owner": "everything ends when its owner dies",
}


class SandboxPolicy(Struct, frozen=True):
    """The walls of one session. It never changes while the session lives.

    `workspace` is a folder of the host, seen at `/workspace`, and `workspace_shared` where others use it too; `cwd` is
    a path inside, the workspace by default.
    `broker_socket` is the path outside of the socket that the egress broker listens on. `environment` is all that
    programs find in theirs, besides `PATH`, `HOME`, `LANG` and the like; it never holds a credential.
    `require` are the names of `FEATURES` that must really be enforced: where one cannot be, the policy is refused.
    `image` is what a container is made of; a backend that has no images refuses it.
    """

    mounts: tuple[Mount, ...] = ()
    workspace: str | None = None
    workspace_access: WorkspaceAccess = "read_write"
    workspace_shared: bool = False
    cwd: str = ""
    network: Network = "none"
    broker_socket: str | None = None
    environment: Mapping[str, str] = {}
    limits: Limits = Limits()
    require: frozenset[str] = frozenset()
    image: str = ""

    @property
    def shows_workspace(self) -> bool:
        return self.workspace is not None and self.workspace_access != "none"

    def connects(self) -> bool:
        """Whether programs have Unix sockets. Looks at the sources of mounts.

        Without a network they have none beside a folder that is shown: who listens at a socket in it may be anybody. A
        mount of a socket itself says that it is meant.
        """
        shown = [mount.source for mount in self.mounts if not mount.part]
        if self.workspace is not None and self.workspace_shared and self.workspace_access != "none":
            shown.append(self.workspace)
        return self.network != "none" or not shown or any(map(is_socket, shown))


class Enforced(Struct, frozen=True):
    """Whether one feature is enforced here, by what (`how`), or why not (`why`, with what to do about it)."""

    enforced: bool
    how: str = ""
    why: str = ""


class Enforcement(Struct, frozen=True):
    """The truth about one backend on this machine: `available`, or `why` not; and each of `FEATURES`."""

    backend: str
    available: bool
    why: str = ""
    hint: str = ""
    features: Mapping[str, Enforced] = {}

    def enforces(self, feature: str) -> bool:
        found = self.features.get(feature)
        return self.available and found is not None and found.enforced


class Finished(Struct, frozen=True):
    """The end of one program. `exit_code` is that of the program; 128 and the number of the signal that ended it.

    `signal` is that number, or 0. `truncated` names the streams of which only the end was kept. `ended_by` says who
    ended it before it was done: the empty text when it ended by itself.
    """

    exit_code: int
    signal: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: frozenset[Stream] = frozenset()
    seconds: float = 0.0
    ended_by: EndedBy = ""
    # How many bytes each stream had in all.
    stdout_size: int = 0
    stderr_size: int = 0


class SandboxProcess(Protocol):
    """A program that runs while its caller does other things. With a terminal, `stderr` is None and part of `stdout`.

    `stdout` and `stderr` hold the program back when they are not read.
    """

    @property
    def stdin(self) -> asyncio.StreamWriter: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def stderr(self) -> asyncio.StreamReader | None: ...

    @property
    def finished(self) -> Finished | None:
        """How it ended; None while it runs."""
        ...

    async def wait(self) -> Finished:
        """Wait until it and all that it started are gone. Its output is in the streams, not in the answer."""
        ...

    async def kill(self) -> Finished:
        """End it and all that it started, now."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal. Does nothing without one."""
        ...


class SandboxSession(Protocol):
    """One fence that is open. Programs in it share the workspace and the limits."""

    @property
    def policy(self) -> SandboxPolicy: ...

    @property
    def alive(self) -> bool:
        """Whether it takes programs and gives files: it is neither killed nor closed."""
        ...

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
        """Run a program to its end, and end with it all that it started. No shell is involved.

        `environment` is added to that of the policy. It is ended after `seconds`, or those of `Limits` where they are
        fewer. `on_output` hears everything as it comes; of what is returned,
        each stream is bounded by `Limits.output`. When cancelled, nothing of it is left running on return.
        Raises `SandboxStartFailed`, `SandboxGone`, `SandboxUnavailable`.
        """
        ...

    async def start(
        self,
        argv: Sequence[str],
        *,
        pty: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> SandboxProcess:
        """Start a program and return at once; with `pty`, on a terminal of its own.

        It has no time limit: it may serve many calls, and who makes one holds it to `Limits.seconds`. When cancelled,
        nothing of it is left running on return. Raises as `exec`.
        """
        ...

    async def read(self, path: str, limit: int = 16 * MIB) -> bytes:
        """Read a file by its path inside.

        Raises `SandboxPathRefused`, also for a file of more than `limit` bytes, and `SandboxGone`.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file by its path inside, with the folders on the way, whole or not at all.

        Raises `SandboxPathRefused`, `SandboxGone`.
        """
        ...

    async def disconnect(self) -> None:
        """End all its connections to the network. Its programs go on, and may make others."""
        ...

    def unlinked(self, device: int) -> int:
        """How many bytes of a file system are held by its programs in files that have no name any more. Blocks."""
        ...

    async def kill(self, by: EndedBy = "killed") -> None:
        """End everything in it now, for this reason. It takes no more programs."""
        ...

    async def close(self) -> None:
        """Kill it and remove what it held. Doing so twice is harmless."""
        ...


class Sandbox(Protocol):
    """One backend: process, container, wasm."""

    @property
    def name(self) -> str: ...

    async def enforces(self) -> Enforcement:
        """Say what this machine really enforces. Remembered, unless looking at it failed. Never raises."""
        ...

    async def check(self, policy: SandboxPolicy) -> None:
        """Raises `SandboxPolicyRefused` with the field, `SandboxUnavailable` when nothing can be fenced here."""
        ...

    async def open(self, policy: SandboxPolicy) -> SandboxSession:
        """Open a session. Raises as `check`."""
        ...

    async def sweep(self) -> int:
        """End and remove what owners left that are dead. How many sessions that were."""
        ...

    async def close(self) -> None:
        """Close all sessions."""
        ...


class SandboxError(FoliotError):
    """The fence, not the program in it, failed. `kind` is one of the tool errors, for calls that were made in it.

    SandboxError             sandbox_failed: the fence broke
    ├── SandboxUnavailable   sandbox_unavailable: nothing can be fenced on this machine; says what to do
    ├── SandboxPolicyRefused sandbox_policy: `field` of the policy cannot be enforced here, or makes no sense
    ├── SandboxPathRefused   sandbox_path: a path that leads out, is not there, or is no plain file
    ├── SandboxStartFailed   sandbox_start: the program cannot be started (`details.program`)
    └── SandboxGone          sandbox_gone: the session was killed or closed
    """

    code: ClassVar[str] = "sandbox_failed"
    kind: ClassVar[str] = "internal"


class SandboxUnavailable(SandboxError):
    code, http, exit_code = "sandbox_unavailable", 503, 7
    kind = "policy_denied"


class SandboxPolicyRefused(SandboxError):
    code, http, exit_code = "sandbox_policy", 422, 5
    kind = "policy_denied"

    def __init__(self, field: str, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(f"{field}: {message}", hint=hint, field=field, **details)
        self.field = field


class SandboxPathRefused(SandboxError):
    code, http, exit_code = "sandbox_path", 422, 5
    kind = "invalid_arguments"


class SandboxStartFailed(SandboxError):
    code, http, exit_code = "sandbox_start", 422, 5
    kind = "external"


class SandboxGone(SandboxError):
    code, http, exit_code = "sandbox_gone", 409, 4
    kind = "cancelled"


def check_policy(policy: SandboxPolicy, enforcement: Enforcement) -> None:
    """Refuse what makes no sense for any backend, and what is required and not enforced by this one.

    Raises `SandboxPolicyRefused`, `SandboxUnavailable`.
    """
    if not enforcement.available:
        raise SandboxUnavailable(
            f"the sandbox {enforcement.backend!r} cannot be used here: {enforcement.why}", hint=enforcement.hint or None
        )
    for field, path in _paths(policy):
        if not is_plain_path(path):
            raise SandboxPolicyRefused(field, f"{path!r} is not an absolute path without '.', '..' and empty parts")
    _check_targets(policy)
    if policy.network == "broker" and not policy.broker_socket:
        raise SandboxPolicyRefused("broker_socket", "network: broker needs the socket that the broker listens on")
    if policy.network == "none" and policy.broker_socket:
        raise SandboxPolicyRefused("network", "there is a broker_socket, and the network is none")
    for name, value in policy.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise SandboxPolicyRefused("environment", f"{name!r} cannot be the name or value of a variable")
    _check_limits(policy.limits)
    for feature in sorted(policy.require):
        known = enforcement.features.get(feature)
        if feature not in FEATURES:
            raise SandboxPolicyRefused("require", f"there is no {feature!r}", hint=f"there are: {', '.join(FEATURES)}")
        if known is None or not known.enforced:
            why = known.why if known is not None and known.why else "it is not enforced by this backend"
            raise SandboxPolicyRefused(
                "require",
                f"{feature} must be enforced, and the sandbox {enforcement.backend!r} cannot do so here: {why}",
                hint="`foliot doctor` shows what this machine enforces",
                feature=feature,
            )


def is_socket(path: str) -> bool:
    """Whether there is a Unix socket at a path of the host."""
    try:
        return stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode)
    except OSError:
        return False


def is_plain_path(path: str) -> bool:
    """Whether a path is absolute and written in the one way that it can be: only then texts can be compared."""
    parts = path.removesuffix("/").split("/") if path != "/" else [""]
    return path.startswith("/") and not {"", ".", ".."} & {*parts[1:]} and "\0" not in path


def _check_targets(policy: SandboxPolicy) -> None:
    """Refuse mounts that cover what belongs to the sandbox, or lie in one another; ours are where none of others is."""
    shown = [(number, mount.target) for number, mount in enumerate(policy.mounts) if not mount.part]
    for index, why in target_problems([target for _, target in shown]):
        raise SandboxPolicyRefused(f"mounts[{shown[index][0]}].target", why, hint="choose a folder of its own")


def _paths(policy: SandboxPolicy) -> list[tuple[str, str]]:
    found = [("cwd", policy.cwd), ("workspace", policy.workspace), ("broker_socket", policy.broker_socket)]
    for number, mount in enumerate(policy.mounts):
        found += [(f"mounts[{number}].source", mount.source), (f"mounts[{number}].target", mount.target)]
    return [(field, path) for field, path in found if path]


# The least that makes sense; the others must be more than 0.
_LEAST: Final[Mapping[str, int]] = {
    "memory": 16 * MIB,
    "processes": 1,
    "output": 0,
    "tmp_size": 4 * KIB,
    "open_files": 16,
    "cpu_seconds": 1,
}


def _check_limits(limits: Limits) -> None:
    for name in limits.__struct_fields__:
        value: float | None = getattr(limits, name)
        least = _LEAST.get(name)
        if value is None:
            continue
        if least is not None and value < least:
            raise SandboxPolicyRefused(f"limits.{name}", f"must be {least} or more, not {value!r}")
        if least is None and not 0 < value < float("inf"):
            raise SandboxPolicyRefused(f"limits.{name}", f"must be more than 0, not {value!r}")
