"""A tool that never ends keeps no command from ending: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

MANIFEST = """\
kind: ModelEndpoint
metadata: {name: model}
spec: {provider: scripted, default_model: scripted, script: [{call: {NAME: {}}}, {say: "over: {last_result}"}]}
---
kind: Tool
metadata: {name: NAME}
spec: {type: function, function: "endless:NAME", effect: read, runtime: {timeout: TIMEOUT}}
---
kind: Agent
metadata: {name: desk}
spec: {model_ref: model, tools: [NAME]}
"""
TOOLS = """\
import asyncio, contextlib, os, socket, subprocess, time
from pathlib import Path

def compute() -> None:
    Path("begun").touch()
    while True:
        pass

def sleep() -> None:
    Path("begun").touch()
    time.sleep(1e6)

def receive() -> None:
    ours, theirs = socket.socketpair()
    Path("begun").touch()
    ours.recv(1)

def catch_all() -> None:
    Path("begun").touch()
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            pass

async def deaf() -> None:
    async def never() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e6)
    task = asyncio.create_task(never())
    Path("begun").touch()
    await task
"""
# A few of them always; all in every place with FOLIOT_CHAOS=1.
EVERYTHING = bool(os.environ.get("FOLIOT_CHAOS"))
ALL = ["compute", "sleep", "receive", "catch_all", "deaf"] if EVERYTHING else ["compute", "deaf"]
COMMANDS = [("worker", "--grace", "1s"), *([("up", "--port", "0")] if EVERYTHING else [])]
WITHIN = 60.0  # seconds in which a command has to end: far more than it needs, and far less than for ever


@pytest.fixture
def prepare(home: Path, tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, timeout: str) -> Path:
        (tmp_path / "endless.py").write_text(TOOLS)
        (tmp_path / "desk.yaml").write_text(MANIFEST.replace("NAME", name).replace("TIMEOUT", timeout))
        return tmp_path

    return write


def foliot(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "foliot.cli", *words]
    return subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str], seconds: float = WITHIN) -> tuple[int, str]:
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        pytest.fail(f"it did not end: {child.communicate()}")
    return child.returncode, out + err


def begun(folder: Path, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WITHIN
    while not (folder / "begun").exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["sleep", "deaf"] if EVERYTHING else ["sleep"])
def test_a_run_ends_although_its_tool_goes_on_and_says_so(name: str, prepare) -> None:
    prepare(name, "1s")

    code, said = ended(foliot("run", "desk.yaml", "go"))

    assert code == 0, said
    assert "goes on" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_ends_a_run_whose_tool_does_not(name: str, prepare) -> None:
    folder = prepare(name, "1h")
    child = foliot("run", "desk.yaml", "go")
    begun(folder, child)

    child.send_signal(signal.SIGINT)

    assert ended(child)[0] != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sleep", "deaf"] if EVERYTHING else ["sleep"])
@pytest.mark.parametrize("command", COMMANDS)
def test_sigterm_ends_a_worker_and_a_server_whose_tool_does_not(name: str, command: tuple[str, ...], prepare) -> None:
    folder = prepare(name, "1h")
    assert ended(foliot("apply", "-f", "desk.yaml"))[0] == 0
    assert ended(foliot("task", "run", "desk", "go", "--detach"))[0] == 0
    child = foliot(*command)
    begun(folder, child)

    child.send_signal(signal.SIGTERM)

    code, said = ended(child)
    assert code in (0, 143), said
