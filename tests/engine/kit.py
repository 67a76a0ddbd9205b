"""An engine in a test's hands: real runs on a journal in memory, a model that is a function, a clock that stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from foliot.engine.definition.freeze import tool_rule
from foliot.engine.driver.runs import Runs, user_message
from foliot.kernel.messages import Message, ModelRequest, ModelResponse, Part, Text, ToolCall
from foliot.kernel.run.codec import type_of
from foliot.kernel.run.events import Event
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.models.base import OnDelta
from foliot.store.journal.memory import MemoryJournal
from foliot.tools.base import Tool
from foliot.tools.function import tool
from foliot.tools.pipeline.pipeline import Pipeline

Answer = Callable[[ModelRequest], Any]


def says(text: str) -> ModelResponse:
    return ModelResponse(Message("assistant", (Text(text),)))


def calls(*names: str, arguments: str = "{}") -> ModelResponse:
    parts: tuple[Part, ...] = tuple(ToolCall(f"c{n}", name, arguments) for n, name in enumerate(names, 1))
    return ModelResponse(Message("assistant", parts), stop="tool_calls")


def in_turn(*answers: Any) -> Answer:
    """Plays the next answer at each question; an exception is raised."""
    left = list(answers)

    def answer(request: ModelRequest) -> Any:
        given = left.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    return answer


class FunctionModels:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[ModelRequest] = []

    async def ask(self, spec: RunSpec, request: ModelRequest, *, on_delta: OnDelta | None = None) -> ModelResponse:
        self.requests.append(request)
        given = self.answer(request)
        return await given if isinstance(given, Awaitable) else given


class Engine:
    """`runs` is the real thing; `now` can be set."""

    def __init__(
        self,
        answer: Answer,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        journal: Any = None,
        toolbox: Any = None,
        watcher: Any = None,
        lease_seconds: float = 30.0,
        **spec: Any,
    ) -> None:
        self.now = 1000.0
        made: list[Any] = [item if hasattr(item, "definition") else tool(item) for item in tools]
        self.models = FunctionModels(answer)
        self.journal = journal if journal is not None else MemoryJournal()
        rules = tuple(tool_rule(item.definition) for item in made)
        self.spec = RunSpec("clerk", "m", **{"tools": rules, **spec})
        self.toolbox = toolbox or Pipeline(made)
        self.watcher = watcher
        self.lease_seconds = lease_seconds
        self.runs = self.process("w1")

    def process(self, worker: str) -> Runs:
        """Another process on the same journal."""
        return Runs(
            journal=self.journal,
            models=self.models,
            tools=self.toolbox,
            watcher=self.watcher,
            clock=lambda: self.now,
            worker=worker,
            lease_seconds=self.lease_seconds,
            is_gone=lambda worker: False,
        )

    async def run(self, run_id: str = "r1") -> State:
        driver = await self.runs.start(self.spec, (user_message("go"),), run_id=run_id)
        return await asyncio.wait_for(self.runs.drive(driver), 60)

    async def take(self, run_id: str = "r1") -> State:
        driver = await self.runs.take(run_id)
        return await asyncio.wait_for(self.runs.drive(driver), 60)

    async def events(self, run_id: str = "r1") -> list[Event]:
        return [event for _, event in await self.runs.facts(run_id)]

    async def types(self, run_id: str = "r1") -> list[str]:
        return [type_of(event) for event in await self.events(run_id)]

    async def close(self) -> None:
        await self.runs.close()
