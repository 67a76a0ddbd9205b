"""Mounts: no spelling of a target, no link in a folder of others, and no exchange of a source leads to the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foliot.resources.validate import validate_document
from foliot.sandbox.base import Enforcement, Mount, SandboxPolicy, SandboxPolicyRefused, check_policy, is_plain_path
from foliot.sandbox.process import ProcessSandbox

ANYWHERE = Enforcement("process", True)


@pytest.mark.parametrize(
    "target",
    ["/./etc", "/etc/.", "/./", "//etc", "/etc//", "/a/./b", "/a//b", "/a/../etc", "/etc", "/", "relative", "/a\0b"],
)
def test_a_target_has_one_spelling_and_covers_nothing_of_ours(target: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxPolicyRefused, match=r"mounts\[0\].target"):
        check_policy(SandboxPolicy(mounts=(Mount(str(tmp_path), target),)), ANYWHERE)


@pytest.mark.parametrize("target", ["/./etc", "/data/.", "/data//x"])
def test_a_tool_cannot_declare_such_a_target(target: str) -> None:
    spec = {"type": "cli", "cli": {"command": ["id"]}, "sandbox": {"mounts": [{"source": "/srv", "target": target}]}}
    made, problems = validate_document({"kind": "Tool", "metadata": {"name": "t"}, "spec": spec})
    assert made is None
    assert any("target" in str(problem.path) for problem in problems)


@pytest.mark.parametrize(("path", "plain"), [("/", True), ("/a/b", True), ("/a/", True), ("a", False), ("", False)])
def test_what_a_plain_path_is(path: str, plain: bool) -> None:
    assert is_plain_path(path) is plain


@pytest.mark.parametrize(
    "targets", [("/workspace/data",), ("/data", "/data/inner"), ("/data/inner", "/data"), ("/data", "/data")]
)
def test_nothing_is_mounted_inside_what_others_can_write_to(targets: tuple[str, ...], tmp_path: Path) -> None:
    mounts = tuple(Mount(str(tmp_path), target) for target in targets)
    with pytest.raises(SandboxPolicyRefused, match="lie in one another"):
        check_policy(SandboxPolicy(workspace=str(tmp_path), mounts=mounts), ANYWHERE)


@pytest.mark.fence
@pytest.mark.parametrize("target", ["/data", "/opt/deep/down"])
async def test_a_link_in_a_mount_does_not_lead_bubblewrap_to_the_host(tmp_path: Path, target: str) -> None:
    victim, granted = tmp_path / "victim", tmp_path / "granted"
    victim.write_text("precious")
    granted.mkdir()
    for name in ("passwd", "group", "hosts", ".foliot-start"):
        (granted / name).symlink_to(f"/oldroot{victim}")
    sandbox = ProcessSandbox()
    session = await sandbox.open(SandboxPolicy(mounts=(Mount(str(granted), target, True),)))
    try:
        assert (await session.exec(["ls", "-A", target])).stdout.split()
    finally:
        await session.close()
        await sandbox.close()
    assert victim.read_text() == "precious"


@pytest.mark.fence
async def test_a_source_that_was_exchanged_for_a_link_is_refused(tmp_path: Path) -> None:
    granted, secret = tmp_path / "granted", tmp_path / "secret"
    granted.mkdir()
    secret.mkdir()
    (secret / "key").write_text("5ecret")
    sandbox = ProcessSandbox()
    session = await sandbox.open(SandboxPolicy(mounts=(Mount(str(granted), "/data", exact=True),)))
    try:
        assert (await session.exec(["ls", "/data"])).exit_code == 0
        granted.rmdir()
        granted.symlink_to(secret)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(SandboxPolicyRefused, match="exchanged"):
            await session.exec(["cat", "/data/key"])
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        await session.close()
        await sandbox.close()


@pytest.mark.fence
async def test_a_folder_on_the_way_that_became_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    sandbox = ProcessSandbox()
    session = await sandbox.open(SandboxPolicy(mounts=(Mount(str(tmp_path / "a" / "b"), "/data", exact=True),)))
    try:
        os.rename(tmp_path / "a", tmp_path / "gone")
        (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SandboxPolicyRefused, match="exchanged"):
            await session.exec(["ls", "/data"])
    finally:
        await session.close()
        await sandbox.close()
