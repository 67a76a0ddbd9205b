"""The messages of turns, read from the journals of their runs: every one once, whatever was summarised since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from foliot.common.threads import unhurried
from foliot.engine.driver.journal import FACT, Specs, read_facts
from foliot.errors import Conflict
from foliot.kernel.identity import Identity
from foliot.kernel.messages import Message
from foliot.kernel.run.events import InputReceived, RunCreated, SessionCompacted, StepStarted
from foliot.kernel.run.loop import fold
from foliot.kernel.run.past import Past
from foliot.kernel.run.state import State
from foliot.store.journal.base import Journal
from foliot.store.sessions.words import plain, words_in

AROUND: Final = 80
LONGEST_EXCERPT: Final = 240


async def messages_of_turn(journal: Journal, specs: Specs, run_id: str) -> tuple[Message, ...]:
    """Reads the messages of one turn, in the order in which they were said. Raises `JournalChanged`."""
    facts = await read_facts(journal, run_id)
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        raise Conflict(f"the journal of run {run_id} does not begin with its creation")
    if created.compacts:
        return ()  # nothing is said in it
    # A summary replaces messages for the model; whoever reads what was said reads them all.
    said = [fact for fact in facts if not isinstance(fact[1], SessionCompacted)]
    spec = await specs.get(journal, created.spec)
    # Without a past: the messages of earlier turns are not looked at for those of this one, however many there are.
    state = await unhurried(FACT * len(said), fold, spec, run_id, said, past=Past())
    return tuple(state.transcript)


class Question(Struct, frozen=True):
    """The messages that a turn answered, with the numbers of the inputs among them.

    `after` is the run that the turn went on after, `identity` on whose behalf it acted. `compacts`: it answered none.
    """

    messages: tuple[Message, ...]
    inputs: tuple[int, ...]
    after: str
    identity: Identity
    compacts: bool = False


async def question_of(journal: Journal, run_id: str) -> Question:
    """Reads what a turn answered: what it began with, and what it took in while it worked. Raises `JournalChanged`."""
    facts = [event for _, event in await read_facts(journal, run_id)]
    if not facts or not isinstance(created := facts[0], RunCreated):
        raise Conflict(f"the journal of run {run_id} does not begin with its creation")
    asked = max((n for n, event in enumerate(facts) if isinstance(event, StepStarted)), default=0)
    heard = tuple(event.message for event in facts[:asked] if isinstance(event, InputReceived))
    return Question((*created.input, *heard), created.inputs, created.after, created.identity, created.compacts)


async def said_in(journal: Journal, run_id: str, inputs: Mapping[int, str]) -> dict[int, Message]:
    """Reads what was said to a session from the journal of the turn that has it; by the number of the input.

    `inputs` are the numbers that are wanted, with the ids under which a turn hears of them.
    """
    facts = await read_facts(journal, run_id, limit=1)
    if not facts or not isinstance(created := facts[0][1], RunCreated):
        return {}
    # Before them stands one message about what had to make room, if there was such.
    answered = created.input[max(0, len(created.input) - len(created.inputs)) :]
    found = {seq: each for seq, each in zip(created.inputs, answered, strict=False) if seq in inputs}
    if len(found) < len(inputs):
        by_id = {id: seq for seq, id in inputs.items() if seq not in found}
        for _, event in await read_facts(journal, run_id):
            if isinstance(event, InputReceived) and event.input_id in by_id:
                found[by_id[event.input_id]] = event.message
    return found


def texts_of(state: State) -> list[str]:
    """Returns the texts of people and of the agent in the turn that a run is, as far as it has them at hand.

    Nothing of earlier turns is among them: each is found by what was said in it.
    """
    created = state.created
    if created is None or created.compacts:
        return []
    own, begun = _first_of_turn(created, state.summarised), ()
    if own < 1 and state.summarised:  # the beginning of the turn itself was summarised
        own, begun = 1, state.said
    messages = (*begun, *state.transcript[own:])
    return [message.text for message in messages if message.role in ("user", "assistant") and message.text]


def _first_of_turn(created: RunCreated, summarised: int) -> int:
    """The place in the transcript at which a turn begins, behind a summary of so many messages; below 1: in it."""
    if summarised == created.summarised:
        return created.before
    said_before = created.before + max(0, created.summarised - 1)
    return said_before - summarised + 1


def excerpt_of(messages: Sequence[Message], text: str) -> tuple[str, str] | None:
    """Returns who said the words that were searched for, and the text around the first of them; None if no one did."""
    wanted = words_in(text)
    best: tuple[int, Message] | None = None
    for message in messages:
        if message.role not in ("user", "assistant") or not message.text:
            continue
        there = words_in(message.text)
        found = sum(any(word.startswith(each) for word in there) for each in wanted)
        if found and (best is None or found > best[0]):
            best = found, message
    if best is None:
        return None
    line = " ".join(best[1].text.split())
    at = min((place for each in wanted if (place := plain(line).find(each)) >= 0), default=0)
    begin = max(0, min(at, len(line)) - AROUND)
    shown = line[begin : begin + LONGEST_EXCERPT]
    before, after = "…" if begin else "", "…" if begin + LONGEST_EXCERPT < len(line) else ""
    return best[1].role, f"{before}{shown}{after}"
