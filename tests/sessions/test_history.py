"""The words of a turn: those that were said in it, whatever of the conversation is a summary by then."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from foliot.engine.driver.journal import Specs
from foliot.kernel.messages import Message, Text
from foliot.kernel.run.codec import encode, type_of
from foliot.kernel.run.events import RunClaimed, RunCreated, SessionCompacted
from foliot.kernel.run.loop import apply, fold
from foliot.kernel.run.past import Past
from foliot.kernel.run.spec import RunSpec, encode_spec
from foliot.sessions.history import messages_of_turn, texts_of
from foliot.store.journal.base import Entry, NewRun
from foliot.store.journal.chain import first_link, link_of
from foliot.store.journal.memory import MemoryJournal

SPEC = RunSpec(agent="helper", model="none")
SUMMARY = Message("user", (Text("a summary"),))
EARLIER = tuple(Message(role, (Text(f"earlier {role}"),)) for role in ("user", "assistant") * 3)
ASKED = tuple(Message("user", (Text(text),)) for text in ("question", "more of it"))


@pytest.mark.parametrize("summarised", [0, 10])
@pytest.mark.parametrize("replaced", range(1, 8))
@pytest.mark.parametrize("changed", [False, True])
def test_a_turn_is_found_by_its_own_words_only(summarised: int, replaced: int, changed: bool) -> None:
    history = (SUMMARY, *EARLIER) if summarised else EARLIER
    created = RunCreated("helper", "", ASKED, after="before", before=len(history), session="s", summarised=summarised)
    facts = [created, RunClaimed(1, "w")]
    state = fold(SPEC, "now", [(1.0, fact) for fact in facts], history)
    if changed:  # a hook may put another text in its place
        state.transcript[-2] = Message("user", (Text("question"),))
    apply(state, SessionCompacted(replaced, SUMMARY), 2.0)
    assert texts_of(state)[:1] == ["question"]
    assert set(texts_of(state)) == {"question", "more of it"}


@pytest.mark.parametrize("before", [2, 1_000])
async def test_the_messages_of_a_turn_are_read_without_those_of_the_turns_before_it(before: int, monkeypatch) -> None:
    looked_at: list[int] = []
    tell = Past.__init__

    def noted(past: Past, messages: Iterable[Message] = ()) -> None:
        tell(past, messages)
        looked_at.append(len(past.messages))

    monkeypatch.setattr(Past, "__init__", noted)
    journal = MemoryJournal()
    spec = await journal.put_blob(encode_spec(SPEC))
    entries: list[Entry] = []
    link = first_link("now")
    for seq, fact in enumerate((RunCreated("helper", spec, ASKED, after="old", before=before), RunClaimed(1, "w")), 1):
        link = link_of(link, seq, 1.0, type_of(fact), encode(fact))
        entries.append(Entry(seq, 1.0, type_of(fact), encode(fact), link))
    await journal.create(NewRun("now", "default", "helper", spec, 1.0), entries)
    assert await messages_of_turn(journal, Specs(), "now") == ASKED
    assert sum(looked_at) == 0
