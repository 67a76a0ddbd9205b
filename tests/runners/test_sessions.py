"""Sessions of programs: resumed after a wait, a crash or on another worker; questions to people; files that stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from foliot import Agent, Runtime, tool
from foliot.engine.workspaces.history import files_by_step
from foliot.engine.workspaces.workspaces import RunWorkspaces
from foliot.kernel.run.events import ModelResponded
from foliot.resources.validate import validate_document
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command
from tests.runners.kit import PRELUDE, alive, answers_of, program, speaks_lines

# Prints the lines of Claude Code; its sessions are files in its home.
CLAUDE = """
args, prompt = sys.argv[1:], sys.stdin.read()
folder = os.path.join(os.environ["HOME"], "sessions")
os.makedirs(folder, exist_ok=True)
resumed = next((each.partition("=")[2] for each in args if each.startswith("--resume=")), "")
if resumed and not os.path.exists(os.path.join(folder, resumed)):
    sys.exit("No conversation found with session ID " + resumed)
if "--continue" in args and not os.listdir(folder):
    sys.exit("No conversation found to continue")
name = resumed or (os.listdir(folder)[0] if "--continue" in args else "sess-1")
with open(os.path.join(folder, name), "a") as file:
    file.write(prompt + chr(10))
said = open(os.path.join(folder, name)).read().split(chr(10))[:-1]
say("system", subtype="init", session_id=name)
say("assistant", message=dict(content=[dict(type="text", text="Working. ")]), session_id=name)
say("result", subtype="success", is_error=False, result=json.dumps(dict(said=said)), session_id=name,
    total_cost_usd=0.01, usage=dict(input_tokens=3, output_tokens=2))
"""
SCHEMA = {"type": "object", "properties": {"said": {"type": "array", "minItems": 2}}, "required": ["said"]}


def coder(**runner: Any) -> Agent:
    words = ["python3", "-c", PRELUDE + CLAUDE]
    return Agent("coder", runner={"type": "claude_code", "command": words, **runner}, output=SCHEMA)


async def test_the_next_turn_resumes_the_session_that_the_program_named(runtime: Runtime) -> None:
    result = await runtime.run(coder(), "first")

    assert result.value["said"][0] == "first"
    assert len(result.value["said"]) >= 2, "the second turn was told only what is new, and the program knew the rest"
    assert not any("Assistant:" in each for each in result.value["said"])
    assert result.usage.cost_usd == pytest.approx(0.02)


async def test_a_session_that_is_gone_is_resumed_by_the_latest_and_else_the_run_fails(runtime: Runtime) -> None:
    latest = await runtime.run(coder(resume=["--resume=other"]), "first")
    assert latest.value["said"][0] == "first"

    gone = await runtime.run(coder(resume=["--resume=other"], resume_latest=["--resume=another"]), "go", check=False)

    assert (gone.phase, gone.reason) == ("failed", "program")
    assert "session ID another" in (gone.error or "")


# --- people ----------------------------------------------------------------------------------------------------------

ASKS = """
start = hear()
if start["resume"]:
    (answer,) = start["results"]
    say("result", text=f"{answer['type']} {answer['id']}: {answer['text']}")
else:
    say("text", text="Half done.")
    say("question", id="q1", text="Which colour?", choices=["red", "blue"])
    hear()
"""


async def test_a_question_waits_for_a_person_without_a_process_and_its_answer_resumes_the_program(
    runtime: Runtime,
) -> None:
    result = await runtime.run(speaks_lines(ASKS, interactive=True, mark="runner-asks"), "go")

    assert result.phase == "waiting"
    assert result.waiting is not None
    assert (result.waiting.reason, result.waiting.message) == ("input", "Which colour?")
    assert alive("runner-asks") == 0, "whoever waits holds nothing"
    await runtime.inside.answer_question(result.run_id, None, "blue")
    assert (await runtime.resume(result.run_id)).output == "answer q1: blue"


async def test_without_people_the_question_is_the_answer(runtime: Runtime) -> None:
    result = await runtime.run(speaks_lines(ASKS), "go")

    assert result.output == "Half done.\nWhich colour?"


async def test_a_question_that_nobody_answers_ends_the_session_as_a_success(tmp_path: Path) -> None:
    now = [1_900_000_000.0]
    async with Runtime(tmp_path / "foliot.db", clock=lambda: now[0]) as runtime:
        result = await runtime.run(speaks_lines(ASKS, interactive=True, idle="60s"), "go")
        assert result.phase == "waiting"
        now[0] += 61

        result = await runtime.resume(result.run_id)

        assert (result.phase, result.output) == ("succeeded", "Half done.")


async def test_a_program_without_lines_asks_by_a_file(runtime: Runtime) -> None:
    code = """
    given = sys.stdin.read()
    if "blue" not in given:
        open(".foliot-question", "w").write("Which colour?")
    print("I have", sorted(os.listdir(".")))
    """
    agent = Agent("worker", runner={"command": program(code), "interactive": True})

    result = await runtime.run(agent, "go")

    assert (result.phase, result.waiting and result.waiting.message) == ("waiting", "Which colour?")
    await runtime.inside.answer_question(result.run_id, None, "blue")
    assert (await runtime.resume(result.run_id)).output == "I have []", "a question that was asked is gone"


async def test_a_call_that_needs_an_approval_is_made_after_it_and_the_program_is_told(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(effect="once")
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    code = """
    start = hear()
    if not start["resume"]:
        say("session", id="till-1")
        say("tool_call", id="p", name="pay", arguments={"amount": 5})
        hear()
    (result,) = start["results"]
    say("result", text=f"{start['session_id']} {result['id']} {result['text']}")
    """
    agent = speaks_lines(code, tools=[pay], mark="runner-pays")
    rule = {"tool_ref": "pay", "operation_rules": [{"operation_class": "*", "verdict": "approval_required"}]}
    document, problems = validate_document({"kind": "ToolPermission", "metadata": {"name": "p"}, "spec": rule})
    assert document is not None, problems
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.inside.resources.write([Put(document)])
        result = await runtime.run(agent, "go")
        assert (result.phase, paid, alive("runner-pays")) == ("waiting", [], 0)
        (asked,) = await runtime.approvals.list()

        await runtime.approvals.approve(asked["metadata"]["name"])

        assert (await runtime.resume(result.run_id)).output == "till-1 p paid 5"
        assert paid == [5]


# --- files -----------------------------------------------------------------------------------------------------------


async def test_what_a_turn_left_is_there_in_the_next_and_in_the_journal(runtime: Runtime) -> None:
    code = """
    known = os.listdir(".")
    open(f"turn-{len(known)}", "w").write("x")
    print(json.dumps({"said": known}))
    """
    agent = Agent("worker", runner={"command": program(code)}, output=SCHEMA)

    result = await runtime.run(agent, "go", check=False)

    first, second, *_ = await answers_of(runtime, result.run_id)
    assert '"turn-0"' in second.response.message.text
    assert first.workspace is not None
    assert second.workspace is not None
    assert second.workspace.number > first.workspace.number
    files = files_by_step(await runtime.inside.runs.facts(result.run_id))
    assert [each.snapshot for each in files[:3]] == [None, first.workspace, second.workspace]


# --- workers ---------------------------------------------------------------------------------------------------------

DYING = """
import asyncio, sys
from foliot import Runtime
from tests.runners.test_sessions import slow
async def main():
    async with Runtime(sys.argv[1]) as runtime:
        await runtime.run(slow(), "go", run_id="r1")
asyncio.run(main())
"""


def slow() -> Agent:
    @tool(effect="read")
    async def hang(path: str = "") -> str:
        """Hang, in a process that is about to die."""
        if os.environ.get("RUNNER_TEST_DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        return "hung"

    code = """
    start = hear()
    if not start["resume"]:
        say("session", id="long-1")
        open("notes", "w").write("half")
    say("tool_call", id="h", name="hang", arguments={})
    say("result", text=f"{start['session_id']} {start['resume']} {open('notes').read()} {hear()['text']}")
    """
    return speaks_lines(code, tools=[hang], mark="runner-dies")


async def test_after_kill_9_nothing_survives_and_another_process_resumes_by_the_session(tmp_path: Path) -> None:
    store = str(tmp_path / "foliot.db")
    environment = {**os.environ, "RUNNER_TEST_DIES": "1", "PYTHONPATH": os.getcwd()}
    died = subprocess.run([sys.executable, "-c", DYING, store], env=environment, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    for _ in range(200):
        if alive("runner-dies") == 0:
            break
        subprocess.run(["sleep", "0.05"])
    assert alive("runner-dies") == 0

    async with Runtime(store) as runtime:
        result = await runtime.run(slow(), "go", run_id="r1")

        assert result.output.startswith("long-1 True half hung")
        events = [event for _, event in await runtime.inside.runs.facts("r1")]
        assert sum(isinstance(event, ModelResponded) for event in events) == 3


async def test_a_task_is_done_by_a_worker_whose_agent_is_a_program(tmp_path: Path) -> None:
    declared = {"kind": "Agent", "metadata": {"name": "shout"}, "spec": {"runner": {"command": ["tr", "a-z", "A-Z"]}}}
    document, problems = validate_document(declared)
    assert document is not None, problems
    async with Runtime(tmp_path / "foliot.db") as runtime:
        await runtime.inside.resources.write([Put(document)])
        accepted = await runtime.tasks.submit(Command(target="shout", target_kind="agent", message="how are you?"))
        offer = Offer("w1", runtime.inside.runs.worker, capacity=1)

        await asyncio.wait_for(runtime.inside.tasking.worker(offer, once=True, grace=0).run(), 60)

        task = await runtime.tasks.get(accepted.task.name)
        assert task.phase == "succeeded", task.summary
        assert "HOW ARE YOU?" in str(task.summary)


# --- rules that change while a program waits -----------------------------------------------------------------------

# Says whether it was started again, what it may do with its files, and calls a tool in between.
TRIES = """
told = hear()
if not told["resume"]:
    say('tool_call', id='1', name='tighten', arguments={})
    told = hear()
try:
    open('/workspace/written', 'w').write('x')
    could = 'write'
except OSError:
    could = 'read'
say('result', text=told["type"] + ' ' + could)
"""


@pytest.fixture
async def governed(tmp_path: Path) -> AsyncIterator[Runtime]:
    """A runtime whose store keeps policies."""
    async with Runtime(tmp_path / "governed.db") as opened:
        yield opened


def tightens(runtime: Runtime, **sandbox: Any) -> Any:
    """A tool in whose call an operator applies a policy."""

    @tool(effect="read")
    async def tighten() -> str:
        """Applies a policy."""
        spec = {"apply_mode": "global", "sandbox": sandbox}
        document, problems = validate_document({"kind": "AgentPolicy", "metadata": {"name": "careful"}, "spec": spec})
        assert document is not None, problems
        await runtime.inside.resources.write([Put(document)])
        return "applied"

    return tighten


async def test_a_program_that_waits_is_started_again_in_the_fence_that_a_new_policy_leaves(governed: Runtime) -> None:
    agent = speaks_lines(TRIES, tools=[tightens(governed, workspace="read_only")], workspace="read_write")
    assert (await governed.run(agent, "Go.")).output == "start read"


async def test_a_program_that_waits_goes_on_when_a_new_policy_takes_nothing_from_it(governed: Runtime) -> None:
    agent = speaks_lines(TRIES, tools=[tightens(governed, workspace="read_write")], workspace="read_write")
    assert (await governed.run(agent, "Go.")).output == "tool_result write"


async def test_a_program_that_a_new_policy_forbids_is_ended(governed: Runtime, tmp_path: Path) -> None:
    sandbox = {"mounts": [{"source": str(tmp_path), "target": "/data"}]}
    agent = speaks_lines(TRIES, mark="forbidden-4711", tools=[tightens(governed, mounts=[])], sandbox=sandbox)
    result = await governed.run(agent, "Go.", check=False)
    assert (result.phase, alive("forbidden-4711")) == ("failed", 0)
    assert "AgentPolicy/careful does not allow" in (result.error or "")


async def test_the_folder_of_a_run_is_held_for_a_program_that_waits(governed: Runtime) -> None:
    held: list[bool] = []

    @tool(effect="read")
    async def tighten() -> str:
        """Looks whether the folder is held."""
        folders = governed.inside.fences.workspaces
        assert isinstance(folders, RunWorkspaces)
        held.extend(each.lock is not None for each in folders._known.values())  # pyright: ignore[reportPrivateUsage]
        return "looked"

    result = await governed.run(speaks_lines(TRIES, tools=[tighten], workspace="read_write"), "Go.")

    assert (result.output, held) == ("tool_result write", [True])
