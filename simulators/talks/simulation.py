"""Plays one conversation to its end and judges it.

    report = simulate(1234)
    assert report.ok, report

The same seed always gives the same world. What runs is real: the service of sessions, the rules of the inbox, turns
that begin and end, leases and the engine, on real SQL. Many speak at once in every mode, and say again under the same
key what was not acknowledged. Processes die before and after any write, question and effect, sleep through their
leases, and lose the store. In the end every input must have been answered exactly once, in order, one turn at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from foliot.engine.driver.runs import Runs
from foliot.errors import Conflict, FoliotError, UsageError
from foliot.kernel.inbox import MODES
from foliot.kernel.run.codec import decode
from foliot.kernel.run.events import CancelRequested, Event
from foliot.kernel.run.loop import fold
from foliot.kernel.run.state import State
from foliot.store.base import Key
from foliot.store.journal.memory import MemoryJournal
from foliot.store.journal.stored_events import entry_of
from foliot.store.resources.documents import key_text
from foliot.store.sessions.base import Place, Said
from foliot.store.sessions.database import input_id
from foliot.store.transaction import Tx, run
from simulators.engine.profiles import ANY, Profile
from simulators.engine.report import Report
from simulators.engine.virtual_loop import Stuck, VirtualLoop
from simulators.engine.world import World
from simulators.talks.process import SESSION, SPEC, TalkProcess
from simulators.workshop.database import Truth

PROGRAM: Final = "simulators.talks"
PATIENCE: Final = 400.0  # simulated seconds; a conversation that has not come to rest by then never will
PLACE: Final = Place("default", "helper", "ann", "web")

PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile("calm"),
        Profile("crashes", crash=0.03, faults=12, workers=3),
        Profile("zombies", pause=0.03, crash=0.01, faults=8, workers=3),
        Profile("disk", disk=0.03, crash=0.005, faults=12, workers=2),
        Profile("blackouts", disk=0.01, outage=0.01, outages=(0.5, 1.5, 4.0), faults=10, workers=3),
        Profile("rough", crash=0.02, pause=0.01, stop=0.01, disk=0.02, faults=15, workers=4),
    )
}


@dataclass(frozen=True)
class Utterance:
    """Something that somebody is going to say, until it is acknowledged."""

    key: str
    text: str
    mode: str
    place: str
    at: float


@dataclass
class Talk:
    """One simulated conversation. `acknowledged` is what each speaker was answered, by key."""

    world: World
    profile: Profile
    truth: Truth
    utterances: list[Utterance]
    options: dict[str, Any]
    acknowledged: dict[str, Said] = field(default_factory=dict[str, Said])
    refused: set[str] = field(default_factory=set[str])
    births: int = 0

    def spawn(self) -> None:
        self.births += 1
        world = self.world
        process = TalkProcess(world, f"p{self.births}", self.truth, self.profile)

        async def live() -> None:
            speaking = asyncio.create_task(self._speak(process))
            try:
                await process.serve()
            finally:
                speaking.cancel()

        process.live(live(), lambda: world.later(world.chance.choice((0.0, 0.5, 3.0)), self.spawn))

    async def _speak(self, process: TalkProcess) -> None:
        """Says what is due and was not acknowledged; several processes may say the same at once."""
        world = self.world
        while True:
            await asyncio.sleep(world.soon() + 0.1)
            due = [each for each in self.utterances if each.at <= world.loop.time() and not self.is_done(each)]
            if due:
                await self._say(process, world.chance.choice(due[:3]))

    async def _say(self, process: TalkProcess, each: Utterance) -> None:
        world = self.world
        try:
            said = await process.sessions.say(
                SESSION, each.text, identity=None, mode=each.mode, key=each.key, place=each.place
            )
        except Conflict as error:
            world.note(process.name, "", f"refused  {each.key}: {error.message}")
            self.refused.add(each.key)
        except FoliotError as error:
            world.note(process.name, "", f"not said {each.key}: {error.code}")
        else:
            world.note(process.name, said.run_id, f"said     {each.key} {each.mode}: {said.seq} {said.outcome}")
            if said.outcome == "interrupted" and not said.again and not self._is_told_to_end(said.run_id):
                world.history.problems.append(f"{each.key} interrupted run {said.run_id}, which goes on")
            earlier = self.acknowledged.setdefault(each.key, said)
            if (earlier.seq, earlier.outcome) != (said.seq, said.outcome):
                world.history.problems.append(f"{each.key} was answered {earlier} and then {said}")

    def _is_told_to_end(self, run_id: str) -> bool:
        """Whether a turn is over, or has been told to end, heard or not."""
        waiting = self.truth.read("signal_list", {"run_ids": json.dumps([run_id])})
        facts = [*(decode(row["data"]) for row in waiting), *(event for _, event in _facts(self.truth, run_id))]
        return any(isinstance(fact, CancelRequested) for fact in facts) or _state(self.truth, run_id).ended is not None

    def is_done(self, each: Utterance) -> bool:
        return each.key in self.acknowledged or each.key in self.refused

    def at_rest(self) -> bool:
        (row,) = self.truth.read("session_get", {"id": SESSION})
        waiting = self.truth.read("inbox_open", {"owner_kind": "session", "owner": row["key"]})
        return row["turn"] is None and not waiting and all(map(self.is_done, self.utterances))


def simulate(seed: int, profile: Profile | str = ANY) -> Report:
    """Play the conversation of this seed. Not to be called inside a running event loop."""
    chosen = _profile_for(seed, profile) if isinstance(profile, str) else profile
    chance = Random(f"{seed}/talk")
    loop = VirtualLoop(Random(f"{seed}/schedule"), latest=PATIENCE, most_callbacks=200_000)
    world = World(loop, chance, chosen, {}, MemoryJournal(), Runs)
    inbox = {"cap": chance.choice((2, 50)), "drop": chance.choice(("summarize", "old", "new")), "debounce": 0.5}
    declared = Random(f"{seed}/agent")  # says what the session leaves to it
    own = {name: value for name, value in inbox.items() if declared.random() < 0.5}
    talk = Talk(world, chosen, Truth(), _utterances(chance), {"inbox": own})
    _declare(talk, declared)
    world.lease_of = talk.truth.lease_of
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    found: list[str] = []
    try:
        loop.run(_play(talk), closing=lambda: setattr(world, "over", True))
    except Stuck as stuck:
        found.append(str(stuck))
    finally:
        logging.disable(quiet)
    found += [*world.history.problems, *loop.problems, *_judge(talk)]
    talk.truth.close()
    return Report(PROGRAM, seed, chosen, world.history, found, world.occasions, loop.callbacks)


def _declare(talk: Talk, chance: Random) -> None:
    """Declares the agent now, and again with other rules while people talk."""
    given = {
        "debounce": chance.choice(("0s", "500ms", "3s")),
        "cap": chance.choice((1, 2, 50)),
        "drop": chance.choice(("summarize", "old", "new")),
    }
    document = json.dumps({"spec": {"inbox": {name: each for name, each in given.items() if chance.random() < 0.8}}})
    key = key_text(Key("Agent", PLACE.namespace, PLACE.agent))

    def body() -> Tx[None]:
        values = {"key": key, "version": 1, "document": document, "owners": "{}"}
        if not (yield from run("resource_update", **values)):
            place = {"kind": "Agent", "namespace": PLACE.namespace, "name": PLACE.agent}
            yield from run("resource_insert", **values, **place)

    talk.truth.write(body, (), {})
    if not talk.world.over:
        talk.world.later(chance.uniform(1.0, 8.0), lambda: _declare(talk, chance))


def _profile_for(seed: int, name: str) -> Profile:
    if name == ANY:
        return Random(f"{seed}/profile").choice(list(PROFILES.values()))
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name!r}", hint=f"there are: {ANY}, {', '.join(PROFILES)}")
    return PROFILES[name]


def _utterances(chance: Random) -> list[Utterance]:
    return [
        Utterance(
            f"k{number}",
            chance.choice((f"do work {number}", f"say {number}")),
            chance.choice(MODES),
            chance.choice(("", "", "thread")),
            chance.uniform(0.0, 20.0),
        )
        for number in range(chance.randint(1, 14))
    ]


async def _play(talk: Talk) -> None:
    world = talk.world
    desk = TalkProcess(world, "desk", talk.truth, Profile("desk"))
    desk.occasion_without_waiting = lambda where, run_id="": False  # type: ignore[method-assign]
    while True:
        try:
            await desk.sessions.create(PLACE, identity=None, id=SESSION, options=talk.options)
            break
        except FoliotError:
            if talk.truth.read("session_get", {"id": SESSION}):
                break  # it was stored, and the answer got lost
    for _ in range(world.chance.randint(1, talk.profile.workers)):
        world.later(world.soon(), talk.spawn)
    rested = 0.0
    while rested <= talk.profile.lease_seconds * 2:
        await asyncio.sleep(1.0)
        rested = rested + 1.0 if talk.at_rest() else 0.0


# --- judging ---------------------------------------------------------------------------------------------------------


def _judge(talk: Talk) -> list[str]:
    """What is wrong with the conversation as it stands in the store."""
    truth = talk.truth
    (session,) = truth.read("session_get", {"id": SESSION})
    rows = truth.read("inbox_list", {"owner_kind": "session", "owner": session["key"], "after": 0, "count": 10_000})
    turns = truth.read("session_turns", {"session": session["key"], "before": 2**60, "count": 10_000})[::-1]
    found: list[str] = []
    if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)) or session["arrivals"] != len(rows):
        found.append(f"arrival numbers have gaps: {[row['seq'] for row in rows]}")
    if lost := set(talk.acknowledged) - {row["id"] for row in rows}:
        found.append(f"acknowledged and not stored: {sorted(lost)}")
    found += [
        f"input {row['seq']} ({row['mode']}) is {row['status']}"
        for row in rows
        if row["status"] not in ("consumed", "dropped")
    ]
    if [turn["number"] for turn in turns] != list(range(1, len(turns) + 1)):
        found.append(f"turns have gaps: {[turn['number'] for turn in turns]}")
    states = [_state(truth, turn["run_id"]) for turn in turns]
    found += _chain(turns, states, session["head"])
    found += _answers(rows, turns, states)
    return found


def _state(truth: Truth, run_id: str) -> State:
    return fold(SPEC, run_id, _facts(truth, run_id))


def _facts(truth: Truth, run_id: str) -> list[tuple[float, Event]]:
    rows = truth.read("event_read", {"id": run_id, "after": 0, "count": 10_000})
    return [(row["at"], decode(entry_of(row).data)) for row in rows]


def _chain(turns: list[Any], states: list[State], head: str | None) -> list[str]:
    """One turn at a time, each after the one before it."""
    found: list[str] = []
    before = ""
    for turn, state in zip(turns, states, strict=True):
        created = state.created
        if created is None or created.after != before or created.turn != turn["number"]:
            found.append(f"turn {turn['number']} does not go on after {before!r}")
        if state.ended is None or turn["ended_at"] is None:
            found.append(f"turn {turn['number']} has not ended")
        before = turn["run_id"]
    if (head or "") != before:
        found.append(f"the head is {head!r}, and the last turn {before!r}")
    return found


def _answers(rows: list[Any], turns: list[Any], states: list[State]) -> list[str]:
    """Every input answered once, by the turn that it names, and in order."""
    found: list[str] = []
    answered: Counter[int] = Counter()
    steered: Counter[int] = Counter()
    order: dict[str, list[int]] = {}
    by_seq = {row["seq"]: row for row in rows}
    ids = {input_id(SESSION, row["seq"]): row["seq"] for row in rows}
    for turn, state in zip(turns, states, strict=True):
        created = state.created
        assert created is not None, "every journal begins with it"
        for seq in created.inputs:
            answered[seq] += 1
            row = by_seq[seq]
            group = {"interrupt": "interrupt", "collect": f"collect {row['place']}"}.get(row["mode"], "one by one")
            order.setdefault(group, []).append(seq)
            if row["run_id"] != turn["run_id"]:
                found.append(f"input {seq} says that run {row['run_id']} answered it, not {turn['run_id']}")
        steered.update(ids[each] for each in state.taken if each in ids)
        texts = [message.text for message in created.input]
        said = [text for text in texts if not text.startswith("Messages that came")]
        if len(said) != len(created.inputs):
            found.append(f"turn {turn['number']} answers {created.inputs} with {texts}")
    for seq, row in by_seq.items():
        once, beside = answered[seq], steered[seq]
        if row["status"] == "dropped":
            # One that a turn heard and that was still to be answered may have to make room like any other.
            right = not once and (not beside or row["mode"] == "steer-backlog")
        elif row["mode"] == "steer-backlog":
            right = once == 1 and beside <= 1
        elif row["mode"] == "steer":
            right = once + beside == 1
        else:
            right = once == 1 and not beside
        if not right:
            found.append(f"input {seq} ({row['mode']}, {row['status']}) was answered {once} and steered {beside} times")
    found += [f"{group} out of order: {seqs}" for group, seqs in order.items() if seqs != sorted(seqs)]
    return found
