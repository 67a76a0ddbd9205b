"""The end of a container is always told, whatever its engine does: who closes a session waits for it."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest

from foliot.sandbox.base import SandboxUnavailable
from foliot.sandbox.container import ContainerProgram
from foliot.sandbox.container_cli import ContainerCli, State


class BrokenCli(ContainerCli):
    """An engine that starts, and fails at everything that it is asked afterwards."""

    problem: BaseException = RuntimeError("odd")

    async def state(self, name: str) -> State | None:
        raise self.problem

    async def remove(self, *names: str) -> bool:
        raise self.problem


async def program(problem: BaseException, command: str = "/bin/true") -> ContainerProgram:
    cli = BrokenCli(command)
    cli.problem = problem
    return ContainerProgram(cli, "foliot-test", ["5"], stdin=0, stdout=1, stderr=2, terminal=False)


@pytest.mark.parametrize(
    "problem", [RuntimeError("odd"), OSError(errno.EMFILE, "short"), asyncio.CancelledError(), SandboxUnavailable("no")]
)
async def test_it_has_ended_also_when_it_cannot_be_asked_after_or_removed(problem: BaseException) -> None:
    made = await program(problem)
    async with asyncio.timeout(60):
        await made.ended
    assert made.not_gone


@pytest.mark.parametrize("problem", [RuntimeError("odd"), OSError(errno.EMFILE, "short")])
async def test_it_can_be_killed_also_when_its_engine_does_not_remove_it(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foliot.sandbox.container._BETWEEN_KILLS", 0.01)
    made = await program(problem, "/bin/sleep")
    made.kill("cancelled")
    async with asyncio.timeout(60):
        ended = await made.ended
    assert (ended.ended_by, bool(made.not_gone)) == ("cancelled", True)


async def test_its_end_is_found_also_where_no_descriptor_is_left_to_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", short)
    made = await program(SandboxUnavailable("no"))
    async with asyncio.timeout(60):
        await made.ended
    assert len(os.listdir("/proc/self/fd")) == before
