"""Runs of one agent under two execution policies are two classes: one that keeps failing does not hold up the other."""

from __future__ import annotations

import asyncio
from typing import Any

from foliot import Runtime
from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.execution import ExecutionPolicy, execution_class_key, normalised
from foliot.resources.validate import validate_document
from foliot.settings.settings import load_settings
from foliot.store.base import Delete, Key, Put
from foliot.store.queue.limits import THRESHOLD, list_classes
from foliot.store.queue.placement import Offer
from foliot.work.tasks.base import Command

FAILING: dict[str, Any] = {
    "provider": "scripted",
    "default_model": "scripted",
    "script": {"turns": [{"fail": "request"}], "loop": True},
}
DENY = ExecutionPolicy(security="deny")


async def test_a_failure_counts_for_the_class_of_its_policy_alone(store_url: str) -> None:
    async with Runtime(settings=load_settings({"store": store_url})) as runtime:
        for kind, name, spec in (("ModelEndpoint", "script", FAILING), ("Agent", "clerk", {"model_ref": "script"})):
            document, _ = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None
            await runtime.inside.resources.write([Put(document)])
        tasking = runtime.inside.tasking
        for name, policy in (("plain", None), ("held", DENY)):
            await tasking.tasks.accept(Command("agent", "clerk", name=name, message="go", execution_policy=policy))
        worker = tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=2), once=True)
        await asyncio.wait_for(worker.run(), 60)
        failures = {each.key: each.failures for each in await list_classes(tasking.database)}
    plain = execution_class_key("default", "clerk", "")
    held = execution_class_key("default", "clerk", "", normalised(DENY))
    assert plain != held
    assert failures == {plain: 1, held: 1}


async def test_a_model_that_a_policy_refuses_ends_the_run_and_holds_nothing_back(store_url: str) -> None:
    """The policy came after the tasks were accepted. Other work of the class goes on as soon as it is gone."""
    saying: dict[str, Any] = {**FAILING, "script": {"turns": [{"say": "done"}], "loop": True}}
    house = {"allowed_models": ["another"], "apply_mode": "global"}
    async with Runtime(settings=load_settings({"store": store_url})) as runtime:

        async def put(kind: str, name: str, spec: dict[str, Any]) -> None:
            document, _ = validate_document({"kind": kind, "metadata": {"name": name}, "spec": spec})
            assert document is not None
            await runtime.inside.resources.write([Put(document)])

        async def work() -> None:
            worker = tasking.worker(Offer("w", runtime.inside.runs.worker, capacity=1), once=True)
            await asyncio.wait_for(worker.run(), 60)

        await put("ModelEndpoint", "script", saying)
        await put("Agent", "clerk", {"model_ref": "script"})
        tasking, names = runtime.inside.tasking, [f"refused-{number}" for number in range(THRESHOLD + 1)]
        for name in names:
            await tasking.tasks.accept(Command("agent", "clerk", name=name, message="go", retry=RetryPolicy(3)))
        await put("AgentPolicy", "house", house)

        await work()

        for name in names:
            task = await tasking.tasks.get("default", name)
            assert (task.phase, task.summary["reason"]) == ("dead_lettered", "policy")
            (row,) = await tasking.tasks.runs("default", name)
            trace = await runtime.runs.trace(row["run_id"])
            assert trace.attempts == 1
            assert "AgentPolicy/house" in trace.steps[0].asks[0].message
        assert await list_classes(tasking.database) == []
        await runtime.inside.resources.write([Delete(Key("AgentPolicy", "default", "house"))])
        await tasking.tasks.accept(Command("agent", "clerk", name="allowed", message="go"))
        await work()
        assert (await tasking.tasks.get("default", "allowed")).phase == "succeeded"
