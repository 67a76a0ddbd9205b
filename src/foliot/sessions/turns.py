"""Turns, worked out from the inputs that they answer; and the settlement of a turn with its session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from foliot.engine.approval.notices import describe_asks, notice_key
from foliot.engine.base import Clock
from foliot.errors import InvalidInput
from foliot.kernel.identity import Identity
from foliot.kernel.inbox import line_of
from foliot.kernel.messages import Media, Message, Number, Text
from foliot.kernel.routing import read_details
from foliot.kernel.run.budget import narrow
from foliot.kernel.run.events import RunRetried, RunSucceeded, Terminal
from foliot.kernel.run.feedback import user_message
from foliot.kernel.run.spec import RunSpec
from foliot.kernel.run.state import State
from foliot.sessions.base import TurnOptions, check_said
from foliot.sessions.history import texts_of
from foliot.store.journal.base import TransactionBody
from foliot.store.sessions.base import NONE_DROPPED, ORDERED_BY, Dropped, Input, Session
from foliot.store.sessions.database import end_turn, tell_of_wait
from foliot.tools.secrets.masking import Masker

# A turn has half an hour, unless it or its agent says otherwise. Waiting for people does not count.
MAX_SECONDS: Final = 1800.0
TIME_NOTICE: Final = (
    "I have reached the time limit of {} for one answer, and stopped here. What I have done so far is kept: "
    "tell me to continue, or to do something else."
)
# What people on channels are told when an answer has to wait for somebody: they see no list of approvals.
WAITS: Final[Mapping[str, str]] = {
    "approval": "An approval is needed before I can go on. I continue as soon as somebody has decided; "
    "what you write meanwhile is answered after that.",
    "unknown_effect": "I do not know whether a step has taken effect, and somebody has to find out before I go on. "
    "What you write meanwhile is answered after that.",
    "input": "",
    "budget": "A limit on spending has been reached. I continue when there is room again; "
    "what you write meanwhile is answered after that.",
}
LONGEST_TITLE: Final = 60
# A title is cut at a space only if more than this is left of it.
SHORTEST_CUT: Final = 20
OPTIONS: Final = "options"
VIA: Final = "via"
# The labels of a run that say where what it answers came from, as its channel or trigger tells it.
ORIGIN: Final = "foliot.dev/"
LONGEST_LABEL: Final = 256
DROPPED: Final = "Messages that came while you worked and were too many to answer one by one:"


def title_of(messages: Sequence[Message]) -> str:
    """Returns the title that a session gets from the first text in it: at most 60 bytes, whole characters and words."""
    text = " ".join("".join(c if c.isprintable() else " " for c in _texts(messages)).split())
    if len(text.encode(errors="replace")) <= LONGEST_TITLE:
        return text
    cut = text.encode(errors="replace")[:LONGEST_TITLE].decode(errors="ignore")
    space = cut.rfind(" ")
    return f"{cut[:space] if space > SHORTEST_CUT else cut}…"


def _texts(messages: Sequence[Message]) -> str:
    return " ".join(message.text for message in messages if message.text.strip())


def message_of(said: Message | str) -> Message:
    """Returns what is said as a message of a user. Raises `InvalidInput` for nothing, and for what users do not say."""
    check_said(said)
    message = user_message(said) if isinstance(said, str) else said
    if message.role != "user" or not all(isinstance(part, Text | Media) for part in message.parts):
        raise InvalidInput("what is said to a session is a message of a user: texts, pictures and files")
    if not any(isinstance(part, Media) or (isinstance(part, Text) and part.text.strip()) for part in message.parts):
        raise InvalidInput("there is nothing to say: the text is empty")
    return message


def input_of(chosen: Sequence[Input], dropped: Dropped = NONE_DROPPED) -> tuple[Message, ...]:
    """Returns the messages of a turn: those that it answers, after the lines of those that had to make room."""
    said = tuple(each.message for each in chosen if each.message is not None)
    lines = [line_of(each.message) for each in dropped.newest if each.message is not None]
    if not lines:
        return said
    left = f"(and {dropped.count - len(lines)} before these)\n" if dropped.count > len(lines) else ""
    return user_message(f"{DROPPED}\n{left}" + "\n".join(f"- {line}" for line in lines)), *said


def with_time_limit(spec: RunSpec, options: TurnOptions) -> RunSpec:
    """Returns the spec of a turn with its time limit: the tighter of the agent's and the turn's, 30 minutes by default.

    A turn whose time is over ends with a notice as its answer, and not with an error.
    """
    wanted = options.max_seconds
    most = wanted if wanted is not None and wanted > 0 else MAX_SECONDS
    limits = narrow(spec.limits, replace(spec.limits, max_seconds=most))
    assert limits.max_seconds is not None, "the tighter of two limits is one"
    return replace(spec, limits=limits, time_notice=TIME_NOTICE.format(_in_words(limits.max_seconds)))


def _in_words(seconds: Number) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} seconds"


def options_of(session: Session, chosen: Sequence[Input]) -> TurnOptions:
    """Returns the options of a turn: of each the newest that was given, tools that any of its inputs excludes.

    The model is that of the turn, then that of the session, then that of the agent.
    """
    options = TurnOptions(model=session.model)
    for each in chosen:
        options = over(options, msgspec.convert(each.details.get(OPTIONS, {}), TurnOptions))
    return options


def over(options: TurnOptions, given: TurnOptions) -> TurnOptions:
    """Returns the options with those that are given in their place; excluded tools add up."""
    return TurnOptions(
        model=given.model or options.model,
        system=given.system or options.system,
        exclude_tools=tuple(dict.fromkeys((*options.exclude_tools, *given.exclude_tools))),
        max_seconds=given.max_seconds if given.max_seconds is not None else options.max_seconds,
    )


def identity_of(session: Session, heard: Sequence[Input]) -> Identity:
    """Returns on whose behalf a turn acts: the user of its session, and by whom if others spoke for them.

    The order is of all who had a part in one of the inputs that it hears, also in one of which it has a line only.
    """
    last = heard[-1]
    spoke = Identity(session.place.user, by=last.by, via=str(last.details.get(VIA, "")))
    return spoke.also_ordered_by(*(name for each in heard for name in (each.by, *each.details.get(ORDERED_BY, ()))))


def labels_of(chosen: Sequence[Input]) -> dict[str, str]:
    """Returns the labels of a turn: the origin of the newest of its inputs that has one."""
    for each in reversed(chosen):
        origin = read_details(each.details).provenance
        if origin.source:
            given = {
                "source": origin.source,
                "channel": origin.channel,
                "message": origin.message_id,
                "correlation": origin.correlation_id,
            }
            return {f"{ORIGIN}{name}": value[:LONGEST_LABEL] for name, value in given.items() if value}
    return {}


def details_of(identity: Identity | None, options: TurnOptions | None, details: dict[str, Any]) -> dict[str, Any]:
    """Returns what is stored of an input besides its message."""
    kept = dict(details)
    if options is not None and options != TurnOptions():
        kept[OPTIONS] = msgspec.to_builtins(options)
    if identity is not None and identity.via:
        kept[VIA] = identity.via
    if identity is not None and identity.ordered_by:
        kept[ORDERED_BY] = list(identity.ordered_by)
    return kept


def said_details(details: dict[str, Any]) -> dict[str, Any]:
    """Returns the details by which two inputs of one key are the same.

    The way that it came is not among them, nor whose order it is: a channel may have another declarer by the next try.
    """
    return {name: value for name, value in details.items() if name not in (VIA, ORDERED_BY)}


class TurnSettlement:
    """The session that a run is a turn of: its end moves the head, and lets the next turn begin."""

    def __init__(
        self, session: str, over: Callable[[str], None], *, clock: Clock, masker: Masker | None = None
    ) -> None:
        self._session = session
        self._masker = masker
        self._over = over
        self._clock = clock
        self._ended = False

    def instead(self, state: State, terminal: Terminal) -> RunRetried | None:
        """Returns None: a turn that failed has failed, and the person decides whether it is tried again."""
        return None

    def settle(self, state: State) -> TransactionBody | None:
        """Returns what the end of the turn does to its session, and whom a turn that waits for somebody tells."""
        self._ended = state.ended is not None
        if not self._ended:
            return wait_notice(state.run_id, state, self._masker, now=self._clock())
        finished = isinstance(state.ended, RunSucceeded)
        texts = texts_of(state)
        return end_turn(self._session, state.run_id, state.taken, now=self._clock(), texts=texts, finished=finished)

    async def settled(self) -> None:
        """Has the next turn begin, if something waits."""
        if self._ended:
            self._over(self._session)


class HelperSettlement:
    """A run below a turn: when it waits for somebody, the people who wait for the turn are told."""

    def __init__(self, turn: str, *, clock: Clock, masker: Masker | None = None) -> None:
        self._turn = turn
        self._clock = clock
        self._masker = masker

    def instead(self, state: State, terminal: Terminal) -> RunRetried | None:
        """Returns None: the run that asked for it decides what comes of a failure."""
        return None

    def settle(self, state: State) -> TransactionBody | None:
        """Returns what tells people of the wait of a run that has not ended."""
        ended = state.ended is not None
        return None if ended else wait_notice(self._turn, state, self._masker, now=self._clock())

    async def settled(self) -> None:
        """Does nothing: the turn that the run works for is looked after by itself."""


def wait_notice(turn: str, state: State, masker: Masker | None, *, now: float) -> TransactionBody | None:
    """Returns what tells the people of a turn what a run waits for; None for what goes on by itself."""
    waiting = state.waiting
    if waiting is None or (words := WAITS.get(waiting.reason)) is None:
        return None
    asks = describe_asks(state, masker) if waiting.reason in ("approval", "input") else ""
    text = "\n\n".join(part for part in (words, asks) if part)
    return tell_of_wait(turn, state.spec.namespace, notice_key(state), text, now=now) if text else None
