"""The inbox of a conversation: what is said to it while an agent works, and which turn answers what. Pure.

An input has an arrival number, given by the store, and a mode that says what it does while a turn is at work:

    mode            while a turn is at work                          when the turn is over
    followup        waits                                            one turn for each, oldest first
    queue           waits                                            as followup, never dropped for others
    collect         waits                                            one turn for all that wait, from one place
    steer           is offered to the turn at its next boundary      as followup, if the turn did not take it
    steer-backlog   as steer                                         as followup, also if the turn took it
    interrupt       ends the turn                                    comes first

Nothing in here knows a clock, a store or a person: the rows of the store are handed in, what to do with them comes out.
Each input is answered exactly once (of steer-backlog: steered at most once, and answered once), in the order of
arrival; an interrupt passes all but earlier interrupts, and collected inputs pass what is of another mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct

from foliot.kernel.messages import Message
from foliot.kernel.run.events import InputMode

MODES: Final[tuple[InputMode, ...]] = ("queue", "followup", "collect", "steer", "steer-backlog", "interrupt")
STEERING: Final[frozenset[InputMode]] = frozenset({"steer", "steer-backlog"})
# What the caller is told; the words are those of the API.
Outcome: TypeAlias = Literal["direct", "queued", "interrupted", "restarted"]
# What the turn at work is doing: nothing is, it works, it waits for a person, or it is about to end by an interrupt.
TurnPhase: TypeAlias = Literal["idle", "working", "waiting", "stopping"]
Drop: TypeAlias = Literal["old", "new", "summarize"]
DROPS: Final[tuple[str, ...]] = get_args(Drop)
# Why an input was taken out that no turn answered.
RESHAPED: Final = "reshaped_by_queue_mode"
FULL: Final = "input queue is full"
CANCELLED: Final = "task_cancelled"
RUN_ENDED: Final = "run_ended"
# Whatever the modes are: no more inputs of one session wait than these, or its `cap` if that is larger, nor more bytes.
MOST_WAITING: Final = 200
MOST_BYTES: Final = 16 * 1024 * 1024
# A crowd that never falls silent is answered after so many times the pause that is waited for.
MOST_PAUSES: Final = 10
# What the rules of an inbox may say.
LONGEST_DEBOUNCE: Final = 3600.0
LARGEST_CAP: Final = 10_000
# What is kept of inputs that had to make room: a line of each, and so many lines before one turn.
LONGEST_LINE: Final = 200
MOST_LINES: Final = 50


class InboxOptions(Struct, frozen=True):
    """The rules of an inbox. After `debounce` seconds of silence what was collected is answered.

    At most `cap` inputs of a mode wait; what comes then is refused (`drop: new`), or takes the place of the oldest,
    which is forgotten (`old`) or kept as one line before the next turn (`summarize`). What the turn at work was
    offered counts and never gives way.
    """

    debounce: float = 0.5
    cap: int = 20
    drop: Drop = "summarize"


def line_of(message: Message) -> str:
    """Returns the line that is kept of a message which had to make room."""
    text = " ".join(message.text.split()) or "(a file)"
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"


class Waiting(Struct, frozen=True):
    """An input that is not answered yet. `place` is where it came from: inputs of two places are never joined.

    `offered` to the turn at work, which has not taken it. `steered`: a turn took it, and it is still to be answered.
    `stops` is the turn that an interrupt has signalled to end. `cancelled`: it goes with the turn it was offered to.
    `size` is that of its message, in bytes.
    """

    seq: int
    mode: InputMode
    at: float
    place: str = ""
    offered: bool = False
    steered: bool = False
    stops: str = ""
    cancelled: bool = False
    size: int = 0


class Arrival(Struct, frozen=True):
    """The consequences of an input: `outcome` for whoever sent it, what to do, and which inputs make room for it.

    `refused` says why it is not taken; then nothing follows.
    """

    outcome: Outcome = "queued"
    act: Literal["start", "wait", "offer", "stop"] = "wait"
    dropped: tuple[int, ...] = ()
    refused: str = ""


class NextTurn(Struct, frozen=True):
    """The inputs that the next turn answers, by their numbers, oldest first; or, with none, when to look again."""

    inputs: tuple[int, ...] = ()
    at: float = 0.0


def mode_of(text: str) -> InputMode | None:
    """Returns the mode that a text names: blank is `followup`; None for a word that is no mode."""
    word = text.strip().lower() or "followup"
    return next((mode for mode in MODES if mode == word), None)


def mode_problem(text: str) -> str:
    """Says what is wrong with a word that is no mode, in the words of the API."""
    return f'queue_mode "{text.strip()}" is not supported (supported: {", ".join(MODES)})'


def phase_of(turn: str, waiting: Sequence[Waiting], *, for_person: bool = False) -> TurnPhase:
    """Returns what the turn at work is doing, blank for none; `for_person`: its run waits for somebody.

    It is about to end if an interrupt signalled this very turn: one that waits behind it has signalled another.
    """
    if not turn:
        return "idle"
    if any(each.stops == turn for each in waiting):
        return "stopping"
    return "waiting" if for_person else "working"


def arrive(arriving: Waiting, waiting: Sequence[Waiting], turn: TurnPhase, options: InboxOptions) -> Arrival:
    """Decides about an input that comes in, beside those that wait."""
    dropped = _making_room(arriving, waiting, options)
    if dropped is None or (dropped and options.drop == "new"):
        return Arrival(refused=FULL)
    if turn == "idle":
        # Others may wait for the silence that it just broke; whoever looks next finds it.
        return Arrival("direct", "start", dropped)
    if arriving.mode == "interrupt":
        return Arrival("interrupted", "wait" if turn == "stopping" else "stop", dropped)
    if turn in ("waiting", "working") and arriving.mode in STEERING:
        return Arrival("direct" if turn == "waiting" else "queued", "offer", dropped)
    return Arrival("queued", "wait", dropped)


def _making_room(arriving: Waiting, waiting: Sequence[Waiting], options: InboxOptions) -> tuple[int, ...] | None:
    """The oldest inputs of the same mode that give way; None when there is no room that way.

    What a turn was offered stays: it may have it by now.
    """
    gone: list[int] = []
    if arriving.mode not in ("queue", "interrupt"):
        alike = sorted((each for each in waiting if each.mode == arriving.mode), key=_by_arrival)
        over = max(0, len(alike) + 1 - options.cap)
        gone = [each.seq for each in alike if not each.offered][:over]
        if len(gone) < over:
            return None
    left = [each for each in waiting if each.seq not in gone]
    size = sum(each.size for each in left) + arriving.size
    if len(left) >= max(MOST_WAITING, options.cap) or (left and size > MOST_BYTES):
        return None
    return tuple(gone)


def next_turn(waiting: Sequence[Waiting], now: float, options: InboxOptions) -> NextTurn | None:
    """Chooses what is answered next, when no turn is at work; None when nothing waits.

    Those of one place that are collected wait for the silence of that place, and nothing else waits for it.
    """
    if not waiting:
        return None
    ordered = sorted(waiting, key=_by_arrival)
    interrupt = next((each for each in ordered if each.mode == "interrupt"), None)
    if interrupt is not None:
        return NextTurn((interrupt.seq,))
    collected: dict[str, list[Waiting]] = {}
    for each in ordered:
        if each.mode == "collect":
            collected.setdefault(each.place, []).append(each)
    silences = {
        place: end_of_silence(together[0].at, together[-1].at, options.debounce)
        for place, together in collected.items()
    }
    for each in ordered:
        if each.mode != "collect":
            return NextTurn((each.seq,))
        if silences[each.place] <= now:
            return NextTurn(tuple(other.seq for other in collected[each.place]))
    return NextTurn(at=min(silences.values()))


def end_of_silence(first: float, last: float, debounce: float) -> float:
    """Returns when inputs are answered that were collected from `first` to `last`, unless more is said before."""
    return min(last + debounce, first + MOST_PAUSES * debounce)


class AfterTurn(Struct, frozen=True):
    """The fate of inputs that were offered to a turn which is over: done, waiting to be answered, or taken out."""

    answered: tuple[int, ...] = ()
    back: tuple[Waiting, ...] = ()
    dropped: tuple[int, ...] = ()


def after_turn(offered: Sequence[Waiting], taken: frozenset[int]) -> AfterTurn:
    """Decides about the inputs that a turn was offered; `taken` are those that it took into its conversation."""
    answered: list[int] = []
    back: list[Waiting] = []
    dropped: list[int] = []
    for each in sorted(offered, key=_by_arrival):
        if each.seq in taken and (each.cancelled or each.mode != "steer-backlog"):
            answered.append(each.seq)
        elif each.cancelled:
            dropped.append(each.seq)
        else:
            back.append(Waiting(each.seq, each.mode, each.at, each.place, steered=each.seq in taken, size=each.size))
    return AfterTurn(tuple(answered), tuple(back), tuple(dropped))


def _by_arrival(each: Waiting) -> int:
    return each.seq
