"""Mounts: no spelling of a target, no link in a folder of others, and no exchange of a source leads to the host."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from foliot.resources.validate import validate_document
from foliot.sandbox.base import (
    LAUNCHER,
    Enforcement,
    Mount,
    SandboxPolicy,
    SandboxPolicyRefused,
    check_policy,
    is_plain_path,
)
from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import ToolDenied
from foliot.tools.fences import FenceRequest, with_real_mounts

ANYWHERE = Enforcement("process", True)


@pytest.mark.parametrize(
    "target",
    ["/./etc", "/etc/.", "/./", "//etc", "/etc//", "/a/./b", "/a//b", "/a/../etc", "/etc", "/", "relative", "/a\0b"],
)
def test_a_target_has_one_spelling_and_covers_nothing_of_ours(target: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxPolicyRefused, match=r"mounts\[0\].target"):
        check_policy(SandboxPolicy(mounts=(Mount(str(tmp_path), target),)), ANYWHERE)


@pytest.mark.parametrize(
    "targets",
    [
        *(
            (each,)
            for each in (
                "/./etc", "/data/.", "/data//x", "/", "/tmp", "/etc", "/etc/", "/run", "/opt", "/usr", "/workspace",
                "/workspace/data", "/proc", "/proc/self", "/dev/fd", "/sys", "/run/foliot/x", "/run/foliot-egress",
                "/usr/lib/x", "/usr/bin", "/bin/sh", "/sbin/x", "/lib/x", "/lib64/x",
                "/opt/foliot-python/lib", "/opt/foliot-code", LAUNCHER, f"{LAUNCHER}/x",
                "/data", "/data/", "/etc/app", "/opt/acme", "/run/app", "/tmp/app", "/srv/a/b", "/home", "/code",
            )
        ),
        ("/data", "/data/inner"), ("/data/inner", "/data"), ("/data", "/data/"), ("/data", "/data2"),
    ],
    ids=str,
)  # fmt: skip
def test_a_target_is_refused_when_it_is_declared_as_it_is_when_it_is_used(targets: Sequence[str]) -> None:
    try:
        check_policy(SandboxPolicy(mounts=tuple(Mount("/srv", target) for target in targets)), ANYWHERE)
        field = ""
    except SandboxPolicyRefused as refused:
        field = refused.field
    mounts = {"mounts": [{"source": "/srv", "target": target} for target in targets]}
    for kind, spec, place in (
        ("Tool", {"type": "cli", "cli": {"command": ["id"]}, "sandbox": mounts}, "spec.sandbox."),
        ("Agent", {"model_ref": "m", "sandbox": mounts}, "spec.sandbox."),
        ("Agent", {"runner": {"command": ["id"], "sandbox": mounts}}, "spec.runner.sandbox."),
        ("McpServer", {"transport": "stdio", "command": "id", "sandbox": mounts}, "spec.sandbox."),
    ):
        _, problems = validate_document({"kind": kind, "metadata": {"name": "t"}, "spec": spec})
        assert [problem.field for problem in problems] == ([place + field] if field else [])


@pytest.mark.parametrize(("path", "plain"), [("/", True), ("/a/b", True), ("/a/", True), ("a", False), ("", False)])
def test_what_a_plain_path_is(path: str, plain: bool) -> None:
    assert is_plain_path(path) is plain


@pytest.mark.parametrize(
    "targets", [("/workspace/data",), ("/data", "/data/inner"), ("/data/inner", "/data"), ("/data", "/data")]
)
def test_nothing_is_mounted_inside_what_others_can_write_to(targets: tuple[str, ...], tmp_path: Path) -> None:
    mounts = tuple(Mount(str(tmp_path), target) for target in targets)
    with pytest.raises(SandboxPolicyRefused, match=r"lie in one another|belongs to the sandbox"):
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


CONNECTING = """
import socket
for kind, place in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagram"), (socket.SOCK_RAW, "datagram")):
    for make in (lambda: socket.socket(socket.AF_UNIX, kind), lambda: socket.socketpair(socket.AF_UNIX, kind)[0]):
        for address in (f"/data/{place}", f"/data/inner/{place}"):
            try:
                make().connect(address)
                print("connected")
            except OSError as error:
                print(error.errno)
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder in which others listen, which everybody may connect to. Its path is short, as those of sockets are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name, contextlib.ExitStack() as held:
        folder = Path(name)
        folder.chmod(0o755)
        for place in (folder, folder / "inner"):
            place.mkdir(exist_ok=True)
            for kind, called in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagram")):
                sock = held.enter_context(socket.socket(socket.AF_UNIX, kind))
                sock.bind(str(place / called))
                (place / called).chmod(0o777)
                if kind == socket.SOCK_STREAM:
                    sock.listen()
        yield folder


@pytest.mark.fence
@pytest.mark.parametrize("writable", [False, True])
async def test_sockets_in_a_folder_that_is_shown_are_not_connected_to_without_a_network(
    sockets: Path, writable: bool
) -> None:
    sandbox = ProcessSandbox()
    folder, access = Mount(str(sockets), "/data", writable), "read_write" if writable else "read_only"
    for policy, connected in (
        (SandboxPolicy(mounts=(folder,)), False),
        (SandboxPolicy(mounts=(Mount(str(sockets / "stream"), "/data/stream"),)), True),
        (SandboxPolicy(workspace=str(sockets), workspace_access=access, workspace_shared=True), False),
    ):
        session = await sandbox.open(policy)
        tried = await session.exec(["/usr/bin/python3", "-c", CONNECTING])
        assert tried.exit_code == 0, tried.stderr
        assert (b"connected" in tried.stdout) is connected, tried.stdout
        pair = await session.exec(["/usr/bin/python3", "-c", "import asyncio; print(asyncio.run(asyncio.sleep(0)))"])
        assert pair.stdout == b"None\n", pair.stderr
        await session.close()
    await sandbox.close()


def test_a_socket_is_shown_only_where_its_own_path_is_granted_and_beside_no_folder(sockets: Path) -> None:
    def wanted(*sources: Path, within: Path) -> FenceRequest:
        mounts = tuple(Mount(str(source), f"/m{number}") for number, source in enumerate(sources))
        return FenceRequest(mounts=mounts, mounts_within=(str(within), str(sockets / "inner")))

    with_real_mounts(wanted(sockets / "stream", within=sockets / "stream"))
    for refused in (
        wanted(sockets / "stream", within=sockets),
        wanted(sockets / "stream", sockets / "inner", within=sockets / "stream"),
    ):
        with pytest.raises(ToolDenied, match="may not be connected to"):
            with_real_mounts(refused)
        with_real_mounts(replace(refused, mounts_within=None))  # the operator's own


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
