"""Jobs in a real fence: started by `bash`, looked after by `job`, and gone with their run whatever they try."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from foliot.sandbox.process import ProcessSandbox
from foliot.tools.base import Caller, ToolArgumentsInvalid, ToolRateLimited
from foliot.tools.builtin.catalogue import builtin_tools
from foliot.tools.builtin.jobs import KEPT, Job, Jobs, JobTool, _end, job_id
from foliot.tools.builtin.results import ToolNothingThere
from foliot.tools.builtin.run_processes import RunProcesses, RunRow
from foliot.tools.builtin.shell import Bash
from foliot.tools.fences import FenceRequest, Fences, fence_of
from foliot.tools.workspaces import SharedWorkspace
from tests.conformance.sandbox import marked
from tests.tools.builtin.kit import invocation

pytestmark = pytest.mark.fence


class Kit:
    def __init__(self, folder: Path, **bounds) -> None:
        self.folder = folder
        self.sandbox = ProcessSandbox()
        self.fences = Fences(lambda _: self.sandbox, workspaces=SharedWorkspace(folder, "default"))
        self.processes = RunProcesses(self.fences, look_every=0.01)
        self.jobs = self.processes.jobs = Jobs(self.fences, **bounds)
        self.bash, self.job = Bash(self.fences, self.jobs), JobTool(self.jobs, None)
        self.calls = 0

    async def start(self, command: str, *, run: str = "run-1", **arguments) -> str:
        """Start a job; its id."""
        self.calls += 1
        given = {"command": command, "background": True, **arguments}
        said = await self.bash.invoke(invocation(self.bash, given, run_id=run, call_id=f"call-{self.calls}"))
        return said.split()[1].rstrip(".")

    async def do(self, action: str, id: str = "", *, run: str = "run-1", **fields) -> str:
        given = {"action": action, **({"id": id} if id else {}), **fields}
        said = await self.job.invoke(invocation(self.job, given, run_id=run))
        return said if isinstance(said, str) else json.dumps(said["jobs"])

    async def until(self, id: str, text: str) -> None:
        for _ in range(3000):
            if text in await self.do("output", id):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never printed {text!r}: {await self.do('output', id)}")


@pytest.fixture
async def kit(tmp_path):
    made = Kit(tmp_path)
    yield made
    await made.processes.close()
    await made.sandbox.close()


def mark() -> str:
    return f"3600.{time.time_ns() % 10**9:09d}"


async def test_a_job_goes_on_while_other_calls_are_made_and_its_output_can_be_read(kit) -> None:
    id = await kit.start("echo up; until [ -e go ]; do sleep 0.01; done; echo wrong >&2; cat go; exit 3")
    await kit.until(id, "up\n[running | ")
    assert '"status": "running"' in await kit.do("list")
    (kit.folder / "go").write_text("down\n")
    assert (await kit.do("wait", id, seconds=60)).startswith("up\nwrong\ndown\n[exit:3 | ")
    (listed,) = json.loads(await kit.do("list"))
    assert (listed["id"], listed["status"], listed["exit_code"]) == (id, "failed", 3)


async def test_a_wait_that_is_over_shows_how_it_stands(kit) -> None:
    id = await kit.start(f"echo up; sleep {mark()}")
    await kit.until(id, "up")
    assert (await kit.do("wait", id, seconds=1)).startswith("up\n[running | ")


@pytest.mark.parametrize("how", ["kill", "end", "close"])
async def test_all_that_a_job_started_is_gone_wherever_it_went(kit, how: str) -> None:
    name = mark()
    away = f"setsid sleep {name} & (sh -c '(setsid nohup sleep {name} >/dev/null 2>&1 &)' &); sleep {name}"
    id = await kit.start(f"echo up; {away}")
    await kit.until(id, "up")
    if how == "kill":
        assert "[killed | " in await kit.do("kill", id)
        assert "[killed | " in await kit.do("kill", id), "twice is harmless"
    else:
        await (kit.processes.end("run-1") if how == "end" else kit.processes.close())
    assert marked(name) == []


async def test_a_job_that_takes_too_long_is_ended(kit) -> None:
    name = mark()
    id = await kit.start(f"setsid sleep {name} & sleep {name}", timeout=1)
    assert "[exit:124 | " in await kit.do("wait", id, seconds=60)
    assert '"status": "timed_out"' in await kit.do("list")
    assert marked(name) == []


async def test_of_a_flood_the_end_is_kept(kit) -> None:
    id = await kit.start("seq 1 3000000; echo end")
    shown = await kit.do("wait", id, seconds=120)
    assert shown.startswith("[The last 2000 of 3000001 lines; ")
    assert "\n3000000\nend\n[exit:0 | " in shown
    assert len(shown) < 52_000
    (job,) = kit.jobs.of("run-1")
    assert len(job.output.kept) <= 128 * 1024


async def test_another_run_neither_sees_nor_ends_a_job(kit) -> None:
    name = mark()
    id = await kit.start(f"echo up; sleep {name}")
    await kit.until(id, "up")
    assert await kit.do("list", run="run-2") == "[]"
    for action in ("output", "wait", "kill"):
        with pytest.raises(ToolNothingThere, match="this run has no job"):
            await kit.do(action, id, run="run-2")
    await kit.processes.end("run-2")
    assert marked(name)


async def test_there_are_only_so_many_of_a_run_and_in_all(tmp_path) -> None:
    kit = Kit(tmp_path, most=3, most_of_one=2)
    for _ in range(2):
        await kit.start("sleep 3600")
    with pytest.raises(ToolRateLimited, match="2 jobs of this run") as caught:
        await kit.start("sleep 3600")
    assert caught.value.before_effect
    await kit.start("sleep 3600", run="run-2")
    with pytest.raises(ToolRateLimited, match="this worker runs 3 jobs"):
        await kit.start("sleep 3600", run="run-3")
    await kit.do("kill", job_id("call-1"))
    assert await kit.start("true")
    await kit.processes.close()
    await kit.sandbox.close()


async def test_many_that_start_at_once_do_not_pass_the_bound(kit) -> None:
    started = await asyncio.gather(*(kit.start("sleep 3600") for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(each, str) for each in started) == 8
    assert all(isinstance(each, str | ToolRateLimited) for each in started)


async def test_what_makes_no_sense_is_refused(kit) -> None:
    with pytest.raises(ToolArgumentsInvalid, match="belongs to a run"):
        await kit.start("true", run="")
    with pytest.raises(ToolArgumentsInvalid, match="outside of any"):
        await kit.do("list", run="")
    with pytest.raises(ToolArgumentsInvalid, match="action must be"):
        await kit.do("look")
    with pytest.raises(ToolArgumentsInvalid, match="id is required to kill"):
        await kit.do("kill")


class Store:
    """The rows of runs as a store has them, and how often it was asked."""

    def __init__(self, **rows: RunRow) -> None:
        self.rows = dict(rows)
        self.asked: list[list[str]] = []

    async def __call__(self, run_ids: Sequence[str]) -> Mapping[str, RunRow]:
        self.asked.append(list(run_ids))
        return {each: self.rows[each] for each in run_ids if each in self.rows}

    async def looks(self, times: int) -> None:
        """Wait until it was asked this often from now on; what came of all but the last is done."""
        until = len(self.asked) + times
        await soon(lambda: len(self.asked) >= until)


async def soon(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def test_a_run_that_waits_keeps_its_job_until_somebody_else_has_it(kit) -> None:
    name, store = mark(), Store(one=RunRow(2))
    kit.processes.watch(store)
    id = await kit.start(f"echo up; sleep {name}", run="one")
    await soon(lambda: kit.jobs.of("one")[0].output.kept == b"up\n")
    await kit.processes.left("one", 2)
    kit.processes.taken("one", 3)
    assert marked(name), f"{id} waited, and goes on here"
    await kit.processes.left("one", 2)
    store.rows["one"] = RunRow(3, "another")
    await soon(lambda: not kit.jobs.of("one"))
    assert await kit.do("list", run="one") == "[]"
    await soon(lambda: not marked(name))


async def test_a_run_that_comes_back_from_elsewhere_finds_nothing_of_before(kit) -> None:
    name = mark()
    kit.processes.watch(lambda run_ids: asyncio.sleep(3600))
    id = await kit.start(f"echo up; sleep {name}")
    await kit.until(id, "up")
    await kit.processes.left("run-1", 2)
    kit.processes.taken("run-1", 5)
    assert await kit.do("list") == "[]"
    await soon(lambda: not marked(name))


async def test_a_run_that_this_process_has_claimed_and_is_loading_keeps_its_job(kit) -> None:
    store = Store(one=RunRow(2))
    kit.processes.watch(store)
    await kit.start(f"sleep {mark()}", run="one")
    await kit.processes.left("one", 2, claim=1, worker="here")
    store.rows["one"] = RunRow(3, "here")
    await store.looks(3)
    kit.processes.taken("one", 3)
    assert [job.status for job in kit.jobs.of("one")] == ["running"]


async def test_a_claim_of_this_process_that_drives_nothing_does_not_keep_a_job_for_ever(kit) -> None:
    store = Store(one=RunRow(2))
    kit.processes.watch(store)
    await kit.start(f"sleep {mark()}", run="one")
    await kit.processes.left("one", 2, claim=1, worker="here")
    store.rows["one"] = RunRow(3, "here")
    await soon(lambda: not kit.jobs.of("one"))


async def test_the_end_of_an_older_claim_ends_nothing_of_the_newer_one(kit) -> None:
    kit.processes.watch(Store(one=RunRow(3)))
    kit.processes.taken("one", 1)
    kit.processes.taken("one", 2)
    await kit.start(f"sleep {mark()}", run="one")
    await kit.processes.left("one", None, claim=1)
    assert [job.status for job in kit.jobs.of("one")] == ["running"]
    await kit.processes.left("one", None, claim=2)
    assert not kit.jobs.of("one")


@pytest.mark.parametrize("steps", range(4))
async def test_whoever_ends_a_run_may_be_cancelled_and_its_job_ends_all_the_same(kit, steps: int) -> None:
    name = mark()
    await kit.start(f"sleep {name}")
    (job,) = kit.jobs.of("run-1")
    leaving = asyncio.create_task(kit.processes.left("run-1", None))
    for _ in range(steps + 1):
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    await kit.processes.close()
    assert (job.status, marked(name)) == ("killed", [])
    assert not job.session.alive


async def test_a_job_that_is_ended_twice_or_before_its_first_step_leaves_no_fence(kit) -> None:
    opened = await kit.fences.open(FenceRequest(), fence_of(invocation(kit.bash, {})))
    job = Job("job_1", f"sleep {mark()}", opened, 60)
    job.running = asyncio.create_task(kit.jobs._run(job))
    await asyncio.gather(_end(job), _end(job))
    assert (job.status, opened.alive) == ("killed", False)


async def test_an_ended_job_keeps_the_end_of_its_output_once(kit) -> None:
    await kit.start("head -c 2000000 /dev/zero | tr '\\0' x")
    (job,) = kit.jobs.of("run-1")
    await asyncio.wait([job.running])
    assert len(job.output._kept) == KEPT
    assert (job.finished.stdout, job.finished.stderr) == (b"", b"")


async def test_many_runs_that_wait_are_looked_up_at_once_and_only_so_many_are_kept(kit) -> None:
    store = Store(**{f"run_{n}": RunRow(2) for n in range(5)})
    kit.processes.watch(store)
    kit.processes._most_waiting = 3
    for n in range(5):
        await kit.start(f"sleep {mark()}" if n == 0 else "true", run=f"run_{n}")
        if n:
            await asyncio.wait([kit.jobs.of(f"run_{n}")[0].running])
    for n in range(5):
        await kit.processes.left(f"run_{n}", 2)
    await store.looks(2)
    assert store.asked[-1] == ["run_0", "run_3", "run_4"], "the one whose job runs stays"


async def test_of_ended_jobs_of_all_runs_only_so_many_are_kept(kit, monkeypatch) -> None:
    monkeypatch.setattr("foliot.tools.builtin.jobs.MOST_ENDED_IN_ALL", 2)
    for n in range(4):
        await kit.start("true", run=f"run_{n}")
        await asyncio.wait([kit.jobs.of(f"run_{n}")[0].running])
    await kit.start("true", run="last")
    assert kit.jobs.runs == {"run_2", "run_3", "last"}


async def test_a_run_that_has_ended_takes_its_jobs_along(kit) -> None:
    name = mark()
    id = await kit.start(f"echo up; sleep {name}")
    await kit.until(id, "up")
    await kit.processes.left("run-1", None)
    assert marked(name) == []


async def test_other_namespaces_have_no_shared_folder(kit) -> None:
    (kit.folder / "here").write_text("")
    tools = builtin_tools(["bash"], fences=kit.fences)
    call = invocation(tools[0], {"command": "ls"}, caller=Caller("other", "clerk"))
    assert "here" not in await tools[0].invoke(call)
