"""A program acts by itself, without a call of any tool: what is said of the call that began it, and of its forks."""

from __future__ import annotations

import asyncio

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.explain.trace import trace_of
from foliot.kernel.run.events import StepStarted
from tests.runners.kit import speaks_lines

PAYS = "say('text', text='I have sent the payment')\n"
ASKS = [{"call": {"agent:worker": {"input": "Pay."}}}, {"say": "ok"}]


def outer(worker: Agent) -> Agent:
    return Agent("outer", model=ScriptedModel(ASKS), tools=[worker])


async def test_a_program_that_is_cancelled_at_work_may_have_acted(runtime: Runtime) -> None:
    worker = speaks_lines(f"{PAYS}time.sleep(600)")
    running = asyncio.create_task(runtime.run(outer(worker), "Go.", run_id="r-1", check=False))
    async with asyncio.timeout(60):
        while not any(info.agent == "worker" for info in await runtime.runs.list()):
            await asyncio.sleep(0.01)
        (child,) = [info.id for info in await runtime.runs.list() if info.agent == "worker"]
        while not any(isinstance(event, StepStarted) for _, event in await runtime.runs.events(child)):
            await asyncio.sleep(0.01)
        await runtime.runs.cancel("r-1")
        assert (await running).phase == "cancelled"

    (call,) = trace_of("r-1", await runtime.runs.events("r-1")).calls
    assert call.may_have_acted
    assert call.error is not None
    assert "may have taken effect" in call.error.message


@pytest.mark.parametrize("ends", ["say('result', text='paid')", "sys.exit(3)"])
async def test_a_fork_names_the_program_that_its_original_has_run(runtime: Runtime, ends: str) -> None:
    await runtime.run(outer(speaks_lines(f"{PAYS}{ends}")), "Go.", run_id="r-1", check=False)

    (effect,) = (await runtime.runs.fork_point("r-1", at=1)).effects
    assert (effect.run_id, effect.step, effect.tool) == ("r-1", 1, "agent:worker")
    assert effect.outcome == ("failed" if "exit" in ends else "done")


async def test_a_model_that_has_called_nothing_is_no_effect_of_its_caller(runtime: Runtime) -> None:
    await runtime.run(outer(Agent("worker", model=ScriptedModel([{"say": "done"}]))), "Go.", run_id="r-1")

    assert (await runtime.runs.fork_point("r-1", at=1)).effects == ()


async def test_the_turns_of_a_program_are_effects_of_its_own_run(runtime: Runtime) -> None:
    result = await runtime.run(speaks_lines(f"{PAYS}say('result', text='paid')"), "Pay.")

    (effect,) = (await runtime.runs.fork_point(result.run_id, at=1)).effects
    assert (effect.run_id, effect.step, effect.tool, effect.words) == (result.run_id, 1, "runner", "result: paid")
