"""Runs that go on with the conversation of another: nothing is stored twice, and nothing is forgotten too early."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from foliot import Agent, Runtime, ScriptedModel
from foliot.engine.driver.journal import load_run, read_conversation
from foliot.errors import Conflict, InvalidInput, NotFound
from foliot.kernel.messages import Message
from foliot.kernel.run.events import RunCreated, SessionCompacted
from foliot.kernel.run.spec import decode_spec
from foliot.store.journal.base import Entry

ECHO = ScriptedModel({"otherwise": {"say": "I heard {input}"}})
CLERK = Agent("clerk", model=ECHO)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.services)])
async def rt(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    url = {"memory": "memory:", "sqlite": str(tmp_path / "foliot.db")}.get(request.param)
    url = url or request.getfixturevalue("postgres_url")
    async with Runtime(url) as made:
        yield made


def said(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


async def talk(rt: Runtime, *words: str, after: str = "", user: str = "") -> list[str]:
    """Have turns of one conversation; their runs."""
    runs: list[str] = []
    for word in words:
        done = await rt.inside.run(CLERK, word, after=runs[-1] if runs else after, user=user)
        runs.append(done.run_id)
    return runs


async def test_each_turn_sees_all_turns_before_and_stores_only_its_own(rt: Runtime) -> None:
    _, second, third = await talk(rt, "one", "two", "three")

    _, state = await load_run(rt.inside.runs.journal, third)
    entries = await rt.inside.runs.journal.read(third)

    assert said(state.transcript) == ["one", "I heard one", "two", "I heard two", "three", "I heard three"]
    assert state.created is not None
    assert (state.created.after, state.created.before, state.created.history) == (second, 4, None)
    assert not any(b"I heard one" in entry.data for entry in entries)


async def test_a_turn_may_go_on_with_any_earlier_one_and_both_branches_are_kept(rt: Runtime) -> None:
    first, second = await talk(rt, "one", "two")
    (other,) = await talk(rt, "instead", after=first)

    journal = rt.inside.runs.journal
    assert said(await read_conversation(journal, second))[2:] == ["two", "I heard two"]
    assert said(await read_conversation(journal, other))[2:] == ["instead", "I heard instead"]


async def test_replay_and_fork_of_a_turn_know_what_was_said_before(rt: Runtime) -> None:
    _, second = await talk(rt, "one", "two")

    assert (await rt.runs.replay(second)).difference is None
    fork = await rt.runs.fork(second, at=1, input="three")

    assert said(await read_conversation(rt.inside.runs.journal, fork.id))[:2] == ["one", "I heard one"]


async def test_a_summary_of_all_that_came_before_is_where_reading_begins(rt: Runtime) -> None:
    first, second = await talk(rt, "one", "two")
    runs = rt.inside.runs
    facts = await runs.facts(second)
    created = facts[0][1]
    assert isinstance(created, RunCreated)
    spec = decode_spec(await runs.journal.get_blob(created.spec))
    driver = await runs.start(spec, created.input, after=first)
    driver._record(SessionCompacted(2, Message("user", ()), kept_from=driver.state.run_id))  # pyright: ignore[reportPrivateUsage]
    await runs.drive(driver)
    (third,) = await talk(rt, "three", after=driver.state.run_id)
    reads: list[str] = []
    turns = runs.journal.turns

    async def noted(run_id: str, **more: str) -> dict[str, list[Entry]]:
        found = await turns(run_id, **more)
        reads.extend(found)
        return found

    runs.journal.turns = noted  # type: ignore[method-assign]
    conversation = await read_conversation(runs.journal, third)

    assert said(conversation) == ["", "two", "I heard two", "three", "I heard three"]
    assert reads == [driver.state.run_id], "what was summarised is not read"


async def test_no_turn_is_forgotten_while_a_later_one_is_kept(rt: Runtime) -> None:
    journal = rt.inside.runs.journal
    first, second = await talk(rt, "one", "two")
    (alone,) = await talk(rt, "alone")
    old = (await journal.get(second)).updated_at

    await journal.purge(ended_before=old)  # the first is old enough, the second is not
    assert {first, second} <= {info.id for info in await journal.list()}
    with pytest.raises(Conflict, match=second):
        await journal.forget(first)

    await journal.purge(ended_before=old + 3600)
    assert {first, second, alone} & {info.id for info in await journal.list()} == set()


async def test_nobody_goes_on_with_what_is_not_theirs_or_not_over(rt: Runtime) -> None:
    (hers,) = await talk(rt, "a secret", user="ann")

    for user, after in (("bob", hers), ("", hers), ("ann", "run-that-is-not-there")):
        with pytest.raises(NotFound, match="to continue"):
            await talk(rt, "and then?", after=after, user=user)
    with pytest.raises(InvalidInput, match="after"):
        await rt.inside.run(CLERK, "x", after=hers, user="ann", history=[Message("user", ())])


async def test_the_same_id_with_another_past_is_other_work(rt: Runtime) -> None:
    first, second = await talk(rt, "one", "two")
    done = await rt.inside.run(CLERK, "three", run_id="mine", after=second)

    again = await rt.inside.run(CLERK, "three", run_id="mine", after=second)
    assert again.output == done.output
    with pytest.raises(Conflict, match="another input"):
        await rt.inside.run(CLERK, "three", run_id="mine", after=first)
