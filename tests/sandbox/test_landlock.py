"""Landlock: the launcher restricts itself and becomes the program, or says why not; a second wall behind the first."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from foliot.sandbox import bubblewrap
from foliot.sandbox.base import (
    LAUNCHER,
    Enforcement,
    Mount,
    SandboxPolicy,
    SandboxPolicyRefused,
    SandboxStartFailed,
    check_policy,
)
from foliot.sandbox.landlock import Rule, handled, launcher, rules_of, version
from foliot.sandbox.process import ProcessSandbox

pytestmark = pytest.mark.skipif(not version(), reason="the kernel has no Landlock, or this is not x86-64")

READ = rules_of(SandboxPolicy(), 1)[0].rights


def started(
    folder: Path, rules: Sequence[Rule], argv: Sequence[str], *paths: str
) -> tuple[subprocess.CompletedProcess[bytes], bytes]:
    """Run a program by the launcher alone, without any other fence; what it did, and what was reported."""
    read, write = os.pipe()
    program = folder / "start"
    program.write_bytes(launcher(rules, paths, write, version()))
    program.chmod(0o755)
    alone = ctypes.CDLL(None)
    done = subprocess.run(
        [program, *argv], pass_fds=[write], capture_output=True, preexec_fn=lambda: alone.prctl(38, 1, 0, 0, 0)
    )
    os.close(write)
    with os.fdopen(read, "rb") as report:
        return done, report.read()


def test_a_program_writes_only_where_a_rule_lets_it(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    script = f"echo fine > {mine}/a; cat {mine}/a; mkdir {other}/b; echo no > {other}/c; ls {other}"

    done, report = started(
        tmp_path, [Rule("/", READ), Rule(str(mine), handled(version()))], ["sh", "-c", script], "/bin/sh"
    )

    assert (done.stdout, report) == (b"fine\n", b"")
    assert done.stderr.lower().count(b"denied") == 2
    assert list(other.iterdir()) == []


@pytest.mark.skipif(version() < 6, reason="signals are scoped since version 6 of Landlock")
def test_signals_and_abstract_sockets_stay_within_the_program(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name := f"\0foliot-test-{os.getpid()}")
        server.listen()
        acts = f"lambda: os.kill({os.getpid()}, 0), lambda: socket.socket(socket.AF_UNIX).connect({name!r})"
        code = f"import os, socket\nfor act in ({acts}):\n    try: act()\n    except PermissionError: print('refused')"
        done, _ = started(tmp_path, [Rule("/", READ)], ["python3", "-c", code], "/usr/bin/python3")

    assert done.stdout == b"refused\nrefused\n", done.stderr


def test_the_first_path_that_exists_is_run_with_its_own_name_and_only_its_streams(tmp_path: Path) -> None:
    done, report = started(
        tmp_path, [Rule("/", READ)], ["me", "-c", "echo $0; ls /proc/self/fd"], "/nowhere/sh", "/bin/sh", "/bin/false"
    )

    assert done.stdout == b"me\n0\n1\n2\n3\n", "the last is the folder that is listed"
    assert report == b""


@pytest.mark.parametrize(
    ("rules", "path", "number"),
    [
        ([Rule("/", READ)], "/nowhere/sh", errno.ENOENT),
        ([Rule("/", READ)], "/etc/passwd", errno.EACCES),
        ([Rule("/no/such/path", READ)], "/bin/sh", errno.ENOENT),
        ([Rule("/", 1 << 30)], "/bin/sh", errno.EINVAL),
        ([Rule("/usr", 4)], "/bin/sh", errno.EACCES),
    ],
)
def test_what_cannot_be_started_is_reported_by_its_error_and_nothing_runs(
    tmp_path: Path, rules: list[Rule], path: str, number: int
) -> None:
    done, report = started(tmp_path, rules, ["x", "-c", "echo ran"], path)

    assert (done.returncode, done.stdout) == (127, b"")
    assert int.from_bytes(report, "little") == number


def test_what_a_policy_lets_be_written_has_a_rule_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    mounts = Mount(str(tmp_path), "/data"), Mount(str(tmp_path), "/out", True), Mount(str(file), "/one", True)
    policy = SandboxPolicy(workspace=str(tmp_path), workspace_access="read_only", mounts=mounts)

    rules = {rule.path: rule.rights for rule in rules_of(policy, 7)}

    assert {path for path, rights in rules.items() if rights & 2} == {"/tmp", "/dev", "/dev/shm", "/out", "/one"}
    assert rules["/one"] & 8 == 0, "a file has no rights of a folder"


@pytest.mark.fence
async def test_where_the_root_could_be_written_landlock_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "SEALED", ())
    sandbox = ProcessSandbox()
    session = sandbox._opened(SandboxPolicy())  # pyright: ignore[reportPrivateUsage]
    try:
        seen = await session.exec(["sh", "-c", "echo x > /new; echo x > /etc/new; echo fine > /tmp/new; cat /tmp/new"])
        machine = await session.exec(["sh", "-c", "echo x > /proc/sys/kernel/core_pattern"])
    finally:
        await session.close()
        await sandbox.close()
    assert seen.stdout == b"fine\n"
    assert seen.stderr.lower().count(b"denied") == 2
    assert b"denied" in machine.stderr.lower()


@pytest.mark.fence
async def test_a_program_that_does_not_exist_has_not_started(tmp_path: Path) -> None:
    sandbox = ProcessSandbox()
    session = await sandbox.open(SandboxPolicy(workspace=str(tmp_path)))
    try:
        with pytest.raises(SandboxStartFailed, match="No such file"):
            await session.exec(["no-such-program"])
        (tmp_path / "text").write_text("words")
        with pytest.raises(SandboxStartFailed, match="Permission denied"):
            await session.exec(["./text"])
        own = await session.exec(["sh", "-c", "exit 127"])
        assert own.exit_code == 127, "a program that ends like this has run"
    finally:
        await session.close()
        await sandbox.close()


@pytest.mark.parametrize("target", [LAUNCHER, f"{LAUNCHER}/", f"{LAUNCHER}/x"])
def test_no_mount_may_cover_the_launcher(tmp_path: Path, target: str) -> None:
    policy = SandboxPolicy(mounts=(Mount(str(tmp_path), target, True),))

    with pytest.raises(SandboxPolicyRefused, match="belongs to the sandbox"):
        check_policy(policy, Enforcement("process", True))


def test_the_launcher_is_small(tmp_path: Path) -> None:
    policy = SandboxPolicy(workspace=str(tmp_path))
    assert len(launcher(rules_of(policy, 7), ["/bin/sh"], 9, 7)) < 2048
