"""Containers: how they end, what is refused, what is swept. On a real podman, and on what one answered.

FOLIOT_RECORD=podman-4.3.1.json pytest -n0 tests/sandbox/containers -k real      makes the tape anew
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from foliot.common.process import host, identity
from foliot.sandbox.base import (
    FEATURES,
    Limits,
    Mount,
    SandboxError,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    SandboxUnavailable,
)
from foliot.sandbox.container import ContainerSandbox
from foliot.sandbox.container_cli import NOBODY, Container
from foliot.sandbox.egress.credentials import EgressSecret
from foliot.sandbox.egress.rules import EgressRule
from tests.sandbox.containers import player
from tests.sandbox.containers.engines import usable
from tests.sandbox.containers.images import system_image
from tests.sandbox.egress.world import open_world

HERE = Path(__file__).parent
TAPE = HERE / "podman-4.3.1.json"
ZEROS = "0" * 64
DEAD = f"{host()}/{identity().split('/')[1]}/4194304/1"


@pytest.fixture(params=["real podman", "recorded podman"])
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes sandboxes on the engine: on a real one, or on the player of what a real one answered."""
    tape = os.environ.get("FOLIOT_RECORD", "")
    recorded = request.param == "recorded podman"
    runtime, why = ("", "") if recorded else usable("podman", "container")
    if runtime == "-":
        pytest.skip(f"not run on a real engine: {why}")
    path = shutil.which("podman") or "podman"
    if recorded or tape:
        state = tmp_path / "state"
        state.mkdir()
        monkeypatch.setenv("CONTAINERS_TAPE", str(HERE / tape) if tape else str(TAPE))
        monkeypatch.setenv("CONTAINERS_STATE", str(state))
        if not recorded:
            monkeypatch.setenv("CONTAINERS_RECORD", path)
        playing = tmp_path / "podman"
        playing.write_text(f'#!/bin/sh\nexec {sys.executable} -I {player.__file__} "$@"\n')
        playing.chmod(0o755)
    if recorded:
        known = json.loads(TAPE.read_text())
        image, runtime = known["image"], known["runtime"]
        path = str(playing)
    else:
        image = system_image(path)
        if tape:
            path = str(playing)

    def make(**more: str) -> ContainerSandbox:
        return ContainerSandbox(**{"cli": path, "runtime": runtime, "image": image, **more})

    yield make
    if tape and not recorded:
        kept = json.loads((HERE / tape).read_text())
        (HERE / tape).write_text(
            json.dumps({**kept, "image": image, "runtime": runtime}, indent=1, sort_keys=True) + "\n"
        )


@pytest.fixture
async def sandbox(made):
    sandbox = made()
    yield sandbox
    await sandbox.close()
    assert [each for each in await sandbox.cli.containers() if each.owner == sandbox.owner] == []


async def test_a_container_is_looked_at_from_inside(sandbox) -> None:
    found = await sandbox.enforces()
    assert found.available, found.why
    assert [name for name in FEATURES if not found.enforces(name)] == ["landlock"]


async def test_the_exit_code_of_a_program_is_not_taken_for_that_of_the_engine(sandbox) -> None:
    session = await sandbox.open(SandboxPolicy())
    done = await session.exec(["sh", "-c", "cat; echo wrong >&2; exit 125"], stdin=b"given")
    assert (done.exit_code, done.stdout, done.stderr, done.ended_by) == (125, b"given", b"wrong\n", "")


async def test_what_cannot_be_started_is_an_error(sandbox) -> None:
    session = await sandbox.open(SandboxPolicy())
    with pytest.raises(SandboxStartFailed, match="no-such-program"):
        await session.exec(["no-such-program"])
    with pytest.raises(SandboxStartFailed, match="folder"):
        await session.exec(["true"], cwd="/no/such/folder")


async def test_an_image_that_is_not_here_is_not_pulled(sandbox) -> None:
    with pytest.raises(SandboxUnavailable, match="not on this machine") as caught:
        await sandbox.open(SandboxPolicy(image=f"registry.example/none@sha256:{ZEROS}"))
    assert caught.value.hint == f"podman pull registry.example/none@sha256:{ZEROS}"


async def test_an_image_has_its_own_name_and_its_digest(sandbox, made) -> None:
    name, _, digest = made()._image.partition("@")
    for wrong in (f"localhost/other@{digest}", name, f"--privileged@sha256:{ZEROS}"):
        with pytest.raises(SandboxPolicyRefused, match="image: "):
            await sandbox.open(SandboxPolicy(image=wrong))
    without = made(image="")
    with pytest.raises(SandboxPolicyRefused, match="needs an image"):
        await without.open(SandboxPolicy())
    await without.close()


async def test_a_time_out_removes_the_container(sandbox) -> None:
    session = await sandbox.open(SandboxPolicy(limits=Limits(seconds=2)))
    done = await session.exec(["sleep", "3600"])
    assert (done.ended_by, done.exit_code) == ("timeout", 137)
    assert sandbox.owner not in await running(sandbox)


async def test_what_a_dead_owner_left_is_swept_and_nothing_else(sandbox, made) -> None:
    left = made()
    for each in (sandbox, left):
        await each.enforces()  # which begins with a sweep
    left.owner = DEAD
    lost = asyncio.create_task((await left.open(SandboxPolicy())).exec(["sleep", "3601"]))
    kept = asyncio.create_task((await sandbox.open(SandboxPolicy())).exec(["sleep", "3602"]))
    async with asyncio.timeout(60):
        # Any Foliot on this machine may be the first to sweep it.
        while not lost.done() and DEAD not in await running(sandbox):
            await asyncio.sleep(0.05)
        while sandbox.owner not in await running(sandbox):
            await asyncio.sleep(0.05)
    await sandbox.sweep()
    assert DEAD not in await running(sandbox)
    assert sandbox.owner in await running(sandbox)
    kept.cancel()
    await asyncio.gather(lost, kept, return_exceptions=True)
    await left.close()


def test_what_ended_with_an_earlier_boot_is_an_orphan_unless_it_runs(made) -> None:
    name, _, boot = host().rpartition(".")
    before = f"{name}.{'0' * len(boot)}/1/2/3"
    elsewhere = f"another-{before}"
    known = {(before, "Exited (137) 2 days ago"), (before, "Up 2 days ago"), (elsewhere, "exited"), (before, "running")}
    orphans = {each for each in known if made()._is_orphan(Container("foliot-1-a", each[1], each[0]))}
    assert orphans == {(before, "Exited (137) 2 days ago")}


async def running(sandbox: ContainerSandbox) -> set[str]:
    """The owners of the containers that run now."""
    return {each.owner for each in await sandbox.cli.containers() if each.runs}


async def test_a_runtime_that_is_missing_is_named_and_none_is_taken_instead(made) -> None:
    found = await made(runtime="no-such-runtime").enforces()
    assert not found.available
    assert "no-such-runtime" in found.why + found.hint
    with pytest.raises(SandboxUnavailable, match="cannot be used here"):
        await made(runtime="no-such-runtime").open(SandboxPolicy())


@pytest.mark.skipif(os.geteuid() != 0, reason="only a root worker runs programs as somebody else")
async def test_a_folder_that_the_user_inside_cannot_write_is_refused_by_its_field(sandbox, tmp_path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir(0o755)
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    await sandbox.check(SandboxPolicy(workspace=str(tmp_path / "theirs")))
    await sandbox.check(SandboxPolicy(workspace=str(tmp_path / "mine"), workspace_access="read_only"))
    for policy, field in (
        (SandboxPolicy(workspace=str(tmp_path / "mine")), "workspace"),
        (SandboxPolicy(mounts=(Mount(str(tmp_path / "mine"), "/data", writable=True),)), "mounts[0].source"),
    ):
        with pytest.raises(SandboxPolicyRefused) as caught:
            await sandbox.check(policy)
        assert caught.value.field == field


async def test_without_an_engine_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox = ContainerSandbox(image=f"a@sha256:{ZEROS}")
    found = await sandbox.enforces()
    assert (found.available, found.why) == (False, "neither podman nor docker is installed")
    with pytest.raises(SandboxError, match="cannot be used here"):
        await sandbox.open(SandboxPolicy())


async def test_a_container_reaches_what_its_broker_allows_with_a_secret_that_it_does_not_have(tmp_path) -> None:
    runtime, why = await asyncio.to_thread(usable, "podman", "container")
    if runtime == "-":
        pytest.skip(f"not run on a real engine: {why}")
    sandbox = ContainerSandbox(cli="podman", runtime=runtime)
    program = """
import os, sys, urllib.request, urllib.error
for host in ("b.test", "c.test"):
    asked = urllib.request.Request(f"http://{host}:{sys.argv[1]}/", headers={"X-Key": os.environ["API_TOKEN"]})
    try:
        print(urllib.request.urlopen(asked, timeout=30).read().decode())
    except urllib.error.URLError as error:
        print(error)
"""
    async with open_world(tmp_path) as world:
        port = await world.serve()
        secret = EgressSecret("token", ("b.test",), (port,), variable="API_TOKEN", cleartext=True)
        async with world.broker(EgressRule(("b.test",), (port,)), secrets=[secret]) as broker:
            image = await asyncio.to_thread(system_image, "podman")
            session = await broker.open(sandbox, SandboxPolicy(image=image))
            done = await session.exec(["python3", "-c", program, str(port)])
            await session.close()
        assert done.stdout.decode().splitlines() == ["hello", "HTTP Error 403: Forbidden"], done.stderr
        assert f"X-Key: {world.values['token']}".encode() in world.heard[0]
    await sandbox.close()
