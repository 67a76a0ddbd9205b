"""The words of a turn: those that were said in it, whatever of the conversation is a summary by then."""

from __future__ import annotations

import pytest

from foliot.kernel.messages import Message, Text
from foliot.kernel.run.events import RunClaimed, RunCreated, SessionCompacted
from foliot.kernel.run.loop import apply, fold
from foliot.kernel.run.spec import RunSpec
from foliot.sessions.history import texts_of

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
