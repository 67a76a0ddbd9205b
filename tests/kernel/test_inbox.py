"""The inbox: what each mode does, and that every input is answered exactly once and in order, whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from foliot.kernel.inbox import (
    FULL,
    MODES,
    MOST_BYTES,
    MOST_WAITING,
    STEERING,
    Arrival,
    InboxOptions,
    NextTurn,
    TurnPhase,
    Waiting,
    after_turn,
    arrive,
    mode_of,
    mode_problem,
    next_turn,
    phase_of,
)
from foliot.kernel.run.events import InputMode

OPTIONS = InboxOptions()


@pytest.mark.parametrize(
    ("mode", "turn", "outcome", "act"),
    [
        ("followup", "idle", "direct", "start"),
        ("interrupt", "idle", "direct", "start"),
        ("followup", "working", "queued", "wait"),
        ("queue", "working", "queued", "wait"),
        ("collect", "waiting", "queued", "wait"),
        ("steer", "working", "queued", "offer"),
        ("steer-backlog", "working", "queued", "offer"),
        ("steer", "waiting", "direct", "offer"),
        ("steer", "stopping", "queued", "wait"),
        ("interrupt", "working", "interrupted", "stop"),
        ("interrupt", "waiting", "interrupted", "stop"),
        ("interrupt", "stopping", "interrupted", "wait"),
    ],
)
def test_what_an_input_does_depends_on_its_mode_and_on_the_turn(
    mode: InputMode, turn: TurnPhase, outcome: str, act: str
) -> None:
    found = arrive(Waiting(1, mode, 0.0), [], turn, OPTIONS)
    assert (found.outcome, found.act) == (outcome, act)


@pytest.mark.parametrize(("text", "mode"), [("", "followup"), (" Steer ", "steer"), ("STEER-BACKLOG", "steer-backlog")])
def test_a_mode_is_read_in_any_case_and_blank_means_followup(text: str, mode: str) -> None:
    assert mode_of(text) == mode


def test_a_word_that_is_no_mode_is_told_all_that_there_are() -> None:
    assert mode_of("shout") is None
    assert mode_problem(" shout") == (
        'queue_mode "shout" is not supported (supported: queue, followup, collect, steer, steer-backlog, interrupt)'
    )


def numbered(*modes: InputMode, place: str = "") -> list[Waiting]:
    return [Waiting(seq, mode, float(seq), place) for seq, mode in enumerate(modes, 1)]


def test_followups_are_one_turn_each_oldest_first() -> None:
    assert next_turn(numbered("followup", "followup", "queue"), 99.0, OPTIONS) == NextTurn((1,))


def test_an_interrupt_comes_before_what_waited_longer_but_not_before_another_interrupt() -> None:
    waiting = numbered("followup", "interrupt", "collect", "interrupt")
    assert next_turn(waiting, 99.0, OPTIONS) == NextTurn((2,))


def test_collected_inputs_of_one_place_are_one_turn_after_a_silence() -> None:
    waiting = [*numbered("collect", "collect"), Waiting(3, "collect", 3.0, "elsewhere"), Waiting(4, "collect", 4.0)]
    assert next_turn(waiting, 3.4, OPTIONS) == NextTurn(at=3.5)
    assert next_turn(waiting, 4.4, OPTIONS) == NextTurn((3,))
    assert next_turn(waiting, 4.5, OPTIONS) == NextTurn((1, 2, 4))


def test_each_place_has_a_silence_of_its_own() -> None:
    busy = [Waiting(1, "collect", 1.0, "busy"), Waiting(3, "collect", 3.0, "busy")]
    quiet = Waiting(2, "collect", 1.1, "quiet")
    assert next_turn([*busy, quiet], 3.1, OPTIONS) == NextTurn((2,))
    assert next_turn([*busy, quiet], 1.5, OPTIONS) == NextTurn(at=1.6)
    assert next_turn(busy, 3.1, OPTIONS) == NextTurn(at=3.5)


def test_who_never_falls_silent_is_answered_all_the_same() -> None:
    waiting = [Waiting(seq, "collect", seq * 0.4) for seq in range(1, 20)]
    assert next_turn(waiting, 5.4, OPTIONS) == NextTurn(tuple(range(1, 20)))


def test_others_do_not_wait_for_the_silence() -> None:
    assert next_turn(numbered("collect", "followup"), 1.1, OPTIONS) == NextTurn((2,))


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ("old", Arrival("queued", "wait", (1,))),
        ("summarize", Arrival("queued", "wait", (1,))),
        ("new", Arrival(refused=FULL)),
    ],
)
def test_a_full_inbox_drops_by_its_rule(drop: str, expected: Arrival) -> None:
    options = InboxOptions(cap=2, drop=drop)  # type: ignore[arg-type]
    waiting = numbered("followup", "collect", "followup")
    assert arrive(Waiting(4, "followup", 4.0), waiting, "working", options) == expected


def test_what_is_queued_one_by_one_and_what_a_turn_was_offered_is_never_dropped() -> None:
    options = InboxOptions(cap=1)
    assert arrive(Waiting(3, "queue", 3.0), numbered("queue", "queue"), "working", options).dropped == ()
    offered = [Waiting(1, "steer", 1.0, offered=True)]
    assert arrive(Waiting(2, "steer", 2.0), offered, "working", options) == Arrival(refused=FULL)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop", ["old", "new", "summarize"])
def test_what_waits_is_bounded_in_every_mode_and_under_every_rule(mode: InputMode, drop: str) -> None:
    options = InboxOptions(drop=drop)  # type: ignore[arg-type]
    waiting: dict[int, Waiting] = {}
    for seq in range(1, 3 * MOST_WAITING):
        found = arrive(Waiting(seq, mode, 0.0), list(waiting.values()), "working", options)
        if not found.refused:
            waiting[seq] = Waiting(seq, mode, 0.0, offered=found.act == "offer")
        for dropped in found.dropped:
            assert not waiting.pop(dropped).offered
    assert len(waiting) == (MOST_WAITING if mode in ("queue", "interrupt") else options.cap)


def test_what_waits_is_bounded_in_bytes_but_one_input_always_has_room() -> None:
    large = Waiting(1, "queue", 0.0, size=MOST_BYTES + 1)
    assert not arrive(large, [], "working", OPTIONS).refused
    assert arrive(Waiting(2, "followup", 0.0, size=1), [large], "working", OPTIONS).refused == FULL


def test_a_turn_is_stopping_only_if_an_interrupt_told_this_very_turn() -> None:
    behind = [Waiting(1, "interrupt", 0.0, stops="earlier"), Waiting(2, "interrupt", 0.0)]
    assert phase_of("", behind) == "idle"
    assert phase_of("now", behind) == "working"
    assert phase_of("now", behind, for_person=True) == "waiting"
    assert phase_of("now", [*behind, Waiting(3, "interrupt", 0.0, stops="now")]) == "stopping"


def test_what_was_cancelled_never_comes_back() -> None:
    modes: tuple[InputMode, ...] = ("steer", "steer", "steer-backlog", "steer-backlog")
    offered = [Waiting(seq, mode, 1.0, offered=True, cancelled=True) for seq, mode in enumerate(modes, 1)]
    found = after_turn(offered, frozenset({1, 3}))
    assert (found.answered, found.back, found.dropped) == ((1, 3), (), (2, 4))


def test_a_steer_that_was_not_taken_waits_and_a_backlog_is_answered_as_well() -> None:
    offered = [Waiting(seq, mode, 1.0, offered=True) for seq, mode in enumerate(("steer", "steer", "steer-backlog"), 1)]
    found = after_turn(offered, frozenset({1, 3}))
    assert found.answered == (1,)
    assert [(each.seq, each.offered, each.steered) for each in found.back] == [(2, False, False), (3, False, True)]


class InboxMachine(RuleBasedStateMachine):
    """Many people say things in any mode, turns take or leave what they are offered, processes die in between.

    What a turn is doing is read from what is stored, as the store does it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.seq = 0
        self.options = InboxOptions(debounce=0.5, cap=10_000)
        self.modes: dict[int, InputMode] = {}
        self.waiting: dict[int, Waiting] = {}
        self.turn = ""
        self.told: set[str] = set()
        self.taken: set[int] = set()
        self.steered: list[int] = []
        self.turns: list[tuple[int, ...]] = []
        self.cancelled: set[int] = set()

    @rule(mode=st.sampled_from(MODES), place=st.sampled_from(["", "thread"]), later=st.floats(0, 1))
    def say(self, mode: InputMode, place: str, later: float) -> None:
        self.now += later
        self.seq += 1
        waiting = list(self.waiting.values())
        found = arrive(Waiting(self.seq, mode, self.now, place), waiting, phase_of(self.turn, waiting), self.options)
        assert not found.refused
        self.modes[self.seq] = mode
        offered, stops = found.act == "offer", self.turn if found.act == "stop" else ""
        self.waiting[self.seq] = Waiting(self.seq, mode, self.now, place, offered=offered, stops=stops)
        if stops:
            self.told.add(stops)
        assert (found.outcome == "interrupted") == (mode == "interrupt" and bool(self.turn))
        assert found.outcome != "interrupted" or self.turn in self.told, "it is interrupted, and nobody told it to end"
        assert not offered or (mode in STEERING and self.turn)
        assert offered or mode not in STEERING or not self.turn or self.turn in self.told, "a turn hears what steers it"

    @precondition(lambda self: self.turn)
    @rule()
    def interrupt(self) -> None:
        """Interrupts come in crowds: some wait behind the turn that answers an earlier one."""
        self.say("interrupt", "", 0.0)

    @precondition(lambda self: not self.turn and self.waiting)
    @rule()
    def begin(self) -> None:
        found = next_turn(list(self.waiting.values()), self.now, self.options)
        assert found is not None
        if not found.inputs:
            assert found.at > self.now
            self.now = found.at
            return
        for seq in found.inputs:
            assert not self.waiting.pop(seq).offered
        self.turns.append(found.inputs)
        self.turn, self.taken = f"turn {len(self.turns)}", set()

    @precondition(lambda self: self.turn and self.turn not in self.told)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        """The turn takes the oldest of what it was offered."""
        offered = sorted(seq for seq, each in self.waiting.items() if each.offered and seq not in self.taken)
        count = data.draw(st.integers(0, len(offered)))
        self.taken |= set(offered[:count])
        self.steered += offered[:count]

    @precondition(lambda self: self.seq % 4 == 3)
    @rule()
    def drop(self) -> None:
        """Somebody stops the turn, and drops what waits."""
        gone = {seq for seq, each in self.waiting.items() if not each.offered}
        self.cancelled |= gone
        self.waiting = {seq: replace(each, cancelled=True) for seq, each in self.waiting.items() if seq not in gone}

    @precondition(lambda self: self.turn)
    @rule()
    def end(self) -> None:
        """The turn ends, fails, is stopped, or its process dies and another one finds it over."""
        offered = [each for each in self.waiting.values() if each.offered]
        found = after_turn(offered, frozenset(self.taken))
        for seq in found.answered:
            del self.waiting[seq]
        for seq in found.dropped:
            del self.waiting[seq]
            self.cancelled.add(seq)
        self.waiting |= {each.seq: each for each in found.back}
        self.turn = ""

    @invariant()
    def nothing_is_answered_twice_or_forgotten(self) -> None:
        answered = [seq for turn in self.turns for seq in turn]
        assert len(answered) == len(set(answered))
        assert len(self.steered) == len(set(self.steered))
        alone = {seq for seq in self.steered if self.modes[seq] == "steer"}
        assert not alone & set(answered), "a steer that was taken is answered by the turn that took it"
        heard = {seq for seq in self.steered if seq not in self.waiting}
        assert not self.cancelled & set(answered), "what was dropped begins no turn"
        assert set(answered) | heard | self.waiting.keys() | self.cancelled == self.modes.keys()

    @invariant()
    def followups_are_answered_in_their_order(self) -> None:
        plain = [seq for turn in self.turns for seq in turn if self.modes[seq] in ("followup", "queue")]
        assert plain == sorted(plain)

    def teardown(self) -> None:
        """Whatever happened, everything is answered when people fall silent."""
        if self.turn:
            self.end()
        while self.waiting:
            self.begin()
            if self.turn:
                self.end()
        self.nothing_is_answered_twice_or_forgotten()


InboxMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestInbox = InboxMachine.TestCase
