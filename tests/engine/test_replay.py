"""Replay and fork: the same journal decides the same; another one can start from its middle."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from foliot.engine.driver.journal import signal
from foliot.engine.driver.runs import user_message
from foliot.engine.explain.replay import branch, replay
from foliot.errors import Conflict, NotFound
from foliot.kernel.messages import ModelRequest, ModelResponse
from foliot.kernel.run.budget import Limits
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import Fork, InputReceived, ModelFailed, StepStarted
from foliot.kernel.run.feedback import EMPTY, LAST_ANSWER
from foliot.kernel.run.spec import Repairs
from foliot.models.base import ModelOverloaded
from foliot.store.journal.base import TASK_LABEL, USER_LABEL, Entry
from foliot.tools.function import tool
from tests.engine.kit import Engine, calls, in_turn, says


@tool(effect="read")
async def look() -> str:
    return "seen"


@pytest.fixture
async def engine():
    engine = Engine(in_turn(calls("look"), says("first"), says("second")), [look])
    await engine.run()
    yield engine
    await engine.close()


def entry(seq: int, event) -> Entry:
    return Entry(seq, 1000.0, type_of(event), encode(event))


async def test_a_step_that_was_not_decided_is_a_difference(engine: Engine) -> None:
    entries = await engine.journal.read("r1")
    forged = [*entries[:2], entry(3, StepStarted(1, attempt=7)), *entries[3:]]

    found = replay(engine.spec, "r1", forged)

    assert found.difference is not None
    assert found.difference.seq == 3
    assert '"attempt":7' in found.difference.recorded


async def test_a_fact_that_cannot_follow_is_a_difference(engine: Engine) -> None:
    entries = await engine.journal.read("r1")
    forged = [*entries[:2], entry(3, ModelFailed(1, "garbage", "too early")), *entries[3:]]
    found = replay(engine.spec, "r1", forged)
    assert found.difference is not None
    assert "cannot follow" in found.difference.replayed


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (calls("look", arguments="{"), b"not a JSON object"),
        (calls("unheard_of"), b"there is no tool named"),
        (says(""), b"Your answer was empty"),
    ],
)
async def test_what_the_kernel_told_the_model_is_decided_again_word_for_word(
    answer: ModelResponse, told: bytes
) -> None:
    engine = Engine(in_turn(answer, says("done")), [look])
    await engine.run()
    entries = await engine.journal.read("r1")
    assert replay(engine.spec, "r1", entries).difference is None
    forged = [replace(each, data=each.data.replace(told, b"never mind")) for each in entries]

    found = replay(engine.spec, "r1", forged)

    assert found.difference is not None
    assert "never mind" in found.difference.recorded
    assert told.decode() in found.difference.replayed
    await engine.close()


async def test_under_another_spec_the_journal_replays_differently(engine: Engine) -> None:
    found = replay(replace(engine.spec, limits=Limits(max_steps=1)), "r1", await engine.journal.read("r1"))
    assert found.difference is not None


async def test_a_run_with_retries_and_waits_replays_the_same() -> None:
    engine = Engine(in_turn(ModelOverloaded("busy", retry_after=5.0), calls("look"), says("done")), [look])
    await engine.run()
    engine.now += 5.0
    await engine.take()

    found = replay(engine.spec, "r1", await engine.journal.read("r1"))

    assert found.difference is None
    assert found.events == found.state.seq
    await engine.close()


async def test_a_branch_has_the_settled_past_and_what_is_changed(engine: Engine) -> None:
    found = await branch(engine.runs, "r1", at=2, prompt="Be brief.", input=(user_message("and now?"),))

    assert found.spec.system == "Be brief."
    assert [message.role for message in found.history] == ["user", "assistant", "tool"]
    assert found.input == (user_message("and now?"),)
    assert found.fork == Fork("r1", 6, step=2)


async def test_a_branch_has_what_the_model_was_told_before_the_step() -> None:
    def answer(request: ModelRequest) -> ModelResponse:
        if len(engine.models.requests) == 1:
            said = InputReceived("i1", user_message("in French"), "steer", "ann")
            later = InputReceived("i2", user_message("and then Rome"), "queue", "ann")
            for number, fact in enumerate((said, later)):
                engine.runs.local("r1").deliver(signal("r1", fact, engine.now, signal_id=f"s{number}"))
            return calls("look")
        return says("")

    engine = Engine(answer, [look], repairs=Repairs(outputs=1))
    await engine.run()
    asked = [request.messages for request in engine.models.requests]
    assert [messages[-1].text for messages in asked[1:]] == ["in French", "and then Rome", EMPTY]

    assert [(await branch(engine.runs, "r1", at=step)).history for step in (2, 3, 4)] == asked[1:]
    await engine.close()


async def test_a_branch_at_the_first_step_has_what_was_said_before_it() -> None:
    engine = Engine(in_turn(says("done")))
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1")
    driver.deliver(signal("r1", InputReceived("i1", user_message("quickly"), "steer"), engine.now))
    await engine.runs.drive(driver)

    assert (await branch(engine.runs, "r1", at=1)).input == engine.models.requests[0].messages
    other = await branch(engine.runs, "r1", at=1, input=(user_message("otherwise"),))
    assert other.input == (user_message("otherwise"),)
    await engine.close()


async def test_a_branch_belongs_to_whom_the_original_belonged_and_not_to_its_task() -> None:
    engine = Engine(in_turn(says("done")))
    labels = {"team": "support", USER_LABEL: "ann", TASK_LABEL: "report", "openai.com/model": "clerk"}
    driver = await engine.runs.start(engine.spec, (user_message("go"),), run_id="r1", labels=labels)
    await engine.runs.drive(driver)

    assert (await branch(engine.runs, "r1", at=1)).labels == {"team": "support"}
    await engine.close()


async def test_a_branch_is_not_told_of_a_limit_that_it_has_not_reached() -> None:
    engine = Engine(in_turn(calls("look"), says("done")), [look], limits=Limits(max_steps=2), on_limit="finish")
    await engine.run()
    assert engine.models.requests[1].messages[-1].text == LAST_ANSWER

    assert (await branch(engine.runs, "r1", at=2)).history == engine.models.requests[1].messages[:-1]
    await engine.close()


async def test_a_fork_of_a_fork_keeps_the_whole_past(engine: Engine) -> None:
    first = await branch(engine.runs, "r1", at=2)
    driver = await engine.runs.start(first.spec, first.input, run_id="r2", history=first.history, fork=first.fork)
    await engine.runs.drive(driver)

    second = await branch(engine.runs, "r2", at=1, input=(user_message("otherwise?"),))

    assert second.history == first.history
    _, state = await engine.runs.load("r2")
    assert state.transcript[: len(first.history)] == list(first.history)
    entries = await engine.journal.read("r2")
    assert replay(first.spec, "r2", entries, first.history).difference is None


async def test_a_step_that_never_was_cannot_be_forked(engine: Engine) -> None:
    with pytest.raises(NotFound, match="no step 3") as caught:
        await branch(engine.runs, "r1", at=3)
    assert caught.value.hint == "it has steps 1 to 2"
    with pytest.raises(NotFound):
        await branch(engine.runs, "nobody", at=1)


async def test_a_journal_without_its_beginning_is_not_loaded(engine: Engine) -> None:
    del engine.journal._runs["r1"].entries[0]
    with pytest.raises(Conflict, match="event 1 is not what was recorded"):
        await engine.runs.load("r1")
