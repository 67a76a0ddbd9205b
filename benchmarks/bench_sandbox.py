"""What the fence costs: a call in it beside bare bubblewrap with the same arguments, in one run, taking turns.

    python benchmarks/bench_sandbox.py [--rounds N] [--at-once N]

A call of a warm fenced function stands beside a round trip of the same bytes through the pipes of a bare process; the
aim is 2 ms.

Bare is `subprocess` with the same arguments and filter, waited for in the plainest way: without limits, without pipes,
without an event loop. Its time is the floor; the aim is 1.3 times that.

Calls of `bash` at once each have a fence of their own; what counts is that all succeed and how much memory this process
needs for them. A warm call of `python` is one in an interpreter that is there already.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from verdict import Verdict

from foliot.sandbox import bubblewrap
from foliot.sandbox.base import Limits, SandboxPolicy
from foliot.sandbox.process import ProcessSandbox
from foliot.sandbox.seccomp import filter_for
from foliot.tools.backends.fenced_function import FencedCode, FencedFunction, FunctionFence, with_code
from foliot.tools.base import Invocation, ToolDefinition
from foliot.tools.builtin.python import PythonTool
from foliot.tools.builtin.run_processes import RunProcesses
from foliot.tools.builtin.shell import Bash
from foliot.tools.fences import Fences
from foliot.tools.workspaces import SharedWorkspace

VERDICT = Verdict()

PROGRAM = ["/bin/true"]
AIM = 1.3
WARM_AIM = 0.002
PAUSE = 0.05


def bare(command: str, walls: list[str]) -> None:
    """One program in bare bubblewrap, with the same arguments."""
    words, given = list(walls), list[int]()
    for path, text in bubblewrap.FILES.items():
        given.append(_memory(text.encode()))
        words += ["--file", str(given[-1]), path]
    given.append(_memory(filter_for() or b""))
    words += ["--chdir", "/workspace", *bubblewrap.SEALED, "--seccomp", str(given[-1])]
    given.append(_memory(b"".join(os.fsencode(word) + b"\0" for word in words)))
    try:
        line = [command, "--args", str(given[-1]), "--", *PROGRAM]
        subprocess.run(line, env={}, pass_fds=given, check=True, stdin=-3, stdout=-3, stderr=-3)
    finally:
        for descriptor in given:
            os.close(descriptor)


def _memory(data: bytes) -> int:
    descriptor = os.memfd_create("bench")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def measured(rounds: int, at_once: int, folder: str) -> None:
    sandbox = ProcessSandbox()
    policy = SandboxPolicy(workspace=folder, limits=Limits(seconds=60.0))
    walls = [*bubblewrap.arguments(policy), *bubblewrap.shown(policy, {})]
    session = await sandbox.open(policy)
    times: dict[str, list[float]] = {"bare": [], "fenced": [], "with a session of its own": [], "fork and exec": []}

    async def plain() -> None:
        subprocess.run(PROGRAM, check=True)  # noqa: ASYNC221 - nothing else is to be done meanwhile

    async def unlimited() -> None:
        bare(sandbox.command, walls)

    async def fenced() -> None:
        assert (await session.exec(PROGRAM)).exit_code == 0

    async def with_session() -> None:
        own = await sandbox.open(policy)
        assert (await own.exec(PROGRAM)).exit_code == 0
        await own.close()

    acts = dict(zip(times, (unlimited, fenced, with_session, plain), strict=True))
    chance = random.Random(1)
    for _ in range(rounds):
        for name in chance.sample(list(acts), len(acts)):
            # The kernel takes namespaces down after the answer, and the next ones wait for that.
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await acts[name]()
            times[name].append(time.perf_counter() - began)
    floor = statistics.median(times["bare"])
    for name in ("fork and exec", "bare", "fenced", "with a session of its own"):
        middle = statistics.median(times[name])
        best = min(times[name])
        print(f"{name:28} median {middle * 1000:7.2f} ms   best {best * 1000:7.2f} ms   {middle / floor:5.2f} x bare")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    done = await asyncio.gather(*(session.exec(PROGRAM) for _ in range(at_once)))
    took = time.perf_counter() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    wrong = sum(each.exit_code != 0 for each in done)
    print(
        f"{at_once} at once: {took * 1000:.0f} ms, {took / at_once * 1000:.2f} ms each, {wrong} errors, {more} MiB more"
    )
    await session.close()
    await sandbox.close()
    VERDICT.hold("programs at once that failed", wrong, most=0)
    VERDICT.hold(
        "a fenced program beside bare bubblewrap", statistics.median(times["fenced"]) / floor, "times", most=AIM
    )


async def commands(rounds: int, at_once: int, folder: str) -> None:
    """All calls of `bash` at once succeed, with less than 100 MiB for a hundred of them."""
    sandbox = ProcessSandbox()
    fences = Fences(lambda backend: sandbox, workspaces=SharedWorkspace(Path(folder), "default"))
    processes = RunProcesses(fences)
    bash, python = Bash(fences, processes.jobs), PythonTool(processes.interpreters)
    await bash.invoke(Invocation("run", "call", "bash", {"command": "true"}, "key"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    calls = [Invocation("run", f"call-{n}", "bash", {"command": f"echo {n}"}, "key") for n in range(at_once)]
    said = await asyncio.gather(*map(bash.invoke, calls), return_exceptions=True)
    took = time.perf_counter() - began
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    wrong = sum(not isinstance(each, str) for each in said)
    print(f"{at_once} calls of bash at once: {took * 1000:.0f} ms, {wrong} errors, {more} MiB more")
    call = Invocation("run", "call", "python", {"code": "x = 1\nx + 1"}, "key")
    await python.invoke(call)
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await python.invoke(call)
        times.append(time.perf_counter() - began)
    print(f"{'warm python':28} median {statistics.median(times) * 1000:7.2f} ms   best {min(times) * 1000:7.2f} ms")
    await processes.close()
    await sandbox.close()
    VERDICT.hold("calls of bash at once that failed", wrong, most=0)
    VERDICT.hold(f"memory of {at_once} calls of bash at once", more, "MiB", most=at_once)


async def functions(rounds: int, folder: str) -> None:
    with open(os.path.join(folder, "bench_desk.py"), "w") as file:  # noqa: ASYNC230 - nothing else is to be done
        file.write("def echo(text: str) -> str:\n    return text\n")
    sandbox = ProcessSandbox()
    fence = FunctionFence(lambda: Fences(lambda backend: sandbox))
    definition = ToolDefinition("echo", isolation="sandboxed")
    tool = FencedFunction(with_code(definition, FencedCode("bench_desk:echo", folder)), fence)
    call = Invocation("run", "call", "echo", {"text": "x" * 200}, "key")
    began = time.perf_counter()
    await tool.invoke(call)
    print(f"{'fenced function, cold':28}        {(time.perf_counter() - began) * 1000:7.2f} ms")
    cat = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert cat.stdin is not None
    assert cat.stdout is not None
    line = b"x" * 600 + b"\n"
    times: dict[str, list[float]] = {"bare pipe": [], "fenced function, warm": []}
    for _ in range(rounds):
        began = time.perf_counter()
        cat.stdin.write(line)
        await cat.stdout.readline()
        times["bare pipe"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await tool.invoke(call)
        times["fenced function, warm"].append(time.perf_counter() - began)
    cat.stdin.close()
    await cat.wait()
    await fence.close()
    await sandbox.close()
    for name, each in times.items():
        print(f"{name:28} median {statistics.median(each) * 1000:7.2f} ms   best {min(each) * 1000:7.2f} ms")
    VERDICT.hold("a warm fenced function", statistics.median(times["fenced function, warm"]), "s", most=WARM_AIM)


async def everything(rounds: int, at_once: int, folder: str) -> None:
    await measured(rounds, at_once, folder)
    await commands(rounds, at_once, folder)
    await functions(10 * rounds, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(everything(given.rounds, given.at_once, folder))
    return VERDICT.end()


if __name__ == "__main__":
    raise SystemExit(main())
