"""What a person says while the agent asks something is the answer: whatever the mode, once, and by whoever is first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foliot import Agent, Runtime, ScriptedModel
from foliot.errors import Conflict, FoliotError, InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import MODES
from foliot.kernel.messages import Media, Message, Text, ToolResult
from foliot.kernel.run.feedback import user_message
from foliot.store.sessions.base import InputAnswer, NewInput, QuestionClosed, Session
from tests.channels.kit import opened
from tests.sessions.kit import place, quiet

ANN = Identity("ann")


def asking(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"call": [{"ask_user": each} for each in asked]}


CITY = {"question": "Which city?"}
DAY = {"question": "Which day?"}
SIZE = {"question": "Which size?", "choices": ["small", "large"]}


def results(messages: Sequence[Message]) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, ToolResult)]


class Talk:
    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.runtime = runtime
        self.id = session.id

    async def say(self, text: str | Message, **more: Any) -> Any:
        return await self.runtime.inside.sessions.say(self.id, text, identity=more.pop("identity", ANN), **more)

    async def asks(self, count: int = 1) -> str:
        """Waits until the turn at work, or a run below it, asks so many things; the run of the turn."""
        async with asyncio.timeout(60):
            while True:
                session = await self.runtime.inside.sessions.store.get(self.id)
                asked = await self.runtime.inside.questions.open("default")
                if session.turn and len(asked) >= count:
                    return session.turn
                await asyncio.wait({asyncio.ensure_future(self.runtime.inside.next_change()())}, timeout=0.1)

    async def told(self) -> list[str]:
        """The results of the calls of the last turn, once all is quiet."""
        session = await quiet(self.runtime, self.id)
        _, state = await self.runtime.inside.runs.load(session.head)
        return results(state.transcript)


@asynccontextmanager
async def talk(store_url: str, home: Path, *steps: Any, agents: Sequence[Agent] = ()) -> AsyncIterator[Talk]:
    model = ScriptedModel([*steps, *[{"say": "Done."}] * 9])
    async with opened(store_url, home, {}) as runtime:
        for each in agents:
            runtime.inside.know(each)
        names = [f"agent:{each.name}" for each in agents]
        runtime.inside.know(Agent("helper", model=model, tools=["ask_user", *names]))
        session = await runtime.inside.sessions.resolve(place(), identity=ANN)
        yield Talk(runtime, session)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "interrupt"])
async def test_the_next_message_is_the_answer(tmp_path: Path, mode: str) -> None:
    async with talk(f"sqlite:///{tmp_path}/foliot.db", tmp_path, asking(CITY)) as it:
        await it.say("Book a flight")
        run = await it.asks()
        said = await it.say("Turin", mode=mode)
        assert (said.outcome, said.run_id, bool(said.answered)) == ("direct", run, True)
        assert await it.told() == ["Turin"]
        (session,) = (await it.runtime.inside.sessions.list("default", identity=None)).items
        assert session.turns == 1, "the answer begins no turn"
        heard = await it.runtime.inside.sessions.inputs(it.id, identity=ANN)
        assert [(each.status, each.message.text if each.message else "") for each in heard][-1] == ("consumed", "Turin")
        outcomes = [each.body["outcome"] for each in await it.runtime.audit.list(limit=20)]
        assert outcomes.count("answered") == 1


async def test_an_interrupt_is_no_answer(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(CITY)) as it:
        await it.say("Book a flight")
        await it.asks()
        said = await it.say("Forget it", mode="interrupt")
        assert (said.outcome, said.answered) == ("interrupted", "")
        assert (await quiet(it.runtime, it.id)).turns == 2


async def test_of_several_questions_the_message_says_which(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(CITY, DAY)) as it:
        await it.say("Book a flight")
        await it.asks()
        with pytest.raises(Conflict, match=r"1: Which city\?\n2: Which day\?"):
            await it.say("Turin")
        for part_of_an_answer in ("2 persons, Turin", "2:30", "2.5 days"):
            with pytest.raises(Conflict, match="nothing was answered"):
                await it.say(part_of_an_answer)
        assert (await it.say("2: on Friday")).answered
        assert (await it.say("2 persons, Turin")).answered  # one is left
        assert await it.told() == ["2 persons, Turin", "on Friday"]


def helped(*runs: Sequence[dict[str, Any]]) -> tuple[list[Agent], dict[str, Any]]:
    """Agents that ask, one for each run, and the step that calls all of them."""
    agents = [
        Agent(f"inner{n}", model=ScriptedModel([asking(*asks), {"say": "{last_result}"}]), tools=["ask_user"])
        for n, asks in enumerate(runs)
    ]
    return agents, {"call": [{f"agent:{each.name}": {"input": "go"}} for each in agents]}


async def test_the_next_message_answers_what_a_run_below_the_turn_asks(store_url: str, tmp_path: Path) -> None:
    agents, step = helped([CITY])
    async with talk(store_url, tmp_path, step, agents=agents) as it:
        await it.say("Book a flight")
        run = await it.asks()
        said = await it.say("Turin")
        assert (said.outcome, said.run_id, bool(said.answered)) == ("direct", run, True)
        assert await it.told() == ["Turin"]


async def test_questions_of_several_runs_have_codes_that_stay(store_url: str, tmp_path: Path) -> None:
    # A number would mean another question as soon as one of the runs has its answer.
    agents, step = helped([CITY], [DAY], [{"question": "How many?"}])
    async with talk(store_url, tmp_path, step, agents=agents) as it:
        await it.say("Book a flight")
        await it.asks(3)
        with pytest.raises(Conflict) as refused:
            await it.say("1: Turin")
        codes = {line.partition(": ")[2]: line[:4] for line in refused.value.message.splitlines()[1:]}
        assert {*codes} == {
            "Which city?",
            "Which day?",
            "How many?",
        }  # PostgreSQL stores runs that begin at once in any order
        assert (await it.say(f"{codes['Which city?']}: Turin")).answered
        assert (await it.say(f"{codes['How many?'].lower()}: 2 persons")).answered
        assert (await it.say("on Friday")).answered  # one is left
        assert await it.told() == ["Turin", "on Friday", "2 persons"]


async def test_an_answer_that_is_no_choice_and_a_file_are_refused_in_words(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(SIZE)) as it:
        await it.say("Buy a shirt")
        await it.asks()
        with pytest.raises(InvalidInput, match="not one of the choices"):
            await it.say("huge")
        with pytest.raises(FoliotError, match=r"no file was taken|the model"):
            await it.say(Message("user", (Text("large"), Media("image/png", data="iVBORw0KGgo="))))
        assert (await it.say("2", key="k")).answered
        assert await it.told() == ["large"]
        assert (await it.say("2", key="k")).again


async def test_the_answer_is_taken_once_whoever_says_it_again(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(CITY)) as it:
        await it.say("Book a flight", key="first")
        await it.asks()
        told = await asyncio.gather(
            *(it.say("Turin", key="k") for _ in range(3)), *(it.say(f"City {n}", key=f"k{n}") for n in range(3))
        )
        assert sum(1 for each in told if each.answered) == 1
        session = await quiet(it.runtime, it.id)
        heard = await it.runtime.inside.sessions.inputs(it.id, identity=ANN)
        assert len(heard) == 5, "each key is one input"
        assert session.turns == 4, "what was no answer is answered afterwards"


async def test_after_an_answer_from_elsewhere_what_is_said_is_no_answer(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(CITY)) as it:
        await it.say("Book a flight")
        run = await it.asks()
        await it.runtime.questions.answer(run, "Rome", by="ann")
        said = await it.say("Turin")
        assert said.answered == ""
        session = await quiet(it.runtime, it.id)
        first = await it.runtime.inside.sessions.history(it.id, identity=ANN)
        assert session.turns == 2
        assert results(first[0].messages) == ["Rome"]


async def test_another_user_answers_nothing(store_url: str, tmp_path: Path) -> None:
    async with talk(store_url, tmp_path, asking(CITY)) as it:
        await it.say("Book a flight")
        await it.asks()
        with pytest.raises(FoliotError, match="no session"):
            await it.say("Turin", identity=Identity("bob"))
        assert (await it.say("Rome", identity=Identity("ann", by="ima"))).answered
        assert await it.told() == ["Rome"]


async def test_a_question_outlives_the_process_that_asked_it(store_url: str, tmp_path: Path) -> None:
    steps = [asking(CITY), {"say": "Done."}]
    async with talk(store_url, tmp_path, *steps) as it:
        await it.say("Book a flight")
        await it.asks()
    async with talk(store_url, tmp_path, *steps) as it:
        said = await it.say("Turin", key="k")
        assert said.answered
        assert await it.told() == ["Turin"]
        assert (await it.say("Turin", key="k")).again


async def test_after_a_restart_an_answer_below_has_the_turn_go_on(store_url: str, tmp_path: Path) -> None:
    for attempt in ("before", "after"):
        agents, step = helped([CITY])
        async with talk(store_url, tmp_path, step, {"say": "Done."}, agents=agents) as it:
            if attempt == "before":
                await it.say("Book a flight")
                await it.asks()
                continue
            assert (await it.say("Turin")).answered
            async with asyncio.timeout(60):
                assert await it.told() == ["Turin"]


async def test_an_answer_is_heard_when_its_process_dies_before_it_wakes_the_turn(
    store_url: str, tmp_path: Path
) -> None:
    async with talk(store_url, tmp_path, asking(CITY)) as it:
        await it.say("Book a flight")
        run = await it.asks()
        inside = it.runtime.inside
        found = await inside.questions.prepare(run, "default", "Turin", by="ann")
        assert found is not None
        answer = InputAnswer(run, found.signal, found.seq, found.body)
        new = NewInput("k", "followup", user_message("Turin"), "d", answer=answer)
        await inside.sessions.store.say(it.id, new, now=inside.clock())  # and nobody is woken
        with pytest.raises(QuestionClosed):
            await inside.sessions.store.say(it.id, replace(new, id="other"), now=inside.clock())
    async with talk(store_url, tmp_path, asking(CITY), {"say": "Done."}) as it:
        await it.runtime.inside.background.wake(run)
        assert await it.told() == ["Turin"]
