"""What is tried again, by what, and what that counts as: the table, the page, and tasks that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foliot.kernel.backoff import RetryPolicy
from foliot.kernel.graph.events import TaskDeadLettered, TaskSucceeded
from foliot.kernel.graph.retry import BUSY_FOR, RETRIES, verdict
from foliot.kernel.run.events import RunFailed, RunRetried
from foliot.kernel.run.spec import Limits, Repairs, RunSpec
from foliot.models.base import ModelError, ModelOverloaded, ModelRateLimited, ModelTimeout
from foliot.store.base import Database
from foliot.work.tasks.base import Command
from tests.work.task_kit import Answer, Definitions, Kit

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"


@pytest.fixture
async def kit(opened_store: Database) -> AsyncIterator[Kit]:
    made = Kit(opened_store, {})
    yield made
    await made.close()


def test_the_page_shows_the_table() -> None:
    section = PAGE.read_text().partition("## Retries")[2].partition("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| what fails")]
    assert shown == [f"| {row.failure} | {row.retried_by} | {row.counted_as} |" for row in RETRIES]


EXAMPLES = [(row, *example) for row in RETRIES for example in row.examples]


@pytest.mark.parametrize(
    ("row", "code", "reason"), EXAMPLES, ids=[f"{code}-{why}-{row.then}" for row, code, why in EXAMPLES]
)
def test_the_functions_keep_to_the_table(row: Any, code: str, reason: str) -> None:
    failed = RunFailed(code, reason, "it failed")
    assert verdict(failed, RetryPolicy(max_attempts=2), attempt=1, busy=row.then == "wait") == row.then


def playing(*answers: Any) -> Answer:
    left: Iterator[Any] = iter(answers)
    return saying(lambda: next(left))


def saying(answer: Callable[[], Any]) -> Answer:
    def say(agent: str, told: str) -> Any:
        return answer()

    return say


async def attempts_of(kit: Kit, name: str) -> list[RunRetried]:
    (run,) = await kit.tasks.runs("default", name)
    return [event for _, event in await kit.runs.facts(run["run_id"]) if isinstance(event, RunRetried)]


async def later(kit: Kit, times: int = 1, seconds: float = 600.0) -> None:
    for _ in range(times):
        await kit.work()
        kit.now += seconds
    await kit.work()


async def test_pauses_of_a_run_use_up_none_of_its_attempts(kit: Kit) -> None:
    """The run waits three times for its model, each time taken up by another claim; then its task tries again."""
    kit.definitions.model_attempts = 3
    kit.answer = playing(*[ModelTimeout("slow")] * 4, "done")
    task = (await kit.tasks.accept(Command("agent", "a", message="x", retry=RetryPolicy(2)))).task

    await later(kit, 6)

    assert isinstance(await kit.end_of(task.name), TaskSucceeded)
    assert [(each.attempt, each.counted) for each in await attempts_of(kit, task.name)] == [(1, True)]


BUSY: list[ModelError] = [ModelRateLimited("slow down", status=429), ModelOverloaded("too much to do", status=529)]


@pytest.mark.parametrize("busy", BUSY, ids=["429", "529"])
async def test_a_busy_model_is_waited_for_and_counts_as_nothing(kit: Kit, busy: ModelError) -> None:
    kit.answer = playing(busy, busy, busy, "done")
    task = (await kit.tasks.accept(Command("agent", "a", message="x"))).task  # one attempt and no more

    await later(kit, 4)

    assert isinstance(await kit.end_of(task.name), TaskSucceeded)
    assert [(each.attempt, each.counted) for each in await attempts_of(kit, task.name)] == [(1, False)] * 3


async def test_a_model_that_is_busy_for_a_day_is_given_up(kit: Kit) -> None:
    kit.answer = saying(lambda: ModelRateLimited("slow down", status=429))
    task = (await kit.tasks.accept(Command("agent", "a", message="x"))).task

    await later(kit, 1)
    await later(kit, 1, BUSY_FOR)

    end = await kit.end_of(task.name)
    assert isinstance(end, TaskDeadLettered)
    assert "after 1 attempt:" in end.message


async def test_a_model_that_is_not_there_counts(kit: Kit) -> None:
    kit.answer = saying(lambda: ModelOverloaded("the connection was refused"))
    task = (await kit.tasks.accept(Command("agent", "a", message="x", retry=RetryPolicy(2)))).task

    await later(kit, 3)

    end = await kit.end_of(task.name)
    assert isinstance(end, TaskDeadLettered)
    assert "after 2 attempts:" in end.message


class Hurried(Definitions):
    async def agent(self, namespace: str, name: str, *, user: str = "") -> tuple[RunSpec, str]:
        limits = Limits(max_seconds=60.0)
        return RunSpec(name, "m", namespace=namespace, limits=limits, repairs=Repairs(model=0)), f"sha256:{name}"


async def test_an_agent_whose_time_is_over_is_tried_again_with_the_whole_time(kit: Kit) -> None:
    kit.definitions = Hurried({})
    kit.tasks._pinner._definitions = kit.definitions  # pyright: ignore[reportPrivateUsage]
    slow = iter((True, False))

    async def answer() -> str:
        if next(slow):
            kit.now += 61.0
            raise ModelTimeout("cut off at the deadline")
        await asyncio.sleep(0)
        return "done"

    kit.answer = saying(answer)
    task = (await kit.tasks.accept(Command("agent", "a", message="x", retry=RetryPolicy(2)))).task

    await later(kit, 2)

    assert isinstance(await kit.end_of(task.name), TaskSucceeded)
    assert [(each.attempt, each.reason) for each in await attempts_of(kit, task.name)] == [(1, "seconds")]
