"""Whatever fails or is cancelled while a program is started: nothing of it runs on, and no descriptor is left open."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from foliot.sandbox.base import SandboxError, SandboxPolicy, SandboxSession
from foliot.sandbox.process import ProcessSandbox

pytestmark = pytest.mark.fence
MOST_STEPS = 60
# What takes a descriptor of this process, or makes another process.
STEPS = ((os, "pipe2"), (os, "pipe"), (os, "memfd_create"), (os, "dup"), (os, "openpty"), (os, "pidfd_open"))

Begin = Callable[[SandboxSession], Awaitable[Any]]


async def executed(session: SandboxSession) -> None:
    await session.exec(["sh", "-c", "cat; sleep 0.01 & exit 3"], stdin=b"word" * 50_000)


async def started(session: SandboxSession, pty: bool = False) -> None:
    program = await session.start(["sh", "-c", "sleep 600"], pty=pty)
    await program.kill()
    for stream in (program.stdout, program.stderr):
        if stream is not None:
            await stream.read()


async def on_a_terminal(session: SandboxSession) -> None:
    await started(session, pty=True)


WAYS = pytest.mark.parametrize("begin", [executed, started, on_a_terminal])


@pytest.fixture
async def made() -> Callable[[], ProcessSandbox]:
    """Makes sandboxes that have looked at the machine already."""
    first = ProcessSandbox()
    known = await first.enforces()
    await first.close()
    if not known.available:
        pytest.skip("nothing can be fenced on this machine")

    def make() -> ProcessSandbox:
        sandbox = ProcessSandbox()
        sandbox._enforcement = known
        return sandbox

    return make


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


class Steps:
    """Counts the steps of the thread that it was made on, and fails at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
        self.count, self.failed = 0, ""
        self._fail_at, self._thread = fail_at, threading.get_ident()
        for module, name in STEPS:
            monkeypatch.setattr(module, name, self._failing(name, getattr(module, name)))
        monkeypatch.setattr(subprocess, "Popen", self._failing("Popen", subprocess.Popen))

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.count += 1
                if self.count == self._fail_at:
                    self.failed = name
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(*given, **named)

        return step


async def settled(before: tuple[int, set[str]]) -> None:
    """Streams are closed in the turns of the loop that follow, and what was killed takes a moment to be gone."""
    for _ in range(500):
        if (descriptors(), children()) == before:
            return
        await asyncio.sleep(0.01)
    assert (descriptors(), children()) == before


@WAYS
async def test_a_step_that_fails_is_an_error_of_the_sandbox_and_leaves_nothing(
    made: Callable[[], ProcessSandbox], begin: Begin
) -> None:
    failed: list[str] = []
    await asyncio.to_thread(os.getpid)
    for fail_at in range(1, MOST_STEPS):
        sandbox, before = made(), (descriptors(), children())
        session = await sandbox.open(SandboxPolicy())
        with pytest.MonkeyPatch.context() as patch:
            steps, error = Steps(patch, fail_at), None
            try:
                await begin(session)
            except Exception as raised:
                error = raised
        await session.close()
        await sandbox.close()
        await settled(before)
        if not steps.failed:
            break
        failed.append(steps.failed)
        # A program that was started already, and is ended because it cannot be held, tells by how it ended.
        assert isinstance(error, SandboxError) or (steps.failed == "pidfd_open" and error is None), steps.failed
    assert {"pipe2", "memfd_create", "Popen", "pidfd_open"} <= set(failed)
    assert not steps.failed, "some step comes later than those that were tried"


@WAYS
async def test_a_start_that_is_cancelled_at_any_turn_leaves_nothing(
    made: Callable[[], ProcessSandbox], begin: Begin
) -> None:
    await asyncio.to_thread(os.getpid)
    before = descriptors(), children()
    sandbox = made()
    for turns in range(12):
        session = await sandbox.open(SandboxPolicy())
        starting = asyncio.ensure_future(begin(session))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await session.close()
    await sandbox.close()
    await settled(before)


async def test_a_session_that_cannot_be_made_leaves_no_control_group(
    made: Callable[[], ProcessSandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, groups = made(), list[Any]()
    make = sandbox.cgroups.make

    def kept(**limits: Any) -> Any:
        groups.append(make(**limits))
        return groups[-1]

    def broken(policy: SandboxPolicy) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(sandbox.cgroups, "make", kept)
    monkeypatch.setattr("foliot.sandbox.bubblewrap.arguments", broken)
    with pytest.raises(SandboxError, match="Too many open files"):
        await sandbox.open(SandboxPolicy())
    await sandbox.close()

    (group,) = groups
    assert group is None or not any(folder.exists() for folder in group._folders.values())


async def test_a_machine_that_could_not_be_looked_at_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = ProcessSandbox()
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, 1)
        first = await sandbox.enforces()
    then = await sandbox.enforces()
    await sandbox.close()

    assert (first.available, then.available) == (False, True)
    assert "Too many open files" in first.why
