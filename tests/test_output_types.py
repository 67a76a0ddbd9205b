"""Answers that a Python type looks at: what its validators refuse goes back to the model, and is never accepted."""

from __future__ import annotations

import asyncio
import threading
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from foliot import Agent, RunFailedError, Runtime, ScriptedModel, tool
from foliot.errors import InvalidInput, NotFound, UsageError
from foliot.kernel.messages import ModelRequest
from foliot.kernel.run.events import OutputAccepted, OutputRejected, RunFailed
from foliot.runtime.output_types import OutputType
from foliot.settings.settings import load_settings
from foliot.work.tasks.base import Command
from tests.work.test_lacking import declare, until, why, working

ROME, OSLO = '{"name": "Rome"}', '{"name": "Oslo"}'


class Picky(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _knows(cls, value: str) -> str:
        if value != "Oslo":
            raise ValueError("only Oslo is known")
        return value


class Span(BaseModel):
    first: int
    last: int

    @model_validator(mode="after")
    def _ordered(self) -> Span:
        assert self.first <= self.last, "first is after last"
        return self


class Remembering(ScriptedModel):
    def __init__(self, *said: str) -> None:
        super().__init__([{"say": each} for each in said])
        self.asked: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, **more: Any) -> Any:
        self.asked.append(request)
        return await super().respond(request, **more)


def clerk(output: Any, *said: str, **spec: Any) -> Agent[Any]:
    return Agent("clerk", model=Remembering(*said), output=output, **spec)


async def rejections(rt: Runtime, run_id: str) -> list[OutputRejected]:
    return [event for _, event in await rt.runs.events(run_id) if isinstance(event, OutputRejected)]


@pytest.mark.parametrize(
    ("output", "first", "then", "problem"),
    [
        (Picky, ROME, OSLO, "name: Value error, only Oslo is known"),
        (list[Picky], f"[{OSLO}, {ROME}]", f"[{OSLO}]", "1/name: Value error, only Oslo is known"),
        (
            Span,
            '{"first": 2, "last": 1}',
            '{"first": 1, "last": 2}',
            "the value: Assertion failed, first is after last",
        ),
        (Annotated[str, Field(pattern="^[a-c]+$")], '"abd"', '"abc"', "does not match"),
        # A schema names a format, and nobody is held to it.
        (dict[str, date], '{"a": "soon"}', '{"a": "2026-11-18"}', "a: Input should be a valid"),
    ],
)
async def test_what_a_validator_refuses_goes_back_to_the_model(
    output: Any, first: str, then: str, problem: str
) -> None:
    async with Runtime("memory:") as rt:
        agent = clerk(output, first, then)
        result = await rt.run(agent, "Which?")
        refused = await rejections(rt, result.run_id)

    assert (result.phase, result.steps, len(refused)) == ("succeeded", 2, 1)
    assert problem in refused[0].problems[0]
    assert problem in agent.gateway.asked[1].messages[-1].text  # type: ignore[union-attr]


async def test_a_run_that_never_satisfies_its_validators_is_failed_and_says_why(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "foliot.db") as rt:
        with pytest.raises(RunFailedError, match="only Oslo is known") as failed:
            await rt.run(clerk(Picky, *[ROME] * 9), "Which?")
        run_id = failed.value.result.run_id
        info = (await rt.runs.get(run_id)).info
        ended = (await rt.runs.events(run_id))[-1][1]
        causes = (await rt.runs.why(run_id)).chain

        assert isinstance(ended, RunFailed)
        assert (info.phase, ended.code, ended.reason) == ("failed", "schema_mismatch", "repairs_exhausted")
        assert len(await rejections(rt, run_id)) == 3, "the answer and as many repairs as for the schema"
        assert "only Oslo is known" in causes[0]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Halt(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("population"), StopIteration("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Halt("x")),
        *(Unspeakable(), RecursionError("deep"), asyncio.CancelledError()),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_whatever_a_validator_raises_refuses_the_answer_and_nothing_else(error: BaseException) -> None:
    def check(value: str) -> str:
        if value == "Rome":
            raise error
        return value

    async with Runtime("memory:") as rt:
        agent = clerk(Annotated[str, AfterValidator(check)], '"Rome"', '"Oslo"')
        result = await rt.run(agent, "Which?")
        (refused,) = await rejections(rt, result.run_id)

    assert result.value == "Oslo"
    assert type(error).__name__ in refused.problems[0]


def test_an_async_validator_is_refused_when_it_is_declared() -> None:
    async def check(value: str) -> str:
        return value

    class Later(BaseModel):
        async def model_post_init(self, context: Any, /) -> None:  # type: ignore[override]
            raise ValueError("never heard")

    for output in (Annotated[str, AfterValidator(check)], list[Later]):
        with pytest.raises(UsageError, match="async validator"):
            clerk(output, "x")


async def test_a_validator_that_does_not_end_refuses_the_answer_in_its_time() -> None:
    release = threading.Event()

    def wait(value: str) -> str:
        release.wait(60)
        return value

    try:
        slow = OutputType("clerk", Annotated[str, AfterValidator(wait)], seconds=0.01)
        checked = await slow.check("r1", '"a"', None)
        with pytest.raises(InvalidInput, match="did not end within"):
            await slow.value_of("r1", '"a"')  # also where an answer is read that another process accepted
    finally:
        release.set()

    assert "its validators did not end within 0.01 seconds" in checked.problems[0]


async def test_an_answer_is_read_later_beside_the_event_loop() -> None:
    threads: list[int] = []

    def note(value: str) -> str:
        threads.append(threading.get_ident())
        return value

    output = OutputType("clerk", Annotated[str, AfterValidator(note)])
    assert await output.value_of("r1", '"a"') == "a"
    assert threads != [threading.get_ident()]


async def test_a_run_is_cancelled_while_a_validator_works() -> None:
    began, release = threading.Event(), threading.Event()

    def wait(value: str) -> str:
        began.set()
        release.wait(60)
        return value

    async with Runtime("memory:") as rt:
        run = asyncio.create_task(rt.run(clerk(Annotated[str, AfterValidator(wait)], '"a"'), "Go", check=False))
        assert await asyncio.to_thread(began.wait, 60)
        (info,) = await rt.runs.list()
        await rt.runs.cancel(info.id)
        try:
            async with asyncio.timeout(60):
                result = await run
        finally:
            release.set()

    assert result.phase == "cancelled"


async def test_what_validators_make_of_an_answer_is_its_value_everywhere(tmp_path: Path) -> None:
    """They are asked once: one that counts, or that is no fixed point, must not see its own value."""
    seen: list[str] = []

    def tidied(value: str) -> str:
        seen.append(value)
        return value.strip().lower() + "!"

    class Ticket(BaseModel):
        category: Annotated[str, AfterValidator(tidied)]

    async with Runtime(tmp_path / "foliot.db") as rt:
        agent = clerk(Ticket, '{"category": " Billing "}')
        result = await rt.run(agent, "Sort this")
        assert (result.value.category, seen) == ("billing!", [" Billing "])

        accepted = [e for _, e in await rt.runs.events(result.run_id) if isinstance(e, OutputAccepted)]
        assert [each.value for each in accepted] == [{"category": "billing!"}]
        assert (await rt.runs.wait(result.run_id)).value == {"category": "billing!"}
        assert (await rt.resume(result.run_id)).value.category == "billing!"


async def test_a_value_that_no_longer_fits_its_schema_is_stored_as_the_model_said_it() -> None:
    class Report(BaseModel):
        day: Annotated[str, AfterValidator(len)]

    async with Runtime("memory:") as rt:
        result = await rt.run(clerk(Report, '{"day": "Monday"}'), "Which?")
        accepted = [e for _, e in await rt.runs.events(result.run_id) if isinstance(e, OutputAccepted)]

    assert (result.value.day, accepted[0].value) == (6, {"day": "Monday"})


async def test_another_schema_for_one_run_takes_the_place_of_the_type() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    async with Runtime("memory:") as rt:
        result = await rt.runs.object("Which?", agent=clerk(Picky, ROME), schema=schema)

    assert (result.phase, result.value) == ("succeeded", {"name": "Rome"})


async def test_a_helper_is_held_to_its_own_type() -> None:
    helper = Agent("helper", model=Remembering(ROME, OSLO), output=Picky)
    asking = [{"call": {"agent:helper": {"input": "Which?"}}}, {"say": "{last_result}"}]
    async with Runtime("memory:") as rt:
        result = await rt.run(Agent("boss", model=ScriptedModel(asking), tools=[helper]), "Ask it")

    assert result.output.replace(" ", "") == OSLO.replace(" ", "")


async def test_a_process_without_the_type_does_not_accept_an_answer_for_it(tmp_path: Path) -> None:
    @tool(effect="read")
    async def stop() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    begun = asyncio.Event()
    calling = [{"call": {"stop": {}}}, {"say": OSLO}]
    async with Runtime(tmp_path / "foliot.db") as rt:
        agent = Agent("clerk", model=ScriptedModel(calling), tools=[stop], output=Picky)
        run = asyncio.create_task(rt.run(agent, "Which?", run_id="r1"))
        await begun.wait()
        run.cancel()  # the process is told to end: the run is given back
        await asyncio.wait([run])

    @tool(name="stop", effect="read")
    async def go() -> str:
        """Wait."""
        return "went"

    async with Runtime(tmp_path / "foliot.db", tools=[go]) as other:
        with pytest.raises(NotFound, match="held against the Python type Picky, which this process has not"):
            await other.resume("r1")
        assert (await other.runs.get("r1")).info.phase == "pending"
        there = Agent("clerk", model=ScriptedModel(calling), tools=[go], output=Picky)
        assert (await other.resume("r1", agent=there)).value == Picky(name="Oslo")


async def test_a_worker_without_the_type_leaves_the_run_to_one_that_has_it(tmp_path: Path) -> None:
    settings = load_settings({"store": str(tmp_path / "foliot.db")})
    agent = Agent("clerk", model="script", output=Picky)
    async with Runtime(settings=settings) as able, Runtime(settings=settings) as unable:
        await declare(able)
        able.inside.know(agent)
        await able.inside.tasking.tasks.accept(Command("agent", "clerk", name="t1", message="go"))
        async with working(unable, "bare"):

            async def told() -> bool:
                return "type Picky of agent default/clerk is missing on worker bare" in await why(able)

            await until(told)


async def test_a_program_without_the_type_is_offered_no_fork_that_cannot_work(tmp_path: Path) -> None:
    """`why` in another process: what it offers is tried, as people do."""
    store = tmp_path / "store.db"
    agent = Agent("clerk", model=ScriptedModel([{"say": "no amount", "repeat": 9}]), output=Span)
    async with Runtime(store) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(agent, "go", run_id="r1")
        assert [hint.command for hint in (await rt.runs.why("r1")).next] == ["foliot trace r1", "foliot fork r1 --at 3"]
    async with Runtime(store) as rt:
        assert [hint.command for hint in (await rt.runs.why("r1")).next] == ["foliot trace r1"]
        with pytest.raises(NotFound):
            await rt.runs.fork("r1", at=3)
