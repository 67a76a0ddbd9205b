"""Fences of tool calls: what a tool wants around it, the most that holds for its caller, and the session of both.

    FenceRequest   what a tool declares: backend, workspace, network, secrets, mounts, limits
    Ceiling        the most that one rule allows: a policy, the execution policy of a run
    narrowed       what is left of a request under all ceilings; pure, and what `foliot sandbox explain` shows
    Fences         opens the session: finds the folder of the run, puts an egress broker on a fence with a network

A ceiling takes away: access to files, hosts, memory. What cannot be taken away without another meaning is refused: a
mount of a folder that no rule allows, a backend that is weaker than what a rule demands and has no stronger one.
Nothing weaker than what was asked for ever stands in for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from foliot.common.sizes import canonical
from foliot.common.threads import on_thread
from foliot.sandbox.base import (
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxPolicy,
    SandboxSession,
    WorkspaceAccess,
    is_socket,
)
from foliot.sandbox.egress.broker import Broker, Resolve
from foliot.sandbox.egress.credentials import EgressSecret
from foliot.sandbox.egress.rules import EgressRecord, EgressRule
from foliot.sandbox.session import undisturbed
from foliot.tools.base import Caller, Invocation, ToolDenied, ToolPolicyInvalid, before_effect
from foliot.tools.isolation import sandbox_failure
from foliot.tools.pipeline.running import call_network
from foliot.tools.workspaces import EndResident, FenceOwner, WorkspaceFolders, no_resident

log = logging.getLogger(__name__)

Backend: TypeAlias = Literal["process", "container", "gvisor"]
SIZES: Final = frozenset({"memory", "file_size", "tmp_size", "output"})
# From the weakest to the strongest.
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
_ACCESS: Final[tuple[WorkspaceAccess, ...]] = ("none", "read_only", "read_write")


class FenceSecret(Struct, frozen=True):
    """A Secret that code in a fence may use and never sees: it holds a placeholder, the broker sends the value.

    `ref` is `[namespace/]name[:key]`. `hosts` and `ports` are where it is sent. `bound`: only if the Secret itself is
    bound to these hosts, because somebody else than the operator chose them. `by` is the kind that names it.
    """

    ref: str
    hosts: tuple[str, ...]
    ports: tuple[int, ...] = (443,)
    variable: str = ""
    cleartext: bool = False
    bound: bool = True
    by: str = "Tool"

    @property
    def name(self) -> str:
        """The name as the broker and its records know it."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", self.ref)[:64]
        return name if name[:1].isalpha() else f"s{name}"[:64]


class FenceRequest(Struct, frozen=True):
    """The fence that a tool declares. Without `network` there is none. `namespace` is where its secrets are.

    `image` is for containers. `limits`, `require`, `cwd`, `environment` and `mounts` are those of `SandboxPolicy`.
    `limits_within` are the limits that somebody else than the operator declared, each with the most that it may be
    without a grant. `mounts_within` are the folders that mounts have to lie in when links are followed, for the same
    reason; one ends with `:rw` if they may be writable. None is no bound. `parts` are mounts that Foliot itself needs
    inside, the interpreter for example: no rule is about them.
    """

    backend: Backend = "process"
    image: str = ""
    workspace: WorkspaceAccess = "none"
    network: tuple[EgressRule, ...] = ()
    secrets: tuple[FenceSecret, ...] = ()
    mounts: tuple[Mount, ...] = ()
    mounts_within: tuple[str, ...] | None = None
    parts: tuple[Mount, ...] = ()
    limits: Limits = Limits()
    limits_within: Mapping[str, float] | None = None
    environment: Mapping[str, str] = {}
    cwd: str = ""
    require: frozenset[str] = frozenset()
    namespace: str = ""


class Ceiling(Struct, frozen=True):
    """The most that one rule allows; None stands for no bound. `rule` is its name in refusals and explanations.

    `backend` is the weakest that may be used; with `fenced`, code that runs in no fence at all is refused. `network`
    are rules that a request must be allowed by as well: with none of them there is no network. `mounts` are folders of
    the host: a tool may show what lies in one of them. Of `limits` each that is set holds. `require` must really be
    enforced.
    """

    rule: str = ""
    backend: Backend = "process"
    fenced: bool = False
    workspace: WorkspaceAccess = "read_write"
    network: tuple[EgressRule, ...] | None = None
    mounts: tuple[str, ...] | None = None
    limits: Mapping[str, float] = {}
    require: frozenset[str] = frozenset()


class Narrowed(Struct, frozen=True):
    """A request under its ceilings. `within` are the rules of each ceiling on the network.

    `taken` says what was taken away, each with the rule that did so, for people.
    """

    request: FenceRequest
    within: tuple[tuple[EgressRule, ...], ...] = ()
    taken: tuple[str, ...] = ()


def narrowed(wanted: FenceRequest, ceilings: Sequence[Ceiling]) -> Narrowed:
    """Returns what is left of a request under all ceilings. Raises `ToolDenied` for what cannot be taken away."""
    left, within, taken = wanted, list[tuple[EgressRule, ...]](), list[str]()
    for ceiling in ceilings:
        if (backend := _stronger(left.backend, ceiling.backend)) != left.backend:
            taken.append(f"backend: {backend} instead of {left.backend} ({ceiling.rule})")
            left = replace(left, backend=backend)
        if (access := less_access(left.workspace, ceiling.workspace)) != left.workspace:
            taken.append(f"workspace: {access} instead of {left.workspace} ({ceiling.rule})")
            left = replace(left, workspace=access)
        if ceiling.network is not None and left.network:
            if ceiling.network:
                within.append(ceiling.network)
            else:
                left = replace(left, network=(), secrets=())
            taken.append(f"network: {'only some hosts' if ceiling.network else 'none'} ({ceiling.rule})")
        _check_mounts(left.mounts, ceiling)
        for name, most in ceiling.limits.items():
            now: float | None = getattr(left.limits, name)
            if now is None or most < now:
                taken.append(f"{name}: {most:g} ({ceiling.rule})")
                kind = float if name in ("cpus", "seconds") else int
                left = replace(left, limits=replace(left.limits, **{name: kind(most)}))
        left = replace(left, require=left.require | ceiling.require)
    return Narrowed(left, tuple(within) if left.network else (), tuple(taken))


def _stronger(one: Backend, other: Backend) -> Backend:
    return BACKENDS[max(BACKENDS.index(one), BACKENDS.index(other))]


def less_access(one: WorkspaceAccess, other: WorkspaceAccess) -> WorkspaceAccess:
    """The access of two that lets less be done."""
    return _ACCESS[min(_ACCESS.index(one), _ACCESS.index(other))]


def _check_mounts(mounts: Sequence[Mount], ceiling: Ceiling) -> None:
    if ceiling.mounts is None:
        return
    allowed = [folder.rstrip("/") for folder in ceiling.mounts]
    for mount in mounts:
        if not lies_in(mount.source, allowed):
            raise ToolDenied(
                f"{ceiling.rule} does not allow this tool to see {mount.target} in its sandbox",
                layer="sandbox",
                rule=ceiling.rule,
            )


def with_real_mounts(wanted: FenceRequest) -> FenceRequest:
    """Returns the request with its mounts as they are on this machine now, links followed. Raises `ToolDenied`.

    What a link leads to is what would be shown, so that is what grants and ceilings are held against.
    """
    mounts = tuple(
        Mount(os.path.realpath(each.source), each.target, each.writable, exact=True) for each in wanted.mounts
    )
    if wanted.mounts_within is not None:
        for mount in mounts:
            if not mount_granted(mount.source, mount.writable, wanted.mounts_within, follow=os.path.realpath):
                raise ToolDenied(
                    f"whoever declared this tool may not show what would be at {mount.target} in its sandbox",
                    hint="the operator of this installation grants folders by the setting sandbox_mounts "
                    "(FOLIOT_SANDBOX_MOUNTS)",
                    layer="sandbox",
                )
        _check_sockets(mounts, wanted.mounts_within)
    return replace(wanted, mounts=mounts)


def _check_sockets(mounts: Sequence[Mount], entries: Iterable[str]) -> None:
    """Raises `ToolDenied` for a socket that no entry of `sandbox_mounts` names itself, or that is beside a folder.

    Programs that may connect to one socket may connect to all that they see.
    """
    sockets = [mount for mount in mounts if is_socket(mount.source)]
    named = {os.path.realpath(each.removesuffix(":rw")) for each in entries}
    for mount in sockets:
        if mount.source not in named or any(os.path.isdir(each.source) for each in mounts):
            raise ToolDenied(
                f"the socket that would be at {mount.target} in its sandbox may not be connected to",
                hint="the operator of this installation grants it by its own path in sandbox_mounts, and it is shown "
                "beside no folder",
                layer="sandbox",
            )


def limit_exceeded(
    declared: Mapping[str, float], within: Mapping[str, float], granted: Mapping[str, float]
) -> tuple[str, float] | None:
    """The first declared limit that is more than the operator grants, with the most that it may be.

    `within` is the most of each where `granted`, the setting `sandbox_limits`, says nothing of it.
    """
    for name, value in declared.items():
        if value > (most := granted.get(name, within[name])):
            return name, most
    return None


def granted_ceilings(wanted: FenceRequest, granted: Mapping[str, float]) -> tuple[Ceiling, ...]:
    """The ceilings that the setting `sandbox_limits` puts on what others than the operator declared.

    Raises `ToolDenied` for a limit that was declared beyond them.
    """
    if wanted.limits_within is None:
        return ()
    declared: dict[str, float] = {name: getattr(wanted.limits, name) for name in wanted.limits_within}
    if (found := limit_exceeded(declared, wanted.limits_within, granted)) is not None:
        raise ToolDenied(
            f"the author of this tool may not give its sandbox {found[0]} of more than {shown_limit(*found)}",
            hint="the operator of this installation grants more by the setting sandbox_limits (FOLIOT_SANDBOX_LIMITS)",
            layer="sandbox",
        )
    bounds = {name: most for name, most in granted.items() if name in Limits.__struct_fields__}
    return (Ceiling("the setting sandbox_limits", limits=bounds),) if bounds else ()


def shown_limit(name: str, value: float) -> str:
    """A limit as people write it: `512Mi`, `256`."""
    return canonical(int(value)) if name in SIZES else f"{value:g}"


def mount_granted(
    source: str, writable: bool, entries: Iterable[str], *, follow: Callable[[str], str] = os.path.normpath
) -> bool:
    """Whether entries of `sandbox_mounts` hold a file or folder: `/srv/data`, or `/srv/out:rw` for what is writable."""
    folders = (each.removesuffix(":rw") for each in entries if not writable or each.endswith(":rw"))
    return lies_in(follow(source), map(follow, folders))


def lies_in(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or below one that is a folder."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def image_granted(image: str, pattern: str) -> bool:
    """Whether an entry of `container_images` holds an image: the very one, or all below a name as `team.example/*`."""
    return image == pattern or (pattern.endswith("/*") and image.startswith(pattern[:-1]))


Ceilings: TypeAlias = Callable[[Caller], Awaitable[Sequence[Ceiling]]]
"""The ceilings that hold for whoever calls now."""
RevealSecret: TypeAlias = Callable[[FenceOwner, str, FenceSecret], Awaitable[str]]
"""The value of a secret, by whose fence it is and the namespace that its reference is read in."""
RecordEgress: TypeAlias = Callable[[FenceOwner, EgressRecord], None]
"""Keeps what a fence did on the network. When it raises, nothing more is let through."""

RecordUnfenced: TypeAlias = Callable[[FenceOwner, Sequence[str]], Awaitable[None]]
"""Keeps that a program is about to run without a fence, by its command line. When it raises, it is not started."""


Serving: TypeAlias = Callable[[], FenceOwner | None]
"""The call that a session serves now; None between calls."""


# The call that a connection of a broker was made for, in the task of that connection: it may end after the call.
_CONNECTED: Final[ContextVar[FenceOwner | None]] = ContextVar("connected", default=None)


async def no_ceilings(caller: Caller) -> Sequence[Ceiling]:
    """The ceilings where nothing governs: none."""
    return ()


class Fences:
    """Opens the fences of one runtime. `sandbox` gives the backend by its name.

    `granted_limits` is the setting `sandbox_limits`.
    `resolve` gives the checked addresses of a host (`Guard.addresses`). Without `record` no fence has a network: what
    is not recorded does not leave.
    """

    def __init__(
        self,
        sandbox: Callable[[Backend], Sandbox],
        *,
        workspaces: WorkspaceFolders | None = None,
        ceilings: Ceilings = no_ceilings,
        resolve: Resolve | None = None,
        record: RecordEgress | None = None,
        reveal: RevealSecret | None = None,
        unfenced: RecordUnfenced | None = None,
        default_image: str = "",
        granted_limits: Mapping[str, float] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self.workspaces = workspaces
        self._ceilings = ceilings
        self._resolve = resolve
        self._record = record
        self._reveal = reveal
        self._unfenced = unfenced
        self._default_image = default_image
        self._granted_limits = granted_limits or {}
        # Sessions that are being closed, some of them for calls that nobody waits for any more.
        self._cleanups: set[asyncio.Task[None]] = set()

    async def narrowed(self, wanted: FenceRequest, caller: Caller) -> Narrowed:
        """Returns what a fence would be for this caller now. Raises `ToolDenied`."""
        with before_effect():
            if wanted.mounts:
                wanted = await on_thread(with_real_mounts, wanted)
            ceilings = [*granted_ceilings(wanted, self._granted_limits), *await self._ceilings(caller)]
            found = narrowed(wanted, ceilings)
        if (notes := call_network()) is not None and wanted.network:
            notes.narrowed(
                [each.rule for each in ceilings if each.network == ()], [each.rule for each in ceilings if each.network]
            )
        if found.request.backend != "process" and not found.request.image:
            found = replace(found, request=replace(found.request, image=self._default_image))
        return found

    def opened(self, wanted: FenceRequest, owner: FenceOwner) -> AbstractAsyncContextManager[SandboxSession]:
        """A session for one call. What it changed in the workspace is kept when the call is over.

        A call that is cancelled may have acted: nothing of it is kept on purpose. Raises as `open`.
        """
        return _OpenFence(self, owner, self.narrowed(wanted, owner.caller))

    def entered(self, found: Narrowed, owner: FenceOwner) -> AbstractAsyncContextManager[SandboxSession]:
        """The session of a request that is narrowed already; as `opened`."""
        return _OpenFence(self, owner, found)

    def working(self, policy: SandboxPolicy, owner: FenceOwner) -> AbstractAsyncContextManager[None]:
        """Around a call that works on its folder, in a session that others use too or in none: as `opened`."""
        return _Working(self, policy, owner)

    def finishing(self, cleanup: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have a cleanup come to its end, also when the call that needs it is closed while it waits."""
        task = asyncio.get_running_loop().create_task(cleanup)
        self._cleanups.add(task)
        task.add_done_callback(self._finished)
        return task

    async def cleaned_up(self, within: float) -> bool:
        """Waits until fences that are being closed are: none of their programs is left. False if it takes longer."""
        if not self._cleanups:
            return True
        _, open_still = await asyncio.wait(set(self._cleanups), timeout=within)
        return not open_still

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._cleanups.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a sandbox could not be closed: %s: %s", type(error).__name__, error)

    async def changed(self, policy: SandboxPolicy, owner: FenceOwner) -> None:
        """Keep what a call changed in the workspace, if it could change anything; before its result is durable."""
        if self.workspaces is not None and policy.shows_workspace and policy.workspace_access == "read_write":
            await self.workspaces.changed(owner)

    def resides(
        self, policy: SandboxPolicy, owner: FenceOwner, end: EndResident, *, firm: bool = False
    ) -> Callable[[], None]:
        """A program works on the folder between calls; call what is returned at its end. See `WorkspaceFolders`."""
        if self.workspaces is not None and policy.shows_workspace and policy.workspace_access == "read_write":
            return self.workspaces.resides(owner, end, firm=firm)
        return no_resident

    async def workspace(self, access: WorkspaceAccess, owner: FenceOwner) -> tuple[Path | None, WorkspaceAccess]:
        """The folder that a call works on, ready, or None; and what is left of this access. Raises `ToolError`."""
        if access == "none" or self.workspaces is None:
            return None, access
        access = less_access(access, await self.workspaces.access(owner))
        return await self.workspaces.folder(owner, writes=access == "read_write"), access

    async def open(self, wanted: FenceRequest, owner: FenceOwner) -> SandboxSession:
        """Open a session, which whoever asked for it closes. Nothing has run in it.

        Raises `ToolDenied` when a ceiling forbids it, `ToolIsolationMissing` when it cannot be had here,
        `ToolPolicyInvalid` when it makes no sense, `ToolSecretMissing` when one of its secrets does not exist.
        """
        return await self.open_narrowed(await self.narrowed(wanted, owner.caller), owner)

    async def open_narrowed(
        self, found: Narrowed, owner: FenceOwner, *, serving: Serving | None = None
    ) -> SandboxSession:
        """Open a session as `narrowed` found it, for calls of whoever may have such a fence.

        With `serving`, the session outlives a call: what leaves is recorded for the call that is served at the time,
        and nothing is let out while there is none. Raises as `open`, but for `ToolDenied`.
        """
        with before_effect():
            try:
                return await self._opened(found, owner, serving or (lambda: owner))
            except SandboxError as error:
                raise sandbox_failure(error) from None

    async def check_unfenced(self, what: str, caller: Caller) -> None:
        """Raises `ToolDenied`, with the rule, where a ceiling refuses what runs in no fence."""
        for ceiling in await self._ceilings(caller):
            if ceiling.fenced:
                raise ToolDenied(f"{what} runs without a sandbox", layer="sandbox", rule=ceiling.rule)

    async def record_unfenced(self, owner: FenceOwner, command: Sequence[str]) -> None:
        """Keep that a program is started without a fence, before it is. Raises `ToolDenied` when nothing keeps it."""
        if self._unfenced is None:
            raise ToolDenied("no program runs without a sandbox here: nothing could record it", layer="sandbox")
        await self._unfenced(owner, command)

    async def _opened(self, found: Narrowed, owner: FenceOwner, serving: Serving) -> SandboxSession:
        folder, access = await self.workspace(found.request.workspace, owner)
        session = await self._opened_on(folder, access, found, owner, serving)
        if self.workspaces is not None and folder is not None and access == "read_write":
            self.workspaces.watch(owner, session)
        return session

    async def _opened_on(
        self, folder: Path | None, access: WorkspaceAccess, found: Narrowed, owner: FenceOwner, serving: Serving
    ) -> SandboxSession:
        wanted = found.request
        policy = SandboxPolicy(
            mounts=(*(replace(each, part=True) for each in wanted.parts), *wanted.mounts),
            workspace=None if folder is None else str(folder),
            workspace_access=access,
            workspace_shared=folder is not None and self.workspaces is not None and self.workspaces.is_shared(folder),
            cwd=wanted.cwd,
            environment=wanted.environment,
            limits=wanted.limits,
            require=wanted.require,
            image=wanted.image,
        )
        sandbox = self._sandbox(wanted.backend)
        if not wanted.network:
            return await sandbox.open(policy)
        await self._check_secrets(wanted, owner)
        broker = self._broker(found, owner, serving)
        await broker.__aenter__()
        try:
            return await broker.open(sandbox, policy)
        except GeneratorExit:
            self.finishing(broker.close())
            raise
        except BaseException:
            await undisturbed(self.finishing(broker.close()))
            raise

    async def _check_secrets(self, wanted: FenceRequest, owner: FenceOwner) -> None:
        """Raises, before anything runs, for a secret that cannot be had now: the host would refuse what lacks it."""
        reveal = self._reveal
        if reveal is None:
            return  # which the broker refuses
        for secret in wanted.secrets:
            await reveal(owner, wanted.namespace or owner.caller.namespace, secret)

    def _broker(self, found: Narrowed, owner: FenceOwner, serving: Serving) -> Broker:
        wanted, last = found.request, owner
        if self._resolve is None or self._record is None:
            raise ToolDenied("there is no network here: nothing could record what leaves", layer="sandbox")
        look_up, record = self._resolve, self._record
        by_name = {secret.name: secret for secret in wanted.secrets}
        if any(by_name[each.name].ref != each.ref for each in wanted.secrets):  # one would go where the other may
            raise ToolPolicyInvalid("two secrets of this tool read alike", field="spec.sandbox.secrets")
        namespace = wanted.namespace or owner.caller.namespace

        def served() -> FenceOwner:
            nonlocal last
            last = _CONNECTED.get() or serving() or last
            return last

        def recorded(entry: EgressRecord) -> None:
            # A request between calls is recorded for the call before it, whose result says nothing of it.
            asking = _CONNECTED.get() or serving()
            if asking is not None and asking.notes is not None:
                asking.notes.note(entry)
            record(served(), entry)

        async def resolve(host: str, port: int) -> Sequence[str]:
            if (owner := serving()) is None:
                raise ToolDenied("no call is in progress", layer="sandbox", refusal="between_calls")
            _CONNECTED.set(owner)
            return await look_up(host, port)

        async def reveal(name: str) -> str:
            assert self._reveal is not None, "a broker with secrets has one"
            return await self._reveal(served(), namespace, by_name[name])

        return Broker(
            wanted.network,
            within=found.within,
            resolve=resolve,
            record=recorded,
            secrets=[
                EgressSecret(each.name, each.hosts, each.ports, each.variable, each.cleartext)
                for each in wanted.secrets
            ],
            reveal=None if self._reveal is None else reveal,
        )


# Context managers without generators: a call that does not end when it is told to is closed wherever it waits, which a
# generator that waits in its cleanup does not survive. After `GeneratorExit` a call must wait for nothing more.
_CUT_OFF: Final = (asyncio.CancelledError, GeneratorExit)


class _Working(AbstractAsyncContextManager[None]):
    def __init__(self, fences: Fences, policy: SandboxPolicy, owner: FenceOwner) -> None:
        self._fences, self._policy, self._owner = fences, policy, owner

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, _CUT_OFF):
            await self._fences.changed(self._policy, self._owner)


class _OpenFence(AbstractAsyncContextManager[SandboxSession]):
    def __init__(self, fences: Fences, owner: FenceOwner, found: Narrowed | Awaitable[Narrowed]) -> None:
        self._fences, self._owner, self._found = fences, owner, found

    async def __aenter__(self) -> SandboxSession:
        found = self._found if isinstance(self._found, Narrowed) else await self._found
        self._session = await self._fences.open_narrowed(found, self._owner)
        return self._session

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        closing = self._fences.finishing(self._session.close())
        if isinstance(error, GeneratorExit):
            return
        keeps = not isinstance(error, _CUT_OFF)
        try:
            await undisturbed(closing)
        except _CUT_OFF:
            keeps = False
            raise
        finally:
            if keeps:
                await self._fences.changed(self._session.policy, self._owner)


def fence_of(call: Invocation) -> FenceOwner:
    """Returns the owner of the fence of this call."""
    return FenceOwner(call.tool, call.caller, call.run_id, call.call_id, call_network())
