"""Agents at work in the fence, in real runs: files that all tools share, jobs and variables that end with the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.workspaces.workspaces import place_of, scratch_root
from foliot.kernel.run.events import ToolFinished
from foliot.settings.settings import load_settings
from foliot.tools.builtin.jobs import job_id
from tests.conformance.sandbox import marked

pytestmark = pytest.mark.fence

BACKGROUND = {"background": True}
TOOLS = ["bash", "job", "python", "read", "write", "edit", "glob", "grep"]


def mark() -> str:
    return f"3600.{time.time_ns() % 10**9:09d}"


@pytest.fixture
async def runtime(tmp_path):
    settings = load_settings({"home": str(tmp_path / "home")}, {})
    async with Runtime(settings=settings) as rt:
        yield rt


def worker(*script, name: str = "worker", **spec) -> Agent:
    return Agent(name, model=ScriptedModel([*script, {"say": "done"}]), tools=TOOLS, **spec)


def does(tool: str, **arguments) -> dict:
    return {"call": {tool: arguments}}


async def results(runtime: Runtime, run_id: str) -> list[str]:
    return [
        event.result.text for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)
    ]


async def played(runtime: Runtime, *script, **spec) -> list[str]:
    run = await runtime.run(worker(*script, limits={"max_steps": 40}, **spec), "go")
    assert run.output == "done"
    return await results(runtime, run.run_id)


async def test_all_tools_see_the_same_files(runtime) -> None:
    found = await played(
        runtime,
        does("write", path="src/a.py", content="x = 1\n"),
        does("bash", command="echo 'y = 2' >> src/a.py; ls -R"),
        does("edit", path="/workspace/src/a.py", old_string="x = 1", new_string="x = 40"),
        does(
            "python", code="import sys; sys.path.insert(0, 'src')\nimport a\nopen('out', 'w').write('made')\na.x + a.y"
        ),
        does("grep", pattern="made"),
        does("glob", pattern="**", path="/workspace/src"),
        does("read", path="src/a.py"),
    )
    assert found[3].startswith("42\n[ok")
    assert found[4] == "out:1: made"
    assert '"src/a.py"' in found[5]
    assert found[6] == "x = 40\ny = 2\n"


async def test_what_is_run_again_after_an_edit_is_the_new_program(runtime) -> None:
    run = does("bash", command="python3 t.py")
    counts = does("python", code="n = globals().get('n', 0) + 1\nn")
    first = does("write", path="t.py", content="print('version', 1)\n")
    edit = does("edit", path="t.py", old_string="1", new_string="2")
    found = await played(runtime, *(first, run, counts), *(edit, run, counts), *(first, run, counts))
    shown = [text.partition("\n")[0] for text in found]
    assert shown[1::3] == ["version 1", "version 2", "version 1"]
    assert shown[2::3] == ["1", "2", "3"]


@pytest.mark.parametrize("action", ["list", "output", "wait"])
async def test_a_job_is_watched_until_it_ends(runtime, action: str) -> None:
    id = job_id("call_1_1")
    look = does("job", action=action, **({} if action == "list" else {"id": id}), seconds=1)
    found = await played(
        runtime,
        does("bash", command="until [ -e go ]; do sleep 0.01; done", background=True),
        look,
        does("bash", command="touch go"),
        does("job", action="wait", id=id, seconds=60),
        look,
    )
    assert "running" in found[1]
    assert "exit:0" in found[3]
    assert "running" not in found[4]


async def test_what_commands_made_leads_file_tools_nowhere(runtime) -> None:
    made = (
        "ln -s /etc/passwd leak; ln -s ../../../../../etc up; ln -s /proc/self/environ env; mkfifo pipe; echo in > a; "
        "ln -s /workspace/a inside; ln a hard; truncate -s 60M huge; head -c 100 /dev/zero > zeros"
    )
    paths = ("leak", "up/passwd", "env", "pipe", "inside", "hard", "huge", "zeros", "/etc/passwd", "/workspace/../etc")
    found = await played(
        runtime,
        does("bash", command=made),
        *(does("read", path=path) for path in paths),
        does("write", path="leak", content="x"),
        does("grep", pattern="root:"),
    )
    shown = dict(zip(paths, found[1:], strict=False))
    for path in ("leak", "up/passwd", "env", "/etc/passwd", "/workspace/../etc"):
        assert "permission_denied" in shown[path], (path, shown[path])
    assert "not a regular file" in shown["pipe"]
    assert shown["inside"] == shown["hard"] == "in\n"
    assert "binary" in shown["huge"]
    assert "binary" in shown["zeros"]
    assert "permission_denied" in found[-2]
    assert found[-1].startswith("No matches.")


async def test_jobs_and_interpreters_end_with_the_run(runtime) -> None:
    name = mark()
    away = f"(setsid nohup sleep {name} >/dev/null 2>&1 &); sh -c '(setsid sleep {name} &)'; sleep {name}"
    found = await played(
        runtime,
        does("bash", command=away, background=True),
        does(
            "python", code=f"import subprocess\np = subprocess.Popen(['setsid', 'sleep', '{name}'])\np.poll() is None"
        ),
        does("job", action="list"),
    )
    assert '"running"' in found[2]
    assert found[1].startswith("True\n")
    assert marked(name) == []


async def test_a_run_that_is_cancelled_leaves_nothing_not_even_a_fork_bomb(runtime) -> None:
    name, up = mark(), asyncio.Event()
    bomb = f"echo up; f() {{ sleep {name} & f | f & }}; f; sleep {name}"
    agent = worker(does("bash", command=f"sleep {name}", background=True), does("bash", command=bomb))
    running = asyncio.create_task(heard(runtime, agent, up))
    await asyncio.wait_for(up.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(name) == []


async def heard(runtime: Runtime, agent: Agent, up: asyncio.Event) -> None:
    async for item in runtime.stream(agent, "go"):
        if "up" in str(getattr(item, "text", "")):
            up.set()


async def test_a_run_that_waits_for_a_person_keeps_its_job_and_its_variables(runtime, tmp_path) -> None:
    name = mark()
    asks = {"call": {"ask_user": {"question": "Go on?"}}}
    agent = Agent(
        "worker",
        model=ScriptedModel(
            [
                does(
                    "bash", command=f"until [ -e go ]; do sleep 0.1; done; echo 1 > made; sleep {name}", background=True
                ),
                does("python", code="x = 41"),
                asks,
                does("python", code="x + 1"),
                does("bash", command="cat made go"),
                does("job", action="list"),
                {"say": "done"},
            ]
        ),
        tools=[*TOOLS, "ask_user"],
    )
    run = await runtime.run(agent, "go")
    assert run.waiting is not None
    folder = place_of(scratch_root(tmp_path / "home"), "default", run.run_id) / "files"
    (folder / "go").write_text("")
    for _ in range(3000):
        if (folder / "made").exists():
            break
        await asyncio.sleep(0.01)
    await runtime.inside.questions.answer(run.run_id, None, "yes", by="ann")
    run = await runtime.resume(run.run_id)
    found = await results(runtime, run.run_id)
    assert run.output == "done"
    assert found[3].startswith("42\n[ok")
    assert found[4].startswith("1\n[exit:0"), "what it wrote while the run waited is there"
    assert '"running"' in found[5]
    assert marked(name) == []


DIES = """
import asyncio, os, signal, sys
from foliot import Agent, Runtime, ScriptedModel, tool

@tool(effect="read")
def die() -> str:
    "Dies once."
    if os.path.exists(sys.argv[2]):
        return "alive"
    open(sys.argv[2], "w").close()
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    script = [
        {"call": {"bash": {"command": "echo up > up; sleep " + sys.argv[3], "background": True}}},
        {"call": {"python": {"code": "x = 1"}}},
        {"call": {"die": {}}},
        {"call": {"job": {"action": "list"}}},
        {"call": {"python": {"code": "'x' in globals()"}}},
        {"say": "done"},
    ]
    agent = Agent("worker", model=ScriptedModel(script), tools=["bash", "job", "python", die])
    async with Runtime(sys.argv[1]) as rt:
        await rt.run(agent, "go", run_id="the-run")

asyncio.run(main())
"""


async def test_after_kill_9_nothing_lives_and_the_next_process_says_what_is_gone(tmp_path) -> None:
    name, store = mark(), tmp_path / "foliot.db"
    line = [sys.executable, "-c", DIES, str(store), str(tmp_path / "died"), name]
    env = {**os.environ, "FOLIOT_HOME": str(tmp_path / "home")}
    first = await asyncio.to_thread(subprocess.run, line, env=env, timeout=120, capture_output=True)
    assert first.returncode == -signal.SIGKILL, first.stderr
    for _ in range(1000):  # the kernel takes a moment
        if not marked(name):
            break
        await asyncio.sleep(0.01)
    assert marked(name) == []

    second = await asyncio.to_thread(subprocess.run, line, env=env, timeout=120, capture_output=True)

    assert second.returncode == 0, second.stderr
    async with Runtime(store) as rt:
        found = await results(rt, "the-run")
    (job,) = json.loads(found[3])["jobs"]
    assert (job["status"], job["command"]) == ("lost", f"echo up > up; sleep {name}")
    assert found[4].startswith("[The interpreter was restarted: variables, imports and functions")
    assert "\nFalse\n[ok" in found[4]
    assert marked(name) == []


async def test_a_fork_says_that_variables_and_jobs_of_the_past_are_not_its_own(runtime) -> None:
    run = await runtime.run(
        worker(
            does("bash", command="sleep 3600", background=True),
            does("python", code="x = 1"),
            does("job", action="list"),
            does("python", code="'x' in globals()"),
        ),
        "go",
    )
    forked = await runtime.inside.fork(run.run_id, at=3)
    found = await results(runtime, forked.run_id)
    assert '"lost"' in found[-2]
    assert found[-1].startswith("[The interpreter was restarted")
    assert "\nFalse\n" in found[-1]


async def test_a_program_cannot_read_whose_home_which_namespace_and_which_run_it_is(tmp_path) -> None:
    files = ("mountinfo", "mounts", "mountstats", "cmdline", "environ", "cgroup")
    links = ("exe", "cwd", "root", "fd/0", "fd/1", "fd/2")
    looks = f"for each in {' '.join(files)}; do cat /proc/*/$each; done; env; pwd -P; "
    looks += f"for each in {' '.join(links)}; do readlink /proc/1/$each /proc/self/$each; done; true"
    settings = load_settings({"home": str(tmp_path / "ann")}, {})
    async with Runtime(settings=settings) as runtime:
        agent = Agent("worker", model=ScriptedModel([does("bash", command=looks), {"say": "done"}]), tools=["bash"])
        run = await runtime.run(agent, "go", run_id="run-of-ann")
        (seen,) = await results(runtime, run.run_id)
    assert " /workspace " in seen
    for name in (str(tmp_path), "/default/", "run-of-ann", sys.prefix, os.path.expanduser("~")):
        assert name not in seen, name
