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
# A crowd that never falls silent is answered after so many times the pause that is waited for.
MOST_PAUSES: Final = 10


class InboxOptions(Struct, frozen=True):
    """The rules of an inbox. After `debounce` seconds of silence what was collected is answered.

    At most `cap` inputs of a mode wait; what comes then is refused (`drop: new`), or takes the place of the oldest,
    which is forgotten (`old`) or kept as one line before the next turn (`summarize`).
    """

    debounce: float = 0.5
    cap: int = 20
    drop: Drop = "summarize"


class Waiting(Struct, frozen=True):
    """An input that is not answered yet. `place` is where it came from: inputs of two places are never joined.

    `offered` to the turn at work, which has not taken it. `steered`: a turn took it, and it is still to be answered.
    """

    seq: int
    mode: InputMode
    at: float
    place: str = ""
    offered: bool = False
    steered: bool = False


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


def arrive(arriving: Waiting, waiting: Sequence[Waiting], turn: TurnPhase, options: InboxOptions) -> Arrival:
    """Decides about an input that comes in, beside those that wait."""
    dropped = _making_room(arriving, waiting, options)
    if dropped and options.drop == "new":
        return Arrival(refused=FULL)
    if turn == "idle":
        # Others may wait for the silence that it just broke; whoever looks next finds it.
        return Arrival("direct", "start", dropped)
    if arriving.mode == "interrupt":
        return Arrival("interrupted", "wait" if turn == "stopping" else "stop", dropped)
    if turn in ("waiting", "working") and arriving.mode in STEERING:
        return Arrival("direct" if turn == "waiting" else "queued", "offer", dropped)
    return Arrival("queued", "wait", dropped)


def _making_room(arriving: Waiting, waiting: Sequence[Waiting], options: InboxOptions) -> tuple[int, ...]:
    """The oldest inputs of the same mode that give way. What a turn was offered stays: it may have it by now."""
    if arriving.mode in ("queue", "interrupt"):
        return ()
    alike = sorted((each for each in waiting if each.mode == arriving.mode and not each.offered), key=_by_arrival)
    return tuple(each.seq for each in alike[: max(0, len(alike) + 1 - options.cap)])


def next_turn(waiting: Sequence[Waiting], now: float, options: InboxOptions) -> NextTurn | None:
    """Chooses what is answered next, when no turn is at work; None when nothing waits."""
    if not waiting:
        return None
    ordered = sorted(waiting, key=_by_arrival)
    first = next((each for each in ordered if each.mode == "interrupt"), ordered[0])
    if first.mode != "collect":
        return NextTurn((first.seq,))
    together = [each for each in ordered if each.mode == "collect" and each.place == first.place]
    silence = min(together[-1].at + options.debounce, first.at + MOST_PAUSES * options.debounce)
    if now < silence:
        # Whatever else waits need not wait for that.
        other = next((each for each in ordered if each.mode != "collect"), None)
        return NextTurn((other.seq,)) if other is not None else NextTurn(at=silence)
    return NextTurn(tuple(each.seq for each in together))


class AfterTurn(Struct, frozen=True):
    """The fate of inputs that were offered to a turn which is over: some are done, others wait to be answered."""

    answered: tuple[int, ...] = ()
    back: tuple[Waiting, ...] = ()


def after_turn(offered: Sequence[Waiting], taken: frozenset[int]) -> AfterTurn:
    """Decides about the inputs that a turn was offered; `taken` are those that it took into its conversation."""
    answered: list[int] = []
    back: list[Waiting] = []
    for each in sorted(offered, key=_by_arrival):
        if each.seq in taken and each.mode != "steer-backlog":
            answered.append(each.seq)
        else:
            back.append(Waiting(each.seq, each.mode, each.at, each.place, steered=each.seq in taken))
    return AfterTurn(tuple(answered), tuple(back))


def _by_arrival(each: Waiting) -> int:
    return each.seq
