"""Fences of calls: what is left of a request under its ceilings, and the session that comes of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from foliot.kernel.run.events import WorkspaceSnapshot
from foliot.sandbox.base import Limits, Mount, Sandbox, SandboxPolicy, SandboxSession, WorkspaceAccess
from foliot.sandbox.egress.rules import EgressRecord, EgressRule
from foliot.sandbox.process import ProcessSandbox
from foliot.sandbox.session import undisturbed
from foliot.tools.base import Caller, ToolDenied
from foliot.tools.declared_fences import AGENT_LIMITS, TOOL_LIMITS, agent_fence, fence_request
from foliot.tools.fences import Ceiling, FenceRequest, Fences, FenceSecret, narrowed
from foliot.tools.network_notes import NetworkNotes
from foliot.tools.pipeline.attempt import BoundedWork
from foliot.tools.workspaces import EndResident, FenceOwner, SharedWorkspace, no_resident
from tests.sandbox.egress.world import World, open_world

EVERYWHERE = EgressRule(("*",), (80, 443))


class NotedWorkspace(SharedWorkspace):
    """The shared folder, which notes what is kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "default")
        self.kept: list[FenceOwner] = []

    async def changed(self, owner: FenceOwner) -> None:
        self.kept.append(owner)


OWNER = FenceOwner("fetch", Caller("default", "clerk"), "run-1", "call-1")


def test_each_ceiling_takes_away_and_says_which_rule_did_so() -> None:
    wanted = FenceRequest(workspace="read_write", network=(EVERYWHERE,), limits=Limits(memory=1 << 30))
    first = Ceiling("AgentPolicy/a", workspace="read_only", limits={"memory": 1 << 28, "cpus": 0.5})
    second = Ceiling("AgentPolicy/b", network=(), require=frozenset({"memory"}))

    left = narrowed(wanted, [first, second])

    assert left.request.workspace == "read_only"
    assert (left.request.limits.memory, left.request.limits.cpus) == (1 << 28, 0.5)
    assert left.request.network == () == left.within
    assert left.request.require == {"memory"}
    assert [line.rpartition(" ")[2] for line in left.taken] == ["(AgentPolicy/a)"] * 3 + ["(AgentPolicy/b)"]


@pytest.mark.parametrize("agent", [False, True], ids=["tool", "agent"])
async def test_who_is_not_the_operator_has_no_more_than_the_defaults_or_what_he_grants(agent: bool) -> None:
    def wanted(bound: bool, **limits: Any) -> FenceRequest:
        sandbox = {"limits": limits}
        if agent:
            return agent_fence(Caller("default", "clerk", sandbox={**sandbox, "bound": bound}), AGENT_LIMITS)
        return fence_request(sandbox, namespace="default", bound=bound)

    async def memory(granted: dict[str, float], request: FenceRequest) -> int | None:
        here = Fences(lambda backend: pytest.fail("nothing is opened"), granted_limits=granted)
        return (await here.narrowed(request, OWNER.caller)).request.limits.memory

    usual = AGENT_LIMITS.memory if agent else TOOL_LIMITS.memory
    assert await memory({}, wanted(True)) == usual
    assert await memory({}, wanted(True, memory=str(usual))) == usual
    assert await memory({}, wanted(False, memory="512Gi")) == 512 << 30
    assert await memory({"memory": 512 << 30}, wanted(True, memory="512Gi")) == 512 << 30
    assert await memory({"memory": 1 << 26}, wanted(True)) == 1 << 26
    assert await memory({"memory": 1 << 26}, wanted(False)) == usual
    for limits in ({"memory": "512Gi"}, {"processes": 1_000_000}, {"tmp_size": "64Gi"}, {"open_files": 100_000}):
        with pytest.raises(ToolDenied, match=next(iter(limits))):
            await memory({}, wanted(True, **limits))
    with pytest.raises(ToolDenied, match="memory of more than 64Mi"):
        await memory({"memory": 1 << 26}, wanted(True, memory="128Mi"))


class SlowSession:
    """A session as a busy engine of containers has it: to end a program, and to close, takes longer than anybody waits.

    It closes only once `may_close` is set.
    """

    def __init__(self, policy: SandboxPolicy) -> None:
        self.policy = policy
        self.may_close, self.closed = asyncio.Event(), asyncio.Event()
        self.closes = 0

    async def exec(self, argv: list[str]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if argv == ["deaf"]:
                await undisturbed(self.may_close.wait())
            raise

    async def close(self) -> None:
        self.closes += 1
        await undisturbed(self.may_close.wait())
        self.closed.set()


class SlowSandbox:
    def __init__(self) -> None:
        self.sessions: list[SlowSession] = []

    async def open(self, policy: SandboxPolicy) -> SlowSession:
        self.sessions.append(SlowSession(policy))
        return self.sessions[-1]


@pytest.mark.parametrize("program", ["deaf", "listens"])
async def test_a_call_that_is_closed_in_its_cleanup_breaks_nothing_and_the_cleanup_comes_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: str
) -> None:
    slow, folders = SlowSandbox(), NotedWorkspace(tmp_path)
    fences = Fences(lambda _: cast("Sandbox", slow), workspaces=folders)
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    async def work() -> None:
        async with fences.opened(FenceRequest(workspace="read_write"), OWNER) as session:
            await session.exec([program])

    bounded = BoundedWork(work(), seconds=0.01, scope="total", idle=None, grace=0.01)
    await bounded

    assert bounded.forced
    (session,) = slow.sessions
    assert not await fences.cleaned_up(0.0)
    session.may_close.set()
    assert await fences.cleaned_up(60.0)
    assert session.closed.is_set()
    await asyncio.sleep(0)
    gc.collect()
    assert session.closes == 1
    assert problems == []
    assert "did not end when it was closed" not in caplog.text
    assert folders.kept == [], "what a call did that was cut off is not kept on purpose"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_order_of_ceilings_does_not_matter(order: tuple[int, int]) -> None:
    ceilings = [Ceiling("a", backend="gvisor", workspace="none"), Ceiling("b", backend="container")]

    left = narrowed(FenceRequest(workspace="read_write"), [ceilings[place] for place in order])

    assert (left.request.backend, left.request.workspace) == ("gvisor", "none")


def test_a_ceiling_never_gives_more_than_was_asked_for() -> None:
    wanted = FenceRequest(limits=Limits(memory=1 << 26), secrets=())

    left = narrowed(wanted, [Ceiling("a", network=(EVERYWHERE,), limits={"memory": 1 << 30})])

    assert left.request == wanted
    assert left.within == ()


@pytest.mark.parametrize("source", ["/srv/other", "/srv/data-of-others", "/srv"])
def test_a_mount_that_no_rule_allows_is_refused_by_the_name_of_the_rule(source: str) -> None:
    wanted = FenceRequest(mounts=(Mount(source, "/data"),))

    with pytest.raises(ToolDenied, match="AgentPolicy/a") as caught:
        narrowed(wanted, [Ceiling("AgentPolicy/a", mounts=("/srv/data/",))])

    assert source not in str(caught.value), "paths of the machine are not told"
    assert narrowed(FenceRequest(mounts=(Mount("/srv/data/x", "/data"),)), [Ceiling("a", mounts=("/srv/data/",))])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    made = ProcessSandbox()
    if not (await made.enforces()).available:
        pytest.skip("nothing can be fenced on this machine")
    yield made
    await made.close()


class Kept:
    """Keeps what fences report; the folder of the workspace."""

    def __init__(self, folder: Path) -> None:
        self.records: list[tuple[FenceOwner, EgressRecord]] = []
        self.saved: list[FenceOwner] = []
        self._shared = SharedWorkspace(folder, "default")

    async def access(self, owner: FenceOwner) -> WorkspaceAccess:
        return await self._shared.access(owner)

    def keeps_data(self, namespace: str, agent: str, rules: Mapping[str, Any]) -> bool:
        return False

    async def folder(self, owner: FenceOwner, *, writes: bool = True) -> Path | None:
        return await self._shared.folder(owner)

    def is_shared(self, folder: Path) -> bool:
        return False

    async def take_over(self, owner: FenceOwner, before: WorkspaceSnapshot | None, after: WorkspaceSnapshot) -> None:
        """Do nothing."""

    async def changed(self, owner: FenceOwner) -> None:
        self.saved.append(owner)

    def watch(self, owner: FenceOwner, session: SandboxSession) -> None:
        """Nothing is bounded here."""

    def resides(self, owner: FenceOwner, end: EndResident, *, firm: bool = False) -> Callable[[], None]:
        return no_resident


def fences(sandbox: ProcessSandbox, world: World, kept: Kept, *ceilings: Ceiling) -> Fences:
    async def holding(caller: Caller) -> tuple[Ceiling, ...]:
        return ceilings

    async def reveal(owner: FenceOwner, namespace: str, secret: FenceSecret) -> str:
        return world.values[secret.ref]

    return Fences(
        lambda backend: sandbox,
        workspaces=kept,
        ceilings=holding,
        resolve=world.guard.addresses,
        record=lambda owner, record: kept.records.append((owner, record)),
        reveal=reveal,
    )


FETCH = "import sys, os, urllib.request as u; key = {'X-Key': os.environ['KEY']} if 'a.test' in sys.argv[1] else {}; "
FETCH += "print(u.urlopen(u.Request(sys.argv[1], headers=key)).read().decode())"


async def test_a_fence_with_a_network_reaches_what_both_its_tool_and_the_ceilings_allow(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    port, kept = await world.serve(), Kept(tmp_path)
    wanted = FenceRequest(
        network=(EgressRule(("a.test", "b.test"), (port,)),),
        secrets=(FenceSecret("token", ("a.test",), (port,), "KEY", cleartext=True),),
    )
    here = fences(sandbox, world, kept, Ceiling("AgentPolicy/a", network=(EgressRule(("a.test",), (port,)),)))

    async with here.opened(wanted, OWNER) as session:
        fine = await session.exec(["/usr/bin/python3", "-c", FETCH, f"http://a.test:{port}/"])
        refused = await session.exec(["/usr/bin/python3", "-c", FETCH, f"http://b.test:{port}/"])
        inside = await session.exec(["sh", "-c", "env; cat /proc/self/environ"])

    assert fine.stdout == b"hello\n", fine.stderr
    assert b"403" in refused.stderr
    assert world.values["token"].encode() in world.heard[0]
    assert world.values["token"].encode() not in inside.stdout
    assert [(owner.run_id, record.host, record.verdict, record.reason) for owner, record in kept.records] == [
        ("run-1", "a.test", "allowed", ""),
        ("run-1", "b.test", "denied", "policy"),
    ]


async def test_a_request_between_calls_is_refused_as_such_and_is_no_note_of_the_call_before(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    port, kept, notes = await world.serve(), Kept(tmp_path), NetworkNotes()
    owner, served = replace(OWNER, notes=notes), list[FenceOwner]()
    here = fences(sandbox, world, kept)
    wanted = FenceRequest(network=(EgressRule(("b.test",), (port,)),))
    found = await here.narrowed(wanted, owner.caller)

    session = await here.open_narrowed(found, owner, serving=lambda: served[0] if served else None)
    try:
        for url in (f"http://b.test:{port}/", "http://c.test/"):
            await session.exec(["/usr/bin/python3", "-c", FETCH, url])
        between = notes.text(failed=True)
        served.append(owner)
        await session.exec(["/usr/bin/python3", "-c", FETCH, "http://c.test/"])
    finally:
        await session.close()

    assert [(by.run_id, record.reason) for by, record in kept.records] == [
        ("run-1", "between_calls"),
        ("run-1", "host"),
        ("run-1", "host"),
    ]
    assert between == ""
    assert "c.test" in notes.text(failed=True)
    assert world.heard == []


async def test_what_a_call_changed_is_kept_when_it_is_over_but_not_when_it_is_cancelled(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    kept = Kept(tmp_path)
    here, wanted = fences(sandbox, world, kept), FenceRequest(workspace="read_write")

    async with here.opened(wanted, OWNER) as session:
        await session.write("/workspace/a", b"1")
    with pytest.raises(ZeroDivisionError):
        async with here.opened(wanted, OWNER):
            raise ZeroDivisionError
    with pytest.raises(asyncio.CancelledError):
        async with here.opened(wanted, OWNER):
            raise asyncio.CancelledError
    async with here.opened(FenceRequest(workspace="read_only"), OWNER):
        pass

    assert kept.saved == [OWNER, OWNER]
    assert not session.alive


async def test_another_namespace_does_not_see_the_shared_folder(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    (tmp_path / "note").write_text("ours")
    here = fences(sandbox, world, Kept(tmp_path))

    async with here.opened(FenceRequest(workspace="read_write"), FenceOwner("t", Caller("other"))) as session:
        done = await session.exec(["ls", "/workspace"])

    assert b"note" not in done.stdout


async def test_what_runs_in_no_fence_is_refused_by_the_rule_that_demands_one(
    world: World, sandbox: ProcessSandbox, tmp_path: Path
) -> None:
    lax = fences(sandbox, world, Kept(tmp_path), Ceiling("AgentPolicy/a", network=()))
    await lax.check_unfenced("McpServer/files", OWNER.caller)

    strict = fences(sandbox, world, Kept(tmp_path), Ceiling("AgentPolicy/b", fenced=True))
    with pytest.raises(ToolDenied, match="McpServer/files runs without a sandbox") as caught:
        await strict.check_unfenced("McpServer/files", OWNER.caller)

    assert caught.value.details["rule"] == "AgentPolicy/b"


async def test_without_a_record_of_what_leaves_there_is_no_network(sandbox: ProcessSandbox) -> None:
    here = Fences(lambda backend: sandbox)

    with pytest.raises(ToolDenied, match="record"):
        await here.open(FenceRequest(network=(EVERYWHERE,)), OWNER)
