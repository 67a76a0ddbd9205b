"""A `once` call that a crash cut off: the run waits, and goes on as a person says. By the Python API, on SQLite."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import apsw
import pytest

from foliot import Agent, Runtime, ScriptedModel, tool
from foliot.engine.driver.runs import user_message
from foliot.kernel.run.codec import type_of
from foliot.store.journal.base import RunHeld


class Shop:
    """A shop whose card terminal hangs at first, so that its worker can die in the middle of a charge."""

    def __init__(self) -> None:
        self.charges = 0
        self.reached = asyncio.Event()
        self.hangs = True

        @tool(effect="once", timeout=None)
        async def charge() -> str:
            self.reached.set()
            if self.hangs:
                await asyncio.Event().wait()
            self.charges += 1
            return "charged"

        script = [{"call": "charge"}, {"say": "Result: {last_result}"}]
        self.agent = Agent("shop", model=ScriptedModel(script), tools=[charge])


async def crashed(store, shop: Shop) -> None:
    """A worker begins the charge and dies: no release, no last write."""
    async with Runtime(store, clock=lambda: 1000.0) as runtime:
        spec = await runtime.inside._assembly.freeze(await runtime.inside._assembly.agent(shop.agent))
        driver = await runtime.inside.runs.start(
            spec, (user_message("go"),), run_id="r1", tools=await runtime.inside._assembly.pipeline(spec)
        )
        task = asyncio.create_task(driver.drive())
        await asyncio.wait_for(shop.reached.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    shop.hangs = False


@pytest.fixture
async def waiting(tmp_path):
    """A runtime in which run r1 waits for a decision."""
    shop = Shop()
    await crashed(tmp_path / "foliot.db", shop)
    async with Runtime(tmp_path / "foliot.db", clock=lambda: 2000.0) as runtime:
        result = await runtime.resume("r1", agent=shop.agent)
        assert result.phase == "waiting"
        assert result.waiting is not None
        assert (result.waiting.reason, result.waiting.owner, result.waiting.calls) == (
            "unknown_effect",
            "person",
            ("call_1_1",),
        )
        assert shop.charges == 0
        yield runtime, shop


async def kinds(runtime: Runtime) -> list[str]:
    return [type_of(event) for _, event in await runtime.inside.runs.facts("r1")]


async def test_it_happened_and_the_model_is_told_the_result(waiting) -> None:
    runtime, shop = waiting
    info = await runtime.inside.settle_call("r1", "call_1_1", "happened", result="charged, says the bank", by="ann")
    assert info.phase == "succeeded"
    assert (await runtime.resume("r1")).output == "Result: charged, says the bank"
    assert shop.charges == 0
    assert (await kinds(runtime)).count("tool.started") == 1


async def test_run_it_and_it_runs_once_under_the_same_key(waiting) -> None:
    runtime, shop = waiting
    assert (await runtime.inside.settle_call("r1", "call_1_1", "run", by="ann")).phase == "succeeded"
    assert shop.charges == 1
    assert (await runtime.resume("r1")).output == "Result: charged"
    assert (await kinds(runtime)).count("tool.started") == 2


async def test_fail_ends_the_run_without_another_try(waiting) -> None:
    runtime, shop = waiting
    assert (await runtime.inside.settle_call("r1", "call_1_1", "fail", by="ann", reason="too risky")).phase == "failed"
    result = await runtime.resume("r1", check=False)
    assert result.error == "too risky"
    assert shop.charges == 0
    assert (await kinds(runtime)).count("tool.finished") == 1


async def test_the_run_goes_on_waiting_until_someone_decides(waiting) -> None:
    runtime, shop = waiting
    for _ in range(3):
        assert (await runtime.resume("r1")).phase == "waiting"
    assert shop.charges == 0
    assert (await runtime.inside.cancel("r1", by="ann")).phase == "cancelled"
    assert (await runtime.inside.replay("r1")).difference is None


async def test_a_decision_that_is_stored_is_no_error_where_the_run_cannot_go_on(waiting, tmp_path, caplog) -> None:
    first, shop = waiting
    async with Runtime(tmp_path / "foliot.db", clock=lambda: 2000.0) as elsewhere:  # it knows no tool named charge
        info = await elsewhere.inside.settle_call(
            "r1", "call_1_1", "happened", result="charged, says the bank", by="ann"
        )
    assert info.phase == "waiting"
    assert "run r1 has its message, and cannot go on in this process" in caplog.text
    assert (await first.resume("r1")).output == "Result: charged, says the bank"
    assert shop.charges == 0


async def test_nobody_takes_the_run_while_its_worker_may_live(tmp_path) -> None:
    shop = Shop()
    await crashed(tmp_path / "foliot.db", shop)
    async with Runtime(tmp_path / "foliot.db", clock=lambda: 1001.0) as runtime:
        with pytest.raises(RunHeld):
            await runtime.resume("r1", agent=shop.agent)


async def test_a_decision_about_a_lost_call_is_in_the_audit_log_with_who_made_it(waiting, tmp_path):
    runtime, _ = waiting
    _, state = await runtime.inside.runs.load("r1")
    (call_id,) = state.waiting.calls
    await runtime.inside.settle_call("r1", call_id, "fail", by="ann", reason="seen on the terminal")
    with closing(apsw.Connection(str(tmp_path / "foliot.db"))) as database:
        records = [json.loads(data) for (data,) in database.execute("SELECT data FROM audit")]
    decided = [each for each in records if each["moment"] == "decided"]
    assert [(each["outcome"], each["decision"]["by"], each["tool"]) for each in decided] == [("fail", "ann", "charge")]
