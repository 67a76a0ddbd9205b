"""The fence that an agent declares for its commands and code, and the rules that take away from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import Caller, ToolDenied, ToolPolicyInvalid
from foliot.tools.builtin.files import EditFile, ReadFile, WriteFile
from foliot.tools.builtin.find import Glob, Grep
from foliot.tools.builtin.output import CommandFailed, CommandTimedOut
from foliot.tools.builtin.python import PythonTool
from foliot.tools.builtin.run_processes import RunProcesses
from foliot.tools.builtin.shell import Bash
from foliot.tools.builtin.workspace import RunFiles
from foliot.tools.fences import Ceiling, Fences, FenceSecret
from foliot.tools.workspaces import FenceOwner, SharedWorkspace
from tests.sandbox.egress.world import World, open_world
from tests.tools.builtin.kit import call, invocation

pytestmark = pytest.mark.fence

FETCH = (
    "import os, urllib.request as u; "
    "asked = u.Request('http://HOST/', headers={'X-Key': os.environ.get('KEY', '')}); "
    "print(u.urlopen(asked, timeout=20).read().decode())"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    made = ProcessSandbox()
    yield made
    await made.close()


def fences(sandbox: ProcessSandbox, folder: Path, world: World | None, *ceilings: Ceiling) -> Fences:
    async def holding(caller: Caller) -> tuple[Ceiling, ...]:
        return ceilings

    async def reveal(owner: FenceOwner, namespace: str, secret: FenceSecret) -> str:
        assert world is not None
        return world.values[secret.ref]

    return Fences(
        lambda backend: sandbox,
        workspaces=SharedWorkspace(folder, "default"),
        ceilings=holding,
        resolve=world.guard.addresses if world else None,
        record=(lambda owner, record: world._record(record)) if world else None,
        reveal=reveal,
    )


def asks(port: int) -> dict:
    return {
        "network": [{"hosts": ["a.test"], "ports": [port], "methods": [], "deny": False}],
        "secrets": [{"secretRef": "token", "hosts": ["a.test"], "ports": [port], "variable": "KEY", "cleartext": True}],
        "bound": False,
    }


async def test_an_agent_has_the_network_that_it_declares_and_no_credential(world, sandbox, tmp_path) -> None:
    port = await world.serve()
    here = fences(sandbox, tmp_path, world)
    processes = RunProcesses(here)
    bash, python = Bash(here, processes.jobs), PythonTool(processes.interpreters)
    code = FETCH.replace("HOST", f"a.test:{port}")
    with_network, without = Caller(agent="clerk", sandbox=asks(port)), Caller(agent="other")

    said = await bash.invoke(invocation(bash, {"command": f'python3 -c "{code}"; env'}, caller=with_network))
    assert said.startswith("hello\n")
    assert (await python.invoke(invocation(python, {"code": code}, caller=with_network))).startswith("hello\n")
    assert world.values["token"] not in said
    assert [world.values["token"].encode() in head for head in world.heard] == [True, True]
    await asyncio.wait_for(world.until_recorded(2), 60)
    assert [(record.host, record.verdict) for record in world.records] == [("a.test", "allowed")] * 2

    with pytest.raises(CommandFailed):
        await bash.invoke(invocation(bash, {"command": f'python3 -c "{code}"'}, caller=without))
    with pytest.raises(CommandFailed):
        await bash.invoke(
            invocation(
                bash, {"command": f'python3 -c "{FETCH.replace("HOST", f"b.test:{port}")}"'}, caller=with_network
            )
        )
    assert len(world.heard) == 2
    await processes.close()


async def test_limits_and_mounts_of_the_agent_hold_and_others_need_a_grant(sandbox, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("seen")
    mounts = [{"source": str(tmp_path / "data"), "target": "/data", "writable": False}]
    here, command = fences(sandbox, tmp_path, None), {"command": "cat /data/a; ulimit -n; echo x > /data/b"}
    asked = {"mounts": mounts, "limits": {"open_files": 64}}

    bash = Bash(here)
    with pytest.raises(CommandFailed) as caught:
        await bash.invoke(invocation(bash, command, caller=Caller(agent="a", sandbox={**asked, "bound": False})))
    assert caught.value.message.startswith("bash: exit code")
    assert "seen64\n" in caught.value.message
    assert "Read-only file system" in caught.value.message

    theirs = Caller(agent="a", sandbox={**asked, "bound": True})
    with pytest.raises(ToolDenied, match="may not show"):
        await bash.invoke(invocation(bash, command, caller=theirs))
    granted = Bash(here, granted_mounts=(str(tmp_path / "data"),))
    with pytest.raises(CommandFailed, match="seen64"):
        await granted.invoke(invocation(granted, command, caller=theirs))


async def test_under_a_read_only_rule_nothing_writes_and_everything_reads(sandbox, tmp_path) -> None:
    (tmp_path / "a").write_text("text\n")
    here = fences(sandbox, tmp_path, None, Ceiling("AgentPolicy/strict", workspace="read_only"))
    files = RunFiles(here)

    assert (await call(ReadFile(files), {"path": "a"})).text == "text\n"
    assert (await call(Grep(files), {"pattern": "text"})).text == "a:1: text"
    assert '"a"' in (await call(Glob(files), {"pattern": "*"})).text
    for tool, arguments in (
        (WriteFile(files), {"path": "b", "content": "x"}),
        (EditFile(files), {"path": "a", "old_string": "text", "new_string": "x"}),
    ):
        refused = await call(tool, arguments)
        assert refused.error is not None
        assert (refused.error.code, "AgentPolicy/strict" in refused.error.message) == ("permission_denied", True)
    with pytest.raises(CommandFailed, match="Read-only file system"):
        await Bash(here).invoke(invocation(Bash(here), {"command": "echo x > b"}))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a"]


async def test_without_access_or_a_folder_file_tools_say_why(sandbox, tmp_path) -> None:
    hidden = RunFiles(fences(sandbox, tmp_path, None, Ceiling("AgentPolicy/strict", workspace="none")))
    with pytest.raises(ToolDenied, match="may not read the files"):
        await hidden.reading(invocation(ReadFile(hidden), {"path": "a"}))
    elsewhere = RunFiles(fences(sandbox, tmp_path, None))
    with pytest.raises(ToolPolicyInvalid, match="there is none here"):
        await elsewhere.reading(invocation(ReadFile(elsewhere), {"path": "a"}, caller=Caller("other")))


async def test_many_commands_at_once_all_succeed_and_leave_nothing(sandbox, tmp_path) -> None:
    bash = Bash(fences(sandbox, tmp_path, None))
    calls = [invocation(bash, {"command": f"echo {n}"}, call_id=f"call-{n}") for n in range(40)]
    said = await asyncio.gather(*map(bash.invoke, calls))
    assert [text.split("\n")[0] for text in said] == [str(n) for n in range(40)]
    assert not sandbox._sessions


RULED = pytest.mark.parametrize(
    ("ceilings", "asked"),
    [
        ((Ceiling("AgentPolicy/short", limits={"seconds": 1.5}),), {}),
        ((), {"limits": {"seconds": 1.5}}),
        ((Ceiling("AgentPolicy/short", limits={"seconds": 1.5}),), {"limits": {"seconds": 600.0}}),
    ],
    ids=["a policy", "the agent", "a policy below the agent"],
)


@RULED
async def test_no_call_takes_longer_than_its_fence_allows_whatever_it_asks_for(
    sandbox, tmp_path, ceilings, asked
) -> None:
    here = fences(sandbox, tmp_path, None, *ceilings)
    processes, caller = RunProcesses(here), Caller(sandbox=asked)
    bash, python = Bash(here, processes.jobs), PythonTool(processes.interpreters)

    with pytest.raises(CommandTimedOut, match=r"timed out after 1\.5 seconds"):
        await bash.invoke(invocation(bash, {"command": "sleep 600", "timeout": 100}, caller=caller))
    with pytest.raises(CommandTimedOut, match=r"took more than 1\.5 seconds"):
        await python.invoke(invocation(python, {"code": "import time; time.sleep(600)", "timeout": 100}, caller=caller))
    background = {"command": "sleep 600", "background": True, "timeout": 3600}
    told = await bash.invoke(invocation(bash, background, caller=caller, run_id="run-1"))
    (job,) = processes.jobs.of("run-1")
    assert job.running is not None
    await asyncio.wait([job.running])
    await processes.close()

    assert "It may take 1.5 seconds" in told
    assert job.status == "timed_out"


async def test_a_job_may_take_longer_than_a_call_where_no_rule_says_otherwise(sandbox, tmp_path) -> None:
    here = fences(sandbox, tmp_path, None)
    processes = RunProcesses(here)
    bash = Bash(here, processes.jobs)

    told = await bash.invoke(invocation(bash, {"command": "true", "background": True}, run_id="run-1"))
    await processes.close()

    assert "It may take 600 seconds" in told
