"""Runs are held to the execution policies of their agent, task and command, and children to those of their parents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.definition.backends import can_fence
from foliot.engine.definition.freeze import execution_of, isolation_needs, narrowed_by
from foliot.errors import Conflict, InvalidInput
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import ExecutionPolicy, execution_class_key, normalised
from foliot.kernel.identity import Identity
from foliot.kernel.messages import ToolResult
from foliot.kernel.run.events import ToolFinished
from foliot.kernel.run.spec import RunSpec
from foliot.resources.problems import ManifestError
from foliot.resources.validate import validate_document
from foliot.runtime.local.groups import LocalGroups
from foliot.sandbox.process import ProcessSandbox
from foliot.settings.settings import load_settings
from foliot.store.base import Put
from foliot.store.queue.placement import Offer
from foliot.store.queue.workers import list_workers
from foliot.tools.base import Invocation, OnOutput, ToolDefinition
from foliot.tools.builtin.catalogue import NAMES, builtin_definition
from foliot.tools.governance.judge import PolicyQuestion
from foliot.work.tasks.base import Command
from foliot.work.tasks.commands import command_of, from_template, spec_of
from foliot.work.views.worker_document import worker_document, worker_of

FULL = {"security": "full"}
SCRIPT = {
    "provider": "scripted",
    "default_model": "scripted",
    "script": {"turns": [{"say": "done"}], "loop": True},
}


class Execute:
    """Runs something, as far as anybody can tell."""

    definition = ToolDefinition("execute", "Runs something.", effect="read", executes=True)

    async def invoke(self, call: Invocation, *, on_output: OnOutput | None = None) -> str:
        return f"ran under {call.caller.execution}"


def desk(*, turns: Any = None, name: str = "desk", **spec: Any) -> Agent:
    turns = turns or [{"call": {"execute": {}}}, {"say": "{last_result}"}]
    return Agent(name, model=ScriptedModel(turns), tools=[Execute()], **spec)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "foliot.db") as opened:
        yield opened


async def results(runtime: Runtime, run_id: str) -> list[ToolResult]:
    return [event.result for _, event in await runtime.inside.runs.facts(run_id) if isinstance(event, ToolFinished)]


async def declare(runtime: Runtime, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    document, problems = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
    assert document is not None, problems
    await runtime.inside.resources.write([Put(document)])
    return document


async def policy_of(runtime: Runtime, run_id: str) -> ExecutionPolicy | None:
    _, state = await runtime.inside.runs.load(run_id)
    return execution_of(state.spec)


# --- an agent ----------------------------------------------------------------------------------------------------


async def test_a_tool_that_runs_programs_is_refused_where_the_policy_denies(runtime: Runtime) -> None:
    done = await runtime.run(desk(execution_policy={"security": "deny"}), "go")
    (refused,) = await results(runtime, done.run_id)
    assert refused.error is not None
    assert (refused.error.code, refused.error.details["layer"]) == ("permission_denied", "execution")


async def test_the_policy_reaches_the_call_in_normal_form(runtime: Runtime) -> None:
    done = await runtime.run(desk(execution_policy={**FULL, "network_enabled": False}), "go")
    assert "security='full'" in done.output
    assert "network_enabled=False" in done.output
    assert "workspace_access='rw'" in done.output


async def test_an_agent_without_a_policy_runs_as_before(runtime: Runtime) -> None:
    assert (await runtime.run(desk(), "go")).output == "ran under None"


@pytest.mark.parametrize(("answer", "told"), [("approve", "ran under"), ("deny", "not approved by ana")])
async def test_a_person_is_asked_about_what_the_list_misses(runtime: Runtime, answer: str, told: str) -> None:
    asked = await runtime.run(desk(execution_policy={"ask": "on-miss"}), "go")
    (approval,) = await runtime.approvals.list()
    assert "does not list 'execute' in allowed_tools" in approval["spec"]["reason"]
    await getattr(runtime.approvals, answer)(approval["metadata"]["name"], by="ana")
    await runtime.runs.resume(asked.run_id)
    done = await runtime.runs.wait(asked.run_id, timeout=60)
    assert told in done.output


async def test_what_is_on_the_list_is_not_asked_about(runtime: Runtime) -> None:
    done = await runtime.run(desk(execution_policy={"ask": "on-miss"}, allowed_tools=["execute"]), "go")
    assert done.output.startswith("ran under")


def test_a_wrong_policy_of_an_agent_is_refused_with_its_text() -> None:
    with pytest.raises(ManifestError, match="invalid security: open"):
        desk(execution_policy={"security": "open"})


# --- a child -----------------------------------------------------------------------------------------------------


async def test_a_child_is_never_wider_than_its_parent(runtime: Runtime) -> None:
    child = desk(name="child", execution_policy={"security": "full", "network_enabled": True})
    parent = Agent(
        "boss",
        model=ScriptedModel([{"call": {"agent:child": {"input": "go"}}}, {"say": "{last_result}"}]),
        tools=[child],
        execution_policy={"security": "deny", "network_enabled": False, "resources": {"memory": 1 << 26}},
    )
    done = await runtime.run(parent, "go")
    assert "ran under" not in done.output
    (info,) = [each for each in await runtime.inside.runs.journal.list() if each.parent == done.run_id]
    held = await policy_of(runtime, info.id)
    assert held is not None
    assert (held.security, held.network_enabled, held.resources) == ("deny", False, {"memory": 1 << 26})


async def test_a_child_without_a_policy_is_held_to_that_of_its_parent(runtime: Runtime) -> None:
    child = desk(name="child")
    turns = [{"call": {"delegate": {"tasks": [{"agent": "child", "task": "go"}]}}}, {"say": "{last_result}"}]
    parent = Agent("boss", model=ScriptedModel(turns), tools=[child, "delegate"], execution_policy={"security": "deny"})
    done = await runtime.run(parent, "go")
    (info,) = [each for each in await runtime.inside.runs.journal.list() if each.parent == done.run_id]
    (refused,) = await results(runtime, info.id)
    assert refused.error is not None
    assert refused.error.details["layer"] == "execution"


# --- a task ------------------------------------------------------------------------------------------------------


async def accepted(runtime: Runtime, command: Command) -> tuple[ExecutionPolicy | None, str]:
    """The policy of the one run of a task, and the class key of its row in the queue."""
    task = (await runtime.inside.tasking.tasks.accept(command)).task
    (run,) = await runtime.inside.runs.journal.list()
    (message,) = (await runtime.tasks.story(task.name)).messages.values()
    assert message.run is not None
    return await policy_of(runtime, run.id), message.run.class_key


async def test_a_task_narrows_what_its_agent_declares_and_cannot_widen_it(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    agent = {"security": "allowlist", "workspace_access": "ro", "resources": {"cpu": 500}}
    await declare(runtime, "Agent", "clerk", model_ref="script", execution_policy=agent)
    wider = ExecutionPolicy(
        security="full", workspace_access="rw", network_enabled=False, resources={"cpu": 4000, "memory": 1 << 28}
    )
    held, key = await accepted(runtime, Command("agent", "clerk", message="go", execution_policy=wider))
    assert held is not None
    assert (held.security, held.workspace_access, held.network_enabled) == ("allowlist", "ro", False)
    assert held.resources == {"cpu": 500, "memory": 1 << 28}
    assert key == execution_class_key("default", "clerk", "", held)


async def test_what_an_agent_leaves_blank_is_not_opened_by_a_task(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    await declare(runtime, "Agent", "clerk", model_ref="script", execution_policy={"workspace_access": "ro"})
    held, _ = await accepted(
        runtime, Command("agent", "clerk", message="go", execution_policy=ExecutionPolicy(security="full"))
    )
    assert held is not None
    assert held.security == "allowlist"


EMPTY = [{}, {"security": ""}, {"resources": {}}, {"retry": {}}, {"resources": {"cpu": 0}, "retry": {"delay_ms": 0}}]


@pytest.mark.parametrize("empty", EMPTY)
async def test_a_policy_that_declares_no_field_is_none_wherever_it_is_written(runtime: Runtime, empty: Any) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    await declare(runtime, "Agent", "clerk", model_ref="script", execution_policy=empty)
    command = Command("agent", "clerk", message="go", execution_policy=msgspec.convert(empty, ExecutionPolicy))
    assert (await accepted(runtime, command))[0] is None
    assert command_of(task(execution_policy=empty)).execution_policy is None
    done = await runtime.run(desk(execution_policy=empty), "go")
    assert done.output == "ran under None"


@pytest.mark.parametrize("wrong", [{"disk": 0}, {"cpu": False}])
async def test_a_policy_that_declares_nothing_must_still_be_right(runtime: Runtime, wrong: Any) -> None:
    command = Command("agent", "clerk", message="go", execution_policy=ExecutionPolicy(resources=wrong))
    with pytest.raises(InvalidInput, match="invalid policy: invalid resources: "):
        await runtime.inside.tasking.tasks.accept(command)


def task(**spec: Any) -> dict[str, Any]:
    document, problems = validate_document(
        {"kind": "Task", "metadata": {"name": "t"}, "spec": {"agent": "clerk", **spec}}
    )
    assert document is not None, problems
    return document


def test_a_task_says_the_same_as_its_command() -> None:
    policy = {"security": "deny", "network_enabled": False, "resources": {"cpu": 500}}
    command = command_of(task(executionPolicy={"security": "DENY", "networkEnabled": False, "resources": {"cpu": 500}}))
    assert command.execution_policy == ExecutionPolicy(security="deny", network_enabled=False, resources={"cpu": 500})
    assert spec_of(command)["execution_policy"] == policy


def test_whoever_uses_a_template_can_narrow_its_policy_and_not_widen_it() -> None:
    template = task(mode="template", input={"topic": "x"}, execution_policy={"security": "deny"})
    given = Command("agent", "", execution_policy=ExecutionPolicy(security="full", network_enabled=False))
    made = from_template(template, given)
    assert made.execution_policy == ExecutionPolicy(security="deny", network_enabled=False)
    assert from_template(template, Command("agent", "")).execution_policy == ExecutionPolicy(security="deny")


@pytest.mark.parametrize("resources", [{"cpu": "all"}, {"disk": 1}, {"cpu": -1}])
async def test_a_wrong_policy_of_a_command_is_refused_with_its_text(runtime: Runtime, resources: Any) -> None:
    command = Command("agent", "clerk", message="go", execution_policy=ExecutionPolicy(resources=resources))
    with pytest.raises(InvalidInput, match="invalid policy: invalid resources: "):
        await runtime.inside.tasking.tasks.accept(command)
    template = task(mode="template", input={"topic": "x"}, execution_policy={"security": "deny"})
    with pytest.raises(InvalidInput, match="invalid policy: invalid resources: "):
        from_template(template, command)


@pytest.mark.parametrize(
    ("own", "declared", "rule"),
    [
        (RetryPolicy(), {"max_attempts": 4, "delay_ms": 1500}, RetryPolicy(4, 1.5, 300.0, "equal")),
        (RetryPolicy(), {"delay_ms": 600_000}, RetryPolicy(2, 600.0, 600.0, "equal")),
        (RetryPolicy(), None, RetryPolicy()),
        (RetryPolicy(3, 1.0), {"max_attempts": 9}, RetryPolicy(3, 1.0)),
    ],
)
async def test_a_policy_completes_the_retry_rule_of_a_task_that_has_none(
    runtime: Runtime, own: RetryPolicy, declared: Any, rule: RetryPolicy
) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    await declare(
        runtime, "Agent", "clerk", model_ref="script", execution_policy={"security": "full", "retry": declared}
    )
    accepted = await runtime.inside.tasking.tasks.accept(Command("agent", "clerk", message="go", retry=own))
    assert accepted.begun is not None
    assert accepted.begun.plan.retry == rule


async def test_two_commands_with_other_policies_are_not_the_same_request(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    await declare(runtime, "Agent", "clerk", model_ref="script")
    tasks = runtime.inside.tasking.tasks
    command = Command("agent", "clerk", message="go", idempotency_key="k")
    await tasks.accept(command)
    with pytest.raises(Conflict):
        await tasks.accept(replace(command, execution_policy=ExecutionPolicy(security="deny")))


# --- placement ---------------------------------------------------------------------------------------------------

FENCED = RunSpec("clerk", "m", extra={"isolation": ["sandboxed"]})


@pytest.mark.parametrize(
    ("modes", "policy", "needs"),
    [
        ([], {"runtime_type": "gvisor"}, ()),
        (["sandboxed"], None, ("process",)),
        (["container", "sandboxed", "wasm"], None, ("container", "process", "wasm")),
        (["sandboxed"], {"runtime_type": "runc"}, ("container",)),
        (["sandboxed"], {"runtime_type": "gvisor"}, ("gvisor",)),
        (["container"], {"runtime_type": "process"}, ("container",)),
        (["sandboxed"], {"security": "deny", "runtime_type": "gvisor"}, ()),
        (["sandboxed"], {"resources": {"memory": 1, "cpu": 2}}, ("process", "process+cpu", "process+memory")),
        (["sandboxed"], {"runtime_type": "gvisor", "resources": {"memory": 1}}, ("gvisor", "gvisor+memory")),
    ],
)
def test_what_a_worker_must_enforce_follows_from_tools_and_policy(modes: Any, policy: Any, needs: Any) -> None:
    spec = replace(FENCED, extra={"isolation": modes})
    declared = None if policy is None else ExecutionPolicy(**policy)
    assert isolation_needs(narrowed_by(spec, declared)) == needs


@asynccontextmanager
async def working(runtime: Runtime, name: str, *isolation: str) -> AsyncIterator[None]:
    offer = Offer(name, f"{runtime.inside.runs.worker}/{name}", capacity=4, isolation=isolation)
    worker = runtime.inside.tasking.worker(offer, grace=0.0)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await asyncio.wait_for(task, 60)


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_a_run_waits_for_a_worker_that_can_enforce_it_and_why_says_who_lacks_what(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    policy = {"security": "full", "runtime_type": "gvisor"}
    await declare(runtime, "Agent", "clerk", model_ref="script", tools=["bash"], execution_policy=policy)
    tasks = runtime.inside.tasking.tasks
    await tasks.accept(Command("agent", "clerk", name="t1", message="go"))

    async def told() -> bool:
        causes = [cause.text for cause in (await runtime.tasks.why("t1")).causes]
        return causes[-1:] == ["plain has region=-, no gpu, all models, cannot enforce gvisor"]

    async def done() -> bool:
        return (await tasks.get("default", "t1")).phase == "succeeded"

    async with working(runtime, "plain", "process", "process+memory"):
        await until(told)
        assert "needs a worker with isolation gvisor" in (await runtime.tasks.why("t1")).causes[-2].text
        async with working(runtime, "strong", "gvisor", "process"):
            await until(done)


@pytest.mark.parametrize("once", [True, False])
async def test_containers_are_tried_when_a_run_waits_for_them_and_not_before(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    tried: list[bool] = []
    tasking = runtime.inside.tasking

    async def enforced(containers: bool = False) -> tuple[str, ...]:
        tried.append(containers)
        return ("gvisor", "process") if containers else ("process",)

    monkeypatch.setattr(tasking, "enforced", enforced)
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    await declare(runtime, "Agent", "plain", model_ref="script")
    policy = {"security": "full", "runtime_type": "gvisor"}
    await declare(runtime, "Agent", "clerk", model_ref="script", tools=["bash"], execution_policy=policy)
    worker = tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=4), grace=0.0, once=once)
    await tasking.tasks.accept(Command("agent", "plain", name="t0", message="go"))
    running = asyncio.create_task(worker.run())

    async def done(name: str) -> bool:
        return (await tasking.tasks.get("default", name)).phase == "succeeded"

    await until(lambda: done("t0"))
    assert tried == [False]
    if once:
        await running  # it has nothing more to do
    await tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
    if once:
        worker = tasking.worker(Offer("w2", runtime.inside.runs.worker, capacity=4), grace=0.0, once=True)
        running = asyncio.create_task(worker.run())
    await until(lambda: done("t1"))
    assert tried[-1] is True
    worker.drain()
    await running
    assert "gvisor" in (await list_workers(tasking.database))[-1].isolation


async def test_a_worker_finds_out_by_itself_what_it_can_enforce(runtime: Runtime) -> None:
    worker = runtime.inside.tasking.worker(Offer("w", f"{runtime.inside.runs.worker}/w"), grace=0.0, once=True)
    await worker.run()
    (known,) = await list_workers(runtime.inside.tasking.database)
    assert known.isolation == worker.offer.isolation == await runtime.inside.tasking.enforced()
    fence = await ProcessSandbox().enforces()
    assert ("process" in known.isolation) is fence.available
    assert ("process+memory" in known.isolation) is fence.enforces("memory")
    assert worker_of(worker_document(known, known.heartbeat_at)).isolation == known.isolation


# --- in the fence ------------------------------------------------------------------------------------------------

needs_fence = pytest.mark.skipif(not can_fence(), reason="bubblewrap is not installed")


async def shell(folder: Path, command: str, **policy: Any) -> str:
    """What a shell says to a model whose run has this policy."""
    place = folder / "workspace"
    place.mkdir(exist_ok=True)
    settings = load_settings({"store": str(folder / "foliot.db"), "workspace": str(place)})
    turns = [{"call": {"bash": {"command": command}}}, {"say": "{last_result}"}]
    async with Runtime(settings=settings) as runtime:
        agent = Agent("desk", model=ScriptedModel(turns), tools=["bash"], execution_policy={**FULL, **policy})
        return (await runtime.run(agent, "go")).output


@needs_fence
@pytest.mark.parametrize(
    ("access", "told"), [("rw", "kept"), ("ro", "Read-only file system"), ("none", "no workspace")]
)
async def test_a_shell_finds_of_the_workspace_what_the_policy_leaves(tmp_path: Path, access: str, told: str) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "note").write_text("here")
    command = "test -e /workspace/note || { echo no workspace; exit; }; touch /workspace/new && echo kept"
    assert told in await shell(tmp_path, f"({command}) 2>&1 || true", workspace_access=access)


@needs_fence
async def test_a_bound_on_memory_holds_or_the_call_is_refused(tmp_path: Path) -> None:
    hog = "head -c 200000000 /dev/zero | tail | wc -c"
    said = await shell(tmp_path, hog, resources={"memory": 64 * 1024 * 1024})
    assert "200000000" not in said


@needs_fence
async def test_a_runtime_that_is_not_here_refuses_the_call_and_nothing_weaker_runs(tmp_path: Path) -> None:
    said = await shell(tmp_path, "echo ran; touch /workspace/ran", runtime_type="gvisor")
    assert said.startswith("Error") is not (tmp_path / "workspace" / "ran").exists()


def test_every_built_in_tool_that_runs_programs_says_so() -> None:
    found = [definition for name in NAMES if (definition := builtin_definition(name)) is not None]
    assert {each.name for each in found if each.runs_programs} == {"bash", "python", "code"}


# --- other ways in -----------------------------------------------------------------------------------------------


async def test_what_would_become_of_a_call_is_told_by_the_same_judgement(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    agent = {"model_ref": "script", "tools": ["bash"], "allowed_commands": ["git log *"]}
    await declare(runtime, "Agent", "clerk", **agent, execution_policy={"security": "allowlist"})
    outcomes: dict[str, tuple[str, str]] = {}
    here = LocalGroups(runtime.inside, caller=Identity("ann"))
    for command in ("git log -3", "git log -3; id"):
        told = await here.policies.explain(PolicyQuestion("clerk", "bash", {"command": command}))
        (said,) = [each for each in told.judgement.verdicts if each.layer == "execution"]
        outcomes[command] = said.outcome, said.rule
    assert outcomes == {"git log -3": ("allow", ""), "git log -3; id": ("deny", "execution_policy")}


async def test_a_call_in_the_name_of_an_agent_outside_of_a_run_is_held_to_its_policy(runtime: Runtime) -> None:
    await declare(runtime, "ModelEndpoint", "script", **SCRIPT)
    agent = {"model_ref": "script", "tools": ["bash"], "allowed_commands": ["git log *"]}
    await declare(runtime, "Agent", "clerk", **agent, execution_policy={"security": "deny"})
    rights = await runtime.inside.tools.rights_of("default", "clerk")
    assert rights is not None
    assert rights.execution == normalised(ExecutionPolicy(security="deny"))
    assert rights.allowed_commands == ("git log *",)
    result = await runtime.tools.call("bash", {"command": "true"}, agent="clerk")
    assert "security is" in str(result)


# --- an agent that is a program ----------------------------------------------------------------------------------


@needs_fence
@pytest.mark.parametrize("held_by", ["its own policy", "its parent"])
async def test_an_agent_that_is_a_program_does_not_run_where_none_may(runtime: Runtime, held_by: str) -> None:
    deny = {"security": "deny"}
    own = {"execution_policy": deny} if held_by == "its own policy" else {}
    worker = Agent("worker", runner={"command": ["echo", "it ran"]}, **own)
    if held_by == "its own policy":
        done = await runtime.run(worker, "go", check=False)
        assert done.phase == "failed"
    else:
        turns = [{"call": {"agent:worker": {"input": "go"}}}, {"say": "{last_result}"}]
        boss = Agent("boss", model=ScriptedModel(turns), tools=[worker], execution_policy=deny)
        done = await runtime.run(boss, "go")
    said = f"{done.output} {done.error}"
    assert "its agent is a program" in said
    assert "it ran" not in said


@needs_fence
@pytest.mark.parametrize(
    ("policy", "commands", "objection"),
    [
        ({"ask": "always"}, ["echo *"], 'ask is "always", and no person can be asked'),
        ({"ask": "always", "security": "full"}, [], 'ask is "always", and no person can be asked'),
        ({"ask": "on-miss"}, [], "allowed_commands of the agent does not hold its program echo; ask is"),
        ({"ask": "on-miss"}, ["git *"], "allowed_commands of the agent does not hold its program echo; ask is"),
        ({"security": "allowlist"}, ["git *", "echo"], "allowed_commands of the agent does not hold its program echo"),
        ({"security": "allowlist"}, [], ""),
        ({"ask": "on-miss"}, ["echo *"], ""),
        ({"ask": "on-miss"}, ["echo it ran"], ""),
        ({"ask": "on-miss", "security": "full"}, [], ""),
    ],
)
async def test_the_program_of_an_agent_starts_only_where_no_person_has_to_be_asked(
    runtime: Runtime, policy: dict[str, Any], commands: list[str], objection: str
) -> None:
    runner = {"command": ["echo", "it", "ran"]}
    worker = Agent("worker", runner=runner, execution_policy=policy, allowed_commands=commands)
    done = await runtime.run(worker, "go", check=False)
    assert done.output == ("" if objection else "it ran")
    assert objection in (done.error or "")


TALKS = """
import json
print(json.dumps({"type": "question", "id": "q", "text": "Which colour?"}), flush=True)
"""


def talker(**spec: Any) -> Agent:
    runner = {"command": ["python3", "-c", TALKS], "protocol": "jsonl", "interactive": True}
    return Agent("talker", runner=runner, **spec)


@needs_fence
@pytest.mark.parametrize("policy", [None, {}, FULL, {**FULL, "interactive": True}])
async def test_a_blank_interactive_leaves_a_program_its_questions(runtime: Runtime, policy: Any) -> None:
    asked = await runtime.run(talker(execution_policy=policy), "go", check=False)
    assert asked.phase == "waiting"


@needs_fence
@pytest.mark.parametrize("tools", [[], ["ask_user"]])
async def test_interactive_false_puts_no_question_of_a_program_to_a_person(runtime: Runtime, tools: Any) -> None:
    done = await runtime.run(talker(execution_policy={"interactive": False}, tools=tools), "go")
    assert (done.phase, done.output) == ("succeeded", "Which colour?")
    _, state = await runtime.inside.runs.load(done.run_id)
    assert state.spec.tools == ()


@needs_fence
async def test_interactive_true_gives_no_questions_to_a_program_without_them(runtime: Runtime) -> None:
    runner = {"command": ["python3", "-c", TALKS], "protocol": "jsonl"}
    done = await runtime.run(Agent("talker", runner=runner, execution_policy={**FULL, "interactive": True}), "go")
    assert done.output == "Which colour?"


@needs_fence
@pytest.mark.parametrize("held_by", ["its own policy", "its parent"])
async def test_interactive_false_refuses_a_program_on_a_terminal(runtime: Runtime, held_by: str) -> None:
    silent = {"interactive": False, "security": "full"}
    own = {"execution_policy": silent} if held_by == "its own policy" else {}
    worker = Agent("worker", runner={"command": ["echo", "it ran"], "protocol": "terminal"}, **own)
    if held_by == "its own policy":
        done = await runtime.run(worker, "go", check=False)
    else:
        turns = [{"call": {"agent:worker": {"input": "go"}}}, {"say": "{last_result}"}]
        boss = Agent("boss", model=ScriptedModel(turns), tools=[worker], execution_policy=silent)
        done = await runtime.run(boss, "go")
    said = f"{done.output} {done.error}"
    assert "interactive is false, and the program of its agent needs a terminal" in said
    assert "it ran" not in said


async def test_a_task_that_is_not_interactive_takes_the_questions_of_a_program_away(runtime: Runtime) -> None:
    await declare(runtime, "Agent", "clerk", runner={"command": ["true"], "interactive": True})
    silent = ExecutionPolicy(interactive=False)
    held, _ = await accepted(runtime, Command("agent", "clerk", message="go", execution_policy=silent))
    (run,) = await runtime.inside.runs.journal.list()
    _, state = await runtime.inside.runs.load(run.id)
    assert held is not None
    assert (held.interactive, state.spec.tools) == (False, ())


async def test_a_run_of_a_program_waits_for_a_worker_with_a_fence(runtime: Runtime) -> None:
    await declare(runtime, "Agent", "worker", runner={"command": ["true"]})
    await runtime.inside.tasking.tasks.accept(Command("agent", "worker", name="t1", message="go"))
    (message,) = (await runtime.tasks.story("t1")).messages.values()
    assert message.run is not None
    assert '"isolation":["process"]' in message.run.requirements
