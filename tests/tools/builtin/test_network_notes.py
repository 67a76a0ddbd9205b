"""A call whose network refused something says so in its own result: what, why, and by which rule."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foliot.sandbox.egress.rules import EgressRecord
from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import Caller, ToolSecretMissing
from foliot.tools.builtin.python import PythonTool
from foliot.tools.builtin.run_processes import RunProcesses
from foliot.tools.builtin.shell import Bash
from foliot.tools.declared_fences import network_rules
from foliot.tools.fences import Ceiling, Fences, FenceSecret
from foliot.tools.network_notes import MOST_LINES, NetworkNotes
from foliot.tools.workspaces import FenceOwner, SharedWorkspace
from tests.sandbox.egress.world import World, open_world
from tests.tools.builtin.kit import call

pytestmark = pytest.mark.fence

POST = "python3 -c \"import urllib.request as u; u.urlopen('http://{}/path?q=1', data=b'x', timeout=20)\""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        yield made


@pytest.fixture
async def sandbox() -> AsyncIterator[ProcessSandbox]:
    made = ProcessSandbox()
    yield made
    await made.close()


def fences(sandbox: ProcessSandbox, folder: Path, world: World, *ceilings: Ceiling) -> Fences:
    async def holding(caller: Caller) -> tuple[Ceiling, ...]:
        return ceilings

    async def reveal(owner: FenceOwner, namespace: str, secret: FenceSecret) -> str:
        if secret.ref not in world.values:
            raise ToolSecretMissing(f"the secret {secret.ref!r} is not there")
        return world.values[secret.ref]

    return Fences(
        lambda backend: sandbox,
        workspaces=SharedWorkspace(folder, "default"),
        ceilings=holding,
        resolve=world.guard.addresses,
        record=lambda owner, record: world._record(record),
        reveal=reveal,
    )


def asking(*hosts: str, port: int, methods: tuple[str, ...] = (), secret: str = "") -> Caller:
    rule = {"hosts": list(hosts), "ports": [port], "methods": list(methods), "deny": False}
    given = {"secretRef": secret, "hosts": list(hosts), "ports": [port], "variable": "KEY", "cleartext": True}
    return Caller(agent="clerk", sandbox={"network": [rule], "secrets": [given] if secret else [], "bound": False})


async def test_a_refused_request_is_in_the_failure_of_its_call_without_its_path(world, sandbox, tmp_path) -> None:
    port = await world.serve()
    bash = Bash(fences(sandbox, tmp_path, world))
    caller = asking("a.test", port=port, methods=("GET",))

    wrong = await call(bash, {"command": POST.format(f"a.test:{port}")}, caller=caller)
    other = await call(bash, {"command": POST.format(f"b.test:{port}") + " || true"}, caller=caller)

    assert wrong.error is not None
    assert f"[network] refused POST a.test:{port}: no rule allows this method" in wrong.error.message
    assert f"[network] refused POST b.test:{port}: no rule allows this host" in other.text
    assert "(method)" in wrong.text
    assert "path?q" not in wrong.text.partition("[network]")[2] + other.text.partition("[network]")[2]


async def test_a_rule_that_takes_hosts_or_all_of_the_network_is_named(world, sandbox, tmp_path) -> None:
    port, command = await world.serve(), {"command": POST.format("a.test:PORT")}
    command["command"] = command["command"].replace("PORT", str(port))
    caller = asking("a.test", port=port)
    only = network_rules([{"hosts": ["b.test"], "ports": [port], "methods": [], "deny": False}])

    some = await call(
        Bash(fences(sandbox, tmp_path, world, Ceiling("AgentPolicy/few", network=only))), command, caller=caller
    )
    offline = Bash(fences(sandbox, tmp_path, world, Ceiling("AgentPolicy/offline", network=())))
    none = await call(offline, command, caller=caller)
    fine = await call(offline, {"command": "echo fine"}, caller=caller)

    assert "AgentPolicy/few does not allow this (policy)" in some.text
    assert none.text.endswith("[network] this call had no network: AgentPolicy/offline")
    assert "[network]" not in fine.text


async def test_each_call_of_an_interpreter_hears_of_its_own_requests_only(world, sandbox, tmp_path) -> None:
    port = await world.serve()
    processes = RunProcesses(fences(sandbox, tmp_path, world))
    python, caller = PythonTool(processes.interpreters), asking("a.test", port=port)
    code = f"import urllib.request as u\nu.urlopen('http://b.test:{port}/')"

    first = await call(python, {"code": "1 + 1"}, caller=caller, call_id="call-1")
    second = await call(python, {"code": code}, caller=caller, call_id="call-2")
    third = await call(python, {"code": "1 + 1"}, caller=caller, call_id="call-3")
    await processes.close()

    assert ["[network] refused GET b.test" in each.text for each in (first, second, third)] == [False, True, False]


async def test_no_command_starts_when_one_of_its_secrets_is_not_there(world, sandbox, tmp_path) -> None:
    port = await world.serve()
    bash = Bash(fences(sandbox, tmp_path, world))

    said = await call(bash, {"command": "echo x > ran"}, caller=asking("a.test", port=port, secret="nowhere"))

    assert said.error is not None
    assert (said.error.code, said.error.before_effect) == ("secret_resolution_failed", True)
    assert not (tmp_path / "ran").exists()
    assert not sandbox._sessions
    assert world.heard == []


def test_whatever_the_code_inside_tries_the_notes_are_a_few_lines() -> None:
    notes = NetworkNotes()
    for number in range(1000):
        notes.note(EgressRecord(f"{'a' * 240}{number}.test", 443, "GET", "denied", "host"))
    for _ in range(3):
        notes.note(EgressRecord(f"{'a' * 240}0.test", 443, "GET", "denied", "host"))
    notes.note(EgressRecord("b.test", 443, "GET", "allowed"))
    notes.note(EgressRecord("b.test", 443, "CONNECT", "failed", "closed"))

    lines = notes.text(failed=False).split("\n")

    assert len(lines) <= MOST_LINES + 1
    assert all(line.startswith("[network] ") and len(line) < 400 for line in lines)
    assert "b.test" not in notes.text(failed=True)
