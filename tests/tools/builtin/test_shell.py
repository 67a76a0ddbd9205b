"""`bash` in a real sandbox: what the model is shown, and how each end of a command is told."""

from __future__ import annotations

import asyncio
import time

import pytest

from foliot.sandbox.base import Enforcement, SandboxPolicy, SandboxUnavailable
from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import ToolArgumentsInvalid, ToolIsolationMissing
from foliot.tools.builtin.catalogue import builtin_tools
from foliot.tools.builtin.output import CommandFailed, CommandTimedOut, duration, tail_of
from foliot.tools.builtin.shell import Bash
from foliot.tools.pipeline.pipeline import Pipeline
from tests.conformance.sandbox import marked
from tests.tools.builtin.kit import invocation


@pytest.fixture
async def bash(tmp_path):
    sandbox = ProcessSandbox()
    (made,) = builtin_tools(["bash"], workspace=tmp_path, sandbox=sandbox)
    yield made
    await sandbox.close()


async def said(bash: Bash, command: str, **arguments) -> str:
    return await bash.invoke(invocation(bash, {"command": command, **arguments}))


@pytest.mark.fence
async def test_both_streams_then_the_exit_code_and_how_long_it_took(bash) -> None:
    heard: list[str] = []
    call = invocation(bash, {"command": "echo wrong >&2; echo right; pwd"})
    text = await bash.invoke(call, on_output=heard.append)
    *lines, last = text.split("\n")
    assert lines == ["right", "/workspace", "wrong"]
    assert last.startswith("[exit:0 | ")
    assert sorted("".join(heard).split()) == ["/workspace", "right", "wrong"]
    assert (await said(bash, "true")).startswith("[exit:0 | ")


@pytest.mark.fence
async def test_a_command_that_fails_is_a_failure_with_its_output(bash) -> None:
    with pytest.raises(CommandFailed) as caught:
        await said(bash, "echo before; echo why >&2; exit 3")
    assert caught.value.message.startswith("bash: exit code 3\nbefore\nwhy\n[exit:3 | ")
    assert (caught.value.retryable, caught.value.unknown, caught.value.details["exit_code"]) == (False, None, 3)


@pytest.mark.fence
async def test_the_end_of_long_output_is_shown_with_how_much_there_was(bash) -> None:
    text = await said(bash, "seq 1 100000")
    first, *lines, last = text.split("\n")
    assert first.startswith("[The last 2000 of 100000 lines; 588895 bytes in all; ")
    assert (lines[-1], len(lines), last[:8]) == ("100000", 2000, "[exit:0 ")
    assert lines[0] == "98001"
    line = await said(bash, "head -c 3000000 /dev/zero | tr '\\0' x")
    assert line.startswith("[The end of line 1 of 1, whose beginning was cut; 3000000 bytes in all; ")
    assert 40_000 < len(line) < 52_000
    with pytest.raises(CommandFailed) as caught:
        await said(bash, "seq 1 100000; exit 1")
    assert "\n100000\n[exit:1 | " in caught.value.message
    assert len(caught.value.message) < 8000


@pytest.mark.parametrize(
    ("output", "printed", "head"),
    [
        ("a\nb", 2, "[The last 2 of 9 lines, the first without its beginning; 99 bytes in all; "),
        ("b", 1, "[The end of line 9 of 9, whose beginning was cut; 99 bytes in all; "),
        ("a\n" + "x" * 60, 1, "[The end of line 9 of 9, whose beginning was cut; 99 bytes in all; "),
        ("x" * 60 + "\na\nb", 2, "[The last 2 of 9 lines; 99 bytes in all; "),
    ],
)
def test_the_head_of_an_output_says_what_was_cut(output: str, printed: int, head: str) -> None:
    first, *lines, last = tail_of(output, 9, 99, most=40, cut=True).split("\n")
    assert first.startswith(head)
    assert (len(lines), last) == (printed, "")


@pytest.mark.parametrize("timeout", [121, 3600, 121.0, 10**9])
async def test_a_timeout_that_only_a_job_may_have_is_refused_and_not_shortened(bash, timeout) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="a command may take 120 seconds without background: true") as caught:
        await said(bash, "true", timeout=timeout)
    assert caught.value.details["field"] == "timeout"


@pytest.mark.fence
async def test_a_command_that_takes_too_long_is_ended_and_that_is_known(bash) -> None:
    mark = f"3600.{time.time_ns() % 10**9:09d}"
    with pytest.raises(CommandTimedOut, match="bash: command timed out after 1 seconds") as caught:
        await said(bash, f"echo up; (setsid sleep {mark} &); sleep {mark}", timeout=1)
    assert "[exit:124 | " in caught.value.message
    assert caught.value.unknown is None
    assert marked(mark) == []


@pytest.mark.fence
async def test_a_call_that_is_cancelled_leaves_nothing(bash) -> None:
    mark, up = f"3600.{time.time_ns() % 10**9:09d}", asyncio.Event()
    call = invocation(bash, {"command": f"echo up; (setsid sleep {mark} &); sleep {mark}"})
    running = asyncio.create_task(bash.invoke(call, on_output=lambda _: up.set()))
    await asyncio.wait_for(up.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(mark) == []


async def test_without_a_command_it_says_so(bash) -> None:
    for wrong in ("", "  ", None, 3):
        with pytest.raises(ToolArgumentsInvalid, match="bash: command is required"):
            await bash.invoke(invocation(bash, {"command": wrong}))


@pytest.mark.fence
async def test_a_command_too_long_for_the_system_says_what_to_do(bash) -> None:
    result = await Pipeline([bash]).call(invocation(bash, {"command": f"true {'x' * 200_000}"}))
    assert result.error is not None
    assert "longer than the system takes" in result.error.message


async def test_a_host_that_cannot_fence_runs_nothing(tmp_path) -> None:
    class Unable(ProcessSandbox):
        async def enforces(self) -> Enforcement:
            return Enforcement("process", False, why="no user namespaces", hint="allow them")

    (bash,) = builtin_tools(["bash"], workspace=tmp_path, sandbox=Unable())
    with pytest.raises(ToolIsolationMissing, match="no user namespaces") as caught:
        await said(bash, "touch ran")
    assert caught.value.before_effect
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SandboxUnavailable):
        await Unable().check(SandboxPolicy())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0002, "200µs"), (0.0123, "12ms"), (1.26, "1.3s"), (59.94, "59.9s"), (61.2, "61s"), (3600.0, "3600s")],
)
def test_durations_are_read_easily(seconds: float, text: str) -> None:
    assert duration(seconds) == text
