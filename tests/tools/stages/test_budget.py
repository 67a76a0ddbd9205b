"""Calls with a price: room is looked for, kept and paid from, as often as the tool may have acted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foliot.kernel.backoff import RetryPolicy
from foliot.tools.base import Invocation, Tool, ToolDefinition, ToolError, ToolRateLimited, ToolUnreachable
from foliot.tools.function import tool
from foliot.tools.pipeline.gates import NO_ROOM, ToolOverBudget
from foliot.tools.pipeline.parts import PipelineParts
from foliot.tools.pipeline.pipeline import Pipeline
from tests.tools.governed import call


class Book:
    """Budgets that write down what is asked of them."""

    def __init__(self, *, look: bool = True, reserve: bool = True) -> None:
        self._look, self._reserve = look, reserve
        self.said: list[str] = []

    async def look(self, call: Invocation, definition: ToolDefinition) -> None:
        self.said.append("look")
        if not self._look:
            raise ToolOverBudget("spent", layer="budget", budget="team")

    async def reserve(self, call: Invocation, definition: ToolDefinition) -> None:
        self.said.append("reserve")
        if not self._reserve:
            raise ToolOverBudget("spent", layer="budget", budget="team")

    def payment(self, call: Invocation) -> Book:
        return self

    async def settle(self, times: int) -> None:
        self.said.append(f"settle {times}")

    def settle_later(self, times: int) -> None:
        self.said.append(f"settle later {times}")


def priced(*failures: ToolError, attempts: int = 1, hangs: asyncio.Event | None = None) -> Tool:
    """A tool that fails so often before it succeeds."""
    left = list(failures)

    @tool(effect="idempotent")
    async def lookup() -> str:
        if hangs is not None:
            hangs.set()
            await asyncio.Event().wait()
        if left:
            raise left.pop(0)
        return "found"

    return lookup.with_definition(replace(lookup.definition, price=5, retry=RetryPolicy(attempts)))


async def said(book: Book, made: Tool) -> list[str]:
    await Pipeline([made], PipelineParts(budgets=book)).call(call("lookup"))
    return book.said


async def test_a_call_is_looked_at_reserved_for_and_paid() -> None:
    assert await said(Book(), priced()) == ["look", "reserve", "settle 1"]


async def test_every_attempt_that_may_have_acted_is_paid_for() -> None:
    failed = ToolUnreachable("gone")
    assert (await said(Book(), priced(failed, failed, attempts=3)))[-1] == "settle 3"
    assert (await said(Book(), priced(failed, failed, attempts=2)))[-1] == "settle 2"


async def test_an_attempt_that_certainly_did_not_act_is_free() -> None:
    assert (await said(Book(), priced(ToolRateLimited("later"))))[-1] == "settle 0"
    assert (await said(Book(), priced(ToolRateLimited("later"), attempts=2)))[-1] == "settle 1"


@pytest.mark.parametrize("book", [Book(look=False), Book(reserve=False)])
async def test_without_room_the_tool_is_not_called(book: Book) -> None:
    result = await Pipeline([priced()], PipelineParts(budgets=book)).call(call("lookup"))
    assert result.error is not None
    assert (result.error.code, result.error.kind) == ("permission_denied", NO_ROOM)
    assert result.error.details["budget"] == "team"
    assert not any(line.startswith("settle") for line in book.said)


async def test_a_call_that_is_stopped_is_paid_for() -> None:
    began = asyncio.Event()
    book = Book()
    task = asyncio.create_task(Pipeline([priced(hangs=began)], PipelineParts(budgets=book)).call(call("lookup")))
    await asyncio.wait_for(began.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert book.said[-1] == "settle later 1"


async def test_a_tool_without_a_price_costs_nothing_and_asks_nobody() -> None:
    @tool(effect="read")
    async def lookup() -> str:
        return "found"

    assert await said(Book(look=False), lookup) == []
